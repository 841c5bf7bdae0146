// One sample: unwind, write, go on.
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "agent/agent.hpp"
#include "agent/process_ring.hpp"
#include "clew/unwind.h"
#include "process/clock.hpp"
#include "unwind/local/memory.hpp"

namespace clew::agent {
namespace {

using unwind::local::system_call;

constexpr unsigned kAskEvery = 256;  // samples of a thread
std::atomic<bool> quiet{false};

}  // namespace

bool recorder_is_gone() { return system_call(SYS_kill, config.recorder, 0, 0, 0) == -ESRCH; }

bool is_quiet() { return quiet.load(std::memory_order_relaxed); }

void be_quiet() {
  quiet.store(true, std::memory_order_relaxed);
  if (clew_agent_thread != nullptr) disarm(clew_agent_thread);
}

extern "C" __attribute__((visibility("hidden"))) void clew_agent_sample(Thread* thread, const siginfo_t* info,
                                                                        void* ucontext) {
  if (is_quiet()) return;
  const uint64_t begin_ns = monotonic_ns();
  bool never = false;
  RingHeader* to = ring(never);
  if (to == nullptr) {
    if (never) disarm(thread);
    return;
  }
  if (to->stop.load(std::memory_order_relaxed) != 0 ||
      (++thread->samples % kAskEvery == 0 && recorder_is_gone())) {
    disarm(thread);
  } else {
    const clew_trace trace = clew_unwind_ucontext(ucontext, thread->frames, kMostFrames);
    write_new_mappings(thread->frames, trace.frames);
    SampleHead head = {
        .time_ns = begin_ns,
        .tid = static_cast<uint32_t>(thread->tid),
        .periods = thread->samples == 1 ? thread->first_periods : 1 + static_cast<uint32_t>(info->si_overrun),
        .end = trace.end,
        .comm = {}};
    system_call(SYS_prctl, PR_GET_NAME, reinterpret_cast<long>(head.comm), 0, 0);
    if (!write_sample(head, thread->frames, trace.frames) && recorder_is_gone()) disarm(thread);
  }
  to->handler_ns.fetch_add(monotonic_ns() - begin_ns, std::memory_order_relaxed);
}

}  // namespace clew::agent
