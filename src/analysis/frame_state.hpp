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
  std::array<Value, kGeneralRegisters> registers{};  // numbered as encoded, X86
  int32_t rbp_slot = 0;                              // the caller's rbp is at CFA - rbp_slot; 0: not saved
  bool return_intact = true;                         // the return address is still at CFA - 8
  bool operator==(const FrameState&) const = default;

  /// Bit r for register r that is not unknown.
  uint16_t known() const;
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

/// The state behind `instruction`. Calls return here: they pop what they pushed and destroy the psABI's
/// scratch registers.
void step(FrameState& state, const Instruction& instruction);

/// What step() does to a state for a call that returns.
void step_over_call(FrameState& state);

/// The registers, bit r for register r, whose values step() makes use of. Where none of them is known, all it
/// does is to forget those that `instruction` writes (written_registers); it changes no others in any case.
uint16_t used_registers(const Instruction& instruction);

/// The rule that a state stands for: by rbp where it is set up as frame pointer (CFA-16, which holds the
/// caller's), else by rsp, else by any register that is known. CLEW_CFA_NONE where the CFA, or the caller's
/// rbp, is not known.
clew_rule rule_of(const FrameState& state);

}  // namespace clew::analysis
