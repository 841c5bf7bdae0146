// Where the kernel's own stacks begin: the code that enters it from a program, and new tasks' first function.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace clew::collect::perf {

class KernelRoots {
 public:
  /// From a list of symbols in the form of /proc/kallsyms: the entry text, and the functions that begin a
  /// task or enter the kernel elsewhere (FRED, Xen).
  static KernelRoots load(const std::string& path = "/proc/kallsyms");

  /// Whether anything is known: not where the kernel hides its addresses.
  bool known() const { return !ranges_.empty(); }
  bool contains(uint64_t address) const;
  /// Whether an address lies in the function in which a task leaves its CPU and comes back to it.
  bool in_schedule(uint64_t address) const {
    return address >= schedule_.first && address < schedule_.second;
  }

 private:
  using Range = std::pair<uint64_t, uint64_t>;  // first, and behind the last
  std::vector<Range> ranges_;
  Range schedule_ = {};
};

}  // namespace clew::collect::perf
