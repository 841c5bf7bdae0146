// The threads of a process, as /proc/PID/task lists them.
#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "process/process.hpp"

namespace clew::process {

std::vector<pid_t> threads(pid_t pid) {
  std::vector<pid_t> tids;
  DIR* directory = opendir(("/proc/" + std::to_string(pid) + "/task").c_str());
  if (directory == nullptr) return tids;
  while (const dirent* entry = readdir(directory)) {
    const std::string_view name = entry->d_name;
    pid_t tid = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), tid);
    if (error == std::errc{} && end == name.data() + name.size()) tids.push_back(tid);
  }
  closedir(directory);
  std::sort(tids.begin(), tids.end());
  return tids;
}

std::string thread_name(pid_t pid, pid_t tid) {
  const std::string path = "/proc/" + std::to_string(pid) + "/task/" + std::to_string(tid) + "/comm";
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  char buffer[256];
  const ssize_t got = fd ? read(fd.get(), buffer, sizeof(buffer)) : 0;
  std::string name(buffer, got > 0 ? static_cast<size_t>(got) : 0);
  if (name.ends_with('\n')) name.pop_back();
  return name;
}

}  // namespace clew::process
