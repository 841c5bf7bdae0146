# Functions as hand-written assembly has them. The CFI is what the analysis must find out without it.
# none_*: what nobody can vouch for; there the analysis must be silent from the label .Lsilent on (none_at_NAME).
	.text

	.macro begin name
	.globl	\name
	.type	\name, @function
	.p2align 4
\name:
	.cfi_startproc
	.endm
	.macro finish name
	.cfi_endproc
	.size	\name, .-\name
	.endm

	begin	leaf
	lea	(%rdi,%rsi), %rax
	ret
	finish	leaf

	begin	behind_return			# the jump's state holds behind the ret
	push	%rbx
	.cfi_adjust_cfa_offset 8
	sub	$0x128, %rsp
	.cfi_adjust_cfa_offset 0x128
	test	%rdi, %rdi
	je	1f
	add	$0x128, %rsp
	.cfi_remember_state
	.cfi_adjust_cfa_offset -0x128
	pop	%rbx
	.cfi_adjust_cfa_offset -8
	ret
1:	.cfi_restore_state
	lea	0x128(%rsp), %rsp
	.cfi_adjust_cfa_offset -0x128
	pop	%rbx
	.cfi_adjust_cfa_offset -8
	ret
	finish	behind_return

	begin	frame_pointer_with_alloca
	push	%rbp
	.cfi_def_cfa_offset 16
	.cfi_offset %rbp, -16
	mov	%rsp, %rbp
	.cfi_def_cfa_register %rbp
	push	%r12
	sub	%rdi, %rsp
	and	$-32, %rsp
	mov	%rsp, %rdi
	call	leaf
	lea	-8(%rbp), %rsp
	pop	%r12
	pop	%rbp
	.cfi_def_cfa %rsp, 8
	ret
	finish	frame_pointer_with_alloca

	begin	frame_by_enter
	enter	$32, $0
	.cfi_def_cfa %rbp, 16
	.cfi_offset %rbp, -16
	call	leaf
	leave
	.cfi_def_cfa %rsp, 8
	ret
	finish	frame_by_enter

	begin	saved_by_mov			# as gcc before 4.4: saves first, then the frame
	mov	%rbx, -16(%rsp)
	mov	%rbp, -8-8(%rsp)
	.cfi_offset %rbp, -24
	sub	$24, %rsp
	.cfi_def_cfa_offset 32
	xor	%ebp, %ebp
	call	leaf
	mov	8(%rsp), %rbp
	add	$24, %rsp
	.cfi_def_cfa_offset 8
	ret
	finish	saved_by_mov

	begin	rsp_kept_in_another_register
	lea	8(%rsp), %r11
	.cfi_def_cfa %r11, 0
	and	$-64, %rsp
	sub	$256, %rsp
	movaps	%xmm0, (%rsp)
	lea	-8(%r11), %rsp
	.cfi_def_cfa %rsp, 8
	ret
	finish	rsp_kept_in_another_register

	begin	probe_pages			# gcc -fstack-clash-protection
	lea	-0x8000(%rsp), %r11
	.cfi_def_cfa %r11, 0x8008
1:	sub	$0x1000, %rsp
	orq	$0, (%rsp)
	cmp	%r11, %rsp
	jne	1b
	.cfi_def_cfa %rsp, 0x8008
	call	leaf
	add	$0x8000, %rsp
	.cfi_def_cfa_offset 8
	ret
	finish	probe_pages

	begin	read_rip			# call next; pop: no call
	call	1f
1:	.cfi_def_cfa_offset 16
	pop	%rax
	.cfi_def_cfa_offset 8
	ret
	finish	read_rip

	begin	jump_over_lock			# glibc: the lock prefix only where there are threads
	push	%rax
	.cfi_def_cfa_offset 16
	cmpl	$0, %fs:0x18
	je	1f
	lock
1:	cmpxchg	%esi, (%rdi)
	pop	%rdx
	.cfi_def_cfa_offset 8
	ret
	finish	jump_over_lock

	begin	does_not_return			# the state behind the call is the branch's
	sub	$24, %rsp
	.cfi_def_cfa_offset 32
	test	%rdi, %rdi
	je	2f
	add	$24, %rsp
	.cfi_remember_state
	.cfi_def_cfa_offset 8
	test	%rsi, %rsi
	je	1f
	ret
2:	.cfi_restore_state
	push	$1
	.cfi_adjust_cfa_offset 8
	call	abort
1:	.cfi_def_cfa_offset 8
	mov	$1, %eax
	ret
	finish	does_not_return

	begin	pushed_twice			# the second push only aligns; it is popped into another register
	push	%rbp
	.cfi_def_cfa_offset 16
	.cfi_offset %rbp, -16
	push	%rbx
	.cfi_def_cfa_offset 24
	push	%rbp
	.cfi_def_cfa_offset 32
	xor	%ebp, %ebp
	call	leaf
	pop	%rcx
	.cfi_def_cfa_offset 24
	pop	%rbx
	.cfi_def_cfa_offset 16
	pop	%rbp
	.cfi_def_cfa_offset 8
	ret
	finish	pushed_twice

	begin	switch_on_table
	push	%rbx
	.cfi_def_cfa_offset 16
	cmp	$1, %edi
	ja	3f
	mov	%edi, %edi
	lea	.Ltable(%rip), %rdx
	movslq	(%rdx,%rdi,4), %rax
	add	%rdx, %rax
	jmp	*%rax
1:	mov	$1, %eax
	.cfi_remember_state
	pop	%rbx
	.cfi_def_cfa_offset 8
	ret
2:	.cfi_restore_state
	mov	$2, %eax
3:	.cfi_remember_state
	pop	%rbx
	.cfi_def_cfa_offset 8
	ret
	.cfi_restore_state
	finish	switch_on_table

	begin	tail_call
	push	%rbp
	.cfi_def_cfa_offset 16
	.cfi_offset %rbp, -16
	mov	%rdi, %rbp
	call	leaf
	mov	%rbp, %rdi
	pop	%rbp
	.cfi_def_cfa_offset 8
	jmp	leaf
	finish	tail_call

	.section .rodata
	.p2align 2
.Ltable:
	.long	1b-.Ltable, 2b-.Ltable
	.text

	.macro	silent name
	.globl	silent_\name
silent_\name:
	.endm

	.globl	none_aligned, none_switched, none_conflict, none_popped, none_rbp_lost, none_behind_call
none_aligned:					# rsp aligned, and nothing remembers it
	push	%rbx
	and	$-64, %rsp
	silent	aligned
	call	leaf
	hlt
none_switched:					# another stack
	mov	%rdi, %rsp
	silent	switched
	pop	%rbx
	ret
none_conflict:					# two depths meet
	test	%rdi, %rdi
	je	1f
	push	%rax
1:
	silent	conflict
	nop
	ret
none_popped:					# the return address is in a register only
	pop	%rcx
	silent	popped
	syscall
	jmp	*%rcx
none_rbp_lost:					# the caller's rbp is nowhere
	xor	%ebp, %ebp
	silent	rbp_lost
	call	leaf
	hlt
none_behind_call:				# the call does not return; who branches behind it is unknown
	test	%edi, %edi
	je	1f
	jmp	*%rdi
1:	sub	$24, %rsp
	call	abort
	nopw	0(%rax,%rax)
	silent	behind_call
2:	mov	$1, %eax
	ret
	test	%esi, %esi			# reached by a jump whose state nobody knows
	jne	2b
	ret
	.section .note.GNU-stack,"",@progbits
