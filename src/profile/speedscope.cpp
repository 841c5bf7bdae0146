// speedscope's file format (https://www.speedscope.app/file-format-schema.json): JSON with shared frames and
// one "sampled" profile a thread, samples root first and in the order of time, weights in nanoseconds.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>

#include "profile/functions.hpp"
#include "profile/profile.hpp"
#include "profile/text.hpp"

namespace clew::profile {
namespace {

// A thread's samples as two JSON lists.
std::string thread_profile(const Profile& profile, const Functions& functions, const ReadSample& first,
                           const std::vector<const ReadSample*>& samples) {
  std::string stacks, weights;
  uint64_t sum_ns = 0;
  for (const ReadSample* sample : samples) {
    std::string frames;
    const std::vector<uint32_t>& stack = profile.stacks[sample->stack];
    for (auto location = stack.rbegin(); location != stack.rend(); ++location) {
      const std::span<const uint32_t> inlined = functions.at(*location);
      for (auto function = inlined.rbegin(); function != inlined.rend(); ++function)
        frames += (frames.empty() ? "" : ",") + std::to_string(*function);
    }
    stacks += (stacks.empty() ? "[" : ",[") + frames + ']';
    weights += (weights.empty() ? "" : ",") + std::to_string(sample->weight_ns);
    sum_ns += sample->weight_ns;
  }
  const std::string name = fmt::format("{} ({}/{})", profile.strings[first.comm], first.pid, first.tid);
  return fmt::format(
      R"({{"type":"sampled","name":{},"unit":"nanoseconds","startValue":0,"endValue":{},"samples":[{}],"weights":[{}]}})",
      json_string(name), sum_ns, stacks, weights);
}

}  // namespace

std::string speedscope(const Profile& profile) {
  const Functions functions(profile);
  std::map<std::pair<pid_t, pid_t>, std::vector<const ReadSample*>> threads;
  for (const ReadSample& sample : profile.samples) threads[{sample.pid, sample.tid}].push_back(&sample);
  std::string profiles;
  for (auto& [ids, samples] : threads) {
    std::stable_sort(samples.begin(), samples.end(),
                     [](auto* a, auto* b) { return a->time_ns < b->time_ns; });
    if (!profiles.empty()) profiles += ",\n";
    profiles += thread_profile(profile, functions, *samples.back(), samples);
  }
  std::string frames;
  for (uint32_t i = 0; i < functions.size(); ++i)
    frames += fmt::format("{}{{\"name\":{}}}", frames.empty() ? "" : ",", json_string(functions.name(i)));
  return fmt::format(
      R"({{"$schema":"https://www.speedscope.app/file-format-schema.json","exporter":"clew","shared":{{"frames":[{}]}},"profiles":[
{}]}}
)",
      frames, profiles);
}

}  // namespace clew::profile
