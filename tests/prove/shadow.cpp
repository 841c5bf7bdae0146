// The shadow stack of one thread.
#include "prove/shadow.hpp"

#include <algorithm>

namespace clew::prove {
namespace {

// A stack pointer that was loaded with a lower value: alloca rather than another stack, up to this distance.
constexpr uint64_t kLargestFrame = 1 << 20;
// How far above the stack pointer that it began with a context may reach: its first function may pop
// arguments.
constexpr uint64_t kAboveBase_bytes = 64;

}  // namespace

ShadowStack::ShadowStack(uint64_t sp) { current_.segments.push_back({0, sp}); }

void ShadowStack::pop_to(uint64_t sp) {
  const Segment& segment = current_.segments.back();
  size_t kept = segment.first + (segment.signal ? 1 : 0);
  while (current_.callers.size() > kept && current_.callers.back().slot < sp) current_.callers.pop_back();
}

void ShadowStack::drop_segments_above(size_t segment) {
  if (segment + 1 >= current_.segments.size()) return;
  current_.callers.resize(current_.segments[segment + 1].first);
  current_.segments.resize(segment + 1);
}

/// The narrowest known stack that `sp` lies in: a coroutine's may be an array in another's frame.
bool ShadowStack::find_stack(uint64_t sp, Place& place) const {
  uint64_t narrowest = UINT64_MAX;
  auto look = [&](const Context& context, size_t number) {
    for (size_t i = 0; i < context.segments.size(); ++i) {
      const Segment& segment = context.segments[i];
      bool running = number == kCurrent && i + 1 == context.segments.size();
      uint64_t low = running ? before_ : segment.low;
      if (sp < low || sp > segment.base || segment.base - low >= narrowest) continue;
      narrowest = segment.base - low;
      place = {number, i};
    }
  };
  look(current_, kCurrent);
  for (size_t i = 0; i < others_.size(); ++i) look(others_[i], i);
  return narrowest != UINT64_MAX;
}

void ShadowStack::suspend() {
  current_.segments.back().low = before_;
  if (others_.size() >= kMaxContexts) others_.erase(others_.begin());
  others_.push_back(std::move(current_));
  current_ = {};
}

void ShadowStack::begin_context(uint64_t sp, Program& program) {
  current_ = {};
  current_.segments.push_back({0, sp + kAboveBase_bytes});
  uint64_t word = 0;
  if (program.read_word(sp, word) && program.is_code(word)) current_.callers.push_back({sp, word});
}

/// Control was transferred after the stack pointer was loaded.
Left ShadowStack::land(Flow flow, uint64_t sp, Program& program) {
  loaded_ = false;
  Place place;
  if (find_stack(sp, place)) {
    if (place.context != kCurrent) {
      Context next = std::move(others_[place.context]);
      others_.erase(others_.begin() + static_cast<ptrdiff_t>(place.context));
      suspend();
      current_ = std::move(next);
    }
    drop_segments_above(place.segment);
    pop_to(sp);
    // The memory of a context that ended may have become another's stack.
    uint64_t word = 0;
    bool another =
        place.context != kCurrent && !current_.callers.empty() && current_.callers.back().slot != kNoSlot &&
        (!program.read_word(current_.callers.back().slot, word) || word != current_.callers.back().address);
    if (another) begin_context(sp, program);
    return place.context == kCurrent ? Left::kReturned : Left::kSwitched;
  }
  bool near_below = sp < before_ && before_ - sp < kLargestFrame;
  if (flow == Flow::kCall) {
    if (!near_below) {
      current_.segments.back().low = before_;
      current_.segments.push_back({current_.callers.size(), sp});
    }
    return Left::kNo;
  }
  if (flow == Flow::kIndirectJump && near_below) return Left::kNo;
  suspend();
  begin_context(sp, program);
  return Left::kSwitched;
}

Left ShadowStack::step(const Step& step, Program& program) {
  const Instruction& instruction = step.instruction;
  if (instruction.moves_stack && !loaded_) {
    loaded_ = true;
    before_ = step.sp;
  }
  switch (instruction.flow) {
    case Flow::kStraight:
    case Flow::kSyscall:
      return Left::kNo;
    case Flow::kCall: {
      Left left = Left::kNo;
      if (loaded_)
        left = land(Flow::kCall, step.sp, program);
      else
        pop_to(step.sp);
      // A call of the next instruction only asks where it is.
      uint64_t behind = step.pc + instruction.length;
      if (step.next_pc != behind) current_.callers.push_back({step.next_sp, behind});
      return left;
    }
    case Flow::kJump:
      // Within the code that is about to change the stack.
      if (loaded_) return Left::kNo;
      [[fallthrough]];
    case Flow::kIndirectJump:
    case Flow::kReturn: {
      if (loaded_) return land(instruction.flow, step.next_sp, program);
      size_t depth = current_.callers.size();
      pop_to(step.next_sp);
      return current_.callers.size() < depth ? Left::kReturned : Left::kNo;
    }
  }
  return Left::kNo;
}

void ShadowStack::begin_handler(uint64_t sp, uint64_t restorer, uint64_t pc, uint64_t interrupted_sp) {
  current_.segments.back().low = interrupted_sp;
  Segment segment{current_.callers.size(), sp + 8};
  segment.signal = true;
  segment.was_loaded = loaded_;
  segment.was_before = before_;
  current_.segments.push_back(segment);
  current_.callers.push_back({kNoSlot, pc});
  current_.callers.push_back({sp, restorer});
  loaded_ = false;
}

Left ShadowStack::end_handler(uint64_t sp, Program& program) {
  while (current_.segments.size() > 1) {
    Segment ended = current_.segments.back();
    drop_segments_above(current_.segments.size() - 2);
    if (!ended.signal) continue;
    if (current_.segments.back().low == sp) {
      loaded_ = ended.was_loaded;
      before_ = ended.was_before;
      return Left::kReturned;
    }
    break;
  }
  // The handler made it return elsewhere.
  loaded_ = true;
  before_ = current_.segments.back().low;
  return land(Flow::kIndirectJump, sp, program);
}

}  // namespace clew::prove
