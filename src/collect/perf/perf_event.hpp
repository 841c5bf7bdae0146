// Opening perf events: which attributes the collector asks for, and what to tell the user when the kernel
// refuses.
//
// Source: perf_event_open(2), <linux/perf_event.h>.
#pragma once

#include <linux/perf_event.h>
#include <sys/types.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "clew/result.hpp"
#include "process/process.hpp"

namespace clew::collect::perf {

/// The sizes of the copied piece of stack, bytes, that a recording can switch between. A sampling event of
/// each is open from the start, because an event opened later would not be inherited by the tasks that
/// already run. The kernel's limit is 65,528; it trims the last one a little, because a whole record must
/// stay below 64 KiB.
inline constexpr std::array<uint32_t, 3> kStackSizes = {8192, 32768, 65528};

/// User registers asked for: the 16 general purpose ones and the instruction pointer, no segment registers.
inline constexpr uint64_t kUserRegisters = 0xff01ff;
inline constexpr size_t kUserRegisterCount = 17;

struct Rights {
  bool exclude_kernel = false;  // perf_event_paranoid 2: samples in user space only
};

/// The event that owns a CPU's ring; it counts nothing and only exists so that the ring outlives every
/// target.
perf_event_attr ring_attr(uint32_t wakeup_bytes);
/// Tells of BPF programs that are loaded and unloaded on a CPU; for the whole machine, so with privileges
/// alone.
perf_event_attr programs_attr();
/// Process life and mappings (mmap2, comm, fork, exit), never switched off; it counts the targets' CPU time.
perf_event_attr sideband_attr(Rights rights, bool enable_on_exec);
/// The sampling event with one size of stack copy; opened switched off.
perf_event_attr sample_attr(Rights rights, uint64_t period_ns, uint32_t stack_bytes, bool enable_on_exec);

/// perf_event_open; a negative errno where it fails.
int open_event(const perf_event_attr& attr, pid_t pid, int cpu);

/// What this process may do with perf events; an error that says why not, and what to do about it.
/// `all` asks for every process of the machine.
Result<Rights> probe_rights(bool all);

/// One line for a failed perf_event_open.
std::string explain_open_error(int error, pid_t pid, bool all);

/// CPU numbers of /sys/devices/system/cpu/online ("0-3,8").
std::vector<int> parse_cpu_list(std::string_view list);
std::vector<int> online_cpus();

}  // namespace clew::collect::perf
