/*
 * The entries of the fake driver: every symbol of the list, weak, so that those
 * that fakecuda.c defines stand before them. The table is not needed.
 */
	.section .note.GNU-stack, "", @progbits
	.text

.macro ENTRY name, index
	.weak \name
	.type \name, @function
\name:
	endbr64
	movl $\index, %edi
	jmp fake_generic@PLT
	.size \name, . - \name
.endm

.macro TABLE_BEGIN
.endm
.macro SLOT index
.endm
.macro TABLE_END
.endm
