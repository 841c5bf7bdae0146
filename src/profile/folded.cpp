// Folded stacks: one line a distinct stack, `root;caller;leaf COUNT`, sorted. COUNT is the number of samples.
#include <algorithm>
#include <map>
#include <string>
#include <unordered_map>

#include "profile/functions.hpp"
#include "profile/profile.hpp"

namespace clew::profile {
namespace {

// The separator cannot stand in a name.
std::string without_separator(std::string name) {
  std::replace(name.begin(), name.end(), ';', ':');
  return name;
}

}  // namespace

std::string folded(const Profile& profile) {
  std::vector<uint64_t> by_stack(profile.stacks.size());
  std::map<clew_end, uint64_t> without_frames;
  for (const ReadSample& sample : profile.samples)
    ++(profile.stacks[sample.stack].empty() ? without_frames[sample.end] : by_stack[sample.stack]);

  const Functions functions(profile);
  std::vector<std::string> names(functions.size());
  for (uint32_t i = 0; i < names.size(); ++i) names[i] = without_separator(functions.name(i));

  std::unordered_map<std::string, uint64_t> lines;
  std::string line;
  for (size_t i = 0; i < profile.stacks.size(); ++i) {
    if (by_stack[i] == 0) continue;
    line.clear();
    const std::vector<uint32_t>& stack = profile.stacks[i];
    for (auto location = stack.rbegin(); location != stack.rend(); ++location) {
      const std::span<const uint32_t> inlined = functions.at(*location);
      for (auto function = inlined.rbegin(); function != inlined.rend(); ++function) {
        if (!line.empty()) line += ';';
        line += names[*function];
      }
    }
    lines[line] += by_stack[i];
  }
  for (const auto& [end, count] : without_frames) lines[no_frames_name(end)] += count;

  std::vector<const std::pair<const std::string, uint64_t>*> sorted;
  sorted.reserve(lines.size());
  for (const auto& entry : lines) sorted.push_back(&entry);
  std::sort(sorted.begin(), sorted.end(), [](auto* a, auto* b) { return a->first < b->first; });
  std::string text;
  for (const auto* entry : sorted) text += entry->first + ' ' + std::to_string(entry->second) + '\n';
  return text;
}

}  // namespace clew::profile
