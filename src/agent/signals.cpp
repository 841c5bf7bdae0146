// The sample's signal, kept out of the program's sight: it cannot block it, wait for it or take its handler
// away. Every other signal is the program's own, SIGPROF too.
#include <dlfcn.h>
#include <signal.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdarg>
#include <cstddef>

#include "agent/agent.hpp"
#include "unwind/local/memory.hpp"

extern "C" __attribute__((visibility("hidden"))) void clew_agent_signal(int signal, siginfo_t* info,
                                                                        void* ucontext);

namespace clew::agent {
namespace {

/// What the program wants done with the signal, as far as it has said.
struct sigaction wanted = {};
constexpr size_t kLeastRoom = 1024;  // for the handler's first instructions, beside what the kernel needs
/// It has blocked the signal at some time: one that is sent to it is not to end it.
bool held = false;
bool on_alternate_stack = true;

/// A signal's action as the kernel has it (asm/signal.h).
struct KernelAction {
  void* handler;
  unsigned long flags;
  void* restorer;
  unsigned long mask;
};

/// libc's own functions. Found before main, or by a library's constructor that calls one still earlier: later
/// a handler may be the first caller.
struct Libc {
  int (*sigaction)(int, const struct sigaction*, struct sigaction*);
  sighandler_t (*signal)(int, sighandler_t);
  sighandler_t (*sysv_signal)(int, sighandler_t);
  int (*sigprocmask)(int, const sigset_t*, sigset_t*);
  int (*pthread_sigmask)(int, const sigset_t*, sigset_t*);
  int (*sigwait)(const sigset_t*, int*);
  int (*sigwaitinfo)(const sigset_t*, siginfo_t*);
  int (*sigtimedwait)(const sigset_t*, siginfo_t*, const timespec*);
  int (*sigaltstack)(const stack_t*, stack_t*);
  int (*prctl)(int, ...);
  long (*syscall)(long, ...);
  int (*signalfd)(int, const sigset_t*, int);
};

template <class Function>
void find(const char* name, Function& out) {
  out = reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

const Libc& libc() {
  static Libc found;
  if (found.signalfd == nullptr) {
    find("sigaction", found.sigaction);
    find("signal", found.signal);
    find("sysv_signal", found.sysv_signal);
    find("sigprocmask", found.sigprocmask);
    find("pthread_sigmask", found.pthread_sigmask);
    find("sigwait", found.sigwait);
    find("sigwaitinfo", found.sigwaitinfo);
    find("sigtimedwait", found.sigtimedwait);
    find("sigaltstack", found.sigaltstack);
    find("prctl", found.prctl);
    find("syscall", found.syscall);
    find("signalfd", found.signalfd);
  }
  return found;
}

/// A set as the program gave it, less the sample's signal.
class WithoutOurs {
 public:
  explicit WithoutOurs(const sigset_t* set) : given_(set) {
    if (set == nullptr) return;
    set_ = *set;
    if (config.period_ns == 0 || sigismember(&set_, kSampleSignal) == 0) return;
    held = true;
    sigdelset(&set_, kSampleSignal);
  }
  const sigset_t* get() const { return given_ == nullptr ? nullptr : &set_; }

 private:
  const sigset_t* given_;
  sigset_t set_;
};

}  // namespace

void take_signal() {
  struct sigaction action = {};
  action.sa_sigaction = clew_agent_signal;
  action.sa_flags = SA_SIGINFO | SA_RESTART | (on_alternate_stack ? SA_ONSTACK : 0);
  sigfillset(&action.sa_mask);
  struct sigaction before = {};
  libc().sigaction(kSampleSignal, &action, &before);
  if (before.sa_sigaction != clew_agent_signal) wanted = before;
  // libc keeps the signals of its own out of every mask; a thread that is cancelled must not leave the
  // handler either.
  using unwind::local::system_call;
  KernelAction now = {};
  if (system_call(SYS_rt_sigaction, kSampleSignal, 0, reinterpret_cast<long>(&now), _NSIG / 8) == 0) {
    now.mask = ~0ul;
    system_call(SYS_rt_sigaction, kSampleSignal, reinterpret_cast<long>(&now), 0, _NSIG / 8);
  }
  sigset_t ours;
  sigemptyset(&ours);
  sigaddset(&ours, kSampleSignal);
  libc().pthread_sigmask(SIG_UNBLOCK, &ours, nullptr);
}

extern "C" __attribute__((visibility("hidden"))) void clew_agent_forward(int signal, siginfo_t* info,
                                                                         void* ucontext) {
  if ((wanted.sa_flags & SA_SIGINFO) != 0) {
    wanted.sa_sigaction(signal, info, ucontext);
  } else if (wanted.sa_handler == SIG_DFL) {
    if (info->si_code == SI_TIMER) return;  // the last one of a thread that is sampled no longer
    if (held) return;                       // it would be pending; who waits for it is not served
    struct sigaction action = {};
    using unwind::local::system_call;
    system_call(SYS_rt_sigaction, signal, reinterpret_cast<long>(&action), 0, _NSIG / 8);
    const long pid = system_call(SYS_getpid, 0, 0, 0, 0);
    system_call(SYS_tgkill, pid, system_call(SYS_gettid, 0, 0, 0, 0), signal, 0);  // when the handler returns
  } else if (wanted.sa_handler != SIG_IGN) {
    wanted.sa_handler(signal);
  }
}

}  // namespace clew::agent

// ---- In the place of libc's ----

using namespace clew::agent;  // the functions below are C's
#define IN_PLACE_OF_LIBC extern "C" __attribute__((visibility("default")))

IN_PLACE_OF_LIBC int sigaction(int signal, const struct sigaction* action, struct sigaction* before) {
  if (config.period_ns == 0) return libc().sigaction(signal, action, before);
  if (signal == kSampleSignal) {
    const struct sigaction was = wanted;
    if (action != nullptr) wanted = *action;
    if (before != nullptr) *before = was;
    return 0;
  }
  if (action == nullptr) return libc().sigaction(signal, action, before);
  struct sigaction changed = *action;
  sigdelset(&changed.sa_mask, kSampleSignal);
  return libc().sigaction(signal, &changed, before);
}

IN_PLACE_OF_LIBC sighandler_t signal(int number, sighandler_t handler) {
  if (number != kSampleSignal || config.period_ns == 0) return libc().signal(number, handler);
  const sighandler_t before = wanted.sa_handler;
  wanted = {};
  wanted.sa_handler = handler;
  return before;
}

IN_PLACE_OF_LIBC sighandler_t sysv_signal(int number, sighandler_t handler) {
  return number == kSampleSignal ? signal(number, handler) : libc().sysv_signal(number, handler);
}

IN_PLACE_OF_LIBC sighandler_t __sysv_signal(int number, sighandler_t handler) {
  return sysv_signal(number, handler);
}

IN_PLACE_OF_LIBC int sigprocmask(int how, const sigset_t* set, sigset_t* before) {
  return libc().sigprocmask(how, how == SIG_UNBLOCK ? set : WithoutOurs(set).get(), before);
}

IN_PLACE_OF_LIBC int pthread_sigmask(int how, const sigset_t* set, sigset_t* before) {
  return libc().pthread_sigmask(how, how == SIG_UNBLOCK ? set : WithoutOurs(set).get(), before);
}

IN_PLACE_OF_LIBC int sigaltstack(const stack_t* stack, stack_t* before) {
  // Some are too small for what the kernel puts on a stack with today's registers: nothing of ours goes there
  // then.
  if (config.period_ns != 0 && stack != nullptr && (stack->ss_flags & SS_DISABLE) == 0 &&
      stack->ss_size < getauxval(AT_MINSIGSTKSZ) + kLeastRoom && on_alternate_stack) {
    on_alternate_stack = false;
    take_signal();
  }
  return libc().sigaltstack(stack, before);
}

// A filter may kill the process for a system call that only the agent makes: it is sampled no longer.
IN_PLACE_OF_LIBC int prctl(int option, ...) {
  va_list list;
  va_start(list, option);
  const unsigned long a = va_arg(list, unsigned long), b = va_arg(list, unsigned long),
                      c = va_arg(list, unsigned long), d = va_arg(list, unsigned long);
  va_end(list);
  if (option == PR_SET_SECCOMP) be_quiet();
  return libc().prctl(option, a, b, c, d);
}

IN_PLACE_OF_LIBC long syscall(long number, ...) {
  va_list list;
  va_start(list, number);
  const long a = va_arg(list, long), b = va_arg(list, long), c = va_arg(list, long), d = va_arg(list, long),
             e = va_arg(list, long), f = va_arg(list, long);
  va_end(list);
  if (number == SYS_seccomp || (number == SYS_prctl && a == PR_SET_SECCOMP)) be_quiet();
  return libc().syscall(number, a, b, c, d, e, f);
}

IN_PLACE_OF_LIBC int sigwait(const sigset_t* set, int* number) {
  return libc().sigwait(WithoutOurs(set).get(), number);
}

IN_PLACE_OF_LIBC int sigwaitinfo(const sigset_t* set, siginfo_t* info) {
  return libc().sigwaitinfo(WithoutOurs(set).get(), info);
}

IN_PLACE_OF_LIBC int sigtimedwait(const sigset_t* set, siginfo_t* info, const timespec* timeout) {
  return libc().sigtimedwait(WithoutOurs(set).get(), info, timeout);
}

IN_PLACE_OF_LIBC int signalfd(int fd, const sigset_t* set, int flags) {
  return libc().signalfd(fd, WithoutOurs(set).get(), flags);
}
