// Reads all of a section that may be hostile and checks what cfi.hpp promises of rows, whatever the bytes.
// For the fuzz target and the tests of damaged sections; a broken promise aborts.
#pragma once

#include <cstdio>
#include <cstdlib>

#include "cfi/cfi.hpp"

namespace clew::cfi::test {

inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "cfi broke a promise: %s\n", what);
  std::abort();
}

inline void require_inside(const Section& section, std::span<const std::byte> part, size_t length) {
  require(part.size() == length, "an expression is not inside the section");
  if (part.empty()) return;
  require(part.data() >= section.bytes.data() && &part.back() <= &section.bytes.back(),
          "an expression lies outside");
  volatile std::byte touched = part.front();
  touched = part.back();
  (void)touched;
}

struct Exercised {
  uint64_t fdes = 0;
  uint64_t rows = 0;
  Defects defects;
};

template <class Arch = X86_64>
Exercised exercise(const Section& section) {
  Exercised done;
  Reader reader(section);
  BasicInterpreter<Arch> interpreter(reader.defects());
  uint64_t last_offset = 0;
  for (Fde fde; reader.next(fde);) {
    require(done.fdes == 0 || fde.offset > last_offset, "FDEs come in section order");
    last_offset = fde.offset;
    ++done.fdes;
    require(fde.start + fde.size > fde.start, "an FDE covers code and does not wrap");
    require(fde.cie < reader.cies().size(), "an FDE has a CIE");
    const uint64_t defects_before = reader.defects().total();
    uint64_t next_offset = 0;
    bool first = true;
    const Cie cie = reader.cies()[fde.cie];
    const bool whole = interpreter.run(section, cie, fde, [&](uint64_t offset, const BasicRow<Arch>& row) {
      ++done.rows;
      require(first ? offset == 0 : offset >= next_offset, "rows begin at 0 and ascend");
      require(offset < fde.size, "rows lie in their FDE");
      first = false;
      next_offset = offset + 1;
      if (row.cfa.kind == CfaKind::kRegister)
        require(row.cfa.reg < Arch::kRegisters, "a CFA register is followed");
      if (row.cfa.kind == CfaKind::kExpression) {
        require_inside(section, expression_bytes(section, row.cfa), row.cfa.expression_length);
      }
      for (unsigned reg = 0; reg < Arch::kRegisters; ++reg) {
        const RegisterRule& rule = row.registers[reg];
        require(row.present[reg] == (rule.kind != RuleKind::kUnspecified),
                "present says which registers have rules");
        if (rule.kind == RuleKind::kExpression || rule.kind == RuleKind::kValExpression) {
          require_inside(section, expression_bytes(section, rule), rule.expression_length);
        }
      }
    });
    require(whole ? interpreter.end() == fde.size && !first : reader.defects().total() > defects_before,
            "rows that end early are counted");
    require(interpreter.end() >= (first ? 0 : next_offset), "rows end behind the last one");
  }
  done.defects = reader.defects();
  return done;
}

}  // namespace clew::cfi::test
