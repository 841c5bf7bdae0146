/* A timer's handler on an alternate stack: the interrupted frames are elsewhere than the handler's. Every
 * third handler raises a second signal, which stays on the alternate stack. */
#include "burn.h"

#include <signal.h>
#include <sys/time.h>

static volatile uint64_t sink;
static volatile unsigned handled;

static LEVEL void inner_handler(int number) {
  (void)number;
  sink += burn(200000);
  AFTER_CALL;
}
static LEVEL void handler_work(void) {
  sink += burn(1000000);
  if (++handled % 3 == 0) raise(SIGUSR1);
  sink += burn(1000000);
}
static LEVEL void alt_handler(int number) {
  (void)number;
  handler_work();
  AFTER_CALL;
}
static LEVEL void main_leaf(void) {
  sink += burn(200000);
  AFTER_CALL;
}
static LEVEL void main_work(void) {
  volatile char room[9000];
  room[sink % sizeof(room)] = 1;
  main_leaf();
  sink += (uint64_t)room[sink % sizeof(room)];
}

int main(int argc, char** argv) {
  read_budget(argc, argv);
  stack_t alternate = {.ss_size = 256 * 1024};
  alternate.ss_sp = malloc(alternate.ss_size);
  sigaltstack(&alternate, NULL);
  struct sigaction action = {.sa_handler = alt_handler, .sa_flags = SA_ONSTACK};
  struct sigaction inner = {.sa_handler = inner_handler, .sa_flags = SA_ONSTACK};
  sigaction(SIGPROF, &action, NULL);
  sigaction(SIGUSR1, &inner, NULL);
  struct itimerval every = {{0, 5000}, {0, 5000}};
  setitimer(ITIMER_PROF, &every, NULL);
  while (time_left()) main_work();
  return 0;
}
