/* DWARF expressions of unwind rules (DWARF 5 section 2.5 and 6.4.2), evaluated over the registers of one
 * frame.
 *
 * Freestanding C that is also valid C++ and compiles for BPF: the stack is 16 words, at most 64 operations
 * are run. */
#ifndef CLEW_CORE_EXPRESSION_H
#define CLEW_CORE_EXPRESSION_H

#include "core/state.h"
#include "core/table.h"

enum { CLEW_EXPRESSION_STACK = 16, CLEW_EXPRESSION_STEPS = 64 };

/* A position in an expression of a table's pool. Reads beyond its end give 0 and set bad. */
struct clew_expression {
  uint32_t at, end;
  bool bad;
};

static inline uint32_t clew_expression_u8(CLEW_CONTEXT context, const struct clew_table_header* header,
                                          struct clew_expression* e) {
  if (e->at >= e->end) {
    e->bad = true;
    return 0;
  }
  return clew_table_u8(context, header, e->at++);
}

static inline uint64_t clew_expression_fixed(CLEW_CONTEXT context, const struct clew_table_header* header,
                                             struct clew_expression* e, uint32_t bytes) {
  uint64_t value = 0;
  uint32_t i;
  for (i = 0; i < 8; i++) {
    if (i >= bytes) break;
    value |= (uint64_t)clew_expression_u8(context, header, e) << (8 * i);
  }
  return value;
}

static inline uint64_t clew_sign_extend(uint64_t value, uint32_t bits) {
  return bits >= 64 ? value : (value ^ 1ull << (bits - 1)) - (1ull << (bits - 1));
}

static inline uint64_t clew_expression_leb(CLEW_CONTEXT context, const struct clew_table_header* header,
                                           struct clew_expression* e, bool is_signed) {
  uint64_t value = 0;
  uint32_t i, byte;
  for (i = 0; i < 10; i++) {
    byte = clew_expression_u8(context, header, e);
    value |= (uint64_t)(byte & 127u) << (7 * i);
    if (byte < 128) {
      if (is_signed && 7 * i + 7 < 64) value = clew_sign_extend(value, 7 * i + 7);
      return value;
    }
  }
  e->bad = true;
  return 0;
}

/* What to evaluate, and the value. (A function for BPF takes five arguments at most.) */
struct clew_evaluation {
  uint32_t pool_offset; /* of the expression in the table's pool */
  bool push_cfa;        /* the stack begins with the CFA: rules of registers */
  uint64_t cfa;
  uint64_t value; /* the top of the stack at the end */
};

/* Returns CLEW_CONTINUE with evaluation->value set, or why it could not be evaluated. */
static inline uint32_t clew_expression_evaluate(CLEW_CONTEXT context, const struct clew_table_header* header,
                                                const struct clew_state* state,
                                                struct clew_evaluation* evaluation) {
  const uint32_t pool_offset = evaluation->pool_offset;
  uint64_t stack[CLEW_EXPRESSION_STACK] = {0};
  uint32_t depth = 0, step; /* the top is stack[depth - 1] */
  struct clew_expression e;
  uint32_t length;
  if (pool_offset >= header->pool_bytes) return CLEW_END_BAD_EXPRESSION;
  length = clew_table_u8(context, header, header->pool_at + pool_offset) |
           clew_table_u8(context, header, header->pool_at + pool_offset + 1) << 8;
  e.at = header->pool_at + pool_offset + 2;
  e.end = e.at + length;
  e.bad = e.end > header->pool_at + header->pool_bytes;
  if (evaluation->push_cfa) stack[depth++] = evaluation->cfa;

#define CLEW_TOP(n) stack[(depth - 1 - (n)) & (CLEW_EXPRESSION_STACK - 1)]
#define CLEW_NEED(n) \
  if (depth < (n)) return CLEW_END_BAD_EXPRESSION
#define CLEW_PUSH(v)                                                    \
  do {                                                                  \
    const uint64_t pushed = (v);                                        \
    if (depth >= CLEW_EXPRESSION_STACK) return CLEW_END_BAD_EXPRESSION; \
    stack[depth & (CLEW_EXPRESSION_STACK - 1)] = pushed;                \
    depth++;                                                            \
  } while (0)
#define CLEW_BINARY(expression)           \
  do {                                    \
    uint64_t b, a;                        \
    CLEW_NEED(2);                         \
    b = CLEW_TOP(0), a = CLEW_TOP(1);     \
    depth--;                              \
    CLEW_TOP(0) = (uint64_t)(expression); \
  } while (0)

  for (step = 0; step < CLEW_EXPRESSION_STEPS && e.at < e.end && !e.bad; step++) {
    const uint32_t op = clew_expression_u8(context, header, &e);
    if (op >= 0x30 && op <= 0x4f) { /* DW_OP_lit0 ... */
      CLEW_PUSH(op - 0x30);
    } else if ((op >= 0x70 && op <= 0x8f) || op == 0x92) { /* DW_OP_breg0 ..., DW_OP_bregx */
      const uint64_t reg = op == 0x92 ? clew_expression_leb(context, header, &e, false) : op - 0x70;
      const uint64_t offset = clew_expression_leb(context, header, &e, true);
      if (reg >= CLEW_REGISTERS) return CLEW_END_BAD_EXPRESSION;
      if (!clew_known(state, (uint32_t)reg)) return CLEW_END_NO_REGISTER;
      CLEW_PUSH(state->value[reg] + offset);
    } else {
      switch (op) {
        case 0x03:
          CLEW_PUSH(clew_expression_fixed(context, header, &e, 8));
          break; /* addr */
        case 0x06:
          CLEW_NEED(1u); /* deref */
          if (!CLEW_READ_U64(context, CLEW_TOP(0), &CLEW_TOP(0))) return CLEW_END_UNREADABLE;
          break;
        case 0x08:
          CLEW_PUSH(clew_expression_fixed(context, header, &e, 1));
          break; /* const1u */
        case 0x09:
          CLEW_PUSH(clew_sign_extend(clew_expression_fixed(context, header, &e, 1), 8));
          break; /* const1s */
        case 0x0a:
          CLEW_PUSH(clew_expression_fixed(context, header, &e, 2));
          break; /* const2u */
        case 0x0b:
          CLEW_PUSH(clew_sign_extend(clew_expression_fixed(context, header, &e, 2), 16));
          break; /* const2s */
        case 0x0c:
          CLEW_PUSH(clew_expression_fixed(context, header, &e, 4));
          break; /* const4u */
        case 0x0d:
          CLEW_PUSH(clew_sign_extend(clew_expression_fixed(context, header, &e, 4), 32));
          break;   /* const4s */
        case 0x0e: /* const8u */
        case 0x0f:
          CLEW_PUSH(clew_expression_fixed(context, header, &e, 8));
          break; /* const8s */
        case 0x10:
          CLEW_PUSH(clew_expression_leb(context, header, &e, false));
          break; /* constu */
        case 0x11:
          CLEW_PUSH(clew_expression_leb(context, header, &e, true));
          break; /* consts */
        case 0x12:
          CLEW_NEED(1u);
          CLEW_PUSH(CLEW_TOP(0));
          break; /* dup */
        case 0x13:
          CLEW_NEED(1u);
          depth--;
          break; /* drop */
        case 0x14:
          CLEW_NEED(2u);
          CLEW_PUSH(CLEW_TOP(1));
          break;     /* over */
        case 0x15: { /* pick */
          const uint32_t index = clew_expression_u8(context, header, &e);
          if (index >= depth) return CLEW_END_BAD_EXPRESSION;
          CLEW_PUSH(CLEW_TOP(index));
          break;
        }
        case 0x16: { /* swap */
          uint64_t top;
          CLEW_NEED(2u);
          top = CLEW_TOP(0);
          CLEW_TOP(0) = CLEW_TOP(1);
          CLEW_TOP(1) = top;
          break;
        }
        case 0x17: { /* rot: the top becomes the third */
          uint64_t top;
          CLEW_NEED(3u);
          top = CLEW_TOP(0);
          CLEW_TOP(0) = CLEW_TOP(1);
          CLEW_TOP(1) = CLEW_TOP(2);
          CLEW_TOP(2) = top;
          break;
        }
        case 0x19:
          CLEW_NEED(1u);
          if ((int64_t)CLEW_TOP(0) < 0) CLEW_TOP(0) = 0 - CLEW_TOP(0);
          break; /* abs */
        case 0x1a:
          CLEW_BINARY(a & b);
          break;
        case 0x1b: /* div, signed */
          CLEW_NEED(2u);
          if (CLEW_TOP(0) == 0) return CLEW_END_BAD_EXPRESSION;
          {
            const uint64_t b = CLEW_TOP(0), a = CLEW_TOP(1);
            const uint64_t quotient = ((int64_t)a < 0 ? 0 - a : a) / ((int64_t)b < 0 ? 0 - b : b);
            depth--;
            CLEW_TOP(0) = ((int64_t)(a ^ b) < 0) ? 0 - quotient : quotient;
          }
          break;
        case 0x1c:
          CLEW_BINARY(a - b);
          break;
        case 0x1d: /* mod */
          CLEW_NEED(2u);
          if (CLEW_TOP(0) == 0) return CLEW_END_BAD_EXPRESSION;
          CLEW_BINARY(a % b);
          break;
        case 0x1e:
          CLEW_BINARY(a * b);
          break;
        case 0x1f:
          CLEW_NEED(1u);
          CLEW_TOP(0) = 0 - CLEW_TOP(0);
          break; /* neg */
        case 0x20:
          CLEW_NEED(1u);
          CLEW_TOP(0) = ~CLEW_TOP(0);
          break; /* not */
        case 0x21:
          CLEW_BINARY(a | b);
          break;
        case 0x22:
          CLEW_BINARY(a + b);
          break;
        case 0x23:
          CLEW_NEED(1u);
          CLEW_TOP(0) += clew_expression_leb(context, header, &e, false);
          break; /* plus_uconst */
        case 0x24:
          CLEW_BINARY(b < 64 ? a << (b & 63) : 0);
          break;
        case 0x25:
          CLEW_BINARY(b < 64 ? a >> (b & 63) : 0);
          break;
        case 0x26: /* shra */
          CLEW_BINARY((a >> (b < 64 ? b : 63)) |
                      ((int64_t)a < 0 && b != 0 ? ~(~0ull >> (b < 64 ? b : 63)) : 0));
          break;
        case 0x27:
          CLEW_BINARY(a ^ b);
          break;
        case 0x28: { /* bra */
          const uint64_t distance = clew_sign_extend(clew_expression_fixed(context, header, &e, 2), 16);
          CLEW_NEED(1u);
          depth--;
          if (stack[depth & (CLEW_EXPRESSION_STACK - 1)] == 0) break;
          e.at += (uint32_t)distance;
          if (e.at > e.end || e.at < header->pool_at + pool_offset + 2) e.bad = true;
          break;
        }
        case 0x29:
          CLEW_BINARY((int64_t)a == (int64_t)b ? 1 : 0);
          break;
        case 0x2a:
          CLEW_BINARY((int64_t)a >= (int64_t)b ? 1 : 0);
          break;
        case 0x2b:
          CLEW_BINARY((int64_t)a > (int64_t)b ? 1 : 0);
          break;
        case 0x2c:
          CLEW_BINARY((int64_t)a <= (int64_t)b ? 1 : 0);
          break;
        case 0x2d:
          CLEW_BINARY((int64_t)a < (int64_t)b ? 1 : 0);
          break;
        case 0x2e:
          CLEW_BINARY(a != b ? 1 : 0);
          break;
        case 0x2f: /* skip */
          e.at += (uint32_t)clew_sign_extend(clew_expression_fixed(context, header, &e, 2), 16);
          if (e.at > e.end || e.at < header->pool_at + pool_offset + 2) e.bad = true;
          break;
        case 0x94: { /* deref_size */
          const uint32_t size = clew_expression_u8(context, header, &e);
          uint64_t address, word;
          CLEW_NEED(1u);
          if (size == 0 || size > 8) return CLEW_END_BAD_EXPRESSION;
          /* Read the aligned word, so that no byte beyond what was asked for has to be there; a value that
           * straddles two words takes both. */
          address = CLEW_TOP(0);
          if (!CLEW_READ_U64(context, address & ~7ull, &word)) return CLEW_END_UNREADABLE;
          word >>= 8 * (address & 7);
          if ((address & 7) + size > 8) {
            uint64_t next;
            if (!CLEW_READ_U64(context, (address & ~7ull) + 8, &next)) return CLEW_END_UNREADABLE;
            word |= next << (64 - 8 * (address & 7));
          }
          CLEW_TOP(0) = size == 8 ? word : word & ((1ull << (8 * size)) - 1);
          break;
        }
        case 0x96:
          break; /* nop */
        case 0x9c:
          CLEW_PUSH(evaluation->cfa);
          break; /* call_frame_cfa */
        default:
          return CLEW_END_BAD_EXPRESSION;
      }
    }
  }
#undef CLEW_BINARY
#undef CLEW_PUSH
  if (e.bad || e.at < e.end || depth == 0) return CLEW_END_BAD_EXPRESSION;
  evaluation->value = CLEW_TOP(0);
#undef CLEW_NEED
#undef CLEW_TOP
  return CLEW_CONTINUE;
}

#endif
