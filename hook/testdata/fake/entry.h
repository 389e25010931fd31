/*
 * The entries of the fake driver: every symbol of the list, as a weak symbol that a
 * definition in the C files overrides. There is no table.
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
