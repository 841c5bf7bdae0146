// What a profile's samples add up to.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "profile/profile.hpp"

namespace clew::profile {

struct Counts {
  uint64_t samples = 0;
  uint64_t complete = 0;                              // ended at the root
  std::array<uint64_t, CLEW_END_COUNT + 1> by_end{};  // the last: the file does not say
  uint64_t frames = 0;                                // physical ones, of all samples
  uint64_t guessed = 0;    // of those, found by or after a step that nothing vouches for
  uint64_t weight_ns = 0;  // CPU time sampled, or time blocked
};
Counts count(const Profile& profile, std::span<const ReadSample> samples);

}  // namespace clew::profile
