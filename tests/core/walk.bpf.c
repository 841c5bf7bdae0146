/* The core as BPF: compiled by bpf_compile_test, so that it stays within BPF's constraints. Hooks as a BPF collector
 * would give them: tables in array maps by (page, index), target memory by a helper, the loop by bpf_loop. */
#include <stdbool.h>
#include <stdint.h>

#define SEC(name) __attribute__((section(name), used))
#define BPF_INLINE static inline __attribute__((always_inline))

static void* (*const bpf_map_lookup_elem)(void* map, const void* key) = (void*)1;
static long (*const bpf_probe_read_user)(void* out, uint32_t size, const void* address) = (void*)112;
static long (*const bpf_loop)(uint32_t count, void* function, void* argument, uint64_t flags) = (void*)181;

struct array_map {
  int (*type)[2]; /* BPF_MAP_TYPE_ARRAY */
  int (*max_entries)[1024];
  uint32_t* key;
  uint32_t (*value)[8192];
};
struct array_map table_pages SEC(".maps");

struct bpf_context {
  uint32_t first_page; /* of the table in table_pages */
};

struct clew_table_header;
BPF_INLINE uint32_t table_word(const struct bpf_context* context, uint32_t index) {
  uint32_t page = context->first_page + index / 8192;
  const uint32_t* words = (const uint32_t*)bpf_map_lookup_elem(&table_pages, &page);
  return words ? words[index % 8192] : 0;
}
BPF_INLINE bool read_bytes(uint64_t address, uint8_t* out, uint32_t size) {
  return bpf_probe_read_user(out, size, (const void*)address) == 0;
}
BPF_INLINE bool read_u64(uint64_t address, uint64_t* out) {
  return bpf_probe_read_user(out, sizeof *out, (const void*)address) == 0;
}

struct clew_code;
static __attribute__((noinline)) uint32_t find(struct bpf_context* context, uint64_t pc, struct clew_code* code);

#define CLEW_CONTEXT struct bpf_context*
#define CLEW_TABLE_WORD(context, header, index) table_word(context, index)
#define CLEW_READ_U64(context, address, out) read_u64(address, out)
#define CLEW_FIND(context, pc, code) find(context, pc, code)
#define CLEW_SFRAME_READ(context, at, out, size) read_bytes(at, out, size)
#define CLEW_LOOP(limit, function, walk) bpf_loop(limit, function, walk, 0)

#include "core/sframe.h"
#include "core/walk.h"

static struct clew_table_header module;

static __attribute__((noinline)) uint32_t find(struct bpf_context* context, uint64_t pc, struct clew_code* code) {
  (void)context;
  if (pc < module.text_base) return CLEW_END_NOT_MAPPED;
  code->table = &module;
  code->bias = 0;
  return CLEW_CONTINUE;
}

static struct bpf_context context;
static struct clew_walk walk;
static struct clew_frame frames[128];

SEC("perf_event")
int sample(void* registers) {
  (void)registers;
  walk.context = &context;
  walk.frames = frames;
  walk.capacity = 128;
  clew_walk_run(&walk);
  return 0;
}

static struct clew_sframe sframe;
static struct clew_sframe_function function;
static struct clew_sframe_row row;

SEC("perf_event")
int sframe_row(uint64_t* registers) {
  if (clew_sframe_open(&context, &sframe, registers[0], registers[1], registers[0]) != CLEW_SFRAME_OK) return 0;
  return (int)clew_sframe_lookup(&context, &sframe, registers[2], &function, &row);
}
