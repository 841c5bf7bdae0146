/* Calls the assembly of by_hand_code.S. */
#include "features.h"

uint64_t hand_enter(uint64_t n);
uint64_t hand_pushed_return(uint64_t n);
uint64_t hand_asks_where(uint64_t n);
uint64_t hand_states(uint64_t n);
uint64_t hand_return_in_register(uint64_t n);
uint64_t hand_stack_in_register(uint64_t n, void* stack_end);
uint64_t hand_val_offset(uint64_t n);
uint64_t hand_value_expression(uint64_t n);
uint64_t hand_no_tables(uint64_t n, uint64_t (*call)(uint64_t));

uint64_t hand_called_back(uint64_t n);
OWN uint64_t hand_called_back(uint64_t n) {
  volatile char room[30];
  room[n % 30] = 1;
  return n + (uint64_t)room[n % 30];
}

void run_by_hand(void) {
  static uint64_t stack[512];
  for (uint64_t n = 0; n < 3; n++) {
    sink += hand_enter(n) + hand_pushed_return(n) + hand_asks_where(n) + hand_states(n);
    sink += hand_return_in_register(n) + hand_stack_in_register(n, stack + 512) + hand_val_offset(n);
    sink += hand_value_expression(n) + hand_no_tables(n, hand_called_back);
  }
}
