/* Leaves many frames at once by longjmp. */
#include "burn.h"

#include <setjmp.h>

static volatile uint64_t sink;
static jmp_buf back;

static LEVEL void jump_leaf(void) {
  sink += burn(20000);
  longjmp(back, 1);
}
static LEVEL void jump_middle(int n) {
  volatile char room[300];
  room[n] = 1;
  jump_leaf();
  sink += (uint64_t)room[n];
}
static LEVEL void after_jump(void) {
  sink += burn(10000);
  AFTER_CALL;
}
static LEVEL void jump_back(int n) {
  if (setjmp(back) == 0)
    jump_middle(n);
  else
    after_jump();
  AFTER_CALL;
}

int main(int argc, char** argv) {
  read_budget(argc, argv);
  while (time_left())
    for (int n = 0; n < 8; n++) jump_back(n);
  return 0;
}
