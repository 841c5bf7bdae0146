// The module's own dictionary: distinct rules, lists of saved registers, expressions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "analysis/analysis.hpp"
#include "cfi/cfi.hpp"
#include "core/rule.h"
#include "table/hash_index.hpp"

namespace clew::table {

class Dictionary {
 public:
  Dictionary();

  static constexpr uint16_t kNone = 0;  // the rule of addresses that nothing describes

  /// The number of the rule that a row of the section says; `flags` are those of its saves list. kNone,
  /// counted in unsupported(), where a compact rule cannot say it.
  uint16_t rule_of_row(const cfi::Section& section, const cfi::Row& row, uint32_t flags);

  /// The number of the rule by which a function steps to its target's landing pad from where it begins to
  /// install that frame on (analysis::ContextInstall). `row` is its own, with the CFA in a register.
  uint16_t rule_of_install(const cfi::Row& row, const analysis::ContextInstall& install);

  /// The number of the rule by which code that loads a context steps to where that goes on.
  uint16_t rule_of_load(const analysis::ContextLoad& load);

  /// The number of a rule from instruction analysis, marked so that its frames say how they were found.
  uint16_t rule_of_analysis(clew_rule rule);

  /// Before rows of another section, or such as no interpreter made: expressions lie elsewhere.
  void forget_registers() { recent_.assign(kRecent, {}); }

  std::span<const clew_rule> rules() const { return rules_; }
  std::span<const uint64_t> saves() const { return saves_; }
  std::span<const std::byte> pool() const { return pool_; }
  uint64_t unsupported() const { return unsupported_; }

 private:
  /// What a rule says besides the CFA.
  struct RegisterPart {
    uint32_t bp = CLEW_BP_UNCHANGED;
    uint32_t saves = 0;
    bool special = false;
    bool root = false;
    bool sayable = true;
  };
  RegisterPart registers_of(const cfi::Section& section, const cfi::Row& row, uint32_t flags);
  clew_rule cfa_of(const cfi::Section& section, const cfi::Cfa& cfa, const RegisterPart& registers);
  uint16_t number_of(clew_rule rule);
  uint32_t list_of(std::span<const clew_save> entries, uint64_t flags);
  uint32_t expression_of(std::span<const std::byte> bytes);

  std::vector<clew_rule> rules_;
  std::vector<uint64_t> saves_;
  std::vector<std::byte> pool_;
  HashIndex rule_index_, list_index_, expression_index_;
  uint64_t unsupported_ = 0;

  // Rows that were met, by a hash of what they say: few are new.
  struct Recent {
    uint64_t registers = 0;
    int64_t cfa_offset = 0;
    uint32_t flags = 0;
    uint8_t cfa_register = 0;
    uint16_t number = kNone;  // none is here
  };
  static constexpr size_t kRecent = 1 << 11;
  std::vector<Recent> recent_{kRecent};
};

}  // namespace clew::table
