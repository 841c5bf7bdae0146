#include "profile/counts.hpp"

namespace clew::profile {

Counts count(const Profile& profile) {
  std::vector<uint64_t> guessed(profile.stacks.size());
  for (size_t i = 0; i < profile.stacks.size(); ++i)
    for (const uint32_t location : profile.stacks[i])
      guessed[i] += (profile.locations[location].place.flags & CLEW_FRAME_GUESSED) != 0;

  Counts counts;
  counts.samples = profile.samples.size();
  for (const ReadSample& sample : profile.samples) {
    ++counts.by_end[sample.end];
    counts.frames += profile.stacks[sample.stack].size();
    counts.guessed += guessed[sample.stack];
    counts.cpu_sampled_ns += sample.weight_ns;
  }
  counts.complete = counts.by_end[CLEW_END_ROOT];
  return counts;
}

}  // namespace clew::profile
