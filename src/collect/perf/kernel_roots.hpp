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

 private:
  std::vector<std::pair<uint64_t, uint64_t>> ranges_;  // first, and behind the last
};

}  // namespace clew::collect::perf
