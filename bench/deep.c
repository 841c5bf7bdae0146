/* The program that `./dev bench bpf` samples: 88 calls deep, for so many milliseconds of CPU time. */
#include <stdlib.h>
#include <time.h>

static volatile unsigned long sink;

static long cpu_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

__attribute__((noinline)) static int descend(int depth, long ms) {
  if (depth == 0) {
    while (cpu_ms() < ms)
      for (int i = 0; i < 200000; i++) sink += (unsigned long)i;
    return 1;
  }
  const int below = descend(depth - 1, ms);
  sink += (unsigned long)below;
  return below + 1;
}

int main(int argc, char** argv) { return descend(88, argc > 1 ? atol(argv[1]) : 1000) == 0; }
