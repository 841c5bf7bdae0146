// Every rule of the format, checked over a whole section.
#include <algorithm>

#include "sframe/sframe.hpp"

namespace clew::sframe {
namespace {

/// The highest DWARF number of a register that a frame may be based on.
uint32_t last_register(const clew_sframe& header) { return header.abi == CLEW_SFRAME_AMD64 ? 16 : 31; }

std::string hex(uint64_t value) {
  std::string text;
  do {
    text.insert(text.begin(), "0123456789abcdef"[value % 16]);
    value /= 16;
  } while (value != 0);
  return "0x" + text;
}

std::string name(const Function& function) { return "the function at " + hex(function.entry.start); }

void check_rows(const Part& part, const Function& function, Verdict& verdict) {
  const uint64_t at = part.at + part.header.rows_at + function.entry.first;
  const uint64_t end = function.entry.mask ? function.entry.block : function.entry.size;
  if (function.row_count == 0) return;
  const clew_sframe_row* rows = &part.rows[function.first_row];
  if (rows[0].start != 0 && function.entry.size != 0)
    verdict.notes.push_back({at, name(function) + " has no row for its first bytes"});
  if (rows[function.row_count - 1].start >= end && function.entry.size != 0)
    verdict.notes.push_back({at, name(function) + " has a row past its end"});
  const uint32_t last = last_register(part.header);
  if (std::any_of(rows, rows + function.row_count, [&](const clew_sframe_row& row) {
        return row.cfa.reg > last || row.fp.reg > last || row.ra.reg > last;
      }))
    verdict.notes.push_back({at, name(function) + " names a register that the machine does not have"});
}

void check_part(const Part& part, bool relocatable, Verdict& verdict) {
  const clew_sframe& header = part.header;
  uint64_t rows = 0;
  for (const Function& function : part.functions) {
    rows += function.entry.rows;
    if (function.result != CLEW_SFRAME_OK) {
      verdict.defects.push_back({function.result_at, name(function) + ": " + describe(function.result)});
    } else {
      check_rows(part, function, verdict);
    }
  }
  for (size_t i = 1; i < part.by_start.size() && !relocatable; ++i) {
    const Function& before = part.functions[part.by_start[i - 1]];
    const Function& function = part.functions[part.by_start[i]];
    if (before.entry.start == function.entry.start)
      verdict.defects.push_back({function.at, name(function) + " is there twice"});
    else if (function.entry.start - before.entry.start < before.entry.size)
      verdict.notes.push_back({function.at, name(function) + " starts within the one before it"});
  }
  if (rows != header.rows)
    verdict.notes.push_back({part.at + 12, "the header counts " + std::to_string(header.rows) +
                                               " rows, the functions have " + std::to_string(rows)});
  if (clew_sframe_entry_at(&header, header.functions) != header.rows_at)
    verdict.notes.push_back({part.at + 24, "there are bytes between the function table and the rows"});
  if (header.fixed_fp != 0)
    verdict.notes.push_back({part.at + 5, "a fixed offset of the frame pointer, which no ABI has"});
}

}  // namespace

Verdict verify(const Section& section) {
  Verdict verdict;
  const Result<Decoded> decoded = decode(section);
  if (!decoded) {
    verdict.defects.push_back({0, decoded.error()});
    return verdict;
  }
  for (const Part& part : decoded->parts) check_part(part, section.relocatable, verdict);
  if (decoded->trailing_at < section.bytes.size()) {
    auto& list = decoded->trailing == CLEW_SFRAME_BAD_MAGIC || decoded->trailing == CLEW_SFRAME_SHORT
                     ? verdict.notes
                     : verdict.defects;
    list.push_back(
        {decoded->trailing_at, std::string("behind the last part: ") + describe(decoded->trailing)});
  }
  const auto by_offset = [](const Defect& a, const Defect& b) { return a.offset < b.offset; };
  std::stable_sort(verdict.defects.begin(), verdict.defects.end(), by_offset);
  std::stable_sort(verdict.notes.begin(), verdict.notes.end(), by_offset);
  return verdict;
}

}  // namespace clew::sframe
