/* Waits, queries and events, and the end of contexts. */
#include "wrap.h"

static CUresult finish_wait(struct record *r, CUresult result)
{
	COUNT(waits);
	if (result == CUDA_SUCCESS)
		dxpu_inject_wait();
	return dxpu_leave(r, result);
}

#define STREAM_CALL(symbol, kind, thread, finish, params, args, value) \
	CUresult hook_##symbol params; \
	CUresult hook_##symbol params \
	{ \
		struct record r; \
\
		if (!dxpu_enter(&r, kind, thread ? FLAG_THREAD : 0)) \
			return DRIVER(symbol) args; \
		r.stream = (uintptr_t)dxpu_stream(s, thread); \
		r.arg = value; \
		dxpu_begin(&r); \
		return finish(&r, DRIVER(symbol) args); \
	}

#define PLAIN_CALL(symbol, kind, finish, params, args, value) \
	CUresult hook_##symbol params; \
	CUresult hook_##symbol params \
	{ \
		struct record r; \
\
		if (!dxpu_enter(&r, kind, 0)) \
			return DRIVER(symbol) args; \
		r.arg = value; \
		dxpu_begin(&r); \
		return finish(&r, DRIVER(symbol) args); \
	}

STREAM_CALL(cuStreamSynchronize, KIND_STREAM_SYNC, 0, finish_wait, (CUstream s), (s), 0)
STREAM_CALL(cuStreamSynchronize_ptsz, KIND_STREAM_SYNC, 1, finish_wait, (CUstream s), (s), 0)
STREAM_CALL(cuStreamQuery, KIND_STREAM_QUERY, 0, dxpu_leave, (CUstream s), (s), 0)
STREAM_CALL(cuStreamQuery_ptsz, KIND_STREAM_QUERY, 1, dxpu_leave, (CUstream s), (s), 0)
STREAM_CALL(cuEventRecord, KIND_EVENT_RECORD, 0, dxpu_leave, (CUevent e, CUstream s), (e, s), (uintptr_t)e)
STREAM_CALL(cuEventRecord_ptsz, KIND_EVENT_RECORD, 1, dxpu_leave, (CUevent e, CUstream s), (e, s), (uintptr_t)e)
STREAM_CALL(cuEventRecordWithFlags, KIND_EVENT_RECORD, 0, dxpu_leave, (CUevent e, CUstream s, unsigned flags), (e, s, flags), (uintptr_t)e)
STREAM_CALL(cuEventRecordWithFlags_ptsz, KIND_EVENT_RECORD, 1, dxpu_leave, (CUevent e, CUstream s, unsigned flags), (e, s, flags), (uintptr_t)e)
STREAM_CALL(cuStreamWaitEvent, KIND_STREAM_WAIT_EVENT, 0, dxpu_leave, (CUstream s, CUevent e, unsigned flags), (s, e, flags), (uintptr_t)e)
STREAM_CALL(cuStreamWaitEvent_ptsz, KIND_STREAM_WAIT_EVENT, 1, dxpu_leave, (CUstream s, CUevent e, unsigned flags), (s, e, flags), (uintptr_t)e)

PLAIN_CALL(cuCtxSynchronize, KIND_CTX_SYNC, finish_wait, (void), (), 0)
PLAIN_CALL(cuCtxSynchronize_v2, KIND_CTX_SYNC, finish_wait, (CUcontext c), (c), (uintptr_t)c)
PLAIN_CALL(cuEventSynchronize, KIND_EVENT_SYNC, finish_wait, (CUevent e), (e), (uintptr_t)e)
PLAIN_CALL(cuEventQuery, KIND_EVENT_QUERY, dxpu_leave, (CUevent e), (e), (uintptr_t)e)

/* ---- end of contexts ---- */

#define DESTROY(symbol) \
	HOOK(symbol, CUcontext c) \
	{ \
		CUresult r = DRIVER(symbol)(c); \
\
		if (r == CUDA_SUCCESS && atomic_load(&dxpu_active)) \
			dxpu_context_forget(c); \
		return r; \
	}

DESTROY(cuCtxDestroy)
DESTROY(cuCtxDestroy_v2)

#define RESET(symbol) \
	HOOK(symbol, CUdevice d) \
	{ \
		CUresult r = DRIVER(symbol)(d); \
\
		if (r == CUDA_SUCCESS && atomic_load(&dxpu_active)) \
			dxpu_context_forget_device(d); \
		return r; \
	}

RESET(cuDevicePrimaryCtxReset)
RESET(cuDevicePrimaryCtxReset_v2)

/* A primary context ends with its last release. */
static void finish_release(CUdevice d)
{
	CUresult (*state)(CUdevice, unsigned *, int *) = REAL(CUresult(*)(CUdevice, unsigned *, int *), cuDevicePrimaryCtxGetState);
	unsigned flags;
	int active = 0;

	if (!state || state(d, &flags, &active) != CUDA_SUCCESS || !active)
		dxpu_context_forget_device(d);
}

#define RELEASE(symbol) \
	HOOK(symbol, CUdevice d) \
	{ \
		CUresult r = DRIVER(symbol)(d); \
\
		if (r == CUDA_SUCCESS && atomic_load(&dxpu_active)) \
			finish_release(d); \
		return r; \
	}

RELEASE(cuDevicePrimaryCtxRelease)
RELEASE(cuDevicePrimaryCtxRelease_v2)
