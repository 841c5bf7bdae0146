/* Deep stacks. 2000 frames of 16 to 32 bytes lie within what the kernel can copy (65,528 bytes); with `big`
 * the frames are larger than that together: only a stopped thread's stack can be read whole. */
#include "burn.h"

#include <string.h>

static volatile uint64_t sink;

static LEVEL uint64_t deep_leaf(void) {
  uint64_t x = burn(200000);
  AFTER_CALL;
  return x;
}
static LEVEL uint64_t small_step(unsigned n) {
  uint64_t x = n == 0 ? deep_leaf() : small_step(n - 1);
  AFTER_CALL; /* or gcc makes a loop of it */
  return x + 1;
}
static LEVEL uint64_t big_step(unsigned n) {
  volatile char room[600];
  room[n % sizeof(room)] = 1;
  uint64_t x = n == 0 ? deep_leaf() : big_step(n - 1);
  return x + (uint64_t)room[n % sizeof(room)];
}

int main(int argc, char** argv) {
  read_budget(argc, argv);
  int big = argc > 2 && strcmp(argv[2], "big") == 0;
  while (time_left()) {
    if (big)
      sink += big_step(199);
    else
      sink += small_step(1999);
  }
  return 0;
}
