#include "collect/perf/event_set.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <set>

namespace clew::collect::perf {

namespace {

constexpr size_t kFewestCopies = 4;               // of a stack, that a ring has room for
constexpr size_t kSmallRing = size_t{512} << 10;  // below this a busy recorder may lose samples: say so

/// Threads that the kernel reported as created by a task that was observed already: they inherited its
/// events.
std::set<pid_t> inherited_tasks(const std::vector<Ring>& rings) {
  std::set<pid_t> tasks;
  for (const Ring& ring : rings) {
    ring.peek([&](const RecordView& record) {
      uint32_t tid = 0;
      if (record.type() == PERF_RECORD_FORK && record.read(16, tid)) tasks.insert(static_cast<pid_t>(tid));
    });
  }
  return tasks;
}

}  // namespace

Result<bool> EventSet::map_rings(const EventPlan& plan) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  size_t bytes = std::bit_floor(std::max(plan.ring_bytes, page));
  for (const int cpu : online_cpus()) {
    const int fd = open_event(ring_attr(static_cast<uint32_t>(bytes / 4)), 0, cpu);
    if (fd == -ENODEV) continue;  // went offline
    if (fd < 0) return Error{explain_open_error(-fd, 0, false)};
    owners_.emplace_back(fd);
    cpus_.push_back(cpu);
  }
  // The limit is on the sum, so all rings have one size: where one is refused, all are made again at half of
  // it.
  for (;; bytes /= 2) {
    rings_.clear();
    int error = 0;
    for (const process::UniqueFd& owner : owners_) {
      Ring ring = Ring::map(owner.get(), bytes, error);
      if (error != 0) break;
      rings_.push_back(std::move(ring));
    }
    if (error == 0) break;
    if ((error != -EPERM && error != -ENOMEM) || bytes <= page) {
      return Error{
          "no memory for perf's rings: the user's limit is used up; raise it (ulimit -l, or sysctl "
          "kernel.perf_event_mlock_kb) or end other recordings"};
    }
  }
  if (bytes < kSmallRing) {
    notes_.push_back(
        "the kernel allows only " + std::to_string(bytes >> 10) +
        " KiB a CPU for samples in flight (ulimit -l, kernel.perf_event_mlock_kb): some may be lost");
  }
  while (largest_size_ + 1 < kStackSizes.size() && kStackSizes[largest_size_ + 1] <= bytes / kFewestCopies)
    ++largest_size_;
  size_index_ = largest_size_;
  for (const process::UniqueFd& owner : owners_) poll_fds_.push_back(owner.get());
  return true;
}

int EventSet::add_target(const EventPlan& plan, pid_t tid) {
  const bool on_exec = plan.command != 0;
  std::vector<Target> added;
  for (size_t i = 0; i < owners_.size(); ++i) {
    Target target;
    const auto add = [&](const perf_event_attr& attr) {
      const int fd = open_event(attr, tid, cpus_[i]);
      if (fd < 0) return fd;
      process::UniqueFd owned(fd);
      if (ioctl(fd, PERF_EVENT_IOC_SET_OUTPUT, owners_[i].get()) != 0) return -errno;
      (attr.config == PERF_COUNT_SW_TASK_CLOCK ? target.sideband : target.samples.emplace_back()) =
          std::move(owned);
      return 0;
    };
    perf_event_attr sideband = sideband_attr(rights_, on_exec);
    sideband.inherit = !plan.all;
    sideband.disabled = on_exec;
    sideband.read_format = PERF_FORMAT_LOST;
    int error = add(sideband);
    if (error == -EINVAL) {  // before Linux 6.0
      sideband.read_format = 0;
      error = add(sideband);
    }
    if (error != 0) return error;
    for (size_t size = 0; plan.samples && size < kStackSizes.size(); ++size) {
      perf_event_attr sample =
          sample_attr(rights_, plan.period_ns, kStackSizes[size], on_exec && size == size_index_);
      sample.inherit = !plan.all;
      sample.exclude_idle = plan.all;
      sample.disabled = on_exec || size != size_index_;
      sample.read_format = sideband.read_format;
      error = add(sample);
      if (error != 0) return error;
    }
    added.push_back(std::move(target));
  }
  std::ranges::move(added, std::back_inserter(targets_));
  return 0;
}

Result<bool> EventSet::add_threads(const EventPlan& plan, pid_t pid) {
  // Threads come and go meanwhile. What an observed thread creates inherits its events and is reported as a
  // fork; any other thread that is not observed yet is added, until a pass finds none.
  constexpr int kPasses = 16;
  std::set<pid_t> done;
  for (int pass = 0; pass < kPasses; ++pass) {
    const std::set<pid_t> inherited = inherited_tasks(rings_);
    bool added = false;
    for (const pid_t tid : process::threads(pid)) {
      if (inherited.contains(tid) || !done.insert(tid).second) continue;
      const int error = add_target(plan, tid);
      if (error == -ESRCH) continue;  // it ended
      if (error != 0) return Error{explain_open_error(-error, pid, false)};
      added = true;
    }
    if (!added) break;
  }
  if (done.empty()) return Error{explain_open_error(ESRCH, pid, false)};
  return true;
}

Result<EventSet> EventSet::open(const EventPlan& plan) {
  EventSet set;
  set.rights_ = plan.rights;
  if (auto mapped = set.map_rings(plan); !mapped) return Error{mapped.error()};
  for (size_t i = 0; i < set.owners_.size() && !plan.rights.exclude_kernel; ++i) {
    process::UniqueFd fd(open_event(programs_attr(), -1, set.cpus_[i]));
    if (fd.get() < 0 || ioctl(fd.get(), PERF_EVENT_IOC_SET_OUTPUT, set.owners_[i].get()) != 0) break;
    set.programs_.push_back(std::move(fd));
  }
  if (plan.all || plan.command != 0) {
    const int error = set.add_target(plan, plan.all ? -1 : plan.command);
    if (error != 0) return Error{explain_open_error(-error, 0, plan.all)};
    return set;
  }
  for (const pid_t pid : plan.pids) {
    if (auto added = set.add_threads(plan, pid); !added) return Error{added.error()};
  }
  return set;
}

void EventSet::switch_to(size_t index) {
  const size_t before = size_index_;
  size_index_ = index;
  for (Target& target : targets_) {
    if (target.samples.empty()) continue;
    ioctl(target.samples[before].get(), PERF_EVENT_IOC_DISABLE, 0);
    ioctl(target.samples[index].get(), PERF_EVENT_IOC_ENABLE, 0);
  }
}

void EventSet::confirm_switch() {
  for (Target& target : targets_) {
    for (size_t size = 0; size < target.samples.size(); ++size) {
      ioctl(target.samples[size].get(), size == size_index_ ? PERF_EVENT_IOC_ENABLE : PERF_EVENT_IOC_DISABLE,
            0);
    }
  }
}

void EventSet::stop() {
  for (Target& target : targets_) {
    for (process::UniqueFd& sample : target.samples) ioctl(sample.get(), PERF_EVENT_IOC_DISABLE, 0);
    ioctl(target.sideband.get(), PERF_EVENT_IOC_DISABLE, 0);
  }
}

uint64_t EventSet::cpu_time_ns() const {
  uint64_t sum = 0;
  for (const Target& target : targets_) {
    std::array<uint64_t, 2> values = {};
    if (read(target.sideband.get(), values.data(), sizeof values) >= ssize_t{sizeof values[0]})
      sum += values[0];
  }
  return sum;
}

uint64_t EventSet::kernel_lost() const {
  uint64_t sum = 0;
  const auto add = [&](const process::UniqueFd& event) {
    std::array<uint64_t, 2> values = {};
    if (read(event.get(), values.data(), sizeof values) == ssize_t{sizeof values}) sum += values[1];
  };
  for (const Target& target : targets_) {
    add(target.sideband);
    for (const process::UniqueFd& sample : target.samples) add(sample);
  }
  return sum;
}

}  // namespace clew::collect::perf
