// The machine's BPF programs, as they were when samples were taken in them: functions, files, lines.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace clew::collect::bpf {

/// A function of a BPF program, as the kernel compiled it. Names are the program's: nobody vouches for them.
struct Function {
  uint64_t start = 0, end = 0;  // addresses in the kernel
  std::string name;
  std::string program;  // "" where the function is the program itself
  std::string tag;      // of the program, hex
  struct Line {
    uint64_t address;  // it holds from here on
    std::string file;
    uint32_t line;
  };
  std::vector<Line> lines;  // by address
  uint32_t id = 0;          // of the program
  uint64_t from_ns = 0;     // CLOCK_MONOTONIC
  uint64_t until_ns = UINT64_MAX;
};

/// Not thread-safe. Where the kernel does not tell (privileges, no BTF), there is less here, and kallsyms'
/// names are what is left.
class Functions {
 public:
  /// Asks for all programs that are loaded now; each counts as there from the beginning.
  void load_all();
  /// A program was loaded at that time. To be called soon: what is gone again cannot be asked for.
  void loaded(uint32_t id, uint64_t time_ns);
  /// It was unloaded: its memory may be another's from now on.
  void unloaded(uint32_t id, uint64_t time_ns);
  /// The function that was at an address at a time; null where none is known. Valid as long as this object
  /// is.
  const Function* find(uint64_t address, uint64_t time_ns) const;

 private:
  void ask(uint32_t id, uint64_t time_ns);

  std::set<uint32_t> known_;  // programs asked for and not unloaded since
  std::deque<Function> functions_;
  std::multimap<uint64_t, Function*> by_start_;
};

}  // namespace clew::collect::bpf
