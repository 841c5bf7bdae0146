/* Functions whose address a resolver chooses when the program starts; the C library has many of them too. And the
 * vDSO's functions. */
#define _GNU_SOURCE
#include "features.h"

#include <sched.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <wchar.h>

static uint64_t add(uint64_t a, uint64_t b) { return a + b; }
static uint64_t subtract(uint64_t a, uint64_t b) { return a - b; }
static uint64_t (*resolve_chosen(void))(uint64_t, uint64_t) {
  __builtin_cpu_init();
  return __builtin_cpu_supports("sse2") ? add : subtract;
}
uint64_t chosen(uint64_t a, uint64_t b) __attribute__((ifunc("resolve_chosen")));

void run_indirect_functions(void) {
  char from[300], to[300];
  wchar_t wide[20];
  sink += chosen(3, 4);
  uint64_t (*volatile pointer)(uint64_t, uint64_t) = chosen;
  sink += pointer(5, 6);
  for (volatile size_t size = 1; size < sizeof from; size = size * 3 + 5) {
    memset(from, 'a', size);
    from[size - 1] = 0;
    memcpy(to, from, size);
    memmove(to + 1, to, size - 1);
    sink += strlen(to) + (uint64_t)memcmp(from, to, size) + (strchr(to, 'b') != NULL) + (uint64_t)strcmp(from, to);
    sink += (uint64_t)(strrchr(to, 'a') - to) + strnlen(from, size) + (memchr(to, 'z', size) != NULL);
  }
  wmemset(wide, L'x', 19);
  wide[19] = 0;
  sink += wcslen(wide);
}

void run_vdso(void) {
  struct timespec time_now;
  struct timeval of_day;
  unsigned cpu = 0;
  for (clockid_t clock = 0; clock < 8; clock++) sink += (uint64_t)clock_gettime(clock, &time_now);
  clock_getres(CLOCK_MONOTONIC, &time_now);
  gettimeofday(&of_day, NULL);
  sink += (uint64_t)time(NULL) + (uint64_t)getcpu(&cpu, NULL) + (uint64_t)sched_getcpu();
}
