#include <algorithm>
#include <array>
#include <cstring>

#include "analysis/analysis.hpp"
#include "analysis/instruction.hpp"
#include "core/rule.h"

namespace clew::analysis {
namespace {

constexpr std::array<uint32_t, 6> kCalleeSaved = {CLEW_RBX, CLEW_RBP, CLEW_R12, CLEW_R13, CLEW_R14, CLEW_R15};

/// mov reg, [base + n].
bool is_load(const Instruction& in) {
  return in.is(0x8b) && in.wide() && in.is_memory_form() && in.memory().plain &&
         in.memory().index == kNoRegister && in.memory().base < kGeneralRegisters &&
         in.reg() < kGeneralRegisters;
}

/// The loads that follow on one of rsp, by the same base, up to a push of what one of them loaded.
std::optional<ContextLoad> loads_behind(std::span<const std::byte> code, size_t at, uint8_t base) {
  constexpr int64_t kNone = INT64_MAX;
  ContextLoad load{at, 0, dwarf_register(base), {}};
  std::array<int64_t, kGeneralRegisters> loaded;
  loaded.fill(kNone);
  Instruction in;
  for (; decode(code.subspan(at), in); at += in.length) {
    if (is_load(in) && in.memory().base == base && in.reg() != base && in.reg() != kRsp) {
      loaded[dwarf_register(in.reg())] = in.memory().displacement;
      continue;
    }
    const bool is_push = in.map == Map::kOneByte && in.encoding == Encoding::kLegacy && in.opcode >= 0x50 &&
                         in.opcode <= 0x57 && in.opcode_register() < kGeneralRegisters;
    if (!is_push) return std::nullopt;
    load.end = at + in.length;
    for (const uint32_t reg : kCalleeSaved) {
      if (loaded[reg] == kNone) return std::nullopt;
      load.registers.emplace_back(reg, static_cast<int32_t>(loaded[reg]));
    }
    const int64_t pushed = loaded[dwarf_register(in.opcode_register())];
    if (pushed == kNone) return std::nullopt;
    load.registers.emplace_back(CLEW_RIP, static_cast<int32_t>(pushed));
    return load;
  }
  return std::nullopt;
}

}  // namespace

std::optional<ContextLoad> context_load(std::span<const std::byte> code) {
  Instruction in;
  for (size_t at = 0; at < code.size() && decode(code.subspan(at), in); at += in.length) {
    if (!is_load(in) || in.reg() != kRsp || in.memory().base == kRsp) continue;
    return loads_behind(code, at + in.length, in.memory().base);
  }
  return std::nullopt;
}

bool saves_context(std::span<const std::byte> code) {
  Instruction in;
  if (!decode(code, in)) return false;
  // endbr64
  if (in.is_0f(0x1e) && in.repeat() && !decode(code.subspan(in.length), in)) return false;
  return in.is(0x89) && in.wide() && in.is_memory_form() && in.reg() == kRbx && in.memory().plain &&
         in.memory().base == kRdi && in.memory().index == kNoRegister;
}

bool is_start_context(std::span<const std::byte> code) {
  // mov %rbx,%rsp; mov (%rsp),%rdi; test %rdi,%rdi; je +8; call
  constexpr std::array<uint8_t, kStartContextBytes> kCode = {0x48, 0x89, 0xdc, 0x48, 0x8b, 0x3c, 0x24,
                                                             0x48, 0x85, 0xff, 0x74, 0x08, 0xe8};
  return code.size() >= kCode.size() && std::memcmp(code.data(), kCode.data(), kCode.size()) == 0;
}

}  // namespace clew::analysis
