#include "analysis/function_flow.hpp"

#include <algorithm>

namespace clew::analysis {
namespace {
constexpr uint32_t kDisputed = 0xffffffff;

// The register that holds a sum of two others behind `in`, if `before` did before it: how compilers make the
// address of a jump table's entry (add reg, reg; lea reg, [reg + reg]).
uint8_t sum_of(const Instruction& in, uint8_t before) {
  if (in.wide && in.is_register_form()) {
    if (in.is(0x01)) return in.rm();
    if (in.is(0x03)) return in.reg();
  }
  if (in.wide && in.is(0x8d)) {
    Memory memory = in.memory();
    if (memory.base < kGeneralRegisters && memory.index != kNoRegister && memory.displacement == 0)
      return in.reg();
  }
  return before < kGeneralRegisters && (written_registers(in) >> before & 1) ? kNoRegister : before;
}
}  // namespace

FunctionFlow::FunctionFlow(std::span<const std::byte> code, uint64_t address)
    : code_(code.first(std::min(code.size(), kMostCode))),
      address_(address),
      rules_(code_.size()),
      owners_(code_.size()),
      blocks_at_(code_.size()),
      swept_targets_(code_.size()),
      doubtful_calls_(code_.size()),
      final_calls_(code_.size()),
      steps_left_(kStepsPerByte * code_.size() + 64) {
  sweep();
}

// Finds branch and call targets, so that ways are known to meet there before the first one is followed.
void FunctionFlow::sweep() {
  bool ended = false;
  for (size_t at = 0; at < code_.size();) {
    Instruction in;
    if (!decode(code_.subspan(at), in)) {
      ++at;
      ended = false;
      continue;
    }
    if (ended && !is_padding(in)) {
      after_ends_.push_back(static_cast<uint32_t>(at));
      ended = false;
    }
    int64_t target = 0;
    Flow flow = flow_of(in, target);
    int64_t to = static_cast<int64_t>(at) + target;
    bool inside = to >= 0 && to < static_cast<int64_t>(code_.size());
    if ((flow == Flow::kBranch || flow == Flow::kJump) && inside) {
      swept_targets_[static_cast<size_t>(to)] = true;
      branches_.emplace_back(static_cast<uint32_t>(to), static_cast<uint32_t>(at));
    }
    if (flow == Flow::kJumpIndirect) has_table_ = true;
    if (flow == Flow::kCall || flow == Flow::kCallIndirect) {
      size_t behind = behind_padding(at + in.length);
      if (behind != at + in.length && behind < code_.size())
        after_ends_.push_back(static_cast<uint32_t>(behind));
      doubtful_calls_[at] = (address_ + behind) % 16 == 0;
    }
    if (flow == Flow::kCall && inside && target != in.length)
      call_targets_.push_back(static_cast<uint32_t>(to));
    if (flow == Flow::kCall && !inside) outside_.push_back(address_ + static_cast<uint64_t>(to));
    // Jump tables lie elsewhere, so that an address in code is a function's.
    if (in.wide && in.is(0x8d) && in.mod() == 0 && (in.modrm & 7) == 5 && !in.address32) {
      const int64_t taken = static_cast<int64_t>(at) + in.length + in.displacement;
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
size_t FunctionFlow::behind_padding(size_t offset) const {
  constexpr unsigned kMostPadding = 16;
  size_t at = offset;
  Instruction in;
  for (unsigned count = 0; count < kMostPadding && decode(code_.subspan(at), in) && is_padding(in); ++count)
    at += in.length;
  return at;
}

uint32_t FunctionFlow::block_at(size_t offset) {
  targets_[offset] = true;
  return blocks_at_[offset];
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
  uint32_t known = block_at(at);
  if (known == 0) {
    blocks_.push_back({state, static_cast<uint32_t>(at), last_call, guess, true});
    blocks_at_[at] = static_cast<uint32_t>(blocks_.size());
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

void FunctionFlow::note(size_t offset, uint32_t owner, clew_rule rule) {
  uint32_t& before = owners_[offset];
  if (before == 0 || before == owner) {
    before = owner;
    rules_[offset] = rule;
  } else if (rules_[offset] != rule) {  // overlapping blocks that do not agree
    before = kDisputed;
    rules_[offset] = 0;
  }
}

// Only the last word on an exit counts: on the way to it, loops have states that do not hold.
void FunctionFlow::leave(size_t at, const FrameState& state, const Block& from, uint32_t last_call,
                         bool returns) {
  const bool known = state.rsp().kind == Value::kCfa;
  const bool right = known && state.rsp().offset == -8 && state.rbp().kind == Value::kCallerRbp;
  exits_[static_cast<uint32_t>(at)] = {known && state.rsp().offset != -8 ? last_call : 0, from.guess, returns,
                                       right};
  outermost_returns_ |= returns && state.rbp().kind == Value::kOutermost;
}

void FunctionFlow::follow(uint32_t index, const std::function<void(size_t, const FrameState&)>& observe) {
  size_t at = blocks_[index].offset;
  FrameState state = blocks_[index].state;
  uint32_t last_call = blocks_[index].last_call;
  const uint32_t guess = blocks_[index].guess;
  blocks_[index].queued = false;
  uint8_t sum = kNoRegister;       // holds base + entry of a jump table
  uint8_t compared = kNoRegister;  // cmp rsp, register was the last instruction
  for (bool first = true; at < code_.size(); first = false) {
    if (!first && targets_[at]) {
      arrive(static_cast<int64_t>(at), state, last_call, guess);
      return;
    }
    Instruction in;
    if (steps_left_ == 0 || !decode(code_.subspan(at), in)) return;
    --steps_left_;
    note(at, index + 1, rule_of(state));
    if (observe) observe(at, state);
    int64_t target = 0;
    Flow flow = flow_of(in, target);
    auto here = static_cast<int64_t>(at);
    size_t next = at + in.length;
    switch (flow) {
      case Flow::kReturn:
        leave(at, state, blocks_[index], last_call, true);
        return;
      case Flow::kStop:
        return;
      case Flow::kJump:
        if (here + target < 0 || here + target >= static_cast<int64_t>(code_.size()))
          leave(at, state, blocks_[index], last_call, false);
        arrive(here + target, state, last_call, guess);
        return;
      case Flow::kJumpIndirect: {
        bool table = in.notrack || (in.is_memory_form() && in.memory().index != kNoRegister) ||
                     (in.is_register_form() && in.rm() == sum);
        if (!table) {
          leave(at, state, blocks_[index], last_call, false);
          return;
        }
        if (tables_ == Tables::kNone) {
          table_state_ = state;
          tables_ = Tables::kAgree;
        } else {
          meet(table_state_, state);
          // Frames by other registers are not believed here: what the jumps share need not hold everywhere.
          clew_rule rule = rule_of(table_state_);
          bool frame_pointer =
              table_state_.rbp() == Value{-16, Value::kCfa} && clew_rule_register(rule) == CLEW_RBP;
          bool known = table_state_.rsp().kind == Value::kCfa || frame_pointer;
          if (clew_rule_kind(rule) == CLEW_CFA_NONE || !known) tables_ = Tables::kDiffer;
        }
        return;
      }
      case Flow::kBranch:
        arrive(here + target, state, last_call, guess);
        // while (rsp != reg) probe the next page: behind the loop the two are equal.
        if (compared < kGeneralRegisters && (in.is(0x75) || in.is_0f(0x85)) &&
            state.rsp().kind == Value::kUnknown)
          state.registers[kRsp] = state.registers[compared];
        break;
      case Flow::kCall:
      case Flow::kCallIndirect:
        outermost_calls_ |= flow == Flow::kCallIndirect && state.rbp().kind == Value::kOutermost;
        if (final_calls_[at]) return;
        step(state, in);
        if (target != in.length && (last_call == 0 || !doubtful_calls_[last_call - 1]))
          last_call = static_cast<uint32_t>(at + 1);
        if (size_t behind = behind_padding(next); behind != next && target != in.length) {
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
          aligned_calls_[static_cast<uint32_t>(at)] = state.rsp().offset;
        break;
      case Flow::kNext: {
        step(state, in);
        sum = sum_of(in, sum);
        break;
      }
    }
    compared = kNoRegister;
    if ((in.is(0x39) || in.is(0x3b)) && in.wide && in.is_register_form()) {
      if (in.rm() == kRsp) compared = in.reg();
      if (in.reg() == kRsp) compared = in.rm();
    }
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

bool FunctionFlow::guess_at(uint32_t offset) {
  Guess guess = Guess::kTable;
  if (const auto next = next_guess_.find(offset); next != next_guess_.end()) guess = next->second;
  if (guess == Guess::kTable && tables_ != Tables::kAgree) guess = Guess::kFunction;
  if (guess == Guess::kFunction && !guessing_) guess = Guess::kNone;
  if (guess == Guess::kNone) return false;
  guesses_[offset] = guess;
  arrive(offset, guess == Guess::kTable ? table_state_ : FrameState::entry(), 0, offset + 1);
  return true;
}

bool FunctionFlow::withdraw_wrong_guesses() {
  std::vector<uint32_t> wrong = contradicted_;
  for (const auto& [offset, exit] : exits_) {
    if (exit.guess == 0) continue;
    if (!exit.right && exit.last_call == 0) wrong.push_back(exit.guess - 1);
    if (exit.right && exit.returns) confirmed_.push_back(exit.guess - 1);
  }
  std::sort(confirmed_.begin(), confirmed_.end());
  for (const auto& [offset, guess] : guesses_)
    if (!std::binary_search(confirmed_.begin(), confirmed_.end(), offset)) wrong.push_back(offset);
  std::sort(wrong.begin(), wrong.end());
  wrong.erase(std::unique(wrong.begin(), wrong.end()), wrong.end());
  for (uint32_t offset : wrong)
    next_guess_[offset] = guesses_[offset] == Guess::kTable ? Guess::kFunction : Guess::kNone;
  return !wrong.empty();
}

bool FunctionFlow::enter_unreached() {
  while (!behind_calls_.empty()) {
    auto [offset, last_call, guess, state] = behind_calls_.back();
    behind_calls_.pop_back();
    if (blocks_at_[offset] != 0 && blocks_[blocks_at_[offset] - 1].state.rsp() != state.rsp()) continue;
    if (std::binary_search(banned_.begin(), banned_.end(), offset)) continue;
    if (blocks_at_[offset] == 0) fallen_into_.push_back(offset);
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
    uint32_t offset = after_ends_[next_end_++];
    if (reached(offset)) continue;
    if (looks_like_entry(offset)) {
      arrive(offset, FrameState::entry());
    } else if (swept_targets_[offset] || !guess_at(offset)) {  // its state is the branch's, or unknown
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
  size_t before = banned_.size();
  bool found = withdraw_wrong_guesses();
  for (const auto& [offset, exit] : exits_)
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

void FunctionFlow::run(const std::function<void(size_t, const FrameState&)>& observe) {
  constexpr unsigned kMostGuessingRounds = 6;
  constexpr unsigned kMostRounds = 12;
  bool sure = false;
  for (unsigned round = 0; round < kMostRounds && !sure && steps_left_ != 0; ++round) {
    std::fill(rules_.begin(), rules_.end(), clew_rule{0});
    std::fill(owners_.begin(), owners_.end(), 0u);
    std::fill(blocks_at_.begin(), blocks_at_.end(), 0u);
    targets_ = swept_targets_;
    blocks_.clear();
    behind_calls_.clear();
    fallen_into_.clear();
    suspects_.clear();
    exits_.clear();
    guesses_.clear();
    contradicted_.clear();
    confirmed_.clear();
    outermost_calls_ = outermost_returns_ = false;
    guessing_ = round < kMostGuessingRounds;
    aligned_calls_.clear();
    next_call_target_ = 0;
    next_end_ = 0;
    tables_ = Tables::kNone;
    follow_all(observe);
    sure = !ban_doubtful();
  }
  if (!sure || steps_left_ == 0) std::fill(rules_.begin(), rules_.end(), clew_rule{0});
  if (outermost_returns_ || !outermost_calls_) {
    const auto root = [](clew_rule rule) { return clew_rule_kind(rule) == CLEW_CFA_ROOT; };
    std::replace_if(rules_.begin(), rules_.end(), root, clew_rule{0});
  }
}

}  // namespace clew::analysis
