# No .cfi directives anywhere in this file: its functions have no FDE.
        .text
# A leaf without a frame: the return address is on top throughout.
        .globl  asm_leaf
        .type   asm_leaf, @function
asm_leaf:
        movq    $1, %rax
1:      imulq   $31, %rax, %rax
        addq    %rdi, %rax
        decq    %rdi
        jnz     1b
        ret
        .size   asm_leaf, .-asm_leaf
        .skip   16, 0xcc

# Pushes at entry and pops at the end, room on the stack between; a leaf too.
        .globl  asm_pushes
        .type   asm_pushes, @function
asm_pushes:
        pushq   %rbx
        pushq   %r12
        pushq   %rbp
        subq    $48, %rsp
        movq    %rdi, %rbx
        movq    $1, %rax
        movq    %rdi, %rbp
1:      movq    %rax, 8(%rsp)
        imulq   $31, %rax, %rax
        addq    8(%rsp), %rax
        decq    %rbx
        jnz     1b
        addq    $48, %rsp
        popq    %rbp
        popq    %r12
        popq    %rbx
        ret
        .size   asm_pushes, .-asm_pushes
        .skip   16, 0xcc

# A frame pointer, and a call from inside.
        .globl  asm_frame_pointer
        .type   asm_frame_pointer, @function
asm_frame_pointer:
        pushq   %rbp
        movq    %rsp, %rbp
        pushq   %rbx
        subq    $72, %rsp
        movq    %rdi, %rbx
        call    *%rsi
1:      imulq   $31, %rax, %rax
        decq    %rbx
        jnz     1b
        addq    $72, %rsp
        popq    %rbx
        popq    %rbp
        ret
        .size   asm_frame_pointer, .-asm_frame_pointer
        .skip   16, 0xcc

# No frame pointer, and a call from inside: only its own code says where its return address is.
        .globl  asm_calls
        .type   asm_calls, @function
asm_calls:
        pushq   %rbx
        subq    $32, %rsp
        movq    %rdi, %rbx
        call    *%rsi
1:      imulq   $31, %rax, %rax
        decq    %rbx
        jnz     1b
        addq    $32, %rsp
        popq    %rbx
        ret
        .size   asm_calls, .-asm_calls
        .section .note.GNU-stack, "", @progbits
