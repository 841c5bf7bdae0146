// Addresses to functions, files, lines and inlined functions.
//
// Names come from files that nobody vouches for. Reading them (LLVM's DWARF reader and demangler) therefore
// happens in a child process with limits on memory and time: a file that crashes or stalls the reader costs
// its own names.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
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
  std::string path;           // a path that opens in this process (may be /proc/self/fd/N)
  std::string debug_path;     // a separate debug file, "" where none is
  std::string build_id = {};  // hex; "" where none is
  std::string name = {};      // for functions without one: "[name+0xSTART]"; "" leaves them unnamed
};

/// How much CPU time the child may spend without a chunk of answers before it is taken for stalled.
struct Limits {
  unsigned dwarf_cpu_seconds = 20;  // opening a debug file of 1 GB takes about 5
  unsigned symbols_cpu_seconds = 5;
};

/// Symbolizes batches, one file at a time. DWARF where there is any, else symbol tables (.symtab, .dynsym,
/// .gnu_debugdata); code without a symbol goes by where its function starts, as unwind entries say. Not
/// thread-safe.
///
/// The first batch forks the child that reads the files (see worker.hpp); it stays until the Symbolizer goes.
class Symbolizer {
 public:
  explicit Symbolizer(const Limits& limits = {});
  ~Symbolizer();
  Symbolizer(const Symbolizer&) = delete;
  Symbolizer& operator=(const Symbolizer&) = delete;

  /// `addresses` are virtual addresses in the file, of instructions (for a return address: minus 1); any
  /// order, quickest when sorted. One answer an address; names are sanitize()d.
  std::vector<Lines> symbolize(const File& file, std::span<const uint64_t> addresses);

  /// CPU time that the child has used so far; not part of this process's own (getrusage's RUSAGE_SELF).
  uint64_t child_cpu_ns() const;

  /// Batches that the child did not survive, or did not finish in time: their files were read with less (no
  /// DWARF, or nothing at all).
  uint64_t failures() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The readable form of a mangled C++ or Rust name (legacy Rust hashes dropped); the name itself where it is
/// neither. A hostile name can make this slow and large: names from files go through a Symbolizer.
std::string demangle(const std::string& name);

/// A name that is safe to print: control characters (C0, DEL, C1) become '?', invalid UTF-8 becomes U+FFFD,
/// and what exceeds kMaxNameBytes is cut and ends in "...". Valid UTF-8 is kept.
std::string sanitize(std::string_view name);
constexpr size_t kMaxNameBytes = 4096;

/// Kernel symbols from /proc/kallsyms (empty where it hides addresses).
class KernelSymbols {
 public:
  static KernelSymbols load(const std::string& path = "/proc/kallsyms");
  /// The function at a kernel address and, for a module or BPF program, its name in brackets; "" where
  /// unknown.
  std::string name(uint64_t address) const;
  bool empty() const { return addresses_.empty(); }
  /// Whether the address lies in code that came with the kernel. Modules and BPF programs come and go: their
  /// names are those of when the symbols were loaded.
  bool is_permanent(uint64_t address) const { return address >= text_start_ && address < text_end_; }

 private:
  uint64_t text_start_ = 0, text_end_ = 0;  // _stext, _etext
  std::vector<uint64_t> addresses_;
  std::vector<std::string> names_;
};

}  // namespace clew::symbolize
