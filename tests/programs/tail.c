/* Tail calls: a function that ends with a jump to another has no frame there; its caller shows as the caller.
 */
#include "burn.h"

static volatile uint64_t sink;

static LEVEL uint64_t tail_leaf(uint64_t n) {
  uint64_t x = burn(20000 + n);
  AFTER_CALL;
  return x;
}
/* -O2 makes the last call of these a jump; -O0 does not, which tail.chains allows. */
static LEVEL uint64_t tail_two(uint64_t n) { return tail_leaf(n + 1); }
static LEVEL uint64_t tail_one(uint64_t n) {
  if (n == 5) return burn(1000);
  return tail_two(n + 1);
}
static LEVEL uint64_t tail_caller(uint64_t n) {
  uint64_t x = tail_one(n);
  AFTER_CALL;
  return x + 1;
}

int main(int argc, char** argv) {
  read_budget(argc, argv);
  while (time_left())
    for (uint64_t n = 0; n < 8; n++) sink += tail_caller(n);
  return 0;
}
