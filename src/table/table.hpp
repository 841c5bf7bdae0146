// The compact unwind table of one module: compile, look up, cache. Its byte layout is core/table.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "clew/result.hpp"
#include "core/rule.h"
#include "elf/image.hpp"

namespace clew::table {

/// What compiling found; also what `clew table stats` prints.
struct Report {
  uint64_t eh_frame_bytes = 0;
  uint64_t debug_frame_bytes = 0;
  uint64_t functions = 0;
  uint64_t rows = 0;
  uint64_t rules = 0;
  uint64_t table_bytes = 0;
  uint64_t build_ns = 0;
  std::vector<std::pair<std::string, uint64_t>> defects;  // what was left out, by kind
};

/// A read-only table, in memory or mapped from the cache. Immutable, so safe for any number of threads.
class Table {
 public:
  Table(Table&&) = delete;
  ~Table();

  /// The rule at a virtual address of the file; CLEW_CFA_NONE where there is none.
  clew_rule lookup(uint64_t vaddr) const;
  std::span<const std::byte> bytes() const { return bytes_; }

  /// Checks layout and checksum; the bytes are taken over.
  static Result<std::shared_ptr<const Table>> from_bytes(std::vector<std::byte> bytes);
  static Result<std::shared_ptr<const Table>> map(const std::string& path);

 private:
  Table() = default;
  std::vector<std::byte> owned_;
  void* mapping_ = nullptr;
  std::span<const std::byte> bytes_;
};

Result<std::shared_ptr<const Table>> compile(elf::Image& image, Report* report = nullptr);

/// From the cache by build-id, else compiled and stored (atomically; failures to store are ignored).
/// Directory: $CLEW_CACHE_DIR, else $XDG_CACHE_HOME/clew, else ~/.cache/clew; none: no cache.
Result<std::shared_ptr<const Table>> load_or_compile(elf::Image& image, Report* report = nullptr);

/// Every row, in address order: for `clew table dump` and tests.
struct DumpRow {
  uint64_t address;
  clew_rule rule;
};
std::vector<DumpRow> dump(const Table& table);

/// A rule in readelf's notation: {cfa, fp, ra}, see DESIGN "The command line".
struct RuleText {
  std::string cfa, fp, ra;
};
RuleText describe(const Table& table, clew_rule rule);

}  // namespace clew::table
