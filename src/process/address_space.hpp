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
#include "unwind/remote.hpp"

namespace clew::process {

/// One file (or in-memory image) that code runs from, shared by all processes that map it. Opened when its
/// mapping is first seen, so that a file deleted or replaced later still resolves.
struct Module {
  std::string path;
  std::string build_id;               // hex, may be empty
  std::string why_no_table;           // one line where table is null
  std::unique_ptr<elf::Image> image;  // null where nothing could be opened
  std::shared_ptr<const table::Table> table;
  std::string root;         // "" or "/proc/PID/root": where its path is to be read
  uint64_t generation = 0;  // of its inode, 0 where the filesystem does not tell
};

/// One mapping of a process.
struct Mapping {
  uint64_t start = 0;
  uint64_t end = 0;
  uint64_t offset = 0;
  // Address in memory minus virtual address in the file; without an image, minus the offset in the file; 0
  // for anonymous memory.
  uint64_t bias = 0;
  bool executable = false;
  std::string path;                // as reported
  std::shared_ptr<Module> module;  // null for anonymous memory
};

/// Modules by device, inode, size and mtime; makes each once. A module that is known costs one stat. Not
/// thread-safe.
class ModuleCache {
 public:
  /// The module behind an executable mapping; null for anonymous memory. A file that cannot be opened gives a
  /// module without an image, whose why_no_table says why. `maps` may be empty: it is read if it is needed.
  std::shared_ptr<Module> for_mapping(pid_t pid, std::span<const MapsEntry> maps, const MapsEntry& entry);

  /// The module of an ELF file by its path, or by its contents; an error where it is none or has no table.
  Result<std::shared_ptr<Module>> for_file(const std::string& path);
  Result<std::shared_ptr<Module>> for_bytes(std::vector<std::byte> bytes);

  struct Counts {
    uint64_t opened = 0;       // modules made from a file or the vDSO
    uint64_t shared = 0;       // mappings of a module that was known
    uint64_t from_memory = 0;  // modules made from a process's memory
    uint64_t failed = 0;       // mappings whose file could not be had
  };
  const Counts& counts() const { return counts_; }
  /// Why modules have no image or no table: one line each, with how often. Bounded.
  const std::map<std::string, uint64_t>& failures() const { return failures_; }

 private:
  std::shared_ptr<Module> known(const std::string& key, const MapsEntry& entry);
  std::shared_ptr<Module> vdso(pid_t pid, const MapsEntry& entry);
  std::shared_ptr<Module> by_bytes(const std::string& name, std::vector<std::byte> bytes,
                                   const MapsEntry& entry);
  std::shared_ptr<Module> from_memory(pid_t pid, std::span<const MapsEntry> maps, const MapsEntry& entry,
                                      const std::string& why_not_file);
  std::shared_ptr<Module> without_image(const MapsEntry& entry, std::string why);
  void describe(Module& module, Result<elf::Image> image);
  void note_failure(const std::string& line);

  std::unordered_map<std::string, std::shared_ptr<Module>> by_key_;
  std::map<std::string, uint64_t> failures_;
  Counts counts_;
};

/// Mappings ordered by start; a new one replaces what it overlaps, as mmap does.
class AddressSpace {
 public:
  void map(Mapping mapping);
  void unmap(uint64_t start, uint64_t end);
  const Mapping* find(uint64_t address) const;
  void clear() { by_start_.clear(); }
  const std::map<uint64_t, Mapping>& mappings() const { return by_start_; }
  /// All mappings of a running process, modules opened (tables compiled) through `modules`.
  /// Only executable mappings have modules. A process without mappings (a zombie, a kernel thread) is an
  /// error.
  static Result<AddressSpace> of_process(pid_t pid, ModuleCache& modules);

 private:
  std::map<uint64_t, Mapping> by_start_;
};

/// The mapping at an address as the walk wants it.
bool find_code(const AddressSpace& space, uint64_t address, unwind::Code& code);

/// Address in memory minus virtual address in the file, by the mapping's offset and its module's segments.
uint64_t bias_of(const Mapping& mapping);

/// The mapping that a line of maps describes, its module opened if it is executable.
Mapping mapping_from_maps(pid_t pid, std::span<const MapsEntry> maps, const MapsEntry& entry,
                          ModuleCache& modules);

/// The mapping that a PERF_RECORD_MMAP2 describes. The file is opened now, since it may be gone or replaced
/// soon. `path` is the record's own; `protection` PROT_*.
Mapping mapping_from_event(pid_t pid, uint64_t start, uint64_t length, uint64_t offset, uint32_t device_major,
                           uint32_t device_minor, uint64_t inode, uint64_t inode_generation,
                           uint32_t protection, std::string_view path, ModuleCache& modules);

}  // namespace clew::process
