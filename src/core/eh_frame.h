/* The rule at one address from .eh_frame itself, found through .eh_frame_hdr's sorted list, in place: no
 * table is compiled, nothing is allocated. For the time before a module's table is loaded.
 *
 * Sources of the format: Linux Standard Base Core 5.0 sections 10.5.1 (encoded pointers), 10.6 (.eh_frame,
 * .eh_frame_hdr); DWARF 5 section 6.4. What compiling a table adds from the instructions (code without FDE,
 * libgcc's last steps of a throw) is missing here.
 *
 * Freestanding C that is also valid C++. All addresses are those of memory. The includer's hook, besides
 * those of core/state.h:
 *
 *   bool CLEW_READ_CODE(context, address, out, size)   bytes of a module's unwind sections; false where they
 * cannot be read
 *
 * Bounded: one binary search, then at most CLEW_EH_BYTES of instructions. */
#ifndef CLEW_CORE_EH_FRAME_H
#define CLEW_CORE_EH_FRAME_H

#include "core/expression.h"
#include "core/state.h"
#include "core/table.h"

enum {
  CLEW_EH_WINDOW = 64,    /* bytes read at a time */
  CLEW_EH_BYTES = 16384,  /* of an entry; compilers write a few hundred for the longest functions */
  CLEW_EH_REMEMBER = 4,   /* nested DW_CFA_remember_state; compilers write one */
  CLEW_EH_EXPRESSION = 96 /* bytes of one expression */
};

/* A table of one rule: what clew_step_by_rule needs to step by it. */
struct clew_one_rule {
  struct clew_table_header header;
  uint64_t saves[2 + CLEW_REGISTERS];   /* list 0, which is empty, then the rule's */
  uint8_t pool[4 * CLEW_EH_EXPRESSION]; /* its expressions */
};

/* Bytes of memory read in order. */
struct clew_eh_cursor {
  CLEW_CONTEXT context;
  uint64_t at, end;
  uint64_t window_at;
  uint32_t window_bytes;
  bool bad; /* read past the end, or could not be read */
  uint8_t window[CLEW_EH_WINDOW];
};

enum clew_eh_kind {
  CLEW_EH_UNSPECIFIED = 0,
  CLEW_EH_SAME = 1,
  CLEW_EH_UNDEFINED = 2,
  CLEW_EH_OFFSET = 3,     /* *(CFA + value) */
  CLEW_EH_VAL_OFFSET = 4, /* CFA + value */
  CLEW_EH_REGISTER = 5,   /* held in register `value` */
  CLEW_EH_EXPR = 6,       /* *(expression at address `value`) */
  CLEW_EH_VAL_EXPR = 7    /* that expression */
};

/* A row of the table that the instructions build. An expression's value is the address of its length. */
struct clew_eh_row {
  uint64_t cfa_register;
  int64_t cfa_offset;
  uint64_t cfa_expression_at;
  int64_t value[CLEW_REGISTERS];
  uint8_t kind[CLEW_REGISTERS];
  bool cfa_set, cfa_expression;
};

struct clew_eh_cie {
  uint64_t instructions, end;
  uint64_t code_alignment;
  int64_t data_alignment;
  uint8_t pointer_encoding;
  bool has_augmentation_data;
  bool signal_frame;
};

static inline void clew_eh_open(struct clew_eh_cursor* cursor, CLEW_CONTEXT context, uint64_t at,
                                uint64_t end) {
  cursor->context = context;
  cursor->at = at;
  cursor->end = end;
  cursor->window_at = at;
  cursor->window_bytes = 0;
  cursor->bad = false;
}

static inline uint32_t clew_eh_u8(struct clew_eh_cursor* cursor) {
  uint64_t into = cursor->at - cursor->window_at;
  if (cursor->at >= cursor->end) {
    cursor->bad = true;
    return 0;
  }
  if (into >= cursor->window_bytes) {
    const uint64_t left = cursor->end - cursor->at;
    cursor->window_bytes = left < CLEW_EH_WINDOW ? (uint32_t)left : (uint32_t)CLEW_EH_WINDOW;
    cursor->window_at = cursor->at;
    into = 0;
    if (!CLEW_READ_CODE(cursor->context, cursor->at, cursor->window, cursor->window_bytes)) {
      cursor->bad = true;
      cursor->window_bytes = 0;
      return 0;
    }
  }
  cursor->at++;
  return cursor->window[into];
}

static inline uint64_t clew_eh_fixed(struct clew_eh_cursor* cursor, uint32_t bytes) {
  uint64_t value = 0;
  uint32_t i;
  for (i = 0; i < bytes; i++) value |= (uint64_t)clew_eh_u8(cursor) << (8 * i);
  return value;
}

static inline int64_t clew_eh_signed(struct clew_eh_cursor* cursor, uint32_t bytes) {
  return (int64_t)clew_sign_extend(clew_eh_fixed(cursor, bytes), 8 * bytes);
}

static inline uint64_t clew_eh_leb(struct clew_eh_cursor* cursor, bool is_signed) {
  uint64_t value = 0;
  uint32_t shift;
  for (shift = 0; shift < 70; shift += 7) {
    const uint32_t byte = clew_eh_u8(cursor);
    if (shift < 64) value |= (uint64_t)(byte & 127u) << shift;
    if (byte < 128) {
      return is_signed ? clew_sign_extend(value, shift + 7) : value;
    }
  }
  cursor->bad = true;
  return 0;
}

static inline uint64_t clew_eh_uleb(struct clew_eh_cursor* cursor) { return clew_eh_leb(cursor, false); }
static inline int64_t clew_eh_sleb(struct clew_eh_cursor* cursor) {
  return (int64_t)clew_eh_leb(cursor, true);
}

static inline void clew_eh_skip(struct clew_eh_cursor* cursor, uint64_t bytes) {
  if (bytes > cursor->end - cursor->at) {
    cursor->bad = true;
  } else {
    cursor->at += bytes;
  }
}

/* An encoded pointer: absolute, or relative to itself or to `data`. */
static inline uint64_t clew_eh_pointer(struct clew_eh_cursor* cursor, uint32_t encoding, uint64_t data) {
  uint64_t value = 0;
  const uint64_t here = cursor->at;
  switch (encoding & 15u) {
    case 0x00: /* absptr */
    case 0x04: /* udata8 */
    case 0x08: /* signed */
    case 0x0c: /* sdata8 */
      value = clew_eh_fixed(cursor, 8);
      break;
    case 0x01: /* uleb128 */
      value = clew_eh_uleb(cursor);
      break;
    case 0x02: /* udata2 */
      value = clew_eh_fixed(cursor, 2);
      break;
    case 0x03: /* udata4 */
      value = clew_eh_fixed(cursor, 4);
      break;
    case 0x09: /* sleb128 */
      value = (uint64_t)clew_eh_sleb(cursor);
      break;
    case 0x0a: /* sdata2 */
      value = (uint64_t)clew_eh_signed(cursor, 2);
      break;
    case 0x0b: /* sdata4 */
      value = (uint64_t)clew_eh_signed(cursor, 4);
      break;
    default:
      cursor->bad = true;
      break;
  }
  switch (encoding & 0xf0u) {
    case 0x00:
      return value;
    case 0x10: /* pcrel */
      return value + here;
    case 0x30: /* datarel */
      return value + data;
    default: /* indirect, or relative to what is not known here */
      cursor->bad = true;
      return 0;
  }
}

/* Opens the entry (CIE or FDE) at `at`: the cursor stands behind its length, its end is the entry's; *id is
 * the address of its id field. */
static inline bool clew_eh_entry(struct clew_eh_cursor* cursor, CLEW_CONTEXT context, uint64_t at,
                                 uint64_t* id) {
  uint64_t length;
  clew_eh_open(cursor, context, at, at + 4);
  length = clew_eh_fixed(cursor, 4);
  if (length == 0xffffffffu) {
    cursor->end += 8;
    length = clew_eh_fixed(cursor, 8);
  }
  if (cursor->bad || length < 4 || length > CLEW_EH_BYTES) return false;
  *id = cursor->at;
  cursor->end = cursor->at + length;
  return true;
}

static inline bool clew_eh_read_cie(CLEW_CONTEXT context, uint64_t at, struct clew_eh_cie* cie) {
  struct clew_eh_cursor cursor;
  uint64_t id, length, address_size_and_segment;
  char augmentation[8];
  uint32_t version, count = 0, i;
  if (!clew_eh_entry(&cursor, context, at, &id) || clew_eh_fixed(&cursor, 4) != 0) return false;
  version = clew_eh_u8(&cursor);
  if (version != 1 && version != 3 && version != 4) return false;
  for (;;) {
    const uint32_t c = clew_eh_u8(&cursor);
    if (cursor.bad) return false;
    if (c == 0) break;
    if (count == sizeof augmentation) return false;
    augmentation[count++] = (char)c;
  }
  if (count == 2 && augmentation[0] == 'e' && augmentation[1] == 'h') {
    clew_eh_skip(&cursor, 8); /* of gcc 2 */
    count = 0;
  }
  if (version == 4) {
    address_size_and_segment = clew_eh_fixed(&cursor, 2);
    if (address_size_and_segment != 8) return false;
  }
  cie->code_alignment = clew_eh_uleb(&cursor);
  cie->data_alignment = clew_eh_sleb(&cursor);
  if ((version == 1 ? clew_eh_u8(&cursor) : clew_eh_uleb(&cursor)) != CLEW_RIP) return false;
  cie->pointer_encoding = 0;
  cie->signal_frame = false;
  cie->has_augmentation_data = count != 0 && augmentation[0] == 'z';
  cie->instructions = cursor.at;
  if (cie->has_augmentation_data) {
    length = clew_eh_uleb(&cursor);
    if (length > cursor.end - cursor.at) return false;
    cie->instructions = cursor.at + length;
  }
  for (i = cie->has_augmentation_data ? 1 : 0; i < count; i++) {
    switch (augmentation[i]) {
      case 'R':
        cie->pointer_encoding = (uint8_t)clew_eh_u8(&cursor);
        break;
      case 'L':
        clew_eh_u8(&cursor);
        break;
      case 'P': { /* the personality is skipped as stored, whatever it is relative to */
        const uint32_t encoding = clew_eh_u8(&cursor);
        clew_eh_pointer(&cursor, encoding & 15u, 0);
        break;
      }
      case 'S':
        cie->signal_frame = true;
        break;
      case 'B': /* AArch64's key of signed return addresses */
        break;
      default:
        return false;
    }
  }
  cie->end = cursor.end;
  return !cursor.bad && cie->instructions <= cie->end;
}

static inline void clew_eh_clear(struct clew_eh_row* row) {
  uint32_t reg;
  row->cfa_set = row->cfa_expression = false;
  row->cfa_register = row->cfa_expression_at = 0;
  row->cfa_offset = 0;
  for (reg = 0; reg < CLEW_REGISTERS; reg++) {
    row->kind[reg] = CLEW_EH_UNSPECIFIED;
    row->value[reg] = 0;
  }
}

static inline void clew_eh_set(struct clew_eh_row* row, uint64_t reg, uint32_t kind, int64_t value) {
  if (reg >= CLEW_REGISTERS) return;
  row->kind[reg] = (uint8_t)kind;
  row->value[reg] = value;
}

static inline void clew_eh_restore(struct clew_eh_row* row, const struct clew_eh_row* initial, uint64_t reg) {
  if (reg < CLEW_REGISTERS) clew_eh_set(row, reg, initial->kind[reg], initial->value[reg]);
}

static inline int64_t clew_eh_scaled(uint64_t factor, int64_t alignment) {
  return (int64_t)(factor * (uint64_t)alignment);
}

/* Runs instructions from `at` to `end` until the row that holds at `target`, both addresses of code; the
 * first row begins at `start`. False where they cannot be read. */
static inline bool clew_eh_run(CLEW_CONTEXT context, const struct clew_eh_cie* cie, uint64_t at, uint64_t end,
                               uint64_t start, uint64_t target, const struct clew_eh_row* initial,
                               struct clew_eh_row* row) {
  struct clew_eh_cursor cursor;
  struct clew_eh_row remembered[CLEW_EH_REMEMBER];
  uint32_t depth = 0;
  uint64_t location = start;
  clew_eh_open(&cursor, context, at, end);
  while (cursor.at < cursor.end) {
    const uint32_t opcode = clew_eh_u8(&cursor);
    uint64_t advance = 0, reg;
    switch (opcode < 0x40 ? opcode : opcode & 0xc0u) {
      case 0x40: /* advance_loc */
        advance = (opcode & 0x3fu) * cie->code_alignment;
        break;
      case 0x80: /* offset */
        clew_eh_set(row, opcode & 0x3fu, CLEW_EH_OFFSET,
                    clew_eh_scaled(clew_eh_uleb(&cursor), cie->data_alignment));
        break;
      case 0xc0: /* restore */
        clew_eh_restore(row, initial, opcode & 0x3fu);
        break;
      case 0x00: /* nop */
        break;
      case 0x01: { /* set_loc */
        const uint64_t address = clew_eh_pointer(&cursor, cie->pointer_encoding, 0);
        if (address < location) return false;
        advance = address - location;
        break;
      }
      case 0x02: /* advance_loc1, 2, 4 */
        advance = clew_eh_u8(&cursor) * cie->code_alignment;
        break;
      case 0x03:
        advance = clew_eh_fixed(&cursor, 2) * cie->code_alignment;
        break;
      case 0x04:
        advance = clew_eh_fixed(&cursor, 4) * cie->code_alignment;
        break;
      case 0x05: /* offset_extended */
        reg = clew_eh_uleb(&cursor);
        clew_eh_set(row, reg, CLEW_EH_OFFSET, clew_eh_scaled(clew_eh_uleb(&cursor), cie->data_alignment));
        break;
      case 0x06: /* restore_extended */
        clew_eh_restore(row, initial, clew_eh_uleb(&cursor));
        break;
      case 0x07: /* undefined */
        clew_eh_set(row, clew_eh_uleb(&cursor), CLEW_EH_UNDEFINED, 0);
        break;
      case 0x08: /* same_value */
        clew_eh_set(row, clew_eh_uleb(&cursor), CLEW_EH_SAME, 0);
        break;
      case 0x09: /* register */
        reg = clew_eh_uleb(&cursor);
        clew_eh_set(row, reg, CLEW_EH_REGISTER, (int64_t)clew_eh_uleb(&cursor));
        break;
      case 0x0a: /* remember_state */
        if (depth == CLEW_EH_REMEMBER) return false;
        remembered[depth++] = *row;
        break;
      case 0x0b: /* restore_state */
        if (depth == 0) return false;
        *row = remembered[--depth];
        break;
      case 0x0c: /* def_cfa */
        row->cfa_register = clew_eh_uleb(&cursor);
        row->cfa_offset = (int64_t)clew_eh_uleb(&cursor);
        row->cfa_set = true;
        row->cfa_expression = false;
        break;
      case 0x12: /* def_cfa_sf */
        row->cfa_register = clew_eh_uleb(&cursor);
        row->cfa_offset = clew_eh_scaled((uint64_t)clew_eh_sleb(&cursor), cie->data_alignment);
        row->cfa_set = true;
        row->cfa_expression = false;
        break;
      case 0x0d: /* def_cfa_register */
        row->cfa_register = clew_eh_uleb(&cursor);
        row->cfa_set = true;
        row->cfa_expression = false;
        break;
      case 0x0e: /* def_cfa_offset */
        row->cfa_offset = (int64_t)clew_eh_uleb(&cursor);
        break;
      case 0x13: /* def_cfa_offset_sf */
        row->cfa_offset = clew_eh_scaled((uint64_t)clew_eh_sleb(&cursor), cie->data_alignment);
        break;
      case 0x0f: /* def_cfa_expression */
        row->cfa_set = true;
        row->cfa_expression = true;
        row->cfa_expression_at = cursor.at;
        clew_eh_skip(&cursor, clew_eh_uleb(&cursor));
        break;
      case 0x10: /* expression */
      case 0x16: /* val_expression */
        reg = clew_eh_uleb(&cursor);
        clew_eh_set(row, reg, opcode == 0x10 ? CLEW_EH_EXPR : CLEW_EH_VAL_EXPR, (int64_t)cursor.at);
        clew_eh_skip(&cursor, clew_eh_uleb(&cursor));
        break;
      case 0x11: /* offset_extended_sf */
        reg = clew_eh_uleb(&cursor);
        clew_eh_set(row, reg, CLEW_EH_OFFSET,
                    clew_eh_scaled((uint64_t)clew_eh_sleb(&cursor), cie->data_alignment));
        break;
      case 0x14: /* val_offset */
        reg = clew_eh_uleb(&cursor);
        clew_eh_set(row, reg, CLEW_EH_VAL_OFFSET, clew_eh_scaled(clew_eh_uleb(&cursor), cie->data_alignment));
        break;
      case 0x15: /* val_offset_sf */
        reg = clew_eh_uleb(&cursor);
        clew_eh_set(row, reg, CLEW_EH_VAL_OFFSET,
                    clew_eh_scaled((uint64_t)clew_eh_sleb(&cursor), cie->data_alignment));
        break;
      case 0x2e: /* GNU_args_size */
        clew_eh_uleb(&cursor);
        break;
      case 0x2f: /* GNU_negative_offset_extended */
        reg = clew_eh_uleb(&cursor);
        clew_eh_set(row, reg, CLEW_EH_OFFSET, clew_eh_scaled(0 - clew_eh_uleb(&cursor), cie->data_alignment));
        break;
      default:
        return false;
    }
    if (cursor.bad) return false;
    if (advance > target - location) return true; /* the row holds at the target; location <= target */
    location += advance;
  }
  return true;
}

/* Copies the expression whose length stands at `at` to the pool behind *used; returns its offset there, or
 * -1. */
static inline int64_t clew_eh_expression(CLEW_CONTEXT context, uint64_t at, struct clew_one_rule* out,
                                         uint32_t* used) {
  struct clew_eh_cursor cursor;
  const uint32_t offset = *used;
  uint32_t i;
  uint64_t length;
  clew_eh_open(&cursor, context, at, at + 1); /* no further than the entry: its length takes one byte */
  length = clew_eh_u8(&cursor);
  if (cursor.bad || length == 0 || length > CLEW_EH_EXPRESSION || length + 2 > sizeof out->pool - offset)
    return -1;
  clew_eh_open(&cursor, context, at + 1, at + 1 + length);
  out->pool[offset] = (uint8_t)length;
  out->pool[offset + 1] = 0;
  for (i = 0; i < length; i++) out->pool[offset + 2 + i] = (uint8_t)clew_eh_u8(&cursor);
  *used = offset + 2 + (uint32_t)length;
  return cursor.bad ? -1 : (int64_t)offset;
}

/* The row as a rule, its list of saved registers and its expressions in `out`. 0 where it says nothing, or
 * what a rule cannot say. */
static inline clew_rule clew_eh_rule_of_row(CLEW_CONTEXT context, const struct clew_eh_row* row,
                                            bool signal_frame, struct clew_one_rule* out) {
  uint32_t bp = CLEW_BP_UNCHANGED, reg, count = 0, used = 0;
  bool special = signal_frame;
  int64_t cfa = row->cfa_offset;
  struct clew_table_header* header = &out->header;
  if (row->kind[CLEW_RIP] == CLEW_EH_UNDEFINED) return clew_rule_make(CLEW_CFA_ROOT, 0, 0, 0, 0, false);
  if (!row->cfa_set) return 0;
  out->saves[0] = 0;
  for (reg = 0; reg < CLEW_REGISTERS; reg++) {
    int64_t value = row->value[reg];
    uint32_t kind;
    switch (row->kind[reg]) {
      case CLEW_EH_UNSPECIFIED:
        continue;
      case CLEW_EH_SAME:
        if (reg == CLEW_RIP) return 0;
        continue;
      case CLEW_EH_OFFSET:
        if (reg == CLEW_RIP && value == -8) continue;
        if (reg == CLEW_RBP && value < 0 && value % 8 == 0 && value > -8 * (int64_t)CLEW_BP_IN_SAVES) {
          bp = (uint32_t)(-value / 8);
          continue;
        }
        kind = CLEW_SAVE_AT_CFA;
        break;
      case CLEW_EH_VAL_OFFSET:
        if (reg == CLEW_RSP && value == 0) continue;
        kind = CLEW_SAVE_CFA_PLUS;
        break;
      case CLEW_EH_REGISTER:
        kind = value < 0 || value >= CLEW_REGISTERS ? CLEW_SAVE_UNDEFINED : CLEW_SAVE_REGISTER;
        break;
      case CLEW_EH_EXPR:
      case CLEW_EH_VAL_EXPR:
        kind = row->kind[reg] == CLEW_EH_EXPR ? CLEW_SAVE_EXPR_AT : CLEW_SAVE_EXPR_VALUE;
        value = clew_eh_expression(context, (uint64_t)value, out, &used);
        if (value < 0) return 0;
        break;
      default:
        kind = CLEW_SAVE_UNDEFINED;
        break;
    }
    if (value != (int32_t)value && kind != CLEW_SAVE_UNDEFINED) return 0;
    out->saves[2 + count++] = clew_save_make((enum clew_save_kind)kind, reg, (int32_t)value);
    special |= reg == CLEW_RIP || reg == CLEW_RSP;
    if (reg == CLEW_RBP) bp = CLEW_BP_IN_SAVES;
  }
  out->saves[1] = count | (signal_frame ? (uint64_t)CLEW_SAVES_SIGNAL : 0);
  if (row->cfa_expression) cfa = clew_eh_expression(context, row->cfa_expression_at, out, &used);
  if ((row->cfa_expression && cfa < 0) || cfa != (int32_t)cfa) return 0;
  if (!row->cfa_expression && row->cfa_register >= CLEW_RIP) return 0;

  header->bytes = sizeof *out;
  header->saves_at = sizeof *header;
  header->saves_count = sizeof out->saves / 8;
  header->pool_at = sizeof *header + sizeof out->saves;
  header->pool_bytes = used;
  return clew_rule_make(row->cfa_expression ? CLEW_CFA_EXPR : CLEW_CFA_REG, (uint32_t)row->cfa_register & 15u,
                        (int32_t)cfa, bp, count != 0 || signal_frame ? 1 : 0, special);
}

/* The FDE that .eh_frame_hdr's list has for `pc`, the last that begins at or before it; 0 where there is
 * none. `header` is the address of .eh_frame_hdr. */
static inline uint64_t clew_eh_find(CLEW_CONTEXT context, uint64_t header, uint64_t pc) {
  struct clew_eh_cursor cursor;
  uint64_t count, list;
  uint32_t eh_frame_encoding, count_encoding, list_encoding, step;
  uint64_t low = 0, entry_pc = 0;
  clew_eh_open(&cursor, context, header, header + 20); /* no more than the smallest with a list has */
  if (clew_eh_u8(&cursor) != 1) return 0;
  eh_frame_encoding = clew_eh_u8(&cursor);
  count_encoding = clew_eh_u8(&cursor);
  list_encoding = clew_eh_u8(&cursor);
  /* datarel sdata4, which every linker writes: other lists cannot be searched without reading them whole. */
  if (cursor.bad || list_encoding != 0x3b || count_encoding == 0xff) return 0;
  if (eh_frame_encoding != 0xff) clew_eh_pointer(&cursor, eh_frame_encoding, header);
  count = clew_eh_pointer(&cursor, count_encoding, header);
  list = cursor.at;
  if (cursor.bad || count == 0 || count > 1u << 30) return 0;
  for (step = 0; step < 32 && count > 1; step++) {
    const uint64_t half = count / 2;
    int32_t at;
    if (!CLEW_READ_CODE(context, list + (low + half) * 8, &at, 4)) return 0;
    if (header + (uint64_t)(int64_t)at <= pc) low += half;
    count -= half;
  }
  {
    int32_t entry[2];
    if (!CLEW_READ_CODE(context, list + low * 8, entry, 8)) return 0;
    entry_pc = header + (uint64_t)(int64_t)entry[0];
    return entry_pc <= pc ? header + (uint64_t)(int64_t)entry[1] : 0;
  }
}

/* The rule at `pc` (for a return address: less one), its parts in `out`; 0 where .eh_frame has none.
 * `header`: the address of the module's .eh_frame_hdr. */
static inline clew_rule clew_eh_frame_rule(CLEW_CONTEXT context, uint64_t header, uint64_t pc,
                                           struct clew_one_rule* out) {
  const uint64_t fde = clew_eh_find(context, header, pc);
  struct clew_eh_cursor cursor;
  struct clew_eh_cie cie;
  struct clew_eh_row initial, row;
  uint64_t id, start, bytes, back, length;
  clew_eh_clear(&initial);
  if (fde == 0 || !clew_eh_entry(&cursor, context, fde, &id)) return 0;
  back = clew_eh_fixed(&cursor, 4);
  if (cursor.bad || back == 0 || !clew_eh_read_cie(context, id - back, &cie)) return 0;
  start = clew_eh_pointer(&cursor, cie.pointer_encoding, 0);
  bytes = clew_eh_pointer(&cursor, cie.pointer_encoding & 15u, 0);
  if (cursor.bad || pc - start >= bytes) return 0;
  if (cie.has_augmentation_data) {
    length = clew_eh_uleb(&cursor);
    clew_eh_skip(&cursor, length);
  }
  if (cursor.bad || !clew_eh_run(context, &cie, cie.instructions, cie.end, 0, 0, &initial, &initial))
    return 0;
  row = initial;
  if (!clew_eh_run(context, &cie, cursor.at, cursor.end, start, pc, &initial, &row)) return 0;
  return clew_eh_rule_of_row(context, &row, cie.signal_frame, out);
}

#endif
