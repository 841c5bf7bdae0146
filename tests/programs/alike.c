/* Stacks that differ in one return address only, in the middle: a frame of left_way lies where one of
 * right_way did, and everything further in is the same, but for the leaf, which tells which one it was. What
 * is remembered of the last stack must not be taken for this one. */
#include "burn.h"

static volatile uint64_t sink;

static LEVEL void left_leaf(uint64_t rounds) {
  sink += burn(rounds);
  AFTER_CALL;
}
static LEVEL void right_leaf(uint64_t rounds) {
  sink += burn(rounds);
  AFTER_CALL;
}
static LEVEL void inner(void (*leaf)(uint64_t), unsigned n) {
  if (n == 0)
    leaf(20000);
  else
    inner(leaf, n - 1);
  AFTER_CALL;
}
static LEVEL void left_way(void (*volatile leaf)(uint64_t)) {
  inner(leaf, 30);
  AFTER_CALL;
}
static LEVEL void right_way(void (*volatile leaf)(uint64_t)) {
  inner(leaf, 30);
  AFTER_CALL;
}
/* Frames further out that stay as they are. */
static LEVEL void outer(unsigned n) {
  if (n != 0) {
    outer(n - 1);
  } else {
    for (int i = 0; i < TIMES(100); i++) {
      left_way(left_leaf);
      right_way(right_leaf);
    }
  }
  AFTER_CALL;
}

int main(int argc, char** argv) {
  read_budget(argc, argv);
  while (time_left()) outer(20);
  return 0;
}
