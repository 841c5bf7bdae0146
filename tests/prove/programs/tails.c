/* Calls that are jumps, and callers of function pointers. */
#include "features.h"

#include <stdlib.h>
#include <stdio.h>
#include <string.h>

OWN static uint64_t last(uint64_t n) { return n ^ 5; }
OWN static uint64_t middle(uint64_t n) {
  volatile char room[100];
  room[n % 100] = 1;
  sink += (uint64_t)room[n % 100];
  return last(n + 1);
}
static uint64_t (*volatile pointer)(uint64_t) = middle;
OWN static uint64_t through_pointer(uint64_t n) { return pointer(n + last(n)); }
OWN static uint64_t state_machine(uint64_t n) {
  uint64_t x = 1;
  for (;;) switch (n++ % 9) {
      case 0: x += last(n); break;
      case 1: x ^= middle(n); break;
      case 2: x *= 3; break;
      case 3: x -= through_pointer(x); break;
      case 4: x += 7; break;
      case 5: x ^= x >> 3; break;
      case 6: x += sink; break;
      case 7: x = last(x); break;
      default: return last(x);
    }
}
static int compare(const void* a, const void* b) {
  sink += last(*(const unsigned char*)a);
  return *(const unsigned char*)a - *(const unsigned char*)b;
}

void run_tails(void) {
  char text[100];
  unsigned char bytes[] = "sort me";
  for (uint64_t n = 0; n < 3; n++) sink += middle(n) + through_pointer(n) + state_machine(n);
  qsort(bytes, sizeof bytes, 1, compare);
  snprintf(text, sizeof text, "%s %d %g", (char*)bytes, 3, 0.5);
  sink += strlen(text);
}
