#include "analysis/frame_state.hpp"

#include <algorithm>
#include <bit>
#include <optional>

namespace clew::analysis {
namespace {

constexpr int32_t kFarthest = 1 << 28;  // frames beyond are not believed: keeps offsets from overflowing

Value cfa_plus(int64_t offset) {
  if (offset > kFarthest || offset < -kFarthest) return {};
  return {static_cast<int32_t>(offset), Value::kCfa};
}

Value moved(const Value& value, int64_t by) {
  return value.kind == Value::kCfa && by <= kFarthest && by >= -kFarthest ? cfa_plus(value.offset + by)
                                                                          : Value{};
}

// The CFA-relative place that base + offset is.
std::optional<int32_t> place(const FrameState& state, const Effect& effect) {
  const Value value = moved(state.get(effect.base), effect.offset);
  if (value.kind != Value::kCfa) return std::nullopt;
  return value.offset;
}

// True if the state changed.
bool store(FrameState& state, int32_t at, int32_t size, const Value& value) {
  const int32_t slot = state.rbp_slot;
  const bool intact = state.return_intact;
  if (at < 0 && at + size > -8)
    state.return_intact = at == -8 && size == 8 && value.kind == Value::kReturnAddress;
  if (value.kind == Value::kCallerRbp && size == 8 && at < -8) {
    // Pushed again, to align the stack: the first place is the one that it will be popped from.
    if (slot == 0 || at > -slot) state.rbp_slot = -at;
  } else if (slot != 0 && at < -slot + 8 && at + size > -slot) {
    state.rbp_slot = 0;
  }
  return state.rbp_slot != slot || state.return_intact != intact;
}

Value load(const FrameState& state, int32_t at) {
  if (state.rbp_slot && at == -state.rbp_slot) return {0, Value::kCallerRbp};
  if (at == -8 && state.return_intact) return {0, Value::kReturnAddress};
  return {};
}

void push(FrameState& state, const Value& value, int32_t size = 8) {
  state.set(kRsp, moved(state.rsp(), -size));
  if (state.rsp().kind == Value::kCfa) store(state, state.rsp().offset, size, value);
}

Value pop(FrameState& state, int32_t size = 8) {
  const Value rsp = state.rsp();
  state.set(kRsp, moved(rsp, size));
  return rsp.kind == Value::kCfa && size == 8 ? load(state, rsp.offset) : Value{};
}

constexpr uint16_t kScratch =
    1u << kRax | 1u << kRcx | 1u << kRdx | 1u << kRsi | 1u << kRdi | 0xf00;  // r8..r11

bool caller_rbp_only_in_rbp(const FrameState& state) {
  const auto holds = [](const Value& value) { return value.kind == Value::kCallerRbp; };
  return state.rbp_slot == 0 && holds(state.rbp()) &&
         std::count_if(state.registers.begin(), state.registers.end(), holds) == 1;
}

Effect on_register(Effect::Kind kind, uint8_t reg, uint8_t base = kNoRegister, int32_t offset = 0) {
  Effect effect;
  effect.kind = kind;
  effect.reg = reg;
  effect.base = base;
  effect.offset = offset;
  return effect;
}

Effect on_memory(Effect::Kind kind, uint8_t reg, const Instruction& in) {
  const Memory memory = in.memory();
  const bool followed = memory.plain && memory.index == kNoRegister;
  return on_register(kind, reg, followed ? memory.base : kNoRegister, memory.displacement);
}

Effect of_size(Effect effect, int32_t size) {
  effect.size = static_cast<uint8_t>(size);
  return effect;
}

}  // namespace

Effect effect_of(const Instruction& in) {
  if (in.encoding != Encoding::kLegacy) return {};
  const uint8_t op = in.opcode;
  const int32_t stack_size = in.operand16() && !in.wide() ? 2 : 8;
  if (in.map == Map::k0F) {
    const bool push_segment = op == 0xa0 || op == 0xa8;
    const bool pop_segment = op == 0xa1 || op == 0xa9;
    if (!push_segment && !pop_segment) return {};
    return of_size(on_register(push_segment ? Effect::kPush : Effect::kPop, kNoRegister), stack_size);
  }
  if (in.map != Map::kOneByte) return {};
  switch (op) {
    case 0x50:
    case 0x51:
    case 0x52:
    case 0x53:
    case 0x54:
    case 0x55:
    case 0x56:
    case 0x57:
      return of_size(on_register(Effect::kPush, in.opcode_register()), stack_size);
    case 0x58:
    case 0x59:
    case 0x5a:
    case 0x5b:
    case 0x5c:
    case 0x5d:
    case 0x5e:
    case 0x5f:
      return of_size(on_register(Effect::kPop, in.opcode_register()), stack_size);
    case 0x68:
    case 0x6a:
    case 0x9c:
      return of_size(on_register(Effect::kPush, kNoRegister), stack_size);
    case 0x9d:
      return of_size(on_register(Effect::kPop, kNoRegister), stack_size);
    case 0x8f:
      if (in.is_register_form()) return of_size(on_register(Effect::kPop, in.rm()), stack_size);
      return of_size(on_memory(Effect::kPopTo, kNoRegister, in), stack_size);
    case 0xff:
      if (in.digit() != 6) return {};
      if (in.is_register_form()) return of_size(on_register(Effect::kPush, in.rm()), stack_size);
      return of_size(on_memory(Effect::kPushFrom, kNoRegister, in), stack_size);
    case 0xe8:  // call next; pop: a way to read rip, not a call
      return in.immediate == 0 ? on_register(Effect::kPush, kNoRegister) : Effect{};
    case 0x88:
    case 0xc6:
      return in.is_memory_form() ? of_size(on_memory(Effect::kStore, kNoRegister, in), 1) : Effect{};
    case 0x89:
    case 0xc7: {
      const bool full = op == 0x89 && in.wide();
      if (!in.is_memory_form()) return full ? on_register(Effect::kCopy, in.rm(), in.reg()) : Effect{};
      const int32_t size = in.wide() ? 8 : in.operand16() ? 2 : 4;
      return of_size(on_memory(Effect::kStore, full ? in.reg() : kNoRegister, in), size);
    }
    case 0x8b:
      if (!in.wide()) return {};
      return in.is_register_form() ? on_register(Effect::kCopy, in.reg(), in.rm())
                                   : on_memory(Effect::kLoad, in.reg(), in);
    case 0x87:
      return in.wide() && in.is_register_form() ? on_register(Effect::kSwap, in.reg(), in.rm()) : Effect{};
    case 0x8d:
      return in.wide() ? on_memory(Effect::kAddress, in.reg(), in) : Effect{};
    case 0x81:
    case 0x83: {
      if (!in.wide() || !in.is_register_form() || (in.digit() != 0 && in.digit() != 5)) return {};
      const int64_t by = in.digit() == 0 ? in.immediate : -in.immediate;
      if (by > kFarthest || by < -kFarthest) return {};
      return on_register(Effect::kAddress, in.rm(), in.rm(), static_cast<int32_t>(by));
    }
    case 0xc9:
      return on_register(Effect::kLeave, kNoRegister);
    case 0xc8:  // enter size, 0; nested procedures copy frame pointers too
      if (in.second_immediate != 0 || in.operand16()) return {};
      return on_register(Effect::kEnter, kNoRegister, kNoRegister,
                         static_cast<int32_t>(in.immediate & 0xffff));
    case 0x31:
    case 0x33:
      if (!in.is_register_form() || in.reg() != kRbp || in.rm() != kRbp || in.operand16()) return {};
      return on_register(Effect::kClearRbp, kRbp);
    default:
      return {};
  }
}

uint16_t used_registers(const Effect& effect) {
  constexpr uint16_t kSp = 1u << kRsp, kBp = 1u << kRbp;
  const auto bit = [](uint8_t reg) { return reg < kGeneralRegisters ? 1u << reg : 0u; };
  unsigned used = 0;
  switch (effect.kind) {
    case Effect::kNone:
      break;
    case Effect::kPush:
      used = kSp | bit(effect.reg);
      break;
    case Effect::kPushFrom:
    case Effect::kPopTo:
      used = kSp | bit(effect.base);
      break;
    case Effect::kPop:
      used = kSp;
      break;
    case Effect::kStore:
    case Effect::kLoad:
    case Effect::kCopy:
    case Effect::kAddress:
      used = bit(effect.base);
      break;
    case Effect::kSwap:
      used = bit(effect.reg) | bit(effect.base);
      break;
    case Effect::kLeave:
    case Effect::kEnter:
      used = kSp | kBp;
      break;
    case Effect::kClearRbp:
      used = kBp;
      break;
  }
  return static_cast<uint16_t>(used);
}

bool apply(FrameState& state, const Effect& effect) {
  const auto assign = [&](const Value& value) {
    if (state.get(effect.reg) == value) return false;
    state.set(effect.reg, value);
    return true;
  };
  switch (effect.kind) {
    case Effect::kNone:
      return false;
    case Effect::kPush:
      push(state, state.get(effect.reg), effect.size);
      return true;
    case Effect::kPushFrom: {
      const auto at = place(state, effect);
      push(state, at ? load(state, *at) : Value{}, effect.size);
      return true;
    }
    case Effect::kPop: {
      const Value value = pop(state, effect.size);
      state.set(effect.reg, value);
      return true;
    }
    case Effect::kPopTo: {
      const Value value = pop(state, effect.size);
      if (const auto at = place(state, effect)) store(state, *at, effect.size, value);
      return true;
    }
    case Effect::kStore: {
      const auto at = place(state, effect);
      return at && store(state, *at, effect.size, state.get(effect.reg));
    }
    case Effect::kLoad: {
      const auto at = place(state, effect);
      return assign(at ? load(state, *at) : Value{});
    }
    case Effect::kCopy:
      return assign(state.get(effect.base));
    case Effect::kSwap: {
      const Value value = state.get(effect.reg);
      state.set(effect.reg, state.get(effect.base));
      state.set(effect.base, value);
      return true;
    }
    case Effect::kAddress:
      return assign(moved(state.get(effect.base), effect.offset));
    case Effect::kLeave: {
      state.set(kRsp, state.rbp());
      const Value value = pop(state);
      state.set(kRbp, value);
      return true;
    }
    case Effect::kEnter:
      push(state, state.rbp());
      state.set(kRbp, state.rsp());
      state.set(kRsp, moved(state.rsp(), -effect.offset));
      return true;
    case Effect::kClearRbp:
      return assign(caller_rbp_only_in_rbp(state) ? Value{0, Value::kOutermost} : Value{});
  }
  return true;
}

void FrameState::forget(uint16_t mask) {
  for (unsigned rest = mask & known; rest != 0; rest &= rest - 1)
    registers[static_cast<unsigned>(std::countr_zero(rest))] = {};
  known = static_cast<uint16_t>(known & ~mask);
}

FrameState FrameState::entry(int32_t pushed) {
  FrameState state;
  state.set(kRsp, {-8 - pushed, Value::kCfa});
  state.set(kRbp, {0, Value::kCallerRbp});
  return state;
}

bool meet(FrameState& into, const FrameState& other) {
  unsigned lost = 0;
  for (unsigned rest = into.known; rest != 0; rest &= rest - 1) {
    const auto reg = static_cast<unsigned>(std::countr_zero(rest));
    if (into.registers[reg] != other.registers[reg]) lost |= 1u << reg;
  }
  into.forget(static_cast<uint16_t>(lost));
  const bool slot_lost = into.rbp_slot != 0 && into.rbp_slot != other.rbp_slot;
  if (slot_lost) into.rbp_slot = 0;
  const bool return_lost = into.return_intact && !other.return_intact;
  if (return_lost) into.return_intact = false;
  return lost != 0 || slot_lost || return_lost;
}

void step_over_call(FrameState& state) {
  state.forget(kScratch);
  // Whatever lies below rsp belongs to the callee.
  if (state.rsp().kind == Value::kCfa && -state.rbp_slot < state.rsp().offset) state.rbp_slot = 0;
}

clew_rule rule_of(const FrameState& state) {
  constexpr clew_rule kNone = 0;
  if (state.rbp().kind == Value::kOutermost) return clew_rule_make(CLEW_CFA_ROOT, 0, 0, 0, 0, false);
  if (!state.return_intact) return kNone;
  const Value& rsp = state.rsp();
  bool rsp_known = rsp.kind == Value::kCfa;
  if (rsp_known && rsp.offset > -8) return kNone;  // the return address is popped: no memory holds it safely
  // Where is the caller's rbp? A slot is safe at or above rsp, and in the red zone.
  bool slot_live = state.rbp_slot != 0 && (!rsp_known || -state.rbp_slot >= rsp.offset - 128);
  bool unchanged = state.rbp().kind == Value::kCallerRbp;
  uint32_t bp = CLEW_BP_UNCHANGED;
  if (slot_live && !(unchanged && rsp_known && -state.rbp_slot < rsp.offset) && state.rbp_slot % 8 == 0 &&
      state.rbp_slot / 8 < CLEW_BP_IN_SAVES) {
    bp = static_cast<uint32_t>(state.rbp_slot / 8);
  } else if (!unchanged) {
    return kNone;
  }
  auto by_register = [&](uint8_t reg) {
    return clew_rule_make(CLEW_CFA_REG, dwarf_register(reg), -state.registers[reg].offset, bp, 0, false);
  };
  bool frame_pointer = state.rbp() == Value{-16, Value::kCfa} && bp == 2;
  if (frame_pointer) return by_register(kRbp);
  if (rsp_known) return by_register(kRsp);
  if (state.rbp().kind == Value::kCfa) return by_register(kRbp);
  // Not by rbx and r12..r15: a rule here does not say where these are saved, so callers' rules could not
  // build on it.
  for (uint8_t reg = 0; reg < kGeneralRegisters; ++reg)
    if ((kScratch >> reg & 1) && state.registers[reg].kind == Value::kCfa) return by_register(reg);
  return kNone;
}

}  // namespace clew::analysis
