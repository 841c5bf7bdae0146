// The compact unwind table of one module: compile, look up, cache. Its byte layout is core/table.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "clew/result.hpp"
#include "core/rule.h"
#include "elf/image.hpp"

struct clew_table_header;

namespace clew::table {

/// What compiling found; also what `clew table stats` prints.
struct Report {
  uint64_t eh_frame_bytes = 0;
  uint64_t debug_frame_bytes = 0;
  uint64_t functions = 0;  // FDEs that the table has rows of
  uint64_t analysed = 0;   // pieces of code that no FDE describes and instruction analysis gave rows for
  uint64_t rows = 0;       // of the FDEs, equal neighbours counted once
  uint64_t rules = 0;      // distinct ones
  uint64_t table_bytes = 0;
  uint64_t build_ns = 0;
  bool from_cache = false;
  std::vector<std::pair<std::string, uint64_t>> defects;  // what was left out, by kind
};

/// A read-only table, in memory or mapped from the cache. Immutable, so safe for any number of threads.
class Table {
 public:
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;
  ~Table();

  /// The rule at a virtual address of the file; CLEW_CFA_NONE where there is none.
  clew_rule lookup(uint64_t vaddr) const;
  const clew_table_header* header() const;
  std::span<const std::byte> bytes() const { return bytes_; }

  /// Checks layout and checksum; the bytes are taken over.
  static Result<std::shared_ptr<const Table>> from_bytes(std::vector<std::byte> bytes);
  /// Maps a cache file. Only a file that is this user's or root's, and that nobody else can write, is
  /// accepted.
  static Result<std::shared_ptr<const Table>> map(const std::string& path);

 private:
  Table() = default;
  std::vector<std::byte> owned_;
  void* mapping_ = nullptr;
  std::span<const std::byte> bytes_;
};

/// Whether the bytes are a table that a look-up can trust: every offset and count lies inside, the checksum
/// holds. The error says what is wrong.
Result<bool> check(std::span<const std::byte> bytes);

/// The checksum of a table's bytes, the header's checksum field taken as 0.
uint64_t checksum(std::span<const std::byte> bytes);

/// Compiles the file's tables, with what they leave out filled in by instruction analysis. An image without
/// any gives a table of what the analysis knows. Fails only for another architecture or text that spans more
/// than 4 GiB. `debug` is the file's separate debug file: its .debug_frame describes what the file's own
/// tables do not.
Result<std::shared_ptr<const Table>> compile(elf::Image& image, Report* report = nullptr,
                                             elf::Image* debug = nullptr);

/// From the cache by build-id, else compiled and stored (a failure to store is no error: the next one tries
/// again). Directory: $CLEW_CACHE_DIR, else $XDG_CACHE_HOME/clew, else ~/.cache/clew; without any of them
/// there is no cache. A table made with a debug file is kept beside the one made without.
Result<std::shared_ptr<const Table>> load_or_compile(elf::Image& image, Report* report = nullptr,
                                                     elf::Image* debug = nullptr);

/// Where tables are kept, nothing where no directory is known.
std::optional<std::string> cache_directory();
/// Writes a file so that a reader sees the whole of it or none; makes the directories above it, for this user
/// alone. False, and nothing left behind, where it cannot, as where the file would pass the process's limit.
bool store_file(const std::string& path, std::span<const std::byte> bytes, mode_t mode);

/// A hash of the sections that a table of this file is compiled from.
uint64_t source_hash(elf::Image& image, elf::Image* debug = nullptr);

/// One row, in address order: for `clew table dump` and tests.
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
