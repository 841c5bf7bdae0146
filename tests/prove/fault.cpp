// Which fault, and what it may do to a chain.
#include "prove/fault.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "analysis/analysis.hpp"

namespace clew::prove {
namespace {

bool covers(const unwind::Code& code, uint64_t address) {
  return address >= code.start && address < code.end;
}

bool is_code(uint64_t address, unwind::Target& target) {
  unwind::Code code;
  return target.find(address, code) && code.executable;
}

/// Whether an unwinder must take this word for a return address: it lies in code, behind a call.
bool is_call_site(uint64_t address, unwind::Target& target) {
  unwind::Code code;
  if (!target.find(address, code) || !code.executable) return false;
  std::byte before[16];
  const size_t size = std::min<uint64_t>(sizeof before, address - code.start);
  return size > 0 && target.read_code(address - size, before, size) &&
         analysis::call_precedes({before, size});
}

/// What a fault may end a walk with. A register whose saved value cannot be read is missed further up only,
/// and where it is the frame pointer no rule is left; a word that was replaced may lead anywhere but to the
/// root.
bool is_right_end(Fault fault, uint32_t end) {
  switch (fault) {
    case Fault::kUnreadable:
      return end == CLEW_END_UNREADABLE || end == CLEW_END_NO_REGISTER || end == CLEW_END_NO_RULE;
    case Fault::kFlipped:
      return end != CLEW_END_ROOT;
    case Fault::kHidden:
      return end == CLEW_END_NOT_MAPPED;
  }
  return false;
}

std::string what(Fault fault, const Walked& right, const Walked& broken) {
  constexpr std::array kNames = {"word unreadable", "word replaced", "mapping hidden"};
  std::string text = std::string(kNames[static_cast<size_t>(fault)]) + ": " +
                     std::to_string(right.frames.size()) + " frames became " +
                     std::to_string(broken.frames.size()) + ", " + clew_end_name(broken.result.end);
  for (size_t i = 0; i < broken.frames.size(); ++i)
    if (i >= right.frames.size() || right.frames[i].pc != broken.frames[i].pc)
      return text + ", first other one number " + std::to_string(i) + " by " +
             clew_how_name(broken.frames[i].how);
  return text;
}

}  // namespace

bool FaultyTarget::read(uint64_t address, void* out, size_t size) {
  words_.push_back(address);
  if (address == unreadable_) return false;
  if (!inner_->read(address, out, size)) return false;
  if (address == replaced_) std::memcpy(out, &word_, std::min(size, sizeof word_));
  return true;
}

bool FaultyTarget::find(uint64_t address, unwind::Code& code) {
  return !covers(hidden_, address) && inner_->find(address, code);
}

Outcome judge_fault(Fault fault, const Walked& right, const Walked& broken, unwind::Target& target) {
  const size_t common = std::min(right.frames.size(), broken.frames.size());
  size_t same = 0;
  while (same < common && right.frames[same].pc == broken.frames[same].pc) ++same;
  if (same == broken.frames.size()) {
    if (same == right.frames.size() && broken.result.end == right.result.end) return Outcome::kSame;
    // After a call of nothing: it tried the word on the stack because the frame's own code is not there.
    const bool in_no_code =
        !broken.frames.empty() && !is_code(broken.frames.back().pc, target) &&
        (broken.result.end == CLEW_END_NOT_MAPPED || broken.result.end == CLEW_END_NOT_EXECUTABLE);
    return in_no_code || is_right_end(fault, broken.result.end) ? Outcome::kEnded : Outcome::kPhantom;
  }
  Outcome outcome = Outcome::kUndetectable;
  for (const clew_frame& frame : broken.frames.subspan(same)) {
    if (is_call_site(frame.pc, target) || (frame.flags & CLEW_FRAME_EXACT_PC) != 0) continue;
    if (frame.how != CLEW_HOW_TABLE || !is_code(frame.pc, target)) return Outcome::kPhantom;
    outcome = Outcome::kTable;
  }
  return outcome;
}

void FaultInjector::inject(unwind::Target& target, const unwind::Registers& registers,
                           std::mt19937_64& random, FaultTally& tally) {
  FaultyTarget sound(target);
  const unwind::WalkResult whole = unwind::walk(sound, registers, right_);
  const std::span<const clew_frame> frames(right_.data(), whole.frames);
  FaultyTarget faulty(target);
  auto fault = static_cast<Fault>(random() % 3);
  if (fault == Fault::kHidden) {
    // Of a caller: where the leaf's own code is not mapped, that is what was called.
    unwind::Code code;
    if (frames.size() < 2 || !target.find(frames[1 + random() % (frames.size() - 1)].pc, code)) return;
    if (covers(code, frames[0].pc)) return;
    faulty.hide(code);
  } else {
    if (sound.words().empty()) return;
    const uint64_t address = sound.words()[random() % sound.words().size()];
    uint64_t word = 0;
    if (!target.read(address, &word, sizeof word)) return;
    // A bit of it, or another word of the same stack.
    uint64_t other = word ^ uint64_t { 1 } << random() % 64;
    if (random() % 2 == 0) target.read(sound.words()[random() % sound.words().size()], &other, sizeof other);
    if (fault == Fault::kUnreadable)
      faulty.break_word(address);
    else
      faulty.replace_word(address, other);
  }
  const unwind::WalkResult result = unwind::walk(faulty, registers, broken_);
  const Walked broken{std::span(broken_).first(result.frames), result};
  switch (judge_fault(fault, {frames, whole}, broken, target)) {
    case Outcome::kSame:
      ++tally.same;
      return;
    case Outcome::kEnded:
      ++tally.ended[clew_end_name(result.end)];
      return;
    case Outcome::kUndetectable:
      ++tally.undetectable;
      return;
    case Outcome::kTable:
      ++tally.table;
      return;
    case Outcome::kPhantom:
      ++tally.wrong;
      tally.wrong_at.emplace(frames[0].pc, what(fault, {frames, whole}, broken));
      return;
  }
}

}  // namespace clew::prove
