// Where the sample's signal arrives: onto the agent's stack before anything else, so that the interrupted
// stack, which may be a coroutine's or a small alternate one, holds no more than the kernel put there.
#include "agent/agent.hpp"

__thread clew::agent::Thread* clew_agent_thread = nullptr;

// siginfo_t (asm-generic/siginfo.h): si_code at 8, si_value at 24, which the timer was given.
// SI_TIMER is -2. Thread::stack_top is at 0.
asm(R"(
  .pushsection .text.clew_agent_signal, "ax", @progbits
  .globl clew_agent_signal
  .hidden clew_agent_signal
  .type clew_agent_signal, @function
  .p2align 4
clew_agent_signal:
  .cfi_startproc
  endbr64
  movq clew_agent_thread@gottpoff(%rip), %rax
  movq %fs:(%rax), %rax
  testq %rax, %rax
  jz 1f
  cmpl $-2, 8(%rsi)
  jne 1f
  cmpq %rax, 24(%rsi)
  jne 1f
  pushq %rbp
  .cfi_adjust_cfa_offset 8
  .cfi_offset %rbp, -16
  movq %rsp, %rbp
  .cfi_def_cfa_register %rbp
  movq (%rax), %rsp
  movq %rax, %rdi
  call clew_agent_sample
  movq %rbp, %rsp
  popq %rbp
  .cfi_def_cfa %rsp, 8
  ret
1:
  .cfi_restore %rbp
  jmp clew_agent_forward
  .cfi_endproc
  .size clew_agent_signal, . - clew_agent_signal
  .popsection
)");
