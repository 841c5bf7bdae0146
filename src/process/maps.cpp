// /proc/PID/maps (proc_pid_maps(5)): start-end perms offset major:minor inode, spaces, path.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>

#include "process/process.hpp"

namespace clew::process {

namespace {

constexpr std::string_view kDeleted = " (deleted)";

/// Takes a number and the character behind it off the front of `text`.
template <class T>
bool take_number(std::string_view& text, T& value, int base, char behind) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc{} || end == text.data() + text.size() || *end != behind) return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()) + 1);
  return true;
}

std::string unescape(std::string_view path) {
  constexpr std::string_view kNewline = "\\012";
  std::string plain;
  plain.reserve(path.size());
  for (size_t at = 0; at < path.size();) {
    const bool escape = path.substr(at, kNewline.size()) == kNewline;
    plain += escape ? '\n' : path[at];
    at += escape ? kNewline.size() : 1;
  }
  return plain;
}

}  // namespace

std::optional<MapsEntry> parse_maps_line(std::string_view line) {
  if (line.ends_with('\n')) line.remove_suffix(1);
  MapsEntry entry;
  if (!take_number(line, entry.start, 16, '-') || !take_number(line, entry.end, 16, ' ')) return std::nullopt;
  if (line.size() < 5 || line[4] != ' ' || entry.end < entry.start) return std::nullopt;
  entry.readable = line[0] == 'r';
  entry.writable = line[1] == 'w';
  entry.executable = line[2] == 'x';
  entry.shared = line[3] == 's';
  line.remove_prefix(5);
  if (!take_number(line, entry.offset, 16, ' ') || !take_number(line, entry.device_major, 16, ':') ||
      !take_number(line, entry.device_minor, 16, ' ')) {
    return std::nullopt;
  }
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), entry.inode);
  if (error != std::errc{}) return std::nullopt;
  line.remove_prefix(static_cast<size_t>(end - line.data()));
  // The kernel pads to a column, then writes the path: leading spaces are padding, since paths start with '/'
  // or '['.
  line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
  if (line.starts_with('/') && line.ends_with(kDeleted)) {
    entry.deleted = true;
    line.remove_suffix(kDeleted.size());
  }
  entry.path = unescape(line);
  return entry;
}

Result<std::vector<MapsEntry>> read_maps(pid_t pid) {
  const std::string who = "process " + std::to_string(pid);
  const auto failed = [&](int error) {
    if (error == ENOENT || error == ESRCH) return Error{who + ": no such process"};
    if (error == EACCES || error == EPERM) {
      return Error{who +
                   ": not permitted to look at it; run as its user or as root (a setuid program needs root)"};
    }
    return Error{who + ": cannot read its mappings: " + std::strerror(error)};
  };
  const UniqueFd fd(open(("/proc/" + std::to_string(pid) + "/maps").c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return failed(errno);

  constexpr size_t kMaxBytes = 256u << 20;
  std::string text;
  char buffer[32768];
  for (;;) {
    const ssize_t got = read(fd.get(), buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return failed(errno);
    if (got == 0 || text.size() > kMaxBytes) break;
    text.append(buffer, static_cast<size_t>(got));
  }

  std::vector<MapsEntry> entries;
  for (std::string_view rest = text; !rest.empty();) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    if (auto entry = parse_maps_line(rest.substr(0, end))) entries.push_back(std::move(*entry));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return entries;
}

}  // namespace clew::process
