# What compilers do not write: each function with CFI that is right at every instruction, the last with none.
        .text
        .macro  function name
        .globl  \name
        .type   \name, @function
\name:
        .cfi_startproc
        .endm
        .macro  end name
        .cfi_endproc
        .size   \name, .-\name
        .endm

# enter and leave.
        function hand_enter
        enter   $32, $0
        .cfi_def_cfa rbp, 16
        .cfi_offset rbp, -16
        movq    %rdi, -8(%rbp)
        call    hand_called_back
        addq    -8(%rbp), %rax
        leave
        .cfi_def_cfa rsp, 8
        .cfi_restore rbp
        ret
        end hand_enter

# Goes on at an address that it pushed.
        function hand_pushed_return
        leaq    1f(%rip), %rax
        pushq   %rax
        .cfi_adjust_cfa_offset 8
        ret
        .cfi_adjust_cfa_offset -8
1:      leaq    3(%rdi), %rax
        ret
        end hand_pushed_return

# Calls the next instruction to learn where it is.
        function hand_asks_where
        call    1f
        .cfi_adjust_cfa_offset 8
1:      popq    %rax
        .cfi_adjust_cfa_offset -8
        subq    %rdi, %rax
        ret
        end hand_asks_where

# Several exits, with remembered states. (clang 19's assembler forgets the offset that it restores.)
        function hand_states
        pushq   %rbx
        .cfi_adjust_cfa_offset 8
        .cfi_rel_offset rbx, 0
        subq    $16, %rsp
        .cfi_adjust_cfa_offset 16
        movq    %rdi, %rbx
        testq   %rdi, %rdi
        jne     1f
        .cfi_remember_state
        addq    $16, %rsp
        .cfi_def_cfa_offset 16
        popq    %rbx
        .cfi_def_cfa_offset 8
        .cfi_restore rbx
        xorl    %eax, %eax
        ret
        .cfi_restore_state
1:      call    hand_called_back
        addq    %rbx, %rax
        .cfi_remember_state
        addq    $16, %rsp
        .cfi_def_cfa_offset 16
        popq    %rbx
        .cfi_def_cfa_offset 8
        .cfi_restore rbx
        ret
        .cfi_restore_state
        end hand_states

# Keeps its return address in rdx and then in rbx.
        function hand_return_in_register
        movq    %rbx, %rcx
        .cfi_register rbx, rcx
        popq    %rdx
        .cfi_def_cfa_offset 0
        .cfi_register rip, rdx
        leaq    5(%rdi), %rax
        movq    %rdx, %rbx
        .cfi_register rip, rbx
        addq    %rdi, %rax
        pushq   %rbx
        .cfi_def_cfa_offset 8
        .cfi_offset rip, -8
        movq    %rcx, %rbx
        .cfi_restore rbx
        ret
        end hand_return_in_register

# Works on another stack and keeps the old stack pointer in rbx.
        function hand_stack_in_register
        pushq   %rbx
        .cfi_adjust_cfa_offset 8
        .cfi_rel_offset rbx, 0
        movq    %rsp, %rbx
        .cfi_def_cfa_register rbx
        movq    %rsi, %rsp
        call    hand_called_back
        movq    %rbx, %rsp
        .cfi_def_cfa_register rsp
        popq    %rbx
        .cfi_adjust_cfa_offset -8
        .cfi_restore rbx
        ret
        end hand_stack_in_register

# rbp is the CFA less 16 while the function runs: DW_CFA_val_offset. Its own caller's rbp is in the frame.
        function hand_val_offset
        pushq   %rbp
        .cfi_adjust_cfa_offset 8
        .cfi_rel_offset rbp, 0
        movq    %rsp, %rbp
        call    hand_of_val_offset
        popq    %rbp
        .cfi_adjust_cfa_offset -8
        .cfi_restore rbp
        ret
        end hand_val_offset
# Called with rbp equal to rsp + 8; overwrites it, and says how it is computed.
        function hand_of_val_offset
        # DW_CFA_val_offset rbp, 0
        .cfi_escape 0x14, 0x06, 0x00
        xorl    %ebp, %ebp
        leaq    1(%rdi), %rax
        pushq   %rdi
        .cfi_adjust_cfa_offset 8
        popq    %rdi
        .cfi_adjust_cfa_offset -8
        leaq    8(%rsp), %rbp
        ret
        end hand_of_val_offset

# The return address lies where an expression says: it is moved into the middle of the frame.
        function hand_value_expression
        popq    %rdx
        .cfi_def_cfa_offset 0
        .cfi_register rip, rdx
        subq    $64, %rsp
        .cfi_def_cfa_offset 64
        movq    %rdx, 24(%rsp)
        # DW_CFA_expression rip: DW_OP_breg7 24
        .cfi_escape 0x10, 0x10, 0x02, 0x77, 0x18
        xorl    %edx, %edx
        leaq    9(%rdi), %rax
        movq    24(%rsp), %rdx
        .cfi_register rip, rdx
        addq    $64, %rsp
        .cfi_def_cfa_offset 0
        pushq   %rdx
        .cfi_def_cfa_offset 8
        .cfi_offset rip, -8
        ret
        end hand_value_expression

        .globl  hand_no_tables
        .type   hand_no_tables, @function
hand_no_tables:
        pushq   %rbp
        pushq   %rbx
        subq    $40, %rsp
        movq    %rdi, %rbx
        testq   %rdi, %rdi
        je      1f
        call    *%rsi
        addq    %rbx, %rax
        addq    $40, %rsp
        popq    %rbx
        popq    %rbp
        ret
1:      movl    $7, %eax
        addq    $40, %rsp
        popq    %rbx
        popq    %rbp
        ret
        .size   hand_no_tables, .-hand_no_tables
        .section .note.GNU-stack, "", @progbits
