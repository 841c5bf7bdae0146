/* Coroutines on stacks of their own, by makecontext and swapcontext. A coroutine's root is libc's trampoline,
 * which the tables declare outermost: the chain ends there, not in main. */
#include "burn.h"

#include <ucontext.h>

enum { kCoroutines = 4, kStackBytes = 64 * 1024 };
static ucontext_t scheduler, contexts[kCoroutines];
static volatile uint64_t sink;

static LEVEL void coroutine_leaf(int which) {
  sink += burn(20000);
  swapcontext(&contexts[which], &scheduler);
  sink += burn(20000);
}
static LEVEL void coroutine_middle(int which) {
  volatile char room[500];
  room[which] = 1;
  coroutine_leaf(which);
  sink += (uint64_t)room[which];
}
static LEVEL void coroutine_body(int which) {
  for (;;) coroutine_middle(which);
}
static LEVEL void resume(int which) {
  swapcontext(&scheduler, &contexts[which]);
  sink += burn(5000);
}

int main(int argc, char** argv) {
  read_budget(argc, argv);
  for (int i = 0; i < kCoroutines; i++) {
    getcontext(&contexts[i]);
    contexts[i].uc_stack.ss_sp = malloc(kStackBytes);
    contexts[i].uc_stack.ss_size = kStackBytes;
    contexts[i].uc_link = &scheduler;
    makecontext(&contexts[i], (void (*)(void))coroutine_body, 1, i);
  }
  while (time_left())
    for (int i = 0; i < kCoroutines; i++) resume(i);
  return 0;
}
