// The C interface (clew/unwind.h) over the local walk.
#include <ucontext.h>

#include <new>

#include "clew/unwind.h"
#include "unwind/local/modules.hpp"
#include "unwind/local/threads.hpp"
#include "unwind/local/walk.hpp"

namespace clew::unwind::local {
namespace {

__attribute__((constructor)) void start() { learn_permanent_modules(); }

static_assert(sizeof(Cursor) <= sizeof(clew_cursor) && alignof(Cursor) <= alignof(clew_cursor));

Cursor& cursor_of(clew_cursor* cursor) { return *std::launder(reinterpret_cast<Cursor*>(cursor)); }
const Cursor& cursor_of(const clew_cursor* cursor) {
  return *std::launder(reinterpret_cast<const Cursor*>(cursor));
}

clew_trace trace_of(const WalkResult& result) {
  return {result.frames, static_cast<uint32_t>(result.end), result.end_detail};
}

}  // namespace

Start start_of_ucontext(const void* ucontext) {
  const auto& saved = static_cast<const ucontext_t*>(ucontext)->uc_mcontext.gregs;
  constexpr int kOrder[CLEW_REGISTERS] = {REG_RAX, REG_RDX, REG_RCX, REG_RBX, REG_RSI, REG_RDI,
                                          REG_RBP, REG_RSP, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                          REG_R12, REG_R13, REG_R14, REG_R15, REG_RIP};
  Start start;
  for (size_t i = 0; i < CLEW_REGISTERS; ++i)
    start.registers.value[i] = static_cast<uint64_t>(saved[kOrder[i]]);
  start.registers.known = (1u << CLEW_REGISTERS) - 1;
  return start;
}

}  // namespace clew::unwind::local

using namespace clew::unwind;  // the functions below are C's

// Entries that need their caller's registers before a compiler uses them: the next argument register then
// points to r15, r14, r13, r12, rbx, rbp and the return address. The callee leaves all of them as they are.
#define CLEW_ENTRY(name, argument)                                                 \
  asm(".pushsection .text." #name                                                  \
      ", \"ax\", @progbits\n"                                                      \
      ".globl " #name "\n.type " #name ", @function\n.p2align 4\n" #name           \
      ":\n.cfi_startproc\nendbr64\n"                                               \
      "push %rbp\n.cfi_adjust_cfa_offset 8\npush %rbx\n.cfi_adjust_cfa_offset 8\n" \
      "push %r12\n.cfi_adjust_cfa_offset 8\npush %r13\n.cfi_adjust_cfa_offset 8\n" \
      "push %r14\n.cfi_adjust_cfa_offset 8\npush %r15\n.cfi_adjust_cfa_offset 8\n" \
      "mov %rsp, %" argument                                                       \
      "\nsub $8, %rsp\n.cfi_adjust_cfa_offset 8\n"                                 \
      "call " #name                                                                \
      "_from\nadd $56, %rsp\n.cfi_adjust_cfa_offset -56\nret\n"                    \
      ".cfi_endproc\n.size " #name ", . - " #name "\n.popsection\n")
#define CLEW_FROM __attribute__((visibility("hidden"), used))

CLEW_ENTRY(clew_backtrace, "rdx");
CLEW_ENTRY(clew_unwind_here, "rcx");  // rdi: where the result goes
CLEW_ENTRY(clew_cursor_here, "rsi");

extern "C" {

CLEW_FROM size_t clew_backtrace_from(uintptr_t* out, size_t count, const local::Saved* saved) {
  return local::walk_addresses(*saved, out, count).frames;
}

CLEW_FROM clew_trace clew_unwind_here_from(clew_frame* out, size_t count, const local::Saved* saved) {
  return local::trace_of(local::walk_frames(saved->start(), out, count));
}

CLEW_FROM void clew_cursor_here_from(clew_cursor* cursor, const local::Saved* saved) {
  new (cursor) local::Cursor(saved->start());
}

clew_trace clew_unwind_ucontext(const void* ucontext, clew_frame* out, size_t count) {
  return local::trace_of(local::walk_frames(local::start_of_ucontext(ucontext), out, count));
}

clew_trace clew_unwind_thread(int tid, int signal, unsigned milliseconds, clew_frame* out, size_t count) {
  return local::trace_of(local::walk_thread(tid, signal, milliseconds, out, count));
}

void clew_cursor_ucontext(clew_cursor* cursor, const void* ucontext) {
  new (cursor) local::Cursor(local::start_of_ucontext(ucontext));
}

bool clew_cursor_next(clew_cursor* cursor, clew_frame* out) { return local::cursor_of(cursor).next(*out); }

uint32_t clew_cursor_end(const clew_cursor* cursor) { return local::cursor_of(cursor).end(); }

bool clew_cursor_register(const clew_cursor* cursor, unsigned number, uint64_t* value) {
  const Registers& registers = local::cursor_of(cursor).registers();
  if (number >= CLEW_REGISTERS || (registers.known >> number & 1) == 0) return false;
  *value = registers.value[number];
  return true;
}

}  // extern "C"
