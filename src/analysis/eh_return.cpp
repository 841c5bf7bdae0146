#include <array>

#include "analysis/analysis.hpp"
#include "analysis/instruction.hpp"

namespace clew::analysis {

std::optional<ContextInstall> context_install(std::span<const std::byte> code, uint32_t base) {
  // The last two calls, and what is loaded behind each.
  struct Call {
    size_t at = 0, behind = 0;
    std::optional<int32_t> rdi, rsi;  // loaded from [base + n]
  };
  std::array<Call, 2> calls;
  for (size_t at = 0; at < code.size();) {
    Instruction in;
    if (!decode(code.subspan(at), in)) return std::nullopt;
    int64_t target = 0;
    if (flow_of(in, target) == Flow::kCall) {
      calls = {calls[1], Call{at, at + in.length, {}, {}}};
    } else if (in.is(0x8b) && in.wide() && in.is_memory_form()) {
      const Memory memory = in.memory();
      if (memory.plain && memory.index == kNoRegister && memory.base < kGeneralRegisters &&
          dwarf_register(memory.base) == base) {
        if (in.reg() == kRdi) calls[1].rdi = memory.displacement;
        if (in.reg() == kRsi) calls[1].rsi = memory.displacement;
      }
    }
    at += in.length;
  }
  const Call& install = calls[0];
  if (install.behind == 0 || !install.rdi || !install.rsi ||
      *install.rsi != int64_t{*install.rdi} + kContextReturn)
    return std::nullopt;
  for (size_t at = install.at; at < code.size();) {  // only the epilogue is reached from there
    Instruction in;
    int64_t target = 0;
    if (!decode(code.subspan(at), in)) return std::nullopt;
    const Flow flow = flow_of(in, target);
    if (flow == Flow::kReturn || flow == Flow::kStop || flow == Flow::kJumpIndirect) return std::nullopt;
    const int64_t to = static_cast<int64_t>(at) + target;
    if ((flow == Flow::kJump || flow == Flow::kBranch) &&
        (to < static_cast<int64_t>(install.behind) || to >= static_cast<int64_t>(code.size())))
      return std::nullopt;
    at += in.length;
  }
  return ContextInstall{install.at, *install.rdi};
}

}  // namespace clew::analysis
