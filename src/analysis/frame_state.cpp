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

// The CFA-relative place of a memory operand.
std::optional<int32_t> place(const FrameState& state, const Memory& memory) {
  if (!memory.plain || memory.base >= kGeneralRegisters || memory.index != kNoRegister) return std::nullopt;
  Value value = moved(state.registers[memory.base], memory.displacement);
  if (value.kind != Value::kCfa) return std::nullopt;
  return value.offset;
}

void store(FrameState& state, int32_t at, int32_t size, const Value& value) {
  bool covers_return = at < 0 && at + size > -8;
  if (covers_return) state.return_intact = at == -8 && size == 8 && value.kind == Value::kReturnAddress;
  if (value.kind == Value::kCallerRbp && size == 8 && at < -8) {
    // Pushed again, to align the stack: the first place is the one that it will be popped from.
    if (state.rbp_slot == 0 || at > -state.rbp_slot) state.rbp_slot = -at;
    return;
  }
  if (state.rbp_slot && at < -state.rbp_slot + 8 && at + size > -state.rbp_slot) state.rbp_slot = 0;
}

Value load(const FrameState& state, int32_t at) {
  if (state.rbp_slot && at == -state.rbp_slot) return {0, Value::kCallerRbp};
  if (at == -8 && state.return_intact) return {0, Value::kReturnAddress};
  return {};
}

Value value_of(const FrameState& state, uint8_t reg) {
  return reg < kGeneralRegisters ? state.registers[reg] : Value{};
}

void push(FrameState& state, const Value& value, int32_t size = 8) {
  Value& rsp = state.registers[kRsp];
  rsp = moved(rsp, -size);
  if (rsp.kind == Value::kCfa) store(state, rsp.offset, size, value);
}

Value pop(FrameState& state, int32_t size = 8) {
  Value& rsp = state.registers[kRsp];
  Value value = rsp.kind == Value::kCfa && size == 8 ? load(state, rsp.offset) : Value{};
  rsp = moved(rsp, size);
  return value;
}

void set(FrameState& state, uint8_t reg, const Value& value) {
  if (reg < kGeneralRegisters) state.registers[reg] = value;
}

constexpr uint16_t kScratch =
    1u << kRax | 1u << kRcx | 1u << kRdx | 1u << kRsi | 1u << kRdi | 0xf00;  // r8..r11

int32_t push_size(const Instruction& in) { return in.operand16 && !in.wide ? 2 : 8; }

bool caller_rbp_only_in_rbp(const FrameState& state) {
  const auto holds = [](const Value& value) { return value.kind == Value::kCallerRbp; };
  return state.rbp_slot == 0 && holds(state.rbp()) &&
         std::count_if(state.registers.begin(), state.registers.end(), holds) == 1;
}

// Instructions that move known values about; false if `in` is none of them.
bool step_known(FrameState& state, const Instruction& in) {
  if (in.encoding != Encoding::kLegacy) return false;
  if (in.map == Map::k0F) {
    switch (in.opcode) {
      case 0xa0:
      case 0xa8:
        push(state, {}, push_size(in));
        return true;  // push fs, gs
      case 0xa1:
      case 0xa9:
        pop(state, push_size(in));
        return true;
      default:
        return false;
    }
  }
  if (in.map != Map::kOneByte) return false;
  uint8_t op = in.opcode;
  if (op >= 0x50 && op < 0x58) {
    push(state, value_of(state, in.opcode_register()), push_size(in));
    return true;
  }
  if (op >= 0x58 && op < 0x60) {
    Value value = pop(state, push_size(in));
    set(state, in.opcode_register(), value);
    return true;
  }
  switch (op) {
    case 0x68:
    case 0x6a:
    case 0x9c:
      push(state, {}, push_size(in));
      return true;
    case 0x9d:
      pop(state, push_size(in));
      return true;
    case 0x8f: {
      Value value = pop(state, push_size(in));
      if (in.is_register_form()) {
        set(state, in.rm(), value);
      } else if (auto at = place(state, in.memory())) {
        store(state, *at, push_size(in), value);  // the address is taken behind the pop
      }
      return true;
    }
    case 0xff:
      if (in.digit() != 6) return false;
      if (in.is_register_form()) {
        push(state, value_of(state, in.rm()), push_size(in));
      } else {
        auto at = place(state, in.memory());
        push(state, at ? load(state, *at) : Value{}, push_size(in));
      }
      return true;
    case 0x89:
    case 0x88:
    case 0xc7:
    case 0xc6:
      if (in.is_memory_form()) {
        if (auto at = place(state, in.memory())) {
          int32_t size = op == 0x88 || op == 0xc6 ? 1 : in.wide ? 8 : in.operand16 ? 2 : 4;
          store(state, *at, size, op == 0x89 && size == 8 ? value_of(state, in.reg()) : Value{});
        }
        return true;
      }
      if (op != 0x89 || !in.wide) return false;
      set(state, in.rm(), value_of(state, in.reg()));
      return true;
    case 0x8b:
      if (!in.wide) return false;
      if (in.is_register_form()) {
        set(state, in.reg(), value_of(state, in.rm()));
      } else {
        auto at = place(state, in.memory());
        set(state, in.reg(), at ? load(state, *at) : Value{});
      }
      return true;
    case 0x87: {
      if (!in.wide || !in.is_register_form()) return false;
      Value value = value_of(state, in.reg());
      set(state, in.reg(), value_of(state, in.rm()));
      set(state, in.rm(), value);
      return true;
    }
    case 0x8d: {
      if (!in.wide) return false;
      auto at = place(state, in.memory());
      set(state, in.reg(), at ? cfa_plus(*at) : Value{});
      return true;
    }
    case 0x81:
    case 0x83:
      if (!in.wide || !in.is_register_form() || (in.digit() != 0 && in.digit() != 5)) return false;
      set(state, in.rm(), moved(value_of(state, in.rm()), in.digit() == 0 ? in.immediate : -in.immediate));
      return true;
    case 0xc9: {  // leave
      state.registers[kRsp] = state.registers[kRbp];
      Value value = pop(state);
      set(state, kRbp, value);
      return true;
    }
    case 0xc8: {  // enter size, 0; nested procedures copy frame pointers too
      if (in.second_immediate != 0 || in.operand16) return false;
      push(state, state.rbp());
      state.registers[kRbp] = state.rsp();
      state.registers[kRsp] = moved(state.rsp(), -(in.immediate & 0xffff));
      return true;
    }
    case 0x31:
    case 0x33:
      if (!in.is_register_form() || in.reg() != kRbp || in.rm() != kRbp || in.operand16) return false;
      set(state, kRbp, caller_rbp_only_in_rbp(state) ? Value{0, Value::kOutermost} : Value{});
      return true;
    default:
      return false;
  }
}

}  // namespace

uint16_t FrameState::known() const {
  unsigned mask = 0;
  for (unsigned reg = 0; reg < kGeneralRegisters; ++reg)
    mask |= (registers[reg].kind != Value::kUnknown ? 1u : 0u) << reg;
  return static_cast<uint16_t>(mask);
}

void FrameState::forget(uint16_t mask) {
  for (unsigned rest = mask; rest != 0; rest &= rest - 1)
    registers[static_cast<unsigned>(std::countr_zero(rest))] = {};
}

FrameState FrameState::entry(int32_t pushed) {
  FrameState state;
  state.registers[kRsp] = {-8 - pushed, Value::kCfa};
  state.registers[kRbp] = {0, Value::kCallerRbp};
  return state;
}

bool meet(FrameState& into, const FrameState& other) {
  FrameState before = into;
  for (unsigned reg = 0; reg < kGeneralRegisters; ++reg)
    if (into.registers[reg] != other.registers[reg]) into.registers[reg] = {};
  if (into.rbp_slot != other.rbp_slot) into.rbp_slot = 0;
  into.return_intact = into.return_intact && other.return_intact;
  return into != before;
}

void step(FrameState& state, const Instruction& in) {
  int64_t target = 0;
  switch (flow_of(in, target)) {
    case Flow::kCall:
      if (target == in.length) {  // call next; pop: a way to read rip, not a call
        push(state, {});
        return;
      }
      [[fallthrough]];
    case Flow::kCallIndirect:
      step_over_call(state);
      return;
    default:
      break;
  }
  if (!step_known(state, in)) state.forget(written_registers(in));
}

void step_over_call(FrameState& state) {
  state.forget(kScratch);
  // Whatever lies below rsp belongs to the callee.
  if (state.rsp().kind == Value::kCfa && -state.rbp_slot < state.rsp().offset) state.rbp_slot = 0;
}

// For what step_known() knows; more than it uses does no harm.
uint16_t used_registers(const Instruction& in) {
  constexpr uint16_t kSp = 1u << kRsp, kBp = 1u << kRbp;
  const auto bit = [](uint8_t reg) {
    return reg < kGeneralRegisters ? static_cast<uint16_t>(1u << reg) : uint16_t{0};
  };
  const auto base = [&] {
    const Memory memory = in.memory();
    return memory.plain && memory.index == kNoRegister ? bit(memory.base) : uint16_t{0};
  };
  if (in.encoding != Encoding::kLegacy) return 0;
  if (in.map == Map::k0F) {
    const bool segment = in.opcode == 0xa0 || in.opcode == 0xa1 || in.opcode == 0xa8 || in.opcode == 0xa9;
    return segment ? kSp : uint16_t{0};
  }
  if (in.map != Map::kOneByte) return 0;
  if (in.opcode >= 0x50 && in.opcode < 0x58) return static_cast<uint16_t>(kSp | bit(in.opcode_register()));
  if (in.opcode >= 0x58 && in.opcode < 0x60) return kSp;
  switch (in.opcode) {
    case 0x68:
    case 0x6a:
    case 0x9c:
    case 0x9d:
    case 0xe8:
      return kSp;
    case 0x8f:
    case 0xff:
      return static_cast<uint16_t>(kSp | (in.is_register_form() ? bit(in.rm()) : base()));
    case 0x88:
    case 0x89:
    case 0xc6:
    case 0xc7:
      return in.is_memory_form() ? base() : bit(in.reg());
    case 0x8b:
    case 0x8d:
      return in.is_register_form() ? bit(in.rm()) : base();
    case 0x87:
      return static_cast<uint16_t>(bit(in.reg()) | bit(in.rm()));
    case 0x81:
    case 0x83:
      return in.is_register_form() ? bit(in.rm()) : uint16_t{0};
    case 0xc8:
    case 0xc9:
      return kSp | kBp;
    case 0x31:
    case 0x33:
      return in.is_register_form() && in.reg() == kRbp && in.rm() == kRbp ? kBp : uint16_t{0};
    default:
      return 0;
  }
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
