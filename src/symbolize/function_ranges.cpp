#include "symbolize/function_ranges.hpp"

#include <algorithm>

#include "cfi/cfi.hpp"

namespace clew::symbolize {

FunctionRanges::FunctionRanges(elf::Image& image) {
  for (const elf::Section& section : image.sections()) {
    if (section.name != ".eh_frame" && section.name != ".debug_frame") continue;
    cfi::Section source;
    source.bytes = image.section_bytes(section);
    source.address = section.address;
    source.debug_frame = section.name == ".debug_frame";
    cfi::Reader reader(source);
    cfi::Fde fde;
    while (reader.next(fde)) ranges_.push_back({fde.start, fde.start + fde.size});
  }
  std::sort(ranges_.begin(), ranges_.end(), [](const Range& a, const Range& b) { return a.start < b.start; });
}

std::optional<uint64_t> FunctionRanges::start_of(uint64_t vaddr) const {
  auto next = std::upper_bound(ranges_.begin(), ranges_.end(), vaddr,
                               [](uint64_t address, const Range& range) { return address < range.start; });
  if (next == ranges_.begin() || vaddr >= std::prev(next)->end) return std::nullopt;
  return std::prev(next)->start;
}

}  // namespace clew::symbolize
