/* Runs the features named by the arguments; all of them without arguments. */
#include "features.h"

#include <stdio.h>
#include <string.h>

volatile uint64_t sink;

static const struct {
  const char* name;
  void (*run)(void);
} kFeatures[] = {
    {"frames", run_frames},         {"recursion", run_recursion},
    {"jumps", run_jumps},           {"signals", run_signals},
    {"contexts", run_contexts},     {"threads", run_threads},
    {"ifunc", run_indirect_functions}, {"vdso", run_vdso},
    {"tails", run_tails},           {"by-hand", run_by_hand},
    {"exceptions", run_exceptions}, {"interrupted", run_interrupted},
};
enum { kCount = sizeof kFeatures / sizeof kFeatures[0] };

int main(int argc, char** argv) {
  int ran = 0;
  for (int i = 0; i < kCount; i++) {
    int chosen = argc == 1;
    for (int j = 1; j < argc; j++) chosen |= strcmp(argv[j], kFeatures[i].name) == 0;
    if (!chosen) continue;
    kFeatures[i].run();
    ran++;
  }
  if (ran == (argc == 1 ? kCount : argc - 1)) return 0;
  fputs("features: no such feature\n", stderr);
  return 2;
}
