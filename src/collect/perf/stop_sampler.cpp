#include "collect/perf/stop_sampler.hpp"

#include <elf.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>

#include "collect/perf/perf_event.hpp"
#include "process/clock.hpp"

namespace clew::collect::perf {

namespace {

constexpr size_t kMostTraced = 256;
constexpr int kTrapPerf = 6;                       // si_code TRAP_PERF
constexpr uint64_t kCookie = 0x636c6577'73746f70;  // attr.sig_data, which comes back in si_perf_data
constexpr size_t kPerfDataOffset = 24;             // of si_perf_data in siginfo_t, <asm-generic/siginfo.h>
constexpr uint64_t kLeaveNs = 2'000'000'000;       // for all threads to be let go of at the end

/// ptrace with data that is a number: glibc's declaration takes a pointer.
long trace(int request, pid_t tid, unsigned long data) {
  return ptrace(static_cast<__ptrace_request>(request), tid, nullptr, data);
}

bool is_our_trap(const siginfo_t& info) {
  uint64_t cookie = 0;
  std::memcpy(&cookie, reinterpret_cast<const char*>(&info) + kPerfDataOffset, sizeof cookie);
  return info.si_signo == SIGTRAP && info.si_code == kTrapPerf && cookie == kCookie;
}

/// A thread that blocks SIGTRAP would only stop later, elsewhere; one that is traced has a debugger.
bool can_be_stopped(pid_t pid, pid_t tid) {
  const std::string path = "/proc/" + std::to_string(pid) + "/task/" + std::to_string(tid) + "/status";
  std::FILE* file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return false;
  char line[256];
  bool can = true;
  while (std::fgets(line, sizeof line, file) != nullptr) {
    int tracer = 0;
    unsigned long long blocked = 0;
    if (std::sscanf(line, "TracerPid: %d", &tracer) == 1 && tracer != 0) can = false;
    if (std::sscanf(line, "SigBlk: %llx", &blocked) == 1 && (blocked >> (SIGTRAP - 1) & 1) != 0) can = false;
  }
  std::fclose(file);
  return can;
}

sigset_t awaited_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);  // a traced thread stopped or ended
  sigaddset(&set, SIGURG);   // a request, or the end
  return set;
}

}  // namespace

StopSampler::StopSampler(uint64_t period_ns, StopEvents events)
    : period_ns_(period_ns), events_(std::move(events)) {
  thread_ = std::thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), "clew-stop");
}

StopSampler::~StopSampler() { stop(); }

void StopSampler::begin(pid_t pid, pid_t tid) {
  const std::lock_guard lock(mutex_);
  // Every sample of such a thread asks again until it is traced.
  if (stopping_.load() || std::ranges::any_of(requests_, [tid](const Request& is) { return is.tid == tid; }))
    return;
  requests_.push_back({pid, tid, true});
  pthread_kill(thread_.native_handle(), SIGURG);
}

void StopSampler::end(pid_t tid) {
  const std::lock_guard lock(mutex_);
  if (stopping_.load()) return;
  requests_.push_back({0, tid, false});
  pthread_kill(thread_.native_handle(), SIGURG);
}

void StopSampler::stop() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);  // nobody else signals the thread from here on
    stopping_.store(true);
  }
  pthread_kill(thread_.native_handle(), SIGURG);
  thread_.join();
}

std::optional<int> StopSampler::reaped(pid_t pid) {
  const std::lock_guard lock(mutex_);
  const auto found = reaped_.find(pid);
  return found == reaped_.end() ? std::nullopt : std::optional(found->second);
}

void StopSampler::run() {
  const sigset_t awaited = awaited_signals();
  uint64_t deadline_ns = 0;
  for (;;) {
    const timespec wait = {.tv_sec = 0, .tv_nsec = 100'000'000};
    sigtimedwait(&awaited, nullptr, &wait);
    if (!stopping_.load()) {
      take_requests();
    } else if (deadline_ns == 0) {
      deadline_ns = monotonic_ns() + kLeaveNs;
      std::vector<pid_t> tids;
      tids.reserve(traced_.size());
      for (const auto& [tid, traced] : traced_) tids.push_back(tid);
      for (const pid_t tid : tids) leave(tid);
    }
    int status = 0;
    pid_t tid = 0;
    while (!traced_.empty() && (tid = waitpid(-1, &status, __WALL | __WNOTHREAD | WNOHANG)) > 0)
      handle(tid, status);
    if (tid < 0 && errno == ECHILD) traced_.clear();
    if (deadline_ns != 0 && (traced_.empty() || monotonic_ns() > deadline_ns)) return;
  }
}

void StopSampler::take_requests() {
  std::vector<Request> requests;
  {
    const std::lock_guard lock(mutex_);
    requests.swap(requests_);
  }
  for (const Request& request : requests) {
    if (request.begin) {
      seize(request.pid, request.tid);
    } else if (traced_.contains(request.tid)) {
      leave(request.tid);
    }
  }
}

void StopSampler::seize(pid_t pid, pid_t tid) {
  if (traced_.contains(tid) || traced_.size() >= kMostTraced || !can_be_stopped(pid, tid)) return;
  perf_event_attr attr = {};
  attr.size = sizeof attr;
  attr.type = PERF_TYPE_SOFTWARE;
  attr.config = PERF_COUNT_SW_CPU_CLOCK;
  attr.sample_period = period_ns_;
  attr.disabled = 1;
  attr.exclude_kernel = 1;
  attr.exclude_hv = 1;
  attr.sigtrap = 1;
  attr.remove_on_exec = 1;
  attr.sig_data = kCookie;
  Traced traced;
  traced.pid = pid;
  const int fd = open_event(attr, tid, -1);
  if (fd < 0) {
    if (fd != -ESRCH) problem_ = std::string("perf_event_open with sigtrap failed: ") + std::strerror(-fd);
    return;
  }
  traced.event = process::UniqueFd(fd);
  if (trace(PTRACE_SEIZE, tid, 0) != 0) {
    if (errno != ESRCH) problem_ = std::string("ptrace failed: ") + std::strerror(errno);
    return;
  }
  // Sampled from here on: told before the first stop, so that no sample is used twice.
  events_.begun(pid, tid, monotonic_ns());
  ioctl(fd, PERF_EVENT_IOC_ENABLE, 0);
  traced_.emplace(tid, std::move(traced));
}

void StopSampler::leave(pid_t tid) {
  Traced& traced = traced_[tid];
  if (traced.leaving) return;
  traced.leaving = true;
  if (traced.event) ioctl(traced.event.get(), PERF_EVENT_IOC_DISABLE, 0);
  traced.event = process::UniqueFd();
  events_.ended(tid, monotonic_ns());
  trace(PTRACE_INTERRUPT, tid, 0);
}

bool StopSampler::is_ours(pid_t tid) const {
  siginfo_t info = {};
  return ptrace(PTRACE_GETSIGINFO, tid, nullptr, &info) == 0 && is_our_trap(info);
}

/// A trap that was raised but not yet delivered would kill a thread that nobody traces.
bool StopSampler::trap_is_pending(pid_t tid) const {
  siginfo_t infos[8] = {};
  __ptrace_peeksiginfo_args args = {.off = 0, .flags = 0, .nr = 8};
  const long count = ptrace(PTRACE_PEEKSIGINFO, tid, &args, infos);
  return std::any_of(infos, infos + std::max(0L, count), is_our_trap);
}

void StopSampler::handle(pid_t tid, int status) {
  const auto found = traced_.find(tid);
  if (WIFEXITED(status) || WIFSIGNALED(status)) {
    {
      const std::lock_guard lock(mutex_);
      reaped_[tid] = status;
    }
    if (found == traced_.end()) return;
    if (!found->second.leaving) events_.ended(tid, monotonic_ns());
    traced_.erase(found);
    return;
  }
  if (!WIFSTOPPED(status)) return;
  const int signal = WSTOPSIG(status);
  const int event = status >> 16;
  const bool leaving = found != traced_.end() && found->second.leaving;
  if (event == PTRACE_EVENT_STOP) {
    if (leaving) {
      if (trap_is_pending(tid)) {
        trace(PTRACE_CONT, tid, 0);
        trace(PTRACE_INTERRUPT, tid, 0);
        return;
      }
      trace(PTRACE_DETACH, tid, 0);
      traced_.erase(found);
      return;
    }
    // A group-stop lasts until SIGCONT; any other stop of this kind is over at once.
    trace(signal == SIGTRAP ? PTRACE_CONT : PTRACE_LISTEN, tid, 0);
    return;
  }
  if (event != 0) {
    trace(PTRACE_CONT, tid, 0);
    return;
  }
  if (signal == SIGTRAP && is_ours(tid)) {
    if (found != traced_.end() && !leaving) sample(found->second.pid, tid);
    trace(PTRACE_CONT, tid, 0);
    return;
  }
  trace(PTRACE_CONT, tid, static_cast<unsigned long>(signal));
}

void StopSampler::sample(pid_t pid, pid_t tid) {
  const uint64_t now_ns = monotonic_ns();
  user_regs_struct from = {};
  iovec place = {&from, sizeof from};
  // A number where ptrace wants an address.
  auto* const set_of_registers = reinterpret_cast<void*>(uintptr_t{NT_PRSTATUS});
  if (ptrace(PTRACE_GETREGSET, tid, set_of_registers, &place) != 0) return;
  if (place.iov_len != sizeof from) return;  // a 32-bit program
  unwind::Registers registers;
  const auto set = [&registers](clew_register number, uint64_t value) { registers.value[number] = value; };
  set(CLEW_RAX, from.rax), set(CLEW_RDX, from.rdx), set(CLEW_RCX, from.rcx), set(CLEW_RBX, from.rbx);
  set(CLEW_RSI, from.rsi), set(CLEW_RDI, from.rdi), set(CLEW_RBP, from.rbp), set(CLEW_RSP, from.rsp);
  set(CLEW_R8, from.r8), set(CLEW_R9, from.r9), set(CLEW_R10, from.r10), set(CLEW_R11, from.r11);
  set(CLEW_R12, from.r12), set(CLEW_R13, from.r13), set(CLEW_R14, from.r14), set(CLEW_R15, from.r15);
  set(CLEW_RIP, from.rip);
  registers.known = (1u << CLEW_REGISTERS) - 1;
  events_.stopped(pid, tid, now_ns, registers);
}

}  // namespace clew::collect::perf
