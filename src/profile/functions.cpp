#include "profile/functions.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>

#include "profile/text.hpp"

namespace clew::profile {
namespace {

// Longer names exist only in files made to exhaust whoever prints them, once a frame.
constexpr size_t kLongestName = 4096;

std::string unknown_name(const Profile& profile, const Place& place) {
  const std::string& path = profile.mappings[place.mapping].path;
  if (path.empty()) return place.kind == FrameKind::kKernel ? "[kernel]" : "[unknown]";
  const std::string module = path.substr(path.rfind('/') + 1);
  return fmt::format("[{}+{:#x}]", shortened(printable(module), kLongestName), place.address);
}

uint64_t saturating_sum(uint64_t a, uint64_t b) { return a + b < a ? UINT64_MAX : a + b; }

}  // namespace

Functions::Functions(const Profile& profile) {
  std::unordered_map<std::string, uint32_t> known;
  const auto number_of = [&](std::string name) {
    const auto [entry, is_new] = known.try_emplace(std::move(name), static_cast<uint32_t>(names_.size()));
    if (is_new) names_.push_back(entry->first);
    return entry->second;
  };
  constexpr uint32_t kNone = UINT32_MAX;
  std::vector<uint32_t> by_string(profile.strings.size(), kNone);
  first_.reserve(profile.locations.size() + 1);
  for (uint32_t i = 0; i < profile.locations.size(); ++i) {
    const Location& location = profile.locations[i];
    first_.push_back(numbers_.size());
    if (i == 0) continue;
    for (const ReadLine& line : location.lines) {
      if (profile.strings[line.function].empty()) {
        numbers_.push_back(number_of(unknown_name(profile, location.place)));
        continue;
      }
      uint32_t& number = by_string[line.function];
      if (number == kNone)
        number = number_of(shortened(printable(profile.strings[line.function]), kLongestName));
      numbers_.push_back(number);
    }
    if (location.lines.empty()) numbers_.push_back(number_of(unknown_name(profile, location.place)));
  }
  first_.push_back(numbers_.size());
}

std::string no_frames_name(clew_end end) { return fmt::format("[no frames: {}]", clew_end_name(end)); }

Hottest hottest(const Profile& profile) {
  const bool weighted = std::any_of(profile.samples.begin(), profile.samples.end(),
                                    [](const ReadSample& s) { return s.weight_ns > 0; });
  Hottest result;
  std::vector<uint64_t> by_stack(profile.stacks.size());
  std::map<clew_end, uint64_t> without_frames;
  for (const ReadSample& sample : profile.samples) {
    const uint64_t weight = weighted ? sample.weight_ns : 1;
    result.all_ns = saturating_sum(result.all_ns, weight);
    uint64_t& sum =
        profile.stacks[sample.stack].empty() ? without_frames[sample.end] : by_stack[sample.stack];
    sum = saturating_sum(sum, weight);
  }

  const Functions functions(profile);
  std::vector<uint64_t> self(functions.size()), total(functions.size());
  std::vector<uint32_t> last_stack(functions.size(), UINT32_MAX);  // the last stack that counted a function
  for (uint32_t stack = 0; stack < profile.stacks.size(); ++stack) {
    if (by_stack[stack] == 0) continue;
    bool leaf = true;
    for (const uint32_t location : profile.stacks[stack]) {
      // Whoever waits does so in the kernel's scheduler: its own function that waits tells more.
      const bool own = !profile.off_cpu || profile.locations[location].place.kind == FrameKind::kNative;
      for (const uint32_t function : functions.at(location)) {
        if (leaf && own) self[function] = saturating_sum(self[function], by_stack[stack]);
        leaf &= !own;
        if (last_stack[function] == stack) continue;
        last_stack[function] = stack;
        total[function] = saturating_sum(total[function], by_stack[stack]);
      }
    }
  }
  for (uint32_t i = 0; i < functions.size(); ++i)
    if (total[i] > 0) result.functions.push_back({functions.name(i), self[i], total[i]});
  for (const auto& [end, weight] : without_frames)
    result.functions.push_back({no_frames_name(end), weight, weight});
  std::sort(result.functions.begin(), result.functions.end(), [](const Hot& a, const Hot& b) {
    return std::tie(b.self_ns, b.total_ns, a.name) < std::tie(a.self_ns, a.total_ns, b.name);
  });
  return result;
}

}  // namespace clew::profile
