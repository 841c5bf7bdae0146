// The events of one recording: on every CPU a ring and, for every target, the side-band event and one
// sampling event for each size of stack copy, of which exactly one is switched on.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "clew/result.hpp"
#include "collect/perf/perf_event.hpp"
#include "collect/perf/ring.hpp"
#include "process/process.hpp"

namespace clew::collect::perf {

struct EventPlan {
  bool samples = true;  // else only process life and mappings: something else samples
  uint64_t period_ns = 1'001'001;
  pid_t command = 0;        // a child that waits before its exec; sampling begins with the exec
  std::vector<pid_t> pids;  // running processes: all their threads, and what these create later
  bool all = false;         // every process on every CPU
  Rights rights;
  size_t ring_bytes = size_t{4} << 20;  // a CPU; halved until the kernel accepts
};

class EventSet {
 public:
  static Result<EventSet> open(const EventPlan& plan);

  std::vector<Ring>& rings() { return rings_; }
  /// One descriptor a ring, readable when a quarter of it is full.
  const std::vector<int>& ring_fds() const { return poll_fds_; }
  bool with_callchain() const { return !rights_.exclude_kernel; }

  /// Switches the whole tree to copies of kStackSizes[index]: the old event off, then the new one on.
  void switch_to(size_t index);
  size_t size_index() const { return size_index_; }
  /// The largest copies of which a ring holds some: recording begins with these.
  size_t largest_size() const { return largest_size_; }
  /// Repeats the last switch. A task that forks at the very moment of a switch can copy the old states into
  /// its child after the kernel has gone through the children; this puts it right, and changes nothing
  /// otherwise.
  void confirm_switch();
  void stop();

  /// CPU time of the targets so far, ns: the sum of the side-band counters, exited children included.
  uint64_t cpu_time_ns() const;
  /// Records that the kernel could not write, by its own count (Linux 6.0); 0 where it does not tell.
  uint64_t kernel_lost() const;
  /// What the user should know about how the events were opened; one line each.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  EventSet() = default;
  /// Opens all events of one target on every CPU; -errno where it fails.
  int add_target(const EventPlan& plan, pid_t tid);
  Result<bool> add_threads(const EventPlan& plan, pid_t pid);
  Result<bool> map_rings(const EventPlan& plan);

  struct Target {
    process::UniqueFd sideband;
    std::vector<process::UniqueFd> samples;  // one a size
  };

  Rights rights_;
  std::vector<int> cpus_;
  std::vector<process::UniqueFd> owners_;
  std::vector<process::UniqueFd> programs_;  // that tell of BPF programs; none without privileges
  std::vector<Ring> rings_;
  std::vector<int> poll_fds_;
  std::vector<Target> targets_;  // one a task and CPU
  size_t largest_size_ = 0;
  size_t size_index_ = 0;
  std::vector<std::string> notes_;
};

}  // namespace clew::collect::perf
