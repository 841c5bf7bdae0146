// One decoded instruction, as far as a shadow stack needs to know it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace clew::prove {

enum class Flow : uint8_t {
  kStraight,  // goes on behind itself, or faults
  kCall,
  kReturn,
  kJump,          // direct, conditional or not
  kIndirectJump,  // the target comes from a register or memory
  kSyscall
};

struct Instruction {
  uint8_t length = 0;
  Flow flow = Flow::kStraight;
  /// It gives the stack pointer a value that does not follow from the old one (mov, leave, xchg, pop rsp):
  /// perhaps on another stack.
  bool moves_stack = false;
  /// A string instruction with a repeat prefix: the processor traps after each round.
  bool repeats = false;
};

/// The instruction at the start of `bytes`; nothing where they hold none.
std::optional<Instruction> decode(std::span<const std::byte> bytes);

/// Intel syntax, branch targets absolute.
std::string disassemble(std::span<const std::byte> bytes, uint64_t address);

}  // namespace clew::prove
