// SFrame sections: the first byte says for which machine (4: the rest is an ELF file that has one), the rest
// is the section. Decoded, verified, and looked up in place; what the two ways find must agree where the
// section is sound.
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "sframe/sframe.hpp"

namespace {

using namespace clew::sframe;

void require(bool condition) {
  if (!condition) abort();
}

bool same(const clew_sframe_value& a, const clew_sframe_value& b) {
  return a.offset == b.offset && a.reg == b.reg && a.kind == b.kind;
}

void look_up(const Decoded& decoded, const Part& part, uint64_t pc, bool sound) {
  clew_sframe_function function;
  clew_sframe_row row;
  const uint32_t result = clew_sframe_lookup(nullptr, &part.header, pc, &function, &row);
  require(result < CLEW_SFRAME_RESULTS);
  const Found found = find(decoded, pc);
  if (result == CLEW_SFRAME_OK) require(pc - function.start < function.size);
  if (!sound || result != CLEW_SFRAME_OK || row.outermost) return;
  require(found.row && found.function->entry.start == function.start && found.row->start == row.start &&
          same(found.row->cfa, row.cfa) && same(found.row->fp, row.fp) && same(found.row->ra, row.ra));
}

void check(const Section& section) {
  const Verdict verdict = verify(section);
  const auto decoded = decode(section);
  require(decoded || !verdict.defects.empty());
  if (!decoded) return;
  size_t rows = 0;
  for (const Part& part : decoded->parts) {
    rows += part.rows.size();
    unsigned asked = 256;
    for (const Function& function : part.functions) {
      require(function.first_row + function.row_count <= part.rows.size());
      for (uint32_t i = 0; i < function.row_count; ++i) {
        const clew_sframe_row& row = part.rows[function.first_row + i];
        require(i == 0 || row.start > part.rows[function.first_row + i - 1].start);
        if (row.outermost) continue;
        require(row.cfa.kind == CLEW_SFRAME_REGISTER_PLUS || row.cfa.kind == CLEW_SFRAME_AT_REGISTER);
        require(!describe_cfa(part, row).empty() && !describe_fp(part, row).empty() &&
                !describe_ra(part, row).empty());
      }
      if (asked-- == 0) break;
      const uint64_t start = function.entry.start;
      const bool sound = verdict.defects.empty() && decoded->parts.size() == 1;
      for (const uint64_t place : {0u, 1u, function.entry.size / 2, function.entry.size - 1})
        look_up(*decoded, part, start + place, sound);
    }
  }
  require(rows <= section.bytes.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  // Copied, so that the sanitizer sees a read past the section's end.
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  const std::vector<std::byte> bytes(begin + 1, begin + size);
  if (data[0] == 4) {
    if (const auto found = read_section(bytes)) check(found->section());
    return 0;
  }
  constexpr uint16_t kMachines[] = {0, 62, 183, 22};
  check({bytes, 0x400000, kMachines[data[0] % 4], false, {}});
  return 0;
}
