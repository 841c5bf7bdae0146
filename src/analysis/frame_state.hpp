// What is known about a frame at one instruction, and what the next instruction makes of it.
//
// Registers hold symbolic values: CFA + offset, the caller's rbp, the return address, the mark of the
// outermost frame (zero in rbp where the caller's was kept nowhere: psABI 3.4.1; musl's __clone), or unknown.
// Memory is known at two places only: the slot where the caller's rbp was saved, and the return address at
// CFA-8. Everything not followed is unknown, so that a rule made from a state is right, or none.
#pragma once

#include <array>
#include <cstdint>

#include "analysis/instruction.hpp"
#include "core/rule.h"

namespace clew::analysis {

struct Value {
  enum Kind : uint8_t { kUnknown, kCfa, kCallerRbp, kReturnAddress, kOutermost };
  int32_t offset = 0;  // kCfa: the value is CFA + offset
  Kind kind = kUnknown;
  bool operator==(const Value&) const = default;
};

struct FrameState {
  std::array<Value, kGeneralRegisters>
      registers{};            // numbered as encoded, X86; changed by set() and forget()
  int32_t rbp_slot = 0;       // the caller's rbp is at CFA - rbp_slot; 0: not saved
  uint16_t known = 0;         // bit r for register r that is not unknown
  bool return_intact = true;  // the return address is still at CFA - 8
  bool operator==(const FrameState&) const = default;

  /// Of a register that nothing follows the value is unknown, and stays so.
  Value get(uint8_t reg) const { return reg < kGeneralRegisters ? registers[reg] : Value{}; }
  void set(uint8_t reg, const Value& value) {
    if (reg >= kGeneralRegisters) return;
    registers[reg] = value;
    const unsigned others = known & ~(1u << reg);
    known = static_cast<uint16_t>(others | (value.kind != Value::kUnknown ? 1u : 0u) << reg);
  }
  /// Makes the registers of a mask unknown.
  void forget(uint16_t mask);

  const Value& rsp() const { return registers[kRsp]; }
  const Value& rbp() const { return registers[kRbp]; }

  /// The first instruction of a function: rsp = CFA - 8, rbp is the caller's. `pushed` more bytes lie on the
  /// stack.
  static FrameState entry(int32_t pushed = 0);
};

/// What two ways to one place agree on. True if `into` lost anything.
bool meet(FrameState& into, const FrameState& other);

/// What an instruction does with values that a state follows, other than to forget those of the registers
/// that it writes (written_registers).
struct Effect {
  enum Kind : uint8_t {
    kNone,
    kPush,      // reg, or something unknown
    kPushFrom,  // what lies at base + offset
    kPop,       // into reg, or away
    kPopTo,     // to base + offset, of behind the pop
    kStore,     // reg, or something unknown, at base + offset
    kLoad,      // reg from base + offset
    kCopy,      // reg from base
    kSwap,      // reg and base
    kAddress,   // reg is base + offset
    kLeave,
    kEnter,  // with offset bytes of locals
    kClearRbp,
  };
  Kind kind = kNone;
  uint8_t reg = kNoRegister;
  uint8_t base = kNoRegister;  // kNoRegister also for an address that is no register's plus a number
  uint8_t size = 8;            // bytes pushed, popped or stored
  int32_t offset = 0;
};

Effect effect_of(const Instruction& instruction);

/// The registers, bit r for register r, that an effect makes use of. Where none of them is known, all that an
/// instruction does is to forget those that it writes; it changes no others in any case.
uint16_t used_registers(const Effect& effect);

/// The state behind an instruction with an effect. True if the state changed.
bool apply(FrameState& state, const Effect& effect);

/// The state behind a call that returns: it popped what it pushed and destroyed the psABI's scratch
/// registers.
void step_over_call(FrameState& state);

/// The rule that a state stands for: by rbp where it is set up as frame pointer (CFA-16, which holds the
/// caller's), else by rsp, else by any register that is known. CLEW_CFA_NONE where the CFA, or the caller's
/// rbp, is not known.
clew_rule rule_of(const FrameState& state);

}  // namespace clew::analysis
