// Addresses to functions, files, lines and inlined functions.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace clew::symbolize {

struct Line {
  std::string function;  // demangled; "" where unknown
  std::string file;      // "" where unknown
  uint32_t line = 0;     // 0 where unknown
};

/// What an address resolves to: the innermost inlined function first, the function that holds the code last.
/// Empty where nothing is known.
using Lines = std::vector<Line>;

/// The file to symbolize from.
struct File {
  std::string path;        // a path that opens in this process (may be /proc/self/fd/N)
  std::string debug_path;  // a separate debug file, "" where none is
  std::string build_id;    // hex; "" where none is
};

/// Symbolizes batches, one file at a time. DWARF where there is any, else symbol tables (.symtab, .dynsym,
/// .gnu_debugdata). Not thread-safe.
class Symbolizer {
 public:
  Symbolizer();
  ~Symbolizer();
  /// `addresses` are virtual addresses in the file, of instructions (for a return address: minus 1).
  std::vector<Lines> symbolize(const File& file, std::span<const uint64_t> addresses);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The readable form of a mangled C++ or Rust name (legacy Rust hashes dropped); the name itself where it is neither.
std::string demangle(const std::string& name);

/// Kernel symbols from /proc/kallsyms (empty where it hides addresses).
class KernelSymbols {
 public:
  static KernelSymbols load(const std::string& path = "/proc/kallsyms");
  /// The function at a kernel address and, for a module or BPF program, its name in brackets; "" where unknown.
  std::string name(uint64_t address) const;
  bool empty() const { return addresses_.empty(); }

 private:
  std::vector<uint64_t> addresses_;
  std::vector<std::string> names_;
};

}  // namespace clew::symbolize
