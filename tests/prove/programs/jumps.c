/* setjmp and longjmp: out of many frames, out of handlers on either stack. */
#define _GNU_SOURCE
#include "features.h"

#include <setjmp.h>
#include <signal.h>
#include <string.h>

static jmp_buf plain;
static sigjmp_buf masked;

OWN static void jump_down(int n) {
  volatile char room[200];
  room[n] = 1;
  if (n == 0)
    longjmp(plain, 1);
  else
    jump_down(n - 1);
  sink += (uint64_t)room[n];
}
OWN static void after(void) { sink += 1; }
static void handler(int number) {
  (void)number;
  siglongjmp(masked, 1);
}
OWN static void jump_from_handler(int flags) {
  struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
  sigaction(SIGUSR1, &action, NULL);
  if (sigsetjmp(masked, 1) == 0) raise(SIGUSR1);
  after();
}

void run_jumps(void) {
  for (volatile int n = 0; n < 3; n++) {
    if (setjmp(plain) == 0) jump_down(n * 3);
    after();
  }
  char room[16384];
  stack_t alternate = {.ss_sp = room, .ss_size = sizeof room}, before;
  jump_from_handler(0);
  sigaltstack(&alternate, &before);
  jump_from_handler(SA_ONSTACK);
  jump_from_handler(SA_ONSTACK);
  sigaltstack(&before, NULL);
}
