#include "analysis/function_flow.hpp"

#include <algorithm>

namespace clew::analysis {
namespace {
constexpr uint32_t kDisputed = 0xffffffff;

// The register in which `in` makes a sum of two others: how compilers make the address of a jump table's
// entry (add reg, reg; lea reg, [reg + reg]).
uint8_t sum_of(const Instruction& in) {
  if (in.wide() && in.is_register_form()) {
    if (in.is(0x01)) return in.rm();
    if (in.is(0x03)) return in.reg();
  }
  if (in.wide() && in.is(0x8d)) {
    Memory memory = in.memory();
    if (memory.base < kGeneralRegisters && memory.index != kNoRegister && memory.displacement == 0)
      return in.reg();
  }
  return kNoRegister;
}

// The register that `in` compares rsp with.
uint8_t compared_with_rsp(const Instruction& in) {
  if ((!in.is(0x39) && !in.is(0x3b)) || !in.wide() || !in.is_register_form()) return kNoRegister;
  if (in.reg() == kRsp) return in.rm();
  return in.rm() == kRsp ? in.reg() : kNoRegister;
}
}  // namespace

void FunctionFlow::begin(std::span<const std::byte> code, uint64_t address) {
  code_ = code.first(std::min(code.size(), kMostCode));
  address_ = address;
  steps_left_ = kStepsPerByte * code_.size() + 64;
  at_.assign(code_.size(), 0);
  decoded_.clear();
  constexpr size_t kShortLength = 2;  // of instructions, on average; memory that is not touched costs none
  decoded_.reserve(code_.size() / kShortLength);
  swept_ = 0;
  has_table_ = false;
  outside_.clear();
  taken_.clear();
  call_targets_.clear();
  after_ends_.clear();
  entries_.clear();
  branches_.clear();
  banned_.clear();
  queue_.clear();
  clear_round();
  sweep();
}

FunctionFlow::Decoded FunctionFlow::decode_one(std::span<const std::byte> code) {
  Decoded out;
  Instruction in;
  if (!decode(code, in)) return out;
  out.length = in.length;
  out.written = written_registers(in);
  if (in.encoding != Encoding::kLegacy) return out;  // none of these is anything of what follows
  int64_t target = 0;
  out.flow = flow_of(in, target);
  out.relative = static_cast<int32_t>(target - in.length);
  if (in.map == Map::k0F) {
    out.padding = in.opcode == 0x1f;
    out.not_zero = in.opcode == 0x85;
  } else if (in.map == Map::kOneByte) {
    switch (in.opcode) {
      case 0x01:
      case 0x03:
        out.sum = sum_of(in);
        break;
      case 0x39:
      case 0x3b:
        out.other = compared_with_rsp(in);
        break;
      case 0x75:
        out.not_zero = true;
        break;
      case 0x8d:
        out.sum = sum_of(in);
        out.takes = in.wide() && in.mod() == 0 && (in.modrm & 7) == 5 && !in.address32();
        out.relative = in.displacement;
        [[fallthrough]];
      case 0x90:
      case 0xcc:
        out.padding = is_padding(in);
        break;
      case 0xff:
        if (out.flow != Flow::kJumpIndirect) break;
        out.table = in.notrack() || (in.is_memory_form() && in.memory().index != kNoRegister);
        if (in.is_register_form()) out.other = in.rm();
        break;
      default:
        break;
    }
  }
  out.effect = effect_of(in);
  out.used = used_registers(out.effect);
  return out;
}

void FunctionFlow::decode_at(size_t offset) {
  decoded_.push_back(decode_one(code_.subspan(offset)));
  at_[offset] = static_cast<uint32_t>(decoded_.size());
  if (swept_ == 0) return;
  const auto target = std::lower_bound(branches_.begin(), branches_.end(), offset,
                                       [](const auto& branch, size_t to) { return branch.first < to; });
  decoded_.back().branch_target = target != branches_.end() && target->first == offset;
  places_.emplace_back();
}

// Finds branch and call targets, so that ways are known to meet there before the first one is followed.
void FunctionFlow::sweep() {
  bool ended = false;
  for (size_t at = 0; at < code_.size();) {
    const Decoded in = decoded_[index_at(at)];
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
    if (flow == Flow::kNext && !in.takes) {
      at += in.length;
      continue;
    }
    int64_t to = static_cast<int64_t>(at) + in.target();
    bool inside = to >= 0 && to < static_cast<int64_t>(code_.size());
    if ((flow == Flow::kBranch || flow == Flow::kJump) && inside) {
      branches_.emplace_back(static_cast<uint32_t>(to), static_cast<uint32_t>(at));
    }
    if (flow == Flow::kJumpIndirect) has_table_ = true;
    if (flow == Flow::kCall || flow == Flow::kCallIndirect) {
      const size_t behind = behind_padding(at + in.length);
      if (behind != at + in.length && behind < code_.size())
        after_ends_.push_back(static_cast<uint32_t>(behind));
      decoded_[index_at(at)].doubtful_call = (address_ + behind) % 16 == 0;
    }
    if (flow == Flow::kCall && inside && in.relative != 0) call_targets_.push_back(static_cast<uint32_t>(to));
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
  swept_ = decoded_.size();
  places_.reserve(decoded_.capacity());
  places_.resize(swept_);
  std::sort(branches_.begin(), branches_.end());
  for (const auto& [target, source] : branches_)
    if (at_[target] != 0) decoded_[at_[target] - 1].branch_target = true;
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
  uint32_t& known = places_[index_at(at)].block;
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
  const uint32_t owner = index + 1;
  clew_rule rule = rule_of(state);
  uint32_t sums = 0;               // bit r: register r holds base + entry of a jump table
  uint8_t compared = kNoRegister;  // cmp rsp, register was the last instruction
  for (bool first = true; at < code_.size(); first = false) {
    const uint32_t instruction = index_at(at);
    Place& place = places_[instruction];
    if (!first && meeting(instruction)) {
      arrive(static_cast<int64_t>(at), state, last_call, guess);
      return;
    }
    if (steps_left_ == 0 || decoded_[instruction].length == 0) return;
    --steps_left_;
    if (place.owner == 0 || place.owner == owner) {
      place.owner = owner;
      place.rule = rule;
    } else if (place.rule != rule) {  // overlapping blocks that do not agree
      place.owner = kDisputed;
      place.rule = 0;
    }
    if (observe) observe(at, state);
    if (const Decoded& in = decoded_[instruction]; in.flow == Flow::kNext) {
      if ((in.used & state.known) != 0) {
        if (apply(state, in.effect)) rule = rule_of(state);
      } else if ((in.written & state.known) != 0) {
        state.forget(in.written);
        rule = rule_of(state);
      }
      sums = in.sum != kNoRegister ? 1u << in.sum : sums & ~uint32_t{in.written};
      compared = in.other;
      at += in.length;
      continue;
    }
    const Decoded in = decoded_[instruction];  // others that are decoded meanwhile may move it
    const auto here = static_cast<int64_t>(at);
    const size_t next = at + in.length;
    switch (in.flow) {
      case Flow::kReturn:
        leave(at, state, blocks_[index], last_call, true);
        return;
      case Flow::kStop:
        return;
      case Flow::kJump:
        if (here + in.target() < 0 || here + in.target() >= static_cast<int64_t>(code_.size()))
          leave(at, state, blocks_[index], last_call, false);
        arrive(here + in.target(), state, last_call, guess);
        return;
      case Flow::kJumpIndirect: {
        if (!in.table && (in.other == kNoRegister || (sums >> in.other & 1) == 0)) {
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
        arrive(here + in.target(), state, last_call, guess);
        // while (rsp != reg) probe the next page: behind the loop the two are equal.
        if (compared < kGeneralRegisters && in.not_zero && state.rsp().kind == Value::kUnknown) {
          state.set(kRsp, state.registers[compared]);
          rule = rule_of(state);
        }
        break;
      case Flow::kCall:
      case Flow::kCallIndirect: {
        // An indirect call is taken to return, as "call next" does, which is none.
        const bool doubted = in.relative != 0;
        outermost_calls_ |= in.flow == Flow::kCallIndirect && state.rbp().kind == Value::kOutermost;
        if (in.final_call) return;
        if (in.effect.kind == Effect::kPush) {  // call next
          apply(state, in.effect);
        } else {
          step_over_call(state);
        }
        rule = rule_of(state);
        if (doubted && (last_call == 0 || !decoded_[index_at(last_call - 1)].doubtful_call))
          last_call = static_cast<uint32_t>(at + 1);
        if (size_t behind = behind_padding(next); behind != next && doubted) {
          // Padding aligns what a branch, a jump table or another function's caller leads to.
          if (behind < code_.size() && meeting(index_at(behind))) {
            behind_calls_.push_back({static_cast<uint32_t>(behind), last_call, guess, state});
            return;
          }
          if (has_table_ || behind - next > 1) return;
        }
        if (next < code_.size() && meeting(index_at(next))) {
          behind_calls_.push_back({static_cast<uint32_t>(next), last_call, guess, state});
          return;
        }
        if ((address_ + next) % 16 == 0 && state.rsp().kind == Value::kCfa)
          aligned_calls_.push_back({static_cast<uint32_t>(at), state.rsp().offset});
        break;
      }
      case Flow::kNext:
        break;
    }
    compared = kNoRegister;
    at = next;
  }
}

// push rbp; mov rbp, rsp, with endbr64 before it or without.
bool FunctionFlow::looks_like_entry(size_t offset) {
  // Most do not even end as one of the two does: in push's opcode, in endbr64's ModRM.
  const auto last = std::to_integer<uint8_t>(code_[offset + std::max(length(offset), 1u) - 1]);
  if (last != 0x55 && last != 0xfa) return false;
  Instruction in;
  if (!decode(code_.subspan(offset), in)) return false;
  if (in.is_0f(0x1e) && in.repeat() && in.modrm == 0xfa) {
    offset += in.length;
    if (!decode(code_.subspan(offset), in)) return false;
  }
  if (!in.is(0x55) || in.base_high()) return false;
  if (!decode(code_.subspan(offset + in.length), in)) return false;
  return in.wide() && ((in.is(0x89) && in.modrm == 0xe5) || (in.is(0x8b) && in.modrm == 0xec)) &&
         !in.reg_high() && !in.base_high();
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
    const uint32_t known = places_[index_at(offset)].block;
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
    } else if (decoded_[index_at(offset)].branch_target ||
               !guess_at(end)) {  // its state is the branch's, or unknown
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
    Decoded& in = decoded_[index_at(call)];
    if (in.final_call) continue;
    in.final_call = found = true;
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
  places_.assign(decoded_.size(), {});
  blocks_.clear();
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
  for (auto& [owner, block, rule] : places_)
    if (!sure || steps_left_ == 0 || (no_root && clew_rule_kind(rule) == CLEW_CFA_ROOT)) rule = 0;
}

}  // namespace clew::analysis
