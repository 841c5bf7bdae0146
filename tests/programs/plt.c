/* A hot loop through PLT stubs, bound lazily, to small functions of a library. */
#include "burn.h"

uint64_t tiny_add(uint64_t a, uint64_t b);
uint64_t tiny_xor(uint64_t a, uint64_t b);
uint64_t tiny_saves(uint64_t a, uint64_t b);

static volatile uint64_t sink;

static LEVEL void plt_loop(void) {
  uint64_t x = 0;
  for (int i = 0; i < TIMES(100000); i++) x = tiny_add(x, 3) + tiny_xor(x, 5) + tiny_saves(x, 7);
  sink += x;
}

int main(int argc, char** argv) {
  read_budget(argc, argv);
  while (time_left()) plt_loop();
  return 0;
}
