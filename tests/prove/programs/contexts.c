/* Contexts on stacks of their own: left and resumed, ended through their link, and one that ends nowhere. */
#include "features.h"

#include <stdlib.h>
#include <ucontext.h>

enum { kContexts = 3, kStackBytes = 32 * 1024 };
static ucontext_t scheduler, contexts[kContexts];

OWN static void yield(int which) {
  volatile char room[100];
  room[which] = 1;
  swapcontext(&contexts[which], &scheduler);
  sink += (uint64_t)room[which];
}
static void body(int which, int turns) {
  for (int i = 0; i < turns; i++) yield(which);
}
OWN static void resume(int which) {
  swapcontext(&scheduler, &contexts[which]);
  sink += 1;
}

void run_contexts(void) {
  char* stacks[kContexts];
  for (int i = 0; i < kContexts; i++) {
    stacks[i] = malloc(kStackBytes);
    getcontext(&contexts[i]);
    contexts[i].uc_stack.ss_sp = stacks[i];
    contexts[i].uc_stack.ss_size = kStackBytes;
    contexts[i].uc_link = &scheduler;
    makecontext(&contexts[i], (void (*)(void))body, 2, i, i + 1);
  }
  /* The turns of each and one more, in which it ends. */
  for (int turn = 0; turn < kContexts + 1; turn++)
    for (int i = 0; i < kContexts; i++)
      if (turn < i + 2) resume(i);
  for (int i = 0; i < kContexts; i++) free(stacks[i]);
}
