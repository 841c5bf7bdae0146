// clew doctor: what works here, each tried or read where the kernel says it, and what to do about the rest.
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/cli.hpp"
#include "cli/text.hpp"
#include "collect/bpf/programs.hpp"
#include "collect/perf/perf_event.hpp"
#include "process/process.hpp"

namespace clew::cli {
namespace {

constexpr size_t kColumns = 80;

struct Check {
  std::string name;  // in JSON
  bool works = false;
  std::string found;
  std::string advice;  // "" where there is nothing to do
};

/// The first line of a file, "" where there is none.
std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string setting(const char* name) { return first_line(std::string("/proc/sys/kernel/") + name); }

/// Whether a capability (its number in linux/capability.h) is in the effective set.
bool has_capability(unsigned number) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("CapEff:")) return (std::strtoull(line.c_str() + 7, nullptr, 16) >> number & 1) != 0;
  }
  return false;
}

constexpr unsigned kCapIpcLock = 14, kCapPerfmon = 38, kCapBpf = 39;

void check_recording(std::vector<Check>& checks) {
  const auto rights = collect::perf::probe_rights(false);
  checks.push_back({"own_processes", bool(rights),
                    rights ? "record programs and processes of this user by perf events"
                           : "perf events are forbidden: clew records commands from inside, no -p and no -a",
                    rights ? "" : rights.error()});
  const bool kernel = rights && !rights->exclude_kernel;
  checks.push_back(
      {"kernel_time", kernel, kernel ? "sample time in the kernel" : "time in the kernel gives no samples",
       kernel ? "" : "run `sysctl kernel.perf_event_paranoid=1` as root, or give clew CAP_PERFMON"});
  const auto all = collect::perf::probe_rights(true);
  checks.push_back(
      {"all_processes", bool(all),
       all ? "record every process of the machine (-a)" : "-a, every process of the machine, is forbidden",
       all ? "" : all.error()});
}

/// The kernel shows addresses in /proc/kallsyms, or zeros.
Check kernel_names() {
  const std::string first = first_line("/proc/kallsyms");
  const bool shown = first.find_first_not_of('0') < first.find(' ');
  return {"kernel_names", shown,
          shown ? "name the kernel's functions" : "the kernel hides its functions' addresses",
          shown ? ""
                : fmt::format("kernel.kptr_restrict is {}: run as root, or set it to 0 and "
                              "kernel.perf_event_paranoid to 1",
                              setting("kptr_restrict"))};
}

/// What the kernel lets a user's rings lock: perf_event_mlock_kb a CPU, and the limit on locked memory for
/// all.
Check ring_memory() {
  constexpr uint64_t kAsked = uint64_t{4} << 20, kEnough = uint64_t{512} << 10;  // collect/perf/event_set
  rlimit limit = {};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  const uint64_t cpus = collect::perf::online_cpus().size();
  const uint64_t a_cpu = std::strtoull(setting("perf_event_mlock_kb").c_str(), nullptr, 10) << 10;
  uint64_t bytes = kAsked;
  if (limit.rlim_cur != RLIM_INFINITY && !has_capability(kCapIpcLock))
    bytes = std::min<uint64_t>(kAsked, std::bit_floor(a_cpu + limit.rlim_cur / cpus));
  const bool enough = bytes >= kEnough;
  return {
      "ring_memory", enough,
      fmt::format("{} KiB a CPU for samples in flight{}", bytes >> 10, enough ? "" : ": some may be lost"),
      enough ? "" : "raise kernel.perf_event_mlock_kb (sysctl) or the limit on locked memory (ulimit -l)"};
}

Check hardware_counters() {
  perf_event_attr attr = {};
  attr.size = sizeof attr;
  attr.type = PERF_TYPE_HARDWARE;
  attr.config = PERF_COUNT_HW_CPU_CYCLES;
  attr.exclude_kernel = 1;
  attr.exclude_hv = 1;
  const int fd = collect::perf::open_event(attr, 0, -1);
  if (fd >= 0) close(fd);
  return {
      "hardware_counters", fd >= 0,
      fd >= 0 ? "hardware counters are there; clew samples by the CPU clock" : "no hardware counters here",
      fd >= 0 ? "" : "nothing to do: clew samples by the CPU clock"};
}

Check tracing() {
  const std::string scope = setting("yama/ptrace_scope");
  const bool free = scope.empty() || scope == "0" || geteuid() == 0;
  return {"other_stacks", free,
          free ? "stop threads: for clew stack PID, and for stacks in several pieces"
               : fmt::format("kernel.yama.ptrace_scope is {}: only what clew starts can be stopped", scope),
          free ? "" : "run clew stack as root, or `sysctl kernel.yama.ptrace_scope=0` as root"};
}

/// Loads the programs; where that fails, what is missing of all that they need.
Check bpf(const utsname& kernel) {
  const auto loaded = collect::bpf::Programs::load({});
  if (loaded) return {"bpf", true, "unwind in the kernel (--collector bpf)", ""};
  std::string missing;
  const auto need = [&missing](bool there, const char* what) {
    if (!there) missing += (missing.empty() ? "" : ", ") + std::string(what);
  };
  unsigned major = 0, minor = 0;
  const bool known = std::sscanf(kernel.release, "%u.%u", &major, &minor) == 2;
  need(known && (major > 6 || (major == 6 && minor >= 1)), "Linux 6.1");
  need(access("/sys/kernel/btf/vmlinux", R_OK) == 0, "BTF (/sys/kernel/btf/vmlinux)");
  need(has_capability(kCapBpf), "CAP_BPF");
  need(has_capability(kCapPerfmon), "CAP_PERFMON");
  return {"bpf", false, "no unwinding in the kernel (--collector bpf)",
          missing.empty() ? loaded.error() : "it needs " + missing};
}

/// The C library runs in every program: whether its functions have names here. Nothing where clew has none.
std::optional<Check> library_names() {
  const auto maps = process::read_maps(getpid());
  if (!maps) return std::nullopt;
  const auto entry =
      std::ranges::find_if(*maps, [](const process::MapsEntry& e) { return e.path.ends_with("/libc.so.6"); });
  if (entry == maps->end()) return std::nullopt;
  auto image = elf::Image::open(entry->path);
  if (!image) return std::nullopt;
  const bool named = image->section(".symtab") || image->section(".gnu_debugdata") ||
                     process::find_debug_file(*image, entry->path, "");
  return Check{
      "library_names", named,
      named ? "name the C library's inner functions" : "the C library's inner functions have no names",
      named ? "" : "install its debug file (Debian: libc6-dbg); stacks are whole without it"};
}

/// Words in lines of at most kColumns, the first after `lead`, the others indented as far.
std::string wrapped(const std::string& lead, std::string_view words) {
  std::string text = lead;
  size_t column = lead.size();
  for (size_t at = 0; at < words.size();) {
    const size_t end = std::min(words.find(' ', at), words.size());
    const std::string_view word = words.substr(at, end - at);
    if (at != 0 && column + 1 + word.size() > kColumns) {
      text += '\n' + std::string(lead.size(), ' ');
      column = lead.size();
    } else if (at != 0) {
      text += ' ';
      ++column;
    }
    text += word;
    column += word.size();
    at = end + 1;
  }
  return text + '\n';
}

}  // namespace

int doctor(const DoctorOptions& options) {
  utsname kernel = {};
  uname(&kernel);
  std::vector<Check> checks;
  check_recording(checks);
  checks.push_back(kernel_names());
  checks.push_back(ring_memory());
  checks.push_back(hardware_counters());
  checks.push_back(tracing());
  checks.push_back(bpf(kernel));
  if (auto names = library_names()) checks.push_back(std::move(*names));

  std::string text;
  if (options.json) {
    text = fmt::format("{{\"kernel\":{},\"checks\":[", json_string(kernel.release));
    for (size_t i = 0; i < checks.size(); ++i) {
      text += fmt::format("{}\n {{\"name\":{},\"works\":{},\"found\":{},\"advice\":{}}}", i == 0 ? "" : ",",
                          json_string(checks[i].name), checks[i].works, json_string(checks[i].found),
                          json_string(checks[i].advice));
    }
    text += "\n]}\n";
  } else {
    text = wrapped("", fmt::format("What works here, Linux {}, as user {}:", kernel.release, geteuid()));
    for (const Check& check : checks) {
      text += wrapped(check.works ? "yes  " : "no   ", check.found);
      if (!check.advice.empty()) text += wrapped("       ", check.advice);
    }
  }
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
    return fail("cannot write to standard output");
  return 0;
}

}  // namespace clew::cli
