#include "collect/perf/stack_memory.hpp"

#include <sys/uio.h>

#include <algorithm>
#include <array>

#include "process/process.hpp"

namespace clew::collect::perf {

namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kRetryNs = 10'000'000;
constexpr size_t kMostRanges = 64;      // a process: coroutines on stacks of their own make many
constexpr size_t kMostTasks = 1 << 16;  // remembered at once

constexpr uint64_t kMostTouchedBytes = 256 << 10;

/// Touches the pages of [from, to), from below, until one cannot be; returns how many.
size_t touch_pages(pid_t pid, uint64_t from, uint64_t to) {
  constexpr size_t kMostPages = kMostTouchedBytes / kPage;
  std::array<iovec, kMostPages> remote = {};
  size_t pages = 0;
  for (uint64_t page = from & ~(kPage - 1); page < to && pages < kMostPages; page += kPage) {
    // The kernel takes addresses of the other process as pointers.
    remote[pages++] = {reinterpret_cast<void*>(page), 1};
  }
  if (pages == 0) return 0;
  std::array<char, kMostPages> bytes = {};
  const iovec local = {bytes.data(), pages};
  const ssize_t read = process_vm_readv(pid, &local, 1, remote.data(), pages, 0);
  return read > 0 ? static_cast<size_t>(read) : 0;
}

}  // namespace

std::optional<StackRange> StackMemory::range(pid_t pid, uint64_t sp, uint64_t now_ns) {
  if (by_pid_.size() > kMostTasks) by_pid_.clear();
  Ranges& ranges = by_pid_[pid];
  const auto holds = [sp](const StackRange& range) { return sp >= range.start && sp < range.end; };
  if (const auto found = std::ranges::find_if(ranges.known, holds); found != ranges.known.end())
    return *found;
  if (ranges.failed_at_ns != 0 && now_ns < ranges.failed_at_ns + kRetryNs) return std::nullopt;
  const auto maps = process::read_maps(pid);
  if (maps) {
    for (const process::MapsEntry& entry : *maps) {
      const StackRange range{entry.start, entry.end};
      if (!holds(range)) continue;
      // The main stack grows down by itself: what was known of it is part of this one.
      std::erase_if(ranges.known,
                    [&](const StackRange& old) { return old.start < range.end && old.end > range.start; });
      if (ranges.known.size() >= kMostRanges) ranges.known.erase(ranges.known.begin());
      ranges.known.push_back(range);
      return range;
    }
  }
  ranges.failed_at_ns = now_ns;
  return std::nullopt;
}

size_t StackMemory::touch(pid_t pid, pid_t tid, uint64_t from, uint64_t to, uint64_t now_ns) {
  if (by_tid_.size() > kMostTasks) by_tid_.clear();
  Touched& last = by_tid_[tid];
  from &= ~(kPage - 1);
  if (last.from == from && now_ns < last.at_ns + kRetryNs) return 0;
  last = {from, now_ns};
  return touch_pages(pid, from, to);
}

void StackMemory::prepare_main_stack(pid_t pid) {
  const auto maps = process::read_maps(pid);
  if (!maps) return;
  for (const process::MapsEntry& entry : *maps) {
    if (entry.path != "[stack]") continue;
    touch_pages(pid, std::max(entry.start, entry.end - std::min(entry.end, kMostTouchedBytes)), entry.end);
  }
}

void StackMemory::forget(pid_t pid) { by_pid_.erase(pid); }

}  // namespace clew::collect::perf
