#include "collect/inprocess/agent_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "table/table.hpp"

#ifdef CLEW_WITH_AGENT
extern "C" const std::byte clew_agent_image[], clew_agent_image_end[];
#endif

namespace clew::collect::inprocess {

namespace {

std::span<const std::byte> image() {
#ifdef CLEW_WITH_AGENT
  return {clew_agent_image, clew_agent_image_end};
#else
  return {};
#endif
}

/// Whether the file is a regular one of this user's with just these bytes.
bool holds(const std::string& path, std::span<const std::byte> bytes) {
  const process::UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat status = {};
  if (!fd || fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode) || status.st_uid != geteuid() ||
      static_cast<size_t>(status.st_size) != bytes.size()) {
    return false;
  }
  std::vector<std::byte> found(bytes.size());
  return read(fd.get(), found.data(), found.size()) == static_cast<ssize_t>(found.size()) &&
         std::ranges::equal(found, bytes);
}

uint64_t hash_of(std::span<const std::byte> bytes) {  // FNV-1a
  uint64_t hash = 0xcbf29ce484222325;
  for (const std::byte byte : bytes) hash = (hash ^ static_cast<uint64_t>(byte)) * 0x100000001b3;
  return hash;
}

/// LD_PRELOAD separates by spaces and colons.
bool can_be_preloaded(const std::string& path) { return path.find_first_of(" :") == std::string::npos; }

/// CACHE/agent-HASH/$LIB/clew-agent.so: glibc puts the name of its library folder there, "lib64" or
/// "lib/x86_64-linux-gnu"; musl's linker, which could not load the agent and would end the program, finds no
/// such file and goes on.
std::optional<std::string> in_cache(std::span<const std::byte> bytes) {
  const auto directory = table::cache_directory();
  if (!directory || !can_be_preloaded(*directory)) return std::nullopt;
  char name[40];
  std::snprintf(name, sizeof name, "/agent-%016llx", static_cast<unsigned long long>(hash_of(bytes)));
  const std::string base = *directory + name;
  const std::string path = base + "/lib/x86_64-linux-gnu/clew-agent.so";
  const std::string preload = base + "/$LIB/clew-agent.so";
  const auto link = [](const char* to, const std::string& from) {
    return symlink(to, from.c_str()) == 0 || errno == EEXIST;
  };
  if ((!holds(path, bytes) && !table::store_file(path, bytes, 0755)) ||
      !link("x86_64-linux-gnu/clew-agent.so", base + "/lib/clew-agent.so") ||
      !link("lib/x86_64-linux-gnu", base + "/lib64")) {
    return std::nullopt;
  }
  return preload;
}

}  // namespace

Result<AgentFile> agent_file() {
  const auto bytes = image();
  if (bytes.empty())
    return Error{"this build of clew has no in-process agent (it is built with a sanitizer)"};
  AgentFile file;
  if (auto cached = in_cache(bytes)) {
    file.path = std::move(*cached);
    return file;
  }
  file.memory = process::UniqueFd(memfd_create("clew-agent", 0));
  if (!file.memory ||
      write(file.memory.get(), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) {
    return Error{std::string("cannot write the in-process agent anywhere: ") + std::strerror(errno) +
                 "; set CLEW_CACHE_DIR to a directory that can be written"};
  }
  file.path = "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(file.memory.get());
  return file;
}

}  // namespace clew::collect::inprocess
