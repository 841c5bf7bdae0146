/* Frames of every shape that compilers make: leaves with and without a red zone, saved registers, arguments on the
 * stack, alloca, variable-length arrays, realigned stacks, cold parts, shrink-wrapped saves, a noreturn call at the
 * end. And recursion. */
#include "features.h"

#include <alloca.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

OWN static uint64_t leaf(uint64_t n) { return n * 3; }
OWN static uint64_t red_zone(uint64_t n) {
  volatile uint64_t room[12];
  for (int i = 0; i < 12; i++) room[i] = n + (uint64_t)i;
  return room[n % 12];
}
OWN static uint64_t saves_all(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f) {
  uint64_t x = red_zone(a);
  x += leaf(b) ^ leaf(c);
  return x + a * b + c * d + e * f + leaf(x);
}
OWN static uint64_t many_arguments(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f,
                                   uint64_t g, uint64_t h, uint64_t i, uint64_t j) {
  return leaf(a + b + c + d + e + f) + g * h + i + j;
}
OWN static uint64_t with_alloca(unsigned n) {
  char* room = alloca(n);
  memset(room, 1, n);
  return leaf((uint64_t)room[n / 2]);
}
OWN static uint64_t with_array(unsigned n) {
  uint64_t sum = 0;
  for (unsigned i = 1; i < 4; i++) {
    char room[n * i];
    memset(room, (int)i, n * i);
    sum += leaf((uint64_t)room[n]);
  }
  return sum;
}
OWN static uint64_t realigned(unsigned n) {
  __attribute__((aligned(64))) volatile uint64_t lanes[8];
  lanes[n % 8] = n;
  return leaf(lanes[n % 8]) + ((uintptr_t)lanes & 63);
}
/* gcc keeps the argument pointer in r10, then on the stack: DRAP. */
OWN static uint64_t realigned_array(unsigned n, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f,
                                    uint64_t g) {
  __attribute__((aligned(128))) volatile char lanes[256];
  char room[n];
  memset(room, 1, n);
  lanes[n % 256] = 1;
  uint64_t x = realigned(n) + with_array(n % 50 + 2);
  return x + (uint64_t)lanes[n % 256] + (uint64_t)room[n - 1] + b + c + d + e + f + g;
}
OWN static uint64_t large(unsigned n) {
  volatile char room[70000];
  room[n] = 1;
  return leaf((uint64_t)room[n]);
}
OWN static uint64_t shrink_wrapped(uint64_t n) {
  if (n < 4) return n;
  uint64_t x = leaf(n);
  for (uint64_t i = 0; i < 3; i++) x += saves_all(x, i, n, x ^ n, i + 1, n + 1);
  return x;
}
__attribute__((cold, noinline)) static uint64_t rare(uint64_t n) { return leaf(n) + 1; }
OWN static uint64_t cold_part(uint64_t n) {
  uint64_t x = leaf(n);
  if (__builtin_expect(n > 100, 0)) {
    volatile char room[200];
    room[n % 200] = 1;
    x += rare(n) + (uint64_t)room[n % 200];
    x += rare(x);
  }
  return x;
}
OWN static uint64_t variadic(int count, ...) {
  va_list list;
  va_start(list, count);
  uint64_t sum = 0;
  for (int i = 0; i < count; i++) sum += va_arg(list, uint64_t);
  va_end(list);
  return leaf(sum);
}
struct big {
  uint64_t words[20];
};
OWN static struct big by_value(struct big in) {
  in.words[3] += leaf(in.words[4]);
  return in;
}
OWN static double floats(double a, double b) { return a * b + (double)leaf((uint64_t)a); }

static jmp_buf back;
__attribute__((noreturn, noinline)) static void never_returns(uint64_t n) {
  sink += leaf(n);
  longjmp(back, 1);
}
/* The return address of its last call belongs to the next function. */
OWN static void calls_last(uint64_t n) {
  sink += n;
  never_returns(n + sink);
}
OWN static uint64_t follows(uint64_t n) {
  volatile char room[999];
  room[n] = 1;
  return leaf((uint64_t)room[n]);
}

void run_frames(void) {
  struct big big = {{1, 2, 3, 4, 5}};
  for (volatile uint64_t n = 1; n < 200; n += 83) {
    sink += leaf(n) + red_zone(n) + saves_all(n, 2, 3, 4, 5, 6) + many_arguments(n, 2, 3, 4, 5, 6, 7, 8, 9, 10);
    sink += with_alloca((unsigned)n + 3) + with_array((unsigned)n + 3) + realigned((unsigned)n);
    sink += realigned_array((unsigned)n + 1, 2, 3, 4, 5, 6, n) + large((unsigned)n) + shrink_wrapped(n);
    sink += cold_part(n) + variadic(9, n, n, n, n, n, n, n, n, n) + by_value(big).words[3];
    sink += (uint64_t)floats((double)n, 2.5) + follows(n);
    if (setjmp(back) == 0) calls_last(n);
  }
}

OWN static uint64_t countdown(unsigned n) {
  uint64_t x = n == 0 ? 0 : countdown(n - 1);
  __asm__ volatile("" : "+r"(x));
  return x + 1;
}
OWN static uint64_t ackermann(uint64_t m, uint64_t n) {
  if (m == 0) return n + 1;
  return ackermann(m - 1, n == 0 ? 1 : ackermann(m, n - 1));
}
OWN static uint64_t odd(unsigned n);
OWN static uint64_t even(unsigned n) {
  volatile char room[300];
  room[n % 300] = 1;
  return n == 0 ? 1 : odd(n - 1) + (uint64_t)room[n % 300];
}
OWN static uint64_t odd(unsigned n) {
  uint64_t x = n == 0 ? 0 : even(n - 1);
  return x + 1;
}

void run_recursion(void) { sink += countdown(400) + ackermann(2, 3) + even(101); }
