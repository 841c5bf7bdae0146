#include "collect/perf/stack_size.hpp"

#include <algorithm>

namespace clew::collect::perf {

std::optional<size_t> StackSize::observe(uint32_t asked_bytes, uint64_t depth_bytes, bool cut,
                                         uint64_t time_ns) {
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
  size_t enough = 0;
  while (enough < index_ && deepest_ > kStackSizes[enough] / 2) ++enough;
  samples_ = 0;
  deepest_ = 0;
  if (enough == index_) return std::nullopt;
  index_ = enough;
  return index_;
}

}  // namespace clew::collect::perf
