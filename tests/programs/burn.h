/* What every test program shares: functions that stay functions, a leaf that burns CPU, and a clock that says
 * when to stop.
 *
 * A LEVEL is a function that can be called from one place only and that no compiler inlines, clones or turns
 * its call into a jump, so that the chain of callers at any instruction is known from the source: see
 * NAME.chains beside NAME.c. */
#ifndef CLEW_PROGRAMS_BURN_H
#define CLEW_PROGRAMS_BURN_H

#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#if defined(__clang__)
#define LEVEL __attribute__((noinline, used))
#else
#define LEVEL __attribute__((noinline, noipa, used))
#endif
/* After a call: the call is not the last thing that the function does, so it cannot become a jump. */
#define AFTER_CALL __asm__ volatile("" ::: "memory")

static double budget_s = 2;
/* With a budget of 0 the work is done once and each loop runs a few times only: clew-prove executes every
 * instruction singly. */
#define TIMES(rounds) (budget_s == 0 && (rounds) > 4 ? 4 : (rounds))

/* The leaf of most chains: `rounds` dependent steps, about a nanosecond each. */
static LEVEL uint64_t burn(uint64_t rounds) {
  rounds = TIMES(rounds);
  uint64_t x = rounds | 1;
  for (uint64_t i = 0; i < rounds; i++) {
    x = x * 6364136223846793005ull + 1442695040888963407ull;
    __asm__ volatile("" : "+r"(x));
  }
  return x;
}

static LEVEL double cpu_seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* True until the process has used the CPU seconds that its first argument allows. */
static LEVEL int time_left(void) {
  static int asked;
  int left = cpu_seconds() < budget_s || (budget_s == 0 && !asked);
  asked = 1;
  AFTER_CALL;
  return left;
}

static LEVEL void read_budget(int argc, char** argv) {
  if (argc > 1) budget_s = atof(argv[1]);
}

#endif
