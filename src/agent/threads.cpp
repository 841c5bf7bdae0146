// Threads: a timer and a stack for each, from their first instruction on to their last destructor.
#include <dlfcn.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <threads.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <ctime>

#include "agent/agent.hpp"
#include "agent/process_ring.hpp"
#include "process/clock.hpp"
#include "unwind/local/memory.hpp"

namespace clew::agent {
namespace {

using unwind::local::kPage;
using unwind::local::system_call;

constexpr size_t kHandlerStack = size_t{64} << 10;
constexpr size_t kMapping =
    (kPage + kHandlerStack + sizeof(Thread) + kPage - 1) & ~(kPage - 1);  // the first page is a guard

pthread_key_t exit_key;

/// Runs after the thread's other destructors, as far as their order lets itself be had: in the last round.
void on_thread_exit(void* value) {
  auto* thread = static_cast<Thread*>(value);
  if (++thread->destructor_rounds < PTHREAD_DESTRUCTOR_ITERATIONS) {
    pthread_setspecific(exit_key, thread);
    return;
  }
  // The signal may be on its way already: it finds no thread then, and is ignored.
  sigset_t all, before;
  sigfillset(&all);
  system_call(SYS_rt_sigprocmask, SIG_SETMASK, reinterpret_cast<long>(&all), reinterpret_cast<long>(&before),
              _NSIG / 8);
  disarm(thread);
  clew_agent_thread = nullptr;
  free_thread(thread);
  system_call(SYS_rt_sigprocmask, SIG_SETMASK, reinterpret_cast<long>(&before), 0, _NSIG / 8);
}

struct First {
  uint64_t after_ns;
  uint32_t periods;  // that the first sample stands for
};
/// The kernel looks at timers of CPU time at its tick only. Where a period is no longer than that, the first
/// tick that finds a thread running takes a sample, which stands for a whole tick: a thread that lives
/// shorter is found, or not, in proportion to its time. Else the timer begins anywhere in its period.
First first_expiry() {
  timespec resolution = {};
  clock_getres(CLOCK_MONOTONIC_COARSE, &resolution);
  const auto tick_ns = static_cast<uint64_t>(resolution.tv_nsec);
  const uint64_t period = config.period_ns;
  if (period <= tick_ns) return {1, static_cast<uint32_t>((tick_ns + period / 2) / period)};
  return {1 + (monotonic_ns() * 0x9E3779B97F4A7C15 >> 20) % period, 1};
}

timespec to_timespec(uint64_t ns) {
  return {static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
}

/// The forking thread, in the child: timers are not inherited.
void after_fork_in_child() {
  Thread* thread = clew_agent_thread;
  if (thread == nullptr) return;
  thread->armed = false;
  if (!is_quiet()) arm(thread);
}

}  // namespace

Thread* make_thread() {
  void* memory = mmap(nullptr, kMapping, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  mprotect(memory, kPage, PROT_NONE);
  auto* thread = reinterpret_cast<Thread*>(static_cast<std::byte*>(memory) + kPage + kHandlerStack);
  thread->stack_top = reinterpret_cast<uintptr_t>(thread);
  return thread;
}

void free_thread(Thread* thread) {
  munmap(reinterpret_cast<void*>(thread->stack_top - kHandlerStack - kPage), kMapping);
}

void arm(Thread* thread) {
  thread->tid = static_cast<pid_t>(system_call(SYS_gettid, 0, 0, 0, 0));
  clew_agent_thread = thread;
  pthread_setspecific(exit_key, thread);
  sigevent event = {};
  event.sigev_notify = SIGEV_THREAD_ID;
  event.sigev_signo = kSampleSignal;
  event.sigev_value.sival_ptr = thread;
  event._sigev_un._tid = thread->tid;
  const First first = first_expiry();
  thread->samples = 0;
  thread->first_periods = first.periods;
  const itimerspec times = {.it_interval = to_timespec(config.period_ns),
                            .it_value = to_timespec(first.after_ns)};
  if (system_call(SYS_timer_create, CLOCK_THREAD_CPUTIME_ID, reinterpret_cast<long>(&event),
                  reinterpret_cast<long>(&thread->timer), 0) < 0) {
    bool never = false;  // RLIMIT_SIGPENDING
    if (RingHeader* to = ring(never)) to->threads_without_timer.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  thread->armed = true;
  system_call(SYS_timer_settime, thread->timer, 0, reinterpret_cast<long>(&times), 0);
}

void disarm(Thread* thread) {
  if (!thread->armed) return;
  thread->armed = false;
  system_call(SYS_timer_delete, thread->timer, 0, 0, 0);
}

void follow_threads() {
  pthread_key_create(&exit_key, on_thread_exit);
  pthread_atfork(nullptr, nullptr, after_fork_in_child);
}

struct Started {
  void* (*start)(void*);
  void* argument;
};
/// A new thread's first step.
extern "C" __attribute__((visibility("hidden"), used)) Started clew_agent_thread_begins(Thread* thread) {
  arm(thread);
  return {thread->start, thread->argument};
}

}  // namespace clew::agent

extern "C" void* clew_agent_thread_entry(void* thread);
// Begins sampling, then becomes the thread's own function: no frame of the agent is left in its stack.
asm(R"(
  .pushsection .text.clew_agent_thread_entry, "ax", @progbits
  .globl clew_agent_thread_entry
  .hidden clew_agent_thread_entry
  .type clew_agent_thread_entry, @function
  .p2align 4
clew_agent_thread_entry:
  .cfi_startproc
  endbr64
  subq $8, %rsp
  .cfi_adjust_cfa_offset 8
  call clew_agent_thread_begins
  addq $8, %rsp
  .cfi_adjust_cfa_offset -8
  movq %rdx, %rdi
  jmp *%rax
  .cfi_endproc
  .size clew_agent_thread_entry, . - clew_agent_thread_entry
  .popsection
)");

// ---- In the place of libc's ----

using clew::agent::Thread;

extern "C" __attribute__((visibility("default"))) int pthread_create(pthread_t* out,
                                                                     const pthread_attr_t* attributes,
                                                                     void* (*start)(void*), void* argument) {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static Create create;
  if (create == nullptr) create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  const bool sampled = clew::agent::config.period_ns != 0 && !clew::agent::is_quiet();
  Thread* thread = sampled ? clew::agent::make_thread() : nullptr;
  if (thread == nullptr) return create(out, attributes, start, argument);
  thread->start = start;
  thread->argument = argument;
  const int error = create(out, attributes, clew_agent_thread_entry, thread);
  if (error != 0) clew::agent::free_thread(thread);
  return error;
}

extern "C" __attribute__((visibility("default"))) int thrd_create(thrd_t* out, thrd_start_t start,
                                                                  void* argument) {
  // The result of a C11 thread is an int where a POSIX one has a pointer; both come back in rax, and
  // thrd_join takes the low half of what pthread_join would (as glibc's own thrd_create does).
  const int error = pthread_create(out, nullptr, std::bit_cast<void* (*)(void*)>(start), argument);
  return error == 0 ? thrd_success : error == ENOMEM ? thrd_nomem : thrd_error;
}
