/* SFrame sections read in place: versions 1, 2 and 3, either byte order; AMD64, AArch64 and s390x. Nothing is
 * allocated, every loop is bounded, every byte is taken for hostile.
 *
 * Freestanding C that is also valid C++ and compiles for BPF. Thread- and async-signal-safe: no state but the
 * caller's.
 *
 * Source of the format: the SFrame specification of GNU binutils, versions 1, 2 (errata 1 and 2) and 3.
 *
 *   header     28 bytes: u16 magic, u8 version, u8 flags, u8 abi, s8 fixed FP offset, s8 fixed RA offset, u8
 *              auxiliary header's length, u32 number of functions, u32 number of rows, u32 bytes of rows, u32
 *              offset of the functions, u32 offset of the rows, both from the end of the auxiliary header
 *   function   17 (V1), 20 (V2) or 16 (V3) bytes; in V3 five more bytes stand before the function's rows
 *   row (FRE)  start (1, 2 or 4 bytes, from the function's start), info byte, up to 15 words of 1, 2 or 4
 *              bytes
 *
 * An includer may define
 *
 *   CLEW_SFRAME_READ(context, at, out, size)  `size` bytes at `at` into `out`; false where they cannot be
 * read. Default: they are memory of this program. */
#ifndef CLEW_CORE_SFRAME_H
#define CLEW_CORE_SFRAME_H

#include <stdbool.h>
#include <stdint.h>

#ifndef CLEW_CONTEXT
#define CLEW_CONTEXT void*
#endif

#ifndef CLEW_SFRAME_READ
#define CLEW_SFRAME_READ(context, at, out, size) clew_sframe_copy(context, at, out, size)
static inline bool clew_sframe_copy(CLEW_CONTEXT context, uint64_t at, uint8_t* out, uint32_t size) {
  (void)context;
  __builtin_memcpy(out, (const uint8_t*)(uintptr_t)at, size);
  return true;
}
#endif

enum {
  CLEW_SFRAME_HEADER_BYTES = 28,
  CLEW_SFRAME_ATTRIBUTE_BYTES = 5, /* of V3, before a function's rows */
  CLEW_SFRAME_ROW_BYTES = 29,  /* the longest row that means anything: start, info, six words of four bytes */
  CLEW_SFRAME_V1_BLOCK = 16,   /* V1 does not store the size of a repeated block */
  CLEW_SFRAME_ROWS = 65535,    /* looked at in a function: V3 cannot have more */
  CLEW_SFRAME_UNSORTED = 4096, /* functions looked at where they are not sorted */
  CLEW_SFRAME_EMPTY_FUNCTIONS = 16 /* functions of size 0 in a row that a look-up steps over */
};

enum clew_sframe_flag {
  CLEW_SFRAME_SORTED = 1,
  CLEW_SFRAME_FRAME_POINTER = 2, /* V1, V2: all functions keep one; changes no row */
  CLEW_SFRAME_PCREL = 4          /* a start counts from its own field, not from the header */
};

enum clew_sframe_abi {
  CLEW_SFRAME_AARCH64_BIG = 1,
  CLEW_SFRAME_AARCH64 = 2,
  CLEW_SFRAME_AMD64 = 3,
  CLEW_SFRAME_S390X = 4
};

/* What a function here returns. From CLEW_SFRAME_UNREADABLE on: what is wrong. */
enum clew_sframe_result {
  CLEW_SFRAME_OK = 0,
  CLEW_SFRAME_NOTHING, /* nothing is said about this address; no further row */
  CLEW_SFRAME_UNREADABLE,
  /* of the header */
  CLEW_SFRAME_SHORT,
  CLEW_SFRAME_BAD_MAGIC,
  CLEW_SFRAME_BAD_VERSION,
  CLEW_SFRAME_BAD_FLAGS,
  CLEW_SFRAME_BAD_ABI,
  CLEW_SFRAME_BAD_ORDER, /* the byte order is not that of the ABI */
  CLEW_SFRAME_BAD_AUXILIARY,
  CLEW_SFRAME_FUNCTIONS_OUTSIDE,
  CLEW_SFRAME_FUNCTIONS_UNFILLED, /* V1: the functions do not reach up to the rows */
  CLEW_SFRAME_ROWS_OUTSIDE,
  CLEW_SFRAME_NOT_SORTED, /* although the header says so; found by no function here */
  /* of a function */
  CLEW_SFRAME_BAD_ROW_OFFSET,
  CLEW_SFRAME_BAD_ROW_COUNT,
  CLEW_SFRAME_BAD_ROW_TYPE,
  CLEW_SFRAME_BAD_FUNCTION_TYPE,
  CLEW_SFRAME_BAD_BLOCK,
  CLEW_SFRAME_WRAPS, /* ends behind the last address */
  /* of a row */
  CLEW_SFRAME_ROW_OUTSIDE,
  CLEW_SFRAME_ROW_ORDER, /* does not start behind the row before it */
  CLEW_SFRAME_BAD_WORD_SIZE,
  CLEW_SFRAME_BAD_WORD_COUNT,
  CLEW_SFRAME_BAD_CONTROL_WORD,
  CLEW_SFRAME_OFFSET_RANGE, /* a scaled offset that 32 bits do not hold */
  CLEW_SFRAME_RESULTS
};

/* An opened section: one header and what it spans. */
struct clew_sframe {
  uint64_t at;      /* where the header is read */
  uint64_t address; /* where it is loaded: what its addresses count from; the same as `at` in place */
  uint64_t bytes;   /* from the header to the end of its rows */
  uint64_t functions_at, rows_at; /* bytes from the header */
  uint32_t rows_bytes;
  uint32_t functions;
  uint32_t rows; /* that the header claims; nothing relies on it */
  uint8_t version, flags, abi;
  uint8_t entry_bytes; /* of a function */
  uint8_t auxiliary_bytes;
  int8_t fixed_fp, fixed_ra; /* bytes from the CFA; 0: not fixed */
  bool big;                  /* big-endian */
};

struct clew_sframe_function {
  uint64_t start; /* address, where the section is loaded */
  uint32_t size;  /* bytes */
  uint32_t rows;
  uint32_t first;   /* its first row, bytes from the start of all rows */
  uint8_t row_type; /* 0, 1, 2: starts of 1, 2, 4 bytes */
  uint8_t block;    /* bytes of the repeated block of a mask function (PLT); else 0 or without meaning */
  bool mask;        /* rows start in the block, not in the function */
  bool key_b;       /* AArch64: return addresses are signed with key B */
  bool signal;      /* V3: a signal frame, its caller was interrupted */
  bool flexible;    /* V3: rows name their registers */
};

enum clew_sframe_kind {
  CLEW_SFRAME_SAME = 0,          /* the register still holds it */
  CLEW_SFRAME_FIXED = 1,         /* *(CFA + offset), the offset that of the header */
  CLEW_SFRAME_AT_CFA = 2,        /* *(CFA + offset) */
  CLEW_SFRAME_CFA_PLUS = 3,      /* CFA + offset */
  CLEW_SFRAME_AT_REGISTER = 4,   /* *(reg + offset) */
  CLEW_SFRAME_REGISTER_PLUS = 5, /* reg + offset */
  CLEW_SFRAME_REGISTER = 6       /* reg (s390x, V2) */
};

/* How to find a value. `reg` is a DWARF number of the section's ABI, unchecked: up to 2^29 - 1. */
struct clew_sframe_value {
  int32_t offset;
  uint32_t reg : 29;
  uint32_t kind : 3; /* enum clew_sframe_kind; of a CFA only AT_REGISTER and REGISTER_PLUS */
};

struct clew_sframe_row {
  uint32_t start; /* bytes from the function's start, of a mask function from the block's */
  uint8_t words;
  uint8_t word_bytes;
  bool outermost;     /* there is no caller; nothing below holds */
  bool is_signed : 1; /* AArch64: the return address is signed */
  bool ra_empty : 1;  /* a word stands for the return address but says nothing */
  struct clew_sframe_value cfa, fp, ra;
};

/* A position in a function's rows. */
struct clew_sframe_cursor {
  uint32_t at;   /* bytes from the start of all rows */
  uint32_t left; /* rows */
  uint64_t next; /* the least start that the next row may have */
};

#ifdef __cplusplus
static_assert(sizeof(struct clew_sframe_row) == 32, "decoded rows are kept by the million");
#else
_Static_assert(sizeof(struct clew_sframe_row) == 32, "decoded rows are kept by the million");
#endif

static inline uint32_t clew_sframe_u16(const uint8_t* bytes, bool big) {
  return big ? (uint32_t)bytes[0] << 8 | bytes[1] : (uint32_t)bytes[1] << 8 | bytes[0];
}
static inline uint32_t clew_sframe_u32(const uint8_t* bytes, bool big) {
  return big ? clew_sframe_u16(bytes, true) << 16 | clew_sframe_u16(bytes + 2, true)
             : clew_sframe_u16(bytes + 2, false) << 16 | clew_sframe_u16(bytes, false);
}
static inline uint64_t clew_sframe_u64(const uint8_t* bytes, bool big) {
  return big ? (uint64_t)clew_sframe_u32(bytes, true) << 32 | clew_sframe_u32(bytes + 4, true)
             : (uint64_t)clew_sframe_u32(bytes + 4, false) << 32 | clew_sframe_u32(bytes, false);
}

/* DWARF numbers of the stack pointer and the frame pointer. */
static inline uint32_t clew_sframe_sp(const struct clew_sframe* section) {
  return section->abi == CLEW_SFRAME_AMD64 ? 7u : section->abi == CLEW_SFRAME_S390X ? 15u : 31u;
}
static inline uint32_t clew_sframe_fp(const struct clew_sframe* section) {
  return section->abi == CLEW_SFRAME_AMD64 ? 6u : section->abi == CLEW_SFRAME_S390X ? 11u : 29u;
}

/* Opens the section whose header is read at `at`, of `bytes` bytes at most, loaded at `address`. Returns
 * CLEW_SFRAME_OK or what is wrong with the header; then nothing of *section holds. Further headers may follow
 * behind section->bytes, at the next multiple of 8. */
static inline uint32_t clew_sframe_open(CLEW_CONTEXT context, struct clew_sframe* section, uint64_t at,
                                        uint64_t bytes, uint64_t address) {
  uint8_t header[CLEW_SFRAME_HEADER_BYTES];
  uint64_t base, functions_end;
  uint32_t allowed;
  bool big;
  (void)context;
  if (bytes < CLEW_SFRAME_HEADER_BYTES) return CLEW_SFRAME_SHORT;
  if (!CLEW_SFRAME_READ(context, at, header, CLEW_SFRAME_HEADER_BYTES)) return CLEW_SFRAME_UNREADABLE;
  if (header[0] == 0xe2 && header[1] == 0xde) {
    big = false;
  } else if (header[0] == 0xde && header[1] == 0xe2) {
    big = true;
  } else {
    return CLEW_SFRAME_BAD_MAGIC;
  }
  section->at = at;
  section->address = address;
  section->big = big;
  section->version = header[2];
  section->flags = header[3];
  section->abi = header[4];
  section->fixed_fp = (int8_t)header[5];
  section->fixed_ra = (int8_t)header[6];
  section->auxiliary_bytes = header[7];
  section->functions = clew_sframe_u32(header + 8, big);
  section->rows = clew_sframe_u32(header + 12, big);
  section->rows_bytes = clew_sframe_u32(header + 16, big);
  if (section->version < 1 || section->version > 3) return CLEW_SFRAME_BAD_VERSION;
  allowed = section->version == 1   ? CLEW_SFRAME_SORTED | CLEW_SFRAME_FRAME_POINTER
            : section->version == 2 ? CLEW_SFRAME_SORTED | CLEW_SFRAME_FRAME_POINTER | CLEW_SFRAME_PCREL
                                    : CLEW_SFRAME_SORTED | CLEW_SFRAME_PCREL;
  if ((section->flags & ~allowed) != 0) return CLEW_SFRAME_BAD_FLAGS;
  if (section->version == 3 && (section->flags & CLEW_SFRAME_PCREL) == 0) return CLEW_SFRAME_BAD_FLAGS;
  if (section->abi < CLEW_SFRAME_AARCH64_BIG || section->abi > CLEW_SFRAME_S390X) return CLEW_SFRAME_BAD_ABI;
  if (big != (section->abi == CLEW_SFRAME_AARCH64_BIG || section->abi == CLEW_SFRAME_S390X))
    return CLEW_SFRAME_BAD_ORDER;
  section->entry_bytes = section->version == 1 ? 17 : section->version == 2 ? 20 : 16;

  /* 64-bit sums of 32-bit numbers: they do not wrap. */
  base = CLEW_SFRAME_HEADER_BYTES + (uint64_t)section->auxiliary_bytes;
  if (base > bytes) return CLEW_SFRAME_BAD_AUXILIARY;
  section->functions_at = base + clew_sframe_u32(header + 20, big);
  section->rows_at = base + clew_sframe_u32(header + 24, big);
  functions_end = section->functions_at + (uint64_t)section->functions * section->entry_bytes;
  if (functions_end > bytes || functions_end > section->rows_at) return CLEW_SFRAME_FUNCTIONS_OUTSIDE;
  section->bytes = section->rows_at + section->rows_bytes;
  if (section->bytes > bytes) return CLEW_SFRAME_ROWS_OUTSIDE;
  /* A V2 section marked 1 shows itself by nothing else. */
  if (section->version == 1 && functions_end != section->rows_at) return CLEW_SFRAME_FUNCTIONS_UNFILLED;
  return CLEW_SFRAME_OK;
}

/* Where function `index` is, bytes from the header. */
static inline uint64_t clew_sframe_entry_at(const struct clew_sframe* section, uint32_t index) {
  return section->functions_at + (uint64_t)index * section->entry_bytes;
}

/* The address that a function's entry of the section gives in its first bytes. */
static inline uint64_t clew_sframe_start_of(const struct clew_sframe* section, uint32_t index,
                                            const uint8_t* entry) {
  const uint64_t from =
      section->address +
      ((section->flags & CLEW_SFRAME_PCREL) != 0 ? clew_sframe_entry_at(section, index) : 0);
  return from + (section->version == 3 ? clew_sframe_u64(entry, section->big)
                                       : (uint64_t)(int64_t)(int32_t)clew_sframe_u32(entry, section->big));
}

/* Reads function `index` (below section->functions). CLEW_SFRAME_OK; or what is wrong with it: `start` and
 * `size` hold all the same unless it is CLEW_SFRAME_UNREADABLE. */
static inline uint32_t clew_sframe_function_at(CLEW_CONTEXT context, const struct clew_sframe* section,
                                               uint32_t index, struct clew_sframe_function* function) {
  uint8_t entry[20];
  const bool big = section->big;
  uint32_t info, type = 0;
  (void)context;
  if (!CLEW_SFRAME_READ(context, section->at + clew_sframe_entry_at(section, index), entry,
                        section->version == 1   ? 17u
                        : section->version == 2 ? 20u
                                                : 16u))
    return CLEW_SFRAME_UNREADABLE;
  function->start = clew_sframe_start_of(section, index, entry);
  function->rows = 0;
  function->row_type = 0;
  function->block = 0;
  function->mask = function->key_b = function->signal = function->flexible = false;
  if (section->version == 3) {
    uint8_t attribute[CLEW_SFRAME_ATTRIBUTE_BYTES];
    function->size = clew_sframe_u32(entry + 8, big);
    function->first = clew_sframe_u32(entry + 12, big);
    if (section->rows_bytes < CLEW_SFRAME_ATTRIBUTE_BYTES ||
        function->first > section->rows_bytes - CLEW_SFRAME_ATTRIBUTE_BYTES)
      return CLEW_SFRAME_BAD_ROW_OFFSET;
    if (!CLEW_SFRAME_READ(context, section->at + section->rows_at + function->first, attribute,
                          CLEW_SFRAME_ATTRIBUTE_BYTES))
      return CLEW_SFRAME_UNREADABLE;
    function->first += CLEW_SFRAME_ATTRIBUTE_BYTES;
    function->rows = clew_sframe_u16(attribute, big);
    info = attribute[2];
    type = attribute[3] & 31u;
    function->signal = (info & 128u) != 0;
    function->block = attribute[4];
  } else {
    function->size = clew_sframe_u32(entry + 4, big);
    function->first = clew_sframe_u32(entry + 8, big);
    function->rows = clew_sframe_u32(entry + 12, big);
    info = entry[16];
    function->block = section->version == 1 ? (uint8_t)CLEW_SFRAME_V1_BLOCK : entry[17];
    if (function->first > section->rows_bytes) return CLEW_SFRAME_BAD_ROW_OFFSET;
  }
  function->row_type = (uint8_t)(info & 15u);
  function->mask = (info & 16u) != 0;
  function->key_b = (info & 32u) != 0;
  function->flexible = type == 1;
  if (function->size != 0 && function->start + (function->size - 1) < function->start)
    return CLEW_SFRAME_WRAPS;
  if (type > 1 ||
      (function->flexible && section->abi != CLEW_SFRAME_AMD64 && section->abi != CLEW_SFRAME_S390X))
    return CLEW_SFRAME_BAD_FUNCTION_TYPE;
  if (function->row_type > 2) return CLEW_SFRAME_BAD_ROW_TYPE;
  if (function->mask && function->block == 0) return CLEW_SFRAME_BAD_BLOCK;
  /* The shortest row is its start and its info byte. */
  if (function->rows > CLEW_SFRAME_ROWS ||
      (uint64_t)function->rows * ((1u << function->row_type) + 1u) > section->rows_bytes - function->first)
    return CLEW_SFRAME_BAD_ROW_COUNT;
  return CLEW_SFRAME_OK;
}

/* Whether a function without rows is the outermost frame. V3 says so; but its assembler also writes a signal
 * frame that it cannot express like that. */
static inline bool clew_sframe_outermost(const struct clew_sframe* section,
                                         const struct clew_sframe_function* function) {
  return section->version == 3 && function->rows == 0 && !function->signal && !function->flexible;
}

static inline struct clew_sframe_cursor clew_sframe_rows_of(const struct clew_sframe_function* function) {
  struct clew_sframe_cursor cursor;
  cursor.at = function->first;
  cursor.left = function->rows;
  cursor.next = 0;
  return cursor;
}

/* Word `index` of a row's words, sign-extended; `control` words are unsigned. */
static inline int64_t clew_sframe_word(const struct clew_sframe* section, const uint8_t* words, uint32_t size,
                                       uint32_t index, bool control) {
  if (size == 1) return control ? (int64_t)words[index] : (int64_t)(int8_t)words[index];
  if (size == 2) {
    const uint16_t word = (uint16_t)clew_sframe_u16(words + 2 * index, section->big);
    return control ? (int64_t)word : (int64_t)(int16_t)word;
  }
  {
    const uint32_t word = clew_sframe_u32(words + 4 * index, section->big);
    return control ? (int64_t)word : (int64_t)(int32_t)word;
  }
}

/* The offset of a CFA as the section's ABI stores it: s390x's counts words behind its register save area. */
static inline bool clew_sframe_cfa_offset(const struct clew_sframe* section, int64_t word,
                                          struct clew_sframe_value* cfa) {
  if (section->abi == CLEW_SFRAME_S390X) word = word * 8 + 160;
  cfa->offset = (int32_t)word;
  return word >= -2147483647 - 1 && word <= 2147483647;
}

/* FP or RA of a row whose function is of the default type. */
static inline void clew_sframe_saved(const struct clew_sframe* section, int64_t word,
                                     struct clew_sframe_value* value) {
  value->reg = 0;
  value->kind = CLEW_SFRAME_AT_CFA;
  value->offset = (int32_t)word;
  if (section->abi == CLEW_SFRAME_S390X && section->version == 2 && (word & 1) != 0) {
    value->kind = CLEW_SFRAME_REGISTER;
    value->reg = (uint32_t)(word >> 1) & 0x1fffffffu;
    value->offset = 0;
  }
}

/* What holds where a row says nothing of FP or RA. */
static inline void clew_sframe_unsaid(int8_t fixed, struct clew_sframe_value* value) {
  value->reg = 0;
  value->offset = fixed;
  value->kind = fixed != 0 ? CLEW_SFRAME_FIXED : CLEW_SFRAME_SAME;
}

/* A pair of words of a flexible row: where a value is by register or CFA. */
static inline bool clew_sframe_pair(uint32_t control, int64_t offset, struct clew_sframe_value* value) {
  const bool by_register = (control & 1u) != 0, loaded = (control & 2u) != 0;
  value->offset = (int32_t)offset;
  value->reg = (by_register ? control >> 3 : 0) & 0x1fffffffu;
  if (by_register) {
    value->kind = loaded ? CLEW_SFRAME_AT_REGISTER : CLEW_SFRAME_REGISTER_PLUS;
  } else {
    value->kind = loaded ? CLEW_SFRAME_AT_CFA : CLEW_SFRAME_CFA_PLUS;
  }
  return (control & 4u) == 0 && control != 0; /* bit 2 is reserved; 0 is padding */
}

static inline uint32_t clew_sframe_flexible_row(const struct clew_sframe* section, const uint8_t* words,
                                                struct clew_sframe_row* row) {
  const uint32_t size = row->word_bytes, count = row->words;
  uint32_t control = (uint32_t)clew_sframe_word(section, words, size, 0, true);
  uint32_t at = 2;
  if (count != 2 && count != 4 && count != 5 && count != 6) return CLEW_SFRAME_BAD_WORD_COUNT;
  if (!clew_sframe_pair(control, 0, &row->cfa) || (control & 1u) == 0) return CLEW_SFRAME_BAD_CONTROL_WORD;
  if (!clew_sframe_cfa_offset(section, clew_sframe_word(section, words, size, 1, false), &row->cfa))
    return CLEW_SFRAME_OFFSET_RANGE;
  if (count == 2) return CLEW_SFRAME_OK;
  control = (uint32_t)clew_sframe_word(section, words, size, 2, true);
  if (count == 5) { /* a lone word stands for the return address */
    if (control != 0) return CLEW_SFRAME_BAD_WORD_COUNT;
    row->ra_empty = true;
    at = 3;
  } else {
    if (!clew_sframe_pair(control, clew_sframe_word(section, words, size, 3, false), &row->ra))
      return CLEW_SFRAME_BAD_CONTROL_WORD;
    at = 4;
  }
  if (count == 4) return CLEW_SFRAME_OK;
  control = (uint32_t)clew_sframe_word(section, words, size, at, true);
  return clew_sframe_pair(control, clew_sframe_word(section, words, size, at + 1, false), &row->fp)
             ? CLEW_SFRAME_OK
             : CLEW_SFRAME_BAD_CONTROL_WORD;
}

static inline uint32_t clew_sframe_default_row(const struct clew_sframe* section, const uint8_t* words,
                                               struct clew_sframe_row* row) {
  const uint32_t size = row->word_bytes, count = row->words;
  uint32_t at = 1;
  row->cfa.kind = CLEW_SFRAME_REGISTER_PLUS;
  if (count > 2u + (section->fixed_ra == 0 ? 1u : 0u)) return CLEW_SFRAME_BAD_WORD_COUNT;
  if (!clew_sframe_cfa_offset(section, clew_sframe_word(section, words, size, 0, false), &row->cfa))
    return CLEW_SFRAME_OFFSET_RANGE;
  if (section->fixed_ra == 0 && count > at) {
    const int64_t word = clew_sframe_word(section, words, size, at, false);
    row->ra_empty = section->abi == CLEW_SFRAME_S390X && word == 0;
    if (!row->ra_empty) clew_sframe_saved(section, word, &row->ra);
    at = 2;
  }
  if (count > at) clew_sframe_saved(section, clew_sframe_word(section, words, size, at, false), &row->fp);
  return CLEW_SFRAME_OK;
}

/* The next row of a function that clew_sframe_function_at() found sound. CLEW_SFRAME_OK;
 * CLEW_SFRAME_NOTHING behind the last one; or what is wrong with it: then no later row can be told, and
 * cursor->at is where it is. */
static inline uint32_t clew_sframe_next_row(CLEW_CONTEXT context, const struct clew_sframe* section,
                                            const struct clew_sframe_function* function,
                                            struct clew_sframe_cursor* cursor, struct clew_sframe_row* row) {
  uint8_t bytes[32];
  const uint32_t start_bytes = 1u << (function->row_type & 3u);
  const uint32_t left = section->rows_bytes - cursor->at; /* cursor->at never lies behind the rows */
  uint32_t info, length, result;
  (void)context;
  if (cursor->left == 0) return CLEW_SFRAME_NOTHING;
  if (left < start_bytes + 1) return CLEW_SFRAME_ROW_OUTSIDE;
  if (left >= CLEW_SFRAME_ROW_BYTES) {
    if (!CLEW_SFRAME_READ(context, section->at + section->rows_at + cursor->at, bytes, CLEW_SFRAME_ROW_BYTES))
      return CLEW_SFRAME_UNREADABLE;
  } else if (!CLEW_SFRAME_READ(context, section->at + section->rows_at + cursor->at, bytes, left & 31u)) {
    return CLEW_SFRAME_UNREADABLE;
  }
  row->start = start_bytes == 1   ? bytes[0]
               : start_bytes == 2 ? clew_sframe_u16(bytes, section->big)
                                  : clew_sframe_u32(bytes, section->big);
  info = bytes[start_bytes];
  row->words = (uint8_t)(info >> 1 & 15u);
  row->word_bytes = (uint8_t)(1u << (info >> 5 & 3u));
  row->outermost = false;
  row->is_signed = (info & 128u) != 0;
  row->ra_empty = false;
  row->cfa.reg = ((info & 1u) != 0 ? clew_sframe_sp(section) : clew_sframe_fp(section)) & 63u;
  row->cfa.offset = 0;
  row->cfa.kind = CLEW_SFRAME_REGISTER_PLUS;
  clew_sframe_unsaid(section->fixed_fp, &row->fp);
  clew_sframe_unsaid(section->fixed_ra, &row->ra);
  if (row->word_bytes == 8) return CLEW_SFRAME_BAD_WORD_SIZE;
  length = start_bytes + 1 + row->words * (uint32_t)row->word_bytes;
  if (length > left) return CLEW_SFRAME_ROW_OUTSIDE;
  if (row->words > 6) return CLEW_SFRAME_BAD_WORD_COUNT;
  if (row->start < cursor->next) return CLEW_SFRAME_ROW_ORDER;
  if (row->words == 0) {
    /* The outermost frame. V1 has no such thing: a row that says nothing. */
    if (section->version == 1) return CLEW_SFRAME_BAD_WORD_COUNT;
    row->outermost = true;
    result = CLEW_SFRAME_OK;
  } else if (function->flexible) {
    result = clew_sframe_flexible_row(section, bytes + start_bytes + 1, row);
  } else {
    result = clew_sframe_default_row(section, bytes + start_bytes + 1, row);
  }
  if (result != CLEW_SFRAME_OK) return result;
  cursor->at += length;
  cursor->left--;
  cursor->next = (uint64_t)row->start + 1;
  return CLEW_SFRAME_OK;
}

/* Reads the start of function `index`; false where it cannot be read. */
static inline bool clew_sframe_read_start(CLEW_CONTEXT context, const struct clew_sframe* section,
                                          uint32_t index, uint64_t* start) {
  uint8_t entry[8];
  (void)context;
  if (!CLEW_SFRAME_READ(context, section->at + clew_sframe_entry_at(section, index), entry,
                        section->version == 3 ? 8u : 4u))
    return false;
  *start = clew_sframe_start_of(section, index, entry);
  return true;
}

/* The function that covers `pc`, of several the one that starts last. CLEW_SFRAME_OK, CLEW_SFRAME_NOTHING, or
 * what is wrong with that function. A binary search where the section says that it is sorted, else the first
 * CLEW_SFRAME_UNSORTED functions one by one. A section that says so wrongly hides functions, no more. */
static inline uint32_t clew_sframe_find_function(CLEW_CONTEXT context, const struct clew_sframe* section,
                                                 uint64_t pc, struct clew_sframe_function* function) {
  uint32_t first = 0, count = section->functions, step, result;
  uint64_t start = 0;
  if (count == 0) return CLEW_SFRAME_NOTHING;
  if ((section->flags & CLEW_SFRAME_SORTED) == 0) {
    uint32_t best = 0xffffffffu;
    uint64_t best_start = 0;
    for (step = 0; step < CLEW_SFRAME_UNSORTED && step < count; step++) {
      result = clew_sframe_function_at(context, section, step, function);
      if (result == CLEW_SFRAME_UNREADABLE) return result;
      if (function->size != 0 && function->start <= pc && function->start >= best_start) {
        best = step;
        best_start = function->start;
      }
    }
    if (best == 0xffffffffu) return CLEW_SFRAME_NOTHING;
    result = clew_sframe_function_at(context, section, best, function);
    return result == CLEW_SFRAME_UNREADABLE || pc - function->start < function->size
               ? result
               : (uint32_t)CLEW_SFRAME_NOTHING;
  }
  /* The last function that starts at or before pc. */
  for (step = 0; step < 33 && count > 1; step++) {
    const uint32_t half = count / 2;
    if (!clew_sframe_read_start(context, section, first + half, &start)) return CLEW_SFRAME_UNREADABLE;
    first += start <= pc ? half : 0;
    count -= half;
  }
  /* Functions of size 0 cover nothing, but stand between. */
  for (step = 0; step < CLEW_SFRAME_EMPTY_FUNCTIONS; step++) {
    result = clew_sframe_function_at(context, section, first, function);
    if (result == CLEW_SFRAME_UNREADABLE) return result;
    if (function->size != 0 || first == 0) {
      return pc - function->start < function->size ? result : (uint32_t)CLEW_SFRAME_NOTHING;
    }
    first--;
  }
  return CLEW_SFRAME_NOTHING;
}

/* The row in force at `pc`, which the sound function covers. CLEW_SFRAME_OK, CLEW_SFRAME_NOTHING, or what is
 * wrong with a row up to the first that starts behind pc. */
static inline uint32_t clew_sframe_find_row(CLEW_CONTEXT context, const struct clew_sframe* section,
                                            const struct clew_sframe_function* function, uint64_t pc,
                                            struct clew_sframe_row* row) {
  struct clew_sframe_cursor cursor = clew_sframe_rows_of(function);
  struct clew_sframe_row next;
  uint32_t offset = (uint32_t)(pc - function->start), step;
  uint32_t found = CLEW_SFRAME_NOTHING;
  if (clew_sframe_outermost(section, function)) {
    __builtin_memset(row, 0, sizeof *row);
    row->outermost = true;
    return CLEW_SFRAME_OK;
  }
  if (function->mask) {
    if (function->block == 0) return CLEW_SFRAME_BAD_BLOCK;
    offset %= function->block;
  }
  for (step = 0; step < CLEW_SFRAME_ROWS; step++) {
    const uint32_t result = clew_sframe_next_row(context, section, function, &cursor, &next);
    if (result == CLEW_SFRAME_NOTHING) break;
    if (result != CLEW_SFRAME_OK) return result;
    if (next.start > offset) break;
    *row = next;
    found = CLEW_SFRAME_OK;
  }
  return found;
}

/* The function and the row in force at `pc` (for a return address: less 1). As the two above. */
static inline uint32_t clew_sframe_lookup(CLEW_CONTEXT context, const struct clew_sframe* section,
                                          uint64_t pc, struct clew_sframe_function* function,
                                          struct clew_sframe_row* row) {
  const uint32_t result = clew_sframe_find_function(context, section, pc, function);
  return result == CLEW_SFRAME_OK ? clew_sframe_find_row(context, section, function, pc, row) : result;
}

#endif
