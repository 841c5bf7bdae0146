// Folded stacks: one line a distinct stack, `root;caller;leaf COUNT`, sorted. COUNT is the number of samples.
//
// A line is the sequence of its pieces: `root;`, `caller;`, `leaf`. The pieces are sorted once; their ranks,
// big-endian, compare by memcmp as the lines themselves would: no name has the separator in it, and a piece
// without one ends its line.
#include <endian.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "profile/functions.hpp"
#include "profile/profile.hpp"

namespace clew::profile {
namespace {

constexpr char kSeparator = ';';

// The separator cannot stand in a name.
std::string without_separator(std::string name) {
  std::replace(name.begin(), name.end(), kSeparator, ':');
  return name;
}

/// The pieces of lines: a name with the separator, and one without for the end of a line.
class Pieces {
 public:
  explicit Pieces(std::vector<std::string> names) : sorted_(std::move(names)), ranks_(2 * sorted_.size()) {
    const size_t count = sorted_.size();
    for (size_t i = 0; i < count; ++i) sorted_.push_back(sorted_[i] + kSeparator);
    std::vector<uint32_t> order(sorted_.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::sort(order, {}, [&](uint32_t i) -> const std::string& { return sorted_[i]; });
    std::vector<std::string> sorted;
    sorted.reserve(order.size());
    for (const uint32_t i : order) {
      if (sorted.empty() || sorted.back() != sorted_[i]) sorted.push_back(sorted_[i]);
      ranks_[i] = htobe32(static_cast<uint32_t>(sorted.size() - 1));
    }
    sorted_ = std::move(sorted);
  }
  uint32_t last(size_t name) const { return ranks_[name]; }
  uint32_t inner(size_t name) const { return ranks_[ranks_.size() / 2 + name]; }
  const std::string& text(uint32_t rank) const { return sorted_[be32toh(rank)]; }

 private:
  std::vector<std::string> sorted_;
  std::vector<uint32_t> ranks_;
};

struct Line {
  size_t first, count;  // its ranks among those of all lines
  uint64_t samples;
};

class Lines {
 public:
  explicit Lines(const Pieces& pieces) : pieces_(pieces) {}

  void add(const Functions& functions, const std::vector<uint32_t>& stack, uint64_t samples) {
    const size_t first = ranks_.size();
    uint32_t leaf = 0;
    for (auto location = stack.rbegin(); location != stack.rend(); ++location) {
      const std::span<const uint32_t> inlined = functions.at(*location);
      for (auto function = inlined.rbegin(); function != inlined.rend(); ++function)
        ranks_.push_back(pieces_.inner(leaf = *function));
    }
    ranks_.back() = pieces_.last(leaf);
    lines_.push_back({first, ranks_.size() - first, samples});
  }
  void add(size_t name, uint64_t samples) {
    lines_.push_back({ranks_.size(), 1, samples});
    ranks_.push_back(pieces_.last(name));
  }

  std::string text() {
    std::ranges::sort(lines_, [&](const Line& a, const Line& b) { return bytes(a) < bytes(b); });
    std::string text;
    for (auto line = lines_.begin(); line != lines_.end();) {
      const Line& equal = *line;
      uint64_t samples = 0;
      for (; line != lines_.end() && bytes(*line) == bytes(equal); ++line) samples += line->samples;
      for (size_t i = equal.first; i < equal.first + equal.count; ++i) text += pieces_.text(ranks_[i]);
      text += ' ';
      text += std::to_string(samples);
      text += '\n';
    }
    return text;
  }

 private:
  std::string_view bytes(const Line& line) const {
    return {reinterpret_cast<const char*>(ranks_.data() + line.first), line.count * sizeof(uint32_t)};
  }

  const Pieces& pieces_;
  std::vector<uint32_t> ranks_;  // of all lines, one after the other
  std::vector<Line> lines_;
};

}  // namespace

std::string folded(const Profile& profile) {
  std::vector<uint64_t> by_stack(profile.stacks.size());
  std::map<clew_end, uint64_t> without_frames;
  for (const ReadSample& sample : profile.samples)
    (profile.stacks[sample.stack].empty() ? without_frames[sample.end] : by_stack[sample.stack]) +=
        profile.off_cpu ? sample.weight_ns / 1000 : 1;

  const Functions functions(profile);
  std::vector<std::string> names;
  names.reserve(functions.size() + without_frames.size());
  for (uint32_t i = 0; i < functions.size(); ++i) names.push_back(without_separator(functions.name(i)));
  for (const auto& [end, count] : without_frames) names.push_back(no_frames_name(end));
  const Pieces pieces(std::move(names));

  Lines lines(pieces);
  for (size_t i = 0; i < profile.stacks.size(); ++i)
    if (by_stack[i] != 0) lines.add(functions, profile.stacks[i], by_stack[i]);
  size_t name = functions.size();
  for (const auto& [end, count] : without_frames) lines.add(name++, count);
  return lines.text();
}

}  // namespace clew::profile
