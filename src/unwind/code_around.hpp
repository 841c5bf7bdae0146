// What the instructions around a code address say: for the walk of this process and for that of others, which
// read code differently.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "analysis/analysis.hpp"
#include "core/rule.h"

namespace clew::unwind {

/// Whether a call ends at `pc`. The code lies in memory from `start` on; `read(address, out, size)` reads it,
/// false where it cannot. Async-signal-safe if `read` is.
template <class Read>
bool follows_call(uint64_t pc, uint64_t start, const Read& read) {
  std::byte before[16];
  // The call may begin where the code does: read what there is.
  const auto size = static_cast<size_t>(std::min<uint64_t>(sizeof before, pc - start));
  return size != 0 && read(pc - size, before, size) && analysis::call_precedes({before, size});
}

/// The rule at `pc` of code in [start, end) that nothing describes; 0 where it cannot be told. Likewise.
template <class Read>
clew_rule rule_around(uint64_t pc, uint64_t start, uint64_t end, const Read& read) {
  constexpr size_t kBehind = 64, kAhead = 192;
  std::byte code[kBehind + kAhead];
  const uint64_t first = pc - std::min<uint64_t>(kBehind, pc - start);
  const auto size = static_cast<size_t>(pc + std::min<uint64_t>(kAhead, end - pc) - first);
  if (!read(first, code, size)) return 0;
  const std::span bytes(code, size);
  const auto offset = static_cast<size_t>(pc - first);
  if (analysis::is_signal_return(bytes.subspan(offset)))
    return clew_rule_make(CLEW_CFA_SIGFRAME, CLEW_RSP, 0, CLEW_BP_UNCHANGED, 0, false);
  return analysis::rule_at(bytes, offset);
}

}  // namespace clew::unwind
