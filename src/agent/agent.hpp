// The agent: a shared library that `clew record --collector inprocess` preloads into a command and, through
// the environment, its children. Every thread has a timer of its CPU time; its signal's handler unwinds the
// thread and writes the sample into the process's ring (ring.hpp).
//
// The handler runs on a stack of its own with all signals blocked: a program's handlers never run on that
// stack, and the program's stacks need to hold nothing but what the kernel puts there. No system call fails
// with EINTR for it: on x86 (since Linux 5.9, POSIX_CPU_TIMERS_TASK_WORK) the kernel looks whether a timer of
// CPU time has expired on its way back to the program, when a call is over.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "agent/ring.hpp"
#include "clew/frame.h"

namespace clew::agent {

/// What the recorder asked for. Set before main, then constant.
struct Config {
  char directory[256] = {};
  int recorder = 0;
  uint64_t period_ns = 0;  // 0: there is no recorder, and the agent does nothing
};
extern Config config;

/// A thread that is sampled, at the upper end of its own mapping; the handler's stack lies below.
struct Thread {
  uintptr_t stack_top;  // where entry.cpp reads it
  void* (*start)(void*);
  void* argument;
  pid_t tid;
  int timer;
  bool armed;
  unsigned destructor_rounds;
  unsigned samples;
  uint32_t first_periods;  // that the first sample stands for
  clew_frame frames[kMostFrames];
};

/// A thread's mapping; null where memory is short. Its timer does not run yet.
Thread* make_thread();
void free_thread(Thread* thread);
/// Starts the calling thread's timer. From then on it is sampled.
void arm(Thread* thread);
/// Stops it for good. Async-signal-safe.
void disarm(Thread* thread);

/// Installs the signal's handler.
void take_signal();
/// From now on the handler does nothing, and makes no system call, in any thread.
void be_quiet();
bool is_quiet();
/// Threads that are created from now on, and children of fork, are sampled as well.
void follow_threads();

/// Killed, the recorder could not tell the agents to stop. Async-signal-safe.
bool recorder_is_gone();

/// The handler's work, on the agent's stack. Async-signal-safe.
extern "C" void clew_agent_sample(Thread* thread, const siginfo_t* info, void* ucontext);
/// The signal was not the agent's timer: what the program wants done with it.
extern "C" void clew_agent_forward(int signal, siginfo_t* info, void* ucontext);

}  // namespace clew::agent

/// The calling thread, null while it is not sampled.
extern "C" __attribute__((visibility("hidden"),
                          tls_model("initial-exec"))) __thread clew::agent::Thread* clew_agent_thread;
