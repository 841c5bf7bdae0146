        .text
# The old stack pointer stays in r9, and the CFA with it.
        .globl  cfa_in_r9
        .type   cfa_in_r9, @function
cfa_in_r9:
        .cfi_startproc
        movq    %rsp, %r9
        .cfi_def_cfa_register r9
        pushq   %rbx
        .cfi_offset rbx, -16
        pushq   %rbp
        .cfi_offset rbp, -24
        subq    $256, %rsp
        andq    $-64, %rsp
        movq    %rdi, %rbx
        movq    $1, %rax
        movq    %rdi, %rbp
1:      imulq   $31, %rax, %rax
        addq    %rbp, %rax
        decq    %rbx
        jnz     1b
        movq    -8(%r9), %rbx
        .cfi_restore rbx
        movq    -16(%r9), %rbp
        .cfi_restore rbp
        leaq    (%r9), %rsp
        .cfi_def_cfa_register rsp
        ret
        .cfi_endproc
        .size   cfa_in_r9, .-cfa_in_r9

# The old stack pointer lies at rsp + 152; the CFA is *(rsp + 152) + 8, an expression.
        .globl  cfa_in_slot
        .type   cfa_in_slot, @function
cfa_in_slot:
        .cfi_startproc
        movq    %rsp, %rax
        .cfi_def_cfa_register rax
        pushq   %rbx
        .cfi_offset rbx, -16
        pushq   %r12
        .cfi_offset r12, -24
        subq    $256, %rsp
        andq    $-64, %rsp
        movq    %rax, 152(%rsp)
        # DW_CFA_def_cfa_expression, 6 bytes: DW_OP_breg7 152 (SLEB128, 2 bytes), DW_OP_deref, DW_OP_plus_uconst 8
        .cfi_escape 0x0f, 0x06, 0x77, 0x98, 0x01, 0x06, 0x23, 0x08
        movq    %rdi, %rbx
        call    *%rsi
1:      imulq   $31, %rax, %rax
        decq    %rbx
        jnz     1b
        movq    152(%rsp), %rsi
        .cfi_def_cfa rsi, 8
        movq    -16(%rsi), %r12
        .cfi_restore r12
        movq    -8(%rsi), %rbx
        .cfi_restore rbx
        leaq    (%rsi), %rsp
        .cfi_def_cfa_register rsp
        ret
        .cfi_endproc
        .size   cfa_in_slot, .-cfa_in_slot

# As above through rbp, which the function below may have moved: *(rbp - 16) + 8.
        .globl  cfa_in_rbp_slot
        .type   cfa_in_rbp_slot, @function
cfa_in_rbp_slot:
        .cfi_startproc
        movq    %rsp, %rax
        .cfi_def_cfa_register rax
        pushq   %rbp
        .cfi_offset rbp, -16
        pushq   %rbx
        .cfi_offset rbx, -24
        subq    $320, %rsp
        andq    $-64, %rsp
        leaq    128(%rsp), %rbp
        movq    %rax, -16(%rbp)
        # DW_OP_breg6 -16, DW_OP_deref, DW_OP_plus_uconst 8
        .cfi_escape 0x0f, 0x05, 0x76, 0x70, 0x06, 0x23, 0x08
        movq    %rdi, %rbx
        call    *%rsi
1:      imulq   $31, %rax, %rax
        decq    %rbx
        jnz     1b
        movq    -16(%rbp), %r11
        .cfi_def_cfa r11, 8
        movq    -16(%r11), %rbx
        .cfi_restore rbx
        movq    -8(%r11), %rbp
        .cfi_restore rbp
        movq    %r11, %rsp
        .cfi_def_cfa_register rsp
        ret
        .cfi_endproc
        .size   cfa_in_rbp_slot, .-cfa_in_rbp_slot
        .section .note.GNU-stack, "", @progbits
