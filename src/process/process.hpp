// A process as /proc shows it: mappings, threads, files behind mappings (through namespaces), memory.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "clew/result.hpp"
#include "elf/image.hpp"

namespace clew::process {

struct MapsEntry {
  uint64_t start = 0;
  uint64_t end = 0;
  uint64_t offset = 0;  // in the file, bytes
  uint32_t device_major = 0;
  uint32_t device_minor = 0;
  uint64_t inode = 0;
  uint64_t generation =
      0;  // of the inode, where it is known (perf's events tell it); tells reused numbers apart
  bool readable = false, writable = false, executable = false, shared = false;
  bool deleted = false;  // " (deleted)" stripped from path
  std::string
      path;  // as in maps, octal escapes undone; "" anonymous, "[vdso]", "[stack]" and such as they are
};

/// One line of /proc/PID/maps; nothing where it is not one. Of octal escapes there is only "\012" (the kernel
/// escapes newlines and nothing else).
std::optional<MapsEntry> parse_maps_line(std::string_view line);
/// Every mapping in address order; empty for a zombie or a kernel thread.
Result<std::vector<MapsEntry>> read_maps(pid_t pid);

/// A file descriptor that closes itself.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept;
  ~UniqueFd();
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// Takes as many descriptors as the hard limit allows; false where it has them, or may not.
bool raise_descriptor_limit();

/// Opens the very file that is mapped, whatever lies at its path now: by path through /proc/PID/root,
/// accepted only if device and inode agree; else /proc/PID/map_files/START-END (root); else /proc/PID/exe
/// where that is it. Where the filesystem reports another device than maps does (btrfs, overlayfs), the inode
/// and the mapped bytes must agree. The error says which of them failed and why.
Result<UniqueFd> open_mapped_file(pid_t pid, const MapsEntry& entry);

/// The ELF image behind a mapping: open_mapped_file, else what the process's own memory holds (deleted files
/// without privileges, memfd, the vDSO). `lowest` is the first mapping of the same file (offset 0 in most).
Result<elf::Image> image_of_mapping(pid_t pid, std::span<const MapsEntry> maps, const MapsEntry& entry);

/// As image_of_mapping, but from the process's memory alone: what is mapped of the file around `entry`.
Result<elf::Image> image_from_memory(pid_t pid, std::span<const MapsEntry> maps, const MapsEntry& entry);

/// Where a mapped file can be reached by path, by stat alone (nothing is opened).
struct LocatedFile {
  std::string path;  // opens in this process
  std::string root;  // "" or "/proc/PID/root": what was put before the path
  uint64_t device = 0, inode = 0, size = 0, mtime_ns = 0;
  bool device_differs = false;  // accepted by inode on a filesystem that reports several devices
};
/// The error is a reason in a few words, not a line.
Result<LocatedFile> locate_mapped_file(pid_t pid, const MapsEntry& entry);

/// True for a mapping that a file stands behind: not for anonymous memory, whatever its name, nor for
/// devices.
bool is_file_mapping(const MapsEntry& entry);

/// Memory of a process: process_vm_readv, else /proc/PID/mem. Returns how many bytes from the start could be
/// read.
size_t read_memory(pid_t pid, uint64_t address, std::span<std::byte> out);

std::vector<pid_t> threads(pid_t pid);
std::string thread_name(pid_t pid, pid_t tid);  // comm, "" where it is gone

/// A separate debug file for an image: /usr/lib/debug/.build-id/xx/yyyy.debug, then .gnu_debuglink beside the
/// file, in its .debug/ and below /usr/lib/debug (CRC checked), each under `root` ("" or /proc/PID/root).
/// Nothing where none is.
std::optional<std::string> find_debug_file(elf::Image& image, const std::string& path,
                                           const std::string& root);

/// Its separate debug file where that has a .debug_frame, which the image itself lost: what a table is made
/// from.
std::optional<elf::Image> open_debug_frame(elf::Image& image, const std::string& path,
                                           const std::string& root);

}  // namespace clew::process
