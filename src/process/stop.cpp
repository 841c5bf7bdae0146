// Stopping all threads of a process by ptrace, and letting them go on as if nothing had been.
#include "process/stop.hpp"

#include <dirent.h>
#include <elf.h>
#include <fcntl.h>
#include <pwd.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <optional>
#include <string_view>
#include <utility>

#include "process/core_file.hpp"
#include "process/process.hpp"

namespace clew::process {
namespace {

constexpr uint64_t kStopTimeout_ns = 1'000'000'000;  // for all threads together, on a busy machine
constexpr uint64_t kSleepPatience_ns = 20'000'000;   // for threads in state D (vfork's parent, a dead disk)
constexpr int kMaxRounds = 1000;                     // of looking for threads that are new
constexpr uint64_t kKernelThread = 0x00200000;       // PF_KTHREAD of /proc/PID/stat's flags

uint64_t now_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

std::string read_small_file(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  char buffer[4096];
  ssize_t got;
  while (fd && text.size() < (64 << 10) && (got = read(fd.get(), buffer, sizeof buffer)) > 0)
    text.append(buffer, static_cast<size_t>(got));
  return text;
}

/// The value of "Name:\tvalue" in /proc/PID/status.
std::string_view field(std::string_view status, std::string_view name) {
  size_t at = 0;
  while (at < status.size()) {
    size_t end = status.find('\n', at);
    if (end == std::string_view::npos) end = status.size();
    std::string_view line = status.substr(at, end - at);
    if (line.starts_with(name) && line.size() > name.size() && line[name.size()] == ':') {
      line.remove_prefix(name.size() + 1);
      while (!line.empty() && (line.front() == '\t' || line.front() == ' ')) line.remove_prefix(1);
      return line;
    }
    at = end + 1;
  }
  return {};
}

uint64_t number(std::string_view text) {
  uint64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

std::string user_name(uint64_t uid) {
  const passwd* entry = getpwuid(static_cast<uid_t>(uid));
  return entry ? entry->pw_name : "with id " + std::to_string(uid);
}

/// Field 9 of /proc/PID/stat; the name in parentheses before it may hold anything.
uint64_t task_flags(pid_t pid) {
  std::string text = read_small_file("/proc/" + std::to_string(pid) + "/stat");
  size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return 0;
  std::string_view rest = std::string_view(text).substr(name_end + 1);
  for (int i = 0; i < 6; ++i) {
    size_t blank = rest.find(' ', 1);
    if (blank == std::string_view::npos) return 0;
    rest.remove_prefix(blank);
  }
  if (!rest.empty()) rest.remove_prefix(1);
  return number(rest);
}

/// State D: no signal and no ptrace wakes it before what it waits for has happened.
bool sleeps_for_good(pid_t pid, pid_t tid) {
  std::string status =
      read_small_file("/proc/" + std::to_string(pid) + "/task/" + std::to_string(tid) + "/status");
  return field(status, "State").starts_with('D');
}

std::string named(pid_t pid, std::string_view status) {
  std::string_view name = field(status, "Name");
  return "process " + std::to_string(pid) + (name.empty() ? "" : " (" + std::string(name) + ")");
}

Error gone(pid_t pid) {
  return Error{"there is no process " + std::to_string(pid) + ": it has ended, or never was"};
}

std::optional<Error> traced(pid_t pid, std::string_view status) {
  uint64_t tracer = number(field(status, "TracerPid"));
  if (tracer == 0) return std::nullopt;
  std::string tracer_status = read_small_file("/proc/" + std::to_string(tracer) + "/status");
  return Error{named(pid, status) + " is traced already, by " +
               named(static_cast<pid_t>(tracer), tracer_status) + ": detach that first"};
}

Error why_not_seized(pid_t pid, pid_t tid, int error) {
  std::string task = "/proc/" + std::to_string(pid) + "/task/" + std::to_string(tid) + "/status";
  std::string status = read_small_file(task);
  if (error == ESRCH || status.empty()) return gone(pid);
  if (auto reason = traced(pid, status)) return *reason;
  uint64_t uid = number(field(status, "Uid"));
  std::string who = named(pid, status);
  if (error == EPERM && uid != geteuid())
    return Error{who + " belongs to user " + user_name(uid) + ": run clew as that user or as root"};
  if (error == EPERM) {
    std::string scope = read_small_file("/proc/sys/kernel/yama/ptrace_scope");
    if (!scope.empty() && scope[0] != '0')
      return Error{who + " may not be traced while kernel.yama.ptrace_scope is " + scope.substr(0, 1) +
                   ": run clew as root, or set it to 0"};
    return Error{
        who + " may not be traced (setuid or not dumpable, or a sandbox forbids ptrace): run clew as root"};
  }
  return Error{who + " cannot be stopped: " + std::strerror(error)};
}

/// Calls that the kernel ends with EINTR on any interruption although nothing was done yet (signal(7)), so
/// that they can begin anew. Not close(2) and connect(2), which cannot.
bool can_begin_anew(uint64_t call) {
  switch (call) {
    case SYS_epoll_wait:
    case SYS_epoll_pwait:
    case SYS_epoll_pwait2:
    case SYS_semop:
    case SYS_semtimedop:
    case SYS_rt_sigtimedwait:
    case SYS_io_getevents:
    case SYS_io_pgetevents:
    case SYS_io_uring_enter:
    case SYS_read:
    case SYS_readv:
    case SYS_recvfrom:
    case SYS_recvmsg:
    case SYS_accept:
    case SYS_accept4:
      return true;
    default:
      return false;
  }
}

/// Inside the kernel the result of an interrupted call is still in rax here, and is looked at once more when
/// the thread goes on: ERESTARTNOHAND (514, include/linux/errno.h) begins the call anew, or ends it with
/// EINTR where a handler runs.
void restart_interrupted_call(pid_t tid, user_regs_struct& registers) {
  constexpr int64_t kRestartNoHandler = -514;
  bool in_call = static_cast<int64_t>(registers.orig_rax) >= 0;
  if (!in_call || static_cast<int64_t>(registers.rax) != -EINTR || !can_begin_anew(registers.orig_rax))
    return;
  user_regs_struct changed = registers;
  changed.rax = static_cast<unsigned long long>(kRestartNoHandler);
  iovec part{&changed, sizeof changed};
  ptrace(PTRACE_SETREGSET, tid, reinterpret_cast<void*>(NT_PRSTATUS), &part);
}

/// Tells of ended waits without delay: SIGCHLD is blocked here and waited for. Restores the mask.
class ChildSignal {
 public:
  ChildSignal() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGCHLD);
    pthread_sigmask(SIG_BLOCK, &set_, &before_);
  }
  ~ChildSignal() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  ChildSignal(const ChildSignal&) = delete;
  ChildSignal& operator=(const ChildSignal&) = delete;
  void wait() const {
    timespec limit{0, 2'000'000};  // another thread of ours may take the signal
    sigtimedwait(&set_, nullptr, &limit);
  }

 private:
  sigset_t set_;
  sigset_t before_;
};

}  // namespace

unwind::Registers registers_of(const user_regs_struct& from) {
  unwind::Registers to;
  auto set = [&to](unsigned reg, uint64_t value) {
    to.value[reg] = value;
    to.known |= 1u << reg;
  };
  set(CLEW_RAX, from.rax), set(CLEW_RBX, from.rbx), set(CLEW_RCX, from.rcx), set(CLEW_RDX, from.rdx);
  set(CLEW_RSI, from.rsi), set(CLEW_RDI, from.rdi), set(CLEW_RBP, from.rbp), set(CLEW_RSP, from.rsp);
  set(CLEW_R8, from.r8), set(CLEW_R9, from.r9), set(CLEW_R10, from.r10), set(CLEW_R11, from.r11);
  set(CLEW_R12, from.r12), set(CLEW_R13, from.r13), set(CLEW_R14, from.r14), set(CLEW_R15, from.r15);
  set(CLEW_RIP, from.rip);
  return to;
}

Result<bool> can_stop(pid_t pid) {
  std::string path = "/proc/" + std::to_string(pid) + "/status";
  std::string status = read_small_file(path);
  if (status.empty()) return gone(pid);
  if (pid == getpid()) return Error{"process " + std::to_string(pid) + " is clew itself: give another PID"};
  uint64_t process = number(field(status, "Tgid"));
  if (process != 0 && process != static_cast<uint64_t>(pid))
    return Error{std::to_string(pid) + " is a thread of process " + std::to_string(process) +
                 ": give that PID"};
  std::string_view state = field(status, "State");
  if (state.starts_with('Z') || state.starts_with('X')) {
    // A process whose first thread has ended looks like a zombie while others still run.
    if (threads(pid).size() <= 1) {
      std::string parent(field(status, "PPid"));
      return Error{named(pid, status) +
                   " is a zombie: it has ended, has no stack, and waits for its parent " + parent +
                   " to collect it"};
    }
  }
  if (task_flags(pid) & kKernelThread)
    return Error{named(pid, status) + " is a kernel thread, which has no user stack: read /proc/" +
                 std::to_string(pid) + "/stack as root"};
  if (auto reason = traced(pid, status)) return *reason;
  return true;
}

StoppedProcess::StoppedProcess(StoppedProcess&& other) noexcept
    : pid_(other.pid_),
      threads_(std::exchange(other.threads_, {})),
      began_ns_(other.began_ns_),
      resumed_ns_(other.resumed_ns_) {}

StoppedProcess::~StoppedProcess() { resume(); }

Result<bool> StoppedProcess::seize_new_threads(bool& found) {
  found = false;
  for (pid_t tid : process::threads(pid_)) {
    if (seen_.contains(tid)) continue;
    if (ptrace(PTRACE_SEIZE, tid, nullptr, nullptr) != 0) {
      int error = errno;
      if (error == ESRCH) continue;  // it has just ended
      // A thread that has ended but is not collected (a first thread that called pthread_exit) cannot be
      // seized.
      std::string status =
          read_small_file("/proc/" + std::to_string(pid_) + "/task/" + std::to_string(tid) + "/status");
      if (status.empty() || field(status, "State").starts_with('Z') ||
          field(status, "State").starts_with('X'))
        continue;
      return why_not_seized(pid_, tid, error);
    }
    if (began_ns_ == 0) began_ns_ = now_ns();
    StoppedThread thread;
    thread.tid = tid;
    threads_.push_back(thread);
    seen_.insert(tid);
    ptrace(PTRACE_INTERRUPT, tid, nullptr, nullptr);
    found = true;
  }
  return true;
}

void StoppedProcess::wait_for_all(uint64_t deadline_ns) {
  ChildSignal child;
  uint64_t last_moved = now_ns();
  bool waiting = true;
  while (waiting) {
    waiting = false;
    bool moved = false;
    for (size_t i = 0; i < threads_.size();) {
      StoppedThread& thread = threads_[i];
      int status = 0;
      pid_t got = thread.stopped ? 0 : waitpid(thread.tid, &status, WNOHANG | __WALL);
      if (thread.stopped || got == 0) {
        waiting |= !thread.stopped;
        ++i;
        continue;
      }
      moved = true;
      if (got < 0 || !WIFSTOPPED(status)) {  // it ended
        threads_.erase(threads_.begin() + static_cast<ptrdiff_t>(i));
        continue;
      }
      thread.stopped = true;
      // A stop without an event is a signal on its way, which resume() passes on; all others leave nothing to
      // give back.
      if (status >> 16 == 0) thread.signal = WSTOPSIG(status);
      // A group stop's event carries the stopping signal, an interruption's SIGTRAP (ptrace(2)).
      thread.interrupted = status >> 16 == PTRACE_EVENT_STOP && WSTOPSIG(status) == SIGTRAP;
      ++i;
    }
    if (!waiting || threads_.empty()) break;
    uint64_t now = now_ns();
    if (moved) last_moved = now;
    if (now > deadline_ns) break;
    if (now - last_moved > kSleepPatience_ns && std::ranges::all_of(threads_, [this](const StoppedThread& t) {
          return t.stopped || sleeps_for_good(pid_, t.tid);
        }))
      break;
    if (!moved) child.wait();
  }
}

Result<bool> StoppedProcess::read_registers() {
  for (StoppedThread& thread : threads_) {
    if (!thread.stopped) continue;
    user_regs_struct registers;
    iovec part{&registers, sizeof registers};
    if (ptrace(PTRACE_GETREGSET, thread.tid, reinterpret_cast<void*>(NT_PRSTATUS), &part) != 0) {
      thread.stopped = false;  // killed meanwhile
      continue;
    }
    if (part.iov_len != sizeof registers)
      return Error{"process " + std::to_string(pid_) + " is a 32-bit program: only x86-64 is supported"};
    thread.registers = registers_of(registers);
    thread.just_begun = just_begun(registers.orig_rax, registers.rax);
    if (thread.interrupted) restart_interrupted_call(thread.tid, registers);
  }
  return true;
}

Result<StoppedProcess> StoppedProcess::stop(pid_t pid) {
  StoppedProcess process(pid);
  uint64_t deadline = now_ns() + kStopTimeout_ns;
  // Ends at a list that shows nothing new and was read while all known threads stood still: only running
  // threads make new ones. Who makes them faster than this stops them is caught in some round.
  for (int round = 0; round < kMaxRounds && now_ns() < deadline; ++round) {
    bool found = false;
    Result<bool> seized = process.seize_new_threads(found);
    if (!seized) return Error{seized.error()};
    if (!found) break;
    process.wait_for_all(deadline);
  }
  if (process.threads_.empty()) return gone(pid);
  Result<bool> read = process.read_registers();
  if (!read) return Error{read.error()};
  return process;
}

void StoppedProcess::resume() {
  for (const StoppedThread& thread : threads_) {
    if (ptrace(PTRACE_DETACH, thread.tid, nullptr,
               reinterpret_cast<void*>(static_cast<intptr_t>(thread.signal))) == 0 ||
        thread.stopped)
      continue;
    // It had not stopped, and cannot be detached while it runs. If it stops now, it goes on at once; else the
    // kernel lets go of it when clew ends.
    int status = 0;
    if (waitpid(thread.tid, &status, WNOHANG | __WALL) == thread.tid && WIFSTOPPED(status)) {
      intptr_t signal = status >> 16 == 0 ? WSTOPSIG(status) : 0;
      ptrace(PTRACE_DETACH, thread.tid, nullptr, reinterpret_cast<void*>(signal));
    }
  }
  if (!threads_.empty()) resumed_ns_ = now_ns();
  threads_.clear();
}

// ---- Memory ----

StoppedTarget::StoppedTarget(pid_t pid, const AddressSpace& space)
    : pid_(pid), space_(space), pages_(std::make_unique<std::array<Page, kPages>>()) {}

const StoppedTarget::Page& StoppedTarget::page_at(uint64_t address) {
  uint64_t start = address & ~uint64_t{kPageBytes - 1};
  Page& page = (*pages_)[start / kPageBytes % kPages];
  if (page.address != start) {
    page.address = start;
    page.readable = read_memory(pid_, start, page.bytes);
  }
  return page;
}

bool StoppedTarget::read(uint64_t address, void* out, size_t size) {
  auto* bytes = static_cast<std::byte*>(out);
  if (address + size < address) return false;
  while (size > 0) {
    const Page& page = page_at(address);
    size_t within = address % kPageBytes;
    size_t here = std::min(size, kPageBytes - within);
    if (within + here > page.readable) return false;
    std::memcpy(bytes, page.bytes.data() + within, here);
    bytes += here;
    address += here;
    size -= here;
  }
  return true;
}

bool StoppedTarget::find(uint64_t address, unwind::Code& code) { return find_code(space_, address, code); }

}  // namespace clew::process
