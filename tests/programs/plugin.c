/* One of dlopen.c's plugins: PLUGIN is its number, which also changes its size, its frames and its layout, so
 * that the table or the names of another plugin would give wrong chains. */
#include "burn.h"

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define NAMED(x) JOIN(x, PLUGIN)
#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

static volatile uint64_t sink;

#if PLUGIN > 0
/* Shifts the code that follows. */
__asm__(".text\n.skip " TEXT(PLUGIN_SKIP) ", 0xcc\n");
#endif

static LEVEL void NAMED(plugin_leaf_)(void) {
  volatile char room[64 + 1000 * PLUGIN];
  room[0] = 1;
  sink += burn(20000) + (uint64_t)room[0];
}
static LEVEL void NAMED(plugin_work_)(uint64_t a, uint64_t b) {
#if PLUGIN == 1
  volatile uint64_t saved[PLUGIN * 40];
  saved[a % 40] = b;
  sink += saved[b % 40];
#endif
  NAMED(plugin_leaf_)();
  sink += a ^ b;
}
static LEVEL double NAMED(plugin_clock_)(void) {
  struct timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}
LEVEL uint64_t NAMED(plugin_entry_)(double seconds) {
  double end = NAMED(plugin_clock_)() + seconds;
  budget_s = seconds;
  do NAMED(plugin_work_)(1, 2);
  while (NAMED(plugin_clock_)() < end);
  return sink;
}
