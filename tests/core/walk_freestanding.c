/* The core as plain C without a library: compiled by bpf_compile_test. */
#include <stdbool.h>
#include <stdint.h>

struct clew_code;
static bool read_u64(void* context, uint64_t address, uint64_t* out) {
  (void)context;
  *out = address;
  return false;
}
static uint32_t find(void* context, uint64_t pc, struct clew_code* code);

#define CLEW_READ_U64(context, address, out) read_u64(context, address, out)
#define CLEW_FIND(context, pc, code) find(context, pc, code)
#include "core/walk.h"

static uint32_t find(void* context, uint64_t pc, struct clew_code* code) {
  (void)context;
  (void)pc;
  code->table = 0;
  return CLEW_CONTINUE;
}

void run(struct clew_walk* walk);
void run(struct clew_walk* walk) { clew_walk_run(walk); }
