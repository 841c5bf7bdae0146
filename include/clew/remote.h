/* libclew for C: the stacks of other processes, of copied pieces of stack, of dumps: from registers and what
 * reads memory. See clew/remote.hpp for C++.
 *
 * A space says what code is mapped where in one process. Its modules (ELF files) are opened and their unwind
 * tables taken from the cache on disk, or compiled, when they are added; then any number of threads may
 * unwind in one space at once. Whoever changes a space (add, remove, set_process, free) must be alone with
 * it; spaces that share modules may be changed at the same time.
 *
 * Nothing is trusted: registers, memory, stacks, files may hold anything. Unwinding takes no lock and
 * allocates nothing; adding modules does both, and is not for signal handlers. Linux, x86-64. */
#ifndef CLEW_REMOTE_H
#define CLEW_REMOTE_H

#include "clew/unwind.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A thread's registers by DWARF number: 0 rax, 1 rdx, 2 rcx, 3 rbx, 4 rsi, 5 rdi, 6 rbp, 7 rsp, 8..15, 16
 * rip. */
struct clew_registers {
  uint64_t value[17];
  uint32_t known; /* bit r: value[r] holds. Without rip and rsp there is no frame. */
};

/* Reads the target's memory: up to `size` bytes at `address` go to `out`; returns how many from the start
 * could be read. Must not throw. */
typedef size_t (*clew_read_memory)(void* context, uint64_t address, void* out, size_t size);

struct clew_space;

/* A space without mappings; null where there is no memory. The modules that it and `sharing` (may be null)
 * both meet are opened and compiled once. They are kept, each file open, until the last space that shares
 * them is freed. */
CLEW_API struct clew_space* clew_space_new(const struct clew_space* sharing);
CLEW_API void clew_space_free(struct clew_space* space);

/* Makes the mappings those that the process has now, instead of any before; modules that are known cost one
 * stat each. A file that cannot be had leaves its code without a table; where descriptors run
 * out, the caller's soft limit of them is raised to the hard one. False, and the space as it was, where
 * the process's mappings cannot be read. */
CLEW_API bool clew_space_set_process(struct clew_space* space, int pid);

/* An executable mapping, as /proc/PID/maps and perf's mmap events show it. */
struct clew_mapping {
  uint64_t address, size; /* in the target's memory, bytes */
  uint64_t offset;        /* in the file, bytes */
  const char* path;       /* of the ELF file here; null: `bytes` */
  const void* bytes;      /* the contents of the ELF file, copied; null too: code that nothing describes */
  size_t bytes_size;
};

/* Adds a mapping, which replaces what it overlaps. False, and the space as it was, where the file cannot be
 * read or is no ELF file for x86-64, or the range is empty or too large. */
CLEW_API bool clew_space_add(struct clew_space* space, const struct clew_mapping* mapping);
/* Removes what is mapped in [address, address + size), as munmap does. */
CLEW_API void clew_space_remove(struct clew_space* space, uint64_t address, uint64_t size);
/* Why the last change failed, one line; "" where none has. Lives until the next change. */
CLEW_API const char* clew_space_error(const struct clew_space* space);

/* The frames of a thread that stays where it is: out[0 .. count), out[0] the registers' own, and where
 * `registers` is not null, in registers[i] those that are known in frame i: of a caller those that calls must
 * keep (rbx, rbp, rsp, r12 to r15) and rip. A frame's CFA is the `sp` of the next. `read` gets `context`. */
CLEW_API struct clew_trace clew_space_unwind(const struct clew_space* space,
                                             const struct clew_registers* start, clew_read_memory read,
                                             void* context, struct clew_frame* out, size_t count,
                                             struct clew_registers* registers);

/* A thread as a profiler has sampled it: its registers and a copy of the innermost part of its stack. */
struct clew_sample {
  struct clew_registers registers;
  const void* stack; /* a copy of [stack_address, stack_address + stack_size) */
  uint64_t stack_address;
  size_t stack_size;
};

/* Unwinds samples[0 .. count), in any order and of any threads of the process, at most `depth` frames each.
 * The frames of one after those of the other go to frames[0 .. capacity), how each went to traces[i]. Returns
 * how many samples were unwound: fewer than `count` where less than `depth` frames of room were left for the
 * next. A trace that would read behind its copy ends as CLEW_END_STACK_CUT, or CLEW_END_OTHER_STACK where
 * that is far from it. Code that no module holds is not looked at. Needs
 * 20 KiB of stack. */
CLEW_API size_t clew_space_unwind_batch(const struct clew_space* space, const struct clew_sample* samples,
                                        size_t count, size_t depth, struct clew_frame* frames,
                                        size_t capacity, struct clew_trace* traces);

#ifdef __cplusplus
}
#endif

#endif
