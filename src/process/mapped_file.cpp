// The file behind a mapping: the one that is mapped, not the one that has its name now.
#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/auxv.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "process/process.hpp"

namespace clew::process {

bool raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max) return false;
  limit.rlim_cur = limit.rlim_max;
  return setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

UniqueFd& UniqueFd::operator=(UniqueFd&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) close(fd_);
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}
UniqueFd::~UniqueFd() {
  if (fd_ >= 0) close(fd_);
}

namespace {

constexpr std::string_view kDeleted = " (deleted)";

std::string proc(pid_t pid, const std::string& what) { return "/proc/" + std::to_string(pid) + "/" + what; }

enum class Match { kNo, kInode, kExact };

/// maps shows the superblock's device; stat shows that of the btrfs subvolume or of the overlay.
bool reports_other_devices(const std::string& path) {
  struct statfs filesystem{};
  if (statfs(path.c_str(), &filesystem) != 0) return false;
  constexpr auto kBcachefs = 0xca451a4eL;
  return filesystem.f_type == BTRFS_SUPER_MAGIC || filesystem.f_type == OVERLAYFS_SUPER_MAGIC ||
         filesystem.f_type == kBcachefs;
}

Match match(const MapsEntry& entry, const struct stat& status, const std::string& path) {
  if (!S_ISREG(status.st_mode) || entry.inode == 0 || status.st_ino != entry.inode) return Match::kNo;
  if (status.st_dev == makedev(entry.device_major, entry.device_minor)) return Match::kExact;
  return reports_other_devices(path) ? Match::kInode : Match::kNo;
}

UniqueFd open_for_reading(const std::string& path) {
  // Not blocking: between stat and open it may have become a FIFO.
  constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  int fd = open(path.c_str(), kFlags);
  // Each file of a recording stays open.
  if (fd < 0 && errno == EMFILE && raise_descriptor_limit()) fd = open(path.c_str(), kFlags);
  return UniqueFd(fd);
}

/// False where the mapping's first bytes can be read and are not the file's (but for a few that were
/// patched).
bool bytes_agree(pid_t pid, const MapsEntry& entry, int fd) {
  constexpr size_t kBytes = 4096, kPatched = 256;
  std::array<std::byte, kBytes> in_memory, in_file;
  const size_t got = read_memory(pid, entry.start, in_memory);
  const ssize_t read = pread(fd, in_file.data(), got, static_cast<off_t>(entry.offset));
  size_t different = 0;
  for (size_t i = 0; read > 0 && i < static_cast<size_t>(read); ++i)
    different += in_memory[i] != in_file[i] ? 1 : 0;
  return different <= kPatched;
}

/// Opens `path` if it is the mapped file; the reason why not goes to `why`.
UniqueFd open_if_it_is(pid_t pid, const MapsEntry& entry, const std::string& path, const char* way,
                       std::string& why) {
  const auto because = [&](const char* reason) {
    if (!why.empty()) why += "; ";
    why += std::string(way) + ": " + reason;
    return UniqueFd();
  };
  // By stat first: opening a device may do something.
  struct stat status{};
  if (stat(path.c_str(), &status) != 0) return because(std::strerror(errno));
  if (match(entry, status, path) == Match::kNo) return because("another file");
  UniqueFd fd = open_for_reading(path);
  if (!fd) return because(std::strerror(errno));
  if (fstat(fd.get(), &status) != 0) return because(std::strerror(errno));
  const Match matched = match(entry, status, path);
  if (matched == Match::kNo || (matched == Match::kInode && !bytes_agree(pid, entry, fd.get()))) {
    return because("another file");
  }
  return fd;
}

/// A deleted file or a memfd may still be open in the process.
UniqueFd open_among_descriptors(pid_t pid, const MapsEntry& entry) {
  constexpr unsigned kMaxDescriptors = 1024;
  UniqueFd found;
  DIR* directory = opendir(proc(pid, "fd").c_str());
  if (directory == nullptr) return found;
  unsigned left = kMaxDescriptors;
  while (const dirent* item = readdir(directory)) {
    if (item->d_name[0] == '.') continue;
    if (left-- == 0) break;
    const std::string path = proc(pid, "fd/" + std::string(item->d_name));
    struct stat status{};
    if (stat(path.c_str(), &status) != 0 || match(entry, status, path) != Match::kExact) continue;
    found = open_for_reading(path);
    if (found) break;
  }
  closedir(directory);
  return found;
}

LocatedFile located(const std::string& path, const std::string& root, const struct stat& status,
                    Match matched) {
  LocatedFile file;
  file.path = path;
  file.root = root;
  file.device = status.st_dev;
  file.inode = status.st_ino;
  file.size = static_cast<uint64_t>(status.st_size);
  file.mtime_ns = static_cast<uint64_t>(status.st_mtim.tv_sec) * 1'000'000'000 +
                  static_cast<uint64_t>(status.st_mtim.tv_nsec);
  file.device_differs = matched == Match::kInode;
  return file;
}

}  // namespace

bool is_file_mapping(const MapsEntry& entry) {
  const std::string_view path = entry.path;
  if (!path.starts_with('/') || entry.inode == 0) return false;
  for (const std::string_view anonymous : {"//anon", "/dev/", "/SYSV", "/anon_hugepage", "/[aio]"}) {
    // A file of the root directory may be called so, but would not be on the kernel's internal mounts.
    if (path.starts_with(anonymous) && (anonymous == "/dev/" || entry.deleted || anonymous == "//anon")) {
      // Shared memory in /dev/shm is an ordinary file.
      return path.starts_with("/dev/shm/") || path.starts_with("/dev/hugepages/");
    }
  }
  return true;
}

Result<LocatedFile> locate_mapped_file(pid_t pid, const MapsEntry& entry) {
  if (!is_file_mapping(entry)) return Error{"not a file"};
  if (entry.path.starts_with("//")) return Error{"path not known"};
  const std::string target_root = proc(pid, "root");
  std::string why;
  std::optional<LocatedFile> by_inode;
  // The plain path first, which is cheap and still there when the process is gone. Device and inode tell
  // whether it is the file, so it does not matter in whose namespace it was found; where the device cannot
  // tell, the target's own root goes before ours.
  const auto look = [&](const std::string& path) -> std::optional<LocatedFile> {
    for (const std::string& root : {std::string(), target_root}) {
      struct stat status{};
      if (stat((root + path).c_str(), &status) != 0) {
        if (why.empty()) why = std::strerror(errno);
        continue;
      }
      const Match matched = match(entry, status, root + path);
      if (matched == Match::kExact) return located(root + path, root, status, matched);
      if (matched == Match::kNo) why = "another file";
      if (matched == Match::kInode) {
        const bool same =
            by_inode && by_inode->device == status.st_dev;  // one filesystem: the plain path will do
        if (!same) by_inode = located(root + path, root, status, matched);
      }
    }
    return std::nullopt;
  };
  if (auto found = look(entry.path)) return std::move(*found);
  // Names that only look escaped or deleted.
  if (entry.deleted) {
    if (auto found = look(entry.path + std::string(kDeleted))) return std::move(*found);
  }
  if (const size_t newline = entry.path.find('\n'); newline != std::string::npos) {
    std::string literal = entry.path;
    literal.replace(newline, 1, "\\012");
    if (auto found = look(literal)) return std::move(*found);
  }
  if (by_inode) return std::move(*by_inode);
  return Error{why};
}

Result<UniqueFd> open_mapped_file(pid_t pid, const MapsEntry& entry) {
  std::string why;
  if (auto file = locate_mapped_file(pid, entry)) {
    if (UniqueFd fd = open_if_it_is(pid, entry, file->path, "by path", why)) return fd;
  } else {
    why = "by path: " + file.error();
  }
  char range[64];
  std::snprintf(range, sizeof(range), "map_files/%llx-%llx", static_cast<unsigned long long>(entry.start),
                static_cast<unsigned long long>(entry.end));
  if (UniqueFd fd = open_if_it_is(pid, entry, proc(pid, range), "by map_files", why)) return fd;
  if (UniqueFd fd = open_if_it_is(pid, entry, proc(pid, "exe"), "as the program", why)) return fd;
  if (UniqueFd fd = open_among_descriptors(pid, entry)) return fd;
  return Error{entry.path + ": cannot open the file that process " + std::to_string(pid) + " maps (" + why +
               ")"};
}

namespace {

/// The vDSO is mapped whole, section headers and all.
Result<elf::Image> vdso_image(pid_t pid, const MapsEntry& entry) {
  constexpr uint64_t kMaxBytes = 1 << 20;
  std::vector<std::byte> bytes(std::min(entry.end - entry.start, kMaxBytes));
  bytes.resize(read_memory(pid, entry.start, bytes));
  if (bytes.empty()) {
    // Out of reach or gone: the kernel gives every 64-bit process the same one.
    const uint64_t own = getauxval(AT_SYSINFO_EHDR);
    bytes.resize(own == 0 ? 0 : std::min(entry.end - entry.start, kMaxBytes));
    bytes.resize(read_memory(getpid(), own, bytes));
  }
  return elf::Image::from_bytes(std::move(bytes), entry.path);
}

}  // namespace

Result<elf::Image> image_of_mapping(pid_t pid, std::span<const MapsEntry> maps, const MapsEntry& entry) {
  if (entry.path == "[vdso]") return vdso_image(pid, entry);
  if (!is_file_mapping(entry))
    return Error{(entry.path.empty() ? "anonymous memory" : entry.path) + ": not a file"};
  auto fd = open_mapped_file(pid, entry);
  if (fd) return elf::Image::from_fd(fd->get(), entry.path);
  auto image = image_from_memory(pid, maps, entry);
  if (!image) return Error{fd.error()};
  return image;
}

Result<elf::Image> image_from_memory(pid_t pid, std::span<const MapsEntry> maps, const MapsEntry& entry) {
  const MapsEntry* lowest = nullptr;
  for (const MapsEntry& other : maps) {
    if (other.start > entry.start) break;
    const bool same_file = other.inode == entry.inode && other.device_major == entry.device_major &&
                           other.device_minor == entry.device_minor;
    if (same_file && other.offset == 0) lowest = &other;  // the nearest: a file may be mapped several times
  }
  if (lowest == nullptr) return Error{entry.path + ": its first page is not mapped"};
  const auto read = [pid](uint64_t address, std::span<std::byte> out) {
    return read_memory(pid, address, out);
  };
  return elf::Image::from_memory(read, lowest->start, entry.path);
}

}  // namespace clew::process
