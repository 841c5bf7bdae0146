/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* One sample: the kernel's stack as it has it, the user's walked here by the compact tables, or shipped where
 * that does not reach the root. */
#include <stdbool.h>
#include <stdint.h>

#include "bpf/helpers.h"
#include "bpf/kernel.h"

/* The core's hooks, which its headers want to know first. */
struct scratch;
struct clew_code;
struct clew_walk;
struct clew_table_header;
static __always_inline bool read_word(struct scratch* context, uint64_t address, uint64_t* out);
static __always_inline uint32_t table_word(const struct clew_table_header* header, uint32_t index);
#define CLEW_CONTEXT struct scratch*
#define CLEW_WALK_CONTEXT(walk) ((struct scratch*)(walk)) /* its first member */
#define CLEW_READ_U64(context, address, out) read_word(context, address, out)
#define CLEW_TABLE_WORD(context, header, index) table_word(header, index)
/* What is not to be had here ends the walk, and user space does it again. */
#define CLEW_EXPRESSION(context, header, state, evaluation) CLEW_END_BAD_EXPRESSION
#define CLEW_FIND(context, pc, code) find(context, pc, code)
#define CLEW_RULE(context, code, address) find_rule(context, code, address)
#define CLEW_FOLLOW_LISTS false
#define CLEW_CAPACITY(walk) ((uint32_t)CLEW_BPF_FRAMES)
#define CLEW_EMIT(walk, pc, sp) emit(walk, pc)
#define CLEW_EMIT_SIGNAL(walk) emit_signal(walk)
#define CLEW_LOOP(limit, function, walk) walk_loop(limit, walk)

static __always_inline uint32_t find(struct scratch* context, uint64_t pc, struct clew_code* code);
static __always_inline uint64_t find_rule(struct scratch* context, struct clew_code* code, uint64_t address);
static __always_inline void walk_loop(uint32_t limit, struct clew_walk* walk);
static __always_inline void emit(struct clew_walk* walk, uint64_t pc);
static __always_inline void emit_signal(struct clew_walk* walk);

#include "bpf/shared.h"

char program_license[] SEC("license") = "GPL";

/* Set before loading. Not a bool: C++, which reads the skeleton, has no _Bool. */
const volatile uint32_t all_processes = 0;
/* By user space, as the stacks need it. */
volatile uint32_t stack_bytes = 8192;
/* By user space, before the events are opened: clew_sample's number. */
volatile uint32_t sample_program = 0;

enum { kPage = 4096, kWindow = 4 * kPage, kMappings = 4 };

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, 65536);
  __uint(map_flags, BPF_F_NO_PREALLOC);
  __type(key, uint32_t);
  __type(value, uint8_t);
} targets SEC(".maps"); /* processes to sample */

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, CLEW_BPF_MODULES);
  __type(key, struct clew_bpf_file);
  __type(value, uint32_t);
} module_of_file SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, CLEW_BPF_MODULES);
  __type(key, uint32_t);
  __type(value, struct clew_bpf_module);
} modules SEC(".maps");

struct table_page {
  uint32_t word[CLEW_BPF_PAGE_WORDS];
};
struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(map_flags, BPF_F_MMAPABLE);
  __uint(max_entries, CLEW_BPF_TABLE_PAGES);
  __type(key, uint32_t);
  __type(value, struct table_page);
} table_pages SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_RINGBUF);
  __uint(max_entries, 1 << 25);
} ring SEC(".maps");

/* A mapping that walks of this process have met. */
struct mapping {
  uint64_t start, length;
  uint64_t bias;   /* address in memory minus virtual address in the file */
  uint64_t serial; /* of the module, where a rule's key has it */
  uint32_t module; /* CLEW_BPF_MODULES: executable, but no table is loaded */
  uint32_t reserved;
};

/* Rules by code address, for all CPUs. Two of them may write an entry at a time: `check` is key ^ rule, so
 * that half of one and half of the other is no entry at all. */
struct cached_rule {
  uint64_t check;
  uint64_t rule;
};
enum { kCached = 65536 };
static struct cached_rule rule_cache[kCached];

/* ---- The core's hooks ---- */

/* Global functions are verified once, for any arguments, and nothing is known of what they return: so the
 * verifier does not follow every way through a look-up with every value. */
__noinline uint32_t clew_bpf_word(uint32_t first_page, uint32_t index) {
  uint32_t page = first_page + index / CLEW_BPF_PAGE_WORDS;
  const struct table_page* words = bpf_map_lookup_elem(&table_pages, &page);
  return words ? words->word[index % CLEW_BPF_PAGE_WORDS] : 0;
}
static __always_inline uint32_t table_word(const struct clew_table_header* header, uint32_t index) {
  return clew_bpf_word(((const struct clew_bpf_module*)header)->first_page, index); /* its first member */
}

#include "core/walk.h"

/* A node of a maple tree, 256 bytes at an address with 8 zero bits (include/linux/maple_tree.h, struct
 * maple_range_64 and maple_arange_64). Slot i holds what lies at most at pivot i, and above pivot i - 1. */
enum { kMapleLeaf64 = 1, kMapleRange64 = 2, kMapleArange64 = 3, kMapleLevels = 8 };
struct clew_maple_node {
  uint64_t parent; /* the node itself: it is dead */
  uint64_t word[31];
};

/* A piece of the user's stack: `filled` bytes from `base` on, to the end of a page. */
struct window {
  uint64_t base;
  uint64_t filled;
  uint8_t bytes[kWindow + 8]; /* the verifier does not see that a word lies inside */
};
struct trace {
  struct clew_bpf_sample head;
  uint64_t frames[CLEW_BPF_KERNEL_FRAMES + CLEW_BPF_FRAMES + 1];
};
/* All that a sample's walk needs, a CPU: in a map rather than on the stack, so that the verifier has less to
 * follow. */
struct scratch {
  struct clew_walk walk;
  struct clew_maple_node node;
  struct bpf_user_pt_regs user; /* of a sample of the kernel */
  /* Whose mappings these are, and as of which change; 0: nobody's. */
  uint64_t mm;
  uint64_t sequence;
  uint32_t next_mapping;
  uint32_t now; /* the mapping of the last frame */
  struct mapping mapping[kMappings];
  struct window stack;
  /* Of the walk's frames, for the trace to be confirmed at the next sample. */
  uint64_t slot;        /* where the next frame's rbp was read; 0: it is its callee's */
  uint32_t prepared;    /* the frame whose mapping and rule have been looked up, plus 1 */
  uint32_t simple_from; /* the first frame behind the last step that was no simple one */
  uint32_t joined;      /* where the walk met the last trace, in its places; kPlaces: nowhere */
  uint32_t last_from;   /* where it may meet it */
  struct trace trace;
};
struct {
  __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
  __uint(max_entries, 1);
  __type(key, uint32_t);
  __type(value, struct scratch);
} scratches SEC(".maps");

/* A frame of a trace and what it was read from: its pc from the word below sp, its rbp from the word at
 * `slot`. */
struct place {
  uint64_t pc; /* as trace.frames has it */
  uint64_t sp;
  uint64_t bp;   /* kUnknown where it is not known */
  uint64_t slot; /* 0: rbp is the callee's */
};
enum { kPlaces = 1000 /* below 1024 */, kUnknown = 1 };
struct fresh_places {
  struct place place[CLEW_BPF_FRAMES];
};
struct {
  __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
  __uint(max_entries, 1);
  __type(key, uint32_t);
  __type(value, struct fresh_places);
} fresh SEC(".maps"); /* of the walk that is under way, from the sampled frame on */
/* The last trace that this CPU has sent, its root in the last place. */
struct last_trace {
  uint64_t mm, sequence; /* as scratch has them */
  uint32_t number;       /* counts the traces sent */
  uint32_t simple_from;  /* the first place from which on there are but simple steps */
  struct place place[kPlaces];
  struct place behind[1024]; /* never used: the verifier does not see that a copy ends at the last place */
};
struct {
  __uint(type, BPF_MAP_TYPE_ARRAY); /* not one a CPU, whose values are at most 32 KiB */
  __uint(max_entries, 1);           /* a CPU, set before loading */
  __type(key, uint32_t);
  __type(value, struct last_trace);
} last_traces SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
  __uint(max_entries, 1);
  __type(key, uint32_t);
  __type(value, struct clew_bpf_counts);
} counts SEC(".maps");

/* One load, aligned or not: the compiler would take it byte by byte. The offset is below kWindow. */
static __always_inline uint64_t word_at(struct window* window, uint64_t offset) {
  const uint64_t* word;
  asm("" : "=r"(word) : "0"(&window->bytes[offset & (kWindow - 1)]));
  return *word;
}

/* A word outside of the window: moves or extends it, a page at a time. */
__noinline int clew_bpf_read(struct window* window, uint64_t address, uint64_t* out) {
  uint64_t offset;
  uint32_t pages;
  if (!window || !out) return 0;
  if ((address & (kPage - 1)) > kPage - 8) return bpf_probe_read_user(out, 8, (const void*)address) == 0;
  if (address - window->base >= kWindow - kPage) {
    window->base = address & ~63ull;
    window->filled = 0;
  }
  offset = address - window->base;
  /* To the end of a page: a read that passes the end of the mapping fails whole. */
  for (pages = 0; pages < kWindow / kPage; pages++) {
    const uint64_t at = window->filled;
    const uint32_t size = kPage - ((uint32_t)(window->base + at) & (kPage - 1));
    if (offset + 8 <= at || at > kWindow - kPage || size > kPage) break;
    if (bpf_probe_read_user(&window->bytes[at], size, (const void*)(window->base + at)) != 0) break;
    window->filled = at + size;
  }
  if (offset + 8 > window->filled) return bpf_probe_read_user(out, 8, (const void*)address) == 0;
  *out = word_at(window, offset);
  return 1;
}
static __always_inline bool read_word(struct scratch* context, uint64_t address, uint64_t* out) {
  struct window* window = &context->stack;
  const uint64_t offset = address - window->base;
  if (offset < window->filled && window->filled - offset >= 8) {
    *out = word_at(window, offset);
    return true;
  }
  return clew_bpf_read(window, address, out) != 0;
}

/* pc below, enum clew_how in bits 56..59, flags above. */
static __always_inline void emit(struct clew_walk* walk, uint64_t pc) {
  struct trace* trace = &((struct scratch*)walk)->trace;
  const uint32_t at = trace->head.kernel_frames + walk->count;
  if (at < CLEW_BPF_KERNEL_FRAMES + CLEW_BPF_FRAMES)
    trace->frames[at] = (pc & 0x00ffffffffffffffull) | (uint64_t)(walk->how & 15u) << 56 |
                        (uint64_t)(walk->flags & 15u) << 60;
}
static __always_inline void emit_signal(struct clew_walk* walk) {
  struct trace* trace = &((struct scratch*)walk)->trace;
  const uint32_t at = trace->head.kernel_frames + walk->count - 1;
  if (at < CLEW_BPF_KERNEL_FRAMES + CLEW_BPF_FRAMES) trace->frames[at] |= (uint64_t)CLEW_FRAME_SIGNAL << 60;
}

/* ---- Rules ---- */

static __always_inline struct cached_rule* cache_of(uint64_t serial, uint64_t vaddr) {
  return &rule_cache[(vaddr ^ serial >> 36) % kCached]; /* 16 apart for two modules that begin alike */
}
static __always_inline uint64_t key_of(uint64_t serial, uint64_t vaddr) {
  return serial | (vaddr & 0xffffffffffull);
}

__noinline uint64_t clew_bpf_look_up(uint32_t index, uint64_t vaddr) {
  const struct clew_bpf_module* module = bpf_map_lookup_elem(&modules, &index);
  return module ? clew_table_lookup(0, &module->header, vaddr) : 0;
}

static __always_inline uint64_t find_rule(struct scratch* context, struct clew_code* code, uint64_t address) {
  const struct clew_bpf_module* module = (const struct clew_bpf_module*)code->table;
  (void)context;
  if (!module) return 0;
  const uint64_t vaddr = address - code->bias;
  const uint64_t key = key_of((uint64_t)module->serial << 40, vaddr);
  struct cached_rule* entry = cache_of((uint64_t)module->serial << 40, vaddr);
  const uint64_t cached = entry->rule;
  if ((entry->check ^ cached) == key) return cached;
  const uint64_t rule = clew_bpf_look_up(module->index, vaddr);
  entry->check = key ^ rule;
  entry->rule = rule;
  return rule;
}

/* ---- Which module an address lies in ---- */

/* The process's mappings are looked up in its maple tree as it is, under RCU (which BPF programs run in),
 * since bpf_find_vma takes the process's lock and, with interrupts off, can do so once a sample only.
 * Whatever a concurrent change makes of that: a mapping is believed where it is of this process and holds the
 * address. */

/* One level down from the node in scratch, whose type is given: the slot for `index`. */
__noinline uint64_t clew_bpf_maple_slot(struct clew_maple_node* node, uint32_t type, uint64_t index) {
  const bool arange = type == kMapleArange64;
  uint32_t pivots = arange ? 9 : 15, end, slot = 0, i;
  if (!node) return 0;
  /* Behind the last pivot in use they are 0, and the metadata says how many there are: in range nodes where
   * the last slot is, in arange nodes behind the gaps. */
  end = pivots;
  if (node->word[pivots - 1] == 0) end = (uint32_t)node->word[arange ? 29 : 30] & 0xff;
  for (i = 0; i < 15; i++) slot += i < pivots && i < end && node->word[i] < index;
  slot += pivots;
  return slot < 31 ? node->word[slot] : 0;
}

__noinline uint64_t clew_bpf_find_vma(struct scratch* scratch, uint64_t address) {
  struct task_struct* task = bpf_get_current_task_btf();
  struct mm_struct* mm = task->mm;
  uint64_t entry;
  uint32_t level;
  if (!scratch || !mm) return 0;
  entry = (uint64_t)BPF_CORE_READ(mm, mm_mt.ma_root);
  if ((entry & 3) != 2) return 0; /* no node: at most one mapping */
  for (level = 0; level < kMapleLevels; level++) {
    const uint32_t type = (uint32_t)(entry >> 3) & 15;
    const uint64_t node = entry & ~0xffull;
    if (type < kMapleLeaf64 || type > kMapleArange64) return 0;
    if (bpf_probe_read_kernel(&scratch->node, sizeof scratch->node, (const void*)node) != 0) return 0;
    if ((scratch->node.parent & ~0xffull) == node) return 0;
    entry = clew_bpf_maple_slot(&scratch->node, type, address);
    if (type == kMapleLeaf64) break;
  }
  {
    const struct vm_area_struct* vma = (const struct vm_area_struct*)entry;
    if (!vma || BPF_CORE_READ(vma, vm_mm) != mm || BPF_CORE_READ(vma, vm_start) > address ||
        BPF_CORE_READ(vma, vm_end) <= address)
      return 0;
  }
  return entry;
}

static __always_inline uint32_t use_mapping(struct scratch* context, uint32_t slot, struct clew_code* code) {
  const struct mapping* mapping = &context->mapping[slot % kMappings];
  uint32_t index = mapping->module;
  context->now = slot;
  if (index == CLEW_BPF_MODULES) return CLEW_CONTINUE; /* nothing describes it: no rule, the walk ends */
  const struct clew_bpf_module* module = bpf_map_lookup_elem(&modules, &index);
  if (!module) return CLEW_END_NOT_MAPPED;
  code->table = &module->header;
  code->bias = mapping->bias;
  return CLEW_CONTINUE;
}

static __noinline uint32_t look_for_mapping(struct scratch* context, uint64_t pc) {
  const uint64_t kExecutable = 4;
  const uint32_t slot = context->next_mapping++ % kMappings;
  struct mapping* mapping = &context->mapping[slot];
  const struct vm_area_struct* vma = (const struct vm_area_struct*)clew_bpf_find_vma(context, pc);
  struct clew_bpf_file key = {};
  struct file* file;
  uint64_t offset;
  uint32_t i;
  mapping->start = mapping->length = 0;
  if (!vma || !(BPF_CORE_READ(vma, vm_flags) & kExecutable)) return kMappings;
  mapping->module = CLEW_BPF_MODULES;
  mapping->start = BPF_CORE_READ(vma, vm_start);
  mapping->length = BPF_CORE_READ(vma, vm_end) - mapping->start;
  file = BPF_CORE_READ(vma, vm_file);
  offset = pc - mapping->start;
  if (!file) {
    if ((uint64_t)BPF_CORE_READ(vma, vm_mm, context.vdso) != mapping->start) return slot;
    key.device = CLEW_BPF_VDSO;
  } else {
    struct inode* inode = BPF_CORE_READ(file, f_inode);
    key.inode = BPF_CORE_READ(inode, i_ino);
    key.generation = BPF_CORE_READ(inode, i_generation);
    key.device = BPF_CORE_READ(inode, i_sb, s_dev);
    offset += BPF_CORE_READ(vma, vm_pgoff) * kPage;
  }
  const uint32_t* index = bpf_map_lookup_elem(&module_of_file, &key);
  if (index) {
    uint32_t number = *index;
    const struct clew_bpf_module* module = bpf_map_lookup_elem(&modules, &number);
    for (i = 0; i < CLEW_BPF_SEGMENTS && module; i++) {
      if (i >= module->segments || offset < module->segment[i].offset || offset >= module->segment[i].end)
        continue;
      mapping->module = number;
      mapping->serial = (uint64_t)module->serial << 40;
      mapping->bias = pc - (offset + module->segment[i].to_vaddr);
    }
  } else {
    context->sequence = 1; /* not to be kept: the table may be there at the next sample */
    if (!context->trace.head.missing_pc) {
      context->trace.head.missing = key;
      context->trace.head.missing_pc = pc;
    }
  }
  return slot;
}

static __always_inline uint32_t find(struct scratch* context, uint64_t pc, struct clew_code* code) {
  uint32_t i;
  for (i = 0; i < kMappings; i++)
    if (pc - context->mapping[i].start < context->mapping[i].length) return use_mapping(context, i, code);
  i = look_for_mapping(context, pc);
  return i < kMappings ? use_mapping(context, i, code) : (uint32_t)CLEW_END_NOT_MAPPED;
}

/* Mappings are kept from one sample of a process to its next, as long as nothing was mapped or unmapped. */
static __always_inline void keep_mappings(struct scratch* scratch, const struct task_struct* task) {
  const struct mm_struct___sequence* mm = (const struct mm_struct___sequence*)task->mm;
  uint64_t sequence = 1;
  uint32_t i;
  if (bpf_core_field_exists(mm->mm_lock_seq.sequence)) sequence = BPF_CORE_READ(mm, mm_lock_seq.sequence);
  sequence |= (uint64_t)(uint32_t)task->tgid << 32;
  if (scratch->mm == (uint64_t)mm && scratch->sequence == sequence && (sequence & 1) == 0) return;
  scratch->mm = (uint64_t)mm;
  scratch->sequence = sequence;
  for (i = 0; i < kMappings; i++) scratch->mapping[i].start = scratch->mapping[i].length = 0;
}

/* ---- The walk ---- */

/* What clew_walk_frame does with nearly every frame, in few instructions, for up to kOften frames: in the
 * mapping of the last frame, a rule from the cache that says CFA = rsp or rbp + n, words in the window. Stops
 * at the first frame that needs more; returns how many it stepped from. */
enum {
  kOften = 8,
  kRspAlone = CLEW_RSP | CLEW_CFA_REG
                             << 4 /* bits 32..47 of a rule: CFA = rsp + n, rbp as it is, nothing special */
};
static __always_inline uint32_t step_often(struct scratch* scratch, struct fresh_places* places) {
  struct clew_walk* walk = &scratch->walk;
  struct clew_state* state = &walk->state;
  struct window* window = &scratch->stack;
  const struct mapping* now = &scratch->mapping[scratch->now % kMappings];
  const uint64_t start = now->start, length = now->length, bias = now->bias, serial = now->serial;
  const uint64_t window_base = window->base, last = window->filled - 8;
  uint64_t pc = state->value[CLEW_RIP], sp = state->value[CLEW_RSP], slot = scratch->slot;
  uint64_t bp = clew_known(state, CLEW_RBP) ? state->value[CLEW_RBP] : kUnknown;
  uint64_t marks = (uint64_t)(walk->how & 15u) << 56 | (uint64_t)(walk->flags & 15u) << 60;
  uint64_t back =
      walk->flags & CLEW_FRAME_EXACT_PC ? 0 : 1; /* a return address belongs to the call before it */
  uint32_t known = state->known, i;
  const uint32_t count = walk->count, first = scratch->trace.head.kernel_frames + count;
  uint64_t* out;
  struct place* place;
  if (now->module == CLEW_BPF_MODULES || window->filled == 0 || count > CLEW_BPF_FRAMES - kOften) return 0;
  if (first > CLEW_BPF_KERNEL_FRAMES + CLEW_BPF_FRAMES - kOften) return 0;
  out = &scratch->trace.frames[first];
  place = &places->place[count];
  for (i = 0; i < kOften; i++) {
    const uint64_t vaddr = pc - back - bias;
    const struct cached_rule* entry = cache_of(serial, vaddr);
    const uint64_t rule = entry->rule, from = slot, callee_bp = bp;
    uint64_t cfa = sp, offset;
    if ((entry->check ^ rule) != key_of(serial, vaddr) || pc - start >= length) break;
    if ((rule >> 32 & 0xffff) == kRspAlone) {
      cfa += (uint64_t)(int64_t)clew_rule_offset(rule);
      slot = 0;
    } else {
      const uint32_t saved_bp = clew_rule_bp(rule);
      if (!clew_rule_simple(rule)) break;
      if (clew_rule_register(rule) == CLEW_RBP) {
        if (!(known & 1u << CLEW_RBP)) break;
        cfa = bp;
      }
      cfa += (uint64_t)(int64_t)clew_rule_offset(rule);
      offset = cfa - 8 - window_base;
      if (cfa <= sp || offset > last) break; /* before anything is changed */
      slot = 0;
      if (saved_bp) {
        slot = cfa - 8ull * saved_bp;
        offset = slot - window_base;
        if (slot < sp || offset > last) {
          slot = from;
          break;
        }
        bp = word_at(window, offset);
        known |= 1u << CLEW_RBP;
      }
    }
    offset = cfa - 8 - window_base;
    if (cfa <= sp || offset > last) {
      slot = from;
      break;
    }
    out[i] = place[i].pc = (pc & 0x00ffffffffffffffull) | marks;
    place[i].sp = sp;
    place[i].bp = callee_bp;
    place[i].slot = from;
    pc = word_at(window, offset);
    sp = cfa;
    back = 1;
    marks = (uint64_t)CLEW_HOW_TABLE << 56;
  }
  if (i == 0) return 0;
  walk->count += i;
  walk->how = CLEW_HOW_TABLE;
  walk->flags = 0;
  state->value[CLEW_RIP] = pc;
  state->value[CLEW_RSP] = sp;
  state->value[CLEW_RBP] = bp;
  state->known = (known & 1u << CLEW_RBP) | 1u << CLEW_RSP | 1u << CLEW_RIP;
  scratch->slot = slot;
  return i;
}

/* Has all at hand that step_often needs for the next frame: its mapping, its rule, the stack up to its
 * caller. */
__noinline int clew_bpf_prepare(struct scratch* scratch) {
  struct clew_code code = {0, 0};
  const struct clew_state* state;
  uint64_t pc, rule, cfa, word;
  if (!scratch) return 0;
  state = &scratch->walk.state;
  pc = state->value[CLEW_RIP];
  if (find(scratch, pc, &code) != CLEW_CONTINUE) return 0;
  rule = find_rule(scratch, &code, pc - (scratch->walk.flags & CLEW_FRAME_EXACT_PC ? 0 : 1));
  if (!clew_rule_simple(rule)) return 0;
  cfa = state->value[clew_rule_register(rule) == CLEW_RSP ? CLEW_RSP : CLEW_RBP] +
        (uint64_t)(int64_t)clew_rule_offset(rule);
  return read_word(scratch, state->value[CLEW_RSP], &word) && read_word(scratch, cfa - 8, &word);
}

/* ---- The last trace again ----
 *
 * Stacks barely change from one sample of a thread to its next. Once the walk comes to a frame that the last
 * trace had, with the same pc, stack pointer and frame pointer, every further frame is the same as long as
 * the words are that it was read from, and nothing was mapped meanwhile: independent loads, no rules. And
 * only what is new is sent. */

/* The place of the last trace with this stack pointer, if any: places above `from` lie in its order. */
static __always_inline uint32_t place_at(const struct last_trace* last, uint32_t from, uint64_t sp) {
  uint32_t at = from, size = kPlaces - from, i;
  for (i = 0; i < 10; i++) {
    const uint32_t half = size / 2, middle = at + half;
    if (middle >= kPlaces) return kPlaces;
    if (last->place[middle].sp < sp) {
      at = middle + 1;
      size -= half + 1;
    } else {
      size = half;
    }
  }
  return at;
}

/* How many places are confirmed at a time; kPlaces is a multiple. */
enum { kConfirmed = 20 };
struct confirmation {
  struct scratch* scratch;
  const struct last_trace* last;
  uint32_t at;
  bool same;
};
static long confirm_some(uint32_t index, void* argument) {
  struct confirmation* confirmation = argument;
  struct scratch* scratch = confirmation->scratch;
  struct window* window = &scratch->stack;
  const uint32_t at = confirmation->at;
  const struct place* place;
  uint64_t differs = 0, word, lowest, base;
  uint32_t count, i;
  (void)index;
  if (at >= kPlaces) return 1;
  count = kPlaces - at < kConfirmed ? kPlaces - at : kConfirmed;
  confirmation->at = at + count;
  place = &confirmation->last->place[at];
  /* All words lie between the first and the last, and mostly in the window. */
  lowest = place->slot ? place->slot : place->sp - 8;
  if (!read_word(scratch, lowest, &word) ||
      !read_word(scratch, confirmation->last->place[at + count - 1].sp - 8, &word))
    differs = 1;
  base = window->base;
  if (lowest - base < window->filled) {
    for (i = 0; i < kConfirmed; i++) {
      if (i >= count) break;
      differs |= word_at(window, place[i].sp - 8 - base) ^ (place[i].pc & 0x00ffffffffffffffull);
      if (place[i].slot) differs |= word_at(window, place[i].slot - base) ^ place[i].bp;
    }
  } else {
    for (i = 0; i < kConfirmed; i++) {
      if (i >= count) break;
      if (!read_word(scratch, place[i].sp - 8, &word)) differs = 1;
      differs |= word ^ (place[i].pc & 0x00ffffffffffffffull);
      if (!place[i].slot) continue;
      if (!read_word(scratch, place[i].slot, &word)) differs = 1;
      differs |= word ^ place[i].bp;
    }
  }
  if (differs) confirmation->same = false;
  return differs != 0;
}

/* Whether the walk has come to the last trace and may end here. */
__noinline int clew_bpf_join(struct scratch* scratch, const struct last_trace* last) {
  struct confirmation confirmation = {scratch, last, 0, true};
  const struct clew_walk* walk;
  uint32_t at;
  uint64_t pc;
  if (!scratch || !last) return 0;
  walk = &scratch->walk;
  if (scratch->last_from >= kPlaces || walk->how != CLEW_HOW_TABLE || walk->flags != 0) return 0;
  at = place_at(last, scratch->last_from, walk->state.value[CLEW_RSP]);
  if (at >= kPlaces) return 0;
  pc = (walk->state.value[CLEW_RIP] & 0x00ffffffffffffffull) | (uint64_t)CLEW_HOW_TABLE << 56;
  if (last->place[at].sp != walk->state.value[CLEW_RSP] || last->place[at].pc != pc) return 0;
  if (last->place[at].bp != (clew_known(&walk->state, CLEW_RBP) ? walk->state.value[CLEW_RBP] : kUnknown))
    return 0;
  confirmation.at = at + 1;
  bpf_loop(kPlaces / kConfirmed + 1, confirm_some, &confirmation, 0);
  if (!confirmation.same) {
    scratch->last_from = kPlaces; /* the rest is to be walked */
    return 0;
  }
  scratch->joined = at;
  return 1;
}

struct walk_reference {
  struct clew_walk* walk;
  struct fresh_places* places;
  const struct last_trace* last;
};
static long walk_frame(uint32_t index, void* argument) {
  const struct walk_reference* reference = argument;
  struct clew_walk* walk = reference->walk;
  struct scratch* scratch = (struct scratch*)walk;
  /* Ever more rarely, the deeper it is. */
  if ((index & (index - 1)) == 0 && scratch->last_from < kPlaces && clew_bpf_join(scratch, reference->last)) {
    walk->end = CLEW_END_ROOT;
    return 1;
  }
  if (step_often(scratch, reference->places) == kOften) return 0;
  if (scratch->prepared != walk->count + 1) {
    scratch->prepared = walk->count + 1;
    if (clew_bpf_prepare(scratch)) return 0;
  }
  if (walk->count < CLEW_BPF_FRAMES) {
    struct place* place = &reference->places->place[walk->count];
    place->pc = (walk->state.value[CLEW_RIP] & 0x00ffffffffffffffull) | (uint64_t)(walk->how & 15u) << 56 |
                (uint64_t)(walk->flags & 15u) << 60;
    place->sp = walk->state.value[CLEW_RSP];
    place->bp = clew_known(&walk->state, CLEW_RBP) ? walk->state.value[CLEW_RBP] : kUnknown;
    place->slot = scratch->slot;
  }
  if (clew_walk_frame(index, walk)) return 1;
  scratch->simple_from = walk->count;
  scratch->slot = 0;
  return 0;
}
static __always_inline void walk_loop(uint32_t limit, struct clew_walk* walk) {
  uint32_t zero = 0, cpu = bpf_get_smp_processor_id();
  struct scratch* scratch = (struct scratch*)walk;
  struct last_trace* last = bpf_map_lookup_elem(&last_traces, &cpu);
  struct walk_reference reference = {walk, bpf_map_lookup_elem(&fresh, &zero), last};
  if (!last || !reference.places) return;
  scratch->slot = 0;
  scratch->prepared = 0;
  scratch->simple_from = 0;
  scratch->joined = kPlaces;
  scratch->last_from = kPlaces;
  if (last->mm == scratch->mm && last->sequence == scratch->sequence && (scratch->sequence & 1) == 0)
    scratch->last_from = last->simple_from;
  bpf_loop(2 * limit, walk_frame, &reference, 0); /* a frame whose rule is looked up first takes two turns */
}

/* Sends a trace that reaches the root: the frames before it met the last one, which it becomes. False: the
 * ring is full. */
static __always_inline bool send_walked(struct scratch* scratch) {
  uint32_t zero = 0, cpu = bpf_get_smp_processor_id(), count = scratch->walk.count, joined = scratch->joined;
  struct last_trace* last = bpf_map_lookup_elem(&last_traces, &cpu);
  struct fresh_places* places = bpf_map_lookup_elem(&fresh, &zero);
  struct trace* trace = &scratch->trace;
  uint64_t size;
  if (!last || !places) return false;
  trace->head.state = CLEW_BPF_WALKED;
  trace->head.user_frames = count;
  trace->head.shared_frames = kPlaces - joined;
  trace->head.cpu = cpu;
  trace->head.number = ++last->number;
  last->simple_from = kPlaces;
  size = sizeof trace->head + (uint64_t)(trace->head.kernel_frames + count) * 8;
  if (size > sizeof *trace) size = sizeof *trace;
  if (bpf_ringbuf_output(&ring, trace, size, BPF_RB_NO_WAKEUP) != 0)
    return false;                                      /* the next is sent whole */
  if (joined > kPlaces || count > joined) return true; /* deeper than is kept */
  joined -= count;
  if (joined >= kPlaces || count > kPlaces) return true;
  asm volatile("" : "+r"(count)); /* or the compiler leaves the mask out, by which older verifiers know the size */
  count &= 1023;
  bpf_probe_read_kernel(&last->place[joined], count * sizeof(struct place), places->place);
  last->mm = scratch->mm;
  last->sequence = scratch->sequence;
  last->simple_from = joined + scratch->simple_from;
  return true;
}

/* ---- The sample ---- */

#define COPY_REGISTERS(out, regs)                                                                \
  do {                                                                                           \
    (out)[CLEW_RAX] = (regs)->ax, (out)[CLEW_RDX] = (regs)->dx, (out)[CLEW_RCX] = (regs)->cx;    \
    (out)[CLEW_RBX] = (regs)->bx, (out)[CLEW_RSI] = (regs)->si, (out)[CLEW_RDI] = (regs)->di;    \
    (out)[CLEW_RBP] = (regs)->bp, (out)[CLEW_RSP] = (regs)->sp, (out)[CLEW_R8] = (regs)->r8;     \
    (out)[CLEW_R9] = (regs)->r9, (out)[CLEW_R10] = (regs)->r10, (out)[CLEW_R11] = (regs)->r11;   \
    (out)[CLEW_R12] = (regs)->r12, (out)[CLEW_R13] = (regs)->r13, (out)[CLEW_R14] = (regs)->r14; \
    (out)[CLEW_R15] = (regs)->r15, (out)[CLEW_RIP] = (regs)->ip;                                 \
  } while (0)

struct ship {
  uint8_t* to;
  uint64_t sp;
  uint32_t room;
  uint32_t copied;
};
static long copy_page(uint32_t index, void* argument) {
  struct ship* ship = argument;
  /* To the end of the page: a read that passes the end of the mapping fails whole. */
  const uint64_t from = ship->sp + ship->copied;
  uint32_t size = kPage - ((uint32_t)from & (kPage - 1));
  (void)index;
  if (ship->copied > CLEW_BPF_STACK - kPage || ship->copied >= ship->room) return 1;
  if (size > kPage) return 1;
  if (bpf_probe_read_user(ship->to + ship->copied, size, (const void*)from) != 0) return 1;
  ship->copied += size;
  return 0;
}

static __noinline long ship_sample(struct trace* trace) {
  struct clew_bpf_shipped* out = bpf_ringbuf_reserve(&ring, sizeof *out, 0);
  struct ship ship = {};
  if (!out) return -1;
  out->head = trace->head;
  __builtin_memcpy(out->kernel, trace->frames, sizeof out->kernel);
  ship.to = out->stack;
  ship.sp = trace->head.registers[CLEW_RSP];
  ship.room = stack_bytes;
  bpf_loop(CLEW_BPF_STACK / kPage, copy_page, &ship, 0);
  out->head.state = CLEW_BPF_SHIPPED;
  out->head.stack_asked = ship.room;
  out->head.stack_bytes = ship.copied < ship.room ? ship.copied : ship.room;
  bpf_ringbuf_submit(out, BPF_RB_NO_WAKEUP);
  return 0;
}

/* ---- The kernel's own stack ----
 *
 * As the kernel walks it. In code that it generated (BPF programs) it takes the frame pointer for the frame's
 * own at every instruction, so that the caller is left out where the frame is not set up yet or is taken down
 * already: before push %rbp, between it and mov %rsp, %rbp, and at the return behind leave. There the caller
 * is on top of the stack. */

/* Bytes of the instructions that a generated function may begin with before push %rbp: endbr64, nops, xor
 * %eax, %eax. */
static __always_inline uint32_t filler_at(const uint8_t* code) {
  if (code[0] == 0xf3 && code[1] == 0x0f && code[2] == 0x1e && code[3] == 0xfa) return 4;
  if (code[0] == 0x0f && code[1] == 0x1f && code[2] == 0x44) return 5;
  if (code[0] == 0x0f && code[1] == 0x1f && code[2] == 0x00) return 3;
  if ((code[0] == 0x66 && code[1] == 0x90) || (code[0] == 0x31 && code[1] == 0xc0)) return 2;
  return 0;
}

/* Where the caller of generated code is on the stack while the frame pointer is still, or again, its
 * caller's: how far above the stack pointer; -1: elsewhere. */
__noinline int clew_bpf_caller_at(uint64_t ip) {
  uint8_t code[24] = {};
  uint32_t at = 1, i;
  if (bpf_probe_read_kernel(code, sizeof code, (const void*)(ip - 1)) != 0) return -1;
  if (code[0] == 0x55 && code[1] == 0x48 && code[2] == 0x89 && code[3] == 0xe5) return 8;
  if (code[0] == 0xc9 && (code[1] == 0xc3 || code[1] == 0xe9))
    return 0; /* leave; ret, or jmp to what returns */
  for (i = 0; i < 4; i++) {
    const uint8_t* next;
    at &= 15;
    asm volatile("" : "+r"(at)); /* or the compiler makes the sum an or, which pointers do not have */
    next = code + at;
    if (next[0] == 0x55 && next[1] == 0x48 && next[2] == 0x89 && next[3] == 0xe5) return 0;
    const uint32_t filler = filler_at(next);
    if (!filler) return -1;
    at += filler;
    if (at > 15) return -1;
  }
  return -1;
}

/* The stack of kernel code that was interrupted with these registers. `skip` is how many frames bpf_get_stack
 * gives, in this context, before the caller of that code. */
static __always_inline uint32_t kernel_stack(void* context, uint64_t ip, uint64_t sp, uint32_t skip,
                                             struct trace* trace) {
  const uint64_t kLowestText = 0xffffffff80000000ull;
  const int caller_at = clew_bpf_caller_at(ip);
  uint64_t caller = 0;
  long bytes;
  trace->frames[0] = ip;
  if (caller_at >= 0 && bpf_probe_read_kernel(&caller, sizeof caller, (const void*)(sp + caller_at)) == 0 &&
      caller >= kLowestText) {
    bytes = bpf_get_stack(context, &trace->frames[2], (CLEW_BPF_KERNEL_FRAMES - 2) * 8, skip);
    if (bytes <= 0 || trace->frames[2] != caller) {
      trace->frames[1] = caller;
      return 2 + (bytes > 0 ? (uint32_t)bytes / 8 : 0);
    }
  }
  bytes = bpf_get_stack(context, &trace->frames[1], (CLEW_BPF_KERNEL_FRAMES - 1) * 8, skip);
  return 1 + (bytes > 0 ? (uint32_t)bytes / 8 : 0);
}

/* What every sample's head has; false: not one of ours. */
static __always_inline bool begin_sample(struct trace* trace, uint64_t time_ns, bool in_kernel) {
  const uint64_t id = bpf_get_current_pid_tgid();
  const uint32_t pid = (uint32_t)(id >> 32);
  if (pid == 0) return false; /* idle */
  if (!all_processes) {
    const uint8_t* target = bpf_map_lookup_elem(&targets, &pid);
    if (!target || *target != CLEW_BPF_SAMPLED) return false;
  }
  trace->head.time_ns = time_ns;
  trace->head.pid = pid;
  trace->head.tid = (uint32_t)id;
  trace->head.user_frames = 0;
  trace->head.stack_bytes = 0;
  trace->head.missing_pc = 0;
  trace->head.in_kernel = in_kernel;
  trace->head.blocked = 0;
  return true;
}

/* The registers that the task entered the kernel with. */
static __always_inline bool user_registers(struct scratch* scratch, struct task_struct* task) {
  struct bpf_user_pt_regs* user = &scratch->user;
  if (bpf_probe_read_kernel(user, sizeof *user, (const void*)bpf_task_pt_regs(task)) != 0) return false;
  COPY_REGISTERS(scratch->trace.head.registers, user);
  return true;
}

/* A sample that is its kernel frames alone. */
static __always_inline bool send_kernel(struct trace* trace) {
  uint64_t size = sizeof trace->head + (uint64_t)trace->head.kernel_frames * 8;
  trace->head.state = CLEW_BPF_NO_USER;
  if (size > sizeof *trace) size = sizeof *trace;
  return bpf_ringbuf_output(&ring, trace, size, BPF_RB_NO_WAKEUP) == 0;
}

/* The user's stack, from the registers in the head: walked here, else shipped. */
enum sent { kLost, kWalked, kShipped };
static __always_inline enum sent walk_and_send(struct scratch* scratch, const struct task_struct* task) {
  struct trace* trace = &scratch->trace;
  scratch->stack.filled = 0;
  keep_mappings(scratch, task);
  __builtin_memcpy(scratch->walk.state.value, trace->head.registers, sizeof trace->head.registers);
  scratch->walk.state.known = (1u << CLEW_REGISTERS) - 1;
  scratch->walk.full = false;
  clew_walk_run(&scratch->walk);
  if (scratch->walk.end == CLEW_END_ROOT) return send_walked(scratch) ? kWalked : kLost;
  return ship_sample(trace) == 0 ? kShipped : kLost;
}

SEC("perf_event")
int clew_sample(struct bpf_perf_event_data* event) {
  const uint64_t begin = bpf_ktime_get_ns();
  uint32_t zero = 0;
  struct scratch* scratch = bpf_map_lookup_elem(&scratches, &zero);
  struct clew_bpf_counts* own = bpf_map_lookup_elem(&counts, &zero);
  struct task_struct* task = bpf_get_current_task_btf();
  struct trace* trace;
  const bool in_kernel = (event->regs.cs & 3) == 0;
  if (!scratch || !own) return 0;
  trace = &scratch->trace;
  if (!begin_sample(trace, begin, in_kernel)) return 0;
  trace->head.kernel_frames = in_kernel ? kernel_stack(event, event->regs.ip, event->regs.sp, 1, trace) : 0;

  if (!task->mm) {
    if (!send_kernel(trace)) own->lost++;
    own->run_ns += bpf_ktime_get_ns() - begin;
    return 0;
  }
  if (in_kernel) {
    if (!user_registers(scratch, task)) {
      own->lost++;
      return 0;
    }
  } else {
    COPY_REGISTERS(trace->head.registers, &event->regs);
  }
  const enum sent sent = walk_and_send(scratch, task);
  own->walked += sent == kWalked;
  own->shipped += sent == kShipped;
  own->lost += sent == kLost;
  own->run_ns += bpf_ktime_get_ns() - begin;
  return 0;
}

/* ---- Samples that the kernel keeps from clew_sample ----
 *
 * A perf_event program is not run on a CPU while a classic tracepoint's or a kprobe's program is, nor in some
 * of bpf(2): the kernel counts these in bpf_prog_active. Programs of raw and BTF tracepoints it does run. So
 * where the timer of one of our events expires and that count is not 0, the sample is taken here; its user
 * stack is left to user space. The count and the registers of what was interrupted (__irq_regs) are variables
 * that each CPU has, as is the base that the timer points to: BTF tells how far they are apart. */

/* Bytes from hrtimer_bases. Set before loading, or the program is not loaded. */
const volatile int64_t active_offset = 0;
const volatile int64_t interrupted_offset = 0;

enum { kInterruptFrames = 16 };

SEC("tp_btf/hrtimer_expire_entry")
int clew_missed(uint64_t* arguments) {
  const struct hrtimer* timer = (const struct hrtimer*)arguments[0];
  const uint64_t bases = (uint64_t)BPF_CORE_READ(timer, base, cpu_base);
  const struct perf_event* event;
  const void* interrupted = 0;
  uint32_t zero = 0, skip = 0, active = 0, i;
  uint64_t begin;
  long bytes;
  bpf_probe_read_kernel(&active, sizeof active, (const void*)(bases + active_offset));
  if (active == 0) return 0;
  event = (const struct perf_event*)((uint64_t)timer - bpf_core_field_offset(struct perf_event, hw.hrtimer));
  if (BPF_CORE_READ(event, prog, aux, id) != sample_program) return 0;
  begin = bpf_ktime_get_ns();
  struct scratch* scratch = bpf_map_lookup_elem(&scratches, &zero);
  struct clew_bpf_counts* own = bpf_map_lookup_elem(&counts, &zero);
  struct task_struct* task = bpf_get_current_task_btf();
  struct trace* trace;
  if (!scratch || !own) return 0;
  trace = &scratch->trace;
  if (!begin_sample(trace, begin, true)) return 0;
  own->missed++;
  bpf_probe_read_kernel(&interrupted, sizeof interrupted, (const void*)(bases + interrupted_offset));
  if (bpf_probe_read_kernel(&scratch->user, sizeof scratch->user, interrupted) != 0) {
    own->lost++;
    return 0;
  }
  /* The interrupt's own frames come first. */
  bytes = bpf_get_stack(arguments, trace->frames, kInterruptFrames * 8, 0);
  for (i = 0; i < kInterruptFrames && (long)i * 8 < bytes; i++)
    if (trace->frames[i] == scratch->user.ip && skip == 0) skip = i + 1;
  trace->head.kernel_frames =
      skip ? kernel_stack(arguments, scratch->user.ip, scratch->user.sp, skip, trace) : 1;
  trace->frames[0] = scratch->user.ip;
  own->shipped++;
  if (!task->mm ? !send_kernel(trace) : !user_registers(scratch, task) || ship_sample(trace) != 0)
    own->lost++;
  own->run_ns += bpf_ktime_get_ns() - begin;
  return 0;
}

/* ---- Blocked threads ----
 *
 * A thread that blocks is sampled as it leaves its CPU: its stack stays as it is. How long it was for is
 * known when it is on a CPU again; a short record says so, where it was for long enough. Runs with interrupts
 * off, as the samples do, so that both can use one scratch. */

/* Set before loading. */
const volatile uint64_t least_blocked_ns = 0;

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, 65536);
  __uint(map_flags, BPF_F_NO_PREALLOC);
  __type(key, uint32_t);
  __type(value, uint64_t);
} blocked_since SEC(".maps"); /* by thread */

/* Loaded where blocked time is wanted. */
SEC("?tp_btf/sched_switch")
int clew_switch(uint64_t* arguments) {
  enum { kExiting = 4 }; /* PF_EXITING */
  const bool preempted = arguments[0] != 0;
  const struct task_struct* next = (const struct task_struct*)arguments[2];
  const uint32_t next_tid = (uint32_t)BPF_CORE_READ(next, pid), state = (uint32_t)arguments[3];
  const uint64_t begin = bpf_ktime_get_ns();
  uint32_t zero = 0, tid;
  struct scratch* scratch = bpf_map_lookup_elem(&scratches, &zero);
  struct clew_bpf_counts* own = bpf_map_lookup_elem(&counts, &zero);
  struct task_struct* task = bpf_get_current_task_btf();
  const uint64_t* since = bpf_map_lookup_elem(&blocked_since, &next_tid);
  long bytes;
  if (!scratch || !own) return 0;
  if (since) {
    struct clew_bpf_resumed resumed = {
        begin, (uint32_t)BPF_CORE_READ(next, tgid), next_tid, CLEW_BPF_RESUMED, 0, *since};
    bpf_map_delete_elem(&blocked_since, &next_tid);
    if (begin - resumed.since_ns >= least_blocked_ns &&
        bpf_ringbuf_output(&ring, &resumed, sizeof resumed, BPF_RB_NO_WAKEUP) != 0)
      own->lost++;
  }
  if (preempted || state == 0 || !task->mm || (task->flags & kExiting)) return 0;
  struct trace* trace = &scratch->trace;
  if (!begin_sample(trace, begin, true)) return 0;
  trace->head.blocked = 1;
  tid = trace->head.tid;
  bytes = bpf_get_stack(arguments, trace->frames, CLEW_BPF_KERNEL_FRAMES * 8, 0);
  trace->head.kernel_frames = bytes > 0 ? (uint32_t)bytes / 8 : 0;
  /* What is lost here is missed when the thread runs again, and counted then. */
  if (user_registers(scratch, task)) walk_and_send(scratch, task);
  if (bpf_map_update_elem(&blocked_since, &tid, &begin, BPF_ANY) != 0) own->lost++;
  own->run_ns += bpf_ktime_get_ns() - begin;
  return 0;
}

/* ---- Children of what is sampled ---- */

SEC("tp_btf/sched_process_fork")
int clew_fork(uint64_t* arguments) {
  const struct task_struct* parent = (const struct task_struct*)arguments[0];
  const struct task_struct* child = (const struct task_struct*)arguments[1];
  uint32_t from = (uint32_t)BPF_CORE_READ(parent, tgid), to = (uint32_t)BPF_CORE_READ(child, tgid);
  uint8_t state;
  const uint8_t* target;
  if (from == to) return 0;
  target = bpf_map_lookup_elem(&targets, &from);
  if (!target) return 0;
  state = *target;
  bpf_map_update_elem(&targets, &to, &state, BPF_ANY);
  return 0;
}

/* The last thread of a process ends: its number may be given to another. */
SEC("tp_btf/sched_process_exit")
int clew_exit(uint64_t* arguments) {
  const struct task_struct* task = (const struct task_struct*)arguments[0];
  uint32_t pid = (uint32_t)BPF_CORE_READ(task, tgid);
  if (BPF_CORE_READ(task, signal, live.counter) == 0) bpf_map_delete_elem(&targets, &pid);
  return 0;
}

SEC("tp_btf/sched_process_exec")
int clew_exec(uint64_t* arguments) {
  const struct task_struct* task = (const struct task_struct*)arguments[0];
  uint32_t pid = (uint32_t)BPF_CORE_READ(task, tgid);
  uint8_t* target = bpf_map_lookup_elem(&targets, &pid);
  if (target) *target = CLEW_BPF_SAMPLED;
  return 0;
}
