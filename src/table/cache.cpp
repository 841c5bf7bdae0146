// Tables on disk by build-id: CACHE/xx/yyyy.clewtable (yyyy.debug.clewtable: made with the file's debug
// file), written to a temporary file and renamed into place, so that a reader sees a whole table or none; a
// damaged one fails its checksum and is made anew.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "core/table.h"
#include "table/table.hpp"

namespace clew::table {

std::optional<std::string> cache_directory() {
  const auto variable = [](const char* name) -> std::optional<std::string> {
    const char* value = std::getenv(name);
    if (!value || value[0] != '/') return std::nullopt;
    return value;
  };
  if (auto own = variable("CLEW_CACHE_DIR")) return own;
  if (auto cache = variable("XDG_CACHE_HOME")) return *cache + "/clew";
  if (auto home = variable("HOME")) return *home + "/.cache/clew";
  return std::nullopt;
}

namespace {

/// For this user alone; true if it is there now.
bool make_directories(const std::string& path) {
  for (size_t slash = path.find('/', 1); slash != std::string::npos; slash = path.find('/', slash + 1)) {
    mkdir(path.substr(0, slash).c_str(), 0700);
  }
  return mkdir(path.c_str(), 0700) == 0 || errno == EEXIST;
}

/// Whether the cached table is of this very file: a build-id alone can be forged.
bool is_of(const Table& table, elf::Image& image, elf::Image* debug) {
  const clew_table_header& header = *table.header();
  std::byte id[sizeof header.build_id] = {};
  const auto build_id = image.build_id();
  std::copy_n(build_id.begin(), std::min(build_id.size(), sizeof id), id);
  return header.file_bytes == image.size() && std::memcmp(id, header.build_id, sizeof id) == 0 &&
         header.source_hash == source_hash(image, debug);
}

/// A file past the process's limit is a signal, which kills it.
bool may_write(size_t bytes) {
  rlimit limit = {};
  return getrlimit(RLIMIT_FSIZE, &limit) == 0 && bytes <= limit.rlim_cur;
}

}  // namespace

bool store_file(const std::string& path, std::span<const std::byte> bytes, mode_t mode) {
  if (!may_write(bytes.size()) || !make_directories(path.substr(0, path.rfind('/')))) return false;
  std::string temporary = path + ".XXXXXX";
  const int fd = mkostemp(temporary.data(), O_CLOEXEC);
  if (fd < 0) return false;
  bool good = fchmod(fd, mode) == 0;
  while (good && !bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    good = written > 0 || (written < 0 && errno == EINTR);
    if (written > 0) bytes = bytes.subspan(static_cast<size_t>(written));
  }
  good = close(fd) == 0 && good && rename(temporary.c_str(), path.c_str()) == 0;
  if (!good) unlink(temporary.c_str());
  return good;
}

Result<std::shared_ptr<const Table>> load_or_compile(elf::Image& image, Report* report, elf::Image* debug) {
  const std::string id = image.build_id_hex();
  const auto directory = cache_directory();
  if (id.size() < 4 || !directory || image.fd() < 0) return compile(image, report, debug);

  const std::string path =
      *directory + "/" + id.substr(0, 2) + "/" + id.substr(2) + (debug ? ".debug" : "") + ".clewtable";
  if (auto cached = Table::map(path); cached && is_of(**cached, image, debug)) {
    if (report) {
      *report = {};
      report->from_cache = true;
      report->functions = (*cached)->header()->function_count;
      report->rules = (*cached)->header()->rule_count;
      report->table_bytes = (*cached)->bytes().size();
    }
    return cached;
  }
  auto table = compile(image, report, debug);
  if (table) store_file(path, (*table)->bytes(), 0600);
  return table;
}

}  // namespace clew::table
