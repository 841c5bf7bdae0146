// Rows in the notation of readelf --debug-dump=frames-interp, for dumps and tests.
#include "cfi/cfi.hpp"

namespace clew::cfi {
namespace {

std::string with_offset(std::string base, int64_t offset) {
  if (offset >= 0) base += '+';
  return base + std::to_string(offset);
}

constexpr const char* kX86_64Names[] = {"rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", "r8",
                                        "r9",  "r10", "r11", "r12", "r13", "r14", "r15", "rip"};

}  // namespace

template <>
std::string register_name<X86_64>(uint64_t reg) {
  return reg < std::size(kX86_64Names) ? kX86_64Names[reg] : "r" + std::to_string(reg);
}

template <>
std::string register_name<Aarch64>(uint64_t reg) {
  if (reg < 31) return "x" + std::to_string(reg);
  if (reg == 31) return "sp";
  if (reg >= 64 && reg < 96) return "v" + std::to_string(reg - 64);
  return "r" + std::to_string(reg);
}

template <class Arch>
std::string describe_cfa(const Cfa& cfa) {
  switch (cfa.kind) {
    case CfaKind::kUnset:
      break;
    case CfaKind::kRegister:
      return with_offset(register_name<Arch>(cfa.reg), cfa.offset);
    case CfaKind::kExpression:
      return "exp";
  }
  return "?";
}

template <class Arch>
std::string describe_register(const RegisterRule& rule) {
  switch (rule.kind) {
    case RuleKind::kUnspecified:
      break;
    case RuleKind::kUndefined:
      return "U";
    case RuleKind::kSameValue:
      return "s";
    case RuleKind::kOffset:
      return with_offset("c", rule.value);
    case RuleKind::kValOffset:
      return with_offset("v", rule.value);
    case RuleKind::kRegister:
      return register_name<Arch>(static_cast<uint64_t>(rule.value));
    case RuleKind::kExpression:
      return "exp";
    case RuleKind::kValExpression:
      return "vexp";
  }
  return "u";
}

template std::string describe_cfa<X86_64>(const Cfa& cfa);
template std::string describe_cfa<Aarch64>(const Cfa& cfa);
template std::string describe_register<X86_64>(const RegisterRule& rule);
template std::string describe_register<Aarch64>(const RegisterRule& rule);

}  // namespace clew::cfi
