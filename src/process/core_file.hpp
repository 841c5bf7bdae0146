// ELF core files: the registers of every thread and the memory of the process that left them.
//
// Sources of the format: System V ABI, chapters 4 and 5 (ET_CORE, PT_NOTE, PT_LOAD); Linux fs/binfmt_elf.c
// and include/uapi/linux/elfcore.h (notes); arch/x86/include/asm/user_64.h (order of the registers).
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "clew/result.hpp"
#include "process/address_space.hpp"
#include "process/process.hpp"
#include "unwind/remote.hpp"

namespace clew::process {

/// Whether a thread or process is where clone(2) returns in it: `call` is orig_rax, `result` rax. On a new
/// stack nothing has called it, so that it is its own root there, although its code is that of a caller's
/// function.
bool just_begun(uint64_t call, uint64_t result);

struct CoreThread {
  pid_t tid = 0;
  int signal = 0;  // that the thread died of, 0 where none
  unwind::Registers registers;
  bool just_begun = false;  // see just_begun()
};

/// A PT_LOAD: memory from `start` to `end`, of which the file holds the first `file_size` bytes.
struct CoreSegment {
  uint64_t start = 0;
  uint64_t end = 0;
  uint64_t offset = 0;     // in the core file
  uint64_t file_size = 0;  // what is really there: a truncated core has less than its headers say
  bool readable = false, writable = false, executable = false;
};

/// One line of NT_FILE: a mapped file.
struct CoreMappedFile {
  uint64_t start = 0;
  uint64_t end = 0;
  uint64_t offset = 0;  // in the mapped file, bytes
  std::string path;
};

/// A core file, read with pread; every field is checked. Movable; reading is thread-safe.
class CoreFile {
 public:
  static Result<CoreFile> open(const std::string& path);

  const std::string& path() const { return path_; }
  /// In the order of the file: the thread that died first, where the kernel wrote it.
  std::span<const CoreThread> threads() const { return threads_; }
  /// Sorted by start, without overlaps.
  std::span<const CoreSegment> segments() const { return segments_; }
  std::span<const CoreMappedFile> mapped_files() const { return mapped_files_; }
  /// The value of an AT_* entry.
  std::optional<uint64_t> auxiliary(uint64_t type) const;
  /// The program's name (comm, up to 15 characters), "" where the core has none.
  const std::string& command() const { return command_; }
  /// Bytes of PT_LOAD contents that the headers promise and the file does not hold.
  uint64_t missing_bytes() const { return missing_bytes_; }

  const CoreSegment* segment_at(uint64_t address) const;
  /// Memory as the core holds it; returns how many bytes from the start could be read.
  size_t read_memory(uint64_t address, std::span<std::byte> out) const;

 private:
  CoreFile() = default;
  Result<bool> read_headers();
  Result<bool> read_notes(uint64_t offset, uint64_t size);
  void read_mapped_files(std::span<const std::byte> note);
  bool read_at(uint64_t offset, void* out, size_t size) const;

  std::string path_;
  UniqueFd fd_;
  uint64_t file_bytes_ = 0;
  std::vector<CoreThread> threads_;
  std::vector<CoreSegment> segments_;
  std::vector<CoreMappedFile> mapped_files_;
  std::map<uint64_t, uint64_t> auxiliary_;
  std::string command_;
  uint64_t missing_bytes_ = 0;
  uint64_t note_bytes_left_ = 0;
};

/// What was wrong with one of a core's files, or (without a path) with the core. One line.
struct CoreNote {
  std::string path;  // as mapped
  std::string text;
};

/// What was mapped where in a core, modules opened and their tables compiled.
struct CoreSpace {
  AddressSpace space;
  std::vector<CoreNote> notes;
};

/// Finds the files of a core: by NT_FILE, else by the link map that AT_PHDR leads to. A file is looked for at
/// its own path, then beside `executable` and beside the core, and taken only if its build-id (without one:
/// its headers) is that of the core's memory, as far as the core holds it. What is not found is read from the
/// core's memory. The error says that `executable` is not the program of the core.
Result<CoreSpace> map_core(const CoreFile& core, const std::string& executable);

/// The core's memory, and behind what it does not hold the contents of the mapped files. Both must outlive
/// it.
class CoreTarget : public unwind::Target {
 public:
  CoreTarget(const CoreFile& core, const AddressSpace& space) : core_(core), space_(space) {}
  bool read(uint64_t address, void* out, size_t size) override;
  bool find(uint64_t address, unwind::Code& code) override;

 private:
  const CoreFile& core_;
  const AddressSpace& space_;
};

}  // namespace clew::process
