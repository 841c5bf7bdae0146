/* The same in C. */
#include <clew/unwind.h>

int main(void) {
  struct clew_frame frames[64];
  const struct clew_trace trace = clew_unwind_here(frames, 64);
  return trace.end == CLEW_END_ROOT && trace.frames >= 3 ? 0 : 1;
}
