/* A function whose last instruction calls one that does not return: the return address is the first byte of
 * the next function. And cold parts of functions, which gcc moves elsewhere. */
#include "burn.h"

#include <setjmp.h>

static volatile uint64_t sink;
static jmp_buf back;

__attribute__((noreturn)) static LEVEL void never_returns(int n) {
  sink += burn(20000 + (uint64_t)n);
  longjmp(back, 1);
}
static LEVEL void calls_last(int n) {
  sink += (uint64_t)n;
  never_returns(n);
}
/* Follows calls_last at once, with a frame of another size: a look-up of the return address itself would find
 * this. */
static LEVEL void follows(uint64_t n) {
  volatile char room[1111];
  room[n % sizeof(room)] = 1;
  sink += (uint64_t)room[n % sizeof(room)];
}
__attribute__((cold)) static LEVEL void cold_work(uint64_t n) {
  sink += burn(n);
  AFTER_CALL;
}
static LEVEL void cold_part(uint64_t n) {
  sink += n;
  if (__builtin_expect(n > 3, 0)) {
    volatile char room[200];
    room[n % sizeof(room)] = 1;
    cold_work(20000);
    sink += (uint64_t)room[n % sizeof(room)] + burn(20000);
    cold_work(10000);
    AFTER_CALL;
  }
}

int main(int argc, char** argv) {
  read_budget(argc, argv);
  while (time_left())
    for (int n = 0; n < 8; n++) {
      if (setjmp(back) == 0) calls_last(n);
      follows((uint64_t)n);
      cold_part((uint64_t)n);
    }
  return 0;
}
