// Samples of threads whose stack is not in one piece (a handler on an alternate stack, a coroutine that was
// switched to): taken while the thread is stopped, because only then does reading its memory from outside
// give one instant.
//
// How: a perf event of the thread's own with attr.sigtrap raises SIGTRAP at the sampled instruction. The
// thread is under PTRACE_SEIZE, so that it stops there; its registers and memory are read, and it goes on
// without the signal. Everything else that ptrace reports is passed on as if nobody were there: signals are
// delivered, group-stops stay stopped (PTRACE_LISTEN). Nothing is inherited: children of the thread are not
// traced. Linux 5.13.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "process/process.hpp"
#include "unwind/remote.hpp"

namespace clew::collect::perf {

/// What becomes known of a thread. All calls come from the sampler's own thread.
struct StopEvents {
  /// From now on the thread is sampled here: other samples of it in user space would count twice.
  std::function<void(pid_t pid, pid_t tid, uint64_t time_ns)> begun;
  /// The thread is stopped at a sample.
  std::function<void(pid_t pid, pid_t tid, uint64_t time_ns, const unwind::Registers& registers)> stopped;
  std::function<void(pid_t tid, uint64_t time_ns)> ended;
};

/// The process must have SIGCHLD and SIGURG blocked in all of its threads (a sampler waits for them).
class StopSampler {
 public:
  StopSampler(uint64_t period_ns, StopEvents events);
  ~StopSampler();
  StopSampler(const StopSampler&) = delete;
  StopSampler& operator=(const StopSampler&) = delete;

  /// Asks that a thread be sampled here, or no longer. From any thread; returns at once.
  void begin(pid_t pid, pid_t tid);
  void end(pid_t tid);
  /// Lets go of all threads. Nothing is called afterwards.
  void stop();

  /// The wait status of a child of this process that ended while it was traced here: it was reaped by that.
  std::optional<int> reaped(pid_t pid);
  /// Why threads could not be stopped; "" where all could. After stop().
  const std::string& problem() const { return problem_; }

 private:
  struct Request {
    pid_t pid, tid;
    bool begin;
  };
  struct Traced {
    pid_t pid = 0;
    process::UniqueFd event;
    bool leaving = false;
  };

  void run();
  void take_requests();
  void seize(pid_t pid, pid_t tid);
  void leave(pid_t tid);
  void handle(pid_t tid, int status);
  bool is_ours(pid_t tid) const;
  bool trap_is_pending(pid_t tid) const;
  void sample(pid_t pid, pid_t tid);

  const uint64_t period_ns_;
  StopEvents events_;
  std::mutex mutex_;
  std::vector<Request> requests_;
  std::map<pid_t, int> reaped_;
  std::atomic<bool> stopping_ = false;
  std::map<pid_t, Traced> traced_;  // the sampler's thread only, as is:
  std::string problem_;
  std::thread thread_;
};

}  // namespace clew::collect::perf
