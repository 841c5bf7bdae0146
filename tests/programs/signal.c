/* A timer's handler on the thread's own stack, which raises a second signal from inside: two trampolines in
 * one chain. */
#include "burn.h"

#include <signal.h>
#include <sys/time.h>

static volatile uint64_t sink;

static LEVEL void inner_work(void) {
  sink += burn(100000);
  AFTER_CALL;
}
static LEVEL void inner_handler(int number) {
  (void)number;
  inner_work();
  AFTER_CALL;
}
static LEVEL void outer_work(void) {
  sink += burn(300000);
  raise(SIGUSR1);
  sink += burn(300000);
}
static LEVEL void outer_handler(int number) {
  (void)number;
  outer_work();
  AFTER_CALL;
}
static LEVEL void main_leaf(void) {
  sink += burn(200000);
  AFTER_CALL;
}
static LEVEL void main_work(void) {
  main_leaf();
  AFTER_CALL;
}

int main(int argc, char** argv) {
  read_budget(argc, argv);
  struct sigaction inner = {.sa_handler = inner_handler};
  struct sigaction outer = {.sa_handler = outer_handler};
  sigaction(SIGUSR1, &inner, NULL);
  sigaction(SIGPROF, &outer, NULL);
  struct itimerval every = {{0, 4000}, {0, 4000}};
  setitimer(ITIMER_PROF, &every, NULL);
  while (time_left()) main_work();
  return 0;
}
