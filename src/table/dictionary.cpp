#include "table/dictionary.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>

namespace clew::table {
namespace {

constexpr uint8_t kBreg0 = 0x70, kDeref = 0x06;

/// ld's rule for a lazy PLT: CFA = rsp + 8 + ((rip & 15) >= N) * 8, byte for byte as ld writes it; N, or 0.
uint32_t plt_threshold(std::span<const std::byte> expression) {
  constexpr std::array<uint8_t, 11> kPlt = {0x77, 8, 0x80, 0, 0x3f, 0x1a, 0, 0x2a, 0x33, 0x24, 0x22};
  if (expression.size() != kPlt.size()) return 0;
  for (size_t i = 0; i < kPlt.size(); ++i) {
    if (i != 6 && std::to_integer<uint8_t>(expression[i]) != kPlt[i]) return 0;
  }
  const auto literal = std::to_integer<uint8_t>(expression[6]);
  return literal > 0x30 && literal < 0x40 ? literal - 0x30u : 0;
}

/// "register + offset", with or without a dereference behind it: true with the parts filled.
bool simple_expression(std::span<const std::byte> expression, uint32_t& reg, int64_t& offset, bool& deref) {
  if (expression.size() < 2) return false;
  const auto op = std::to_integer<uint8_t>(expression[0]);
  if (op < kBreg0 || op > kBreg0 + 15) return false;
  reg = op - kBreg0;
  uint64_t value = 0;
  size_t at = 1;
  unsigned shift = 0;
  for (;; shift += 7) {
    if (at == expression.size() || shift > 28) return false;
    const auto byte = std::to_integer<uint8_t>(expression[at++]);
    value |= static_cast<uint64_t>(byte & 127) << shift;
    if (byte < 128) {
      if (byte & 64) value |= ~uint64_t{0} << (shift + 7);
      break;
    }
  }
  offset = static_cast<int64_t>(value);
  deref = at + 1 == expression.size() && std::to_integer<uint8_t>(expression[at]) == kDeref;
  return deref || at == expression.size();
}

/// Where a row finds every register in a struct ucontext at rsp + offset, as libc's signal trampolines and
/// the vDSO's say it: the offset.
std::optional<int32_t> ucontext_of(const cfi::Section& section, const cfi::Row& row) {
  constexpr int64_t kGeneralRegisters = 40;  // core/rule.h, clew_sigcontext_register
  uint32_t reg;
  int64_t cfa, at;
  bool deref;
  if (row.cfa.kind != cfi::CfaKind::kExpression ||
      !simple_expression(cfi::expression_bytes(section, row.cfa), reg, cfa, deref) || !deref ||
      reg != CLEW_RSP)
    return std::nullopt;
  std::optional<int64_t> ucontext;
  for (uint32_t i = 0; i < CLEW_REGISTERS; ++i) {
    const uint32_t number = clew_sigcontext_register(i);
    const cfi::RegisterRule& rule = row.registers[number];
    if (rule.kind != cfi::RuleKind::kExpression ||
        !simple_expression(cfi::expression_bytes(section, rule), reg, at, deref) || deref || reg != CLEW_RSP)
      return std::nullopt;
    const int64_t from = at - kGeneralRegisters - 8 * static_cast<int64_t>(i);
    if (ucontext.value_or(from) != from || (number == CLEW_RSP && at != cfa)) return std::nullopt;
    ucontext = from;
  }
  if (!ucontext || *ucontext < 0 || *ucontext > 1 << 16) return std::nullopt;
  return static_cast<int32_t>(*ucontext);
}

/// The DWARF expression for that.
std::vector<std::byte> register_plus(uint32_t reg, int64_t offset) {
  std::vector<std::byte> expression{static_cast<std::byte>(kBreg0 + reg)};
  for (; offset < -64 || offset > 63; offset >>= 7)
    expression.push_back(static_cast<std::byte>((offset & 127) | 128));
  expression.push_back(static_cast<std::byte>(offset & 127));
  return expression;
}

bool fits(int64_t value) {
  return value >= std::numeric_limits<int32_t>::min() && value <= std::numeric_limits<int32_t>::max();
}

}  // namespace

Dictionary::Dictionary() : rules_{0}, saves_{0} {
  rule_index_.find_or_add(mix(0, 0), [](uint32_t) { return false; }, [] { return 0u; });
}

uint16_t Dictionary::rule_of_row(const cfi::Section& section, const cfi::Row& row, uint32_t flags) {
  const auto cfa_offset = static_cast<uint64_t>(row.cfa.offset);
  const uint64_t hash = mix(row.registers_version + flags, cfa_offset << 8 | row.cfa.reg);
  Recent& recent = recent_[hash % kRecent];
  const bool by_register = row.cfa.kind == cfi::CfaKind::kRegister;
  if (by_register && recent.number != kNone && recent.registers == row.registers_version &&
      recent.cfa_offset == row.cfa.offset && recent.cfa_register == row.cfa.reg && recent.flags == flags)
    return recent.number;

  if ((flags & CLEW_SAVES_SIGNAL) != 0) {
    if (const auto ucontext = ucontext_of(section, row))
      return number_of(clew_rule_make(CLEW_CFA_SIGFRAME, CLEW_RSP, *ucontext, CLEW_BP_UNCHANGED, 0, false));
  }
  const RegisterPart registers = registers_of(section, row, flags);
  if (row.cfa.kind == cfi::CfaKind::kUnset && !registers.root) return kNone;
  const clew_rule rule = registers.sayable ? cfa_of(section, row.cfa, registers) : 0;
  if (rule == 0) {
    ++unsupported_;
    return kNone;
  }
  const uint16_t number = number_of(rule);
  if (by_register) recent = {row.registers_version, row.cfa.offset, flags, row.cfa.reg, number};
  return number;
}

Dictionary::RegisterPart Dictionary::registers_of(const cfi::Section& section, const cfi::Row& row,
                                                  uint32_t flags) {
  RegisterPart part;
  std::array<clew_save, CLEW_REGISTERS> entries;
  size_t count = 0;
  for (unsigned reg = 0; reg < CLEW_REGISTERS; ++reg) {
    if (!row.present[reg]) continue;
    const cfi::RegisterRule& rule = row.registers[reg];
    const auto add = [&](clew_save_kind kind, int64_t offset) {
      if (!fits(offset)) {
        part.sayable = false;
        return;
      }
      entries[count++] = clew_save_make(kind, reg, static_cast<int32_t>(offset));
      if (reg == CLEW_RIP || reg == CLEW_RSP) part.special = true;
      if (reg == CLEW_RBP) part.bp = CLEW_BP_IN_SAVES;
    };
    switch (rule.kind) {
      case cfi::RuleKind::kUnspecified:
        break;
      case cfi::RuleKind::kSameValue:
        // "The caller was here too": nothing to say, but for the return address it is no rule at all.
        if (reg == CLEW_RIP) part.sayable = false;
        break;
      case cfi::RuleKind::kUndefined:
        if (reg == CLEW_RIP) {
          part.root = true;
        } else {
          add(CLEW_SAVE_UNDEFINED, 0);
        }
        break;
      case cfi::RuleKind::kOffset:
        if (reg == CLEW_RIP && rule.value == -8) break;
        if (reg == CLEW_RBP && rule.value % 8 == 0 && rule.value < 0 &&
            rule.value > int64_t{-8} * CLEW_BP_IN_SAVES) {
          part.bp = static_cast<uint32_t>(-rule.value / 8);
          break;
        }
        add(CLEW_SAVE_AT_CFA, rule.value);
        break;
      case cfi::RuleKind::kValOffset:
        if (reg == CLEW_RSP && rule.value == 0) break;  // the CFA is the caller's stack pointer anyway
        add(CLEW_SAVE_CFA_PLUS, rule.value);
        break;
      case cfi::RuleKind::kRegister:
        if (rule.value < 0 || rule.value >= CLEW_REGISTERS) {
          add(CLEW_SAVE_UNDEFINED, 0);  // a register that nobody follows
        } else {
          add(CLEW_SAVE_REGISTER, rule.value);
        }
        break;
      case cfi::RuleKind::kExpression:
      case cfi::RuleKind::kValExpression: {
        const uint32_t expression = expression_of(cfi::expression_bytes(section, rule));
        if (expression == HashIndex::kNone) {
          part.sayable = false;
        } else {
          add(rule.kind == cfi::RuleKind::kExpression ? CLEW_SAVE_EXPR_AT : CLEW_SAVE_EXPR_VALUE, expression);
        }
        break;
      }
    }
  }
  if (part.root) {
    part = {};
    part.root = true;
    return part;
  }
  if (flags != 0) part.special = true;
  if (count != 0 || flags != 0) {
    part.saves = list_of({entries.data(), count}, flags);
    if (part.saves == HashIndex::kNone) part.sayable = false;
  }
  return part;
}

clew_rule Dictionary::cfa_of(const cfi::Section& section, const cfi::Cfa& cfa,
                             const RegisterPart& registers) {
  if (registers.root) return clew_rule_make(CLEW_CFA_ROOT, 0, 0, 0, 0, false);
  const auto make = [&](clew_cfa_kind kind, uint32_t reg, int64_t offset) -> clew_rule {
    if (!fits(offset)) return 0;
    return clew_rule_make(kind, reg, static_cast<int32_t>(offset), registers.bp, registers.saves,
                          registers.special);
  };
  if (cfa.kind == cfi::CfaKind::kRegister) {
    return cfa.reg < CLEW_RIP ? make(CLEW_CFA_REG, cfa.reg, cfa.offset) : 0;
  }
  const std::span<const std::byte> expression = cfi::expression_bytes(section, cfa);
  if (const uint32_t threshold = plt_threshold(expression)) return make(CLEW_CFA_PLT, CLEW_RSP, threshold);
  uint32_t reg;
  int64_t offset;
  bool deref;
  if (simple_expression(expression, reg, offset, deref)) {
    return make(deref ? CLEW_CFA_DEREF : CLEW_CFA_REG, reg, offset);
  }
  const uint32_t number = expression_of(expression);
  return number == HashIndex::kNone ? 0 : make(CLEW_CFA_EXPR, 0, number);
}

uint16_t Dictionary::rule_of_analysis(clew_rule rule) {
  const uint32_t kind = clew_rule_kind(rule);
  if (kind == CLEW_CFA_NONE) return kNone;
  if (kind == CLEW_CFA_REG || kind == CLEW_CFA_PLT || kind == CLEW_CFA_CHILD) {
    const uint32_t list = list_of({}, CLEW_SAVES_ANALYSED);
    if (list == HashIndex::kNone) return kNone;
    rule = clew_rule_make(static_cast<clew_cfa_kind>(kind), clew_rule_register(rule), clew_rule_offset(rule),
                          clew_rule_bp(rule), list, true);
  }
  return number_of(rule);
}

uint16_t Dictionary::rule_of_install(const cfi::Row& row, const analysis::ContextInstall& install) {
  std::array<clew_save, CLEW_REGISTERS> entries;
  size_t count = 0;
  for (unsigned reg = 0; reg < CLEW_REGISTERS; ++reg) {
    if (!row.present[reg] || row.registers[reg].kind != cfi::RuleKind::kOffset) continue;
    std::vector<std::byte> place;
    if (reg == CLEW_RIP) {
      place = register_plus(row.cfa.reg, install.cfa_at + analysis::kContextReturn);
    } else {
      place = register_plus(row.cfa.reg,
                            install.cfa_at + analysis::kContextRegisters + 8 * static_cast<int>(reg));
      place.push_back(std::byte{kDeref});
    }
    const uint32_t expression = expression_of(place);
    if (expression == HashIndex::kNone) return kNone;
    entries[count++] = clew_save_make(CLEW_SAVE_EXPR_AT, reg, static_cast<int32_t>(expression));
  }
  const uint32_t list = list_of({entries.data(), count}, CLEW_SAVES_EXACT);
  if (list == HashIndex::kNone) return kNone;
  return number_of(clew_rule_make(CLEW_CFA_DEREF, row.cfa.reg, install.cfa_at, CLEW_BP_IN_SAVES, list, true));
}

uint16_t Dictionary::rule_of_load(const analysis::ContextLoad& load) {
  std::array<clew_save, CLEW_REGISTERS> entries;
  size_t count = 0;
  for (const auto& [reg, offset] : load.registers) {
    const uint32_t expression = expression_of(register_plus(load.base, offset));
    if (expression == HashIndex::kNone) return kNone;
    entries[count++] = clew_save_make(CLEW_SAVE_EXPR_AT, reg, static_cast<int32_t>(expression));
  }
  const uint32_t list = list_of({entries.data(), count}, CLEW_SAVES_EXACT);
  if (list == HashIndex::kNone) return kNone;
  return number_of(clew_rule_make(CLEW_CFA_REG, CLEW_RSP, 0, CLEW_BP_IN_SAVES, list, true));
}

uint16_t Dictionary::number_of(clew_rule rule) {
  const uint32_t number = rule_index_.find_or_add(
      mix(0, rule), [&](uint32_t at) { return rules_[at] == rule; },
      [&]() -> uint32_t {
        if (rules_.size() > UINT16_MAX) return HashIndex::kNone;
        rules_.push_back(rule);
        return static_cast<uint32_t>(rules_.size() - 1);
      });
  if (number != HashIndex::kNone) return static_cast<uint16_t>(number);
  ++unsupported_;
  return kNone;
}

uint32_t Dictionary::list_of(std::span<const clew_save> entries, uint64_t flags) {
  const uint64_t head = entries.size() | flags;
  uint64_t hash = mix(0, head);
  for (const clew_save entry : entries) hash = mix(hash, entry);
  return list_index_.find_or_add(
      hash,
      [&](uint32_t at) {
        return saves_[at] == head && std::equal(entries.begin(), entries.end(), &saves_[at + 1]);
      },
      [&]() -> uint32_t {
        const size_t at = saves_.size();
        if (at + 1 + entries.size() > UINT16_MAX) return HashIndex::kNone;
        saves_.push_back(head);
        saves_.insert(saves_.end(), entries.begin(), entries.end());
        return static_cast<uint32_t>(at);
      });
}

uint32_t Dictionary::expression_of(std::span<const std::byte> bytes) {
  if (bytes.empty() || bytes.size() > UINT16_MAX) return HashIndex::kNone;
  return expression_index_.find_or_add(
      hash_bytes(bytes.data(), bytes.size()),
      [&](uint32_t at) {
        const size_t length = std::to_integer<size_t>(pool_[at]) | std::to_integer<size_t>(pool_[at + 1])
                                                                       << 8;
        return length == bytes.size() && std::equal(bytes.begin(), bytes.end(), pool_.begin() + at + 2);
      },
      [&]() -> uint32_t {
        const size_t at = pool_.size();
        if (at + 2 + bytes.size() > (1u << 24)) return HashIndex::kNone;
        pool_.push_back(static_cast<std::byte>(bytes.size() & 255));
        pool_.push_back(static_cast<std::byte>(bytes.size() >> 8));
        pool_.insert(pool_.end(), bytes.begin(), bytes.end());
        return static_cast<uint32_t>(at);
      });
}

}  // namespace clew::table
