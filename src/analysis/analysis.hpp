// What tables leave out, from the instructions themselves: x86-64 code that no FDE describes.
//
// All functions are pure: bytes in, rows out; bounded by the bytes; no allocation but the result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/rule.h"

namespace clew::analysis {

/// A rule that holds from `address` to the next row.
struct Row {
  uint64_t address;
  clew_rule rule;
};

enum class Code : uint8_t {
  kPlt,           // .plt: PLT0 (pushes the link map and jumps) and lazy stubs (jmp; push; jmp)
  kPltSec,        // .plt.sec, .plt.got: stubs that only jump
  kInit,          // .init, .fini: crti.o's and crtn.o's halves, often with more between
  kStart,         // the program's entry: the outermost frame
  kFunction,      // a function without FDE
  kSignalReturn,  // mov eax, 15; syscall (and mov rax)
};

/// Rows for `code`, which lies at `address`. Addresses that the analysis cannot vouch for get CLEW_CFA_NONE.
std::vector<Row> rows(Code kind, std::span<const std::byte> code, uint64_t address);

/// Whether `code` begins with the signal return sequence (x86-64: mov $15, %eax or %rax; syscall).
bool is_signal_return(std::span<const std::byte> code);

/// Whether a call ends exactly behind `before`: the bytes (up to 16) that precede a return address.
/// Every encoding of near call on x86-64: e8 rel32, ff /2 with each ModRM, SIB, displacement and prefix.
bool call_precedes(std::span<const std::byte> before);

/// Where in its frame is the code at `offset` of `code` (a function, or what is readable around the address)?
/// Answers with a rule for exactly that instruction, or CLEW_CFA_NONE: prologue (before or behind push rbp; mov),
/// epilogue (pops, leave, ret), frame-pointer body. Used at run time for code that nothing describes.
clew_rule rule_at(std::span<const std::byte> code, size_t offset);

}  // namespace clew::analysis
