/*
 * The kernels of the library as PTX, which the driver translates. The parameter of
 * the two spin kernels is the time to wait, in clocks of the multiprocessor or in
 * ns. The probe stores the smallest step of the global timer, which selects one.
 */
#ifndef DXPU_PTX_H
#define DXPU_PTX_H

#define DXPU_SPIN(name, clock) \
	".visible .entry " name "(.param .u64 dxpu_count)\n" \
	"{\n" \
	"  .reg .pred %p<2>;\n" \
	"  .reg .b64 %rd<5>;\n" \
	"  ld.param.u64 %rd1, [dxpu_count];\n" \
	"  setp.eq.u64 %p1, %rd1, 0;\n" \
	"  @%p1 bra DONE;\n" \
	"  mov.u64 %rd2, " clock ";\n" \
	"AGAIN:\n" \
	"  mov.u64 %rd3, " clock ";\n" \
	"  sub.u64 %rd4, %rd3, %rd2;\n" \
	"  setp.lt.u64 %p1, %rd4, %rd1;\n" \
	"  @%p1 bra AGAIN;\n" \
	"DONE:\n" \
	"  ret;\n" \
	"}\n"

#define DXPU_PTX \
	DXPU_SPIN("dxpu_spin_clock", "%clock64") \
	DXPU_SPIN("dxpu_spin_timer", "%globaltimer") \
	".visible .entry dxpu_probe(.param .u64 dxpu_to)\n" \
	"{\n" \
	"  .reg .pred %p<2>;\n" \
	"  .reg .b32 %r<2>;\n" \
	"  .reg .b64 %rd<6>;\n" \
	"  ld.param.u64 %rd1, [dxpu_to];\n" \
	"  cvta.to.global.u64 %rd1, %rd1;\n" \
	"  mov.u64 %rd2, 1000000000;\n" \
	"  mov.u32 %r1, 0;\n" \
	"  mov.u64 %rd3, %globaltimer;\n" \
	"AGAIN:\n" \
	"  mov.u64 %rd4, %globaltimer;\n" \
	"  setp.eq.u64 %p1, %rd4, %rd3;\n" \
	"  @%p1 bra AGAIN;\n" \
	"  sub.u64 %rd5, %rd4, %rd3;\n" \
	"  min.u64 %rd2, %rd2, %rd5;\n" \
	"  mov.u64 %rd3, %rd4;\n" \
	"  add.u32 %r1, %r1, 1;\n" \
	"  setp.lt.u32 %p1, %r1, 16;\n" \
	"  @%p1 bra AGAIN;\n" \
	"  st.global.u64 [%rd1], %rd2;\n" \
	"  ret;\n" \
	"}\n"

#endif
