/* The registers of a frame while a walk runs, and the hooks that the includer may give.
 *
 * Freestanding C that is also valid C++. Before including core/walk.h an includer may define:
 *
 *   CLEW_CONTEXT                        type of the first argument of every hook (default void*)
 *   CLEW_READ_U64(context, address, p)  target memory: *p = the word at `address`; false where it cannot be
 * read. On failure *p may be changed. CLEW_TABLE_WORD(context, h, index)  core/table.h CLEW_FIND(context, pc,
 * code)        core/walk.h CLEW_ANALYSE, CLEW_VOUCH, CLEW_LOOP core/walk.h */
#ifndef CLEW_CORE_STATE_H
#define CLEW_CORE_STATE_H

#include "clew/frame.h"
#include "core/rule.h"

struct clew_state {
  uint64_t value[CLEW_REGISTERS]; /* by DWARF number; value[CLEW_RIP] is the frame's pc */
  uint32_t known;                 /* bit r: value[r] holds */
};

/* What a step returns when the walk goes on; anything else is an enum clew_end. */
enum { CLEW_CONTINUE = 255 };

static inline bool clew_known(const struct clew_state* state, uint32_t reg) {
  return (state->known >> reg & 1u) != 0;
}

#ifndef CLEW_CONTEXT
#define CLEW_CONTEXT void*
#endif

#endif
