/* Reads the clock in a loop: most time is in the vDSO. */
#include "burn.h"

static volatile uint64_t sink;

static LEVEL void clock_loop(void) {
  struct timespec now;
  for (int i = 0; i < TIMES(20000); i++) {
    clock_gettime(i & 1 ? CLOCK_MONOTONIC : CLOCK_REALTIME, &now);
    sink += (uint64_t)now.tv_nsec;
  }
}

int main(int argc, char** argv) {
  read_budget(argc, argv);
  while (time_left()) clock_loop();
  return 0;
}
