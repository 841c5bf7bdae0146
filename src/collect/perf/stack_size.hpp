// How much stack a recording copies with each sample: what the stacks of the last seconds needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "collect/perf/perf_event.hpp"

namespace clew::collect::perf {

/// Which of kStackSizes a sample was taken with.
constexpr size_t stack_size_index(uint32_t asked_bytes) {
  size_t index = 0;
  while (index + 1 < kStackSizes.size() && asked_bytes > kStackSizes[index]) ++index;
  return index;
}

/// Begins with the largest size, since every sample that a smaller one cut would be incomplete. Shrinks when
/// for a while no stack needed half of a smaller size, and grows at the first that was cut, at once to the
/// largest again; the while gets longer each time that shrinking proved wrong.
class StackSize {
 public:
  explicit StackSize(size_t largest) : largest_(largest), index_(largest) {}

  size_t index() const { return index_; }
  /// One sample: its size, how much of it the walk read, whether the copy's end cut the walk. Returns the
  /// size to switch to where that changes.
  std::optional<size_t> observe(uint32_t asked_bytes, uint64_t depth_bytes, bool cut, uint64_t time_ns);

 private:
  static constexpr uint64_t kFirstHoldNs = 1'000'000'000;
  static constexpr uint64_t kLongestHoldNs = 64'000'000'000;
  static constexpr uint64_t kFewestSamples = 500;

  size_t largest_;
  size_t index_;
  uint64_t hold_ns_ = kFirstHoldNs;
  uint64_t since_ns_ = 0;  // the window's first sample
  uint64_t samples_ = 0;   // in the window
  uint64_t deepest_ = 0;
};

}  // namespace clew::collect::perf
