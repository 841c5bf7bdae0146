/* Frames whose CFA is not a constant from the stack pointer: realigned stacks (-mstackrealign, 32-byte
 * vectors and more), alloca, variable-length arrays, and several of them nested. */
#include "burn.h"

#include <alloca.h>
#include <string.h>

static volatile uint64_t sink;

static LEVEL void drap_leaf(char* room, unsigned n) {
  room[n - 1] = 1;
  sink += burn(20000) + (uint64_t)room[n - 1];
}
/* A frame aligned to 128 bytes with a variable-length array: gcc keeps the argument pointer in r10, then in
 * r13 or on the stack. */
static LEVEL void aligned_array(unsigned n, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e,
                                uint64_t f) {
  __attribute__((aligned(128))) volatile char fixed[256];
  char room[n];
  fixed[n % 256] = 1;
  drap_leaf(room, n);
  sink += (uint64_t)fixed[n % 256] + a + b + c + d + e + f;
}
static LEVEL void with_alloca(unsigned n) {
  char* room = (char*)alloca(n);
  memset(room, 1, n);
  aligned_array(n, 1, 2, 3, 4, 5, sink);
  sink += (uint64_t)room[n / 2];
}
static LEVEL void aligned_only(unsigned n) {
  __attribute__((aligned(64))) volatile uint64_t lanes[8];
  lanes[n % 8] = n;
  with_alloca(n);
  sink += lanes[n % 8];
}
static LEVEL void array_twice(unsigned n) {
  char first[n];
  first[0] = 1;
  aligned_only(n);
  char second[n + 17];
  second[n] = first[0];
  aligned_only(n + 3);
  sink += (uint64_t)second[n];
}

int main(int argc, char** argv) {
  read_budget(argc, argv);
  while (time_left())
    for (unsigned n = 8; n < 2000; n += budget_s == 0 ? 970 : 97) array_twice(n);
  return 0;
}
