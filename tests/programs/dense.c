/* Samples that land anywhere: tiny functions that do nearly nothing but enter and leave, with every
 * callee-saved register pushed, with red zones, with stack adjustments in the middle (pushed arguments). */
#include "burn.h"

static volatile uint64_t sink;

/* A leaf that keeps its locals below the stack pointer. */
static LEVEL uint64_t red_zone(uint64_t n) {
  volatile uint64_t a = n, b = n + 1, c = n + 2;
  return a + b * c;
}
static LEVEL uint64_t empty_leaf(uint64_t n) { return n; }
static LEVEL uint64_t saves_all(uint64_t n) {
  uint64_t x = red_zone(n);
  __asm__ volatile("" : "+r"(x)::"rbx", "r12", "r13", "r14", "r15");
#if !defined(NEEDS_FRAME_POINTER)
  __asm__ volatile("" ::: "rbp");
#endif
  return x + empty_leaf(n);
}
static LEVEL uint64_t many_arguments(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f,
                                     uint64_t g, uint64_t h, uint64_t i) {
  return a + b + c + d + e + f + g * h + i;
}
static LEVEL uint64_t pushes(uint64_t n) {
  uint64_t x = many_arguments(n, 2, 3, 4, 5, 6, 7, n, 9);
  return x + many_arguments(1, n, 3, 4, 5, 6, n, 8, 9);
}
static LEVEL uint64_t early_return(uint64_t n) {
  if (n & 1) return n;
  uint64_t x = saves_all(n);
  if (x & 2) return x;
  return x + pushes(x);
}
static LEVEL uint64_t countdown(uint64_t n) { return n == 0 ? 0 : 1 + countdown(n - 1) / 2; }

int main(int argc, char** argv) {
  read_budget(argc, argv);
  while (time_left())
    for (uint64_t n = 0; n < (uint64_t)TIMES(20000); n++)
      sink += early_return(n) + saves_all(n) + pushes(n) + countdown(n & 7);
  return 0;
}
