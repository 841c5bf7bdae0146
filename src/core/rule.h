/* The compact rule: how to get from a frame to its caller, in one 64-bit word.
 *
 * Freestanding C that is also valid C++ and compiles for BPF: no libc, no globals, no pointers to functions.
 *
 *   bits  0..31  offset: signed. For REG and DEREF what is added to the register; for PLT the threshold N;
 * for EXPR an index into the table's expression pool. bits 32..35  register the CFA is based on (DWARF
 * number, 0..15) bits 36..38  kind (enum clew_cfa_kind) bit  39      special: the saves list has to be read
 * in any case, since the frame is a signal frame, its return address is not at CFA-8, or the rule comes from
 * instruction analysis bits 40..47  bp: 0 rbp is unchanged, n in 1..254 rbp is saved at CFA - 8n, 255 the
 * saves list says where bits 48..63  saves: index of a list in the table that gives the other saved registers
 * (0: none)
 *
 * Registers are numbered as the x86-64 psABI's DWARF numbers: 0..15 general purpose, 16 the return address
 * (rip).
 */
#ifndef CLEW_CORE_RULE_H
#define CLEW_CORE_RULE_H

#include <stdbool.h>
#include <stdint.h>

enum clew_register {
  CLEW_RAX = 0,
  CLEW_RDX = 1,
  CLEW_RCX = 2,
  CLEW_RBX = 3,
  CLEW_RSI = 4,
  CLEW_RDI = 5,
  CLEW_RBP = 6,
  CLEW_RSP = 7,
  CLEW_R8 = 8,
  CLEW_R9 = 9,
  CLEW_R10 = 10,
  CLEW_R11 = 11,
  CLEW_R12 = 12,
  CLEW_R13 = 13,
  CLEW_R14 = 14,
  CLEW_R15 = 15,
  CLEW_RIP = 16,
  CLEW_REGISTERS = 17
};

enum clew_cfa_kind {
  CLEW_CFA_NONE = 0,     /* nothing is known about this address */
  CLEW_CFA_REG = 1,      /* CFA = register + offset */
  CLEW_CFA_DEREF = 2,    /* CFA = *(register + offset) */
  CLEW_CFA_PLT = 3,      /* CFA = rsp + 8 + ((rip & 15) >= N ? 8 : 0), N the offset field */
  CLEW_CFA_EXPR = 4,     /* CFA = expression number `offset` of the table's pool */
  CLEW_CFA_ROOT = 5,     /* the return address is undefined: the outermost frame */
  CLEW_CFA_SIGFRAME = 6, /* rsp + offset is the kernel's struct ucontext: a signal trampoline */
  CLEW_CFA_CHILD = 7     /* behind clone(2): the outermost frame where rax is 0, else CFA = rsp + offset */
};

enum { CLEW_BP_UNCHANGED = 0, CLEW_BP_IN_SAVES = 255 };

typedef uint64_t clew_rule;

static inline clew_rule clew_rule_make(enum clew_cfa_kind kind, uint32_t reg, int32_t offset, uint32_t bp,
                                       uint32_t saves, bool special) {
  return (uint64_t)(uint32_t)offset | (uint64_t)(reg & 15u) << 32 | (uint64_t)kind << 36 |
         (uint64_t)(special ? 1u : 0u) << 39 | (uint64_t)(bp & 255u) << 40 | (uint64_t)(saves & 65535u) << 48;
}

static inline int32_t clew_rule_offset(clew_rule rule) { return (int32_t)(uint32_t)rule; }
static inline uint32_t clew_rule_register(clew_rule rule) { return (uint32_t)(rule >> 32) & 15u; }
static inline uint32_t clew_rule_kind(clew_rule rule) { return (uint32_t)(rule >> 36) & 7u; }
static inline bool clew_rule_special(clew_rule rule) { return (rule >> 39 & 1u) != 0; }
static inline uint32_t clew_rule_bp(clew_rule rule) { return (uint32_t)(rule >> 40) & 255u; }
static inline uint32_t clew_rule_saves(clew_rule rule) { return (uint32_t)(rule >> 48); }

/* Whether it says no more than CFA = rsp or rbp + offset, the return address at CFA - 8 and rbp there or
 * saved near: what nearly all rules are, and all that a short walk needs. (A list of other registers may hang
 * on it.) */
static inline bool clew_rule_simple(clew_rule rule) {
  const uint32_t base = clew_rule_register(rule);
  return clew_rule_kind(rule) == CLEW_CFA_REG && (base == CLEW_RSP || base == CLEW_RBP) &&
         !clew_rule_special(rule) && clew_rule_bp(rule) != CLEW_BP_IN_SAVES;
}

/* One entry of a saves list: where a caller's register is, in one 64-bit word.
 *   bits 0..31 offset (signed), an expression index, or a register number; bits 32..36 the register restored;
 *   bits 37..39 enum clew_save_kind. A list is a word with its length and flags, then its entries. */
enum clew_save_kind {
  CLEW_SAVE_AT_CFA = 0,     /* *(CFA + offset) */
  CLEW_SAVE_CFA_PLUS = 1,   /* CFA + offset itself */
  CLEW_SAVE_REGISTER = 2,   /* held in the register `offset` */
  CLEW_SAVE_EXPR_AT = 3,    /* *(expression) */
  CLEW_SAVE_EXPR_VALUE = 4, /* the expression's value */
  CLEW_SAVE_UNDEFINED = 5   /* the caller's value is lost */
};

typedef uint64_t clew_save;

static inline clew_save clew_save_make(enum clew_save_kind kind, uint32_t reg, int32_t offset) {
  return (uint64_t)(uint32_t)offset | (uint64_t)(reg & 31u) << 32 | (uint64_t)kind << 37;
}

static inline int32_t clew_save_offset(clew_save save) { return (int32_t)(uint32_t)save; }
static inline uint32_t clew_save_register(clew_save save) { return (uint32_t)(save >> 32) & 31u; }
static inline uint32_t clew_save_kind_of(clew_save save) { return (uint32_t)(save >> 37) & 7u; }

/* The first word of a saves list. */
enum {
  CLEW_SAVES_COUNT_MASK = 0xff,
  CLEW_SAVES_SIGNAL = 0x100, /* a signal frame: its caller was interrupted, not calling */
  CLEW_SAVES_ANALYSED =
      0x200,               /* the rule comes from instruction analysis, no table of the file vouches for it */
  CLEW_SAVES_EXACT = 0x400 /* no call is returned from: the caller goes on at a landing pad */
};

/* The words of struct ucontext (x86-64 Linux, asm/ucontext.h and asm/sigcontext.h) that hold the interrupted
 * registers: uc_flags, uc_link and uc_stack take 40 bytes, then r8 ... r15, rdi, rsi, rbp, rbx, rdx, rax,
 * rcx, rsp, rip. */
static inline uint32_t clew_sigcontext_register(uint32_t index) {
  switch (index) {
    case 8:
      return CLEW_RDI;
    case 9:
      return CLEW_RSI;
    case 10:
      return CLEW_RBP;
    case 11:
      return CLEW_RBX;
    case 12:
      return CLEW_RDX;
    case 13:
      return CLEW_RAX;
    case 14:
      return CLEW_RCX;
    case 15:
      return CLEW_RSP;
    case 16:
      return CLEW_RIP;
    default:
      return CLEW_R8 + index;
  }
}

#endif
