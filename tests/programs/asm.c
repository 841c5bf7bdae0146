/* Assembly without CFI, as hand-written code often is: with a frame pointer, with pushes, with neither. */
#include "burn.h"

/* asm_code.S */
uint64_t asm_leaf(uint64_t rounds);
uint64_t asm_pushes(uint64_t rounds);
uint64_t asm_frame_pointer(uint64_t rounds, uint64_t (*call)(uint64_t));
uint64_t asm_calls(uint64_t rounds, uint64_t (*call)(uint64_t));

static volatile uint64_t sink;

static LEVEL uint64_t called_back(uint64_t rounds) {
  uint64_t x = burn(rounds);
  AFTER_CALL;
  return x;
}
static LEVEL void in_leaf(void) { sink += asm_leaf((uint64_t)TIMES(20000)); }
static LEVEL void in_pushes(void) { sink += asm_pushes((uint64_t)TIMES(20000)); }
static LEVEL void in_frame_pointer(void) { sink += asm_frame_pointer((uint64_t)TIMES(20000), called_back); }
static LEVEL void in_calls(void) { sink += asm_calls((uint64_t)TIMES(20000), called_back); }

int main(int argc, char** argv) {
  read_budget(argc, argv);
  while (time_left()) {
    in_leaf();
    in_pushes();
    in_frame_pointer();
    in_calls();
  }
  return 0;
}
