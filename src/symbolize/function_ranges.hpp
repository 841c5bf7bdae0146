// Where functions begin and end, by a file's unwind entries: for code that has no name, so that samples of
// one function are at least counted together.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "elf/image.hpp"

namespace clew::symbolize {

class FunctionRanges {
 public:
  explicit FunctionRanges(elf::Image& image);
  /// The start of the unwind entry (FDE) that covers a virtual address.
  std::optional<uint64_t> start_of(uint64_t vaddr) const;

 private:
  struct Range {
    uint64_t start, end;
  };
  std::vector<Range> ranges_;  // by start
};

}  // namespace clew::symbolize
