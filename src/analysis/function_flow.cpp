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

FunctionFlow::FunctionFlow(std::span<const std::byte> code)
    : code_(code.first(std::min(code.size(), kMostCode))),
      rules_(code_.size()),
      owners_(code_.size()),
      blocks_at_(code_.size()),
      targets_(code_.size()),
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
    if ((flow == Flow::kBranch || flow == Flow::kJump) && inside) targets_[static_cast<size_t>(to)] = true;
    if (flow == Flow::kCall && inside && target != in.length)
      call_targets_.push_back(static_cast<uint32_t>(to));
    if (flow == Flow::kJump || flow == Flow::kJumpIndirect || flow == Flow::kReturn || flow == Flow::kStop)
      ended = true;
    at += in.length;
  }
}

uint32_t FunctionFlow::block_at(size_t offset) {
  targets_[offset] = true;
  return blocks_at_[offset];
}

void FunctionFlow::enter(size_t offset, const FrameState& state) {
  arrive(static_cast<int64_t>(offset), state);
}

void FunctionFlow::arrive(int64_t offset, const FrameState& state) {
  if (offset < 0 || offset >= static_cast<int64_t>(code_.size())) return;
  auto at = static_cast<size_t>(offset);
  uint32_t known = block_at(at);
  if (known == 0) {
    blocks_.push_back({state, static_cast<uint32_t>(at), true});
    blocks_at_[at] = static_cast<uint32_t>(blocks_.size());
    queue_.push_back(static_cast<uint32_t>(blocks_.size() - 1));
    return;
  }
  Block& block = blocks_[known - 1];
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

void FunctionFlow::follow(uint32_t index, const std::function<void(size_t, const FrameState&)>& observe) {
  size_t at = blocks_[index].offset;
  FrameState state = blocks_[index].state;
  blocks_[index].queued = false;
  uint8_t sum = kNoRegister;       // holds base + entry of a jump table
  uint8_t compared = kNoRegister;  // cmp rsp, register was the last instruction
  for (bool first = true; at < code_.size(); first = false) {
    if (!first && targets_[at]) {
      arrive(static_cast<int64_t>(at), state);
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
      case Flow::kStop:
        return;
      case Flow::kJump:
        arrive(here + target, state);
        return;
      case Flow::kJumpIndirect: {
        bool table = in.notrack || (in.is_memory_form() && in.memory().index != kNoRegister) ||
                     (in.is_register_form() && in.rm() == sum);
        if (!table) return;
        if (tables_ == Tables::kNone) {
          table_state_ = state;
          tables_ = Tables::kAgree;
        } else {
          meet(table_state_, state);
          if (clew_rule_kind(rule_of(table_state_)) == CLEW_CFA_NONE) tables_ = Tables::kDiffer;
        }
        return;
      }
      case Flow::kBranch:
        arrive(here + target, state);
        // while (rsp != reg) probe the next page: behind the loop the two are equal.
        if (compared < kGeneralRegisters && (in.is(0x75) || in.is_0f(0x85)) &&
            state.rsp().kind == Value::kUnknown)
          state.registers[kRsp] = state.registers[compared];
        break;
      case Flow::kCall:
      case Flow::kCallIndirect:
        step(state, in);
        if (next < code_.size() && targets_[next]) {
          behind_calls_.emplace_back(static_cast<uint32_t>(next), state);
          return;
        }
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

bool FunctionFlow::enter_unreached() {
  while (!behind_calls_.empty()) {
    auto [offset, state] = behind_calls_.back();
    behind_calls_.pop_back();
    if (blocks_at_[offset] != 0 && blocks_[blocks_at_[offset] - 1].state.rsp() != state.rsp()) continue;
    arrive(offset, state);
    if (!queue_.empty()) return true;
  }
  while (!call_targets_.empty()) {
    uint32_t offset = call_targets_.back();
    call_targets_.pop_back();
    if (reached(offset)) continue;
    arrive(offset, FrameState::entry());
    return true;
  }
  for (; next_end_ < after_ends_.size(); ++next_end_) {
    uint32_t offset = after_ends_[next_end_];
    if (reached(offset)) continue;
    if (looks_like_entry(offset)) {
      arrive(offset, FrameState::entry());
    } else if (tables_ == Tables::kAgree) {
      arrive(offset, table_state_);
    } else {
      continue;
    }
    return true;
  }
  return false;
}

void FunctionFlow::run(const std::function<void(size_t, const FrameState&)>& observe) {
  do {
    while (!queue_.empty()) {
      uint32_t block = queue_.back();
      queue_.pop_back();
      follow(block, observe);
    }
  } while (enter_unreached());
  if (steps_left_ == 0) std::fill(rules_.begin(), rules_.end(), clew_rule{0});
}

}  // namespace clew::analysis
