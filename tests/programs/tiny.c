/* plt.c's library. */
#include "burn.h"

LEVEL uint64_t tiny_add(uint64_t a, uint64_t b) { return a + b; }
LEVEL uint64_t tiny_xor(uint64_t a, uint64_t b) { return a ^ b; }
LEVEL uint64_t tiny_saves(uint64_t a, uint64_t b) {
  uint64_t x = tiny_add(a, b);
  return x + tiny_xor(a, x);
}
