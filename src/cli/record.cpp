// clew record: runs a command, or watches processes that run already, and writes the profile.
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cli/cli.hpp"
#include "cli/profile_sink.hpp"
#include "collect/bpf/programs.hpp"
#include "collect/collector.hpp"
#include "collect/inprocess/session.hpp"
#include "collect/perf/session.hpp"
#include "process/clock.hpp"
#include "process/process.hpp"
#include "profile/profile.hpp"

namespace clew::cli {

namespace {

using collect::Collector;
using collect::Counters;
using process::UniqueFd;

constexpr int kClewFailed = 125;  // with a command, whose own status 2 may be
constexpr int kFailed = 2;
constexpr uint64_t kGraceNs = 2'000'000'000;  // for a command to end after Ctrl-C
constexpr double kMostSeconds = 1e9;          // as nanoseconds it fits 64 bits
constexpr uint64_t kProgressNs = 500'000'000;

uint64_t ns_of(const timeval& time) {
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_usec) * 1000;
}

uint64_t own_cpu_ns() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return ns_of(usage.ru_utime) + ns_of(usage.ru_stime);
}

/// The signals that end a recording, blocked for all threads and read from a descriptor.
class EndSignals {
 public:
  EndSignals() {
    sigset_t set;
    sigemptyset(&set);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) sigaddset(&set, signal);
    pthread_sigmask(SIG_BLOCK, &set, &before_);
    fd_ = UniqueFd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  }
  ~EndSignals() { restore(); }
  EndSignals(const EndSignals&) = delete;
  EndSignals& operator=(const EndSignals&) = delete;

  int fd() const { return fd_.get(); }
  std::optional<signalfd_siginfo> next() {
    signalfd_siginfo info = {};
    if (read(fd_.get(), &info, sizeof info) != ssize_t{sizeof info}) return std::nullopt;
    return info;
  }
  /// As it was before: for the command.
  void restore() const { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_ = {};
  UniqueFd fd_;
};

/// The command, forked but waiting for release() before its exec.
class Command {
 public:
  using Environment = std::vector<std::pair<std::string, std::string>>;
  /// `environment` is set in the command's own.
  static Result<Command> fork_waiting(const std::vector<std::string>& words, const EndSignals& signals,
                                      const Environment& environment) {
    std::array<int, 2> go = {}, failure = {};
    if (pipe2(go.data(), O_CLOEXEC) != 0)
      return Error{std::string("cannot make a pipe: ") + std::strerror(errno)};
    Command command;
    command.go_ = UniqueFd(go[1]);
    const UniqueFd go_read(go[0]);
    if (pipe2(failure.data(), O_CLOEXEC) != 0) {
      return Error{std::string("cannot make a pipe: ") + std::strerror(errno)};
    }
    command.failure_ = UniqueFd(failure[0]);
    const UniqueFd failure_write(failure[1]);
    std::vector<char*> argv;
    argv.reserve(words.size() + 1);
    for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    command.pid_ = fork();
    if (command.pid_ < 0) return Error{std::string("cannot start a process: ") + std::strerror(errno)};
    if (command.pid_ == 0) {
      close(go[1]);
      signals.restore();
      for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
      char byte = 0;
      if (read(go[0], &byte, 1) != 1) _exit(kClewFailed);  // the recorder gave up
      execvp(argv[0], argv.data());
      const int error = errno;
      if (::write(failure[1], &error, sizeof error) < 0) _exit(kClewFailed);
      _exit(kClewFailed);
    }
    return command;
  }
  Command(Command&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)),
        released_(other.released_),
        go_(std::move(other.go_)),
        failure_(std::move(other.failure_)) {}
  Command& operator=(Command&&) = delete;
  ~Command() {
    go_ = UniqueFd();  // a child that still waits ends
    if (pid_ > 0 && !released_) waitpid(pid_, nullptr, 0);
  }

  pid_t pid() const { return pid_; }
  /// Lets the command run; errno of its exec where that failed, else 0.
  int release() {
    released_ = true;
    const char byte = 1;
    if (write(go_.get(), &byte, 1) != 1) return errno;
    int error = 0;
    ssize_t got;
    while ((got = read(failure_.get(), &error, sizeof error)) < 0 && errno == EINTR) {
    }
    if (got != ssize_t{sizeof error}) return 0;
    waitpid(pid_, nullptr, 0);
    return error;
  }

 private:
  Command() = default;
  pid_t pid_ = -1;
  bool released_ = false;
  UniqueFd go_, failure_;
};

std::string joined(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) line += (line.empty() ? "" : " ") + word;
  return line;
}

int exit_status(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

/// One line on a terminal, rewritten; nothing elsewhere.
class Progress {
 public:
  Progress() : on_(isatty(STDERR_FILENO) != 0) {}
  ~Progress() { clear(); }
  bool on() const { return on_; }
  void recording(uint64_t elapsed_ns, const Counters& counters) {
    if (!on_) return;
    const double complete = counters.samples == 0 ? 100.0
                                                  : 100.0 * static_cast<double>(counters.complete) /
                                                        static_cast<double>(counters.samples);
    std::fprintf(stderr, "\r\033[Kclew: %.0f s, %lu samples, %.2f %% complete%s",
                 static_cast<double>(elapsed_ns) / 1e9, counters.samples, complete,
                 counters.lost != 0 ? (", " + std::to_string(counters.lost) + " lost").c_str() : "");
    std::fflush(stderr);
    drawn_ = true;
  }
  void symbolizing(size_t files) {
    if (!on_) return;
    std::fprintf(stderr, "\r\033[Kclew: symbolizing, %zu files left", files);
    std::fflush(stderr);
    drawn_ = true;
  }
  void clear() {
    if (drawn_) std::fputs("\r\033[K", stderr);
    drawn_ = false;
  }

 private:
  bool on_;
  bool drawn_ = false;
};

int fail(const std::string& message, bool with_command) {
  std::fprintf(stderr, "clew: %s\n", message.c_str());
  return with_command ? kClewFailed : kFailed;
}

std::optional<std::string> wrong_options(const RecordOptions& options) {
  const int targets =
      (options.command.empty() ? 0 : 1) + (options.pids.empty() ? 0 : 1) + (options.all ? 1 : 0);
  if (targets == 0) return "nothing to record: give -- COMMAND, -p PID or -a";
  if (targets > 1) return "give only one of -- COMMAND, -p PID and -a";
  if (options.frequency_hz == 0 || options.frequency_hz > 100'000) {
    return "-F " + std::to_string(options.frequency_hz) + ": the frequency must lie between 1 and 100000 Hz";
  }
  // Not a number compares false.
  if (!(options.duration_s >= 0 && options.duration_s <= kMostSeconds)) {
    return "--duration: give the seconds to record, 0 for as long as it runs";
  }
  if (options.collector != "auto" && options.collector != "bpf" && options.collector != "perf" &&
      options.collector != "inprocess") {
    return "no collector '" + options.collector + "': use auto, bpf, perf or inprocess";
  }
  if (options.off_cpu_ms && !(*options.off_cpu_ms >= 0 && *options.off_cpu_ms <= kMostSeconds * 1e3)) {
    return "--off-cpu: give the least milliseconds that a wait must take to be recorded";
  }
  if (options.off_cpu_ms && options.collector != "auto" && options.collector != "bpf") {
    return "--off-cpu is the bpf collector's: leave --collector " + options.collector + " out";
  }
  if (options.collector == "inprocess" && options.command.empty()) {
    return "--collector inprocess enters a command when it starts: give -- COMMAND";
  }
  for (const int pid : options.pids) {
    if (pid <= 0) return "-p " + std::to_string(pid) + ": not a process; give a PID, as ps shows it";
    if (pid == getpid()) return "-p " + std::to_string(pid) + ": clew does not record itself";
  }
  return std::nullopt;
}

/// The command's file; why it cannot run, found out before anything is written.
Result<std::string> find_command(const std::string& name) {
  const auto problem = [&name](const char* why) { return Error{"cannot run '" + name + "': " + why}; };
  if (name.empty()) return problem("the name is empty");
  if (name.find('/') != std::string::npos) {
    struct stat file = {};
    if (stat(name.c_str(), &file) != 0) return problem(std::strerror(errno));
    if (S_ISDIR(file.st_mode)) return problem("it is a directory");
    if (access(name.c_str(), X_OK) != 0) return problem(std::strerror(errno));
    return name;
  }
  const char* search = std::getenv("PATH");
  std::string path = search != nullptr ? search : "/bin:/usr/bin";
  for (size_t at = 0; at <= path.size();) {
    const size_t end = std::min(path.find(':', at), path.size());
    std::string file = end == at ? "." : path.substr(at, end - at);
    file.append("/").append(name);
    if (access(file.c_str(), X_OK) == 0) return file;
    at = end + 1;
  }
  return problem("no such command in PATH");
}

struct Outcome {
  int status = 0;  // what clew exits with
  bool command_runs = false;
  std::optional<uint64_t> command_cpu_ns;
};

/// How the command ended, and the CPU time of it and of all its descendants that were waited for.
struct Ended {
  int status = 0;
  std::optional<uint64_t> cpu_ns;
};

/// Nothing while the command runs (`flags` 0: waits for it); tracing may have reaped it.
std::optional<Ended> ended(pid_t pid, Collector& collector, int flags) {
  for (;;) {
    int status = 0;
    rusage usage = {};
    const pid_t got = wait4(pid, &status, flags, &usage);
    if (got == pid && (WIFEXITED(status) || WIFSIGNALED(status)))
      return Ended{.status = status, .cpu_ns = ns_of(usage.ru_utime) + ns_of(usage.ru_stime)};
    if (got < 0 && errno == ECHILD) {
      if (const auto reaped = collector.reaped(pid)) return Ended{.status = *reaped, .cpu_ns = std::nullopt};
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // reaped just now, to be told at once
      if (const auto reaped = collector.reaped(pid)) return Ended{.status = *reaped, .cpu_ns = std::nullopt};
      return std::nullopt;
    }
    if (got == 0) return std::nullopt;
  }
}

/// Waits until the recording is over: the command or all processes ended, the time is up, or the user stops
/// it.
Outcome wait_for_end(const RecordOptions& options, const Command* command, Collector& collector,
                     EndSignals& signals, Progress& progress) {
  std::vector<UniqueFd> processes;
  const auto watch = [&](pid_t pid) {
    processes.emplace_back(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  };
  if (command != nullptr) watch(command->pid());
  for (const int pid : options.pids) watch(pid);
  std::vector<pollfd> waits;
  waits.push_back({.fd = signals.fd(), .events = POLLIN, .revents = 0});
  for (const UniqueFd& process : processes)
    waits.push_back({.fd = process.get(), .events = POLLIN, .revents = 0});

  const uint64_t start_ns = monotonic_ns();
  uint64_t deadline_ns = UINT64_MAX;
  if (options.duration_s > 0) deadline_ns = start_ns + static_cast<uint64_t>(options.duration_s * 1e9);
  Outcome outcome;
  outcome.command_runs = command != nullptr;
  int stopped_by = 0;
  for (;;) {
    const uint64_t now_ns = monotonic_ns();
    if (now_ns >= deadline_ns) break;
    uint64_t wait_ns = deadline_ns - now_ns;
    if (progress.on()) wait_ns = std::min(wait_ns, kProgressNs);
    const int timeout = static_cast<int>(std::min<uint64_t>(wait_ns / 1'000'000 + 1, 1'000'000));
    poll(waits.data(), waits.size(), timeout);
    progress.recording(monotonic_ns() - start_ns, collector.counters());

    bool over = false;
    while (const auto signal = signals.next()) {
      const auto number = static_cast<int>(signal->ssi_signo);
      if (command == nullptr || stopped_by != 0) over = true;
      stopped_by = number;
      if (command == nullptr) continue;
      // From the terminal the command got it as well, as in a shell; what was sent to clew alone is passed
      // on.
      if (signal->ssi_code <= 0) kill(command->pid(), number);
      deadline_ns = std::min(deadline_ns, monotonic_ns() + kGraceNs);
    }
    if (over) break;
    bool any_alive = options.all;
    for (size_t i = 1; i < waits.size(); ++i) {
      if ((waits[i].revents & POLLIN) != 0) waits[i].fd = -1;
      any_alive |= waits[i].fd >= 0;
    }
    if (!any_alive) break;
  }
  if (command != nullptr) {
    if (const auto end = ended(command->pid(), collector, WNOHANG)) {
      outcome.status = exit_status(end->status);
      outcome.command_cpu_ns = end->cpu_ns;
      outcome.command_runs = false;
    } else if (stopped_by != 0) {
      outcome.status = 128 + stopped_by;
      outcome.command_runs = false;  // it takes its time to end: not clew's to wait for
    }
  }
  return outcome;
}

/// CPU time of a running process so far.
std::optional<uint64_t> cpu_ns_of(pid_t pid) {
  clockid_t clock = 0;
  timespec time = {};
  if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &time) != 0) return std::nullopt;
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

/// A collector that samples, or is about to, and the command, which waits for its release.
struct Started {
  std::unique_ptr<Collector> collector;
  std::optional<Command> command;
  std::string name;  // of the collector
  std::vector<std::string> notes;
};

/// By perf's events alone, or with BPF programs that take and unwind the samples.
Result<Started> start_events(const RecordOptions& options, bool bpf, const EndSignals& signals,
                             collect::Sink sink) {
  Started started;
  started.name = bpf ? "bpf" : "perf";
  if (bpf) {
    if (const std::string why = collect::bpf::Programs::forbidden(); !why.empty()) return Error{why};
  }
  collect::perf::SessionOptions session_options;
  session_options.bpf = bpf;
  session_options.frequency_hz = options.frequency_hz;
  session_options.pids.assign(options.pids.begin(), options.pids.end());
  session_options.all = options.all;
  session_options.stop_threads = options.stop_for_other_stacks;
  if (options.off_cpu_ms) session_options.least_blocked_ns = static_cast<uint64_t>(*options.off_cpu_ms * 1e6);
  if (!options.command.empty()) {
    auto forked = Command::fork_waiting(options.command, signals, {});
    if (!forked) return Error{forked.error()};
    session_options.command = forked->pid();
    started.command.emplace(std::move(*forked));
  }
  auto session = collect::perf::Session::start(session_options, std::move(sink));
  if (!session) return Error{session.error()};
  started.collector = std::move(*session);
  return started;
}

Result<Started> start_inprocess(const RecordOptions& options, const std::string& file,
                                const EndSignals& signals, collect::Sink sink) {
  Started started;
  started.name = "inprocess";
  auto session = collect::inprocess::Session::start(options.frequency_hz, std::move(sink));
  if (!session) return Error{session.error()};
  auto forked = Command::fork_waiting(options.command, signals, (*session)->environment());
  if (!forked) return Error{forked.error()};
  started.command.emplace(std::move(*forked));
  if (const std::string why = collect::inprocess::cannot_be_entered(file); !why.empty())
    started.notes.push_back("'" + options.command[0] + "' itself cannot be sampled: " + why);
  started.collector = std::move(*session);
  return started;
}

/// The collector that was asked for; for `auto` the first that works, which says why not the one before it.
Result<Started> start_collector(const RecordOptions& options, const std::string& file,
                                const EndSignals& signals, const collect::Sink& sink) {
  if (options.collector == "inprocess") return start_inprocess(options, file, signals, sink);
  if (options.collector == "perf") return start_events(options, false, signals, sink);
  auto bpf = start_events(options, true, signals, sink);
  if (bpf || options.collector == "bpf" || options.off_cpu_ms) return bpf;
  auto perf = start_events(options, false, signals, sink);
  if (perf) {
    perf->notes.push_back("recorded by perf: " + bpf.error());
    return perf;
  }
  if (options.command.empty()) return perf;
  auto inprocess = start_inprocess(options, file, signals, sink);
  if (!inprocess) return perf;
  inprocess->notes.push_back("recorded from inside the program, because perf is not to be had: " +
                             perf.error());
  return inprocess;
}

}  // namespace

int record(const RecordOptions& options) {
  const bool with_command = !options.command.empty();
  if (const auto wrong = wrong_options(options)) return fail(*wrong, with_command);

  EndSignals signals;
  std::string file;
  if (with_command) {
    auto found = find_command(options.command[0]);
    if (!found) return fail(found.error(), true);
    file = std::move(*found);
  }

  ProfileSink sink;
  const uint64_t start_ns = monotonic_ns();
  auto started =
      start_collector(options, file, signals, [&sink](const collect::Trace& trace) { sink.add(trace); });
  if (!started) return fail(started.error(), with_command);
  Collector& collector = *started->collector;
  std::optional<Command>& command = started->command;
  if (auto opened = sink.open(options.output, collector.period_ns()); !opened) {
    return fail(opened.error(), with_command);
  }

  if (command) {
    if (const int error = command->release(); error != 0) {
      collector.stop();
      return fail("cannot run '" + options.command[0] + "': " + std::strerror(error), true);
    }
  }
  Progress progress;
  Outcome outcome = wait_for_end(options, command ? &*command : nullptr, collector, signals, progress);
  if (command && !outcome.command_cpu_ns) outcome.command_cpu_ns = cpu_ns_of(command->pid());
  collector.stop();
  const Counters counters = collector.counters();

  profile::Totals totals;
  totals.lost = counters.lost + sink.dropped();
  totals.duration_ns = monotonic_ns() - start_ns;
  totals.cpu_used_ns = counters.cpu_used_ns.value_or(outcome.command_cpu_ns.value_or(0));
  totals.clew_cpu_ns = own_cpu_ns() + counters.overhead_ns;
  totals.bpf_cpu_ns = counters.bpf_ns;
  totals.collector = started->name;
  totals.command = joined(options.command);
  totals.notes = std::move(started->notes);
  std::ranges::copy(collector.notes(), std::back_inserter(totals.notes));

  std::atomic<bool> written = false;
  std::thread ticker;
  if (progress.on()) {
    ticker = std::thread([&] {
      while (!written.load()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        if (const size_t files = sink.files_left(); files != 0) progress.symbolizing(files);
      }
    });
  }
  auto size = sink.finish(totals);
  written.store(true);
  if (ticker.joinable()) ticker.join();
  progress.clear();
  if (!size) return fail(size.error(), with_command);

  if (auto profile = profile::read(options.output)) {
    std::fputs(profile::summary(*profile).c_str(), stderr);
  } else {
    return fail(profile.error(), with_command);
  }
  if (command && outcome.command_runs) {  // the time was up: the command goes on, and clew ends with it
    const auto end = ended(command->pid(), collector, 0);
    outcome.status = end ? exit_status(end->status) : 0;
  }
  return outcome.status;
}

}  // namespace clew::cli
