// The functions of a profile as every text output names them, and how hot they are.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "profile/profile.hpp"

namespace clew::profile {

/// What a location is called, printable: a name for each of its functions, inlined ones included. Where the
/// function is unknown: `[module+0xoffset]`, `[kernel]`, or `[unknown]`. Equal names have one number.
class Functions {
 public:
  explicit Functions(const Profile& profile);
  /// Numbers of names, innermost inlined function first; never empty but for location 0.
  std::span<const uint32_t> at(uint32_t location) const {
    return {numbers_.data() + first_[location], first_[location + 1] - first_[location]};
  }
  const std::string& name(uint32_t number) const { return names_[number]; }
  size_t size() const { return names_.size(); }

 private:
  std::vector<std::string> names_;
  std::vector<uint32_t> numbers_;  // of all locations, one after the other
  std::vector<size_t> first_;      // by location: into numbers_
};

/// What stands for the frames of a sample that has none.
std::string no_frames_name(clew_end end);

struct Hot {
  std::string name;
  uint64_t self_ns = 0, total_ns = 0;  // CPU time in it, and in it or what it called (recursion counts once)
};
struct Hottest {
  std::vector<Hot> functions;  // by self time, then total time, then name
  uint64_t all_ns = 0;
};
/// Where no sample has a weight, each counts as 1.
Hottest hottest(const Profile& profile);

}  // namespace clew::profile
