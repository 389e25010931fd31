/* Kernels and memsets. Each is a command that the GPU fetches from the host. */
#include "wrap.h"

static void inject_one(struct record *r)
{
	if (may_insert(r))
		r->injected = (uint64_t)dxpu_inject_kernels(record_stream(r), 1);
	dxpu_begin(r);
}

static bool enter_launch(struct record *r, CUstream s, int thread, CUfunction f, unsigned x, unsigned y, unsigned z)
{
	unsigned long long blocks = (unsigned long long)x * y * z;

	if (!dxpu_enter_stream(r, KIND_LAUNCH, s, thread))
		return false;
	r->arg = (uintptr_t)f;
	r->count = blocks > UINT32_MAX ? UINT32_MAX : (uint32_t)blocks;
	COUNT(kernels);
	inject_one(r);
	return true;
}

#define LAUNCH(symbol, thread, params, args) \
	CUresult hook_##symbol params; \
	CUresult hook_##symbol params \
	{ \
		struct record r; \
\
		if (!enter_launch(&r, s, thread, f, gx, gy, gz)) \
			return DRIVER(symbol) args; \
		return dxpu_leave(&r, DRIVER(symbol) args); \
	}

#define GRID unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared
#define KERNEL_PARAMS (CUfunction f, GRID, CUstream s, void **params, void **extra)
#define COOPERATIVE_PARAMS (CUfunction f, GRID, CUstream s, void **params)

LAUNCH(cuLaunchKernel, 0, KERNEL_PARAMS, (f, gx, gy, gz, bx, by, bz, shared, s, params, extra))
LAUNCH(cuLaunchKernel_ptsz, 1, KERNEL_PARAMS, (f, gx, gy, gz, bx, by, bz, shared, s, params, extra))
LAUNCH(cuLaunchCooperativeKernel, 0, COOPERATIVE_PARAMS, (f, gx, gy, gz, bx, by, bz, shared, s, params))
LAUNCH(cuLaunchCooperativeKernel_ptsz, 1, COOPERATIVE_PARAMS, (f, gx, gy, gz, bx, by, bz, shared, s, params))

/*
 * Counts kernels that may start before the previous one ends. An insertion between
 * the two prevents this overlap.
 */
static void count_serialized(struct record *r, const CUlaunchConfig *c)
{
	for (unsigned i = 0; c->attrs && i < c->numAttrs; i++) {
		if (c->attrs[i].id != CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
			continue;
		r->flags |= FLAG_SERIALIZED;
		if (r->injected > 0)
			COUNT(serialized);
		return;
	}
}

#define LAUNCH_EX(symbol, thread) \
	HOOK(symbol, const CUlaunchConfig *c, CUfunction f, void **params, void **extra) \
	{ \
		struct record r; \
\
		if (!c || !enter_launch(&r, c->hStream, thread, f, c->gridDimX, c->gridDimY, c->gridDimZ)) \
			return DRIVER(symbol)(c, f, params, extra); \
		count_serialized(&r, c); \
		return dxpu_leave(&r, DRIVER(symbol)(c, f, params, extra)); \
	}

LAUNCH_EX(cuLaunchKernelEx, 0)
LAUNCH_EX(cuLaunchKernelEx_ptsz, 1)

/* Launches on several devices, each of which fetches a command of its own. */
HOOK(cuLaunchCooperativeKernelMultiDevice, CUDA_LAUNCH_PARAMS *p, unsigned n, unsigned flags)
{
	struct record r;

	if (!p || n == 0 || !enter_launch(&r, p[0].hStream, 0, p[0].function, p[0].gridDimX, p[0].gridDimY, p[0].gridDimZ))
		return DRIVER(cuLaunchCooperativeKernelMultiDevice)(p, n, flags);
	for (unsigned i = 1; i < n; i++) {
		CUstream s = dxpu_stream(p[i].hStream, 0);

		COUNT(kernels);
		if (dxpu_config.inject && dxpu_not_captured(s))
			r.injected += (uint64_t)dxpu_inject_kernels(s, 1);
	}
	dxpu_begin(&r);
	return dxpu_leave(&r, DRIVER(cuLaunchCooperativeKernelMultiDevice)(p, n, flags));
}

/* Calls from before CUDA 4.0, which launch on the default stream. */
HOOK(cuLaunch, CUfunction f)
{
	struct record r;

	if (!enter_launch(&r, NULL, 0, f, 1, 1, 1))
		return DRIVER(cuLaunch)(f);
	return dxpu_leave(&r, DRIVER(cuLaunch)(f));
}

HOOK(cuLaunchGrid, CUfunction f, int x, int y)
{
	struct record r;

	if (!enter_launch(&r, NULL, 0, f, (unsigned)x, (unsigned)y, 1))
		return DRIVER(cuLaunchGrid)(f, x, y);
	return dxpu_leave(&r, DRIVER(cuLaunchGrid)(f, x, y));
}

HOOK(cuLaunchGridAsync, CUfunction f, int x, int y, CUstream s)
{
	struct record r;

	if (!enter_launch(&r, s, 0, f, (unsigned)x, (unsigned)y, 1))
		return DRIVER(cuLaunchGridAsync)(f, x, y, s);
	return dxpu_leave(&r, DRIVER(cuLaunchGridAsync)(f, x, y, s));
}

/* ---- memsets ---- */

static bool enter_memset(struct record *r, CUstream s, int thread, bool async, size_t bytes)
{
	if (!dxpu_enter_stream(r, KIND_MEMSET, s, thread))
		return false;
	if (!async)
		r->flags |= FLAG_BLOCKING;
	r->arg = bytes;
	r->count = 1;
	COUNT(memsets);
	inject_one(r);
	return true;
}

#define MEMSET_ONE(symbol, stream, thread, async, bytes, params, args) \
	CUresult hook_##symbol params; \
	CUresult hook_##symbol params \
	{ \
		struct record r; \
\
		if (!enter_memset(&r, stream, thread, async, bytes)) \
			return DRIVER(symbol) args; \
		return dxpu_leave(&r, DRIVER(symbol) args); \
	}

#define MEMSET(name, type, size) \
	MEMSET_ONE(name##_v2, NULL, 0, false, n * size, (CUdeviceptr p, type v, size_t n), (p, v, n)) \
	MEMSET_ONE(name##_v2_ptds, NULL, 1, false, n * size, (CUdeviceptr p, type v, size_t n), (p, v, n)) \
	MEMSET_ONE(name##Async, s, 0, true, n * size, (CUdeviceptr p, type v, size_t n, CUstream s), (p, v, n, s)) \
	MEMSET_ONE(name##Async_ptsz, s, 1, true, n * size, (CUdeviceptr p, type v, size_t n, CUstream s), (p, v, n, s))

#define MEMSET_2D(name, type, size) \
	MEMSET_ONE(name##_v2, NULL, 0, false, w * h * size, (CUdeviceptr p, size_t pitch, type v, size_t w, size_t h), (p, pitch, v, w, h)) \
	MEMSET_ONE(name##_v2_ptds, NULL, 1, false, w * h * size, (CUdeviceptr p, size_t pitch, type v, size_t w, size_t h), (p, pitch, v, w, h)) \
	MEMSET_ONE(name##Async, s, 0, true, w * h * size, (CUdeviceptr p, size_t pitch, type v, size_t w, size_t h, CUstream s), (p, pitch, v, w, h, s)) \
	MEMSET_ONE(name##Async_ptsz, s, 1, true, w * h * size, (CUdeviceptr p, size_t pitch, type v, size_t w, size_t h, CUstream s), (p, pitch, v, w, h, s))

MEMSET(cuMemsetD8, unsigned char, 1)
MEMSET(cuMemsetD16, unsigned short, 2)
MEMSET(cuMemsetD32, unsigned, 4)
MEMSET_2D(cuMemsetD2D8, unsigned char, 1)
MEMSET_2D(cuMemsetD2D16, unsigned short, 2)
MEMSET_2D(cuMemsetD2D32, unsigned, 4)
