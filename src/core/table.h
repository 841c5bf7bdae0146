/* The compact unwind table of a module: its bytes, and the look-up of an address.
 *
 * Freestanding C that is also valid C++ and compiles for BPF. Little-endian. A table is an array of 32-bit
 * words that never hold a pointer, so it is mapped read-only, shared between processes, or put into BPF maps
 * as it is.
 *
 * What repeats in real binaries is not rows but whole sequences of them, so a function is stored as
 *
 *   record   where it starts (16 bits in its 64 KiB page of text) and the number of its shape
 *   shape    a string of bytes: RUN [GAP RUN]..., shared by all functions that look alike
 *   run      a sequence of (distance, rule) that recurs in many shapes: a prologue, an epilogue
 *   rule     64 bits, core/rule.h
 *
 * RUN is the run's number: a byte below 192; or 192 + n and a byte, together 192 + 256 n + byte, for n below
 * 63; or 255 and two bytes, the number itself. GAP is the distance in bytes from the start of the last row of
 * the run before to the start of this run: 7 bits a byte, low ones first, the top bit says that more follow
 * (at most 5).
 *
 *   header   struct clew_table_header
 *   pages    u32 [page_count + 1]: the first record of each 64 KiB page; a function that reaches into the
 * next page has a record at that page's start as well, so that a look-up never leaves its page starts   u16
 * [record_count]: low bits of the start address, ascending within a page shapes   u16 or u32 [record_count]:
 * number of the record's shape strings  the shapes, sorted by length, one behind the other:
 * header.shape_first[n] is the number of the first shape that is at least n bytes long, header.shape_at[n]
 * the byte where the strings of n bytes begin run_at   u16 [run_count + 1]: the first row of each run
 *   run_rule u16 [run_rows]: number of the row's rule
 *   run_gap  u8 [run_rows]: distance from the row before it in the run; 0 for a run's first
 *   rules    u64 [rule_count]
 *   saves    u64 []: lists (core/rule.h), the first word of a list being its length and flags; list 0 is
 * empty pool     expressions: each a u16 length and its DWARF bytes
 */
#ifndef CLEW_CORE_TABLE_H
#define CLEW_CORE_TABLE_H

#include "core/rule.h"

enum {
  CLEW_TABLE_VERSION = 7,
  CLEW_TABLE_PAGE_BITS = 16,
  CLEW_SHAPE_BYTES = 24, /* a longer function is split into several records */
  CLEW_RUN_ROWS = 16,    /* a longer run is split */
  CLEW_RUN_BYTE = 192,   /* run numbers below take one byte */
  CLEW_RUN_WORD = 16320  /* those below take two */
};

#define CLEW_TABLE_MAGIC 0x656c626174776c63ull /* "clwtable" */

/* All offsets are in bytes from the start of the table and multiples of 8. */
struct clew_table_header {
  uint64_t magic;
  uint32_t version;
  uint32_t bytes;     /* of the whole table */
  uint64_t checksum;  /* of all bytes with this field as 0: clew::table::checksum */
  uint64_t text_base; /* virtual address, a multiple of 64 KiB */
  uint32_t page_count;
  uint32_t record_count;
  uint32_t shape_count;
  uint32_t run_count;
  uint32_t run_rows;
  uint32_t rule_count;
  uint32_t saves_count; /* words */
  uint32_t pool_bytes;
  uint32_t pages_at;
  uint32_t starts_at;
  uint32_t shapes_at;
  uint32_t strings_at;
  uint32_t run_at_at;
  uint32_t run_rule_at;
  uint32_t run_gap_at;
  uint32_t rules_at;
  uint32_t saves_at;
  uint32_t pool_at;
  uint32_t wide_shapes; /* 1: shape numbers are u32 */
  uint32_t function_count;
  uint8_t build_id[24]; /* of the file, zero-padded or cut */
  uint64_t file_bytes;  /* its size */
  uint64_t source_hash; /* of the sections that the table was compiled from */
  uint32_t shape_first[CLEW_SHAPE_BYTES + 2];
  uint32_t shape_at[CLEW_SHAPE_BYTES + 2];
};

#ifdef __cplusplus
static_assert(sizeof(struct clew_table_header) == 360, "the header is on disk");
static_assert(CLEW_RUN_BYTE + 63 * 256 == CLEW_RUN_WORD, "numbers of two bytes");
#else
_Static_assert(sizeof(struct clew_table_header) == 360, "the header is on disk");
#endif

/* The includer's hook: the 32-bit word number `index` of the table that `header` heads. Must bound the index
 * itself; what it gives beyond the table does not matter. Default: the words lie behind the header in memory.
 */
#ifndef CLEW_TABLE_WORD
#define CLEW_TABLE_WORD(context, header, index) clew_table_word_in_memory(header, index)
#endif
#ifndef CLEW_CONTEXT
#define CLEW_CONTEXT void*
#endif

static inline uint32_t clew_table_word_in_memory(const struct clew_table_header* header, uint32_t index) {
  return index < header->bytes / 4 ? ((const uint32_t*)header)[index] : 0;
}

static inline uint32_t clew_table_u32(CLEW_CONTEXT context, const struct clew_table_header* header,
                                      uint32_t at) {
  (void)context;
  (void)header;
  return CLEW_TABLE_WORD(context, header, at / 4);
}
static inline uint32_t clew_table_u16(CLEW_CONTEXT context, const struct clew_table_header* header,
                                      uint32_t at) {
  return (clew_table_u32(context, header, at) >> (at % 4 * 8)) & 0xffffu;
}
static inline uint32_t clew_table_u8(CLEW_CONTEXT context, const struct clew_table_header* header,
                                     uint32_t at) {
  return (clew_table_u32(context, header, at) >> (at % 4 * 8)) & 0xffu;
}
static inline uint64_t clew_table_u64(CLEW_CONTEXT context, const struct clew_table_header* header,
                                      uint32_t at) {
  return (uint64_t)clew_table_u32(context, header, at) | (uint64_t)clew_table_u32(context, header, at + 4)
                                                             << 32;
}

/* The record that covers `vaddr`, or record_count. Branch-free inside: the verifier sees one path. */
static inline uint32_t clew_table_record(CLEW_CONTEXT context, const struct clew_table_header* header,
                                         uint64_t vaddr) {
  const uint64_t page = (vaddr - header->text_base) >> CLEW_TABLE_PAGE_BITS;
  if (vaddr < header->text_base || page >= header->page_count) return header->record_count;
  const uint32_t key = (uint32_t)vaddr & 0xffffu;
  uint32_t first = clew_table_u32(context, header, header->pages_at + (uint32_t)page * 4);
  const uint32_t end = clew_table_u32(context, header, header->pages_at + (uint32_t)page * 4 + 4);
  uint32_t count = end > first ? end - first : 0;
  uint32_t step;
  for (step = 0; step < 17 && count > 1; step++) {
    const uint32_t half = count / 2;
    const uint32_t start = clew_table_u16(context, header, header->starts_at + (first + half) * 2);
    first += start <= key ? half : 0;
    count -= half;
  }
  if (count == 0 || clew_table_u16(context, header, header->starts_at + first * 2) > key)
    return header->record_count;
  return first;
}

/* Where a shape's string lies: its offset in the table; *length its bytes (0: no such shape). */
static inline uint32_t clew_table_string(const struct clew_table_header* header, uint32_t shape,
                                         uint32_t* length) {
  uint32_t low = 0, step;
  /* The longest length whose first shape is not behind this one; lengths of no shapes share a first. */
  for (step = 16; step > 0; step /= 2) {
    const uint32_t next = low + step;
    low = next <= CLEW_SHAPE_BYTES && header->shape_first[next] <= shape ? next : low;
  }
  *length = shape < header->shape_count ? low : 0;
  return header->strings_at + header->shape_at[low] + (shape - header->shape_first[low]) * low;
}

/* A position in a shape's string. */
struct clew_shape_cursor {
  uint32_t at;  /* offset in the table of the next byte */
  uint32_t end; /* behind the string */
};

static inline uint32_t clew_shape_run(CLEW_CONTEXT context, const struct clew_table_header* header,
                                      struct clew_shape_cursor* cursor) {
  const uint32_t low = clew_table_u8(context, header, cursor->at++);
  uint32_t run;
  if (low < CLEW_RUN_BYTE) return low;
  run = clew_table_u8(context, header, cursor->at++);
  if (low < 255) return CLEW_RUN_BYTE + (low - CLEW_RUN_BYTE) * 256 + run;
  return run | clew_table_u8(context, header, cursor->at++) << 8;
}

static inline uint32_t clew_shape_gap(CLEW_CONTEXT context, const struct clew_table_header* header,
                                      struct clew_shape_cursor* cursor) {
  uint32_t gap = 0, shift;
  for (shift = 0; shift < 35; shift += 7) {
    const uint32_t byte = clew_table_u8(context, header, cursor->at++);
    gap |= (byte & 127u) << (shift & 31u);
    if (byte < 128) break;
  }
  return gap;
}

/* The rule at a virtual address of the file; kind CLEW_CFA_NONE where the table has none. */
static inline clew_rule clew_table_lookup(CLEW_CONTEXT context, const struct clew_table_header* header,
                                          uint64_t vaddr) {
  const uint32_t record = clew_table_record(context, header, vaddr);
  struct clew_shape_cursor cursor;
  uint32_t shape, length, distance, row = 0, step, number;
  if (record >= header->record_count) return 0;
  shape = header->wide_shapes ? clew_table_u32(context, header, header->shapes_at + record * 4)
                              : clew_table_u16(context, header, header->shapes_at + record * 2);
  cursor.at = clew_table_string(header, shape, &length);
  cursor.end = cursor.at + length;
  distance = ((uint32_t)vaddr & 0xffffu) - clew_table_u16(context, header, header->starts_at + record * 2);
  if (length == 0) return 0;

  /* The run that covers the distance, and how far into it. */
  {
    uint32_t run = clew_shape_run(context, header, &cursor);
    uint32_t first = clew_table_u16(context, header, header->run_at_at + run * 2);
    uint32_t rows = clew_table_u16(context, header, header->run_at_at + run * 2 + 2) - first;
    for (step = 0; step < CLEW_SHAPE_BYTES; step++) {
      uint32_t index, reached = 0, gap;
      row = first;
      /* Rows of the run that start at or before the distance. */
      for (index = 1; index < CLEW_RUN_ROWS; index++) {
        if (index >= rows) break;
        gap = clew_table_u8(context, header, header->run_gap_at + first + index);
        if (gap > distance - reached) break;
        reached += gap;
        row = first + index;
      }
      if (index < rows && index < CLEW_RUN_ROWS) break; /* ends within this run */
      distance -= reached;
      if (cursor.at >= cursor.end) break;
      gap = clew_shape_gap(context, header, &cursor);
      if (gap > distance) break;
      distance -= gap;
      run = clew_shape_run(context, header, &cursor);
      first = clew_table_u16(context, header, header->run_at_at + run * 2);
      rows = clew_table_u16(context, header, header->run_at_at + run * 2 + 2) - first;
    }
  }
  number = clew_table_u16(context, header, header->run_rule_at + row * 2);
  return number < header->rule_count ? clew_table_u64(context, header, header->rules_at + number * 8) : 0;
}

#endif
