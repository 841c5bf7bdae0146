// What is mapped where in one process, over time: fed from /proc/PID/maps or from perf's mmap2 events.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>

#include "elf/image.hpp"
#include "process/process.hpp"
#include "table/table.hpp"

namespace clew::process {

/// One file (or in-memory image) that code runs from, shared by all processes that map it. Opened when its mapping is
/// first seen, so that a file deleted or replaced later still resolves.
struct Module {
  std::string path;
  std::string build_id;  // hex, may be empty
  std::string why_no_table;  // one line where table is null
  std::unique_ptr<elf::Image> image;  // null where nothing could be opened
  std::shared_ptr<const table::Table> table;
  std::string root;  // "" or "/proc/PID/root": where its path is to be read
};

/// One mapping of a process.
struct Mapping {
  uint64_t start = 0;
  uint64_t end = 0;
  uint64_t offset = 0;
  uint64_t bias = 0;  // address in memory minus virtual address in the file
  bool executable = false;
  std::string path;  // as reported
  std::shared_ptr<Module> module;  // null for anonymous memory
};

/// Modules by device, inode, size, mtime and build-id; makes each once. Not thread-safe.
class ModuleCache {
 public:
  std::shared_ptr<Module> for_mapping(pid_t pid, std::span<const MapsEntry> maps, const MapsEntry& entry);

 private:
  std::unordered_map<std::string, std::shared_ptr<Module>> by_key_;
};

/// Mappings ordered by start; a new one replaces what it overlaps, as mmap does.
class AddressSpace {
 public:
  void map(Mapping mapping);
  const Mapping* find(uint64_t address) const;
  void clear() { by_start_.clear(); }
  const std::map<uint64_t, Mapping>& mappings() const { return by_start_; }
  /// All mappings of a running process, modules opened (tables compiled) through `modules`.
  static Result<AddressSpace> of_process(pid_t pid, ModuleCache& modules);

 private:
  std::map<uint64_t, Mapping> by_start_;
};

}  // namespace clew::process
