/*
 * A gate of sharing mode is an entry that calls a function, which may wait, and then
 * jumps to the driver's function with all arguments in place. Copies, memsets and
 * waits need no more, so their wrappers need no prototypes.
 */
	.section .note.GNU-stack, "", @progbits
	.text

.macro GATE name, index, before
	.globl gate_\name
	.hidden gate_\name
	.hidden \before
	.hidden dxpu_real
	.type gate_\name, @function
	.p2align 4
gate_\name:
	.cfi_startproc
	endbr64
	pushq %rbp
	.cfi_def_cfa_offset 16
	.cfi_offset %rbp, -16
	movq %rsp, %rbp
	.cfi_def_cfa_register %rbp
	andq $-16, %rsp
	subq $64, %rsp
	movq %rdi, 0(%rsp)
	movq %rsi, 8(%rsp)
	movq %rdx, 16(%rsp)
	movq %rcx, 24(%rsp)
	movq %r8, 32(%rsp)
	movq %r9, 40(%rsp)
	call \before
	movq 0(%rsp), %rdi
	movq 8(%rsp), %rsi
	movq 16(%rsp), %rdx
	movq 24(%rsp), %rcx
	movq 32(%rsp), %r8
	movq 40(%rsp), %r9
	leave
	.cfi_def_cfa %rsp, 8
	jmp *(dxpu_real + 8 * \index)(%rip)
	.cfi_endproc
	.size gate_\name, . - gate_\name
.endm
