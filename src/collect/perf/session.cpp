#include "collect/perf/session.hpp"
#include "process/clock.hpp"

#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstring>

namespace clew::collect::perf {

namespace {

constexpr int kBusyWaitMs = 4;  // between two looks at the rings while processes start
constexpr int kWaitMs = 10;     // otherwise
constexpr uint64_t kBusyNs = 200'000'000;
constexpr uint64_t kConfirmNs = 20'000'000;

std::vector<pid_t> running_processes() {
  std::vector<pid_t> pids;
  DIR* directory = opendir("/proc");
  if (directory == nullptr) return pids;
  while (const dirent* entry = readdir(directory)) {
    pid_t pid = 0;
    const char* end = entry->d_name + std::strlen(entry->d_name);
    if (const auto [rest, error] = std::from_chars(entry->d_name, end, pid);
        error == std::errc() && rest == end) {
      pids.push_back(pid);
    }
  }
  closedir(directory);
  return pids;
}

/// The stop sampler's thread waits for these; no other may take them.
void block_sampler_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  sigaddset(&set, SIGURG);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

/// A short time slice for the calling thread: the scheduler (EEVDF, Linux 6.12 and later) gives one that
/// wakes up its turn the sooner the less it asks for. No privilege is needed; older kernels do not look at
/// it.
void ask_for_short_slice() {
  constexpr uint64_t kSliceNs = 100'000;  // the shortest that there is
  struct {  // struct sched_attr of linux/sched/types.h, which <sched.h> cannot be with
    uint32_t size, sched_policy;
    uint64_t sched_flags;
    int32_t sched_nice;
    uint32_t sched_priority;
    uint64_t sched_runtime, sched_deadline, sched_period;
  } attr = {};
  static_assert(sizeof attr == 48);
  if (syscall(SYS_sched_getattr, 0, &attr, sizeof attr, 0) != 0) return;
  if (attr.sched_policy != SCHED_OTHER && attr.sched_policy != SCHED_BATCH) return;
  attr.sched_runtime = kSliceNs;
  syscall(SYS_sched_setattr, 0, &attr, 0);
}

/// CPU time of the whole machine so far but idle time: the first line of /proc/stat, in ticks
/// (user nice system idle iowait irq softirq ...).
uint64_t machine_cpu_ns() {
  std::FILE* file = std::fopen("/proc/stat", "re");
  if (file == nullptr) return 0;
  std::array<unsigned long long, 7> ticks = {};
  const int read = std::fscanf(file, "cpu %llu %llu %llu %llu %llu %llu %llu", &ticks[0], &ticks[1],
                               &ticks[2], &ticks[3], &ticks[4], &ticks[5], &ticks[6]);
  std::fclose(file);
  if (read != 7) return 0;
  const uint64_t busy = ticks[0] + ticks[1] + ticks[2] + ticks[5] + ticks[6];
  return busy * 1'000'000'000 / static_cast<uint64_t>(std::max(1L, sysconf(_SC_CLK_TCK)));
}

}  // namespace

Result<std::unique_ptr<Session>> Session::start(const SessionOptions& options, Sink sink) {
  auto rights = probe_rights(options.all);
  if (!rights) return Error{rights.error()};
  process::raise_descriptor_limit();  // events for many threads on many CPUs
  EventPlan plan;
  plan.period_ns = 1'000'000'000 / std::max(1u, options.frequency_hz);
  plan.command = options.command;
  plan.pids = options.pids;
  plan.all = options.all;
  plan.rights = *rights;
  plan.ring_bytes = options.ring_bytes;
  plan.samples = !options.bpf;
  std::unique_ptr<bpf::Programs> programs;
  if (options.bpf) {
    auto loaded =
        bpf::Programs::load({.all_processes = options.all, .least_blocked_ns = options.least_blocked_ns});
    if (!loaded) return Error{loaded.error()};
    programs = std::move(*loaded);
  }
  auto events = EventSet::open(plan);
  if (!events) return Error{events.error()};
  std::unique_ptr<Session> session(
      new Session(options, std::move(*events), std::move(programs), std::move(sink)));
  if (session->programs_) {
    if (options.command != 0) session->programs_->add_target(options.command, true);
    for (const pid_t pid : options.pids) session->programs_->add_target(pid, false);
    if (auto started = session->programs_->start(plan.period_ns); !started) return Error{started.error()};
  }
  return session;
}

Session::Session(const SessionOptions& options, EventSet events, std::unique_ptr<bpf::Programs> programs,
                 Sink sink)
    : events_(std::move(events)),
      programs_(std::move(programs)),
      period_ns_(1'000'000'000 / std::max(1u, options.frequency_hz)),
      adopt_(options.pids),
      adopt_all_(options.all),
      queue_(options.queue_bytes),
      unwinder_(
          queue_, events_.largest_size(), std::move(sink), [this](size_t index) { resize(index); },
          options.stop_threads ? [this](pid_t pid, pid_t tid) { stopper_->begin(pid, tid); }
                               : std::function<void(pid_t, pid_t)>()),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      wanted_size_(events_.largest_size()) {
  busy_until_ns_ = monotonic_ns() + 10 * kBusyNs;
  if (adopt_all_) machine_cpu_before_ns_ = machine_cpu_ns();
  if (options.stop_threads) {
    block_sampler_signals();
    stopper_ = std::make_unique<StopSampler>(
        period_ns_,
        StopEvents{.begun = [this](pid_t pid, pid_t tid,
                                   uint64_t time_ns) { unwinder_.stopped_begun(pid, tid, time_ns); },
                   .stopped =
                       [this](pid_t pid, pid_t tid, uint64_t time_ns, const unwind::Registers& registers) {
                         if (!unwinder_.stopped_sample(pid, tid, time_ns, period_ns_, registers))
                           stopper_->end(tid);
                       },
                   .ended = [this](pid_t tid, uint64_t time_ns) { unwinder_.stopped_ended(tid, time_ns); }});
  }
  if (programs_) {
    programs_->set_stack_bytes(kStackSizes[wanted_size_.load(std::memory_order_relaxed)]);
    unwinder_.expect_walked(
        period_ns_,
        [this](const clew_bpf_file& file, const process::Module& module) {
          if (programs_->half_empty()) programs_->load_table(file, module);
        },
        [this](const clew_bpf_file& file, const process::Module& module) {
          programs_->load_table(file, module);
        });
  }
  unwind_thread_ = std::thread([this] { unwind(); });
  drain_thread_ = std::thread([this] { drain(); });
  pthread_setname_np(unwind_thread_.native_handle(), "clew-unwind");
  pthread_setname_np(drain_thread_.native_handle(), "clew-drain");
}

Session::~Session() { stop(); }

void Session::resize(size_t index) {
  wanted_size_.store(index, std::memory_order_relaxed);
  const uint64_t one = 1;
  if (write(wake_.get(), &one, sizeof one) < 0) return;  // full: a wake-up is due already
}

void Session::drain_once() {
  std::unique_ptr<Round> round = queue_.fresh();
  round->start_ns = monotonic_ns();
  const size_t room = queue_.room();
  const bool with_callchain = events_.with_callchain();
  uint64_t malformed = 0;
  uint64_t dropped = 0;
  bool sideband = false;
  for (Ring& ring : events_.rings()) {
    ring.drain(malformed, [&](const RecordView& record) {
      const size_t used = round->bytes.size();
      const AppendResult result =
          append_record(record, with_callchain, room > used ? room - used : 0, *round);
      malformed += result.malformed;
      dropped += result.dropped;
      sideband |= record.type() != PERF_RECORD_SAMPLE;
    });
  }
  if (programs_) {
    AppendResult result;
    programs_->drain(*round, room, result);
    malformed += result.malformed;
    dropped += result.dropped;
  }
  if (sideband) busy_until_ns_ = std::max(busy_until_ns_, round->start_ns + kBusyNs);
  malformed_.fetch_add(malformed, std::memory_order_relaxed);
  lost_in_queue_.fetch_add(dropped, std::memory_order_relaxed);
  queue_.push(std::move(round));
}

void Session::drain() {
  ask_for_short_slice();
  std::vector<pollfd> waits;
  waits.push_back({.fd = wake_.get(), .events = POLLIN, .revents = 0});
  for (const int fd : events_.ring_fds()) waits.push_back({.fd = fd, .events = POLLIN, .revents = 0});
  while (!stopping_.load(std::memory_order_acquire)) {
    const uint64_t now_ns = monotonic_ns();
    poll(waits.data(), waits.size(), now_ns < busy_until_ns_ ? kBusyWaitMs : kWaitMs);
    for (pollfd& wait : waits) {
      // An event that is over reports so at every poll; its ring is still read by the clock.
      if ((wait.revents & (POLLHUP | POLLERR)) != 0) wait.fd = -1;
    }
    if ((waits[0].revents & POLLIN) != 0) {
      uint64_t count = 0;
      if (read(wake_.get(), &count, sizeof count) < 0) count = 0;
    }
    const size_t wanted = wanted_size_.load(std::memory_order_relaxed);
    if (wanted != events_.size_index()) {
      events_.switch_to(wanted);
      if (programs_) programs_->set_stack_bytes(kStackSizes[wanted]);
      confirm_at_ns_ = now_ns + kConfirmNs;
    } else if (confirm_at_ns_ != 0 && now_ns >= confirm_at_ns_) {
      events_.confirm_switch();
      confirm_at_ns_ = 0;
    }
    drain_once();
  }
  drain_once();
  queue_.close();
}

void Session::unwind() {
  // The events are open: which programs come and go and what these processes map from now on arrives as
  // records.
  if (events_.with_callchain()) unwinder_.bpf_functions().load_all();
  for (const pid_t pid : adopt_all_ ? running_processes() : adopt_) unwinder_.tree().adopt(pid);
  while (std::unique_ptr<Round> round = queue_.pop()) unwinder_.take(std::move(round));
  unwinder_.finish();
  tree_notes_ = unwinder_.tree().take_notes();
}

Counters Session::counters() const {
  if (stopped_) return final_;
  const UnwindCounters& from = unwinder_.counters();
  Counters counters;
  counters.samples = from.samples.load(std::memory_order_relaxed);
  counters.complete = from.complete.load(std::memory_order_relaxed);
  counters.lost = from.lost.load(std::memory_order_relaxed) + lost_in_queue_.load(std::memory_order_relaxed);
  return counters;
}

void Session::stop() {
  if (stopped_) return;
  events_.stop();
  if (programs_) programs_->stop();
  if (stopper_) stopper_->stop();
  stopping_.store(true, std::memory_order_release);
  resize(wanted_size_.load(std::memory_order_relaxed));
  drain_thread_.join();
  unwind_thread_.join();
  final_ = counters();
  final_.cpu_used_ns = adopt_all_ ? machine_cpu_ns() - machine_cpu_before_ns_ : events_.cpu_time_ns();
  // LOST records are written only when a later record fits; the kernel's own count misses none.
  uint64_t in_kernel =
      std::max(unwinder_.counters().lost.load(std::memory_order_relaxed), events_.kernel_lost());
  if (programs_) {
    const clew_bpf_counts counts = programs_->counts();
    in_kernel += counts.lost;
    final_.bpf_ns = counts.run_ns;
  }
  final_.lost = in_kernel + lost_in_queue_.load(std::memory_order_relaxed);
  stopped_ = true;
}

std::vector<std::string> Session::notes() const {
  std::vector<std::string> notes = events_.notes();
  std::ranges::copy(tree_notes_, std::back_inserter(notes));
  const auto add = [&notes](uint64_t count, const char* text) {
    if (count != 0) notes.push_back(std::to_string(count) + text);
  };
  if (stopper_ && !stopper_->problem().empty()) {
    notes.push_back("threads with several stacks could not be stopped to read them: " + stopper_->problem());
  }
  if (programs_) {
    const clew_bpf_counts counts = programs_->counts();
    notes.push_back(std::to_string(counts.walked) + " samples were unwound in the kernel, " +
                    std::to_string(counts.shipped) + " by clew from copies of their stacks");
    add(counts.missed,
        " of those were due inside a BPF program (a kprobe's, a classic tracepoint's) that keeps clew's own "
        "from running: taken by the timer's tracepoint");
    if (!programs_->sees_inside_programs()) {
      notes.emplace_back(
          "there are no samples of the time inside BPF programs of kprobes and classic tracepoints: the "
          "kernel's "
          "BTF lacks its per-CPU variables");
    }
  }
  if (programs_ && programs_->tables_without_room() != 0) {
    notes.push_back(
        std::to_string(programs_->tables_without_room()) +
        " tables had no room in the kernel: stacks through their files were unwound by clew itself");
  }
  const UnwindCounters& from = unwinder_.counters();
  add(from.throttled.load(std::memory_order_relaxed),
      " times the kernel paused sampling (kernel.perf_cpu_time_max_percent)");
  add(lost_in_queue_.load(std::memory_order_relaxed),
      " samples were dropped because unwinding did not keep up");
  add(malformed_.load(std::memory_order_relaxed) + from.unknown.load(std::memory_order_relaxed),
      " records of the kernel were not understood");
  return notes;
}

}  // namespace clew::collect::perf
