/*
 * An entry of the library is one jump through a table. Until the table is filled,
 * each slot holds a stub that calls dxpu_resolve and jumps to its result. The stub
 * preserves all argument registers, as the dynamic linker does in lazy binding
 * (System V ABI for x86-64, section 3.2.3).
 */
#ifndef __x86_64__
#error "the entries support x86-64 only"
#endif

	.section .note.GNU-stack, "", @progbits
	.text

.macro ENTRY name, index
	.globl \name
	.type \name, @function
	.p2align 4
\name:
	endbr64
	jmp *(dxpu_table + 8 * \index)(%rip)
	.size \name, . - \name
	.pushsection .text.lazy, "ax", @progbits
.Llazy\index:
	endbr64
	movl $\index, %r11d
	jmp dxpu_lazy
	.popsection
.endm

.macro SLOT index
	.quad .Llazy\index
.endm

.macro TABLE_BEGIN
	.section .data.rel.local, "aw", @progbits
	.globl dxpu_table
	.hidden dxpu_table
	.type dxpu_table, @object
	.p2align 6
dxpu_table:
.endm

.macro TABLE_END
	.size dxpu_table, . - dxpu_table
.endm

	.hidden dxpu_resolve
	.section .text.lazy, "ax", @progbits
	.type dxpu_lazy, @function
dxpu_lazy:
	.cfi_startproc
	pushq %rbp
	.cfi_def_cfa_offset 16
	.cfi_offset %rbp, -16
	movq %rsp, %rbp
	.cfi_def_cfa_register %rbp
	andq $-16, %rsp
	subq $192, %rsp
	movq %rdi, 0(%rsp)
	movq %rsi, 8(%rsp)
	movq %rdx, 16(%rsp)
	movq %rcx, 24(%rsp)
	movq %r8, 32(%rsp)
	movq %r9, 40(%rsp)
	movq %rax, 48(%rsp)
	movups %xmm0, 64(%rsp)
	movups %xmm1, 80(%rsp)
	movups %xmm2, 96(%rsp)
	movups %xmm3, 112(%rsp)
	movups %xmm4, 128(%rsp)
	movups %xmm5, 144(%rsp)
	movups %xmm6, 160(%rsp)
	movups %xmm7, 176(%rsp)
	movl %r11d, %edi
	call dxpu_resolve
	movq %rax, %r11
	movq 0(%rsp), %rdi
	movq 8(%rsp), %rsi
	movq 16(%rsp), %rdx
	movq 24(%rsp), %rcx
	movq 32(%rsp), %r8
	movq 40(%rsp), %r9
	movq 48(%rsp), %rax
	movups 64(%rsp), %xmm0
	movups 80(%rsp), %xmm1
	movups 96(%rsp), %xmm2
	movups 112(%rsp), %xmm3
	movups 128(%rsp), %xmm4
	movups 144(%rsp), %xmm5
	movups 160(%rsp), %xmm6
	movups 176(%rsp), %xmm7
	leave
	.cfi_def_cfa %rsp, 8
	jmp *%r11
	.cfi_endproc
	.size dxpu_lazy, . - dxpu_lazy

	.text
