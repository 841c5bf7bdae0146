/* The walk: frame after frame from the sampled registers to the root, or to the reason why not (trace
 * contract T1..T4).
 *
 * Freestanding C that is also valid C++ and compiles for BPF. The includer gives (besides core/state.h):
 *
 *   uint32_t CLEW_FIND(context, pc, struct clew_code* code)
 *       What covers the address: CLEW_CONTINUE with *code filled, CLEW_END_NOT_MAPPED or
 *       CLEW_END_NOT_EXECUTABLE.
 *   clew_rule CLEW_RULE(context, struct clew_code* code, address)
 *       The rule at an address that `code` covers, 0 where it has none; may set code->table, which the step
 *       then reads lists and expressions from. Default: by the table.
 *   clew_rule CLEW_ANALYSE(context, pc)
 *       Instruction analysis where nothing describes pc; 0: cannot tell.
 *   bool CLEW_VOUCH(context, pc)
 *       Whether a call precedes the return address `pc`.
 *   CLEW_WALK_CONTEXT(walk)
 *       What the other hooks get as their context (default: walk->context).
 *   CLEW_CAPACITY(walk), CLEW_EMIT(walk, pc, sp), CLEW_EMIT_SIGNAL(walk)
 *       How many frames there is room for; frame number walk->count goes out, with walk->how and walk->flags;
 *       the last one turns out to be a signal frame. Defaults: walk->capacity, walk->frames.
 *   CLEW_LOOP(limit, function, walk)
 *       Calls long function(uint32_t index, void* walk) up to `limit` times, until it returns 1: a plain
 *       loop, an iterator's, or bpf_loop.
 */
#ifndef CLEW_CORE_WALK_H
#define CLEW_CORE_WALK_H

#include "core/step.h"

/* The code that covers an address. */
struct clew_code {
  const struct clew_table_header* table; /* null: nothing describes it */
  uint64_t bias;                         /* address in memory minus virtual address in the file */
};

struct clew_walk {
  CLEW_CONTEXT context;
  struct clew_state state;   /* of the frame that is next to be emitted */
  struct clew_frame* frames; /* where they go */
  uint32_t capacity;
  uint32_t count;
  uint32_t end;        /* enum clew_end, valid when the walk is over */
  uint32_t how;        /* of the next frame */
  uint32_t flags;      /* of the next frame */
  uint32_t switches;   /* steps that did not move towards the root (declared switches of stacks) */
  bool full;           /* follow all registers */
  uint64_t end_detail; /* the address that could not be read, or that nothing covers */
};

enum { CLEW_MAX_SWITCHES = 64 };

#ifndef CLEW_RULE
#define CLEW_RULE(context, code, address) \
  ((code)->table ? clew_table_lookup(context, (code)->table, (address) - (code)->bias) : (clew_rule)0)
#endif
#ifndef CLEW_ANALYSE
#define CLEW_ANALYSE(context, pc) ((clew_rule)0)
#endif
#ifndef CLEW_VOUCH
#define CLEW_VOUCH(context, pc) false
#endif
#ifndef CLEW_WALK_CONTEXT
#define CLEW_WALK_CONTEXT(walk) ((walk)->context)
#endif
#ifndef CLEW_CAPACITY
#define CLEW_CAPACITY(walk) ((walk)->capacity)
#endif
#ifndef CLEW_EMIT
#define CLEW_EMIT(walk, pc, sp) clew_emit(walk, pc, sp)
#define CLEW_EMIT_SIGNAL(walk) ((walk)->frames[(walk)->count - 1].flags |= CLEW_FRAME_SIGNAL)
#endif
#ifndef CLEW_LOOP
#define CLEW_LOOP(limit, function, walk)                     \
  do {                                                       \
    uint32_t clew_index;                                     \
    for (clew_index = 0; clew_index < (limit); clew_index++) \
      if (function(clew_index, walk)) break;                 \
  } while (0)
#endif

static inline void clew_emit(struct clew_walk* walk, uint64_t pc, uint64_t sp) {
  walk->frames[walk->count].pc = pc;
  walk->frames[walk->count].sp = sp;
  walk->frames[walk->count].how = walk->how;
  walk->frames[walk->count].flags = walk->flags;
}

static inline long clew_walk_stop(struct clew_walk* walk, uint32_t end, uint64_t detail) {
  walk->end = end;
  walk->end_detail = detail;
  return 1;
}

/* Emits the frame that the state stands at and steps to its caller. Returns 0 to go on, 1 when the walk is
 * over. */
static inline long clew_walk_frame(uint32_t index, void* argument) {
  struct clew_walk* walk = (struct clew_walk*)argument;
  CLEW_CONTEXT context = CLEW_WALK_CONTEXT(walk);
  const uint64_t pc = walk->state.value[CLEW_RIP];
  const uint64_t sp = walk->state.value[CLEW_RSP];
  struct clew_code code = {0, 0}; /* NOLINT(modernize-use-nullptr): also C */
  struct clew_step step = {walk->full, 0, false, false, false, false};
  clew_rule rule = 0;
  uint32_t how = CLEW_HOW_TABLE, result;
  const uint32_t found = CLEW_FIND(context, pc, &code);
  (void)index;

  /* A caller outside executable mappings is no frame; a sampled or interrupted pc is one wherever it is (T1).
   */
  if (found != CLEW_CONTINUE && !(walk->flags & CLEW_FRAME_EXACT_PC)) return clew_walk_stop(walk, found, pc);
  if (walk->count >= CLEW_CAPACITY(walk)) return clew_walk_stop(walk, CLEW_END_DEPTH_LIMIT, pc);
  CLEW_EMIT(walk, pc, sp);
  walk->count++;

  if (found == CLEW_CONTINUE) {
    /* A return address belongs to the call before it: that may be the last instruction of its function. */
    rule = CLEW_RULE(context, &code, pc - ((walk->flags & CLEW_FRAME_EXACT_PC) ? 0 : 1));
    if (clew_rule_kind(rule) == CLEW_CFA_NONE) {
      rule = CLEW_ANALYSE(context, pc);
      how = CLEW_HOW_ANALYSIS;
    }
  } else {
    /* A call through a bad pointer: all that happened is that the return address was pushed. */
    rule = clew_rule_make(CLEW_CFA_REG, CLEW_RSP, 8, CLEW_BP_UNCHANGED, 0, false);
    how = CLEW_HOW_ANALYSIS;
  }

  if (clew_rule_kind(rule) != CLEW_CFA_NONE) {
    result = clew_step_by_rule(context, code.table, rule, &walk->state, &step);
  } else {
    how = CLEW_HOW_FRAME_POINTER;
    result = clew_step_by_frame_pointer(context, &walk->state, &step);
  }
  if (result != CLEW_CONTINUE)
    return clew_walk_stop(walk, found == CLEW_CONTINUE ? result : found,
                          result == CLEW_END_UNREADABLE ? step.bad_address : pc);
  if (step.analysed) how = CLEW_HOW_ANALYSIS;
  if (step.signal) CLEW_EMIT_SIGNAL(walk);

  /* Towards the root: the caller's frame lies higher, but for a declared switch of stacks. */
  if (walk->state.value[CLEW_RSP] <= sp) {
    if (!step.switched || walk->switches >= CLEW_MAX_SWITCHES)
      return clew_walk_stop(walk, CLEW_END_NO_PROGRESS, pc);
    walk->switches++;
  }

  walk->how = how;
  walk->flags = (walk->flags & CLEW_FRAME_GUESSED) | (step.exact ? (uint32_t)CLEW_FRAME_EXACT_PC : 0u);
  if (how == CLEW_HOW_FRAME_POINTER || (how == CLEW_HOW_ANALYSIS && !step.signal)) {
    if (!CLEW_VOUCH(context, walk->state.value[CLEW_RIP])) {
      uint32_t why = found;
      if (why == CLEW_CONTINUE) why = CLEW_FIND(context, walk->state.value[CLEW_RIP], &code);
      if (why == CLEW_CONTINUE) why = CLEW_END_NOT_A_CALL;
      return clew_walk_stop(walk, why, walk->state.value[CLEW_RIP]);
    }
    if (how == CLEW_HOW_FRAME_POINTER) walk->flags |= CLEW_FRAME_GUESSED;
  }
  return 0;
}

/* Runs a walk whose context, state, frames, capacity and full are set. `rip` and `rsp` must be known. */
static inline void clew_walk_run(struct clew_walk* walk) {
  walk->count = 0;
  walk->end = CLEW_END_DEPTH_LIMIT;
  walk->end_detail = 0;
  walk->how = CLEW_HOW_REGISTERS;
  walk->flags = CLEW_FRAME_EXACT_PC;
  walk->switches = 0;
  CLEW_LOOP(CLEW_CAPACITY(walk) + 1, clew_walk_frame, walk);
}

#endif
