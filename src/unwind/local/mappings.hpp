// What is mapped at an address, by /proc: for code that no module covers, as a JIT makes it.
#pragma once

#include <fcntl.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "unwind/local/memory.hpp"

namespace clew::unwind::local {

struct Mapping {
  uintptr_t start = 0, end = 0;
  bool executable = false;
};

/// Opens the calling thread's list of mappings; negative where it cannot. Its process's would be empty once
/// the first thread has ended.
inline long open_maps() {
  return system_call(SYS_openat, AT_FDCWD, reinterpret_cast<long>("/proc/thread-self/maps"),
                     O_RDONLY | O_CLOEXEC, 0);
}

/// The beginning of a line of maps, START-END rwxp; false where it is none.
inline bool parse_maps_line(const char* line, const char* end, Mapping& mapping) {
  const auto parse = [&line, end](uintptr_t& value) {
    const char* const first = line;
    for (value = 0; line < end; ++line) {
      const char c = *line;
      const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
      if (digit < 0) break;
      value = value << 4 | static_cast<uintptr_t>(digit);
    }
    return line != first;
  };
  if (!parse(mapping.start) || line == end || *line++ != '-' || !parse(mapping.end) || end - line < 5)
    return false;
  mapping.executable = line[3] == 'x';
  return mapping.start < mapping.end;
}

/// Calls use(line, end, whole) for the lines of maps, of which `buffer` holds one at least: of a longer one
/// the beginning, with `whole` false. False where maps could not be opened. Async-signal-safe if `use` is.
template <class Use>
bool read_maps(std::span<char> buffer, const Use& use) {
  const long fd = open_maps();
  if (fd < 0) return false;
  size_t held = 0;
  bool skipping = false;  // the rest of a line whose beginning was used
  for (;;) {
    const long got = system_call(SYS_read, fd, reinterpret_cast<long>(buffer.data() + held),
                                 static_cast<long>(buffer.size() - held), 0);
    if (got <= 0) break;
    held += static_cast<size_t>(got);
    const char* from = buffer.data();
    const char* const end = from + held;
    while (const void* newline = std::memchr(from, '\n', static_cast<size_t>(end - from))) {
      const auto* line_end = static_cast<const char*>(newline);
      if (!skipping) use(from, line_end, true);
      skipping = false;
      from = line_end + 1;
    }
    held = static_cast<size_t>(end - from);
    if (held == buffer.size()) {
      if (!skipping) use(from, end, false);
      skipping = true;
      held = 0;
    }
    std::memmove(buffer.data(), from, held);
  }
  system_call(SYS_close, fd, 0, 0, 0);
  return true;
}

/// The mapping at an address; false where there is none, or nobody says. Async-signal-safe: three system
/// calls since Linux 6.11 (PROCMAP_QUERY); before, the whole of maps is read, and where that was not long ago
/// what it held of code still counts.
bool find_mapping(uintptr_t address, Mapping& mapping);

}  // namespace clew::unwind::local
