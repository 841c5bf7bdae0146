// The rows that `readelf --debug-dump=frames-interp` prints, and the comparison of ours with them.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "cfi/cfi.hpp"
#include "cfi/elf_sections.hpp"

namespace clew::cfi::test {

using Cells = std::map<std::string, std::string>;  // column (CFA, register name, ra) to rule

struct ReadelfRow {
  uint64_t address;
  Cells cells;
};
struct ReadelfFde {
  uint64_t offset;
  uint64_t start;
  uint64_t end;
  std::vector<ReadelfRow> rows;
};
/// Section name to FDEs.
using ReadelfDump = std::map<std::string, std::vector<ReadelfFde>>;

ReadelfDump parse_readelf(std::istream& text);
ReadelfDump run_readelf(const std::string& path);

/// What a comparison covered; the differences that are explained are counted.
struct Compared {
  size_t fdes = 0;
  size_t rows = 0;
  size_t cells = 0;
  size_t rows_of_no_length =
      0;  // readelf prints a row at every advance, also where the next one is at the same place
  size_t rows_behind_end = 0;  // and rows that an FDE's instructions make at or behind its end
};

/// Compares every FDE, row and column; each difference that is not explained is a failure of the running
/// test.
template <class Arch>
Compared compare_with_readelf(const OwnedSection& section, const std::vector<ReadelfFde>& expected);

}  // namespace clew::cfi::test
