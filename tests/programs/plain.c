/* Plain chains: frames of many sizes, calls through pointers, a callback from libc (qsort). */
#include "burn.h"

#include <stdio.h>
#include <string.h>

static volatile uint64_t sink;

static LEVEL void leaf_small(void) {
  sink += burn(20000);
  AFTER_CALL;
}
static LEVEL void level_array(unsigned n) {
  volatile char room[3000];
  room[n % sizeof(room)] = (char)n;
  leaf_small();
  sink += (uint64_t)room[n % sizeof(room)];
}
static LEVEL void level_saves(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f,
                              uint64_t g, uint64_t h) {
  level_array((unsigned)(a + b));
  sink += a ^ b ^ c ^ d ^ e ^ f ^ g ^ h;
}
static LEVEL double level_floats(double a, double b) {
  level_saves(1, 2, 3, 4, 5, 6, 7, (uint64_t)a);
  return a * b + (double)sink;
}
static void (*volatile chosen)(int);
static LEVEL void level_pointer(int n) {
  if (level_floats(n, 2) < 0) sink++;
  AFTER_CALL;
}
static LEVEL void plain_chain(int n) {
  chosen = level_pointer;
  chosen(n);
  AFTER_CALL;
}

static LEVEL int compare(const void* a, const void* b) {
  sink += burn(2000);
  return *(const int*)a - *(const int*)b;
}
static LEVEL void sorted(void) {
  int values[16];
  for (int i = 0; i < 16; i++) values[i] = (i * 7919) % 31;
  qsort(values, 16, sizeof(int), compare);
  sink += (uint64_t)values[0];
}

static LEVEL void printed(void) {
  char text[400];
  for (int i = 0; i < 20; i++) {
    snprintf(text, sizeof(text), "%d %s %a %.3f", i, "word", (double)i, i / 3.0);
    sink += strlen(text);
  }
}

int main(int argc, char** argv) {
  read_budget(argc, argv);
  while (time_left()) {
    plain_chain(3);
    sorted();
    printed();
  }
  return 0;
}
