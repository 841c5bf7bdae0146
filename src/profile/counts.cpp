#include "profile/counts.hpp"

#include <utility>

namespace clew::profile {

Counts count(const Profile& profile, std::span<const ReadSample> samples) {
  std::vector<uint64_t> guessed(profile.stacks.size());
  for (size_t i = 0; i < profile.stacks.size(); ++i)
    for (const uint32_t location : profile.stacks[i])
      guessed[i] += (profile.locations[location].place.flags & CLEW_FRAME_GUESSED) != 0;

  Counts counts;
  counts.samples = samples.size();
  for (const ReadSample& sample : samples) {
    ++counts.by_end[sample.end];
    counts.frames += profile.stacks[sample.stack].size();
    counts.guessed += guessed[sample.stack];
    counts.weight_ns += sample.weight_ns;
  }
  counts.complete = counts.by_end[CLEW_END_ROOT];
  return counts;
}

void turn_off_cpu(Profile& profile) {
  std::swap(profile.samples, profile.waits);
  profile.off_cpu = !profile.off_cpu;
}

}  // namespace clew::profile
