#include "analysis/function_flow.hpp"

#include <algorithm>

namespace clew::analysis {
namespace {
constexpr uint32_t kDisputed = 0xffffffff;

// The register in which `in` makes a sum of two others: how compilers make the address of a jump table's
// entry (add reg, reg; lea reg, [reg + reg]).
uint8_t sum_of(const Instruction& in) {
  if (in.wide && in.is_register_form()) {
    if (in.is(0x01)) return in.rm();
    if (in.is(0x03)) return in.reg();
  }
  if (in.wide && in.is(0x8d)) {
    Memory memory = in.memory();
    if (memory.base < kGeneralRegisters && memory.index != kNoRegister && memory.displacement == 0)
      return in.reg();
  }
  return kNoRegister;
}

// The register that `in` compares rsp with.
uint8_t compared_with_rsp(const Instruction& in) {
  if ((!in.is(0x39) && !in.is(0x3b)) || !in.wide || !in.is_register_form()) return kNoRegister;
  if (in.reg() == kRsp) return in.rm();
  return in.rm() == kRsp ? in.reg() : kNoRegister;
}
}  // namespace

FunctionFlow::FunctionFlow(std::span<const std::byte> code, uint64_t address)
    : code_(code.first(std::min(code.size(), kMostCode))),
      address_(address),
      decoded_at_(code_.size()),
      swept_targets_(code_.size()),
      doubtful_calls_(code_.size()),
      final_calls_(code_.size()),
      steps_left_(kStepsPerByte * code_.size() + 64) {
  constexpr size_t kUsualLength = 4;
  decoded_.reserve(code_.size() / kUsualLength);
  sweep();
}

void FunctionFlow::decode_at(size_t offset) {
  Decoded& out = decoded_.emplace_back();
  decoded_at_[offset] = static_cast<uint32_t>(decoded_.size());
  Instruction in;
  if (!decode(code_.subspan(offset), in)) return;
  out.length = in.length;
  out.written = written_registers(in);
  if (in.encoding != Encoding::kLegacy) return;  // none of these is anything of what follows
  out.flow = flow_of(in, out.target);
  if (out.flow == Flow::kJumpIndirect) {
    out.table = in.notrack || (in.is_memory_form() && in.memory().index != kNoRegister);
    if (in.is_register_form()) out.jumps_by = in.rm();
  }
  out.padding = is_padding(in);
  if (in.map == Map::kOneByte) {
    if (in.wide && in.opcode == 0x8d && in.mod() == 0 && (in.modrm & 7) == 5 && !in.address32) {
      out.takes = true;
      out.target = int64_t{in.length} + in.displacement;
    }
    out.sum = sum_of(in);
    out.compared = compared_with_rsp(in);
  }
  out.not_zero = in.is(0x75) || in.is_0f(0x85);
  out.used = used_registers(in);
  if (out.used != 0) {
    out.full = static_cast<uint32_t>(full_.size());
    full_.push_back(in);
  }
}

FunctionFlow::Decoded& FunctionFlow::decoded(size_t offset) {
  if (decoded_at_[offset] == 0) decode_at(offset);
  return decoded_[decoded_at_[offset] - 1];
}

// Finds branch and call targets, so that ways are known to meet there before the first one is followed.
void FunctionFlow::sweep() {
  bool ended = false;
  for (size_t at = 0; at < code_.size();) {
    const Decoded in = decoded(at);
    if (in.length == 0) {
      ++at;
      ended = false;
      continue;
    }
    if (ended && !in.padding) {
      after_ends_.push_back(static_cast<uint32_t>(at));
      ended = false;
    }
    const Flow flow = in.flow;
    int64_t to = static_cast<int64_t>(at) + in.target;
    bool inside = to >= 0 && to < static_cast<int64_t>(code_.size());
    if ((flow == Flow::kBranch || flow == Flow::kJump) && inside) {
      swept_targets_[static_cast<size_t>(to)] = true;
      branches_.emplace_back(static_cast<uint32_t>(to), static_cast<uint32_t>(at));
    }
    if (flow == Flow::kJumpIndirect) has_table_ = true;
    if (flow == Flow::kCall || flow == Flow::kCallIndirect) {
      const size_t behind = behind_padding(at + in.length);
      if (behind != at + in.length && behind < code_.size())
        after_ends_.push_back(static_cast<uint32_t>(behind));
      doubtful_calls_[at] = (address_ + behind) % 16 == 0;
    }
    if (flow == Flow::kCall && inside && in.target != in.length)
      call_targets_.push_back(static_cast<uint32_t>(to));
    if (flow == Flow::kCall && !inside) outside_.push_back(address_ + static_cast<uint64_t>(to));
    // Jump tables lie elsewhere, so that an address in code is a function's.
    if (in.takes) {
      const int64_t taken = to;
      if (taken >= 0 && taken < static_cast<int64_t>(code_.size())) {
        taken_.push_back(static_cast<uint32_t>(taken));
      } else {
        outside_.push_back(address_ + static_cast<uint64_t>(taken));
      }
    }
    if (flow == Flow::kJump || flow == Flow::kJumpIndirect || flow == Flow::kReturn || flow == Flow::kStop)
      ended = true;
    at += in.length;
  }
  std::sort(branches_.begin(), branches_.end());
  std::sort(after_ends_.begin(), after_ends_.end());
  after_ends_.erase(std::unique(after_ends_.begin(), after_ends_.end()), after_ends_.end());
  for (uint32_t taken : taken_) enter_if_begins(taken);
  std::sort(call_targets_.begin(), call_targets_.end());
}

void FunctionFlow::enter_if_begins(uint32_t offset) {
  if (offset == behind_padding(0) || std::binary_search(after_ends_.begin(), after_ends_.end(), offset))
    call_targets_.push_back(offset);
}

// The first instruction that is no padding. A lone one-byte nop is none by itself: compilers without
// optimization and linkers that relax calls write one behind a call.
size_t FunctionFlow::behind_padding(size_t offset) {
  constexpr unsigned kMostPadding = 16;
  size_t at = offset;
  for (unsigned count = 0; count < kMostPadding && at < code_.size() && padding(at); ++count)
    at += length(at);
  return at;
}

uint32_t& FunctionFlow::block_at(size_t offset) {
  targets_[offset] = true;
  return decoded(offset).block;
}

void FunctionFlow::enter(size_t offset, const FrameState& state) {
  if (offset < code_.size()) entries_.emplace_back(static_cast<uint32_t>(offset), state);
}

void FunctionFlow::may_enter(std::span<const uint64_t> addresses) {
  const size_t first = behind_padding(0);
  const auto at = std::lower_bound(after_ends_.begin(), after_ends_.end(), first);
  if (first < code_.size() && (at == after_ends_.end() || *at != first))
    after_ends_.insert(at, static_cast<uint32_t>(first));
  for (auto to = std::lower_bound(addresses.begin(), addresses.end(), address_);
       to != addresses.end() && *to - address_ < code_.size(); ++to)
    enter_if_begins(static_cast<uint32_t>(*to - address_));
  std::sort(call_targets_.begin(), call_targets_.end());
}

void FunctionFlow::suspect(uint32_t call) {
  if (call != 0) suspects_.push_back(call - 1);
}

void FunctionFlow::arrive(int64_t offset, const FrameState& state, uint32_t last_call, uint32_t guess) {
  if (offset < 0 || offset >= static_cast<int64_t>(code_.size())) return;
  auto at = static_cast<size_t>(offset);
  uint32_t& known = block_at(at);
  if (known == 0) {
    blocks_.push_back({state, static_cast<uint32_t>(at), last_call, guess, true});
    known = static_cast<uint32_t>(blocks_.size());
    queue_.push_back(static_cast<uint32_t>(blocks_.size() - 1));
    return;
  }
  Block& block = blocks_[known - 1];
  const Value& here = block.state.rsp();
  const Value& there = state.rsp();
  const bool from_guess = guess != block.guess && (guess == 0 || block.guess == 0);
  if (from_guess && here.kind == Value::kCfa && here == there)
    confirmed_.push_back((guess | block.guess) - 1);
  if (here.kind == Value::kCfa && there.kind == Value::kCfa && here.offset != there.offset) {
    if (from_guess) {
      const uint32_t call = guess != 0 ? last_call : block.last_call;
      if (call != 0) {
        suspect(call);
      } else {
        contradicted_.push_back((guess | block.guess) - 1);
      }
      return;
    }
    bool deeper = there.offset < here.offset;
    suspect((deeper && last_call != 0) || block.last_call == 0 ? last_call : block.last_call);
  }
  if (guess == 0) block.guess = 0;
  if (!meet(block.state, state) || block.queued) return;
  block.queued = true;
  queue_.push_back(known - 1);
}

void FunctionFlow::note(Decoded& place, uint32_t owner, clew_rule rule) {
  if (place.owner == 0) reached_.push_back(static_cast<uint32_t>(&place - decoded_.data()));
  if (place.owner == 0 || place.owner == owner) {
    place.owner = owner;
    place.rule = rule;
  } else if (place.rule != rule) {  // overlapping blocks that do not agree
    place.owner = kDisputed;
    place.rule = 0;
  }
}

// Of what was noted about a place only the last word counts: on the way to it, loops have states that do not
// hold.
template <class T>
void keep_last_words(std::vector<T>& words) {
  std::stable_sort(words.begin(), words.end(), [](const T& a, const T& b) { return a.at < b.at; });
  size_t kept = 0;
  for (size_t i = 0; i < words.size(); ++i)
    if (i + 1 == words.size() || words[i + 1].at != words[i].at) words[kept++] = words[i];
  words.resize(kept);
}

void FunctionFlow::leave(size_t at, const FrameState& state, const Block& from, uint32_t last_call,
                         bool returns) {
  const bool known = state.rsp().kind == Value::kCfa;
  const bool right = known && state.rsp().offset == -8 && state.rbp().kind == Value::kCallerRbp;
  exits_.push_back({static_cast<uint32_t>(at), known && state.rsp().offset != -8 ? last_call : 0, from.guess,
                    returns, right});
  outermost_returns_ |= returns && state.rbp().kind == Value::kOutermost;
}

void FunctionFlow::follow(uint32_t index, const std::function<void(size_t, const FrameState&)>& observe) {
  size_t at = blocks_[index].offset;
  FrameState state = blocks_[index].state;
  uint32_t last_call = blocks_[index].last_call;
  const uint32_t guess = blocks_[index].guess;
  blocks_[index].queued = false;
  uint16_t known = state.known();
  clew_rule rule = rule_of(state);
  uint8_t sum = kNoRegister;       // holds base + entry of a jump table
  uint8_t compared = kNoRegister;  // cmp rsp, register was the last instruction
  for (bool first = true; at < code_.size(); first = false) {
    if (!first && targets_[at]) {
      arrive(static_cast<int64_t>(at), state, last_call, guess);
      return;
    }
    Decoded& place = decoded(at);
    if (steps_left_ == 0 || place.length == 0) return;
    --steps_left_;
    note(place, index + 1, rule);
    const Decoded in = place;  // others that are decoded meanwhile may move it
    if (observe) observe(at, state);
    const auto here = static_cast<int64_t>(at);
    const size_t next = at + in.length;
    switch (in.flow) {
      case Flow::kReturn:
        leave(at, state, blocks_[index], last_call, true);
        return;
      case Flow::kStop:
        return;
      case Flow::kJump:
        if (here + in.target < 0 || here + in.target >= static_cast<int64_t>(code_.size()))
          leave(at, state, blocks_[index], last_call, false);
        arrive(here + in.target, state, last_call, guess);
        return;
      case Flow::kJumpIndirect: {
        if (!in.table && (in.jumps_by == kNoRegister || in.jumps_by != sum)) {
          leave(at, state, blocks_[index], last_call, false);
          return;
        }
        if (tables_ == Tables::kNone) {
          table_state_ = state;
          tables_ = Tables::kAgree;
        } else {
          meet(table_state_, state);
          // Frames by other registers are not believed here: what the jumps share need not hold everywhere.
          rule = rule_of(table_state_);
          bool frame_pointer =
              table_state_.rbp() == Value{-16, Value::kCfa} && clew_rule_register(rule) == CLEW_RBP;
          const bool found = table_state_.rsp().kind == Value::kCfa || frame_pointer;
          if (clew_rule_kind(rule) == CLEW_CFA_NONE || !found) tables_ = Tables::kDiffer;
        }
        return;
      }
      case Flow::kBranch:
        arrive(here + in.target, state, last_call, guess);
        // while (rsp != reg) probe the next page: behind the loop the two are equal.
        if (compared < kGeneralRegisters && in.not_zero && state.rsp().kind == Value::kUnknown) {
          state.registers[kRsp] = state.registers[compared];
          known = state.known();
          rule = rule_of(state);
        }
        break;
      case Flow::kCall:
      case Flow::kCallIndirect:
        outermost_calls_ |= in.flow == Flow::kCallIndirect && state.rbp().kind == Value::kOutermost;
        if (final_calls_[at]) return;
        if (in.flow == Flow::kCall && in.target == in.length) {
          step(state, full_[in.full]);
        } else {
          step_over_call(state);
        }
        known = state.known();
        rule = rule_of(state);
        if (in.target != in.length && (last_call == 0 || !doubtful_calls_[last_call - 1]))
          last_call = static_cast<uint32_t>(at + 1);
        if (size_t behind = behind_padding(next); behind != next && in.target != in.length) {
          // Padding aligns what a branch, a jump table or another function's caller leads to.
          if (behind < code_.size() && targets_[behind]) {
            behind_calls_.push_back({static_cast<uint32_t>(behind), last_call, guess, state});
            return;
          }
          if (has_table_ || behind - next > 1) return;
        }
        if (next < code_.size() && targets_[next]) {
          behind_calls_.push_back({static_cast<uint32_t>(next), last_call, guess, state});
          return;
        }
        if ((address_ + next) % 16 == 0 && state.rsp().kind == Value::kCfa)
          aligned_calls_.push_back({static_cast<uint32_t>(at), state.rsp().offset});
        break;
      case Flow::kNext: {
        if ((in.used & known) != 0) {
          step(state, full_[in.full]);
          known = state.known();
          rule = rule_of(state);
        } else if ((in.written & known) != 0) {
          state.forget(in.written);
          known = static_cast<uint16_t>(known & ~in.written);
          rule = rule_of(state);
        }
        if (in.sum != kNoRegister) {
          sum = in.sum;
        } else if (sum < kGeneralRegisters && (in.written >> sum & 1)) {
          sum = kNoRegister;
        }
        break;
      }
    }
    compared = in.compared;
    at = next;
  }
}

// push rbp; mov rbp, rsp, with endbr64 before it or without.
bool FunctionFlow::looks_like_entry(size_t offset) const {
  Instruction in;
  if (!decode(code_.subspan(offset), in)) return false;
  if (in.is_0f(0x1e) && in.repeat && in.modrm == 0xfa) {
    offset += in.length;
    if (!decode(code_.subspan(offset), in)) return false;
  }
  if (!in.is(0x55) || in.base_high) return false;
  if (!decode(code_.subspan(offset + in.length), in)) return false;
  return in.wide && ((in.is(0x89) && in.modrm == 0xe5) || (in.is(0x8b) && in.modrm == 0xec)) &&
         !in.reg_high && !in.base_high;
}

bool FunctionFlow::guess_at(size_t end) {
  const uint32_t offset = after_ends_[end];
  Guess guess = next_guess_[end];
  if (guess == Guess::kTable && tables_ != Tables::kAgree) guess = Guess::kFunction;
  if (guess == Guess::kFunction && !guessing_) guess = Guess::kNone;
  if (guess == Guess::kNone) return false;
  guesses_.push_back({offset, static_cast<uint32_t>(end), guess});
  arrive(offset, guess == Guess::kTable ? table_state_ : FrameState::entry(), 0, offset + 1);
  return true;
}

bool FunctionFlow::withdraw_wrong_guesses() {
  std::vector<uint32_t> wrong = contradicted_;
  for (const Exit& exit : exits_) {
    if (exit.guess == 0) continue;
    if (!exit.right && exit.last_call == 0) wrong.push_back(exit.guess - 1);
    if (exit.right && exit.returns) confirmed_.push_back(exit.guess - 1);
  }
  std::sort(confirmed_.begin(), confirmed_.end());
  std::sort(wrong.begin(), wrong.end());
  bool any = false;
  for (const auto& [offset, end, guess] : guesses_) {
    if (std::binary_search(confirmed_.begin(), confirmed_.end(), offset) &&
        !std::binary_search(wrong.begin(), wrong.end(), offset))
      continue;
    next_guess_[end] = guess == Guess::kTable ? Guess::kFunction : Guess::kNone;
    any = true;
  }
  return any;
}

bool FunctionFlow::enter_unreached() {
  while (!behind_calls_.empty()) {
    auto [offset, last_call, guess, state] = behind_calls_.back();
    behind_calls_.pop_back();
    const uint32_t known = decoded(offset).block;
    if (known != 0 && blocks_[known - 1].state.rsp() != state.rsp()) continue;
    if (std::binary_search(banned_.begin(), banned_.end(), offset)) continue;
    if (known == 0) fallen_into_.push_back(offset);
    arrive(offset, state, last_call, guess);
    if (!queue_.empty()) return true;
  }
  while (next_call_target_ < call_targets_.size()) {
    uint32_t offset = call_targets_[next_call_target_++];
    if (reached(offset)) continue;
    arrive(offset, FrameState::entry());
    return true;
  }
  while (next_end_ < after_ends_.size()) {
    const size_t end = next_end_++;
    const uint32_t offset = after_ends_[end];
    if (reached(offset)) continue;
    if (looks_like_entry(offset)) {
      arrive(offset, FrameState::entry());
    } else if (swept_targets_[offset] || !guess_at(end)) {  // its state is the branch's, or unknown
      continue;
    }
    return true;
  }
  return false;
}

void FunctionFlow::follow_all(const std::function<void(size_t, const FrameState&)>& observe) {
  for (const auto& [offset, state] : entries_) arrive(offset, state);
  do {
    while (!queue_.empty()) {
      uint32_t block = queue_.back();
      queue_.pop_back();
      follow(block, observe);
    }
  } while (enter_unreached());
}

// Calls that do not return, as it turned out; and places entered from a call before them although a branch
// leads there whose own state nobody knows.
bool FunctionFlow::ban_doubtful() {
  keep_last_words(exits_);
  keep_last_words(aligned_calls_);
  size_t before = banned_.size();
  bool found = withdraw_wrong_guesses();
  for (const Exit& exit : exits_)
    if (exit.returns || exit.guess != 0) suspect(exit.last_call);
  if (tables_ != Tables::kNone) {
    bool agree = tables_ == Tables::kAgree && table_state_.rsp().kind == Value::kCfa;
    for (const auto& [call, rsp] : aligned_calls_)
      if (!agree || rsp < table_state_.rsp().offset) suspect(call + 1);
  }
  for (uint32_t call : suspects_) {
    if (final_calls_[call]) continue;
    final_calls_[call] = found = true;
  }
  for (uint32_t offset : fallen_into_) {
    for (auto branch = std::lower_bound(branches_.begin(), branches_.end(), std::pair{offset, uint32_t{0}});
         branch != branches_.end() && branch->first == offset; ++branch) {
      if (reached(branch->second)) continue;
      banned_.push_back(offset);
      break;
    }
  }
  std::sort(banned_.begin(), banned_.end());
  return found || banned_.size() != before;
}

void FunctionFlow::clear_round() {
  for (uint32_t index : reached_) {
    decoded_[index].owner = 0;
    decoded_[index].rule = 0;
  }
  reached_.clear();
  for (const Block& block : blocks_) decoded(block.offset).block = 0;
  blocks_.clear();
  targets_ = swept_targets_;
  behind_calls_.clear();
  fallen_into_.clear();
  suspects_.clear();
  exits_.clear();
  guesses_.clear();
  contradicted_.clear();
  confirmed_.clear();
  outermost_calls_ = outermost_returns_ = false;
  aligned_calls_.clear();
  next_call_target_ = 0;
  next_end_ = 0;
  tables_ = Tables::kNone;
}

void FunctionFlow::run(const std::function<void(size_t, const FrameState&)>& observe) {
  constexpr unsigned kMostGuessingRounds = 6;
  constexpr unsigned kMostRounds = 12;
  bool sure = false;
  next_guess_.assign(after_ends_.size(), Guess::kTable);
  for (unsigned round = 0; round < kMostRounds && !sure && steps_left_ != 0; ++round) {
    clear_round();
    guessing_ = round < kMostGuessingRounds;
    follow_all(observe);
    sure = !ban_doubtful();
  }
  const bool no_root = outermost_returns_ || !outermost_calls_;
  for (uint32_t index : reached_) {
    clew_rule& rule = decoded_[index].rule;
    if (!sure || steps_left_ == 0 || (no_root && clew_rule_kind(rule) == CLEW_CFA_ROOT)) rule = 0;
  }
}

}  // namespace clew::analysis
