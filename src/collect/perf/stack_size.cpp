#include "collect/perf/stack_size.hpp"

#include <algorithm>
#include <utility>

namespace clew::collect::perf {

/// The smallest size that twice holds the stacks of the window and of threads that sleep.
size_t StackSize::enough(uint64_t time_ns) const {
  uint64_t deepest = deepest_;
  for (const auto& [tid, thread] : threads_) {
    if (time_ns < thread.seen_ns + kLongestHoldNs)
      deepest = std::max({deepest, thread.deepest, thread.deepest_before});
  }
  size_t index = 0;
  while (index < index_ && deepest > kStackSizes[index] / 2) ++index;
  return index;
}

std::optional<size_t> StackSize::observe(pid_t tid, uint32_t asked_bytes, uint64_t depth_bytes, bool cut,
                                         uint64_t time_ns) {
  if (threads_.size() > kMostThreads) threads_.clear();
  Thread& thread = threads_[tid];
  if (thread.samples == kFewestSamples) {
    thread.deepest_before = std::exchange(thread.deepest, 0);
    thread.samples = 0;
  }
  ++thread.samples;
  thread.seen_ns = time_ns;
  thread.deepest = std::max<uint64_t>(thread.deepest, cut ? asked_bytes : depth_bytes);

  if (stack_size_index(asked_bytes) != index_) return std::nullopt;  // taken before the last switch
  if (samples_ == 0) since_ns_ = time_ns;
  ++samples_;
  deepest_ = std::max(deepest_, depth_bytes);
  if (cut) {
    samples_ = 0;
    deepest_ = 0;
    if (index_ == largest_) return std::nullopt;
    hold_ns_ = std::min(hold_ns_ * 4, kLongestHoldNs);
    index_ = largest_;
    return index_;
  }
  if (samples_ < kFewestSamples || time_ns < since_ns_ + hold_ns_) return std::nullopt;
  const size_t needed = enough(time_ns);
  samples_ = 0;
  deepest_ = 0;
  if (needed == index_) return std::nullopt;
  index_ = needed;
  return index_;
}

}  // namespace clew::collect::perf
