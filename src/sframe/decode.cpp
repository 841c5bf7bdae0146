// Bytes to functions and rows, and the search among them.
#include <algorithm>
#include <numeric>

#include "sframe/sframe.hpp"

namespace clew::sframe {
namespace {

uint64_t where(const Section& section) {
  return static_cast<uint64_t>(reinterpret_cast<uintptr_t>(section.bytes.data()));
}

uint32_t open(const Section& section, uint64_t at, clew_sframe& header) {
  const uint32_t result = clew_sframe_open(nullptr, &header, where(section) + at, section.bytes.size() - at,
                                           section.address + at);
  if (result != CLEW_SFRAME_OK) return result;
  const uint16_t machine = header.abi == CLEW_SFRAME_AMD64 ? 62 : header.abi == CLEW_SFRAME_S390X ? 22 : 183;
  if (section.machine != 0 && section.machine != machine) return CLEW_SFRAME_BAD_ABI;
  return section.big && *section.big != header.big ? CLEW_SFRAME_BAD_ORDER : CLEW_SFRAME_OK;
}

/// Rows of a sound function, or what is wrong with one of them; then none.
void decode_rows(Part& part, Function& function) {
  clew_sframe_cursor cursor = clew_sframe_rows_of(&function.entry);
  clew_sframe_row row;
  uint32_t result;
  while ((result = clew_sframe_next_row(nullptr, &part.header, &function.entry, &cursor, &row)) ==
         CLEW_SFRAME_OK)
    part.rows.push_back(row);
  if (result == CLEW_SFRAME_NOTHING) {
    function.row_count = function.entry.rows;
    return;
  }
  part.rows.resize(function.first_row);
  function.result = result;
  function.result_at = part.at + part.header.rows_at + cursor.at;
}

/// False where functions are out of order although they should not be.
bool decode_part(Part& part) {
  const clew_sframe& header = part.header;
  const bool sorted = (header.flags & CLEW_SFRAME_SORTED) != 0;
  part.functions.reserve(header.functions);  // all of them lie within the section
  uint64_t last = 0;
  // Functions share no rows. Hostile ones might, and then be many times the section: no more rows than bytes.
  uint64_t rows_left = header.rows_bytes;
  for (uint32_t i = 0; i < header.functions; ++i) {
    Function function{};
    function.at = function.result_at = part.at + clew_sframe_entry_at(&header, i);
    function.first_row = part.rows.size();
    function.result = clew_sframe_function_at(nullptr, &header, i, &function.entry);
    if (sorted && function.entry.start < last) return false;
    last = function.entry.start;
    if (function.result == CLEW_SFRAME_OK && function.entry.rows > rows_left)
      function.result = CLEW_SFRAME_BAD_ROW_COUNT;
    if (function.result == CLEW_SFRAME_OK) {
      rows_left -= function.entry.rows;
      decode_rows(part, function);
    }
    part.functions.push_back(function);
    if (function.entry.size != 0) part.by_start.push_back(i);
  }
  const auto start = [&](uint32_t index) { return part.functions[index].entry.start; };
  if (!sorted)
    std::stable_sort(part.by_start.begin(), part.by_start.end(),
                     [&](uint32_t a, uint32_t b) { return start(a) < start(b); });
  return true;
}

}  // namespace

Result<Decoded> decode(const Section& section) {
  Decoded decoded;
  uint64_t at = 0;
  for (;;) {
    Part part{};
    part.at = at;
    uint32_t result = open(section, at, part.header);
    if (result == CLEW_SFRAME_OK && !decode_part(part)) result = CLEW_SFRAME_NOT_SORTED;
    if (result != CLEW_SFRAME_OK) {
      if (decoded.parts.empty()) return Error{std::string(".sframe: ") + describe(result)};
      decoded.trailing = result;
      decoded.trailing_at = at;
      return decoded;
    }
    decoded.end = at + part.header.bytes;
    decoded.parts.push_back(std::move(part));
    // The next header, if there is one: zeros pad to it.
    const auto rest = section.bytes.subspan(decoded.end);
    const auto next =
        std::find_if(rest.begin(), rest.end(), [](std::byte byte) { return byte != std::byte{0}; });
    at = decoded.trailing_at = decoded.end + static_cast<uint64_t>(next - rest.begin());
    if (at == section.bytes.size()) return decoded;
    if (at % 8 != 0) {
      decoded.trailing = CLEW_SFRAME_BAD_MAGIC;
      return decoded;
    }
  }
}

Found find(const Decoded& decoded, uint64_t pc) {
  Found found;
  for (const Part& part : decoded.parts) {
    const auto behind = std::upper_bound(
        part.by_start.begin(), part.by_start.end(), pc,
        [&](uint64_t address, uint32_t index) { return address < part.functions[index].entry.start; });
    if (behind == part.by_start.begin()) continue;
    const Function& function = part.functions[behind[-1]];
    if (pc - function.entry.start >= function.entry.size) continue;
    found = {&part, &function, nullptr};
    break;
  }
  if (!found.function || found.function->result != CLEW_SFRAME_OK) return found;
  uint64_t offset = pc - found.function->entry.start;
  if (found.function->entry.mask) offset %= found.function->entry.block;
  const auto first = found.part->rows.begin() + static_cast<ptrdiff_t>(found.function->first_row);
  const auto behind =
      std::upper_bound(first, first + found.function->row_count, offset,
                       [](uint64_t at, const clew_sframe_row& row) { return at < row.start; });
  if (behind != first) found.row = &behind[-1];
  return found;
}

}  // namespace clew::sframe
