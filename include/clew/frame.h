/* A frame of a trace, how it was found, and why a trace ended. The names here are what every output prints.
 *
 * Freestanding C that is also valid C++. */
#ifndef CLEW_FRAME_H
#define CLEW_FRAME_H

#include <stdint.h>

/* How a frame was found (trace contract T3). */
enum clew_how {
  CLEW_HOW_REGISTERS = 0,     /* the first frame: the sampled registers */
  CLEW_HOW_TABLE = 1,         /* a compact table's rule (from .eh_frame, .debug_frame) */
  CLEW_HOW_SFRAME = 2,        /* an .sframe entry */
  CLEW_HOW_JIT = 3,           /* a JIT window's record */
  CLEW_HOW_ANALYSIS = 4,      /* instruction analysis of code that nothing describes */
  CLEW_HOW_FRAME_POINTER = 5, /* a frame-pointer step */
  CLEW_HOW_RUNTIME = 6,       /* a walker of a runtime's own stack */
  CLEW_HOW_KERNEL = 7,        /* the kernel's own unwinder */
  CLEW_HOW_COUNT = 8
};

/* Why a trace ended (trace contract T2). ROOT alone is a complete trace. */
enum clew_end {
  CLEW_END_ROOT = 0,            /* complete: the tables declare the outermost frame */
  CLEW_END_NO_RULE = 1,         /* executable code that nothing describes, and no vouched-for frame pointer */
  CLEW_END_NOT_MAPPED = 2,      /* the return address lies in no mapping */
  CLEW_END_NOT_EXECUTABLE = 3,  /* the return address lies in a mapping without execute permission */
  CLEW_END_UNREADABLE = 4,      /* stack memory could not be read */
  CLEW_END_STACK_CUT = 5,       /* the copied piece of stack ended before the stack did */
  CLEW_END_OTHER_STACK = 6,     /* the walk left the copied stack for another one, which was not recorded */
  CLEW_END_NO_PROGRESS = 7,     /* the caller's frame would not lie closer to the root */
  CLEW_END_DEPTH_LIMIT = 8,     /* more frames than the limit */
  CLEW_END_NO_REGISTER = 9,     /* a rule needs a register whose value is not known in this frame */
  CLEW_END_BAD_EXPRESSION = 10, /* a DWARF expression that cannot be evaluated */
  CLEW_END_NOT_A_CALL = 11,     /* an unvouched return address that no call precedes (T4) */
  CLEW_END_STACK_CHANGED = 12,  /* the stack moved while it was read */
  CLEW_END_NO_USER_STACK = 13,  /* the sample has no user registers (a kernel thread, or exiting) */
  CLEW_END_COUNT = 14
};

enum clew_frame_flags {
  CLEW_FRAME_EXACT_PC =
      1,                 /* pc is the interrupted instruction, not a return address: look up pc, not pc - 1 */
  CLEW_FRAME_SIGNAL = 2, /* this frame is a signal trampoline (its caller was interrupted) */
  CLEW_FRAME_GUESSED = 4 /* found by, or after, a step that nothing vouches for */
};

struct clew_frame {
  uint64_t pc;    /* as found: the sampled ip, or the return address unadjusted */
  uint64_t sp;    /* the stack pointer in this frame (the callee's CFA) */
  uint32_t how;   /* enum clew_how */
  uint32_t flags; /* enum clew_frame_flags */
};

static inline const char* clew_how_name(uint32_t how) {
  switch (how) {
    case CLEW_HOW_REGISTERS:
      return "registers";
    case CLEW_HOW_TABLE:
      return "table";
    case CLEW_HOW_SFRAME:
      return "sframe";
    case CLEW_HOW_JIT:
      return "jit";
    case CLEW_HOW_ANALYSIS:
      return "analysis";
    case CLEW_HOW_FRAME_POINTER:
      return "frame-pointer";
    case CLEW_HOW_RUNTIME:
      return "runtime";
    case CLEW_HOW_KERNEL:
      return "kernel";
    default:
      return "unknown";
  }
}

static inline const char* clew_end_name(uint32_t end) {
  switch (end) {
    case CLEW_END_ROOT:
      return "root";
    case CLEW_END_NO_RULE:
      return "no-rule";
    case CLEW_END_NOT_MAPPED:
      return "not-mapped";
    case CLEW_END_NOT_EXECUTABLE:
      return "not-executable";
    case CLEW_END_UNREADABLE:
      return "unreadable";
    case CLEW_END_STACK_CUT:
      return "stack-cut";
    case CLEW_END_OTHER_STACK:
      return "other-stack";
    case CLEW_END_NO_PROGRESS:
      return "no-progress";
    case CLEW_END_DEPTH_LIMIT:
      return "depth-limit";
    case CLEW_END_NO_REGISTER:
      return "no-register";
    case CLEW_END_BAD_EXPRESSION:
      return "bad-expression";
    case CLEW_END_NOT_A_CALL:
      return "not-a-call";
    case CLEW_END_STACK_CHANGED:
      return "stack-changed";
    case CLEW_END_NO_USER_STACK:
      return "no-user-stack";
    default:
      return "unknown";
  }
}

#endif
