/* CFA rules as OpenSSL's assembly has them: from r9, from a slot that an expression dereferences, with the
 * stack pointer moved to an aligned buffer. */
#include "burn.h"

/* expr_code.S */
uint64_t cfa_in_r9(uint64_t rounds);
uint64_t cfa_in_slot(uint64_t rounds, uint64_t (*call)(uint64_t));
uint64_t cfa_in_rbp_slot(uint64_t rounds, uint64_t (*call)(uint64_t));

static volatile uint64_t sink;

static LEVEL uint64_t called_back(uint64_t rounds) {
  uint64_t x = burn(rounds);
  AFTER_CALL;
  return x;
}
static LEVEL void in_r9(void) { sink += cfa_in_r9((uint64_t)TIMES(20000)); }
static LEVEL void in_slot(void) { sink += cfa_in_slot((uint64_t)TIMES(20000), called_back); }
static LEVEL void in_rbp_slot(void) { sink += cfa_in_rbp_slot((uint64_t)TIMES(20000), called_back); }

int main(int argc, char** argv) {
  read_budget(argc, argv);
  while (time_left()) {
    in_r9();
    in_slot();
    in_rbp_slot();
  }
  return 0;
}
