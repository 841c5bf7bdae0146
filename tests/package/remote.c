/* Another process through the installed library, in C: a child in a chain of three functions, unwound by a
 * reader of its memory and from a copy of its stack. */
#define _GNU_SOURCE
#include <clew/remote.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

/* What each function wrote down: where it returns to. */
static void* returns[3];
static int results[2];

__attribute__((noipa)) static void inner(void) {
  returns[0] = __builtin_return_address(0);
  if (write(results[1], returns, sizeof returns) != sizeof returns) _exit(1);
  raise(SIGSTOP);
  __asm__ volatile("");
}
__attribute__((noipa)) static void middle(void) {
  returns[1] = __builtin_return_address(0);
  inner();
  __asm__ volatile("");
}
__attribute__((noipa)) static void outer(void) {
  returns[2] = __builtin_return_address(0);
  middle();
  __asm__ volatile("");
}

static size_t read_child(void* context, uint64_t address, void* out, size_t size) {
  const struct iovec local = {out, size}, remote = {(void*)address, size};
  const ssize_t got = process_vm_readv(*(pid_t*)context, &local, 1, &remote, 1, 0);
  return got < 0 ? 0 : (size_t)got;
}

/* Whether the chain is there, one after the other, and the trace whole. */
static int is_right(const struct clew_frame* frames, struct clew_trace trace) {
  if (trace.end != CLEW_END_ROOT) return 0;
  for (size_t i = 0; i + 3 <= trace.frames; ++i)
    if (frames[i].pc == (uintptr_t)returns[0])
      return frames[i + 1].pc == (uintptr_t)returns[1] && frames[i + 2].pc == (uintptr_t)returns[2];
  return 0;
}

int main(void) {
  if (pipe(results) != 0) return 2;
  pid_t pid = fork();
  if (pid == 0) {
    ptrace(PTRACE_TRACEME, 0, 0, 0);
    outer();
    _exit(0);
  }
  struct user_regs_struct r;
  if (waitpid(pid, 0, 0) != pid || ptrace(PTRACE_GETREGS, pid, 0, &r) != 0) return 2;
  if (read(results[0], returns, sizeof returns) != sizeof returns) return 2;
  const struct clew_registers registers = {{r.rax, r.rdx, r.rcx, r.rbx, r.rsi, r.rdi, r.rbp, r.rsp, r.r8,
                                            r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15, r.rip},
                                           (1u << 17) - 1};
  struct clew_space* space = clew_space_new(NULL);
  if (!clew_space_set_process(space, pid)) {
    fprintf(stderr, "%s\n", clew_space_error(space));
    return 1;
  }
  struct clew_frame frames[64];
  struct clew_trace trace = clew_space_unwind(space, &registers, read_child, &pid, frames, 64, NULL);
  const int by_reader = is_right(frames, trace);

  static char stack[1 << 16];
  size_t size = 0;
  while (size < sizeof stack && read_child(&pid, r.rsp + size, stack + size, 8) == 8) size += 8;
  const struct clew_sample sample = {registers, stack, r.rsp, size};
  memset(frames, 0, sizeof frames);
  const int by_copy =
      clew_space_unwind_batch(space, &sample, 1, 64, frames, 64, &trace) == 1 && is_right(frames, trace);
  clew_space_free(space);
  kill(pid, SIGKILL);
  printf("another process by a reader: %s; by a copy of its stack: %s\n", by_reader ? "right" : "wrong",
         by_copy ? "right" : "wrong");
  return by_reader && by_copy ? 0 : 1;
}
