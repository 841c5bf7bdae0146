#include "unwind/local/threads.hpp"

#include <signal.h>
#include <time.h>

#include <algorithm>
#include <atomic>

#include "unwind/local/memory.hpp"

namespace clew::unwind::local {
namespace {

// The request that a handler answers. Its frames are here, not the caller's: a thread that answers late, when
// the caller has given up, must not write to memory that is gone.
constexpr size_t kFrames = 1024;
enum State : uint32_t { kIdle, kAsked, kAnswering, kAnswered };
std::atomic<uint32_t> state{kIdle};
std::atomic<int> asked_thread{0};
std::atomic<long> user{0};  // the process whose thread asks: a forked child's copy is nobody's
clew_frame answer[kFrames];
WalkResult answer_result;

void on_signal(int, siginfo_t*, void* ucontext) {
  if (asked_thread.load(std::memory_order_acquire) != system_call(SYS_gettid, 0, 0, 0, 0)) return;
  uint32_t expected = kAsked;
  if (!state.compare_exchange_strong(expected, kAnswering, std::memory_order_acq_rel)) return;
  answer_result = walk_frames(start_of_ucontext(ucontext), answer, kFrames);
  state.store(kAnswered, std::memory_order_release);
}

void sleep_a_little() {
  const timespec time{0, 50'000};
  nanosleep(&time, nullptr);
}

}  // namespace

WalkResult walk_thread(int tid, int signal, unsigned milliseconds, clew_frame* out, size_t capacity) {
  const long pid = system_call(SYS_getpid, 0, 0, 0, 0);
  for (long expected = 0; !user.compare_exchange_weak(expected, pid, std::memory_order_acquire);) {
    if (expected != pid) continue;
    sleep_a_little();
    expected = 0;
  }
  state.store(kIdle, std::memory_order_relaxed);
  WalkResult result{};
  struct sigaction action{}, before;
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
  sigfillset(&action.sa_mask);
  if (sigaction(signal, &action, &before) == 0) {
    asked_thread.store(tid, std::memory_order_relaxed);
    state.store(kAsked, std::memory_order_release);
    if (system_call(SYS_tgkill, pid, tid, signal, 0) == 0) {
      for (unsigned waited = 0;
           waited < milliseconds * 20 && state.load(std::memory_order_acquire) != kAnswered; ++waited)
        sleep_a_little();
    }
    // An answer that has begun is waited for: it is bounded, and writes to what the next request uses.
    uint32_t expected = kAsked;
    if (!state.compare_exchange_strong(expected, kIdle, std::memory_order_acq_rel)) {
      while (state.load(std::memory_order_acquire) != kAnswered) sleep_a_little();
      result = answer_result;
      if (result.frames > capacity) {
        result.frames = capacity;
        result.end = CLEW_END_DEPTH_LIMIT;
      }
      std::copy_n(answer, result.frames, out);
      state.store(kIdle, std::memory_order_relaxed);
    }
    // A signal that is still on its way finds the old handler, or none: then it would end the process.
    if (before.sa_handler != SIG_DFL || (before.sa_flags & SA_SIGINFO) != 0)
      sigaction(signal, &before, nullptr);
  }
  user.store(0, std::memory_order_release);
  return result;
}

}  // namespace clew::unwind::local
