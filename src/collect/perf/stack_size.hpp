// How much stack a recording copies with each sample: what the stacks of the last seconds needed.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>

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
/// largest again; the while gets longer each time that shrinking proved wrong. A thread that has used no CPU
/// since counts with what its last samples needed: when it wakes up, its stack is as deep as it was.
class StackSize {
 public:
  explicit StackSize(size_t largest) : largest_(largest), index_(largest) {}

  size_t index() const { return index_; }
  /// One sample: its thread, its size, how much of it the walk read, whether the copy's end cut the walk.
  /// Returns the size to switch to where that changes.
  std::optional<size_t> observe(pid_t tid, uint32_t asked_bytes, uint64_t depth_bytes, bool cut,
                                uint64_t time_ns);
  /// The thread is over.
  void forget(pid_t tid) { threads_.erase(tid); }

 private:
  static constexpr uint64_t kFirstHoldNs = 1'000'000'000;
  static constexpr uint64_t kLongestHoldNs = 64'000'000'000;
  static constexpr uint64_t kFewestSamples = 500;

  static constexpr size_t kMostThreads = 1 << 16;

  /// The deepest stack of a thread's last samples, between kFewestSamples and twice as many.
  struct Thread {
    uint64_t deepest = 0, deepest_before = 0;
    uint64_t samples = 0;
    uint64_t seen_ns = 0;
  };
  size_t enough(uint64_t time_ns) const;

  size_t largest_;
  size_t index_;
  uint64_t hold_ns_ = kFirstHoldNs;
  uint64_t since_ns_ = 0;  // the window's first sample
  uint64_t samples_ = 0;   // in the window
  uint64_t deepest_ = 0;
  std::unordered_map<pid_t, Thread> threads_;
};

}  // namespace clew::collect::perf
