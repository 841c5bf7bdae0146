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
#include "core/sframe.h"
#include "core/walk.h"

static uint32_t find(void* context, uint64_t pc, struct clew_code* code) {
  (void)context;
  (void)pc;
  code->table = 0;
  return CLEW_CONTINUE;
}

void run(struct clew_walk* walk);
void run(struct clew_walk* walk) { clew_walk_run(walk); }

uint32_t sframe_row(const struct clew_sframe* sframe, uint64_t pc, struct clew_sframe_function* function,
                    struct clew_sframe_row* row);
uint32_t sframe_row(const struct clew_sframe* sframe, uint64_t pc, struct clew_sframe_function* function,
                    struct clew_sframe_row* row) {
  return clew_sframe_lookup(0, sframe, pc, function, row);
}
