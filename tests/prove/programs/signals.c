/* Handlers on the thread's own stack and on an alternate one, nested, after a fault, after a call of nothing; and a
 * timer that interrupts at instructions that nobody chose. */
#define _GNU_SOURCE
#include "features.h"

#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <ucontext.h>

static char alternate_stack[32768];

OWN static void work(int n) {
  volatile char room[50];
  room[n % 50] = 1;
  sink += (uint64_t)room[n % 50];
}
static void simple(int number) { work(number); }
static void with_info(int number, siginfo_t* info, void* context) {
  work(number + (info->si_signo == number) + (context != NULL));
}
static void nested(int number) {
  work(number);
  raise(SIGUSR2);
  work(number);
}
/* Makes the interrupted instruction succeed: it loads from rax. */
static uint64_t good = 42;
static void mend_load(int number, siginfo_t* info, void* context) {
  ucontext_t* interrupted = context;
  work(number + (info->si_addr != NULL));
  interrupted->uc_mcontext.gregs[REG_RAX] = (greg_t)(uintptr_t)&good;
}
/* Goes on behind the interrupted instruction, ud2. */
static void skip(int number, siginfo_t* info, void* context) {
  ucontext_t* interrupted = context;
  work(number + (info->si_addr != NULL));
  interrupted->uc_mcontext.gregs[REG_RIP] += 2;
  work(number);
}
static sigjmp_buf back;
static void leave(int number) {
  work(number);
  siglongjmp(back, 1);
}
OWN static void on(int number, void (*handler)(int), int flags) {
  struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
  sigaction(number, &action, NULL);
}
OWN static void on_info(int number, void (*handler)(int, siginfo_t*, void*), int flags) {
  struct sigaction action = {.sa_sigaction = handler, .sa_flags = flags | SA_SIGINFO};
  sigaction(number, &action, NULL);
}
OWN static uint64_t faulting_load(void) {
  uint64_t value = 8;
  __asm__ volatile("movq (%1), %0" : "=r"(value) : "a"(value));
  return value;
}
static void (*volatile nothing)(void);
OWN static void call_nothing(void) {
  nothing();
  sink += 1;
}

OWN static void raise_all(int flags) {
  on(SIGUSR1, simple, flags);
  raise(SIGUSR1);
  on_info(SIGUSR1, with_info, flags);
  raise(SIGUSR1);
  on(SIGUSR1, nested, flags);
  on(SIGUSR2, simple, flags);
  raise(SIGUSR1);
  on(SIGUSR2, simple, flags ^ SA_ONSTACK);
  raise(SIGUSR1);
  on_info(SIGSEGV, mend_load, flags);
  sink += faulting_load();
  on_info(SIGILL, skip, flags);
  __asm__ volatile("ud2");
  on(SIGSEGV, leave, flags);
  if (sigsetjmp(back, 1) == 0) call_nothing();
  signal(SIGSEGV, SIG_DFL);
}

void run_signals(void) {
  stack_t alternate = {.ss_sp = alternate_stack, .ss_size = sizeof alternate_stack}, before;
  sigaltstack(&alternate, &before);
  raise_all(0);
  raise_all(SA_ONSTACK);
  sigaltstack(&before, NULL);
}

OWN static uint64_t step_down(unsigned n) {
  uint64_t x = n == 0 ? 1 : step_down(n - 1);
  char text[40];
  memset(text, (int)n, sizeof text);
  return x + (uint64_t)text[n % sizeof text];
}
static volatile int interrupts;
/* Once, a millisecond from now: a periodic timer could leave no time between two handlers to one who is stepped. */
static void soon(void) {
  struct itimerval once = {{0, 0}, {0, 1000}};
  setitimer(ITIMER_REAL, &once, NULL);
}
static void count(int number) {
  work(number);
  interrupts = interrupts + 1;
  soon();
}

void run_interrupted(void) {
  stack_t alternate = {.ss_sp = alternate_stack, .ss_size = sizeof alternate_stack}, before;
  struct itimerval never = {{0, 0}, {0, 0}};
  sigaltstack(&alternate, &before);
  for (int i = 0; i < 2; i++) {
    interrupts = 0;
    on(SIGALRM, count, i == 0 ? 0 : SA_ONSTACK);
    soon();
    while (interrupts < 50) sink += step_down(12);
    setitimer(ITIMER_REAL, &never, NULL);
  }
  sigaltstack(&before, NULL);
}
