# A function whose CFI leaves out a push: what it pushed is the return address of another call, so that an unwinder
# that believes the CFI finds a caller that is none. The control of clew-prove.
        .text
        .globl  honest
        .type   honest, @function
honest:
        .cfi_startproc
        subq    $8, %rsp
        .cfi_adjust_cfa_offset 8
        call    leaf
after:  addq    $8, %rsp
        .cfi_adjust_cfa_offset -8
        ret
        .cfi_endproc
        .size   honest, .-honest

        .globl  lies
        .type   lies, @function
lies:
        .cfi_startproc
        leaq    after(%rip), %rax
        pushq   %rax
        nop
        nop
        addq    $8, %rsp
        ret
        .cfi_endproc
        .size   lies, .-lies

        .type   leaf, @function
leaf:
        .cfi_startproc
        ret
        .cfi_endproc
        .size   leaf, .-leaf

        .globl  main
        .type   main, @function
main:
        .cfi_startproc
        subq    $8, %rsp
        .cfi_adjust_cfa_offset 8
        call    honest
        call    lies
        xorl    %eax, %eax
        addq    $8, %rsp
        .cfi_adjust_cfa_offset -8
        ret
        .cfi_endproc
        .size   main, .-main
        .section .note.GNU-stack, "", @progbits
