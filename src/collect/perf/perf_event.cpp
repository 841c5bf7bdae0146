#include "collect/perf/perf_event.hpp"

#include <asm/perf_regs.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <ctime>

namespace clew::collect::perf {

static_assert(kUserRegisters == ((1ull << PERF_REG_X86_FLAGS) - 1) + (0xffull << PERF_REG_X86_R8));
static_assert(std::popcount(kUserRegisters) == kUserRegisterCount);
static_assert(std::ranges::all_of(kStackSizes, [](uint32_t size) { return size % 8 == 0 && size < 65535; }));

namespace {

// One trailer (sample_id) for the records of every event, so that a record can be dated without knowing its
// event.
constexpr uint64_t kTrailer = PERF_SAMPLE_TID | PERF_SAMPLE_TIME | PERF_SAMPLE_IDENTIFIER;

perf_event_attr base_attr() {
  perf_event_attr attr = {};
  attr.size = sizeof attr;
  attr.sample_type = kTrailer;
  attr.sample_id_all = 1;
  attr.use_clockid = 1;
  attr.clockid = CLOCK_MONOTONIC;
  attr.disabled = 1;
  attr.exclude_hv = 1;
  return attr;
}

std::string read_line(const char* path) {
  const process::UniqueFd fd(open(path, O_RDONLY | O_CLOEXEC));
  char text[4096];
  const ssize_t size = fd ? read(fd.get(), text, sizeof text) : 0;
  std::string_view line(text, size > 0 ? static_cast<size_t>(size) : 0);
  return std::string(line.substr(0, line.find('\n')));
}

}  // namespace

perf_event_attr ring_attr(uint32_t wakeup_bytes) {
  perf_event_attr attr = base_attr();
  attr.type = PERF_TYPE_SOFTWARE;
  attr.config = PERF_COUNT_SW_DUMMY;
  attr.exclude_kernel = 1;
  attr.watermark = 1;
  attr.wakeup_watermark = wakeup_bytes;
  return attr;
}

perf_event_attr programs_attr() {
  perf_event_attr attr = base_attr();
  attr.type = PERF_TYPE_SOFTWARE;
  attr.config = PERF_COUNT_SW_DUMMY;
  attr.bpf_event = 1;
  attr.disabled = 0;
  return attr;
}

perf_event_attr sideband_attr(Rights rights, bool enable_on_exec) {
  perf_event_attr attr = base_attr();
  attr.type = PERF_TYPE_SOFTWARE;
  attr.config = PERF_COUNT_SW_TASK_CLOCK;
  attr.exclude_kernel = rights.exclude_kernel;
  attr.inherit = 1;
  attr.mmap = 1;
  attr.mmap2 = 1;
  attr.comm = 1;
  attr.comm_exec = 1;
  attr.task = 1;
  attr.enable_on_exec = enable_on_exec;
  return attr;
}

perf_event_attr sample_attr(Rights rights, uint64_t period_ns, uint32_t stack_bytes, bool enable_on_exec) {
  perf_event_attr attr = base_attr();
  attr.type = PERF_TYPE_SOFTWARE;
  attr.config = PERF_COUNT_SW_CPU_CLOCK;
  attr.sample_period = period_ns;
  attr.sample_type =
      kTrailer | PERF_SAMPLE_IP | PERF_SAMPLE_PERIOD | PERF_SAMPLE_REGS_USER | PERF_SAMPLE_STACK_USER;
  attr.sample_regs_user = kUserRegisters;
  attr.sample_stack_user = stack_bytes;
  attr.exclude_kernel = rights.exclude_kernel;
  attr.inherit = 1;
  attr.enable_on_exec = enable_on_exec;
  if (!rights.exclude_kernel) {
    attr.sample_type |= PERF_SAMPLE_CALLCHAIN;
    attr.exclude_callchain_user = 1;
  }
  return attr;
}

int open_event(const perf_event_attr& attr, pid_t pid, int cpu) {
  perf_event_attr copy = attr;  // the kernel writes the size it knows into it where that differs
  const long fd = syscall(SYS_perf_event_open, &copy, pid, cpu, -1, PERF_FLAG_FD_CLOEXEC);
  return fd < 0 ? -errno : static_cast<int>(fd);
}

std::string explain_open_error(int error, pid_t pid, bool all) {
  const std::string paranoid = read_line("/proc/sys/kernel/perf_event_paranoid");
  const std::string setting = paranoid.empty() ? "" : " (kernel.perf_event_paranoid is " + paranoid + ")";
  switch (error) {
    case ENOSYS:
    case ENOENT:
      return "this kernel has no perf events: it was built without CONFIG_PERF_EVENTS";
    case EACCES:
    case EPERM:
      if (all) {
        return "recording every process is not allowed here" + setting +
               ": run as root, give clew CAP_PERFMON, or use -p PID or -- CMD";
      }
      if (pid > 0) {
        return "process " + std::to_string(pid) +
               " may not be observed: it belongs to another user or is protected; run as its user or as root";
      }
      return "perf_event_open is forbidden here" + setting +
             ": run `sysctl kernel.perf_event_paranoid=2` as root, or give clew CAP_PERFMON; in a container "
             "its "
             "seccomp profile must allow perf_event_open";
    case ESRCH:
      return "no process " + std::to_string(pid);
    case EMFILE:
    case ENFILE:
      return "too many open files for the perf events: raise the limit (ulimit -n)";
    default:
      return std::string("perf_event_open failed: ") + std::strerror(error);
  }
}

Result<Rights> probe_rights(bool all) {
  const pid_t pid = all ? -1 : 0;
  const int cpu = all ? online_cpus().front() : -1;
  int error = 0;
  for (const bool exclude_kernel : {false, true}) {
    const Rights rights{exclude_kernel};
    perf_event_attr attr = sample_attr(rights, 1'000'000, kStackSizes[0], false);
    attr.inherit = 0;
    const int fd = open_event(attr, pid, cpu);
    if (fd >= 0) {
      close(fd);
      return rights;
    }
    error = -fd;
    if (error != EACCES && error != EPERM) break;
  }
  return Error{explain_open_error(error, 0, all)};
}

std::vector<int> parse_cpu_list(std::string_view list) {
  constexpr int kMost = 65536;
  std::vector<int> cpus;
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    const std::string_view item = list.substr(0, comma);
    list.remove_prefix(std::min(comma + 1, list.size()));
    int first = 0;
    auto [rest, error] = std::from_chars(item.data(), item.data() + item.size(), first);
    if (error != std::errc()) continue;
    int last = first;
    if (rest != item.data() + item.size() && *rest == '-') {
      if (std::from_chars(rest + 1, item.data() + item.size(), last).ec != std::errc()) continue;
    }
    for (int cpu = std::max(first, 0); cpu <= last && cpu < kMost; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

std::vector<int> online_cpus() {
  std::vector<int> cpus = parse_cpu_list(read_line("/sys/devices/system/cpu/online"));
  if (cpus.empty()) {
    for (long cpu = 0; cpu < std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)); ++cpu)
      cpus.push_back(static_cast<int>(cpu));
  }
  return cpus;
}

}  // namespace clew::collect::perf
