# Switches stacks: saves the callee-saved registers on the old one, takes the new one and pops them there.
# While it runs on either stack, the frame is the six pushes and the return address.
        .text
        .globl  coroutine_switch
        .type   coroutine_switch, @function
coroutine_switch:
        .cfi_startproc
        pushq   %rbp
        .cfi_adjust_cfa_offset 8
        .cfi_rel_offset rbp, 0
        pushq   %rbx
        .cfi_adjust_cfa_offset 8
        .cfi_rel_offset rbx, 0
        pushq   %r12
        .cfi_adjust_cfa_offset 8
        .cfi_rel_offset r12, 0
        pushq   %r13
        .cfi_adjust_cfa_offset 8
        .cfi_rel_offset r13, 0
        pushq   %r14
        .cfi_adjust_cfa_offset 8
        .cfi_rel_offset r14, 0
        pushq   %r15
        .cfi_adjust_cfa_offset 8
        .cfi_rel_offset r15, 0
        movq    %rsp, (%rdi)
        movq    %rsi, %rsp
        popq    %r15
        .cfi_adjust_cfa_offset -8
        .cfi_restore r15
        popq    %r14
        .cfi_adjust_cfa_offset -8
        .cfi_restore r14
        popq    %r13
        .cfi_adjust_cfa_offset -8
        .cfi_restore r13
        popq    %r12
        .cfi_adjust_cfa_offset -8
        .cfi_restore r12
        popq    %rbx
        .cfi_adjust_cfa_offset -8
        .cfi_restore rbx
        popq    %rbp
        .cfi_adjust_cfa_offset -8
        .cfi_restore rbp
        ret
        .cfi_endproc
        .size   coroutine_switch, .-coroutine_switch

# The first frame of a coroutine: nobody called it. Its return address is the byte after the nop, since an unwinder looks
# up the byte before a return address, which must be covered by the same FDE.
        .globl  coroutine_entry
        .type   coroutine_entry, @function
coroutine_entry:
        .cfi_startproc
        .cfi_undefined rip
        nop
        movl    %ebx, %edi
        call    coroutine_body
        ud2
        .cfi_endproc
        .size   coroutine_entry, .-coroutine_entry
        .section .note.GNU-stack, "", @progbits
