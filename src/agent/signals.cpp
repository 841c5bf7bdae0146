// The sample's signal, kept out of the program's sight: it cannot block it, wait for it or take its handler
// away. Every other signal is the program's own, SIGPROF too.
#include <dlfcn.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>

#include "agent/agent.hpp"
#include "unwind/local/memory.hpp"

extern "C" __attribute__((visibility("hidden"))) void clew_agent_signal(int signal, siginfo_t* info,
                                                                        void* ucontext);

namespace clew::agent {
namespace {

/// What the program wants done with the signal, as far as it has said.
struct sigaction wanted = {};

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
    if (config.period_ns != 0) sigdelset(&set_, kSampleSignal);
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
  action.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
  sigfillset(&action.sa_mask);
  libc().sigaction(kSampleSignal, &action, &wanted);
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
