/* One step: from the registers of a frame and its rule to the registers of its caller.
 *
 * Freestanding C that is also valid C++ and compiles for BPF. */
#ifndef CLEW_CORE_STEP_H
#define CLEW_CORE_STEP_H

#include "core/expression.h"
#include "core/state.h"
#include "core/table.h"

/* The includer's hook for a DWARF expression. Default: evaluate it. */
#ifndef CLEW_EXPRESSION
#define CLEW_EXPRESSION(context, header, state, evaluation) \
  clew_expression_evaluate(context, header, state, evaluation)
#endif

/* The includer's hook for rules with lists of saved registers: false ends the walk at them. Default: true. */
#ifndef CLEW_FOLLOW_LISTS
#define CLEW_FOLLOW_LISTS true
#endif

/* How to step, and what the step found out besides the registers. */
struct clew_step {
  bool full;            /* in: follow every register; without it only rip, rsp and rbp are known afterwards,
                         * unless the frame is special */
  uint64_t bad_address; /* that could not be read */
  bool signal;          /* the frame is a signal frame: the caller was interrupted, its pc is exact */
  bool exact;           /* the caller's pc is where it goes on, not a return address */
  bool analysed;        /* the rule comes from instruction analysis */
  bool switched; /* the stack pointer need not grow: the rule may lead to another stack, or the return address
                  * was popped */
};

static inline uint32_t clew_step_sigframe(CLEW_CONTEXT context, struct clew_state* state, uint64_t ucontext,
                                          struct clew_step* step) {
  uint32_t i;
  (void)context;
  step->signal = step->exact = step->switched = true;
  for (i = 0; i < 17; i++) {
    uint64_t value = 0;
    step->bad_address = ucontext + 40 + 8 * (uint64_t)i;
    if (!CLEW_READ_U64(context, step->bad_address, &value)) return CLEW_END_UNREADABLE;
    state->value[clew_sigcontext_register(i)] = value;
  }
  state->known = (1u << CLEW_REGISTERS) - 1;
  return CLEW_CONTINUE;
}

/* Where the slot that a register was saved in cannot be read: does the register still hold the saved value?
 * Compilers leave the save in force after the pop that restores it (gcc writes no DW_CFA_restore in
 * epilogues), until the return. The slot then lies below the stack pointer, which a copied stack does not
 * hold, and the register has its caller's value again. Code that saves into the red zone and then clobbers
 * looks the same; neither compiler emits it. */
static inline bool clew_restored_already(const struct clew_state* state, uint64_t slot) {
  return slot < state->value[CLEW_RSP];
}

/* Steps `state` to the caller by `rule`, whose lists and expressions are in `header` (null for a rule that
 * needs none). Returns CLEW_CONTINUE or an enum clew_end; then `state` is as it was, or spoiled:
 * the walk is over. */
static inline uint32_t clew_step_by_rule(CLEW_CONTEXT context, const struct clew_table_header* header,
                                         clew_rule rule, struct clew_state* state, struct clew_step* step) {
  const bool full = step->full;
  const uint32_t kind = clew_rule_kind(rule);
  const uint32_t base = clew_rule_register(rule);
  const uint32_t bp = clew_rule_bp(rule);
  const uint32_t saves = clew_rule_saves(rule);
  const bool special = clew_rule_special(rule);
  struct clew_evaluation evaluation = {0, false, 0, 0};
  uint64_t cfa, value = 0;
  uint32_t result;

  step->signal = false;
  step->exact = false;
  step->analysed = false;
  step->switched = false;
  step->bad_address = 0;

  if (kind == CLEW_CFA_REG || kind == CLEW_CFA_DEREF) {
    if (!clew_known(state, base)) return CLEW_END_NO_REGISTER;
    cfa = state->value[base] + (uint64_t)(int64_t)clew_rule_offset(rule);
    step->switched = base != CLEW_RSP && base != CLEW_RBP;
    if (kind == CLEW_CFA_DEREF) {
      step->bad_address = cfa;
      if (!CLEW_READ_U64(context, cfa, &cfa)) return CLEW_END_UNREADABLE;
      step->switched = true;
    }
  } else if (kind == CLEW_CFA_CHILD) {
    if (clew_known(state, CLEW_RAX) && state->value[CLEW_RAX] == 0) return CLEW_END_ROOT;
    cfa = state->value[CLEW_RSP] + (uint64_t)(int64_t)clew_rule_offset(rule);
  } else if (kind == CLEW_CFA_PLT) {
    cfa = state->value[CLEW_RSP] + 8 +
          ((state->value[CLEW_RIP] & 15u) >= (uint32_t)clew_rule_offset(rule) ? 8u : 0u);
  } else if (kind == CLEW_CFA_EXPR && header) {
    evaluation.pool_offset = (uint32_t)clew_rule_offset(rule);
    evaluation.push_cfa = false;
    evaluation.cfa = 0;
    result = CLEW_EXPRESSION(context, header, state, &evaluation);
    if (result != CLEW_CONTINUE) return result;
    cfa = evaluation.value;
    step->switched = true;
  } else if (kind == CLEW_CFA_SIGFRAME) {
    return clew_step_sigframe(context, state,
                              state->value[CLEW_RSP] + (uint64_t)(int64_t)clew_rule_offset(rule), step);
  } else {
    return kind == CLEW_CFA_ROOT ? CLEW_END_ROOT : CLEW_END_NO_RULE;
  }

  if (saves == 0 || (!full && !special && bp != CLEW_BP_IN_SAVES)) {
    /* The common path: two loads. */
    step->bad_address = cfa - 8;
    if (!CLEW_READ_U64(context, cfa - 8, &value)) return CLEW_END_UNREADABLE;
    state->value[CLEW_RIP] = value;
    if (bp != CLEW_BP_UNCHANGED) {
      if (CLEW_READ_U64(context, cfa - 8ull * bp, &value)) {
        state->value[CLEW_RBP] = value;
        state->known |= 1u << CLEW_RBP;
      } else if (!clew_restored_already(state, cfa - 8ull * bp)) {
        state->known &= ~(1u << CLEW_RBP);
      }
    }
    state->value[CLEW_RSP] = cfa;
    state->known = (full ? state->known : state->known & (1u << CLEW_RBP)) | 1u << CLEW_RSP | 1u << CLEW_RIP;
    return CLEW_CONTINUE;
  }

  if (!CLEW_FOLLOW_LISTS) return CLEW_END_NO_RULE;
  /* All registers of the list, computed from the callee's before any of them changes. */
  {
    struct clew_state caller = *state;
    uint32_t index, count;
    uint64_t list;
    bool have_return = false;
    if (!header || saves >= header->saves_count) return CLEW_END_NO_RULE;
    list = clew_table_u64(context, header, header->saves_at + saves * 8);
    count = (uint32_t)list & CLEW_SAVES_COUNT_MASK;
    step->signal = (list & CLEW_SAVES_SIGNAL) != 0;
    step->exact = (list & (CLEW_SAVES_SIGNAL | CLEW_SAVES_EXACT)) != 0;
    step->analysed = (list & CLEW_SAVES_ANALYSED) != 0;
    if (step->exact) step->switched = true; /* its stack pointer may already be that of the landing pad */
    caller.value[CLEW_RSP] = cfa;
    if (bp != CLEW_BP_UNCHANGED && bp != CLEW_BP_IN_SAVES) {
      if (CLEW_READ_U64(context, cfa - 8ull * bp, &value)) {
        caller.value[CLEW_RBP] = value;
        caller.known |= 1u << CLEW_RBP;
      } else if (!clew_restored_already(state, cfa - 8ull * bp)) {
        caller.known &= ~(1u << CLEW_RBP);
      }
    }
    for (index = 0; index < CLEW_REGISTERS; index++) {
      clew_save save;
      uint32_t reg;
      int32_t offset;
      uint64_t address = 0;
      bool have = true;
      if (index >= count) break;
      save = clew_table_u64(context, header, header->saves_at + (saves + 1 + index) * 8);
      reg = clew_save_register(save);
      offset = clew_save_offset(save);
      if (reg >= CLEW_REGISTERS) return CLEW_END_NO_RULE;
      switch (clew_save_kind_of(save)) {
        case CLEW_SAVE_AT_CFA:
          address = cfa + (uint64_t)(int64_t)offset;
          have = CLEW_READ_U64(context, address, &value);
          if (!have && reg != CLEW_RIP && reg != CLEW_RSP && clew_restored_already(state, address)) {
            have = clew_known(state, reg);
            value = state->value[reg];
          }
          break;
        case CLEW_SAVE_CFA_PLUS:
          value = cfa + (uint64_t)(int64_t)offset;
          break;
        case CLEW_SAVE_REGISTER:
          have = offset >= 0 && offset < CLEW_REGISTERS && clew_known(state, (uint32_t)offset);
          if (have) value = state->value[offset];
          if (!have && reg == CLEW_RIP) return CLEW_END_NO_REGISTER;
          step->switched |= reg == CLEW_RIP; /* nothing of the frame need be on the stack */
          break;
        case CLEW_SAVE_EXPR_AT:
        case CLEW_SAVE_EXPR_VALUE:
          evaluation.pool_offset = (uint32_t)offset;
          evaluation.push_cfa = true;
          evaluation.cfa = cfa;
          result = CLEW_EXPRESSION(context, header, state, &evaluation);
          have = result == CLEW_CONTINUE;
          if (!have && (reg == CLEW_RIP || reg == CLEW_RSP)) return result;
          value = address = evaluation.value;
          if (have && clew_save_kind_of(save) == CLEW_SAVE_EXPR_AT)
            have = CLEW_READ_U64(context, address, &value);
          break;
        default:
          if (reg == CLEW_RIP) return CLEW_END_ROOT;
          have = false;
          break;
      }
      if (have) {
        caller.value[reg] = value;
        caller.known |= 1u << reg;
      } else {
        if (reg == CLEW_RIP || reg == CLEW_RSP) {
          step->bad_address = address;
          return CLEW_END_UNREADABLE;
        }
        caller.known &= ~(1u << reg);
      }
      have_return |= reg == CLEW_RIP;
      step->switched |= reg == CLEW_RSP;
    }
    if (!have_return) {
      step->bad_address = cfa - 8;
      if (!CLEW_READ_U64(context, cfa - 8, &value)) return CLEW_END_UNREADABLE;
      caller.value[CLEW_RIP] = value;
    }
    caller.known |= 1u << CLEW_RSP | 1u << CLEW_RIP;
    *state = caller;
  }
  return CLEW_CONTINUE;
}

/* A frame-pointer step: [rbp] is the caller's rbp, [rbp + 8] the return address. Nothing vouches for it here.
 */
static inline uint32_t clew_step_by_frame_pointer(CLEW_CONTEXT context, struct clew_state* state,
                                                  struct clew_step* step) {
  const uint64_t bp = state->value[CLEW_RBP];
  uint64_t caller_bp = 0, pc = 0;
  (void)context;
  step->signal = step->exact = step->analysed = step->switched = false;
  step->bad_address = bp;
  if (!clew_known(state, CLEW_RBP) || bp % 8 != 0 || bp < state->value[CLEW_RSP]) return CLEW_END_NO_RULE;
  if (!CLEW_READ_U64(context, bp, &caller_bp) || !CLEW_READ_U64(context, bp + 8, &pc))
    return CLEW_END_NO_RULE;
  state->value[CLEW_RIP] = pc;
  state->value[CLEW_RBP] = caller_bp;
  state->value[CLEW_RSP] = bp + 16;
  state->known = 1u << CLEW_RIP | 1u << CLEW_RBP | 1u << CLEW_RSP;
  return CLEW_CONTINUE;
}

#endif
