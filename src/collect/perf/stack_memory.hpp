// Where the stacks of running processes lie, and pages of them that are not resident.
//
// The kernel copies a stack without faulting: its copy ends at the first page that is not resident (part of a
// large array that nothing has touched yet). Reading one byte of such a page from outside makes the kernel
// map it, so that the next sample's copy goes on. The sample at hand stays cut: its stack may have changed
// since.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

namespace clew::collect::perf {

struct StackRange {
  uint64_t start = 0, end = 0;
};

/// Not thread-safe.
class StackMemory {
 public:
  /// The mapping of `pid` that holds `sp`, from /proc/PID/maps; remembered, because stacks rarely change.
  /// Nothing where the process is gone or was looked up in vain a moment ago (`now_ns` is CLOCK_MONOTONIC).
  std::optional<StackRange> range(pid_t pid, uint64_t sp, uint64_t now_ns);
  /// Makes the pages of [from, to) resident, page by page until one cannot be; the same ones at most every 10
  /// ms. Returns how many could be touched.
  size_t touch(pid_t pid, pid_t tid, uint64_t from, uint64_t to, uint64_t now_ns);
  /// Makes what is mapped of the main stack of a program that has just started resident.
  static void prepare_main_stack(pid_t pid);
  void forget(pid_t pid);

 private:
  struct Ranges {
    std::vector<StackRange> known;
    uint64_t failed_at_ns = 0;
  };
  struct Touched {
    uint64_t from = 0;
    uint64_t at_ns = 0;
  };
  std::unordered_map<pid_t, Ranges> by_pid_;
  std::unordered_map<pid_t, Touched> by_tid_;
};

}  // namespace clew::collect::perf
