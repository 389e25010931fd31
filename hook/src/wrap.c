#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "wrap.h"

bool dxpu_not_captured(CUstream s)
{
	CUresult (*is_capturing)(CUstream, int *) = REAL(CUresult(*)(CUstream, int *), cuStreamIsCapturing);
	int status = CU_STREAM_CAPTURE_STATUS_NONE;

	/* CUDA before 10.0 has no capture. */
	if (!is_capturing)
		return true;
	return is_capturing(s, &status) == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_NONE;
}

bool dxpu_enter(struct record *r, enum kind kind, unsigned flags)
{
	if (!atomic_load_explicit(&dxpu_active, memory_order_acquire) || dxpu_depth > 0)
		return false;
	dxpu_depth++;
	*r = (struct record){.kind = (uint16_t)kind, .flags = (uint16_t)flags};
	return true;
}

bool dxpu_enter_stream(struct record *r, enum kind kind, CUstream s, int thread)
{
	if (!dxpu_enter(r, kind, thread ? FLAG_THREAD : 0))
		return false;
	s = dxpu_stream(s, thread);
	r->stream = (uintptr_t)s;
	/*
	 * Injection always asks the driver: a call that this library does not wrap
	 * may have begun a capture.
	 */
	if ((dxpu_config.inject || atomic_load_explicit(&dxpu_captures, memory_order_relaxed) > 0) && !dxpu_not_captured(s)) {
		r->flags |= FLAG_CAPTURED;
		COUNT(in_capture);
	}
	return true;
}

void dxpu_begin(struct record *r)
{
	if (dxpu_recording)
		r->start = dxpu_now();
}

static uint32_t thread_id(void)
{
	static _Thread_local uint32_t id;

	if (id == 0)
		id = (uint32_t)syscall(SYS_gettid);
	return id;
}

CUresult dxpu_leave(struct record *r, CUresult result)
{
	if (dxpu_recording) {
		CUcontext c = NULL;
		CUresult (*current)(CUcontext *) = REAL(CUresult(*)(CUcontext *), cuCtxGetCurrent);

		r->end = dxpu_now();
		r->thread = thread_id();
		r->result = result;
		if (current && current(&c) == CUDA_SUCCESS)
			r->context = (uintptr_t)c;
		dxpu_record(r);
	}
	dxpu_depth--;
	return result;
}

bool dxpu_expand(const char *pattern, char *to, size_t size)
{
	size_t n = 0;

	for (const char *p = pattern; *p; p++) {
		int k;

		if (p[0] == '%' && p[1] == 'p') {
			k = snprintf(to + n, size - n, "%d", (int)getpid());
			p++;
		} else {
			k = snprintf(to + n, size - n, "%c", *p);
		}
		if (k < 0 || (size_t)k >= size - n)
			return false;
		n += (size_t)k;
	}
	return n > 0;
}
