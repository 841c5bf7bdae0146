// Separate debug files: by build-id, and by .gnu_debuglink (GDB manual, "Debugging Information in Separate
// Files").
#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <array>

#include "process/process.hpp"

namespace clew::process {

namespace {

constexpr const char* kDebugRoot = "/usr/lib/debug";

/// CRC-32 of a regular file (the one that zlib computes too); nothing where it cannot be read.
std::optional<uint32_t> crc_of_file(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat status{};
  if (!fd || fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  std::vector<unsigned char> buffer(1 << 20);
  uLong crc = crc32(0, nullptr, 0);
  for (;;) {
    const ssize_t got = read(fd.get(), buffer.data(), buffer.size());
    if (got < 0) return std::nullopt;
    if (got == 0) return static_cast<uint32_t>(crc);
    crc = crc32(crc, buffer.data(), static_cast<uInt>(got));
  }
}

bool has_build_id(const std::string& path, const std::string& build_id) {
  const auto image = elf::Image::open(path);
  return image && image->build_id_hex() == build_id;
}

bool has_debug_frame(const elf::Image& image) {
  const elf::Section* section = image.section(".debug_frame");
  return section != nullptr && section->type != SHT_NOBITS;
}

/// The first place of a separate debug file that `wanted` (cheap, asked first) and the build-id or the
/// checksum agree to.
std::optional<std::string> find(elf::Image& image, const std::string& path, const std::string& root,
                                bool (*wanted)(const std::string&)) {
  const std::string build_id = image.build_id_hex();
  if (build_id.size() > 2) {
    std::string candidate = root;
    candidate += kDebugRoot;
    candidate += "/.build-id/" + build_id.substr(0, 2) + "/" + build_id.substr(2) + ".debug";
    if (wanted(candidate) && has_build_id(candidate, build_id)) return candidate;
  }
  const auto link = image.debug_link();
  // The name comes from the file: it must not lead elsewhere.
  if (!link || link->first.find('/') != std::string::npos || link->first == "." || link->first == "..") {
    return std::nullopt;
  }
  const std::string directory = path.substr(0, path.rfind('/') + 1);
  const std::array<std::string, 3> candidates = {root + directory + link->first,
                                                 root + directory + ".debug/" + link->first,
                                                 root + kDebugRoot + directory + link->first};
  for (const std::string& candidate : candidates) {
    if (wanted(candidate) && crc_of_file(candidate) == link->second) return candidate;
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> find_debug_file(elf::Image& image, const std::string& path,
                                           const std::string& root) {
  return find(image, path, root,
              [](const std::string& candidate) { return access(candidate.c_str(), R_OK) == 0; });
}

std::optional<elf::Image> open_debug_frame(elf::Image& image, const std::string& path,
                                           const std::string& root) {
  if (has_debug_frame(image)) return std::nullopt;
  // Most debug files have none: their checksum, of all their bytes, is not asked for.
  const auto found = find(image, path, root, [](const std::string& candidate) {
    if (access(candidate.c_str(), R_OK) != 0) return false;
    const auto debug = elf::Image::open(candidate);
    return debug && has_debug_frame(*debug);
  });
  if (!found) return std::nullopt;
  auto debug = elf::Image::open(*found);
  if (!debug) return std::nullopt;
  return std::move(*debug);
}

}  // namespace clew::process
