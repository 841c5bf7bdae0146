/* libclew for C: the stacks of this process, from anywhere, a signal handler too. See clew/unwind.hpp for
 * C++.
 *
 * Unless a function says otherwise it is async-signal-safe and reentrant: it takes no lock, allocates nothing
 * and leaves errno alone; and it may be called from any number of threads at once. Addresses, registers and
 * stack contents are not trusted: memory is read where it is known to be readable, else the trace ends and
 * says so.
 *
 * A walk needs 5 KiB of stack besides its results (7 KiB where it is the first to call a function that is
 * bound lazily; a cursor's step 4 KiB), beside what the kernel puts there: an alternate signal stack of
 * SIGSTKSZ, 8 KiB, does for all but a process's first walk without tables (10 KiB); one of MINSIGSTKSZ, which
 * the kernel fills with the registers, does not.
 *
 * Linux, x86-64. Modules are found by glibc's _dl_find_object (2.35), without a lock; with an older libc by
 * the dynamic linker's list, which is read with copies that may fail, some microseconds for what is met
 * first. */
#ifndef CLEW_UNWIND_H
#define CLEW_UNWIND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "clew/frame.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CLEW_API __attribute__((visibility("default")))

/* How a walk went. */
struct clew_trace {
  size_t frames; /* written */
  uint32_t
      end; /* enum clew_end: CLEW_END_ROOT is a complete trace, CLEW_END_DEPTH_LIMIT one with more frames */
  uint64_t detail; /* the address that could not be read, or that nothing covers */
};

/* Writes the calling thread's code addresses to out[0 .. count), innermost first, and returns how many.
 * out[0] lies in the function that called clew_backtrace; all are return addresses, so the call is before
 * them. */
CLEW_API size_t clew_backtrace(uintptr_t* out, size_t count);

/* Likewise whole frames, with stack pointers, how each was found, and how the walk ended. */
CLEW_API struct clew_trace clew_unwind_here(struct clew_frame* out, size_t count);

/* The frames of an interrupted thread: `ucontext` is the third argument of a signal handler (SA_SIGINFO), of
 * this thread or of another that stays where it is. out[0] is the interrupted instruction itself. */
CLEW_API struct clew_trace clew_unwind_ucontext(const void* ucontext, struct clew_frame* out, size_t count);

/* The frames of another thread of this process: it is sent `signal` (which the process must not use
 * otherwise; its handler is replaced meanwhile) and unwinds itself. Gives up after `milliseconds`: then
 * frames is 0 and end CLEW_END_NO_USER_STACK, as where there is no such thread. One caller at a time; others
 * wait. Not async-signal-safe. */
CLEW_API struct clew_trace clew_unwind_thread(int tid, int signal, unsigned milliseconds,
                                              struct clew_frame* out, size_t count);

/* A walk of one frame at a time, with registers, for debuggers and crash reporters. */
struct clew_cursor {
  uint64_t opaque[64];
};
CLEW_API void clew_cursor_ucontext(struct clew_cursor* cursor, const void* ucontext);
/* Starts with the caller's frame, which must not return while the cursor is used. */
CLEW_API void clew_cursor_here(struct clew_cursor* cursor);
/* Writes the next frame; false where there is none: clew_cursor_end tells why. */
CLEW_API bool clew_cursor_next(struct clew_cursor* cursor, struct clew_frame* out);
CLEW_API uint32_t clew_cursor_end(const struct clew_cursor* cursor);
/* The value that a register (DWARF number: 0 rax, 1 rdx, 2 rcx, 3 rbx, 4 rsi, 5 rdi, 6 rbp, 7 rsp, 8..15, 16
 * rip) has in the frame that was written last; false where it is not known: of a caller only those that calls
 * must keep (rbx, rbp, rsp, r12 to r15) and rip are. */
CLEW_API bool clew_cursor_register(const struct clew_cursor* cursor, unsigned number, uint64_t* value);

/* Loads the compact tables of the modules that are mapped now, from the cache on disk or by compiling them;
 * returns how many. Without them walks are right wherever .eh_frame is; with them also in code that has
 * none and in libgcc's last steps of a throw, and faster where an address is met for the first time.
 * Allocates, opens files and takes locks: not in a signal handler. Call it again after dlopen. Where another
 * thread unloads modules meanwhile, some are left for the next call. */
CLEW_API size_t clew_load_tables(void);

#ifdef __cplusplus
}
#endif

#endif
