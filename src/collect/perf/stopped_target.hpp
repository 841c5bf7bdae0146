// A stopped thread as the unwinder's target: all of its memory, read from outside in blocks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "collect/perf/sample_target.hpp"

namespace clew::collect::perf {

/// Valid while the thread is stopped: what was read is kept until the next set_thread().
class StoppedTarget final : public SampleTarget {
 public:
  using SampleTarget::SampleTarget;

  void set_thread(pid_t pid, const process::AddressSpace* space, uint64_t sp);
  /// Whether the walk read what no copy of the stack holds, since that begins at the stack pointer and has an
  /// end.
  bool read_outside_copy() const { return outside_; }
  /// From here on until the next set_thread(): reads only what a copy of the largest size would hold.
  void restrict_to_copy() { restricted_ = true; }
  bool read(uint64_t address, void* out, size_t size) override;
  clew_end why_unreadable(uint64_t /*address*/) override { return CLEW_END_UNREADABLE; }

 private:
  static constexpr size_t kBlockBytes = 4096;  // a page: a read across the end of a mapping fails as a whole
  struct Block {
    uint64_t address;
    size_t size;  // bytes that could be read
    std::array<std::byte, kBlockBytes> bytes;
  };
  const Block& block(uint64_t address);

  std::vector<Block> blocks_;
  size_t used_ = 0;  // blocks of this stop
  size_t last_ = 0;
  bool outside_ = false;
  bool restricted_ = false;
};

}  // namespace clew::collect::perf
