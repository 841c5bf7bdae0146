// Exceptions thrown and caught many frames up, with destructors that burn CPU while libgcc unwinds: the chain
// then runs through the personality's landing pad of the function that is being unwound.
#include "burn.h"

#include <stdexcept>

static volatile uint64_t sink;

struct Guard {
  LEVEL explicit Guard(int level) : level_(level) {}
  LEVEL ~Guard() {
    sink = sink + burn(20000 + (uint64_t)level_);
    AFTER_CALL;
  }
  int level_;
};

extern "C" {
static LEVEL void thrower(int n) {
  Guard guard(0);
  if (n > 0) throw std::runtime_error("deep");
  sink = sink + 1;
}
static LEVEL void level_three(int n) {
  Guard guard(3);
  thrower(n);
}
static LEVEL void level_two(int n) {
  Guard guard(2);
  try {
    level_three(n);
  } catch (const std::logic_error&) {
    sink = sink + 1;
  }
}
static LEVEL void handler_leaf() {
  sink = sink + burn(20000);
  AFTER_CALL;
}
static LEVEL void catcher(int n) {
  try {
    Guard guard(1);
    level_two(n);
  } catch (const std::runtime_error&) {
    handler_leaf();
  }
}
}

int main(int argc, char** argv) {
  read_budget(argc, argv);
  while (time_left())
    for (int n = 0; n < 8; n++) catcher(n);
  return 0;
}
