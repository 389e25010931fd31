/* Wrappers of the calls that launch: each passes the gate first. */
#include "share.h"

#define USAGE_EVERY 100000000u /* ns */

static atomic_ullong launches[SHARE_GPUS]; /* with an open gate, since the last report, of each GPU of the page */
static uint64_t told;			   /* ns */

void dxpu_share_usage_locked(void)
{
	uint64_t now = dxpu_now();

	if (now - told < USAGE_EVERY)
		return;
	for (uint32_t i = 0; i < dxpu_share_page->gpus; i++) {
		uint64_t n = atomic_load_explicit(&launches[i], memory_order_relaxed);
		struct share_message m = {.type = SHARE_USAGE, .gpu = i, .arg = {n}};

		if (n == 0 || !dxpu_share_tell_locked(&m))
			continue;
		atomic_fetch_sub(&launches[i], n);
		told = now;
	}
}

void dxpu_share_usage_forget(void)
{
	for (int i = 0; i < SHARE_GPUS; i++)
		atomic_store(&launches[i], 0);
}

/* Counts a launch with an open gate. Which GPU it is for takes calls of the driver, so only a share of several asks. */
static void count(CUstream s, int thread)
{
	int gpu = 0;

	if (dxpu_share_page->gpus > 1) {
		CUstream stream = dxpu_stream(s, thread);
		CUcontext was;

		if (!dxpu_not_captured(stream))
			return; /* it does not run */
		was = dxpu_share_enter(stream);
		gpu = dxpu_share_current();
		dxpu_share_leave(was);
	}
	if (gpu >= 0)
		atomic_fetch_add_explicit(&launches[gpu], 1, memory_order_relaxed);
}

/* A launch with an open gate; the inline part is all that it costs, for a share of one GPU. */
static inline CUresult begin(struct share_launch *l, CUstream s, int thread, CUfunction f, uint64_t blocks, uint64_t threads, uint64_t kernels)
{
	enum share_state state = atomic_load_explicit(&dxpu_share_state, memory_order_acquire);
	struct share_work w = {f, blocks, threads, kernels};

	l->gpu = NOT_IN_SHARE;
	if (dxpu_depth > 0 || state == SHARE_OVER)
		return CUDA_SUCCESS;
	if (state == SHARE_OFF)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (dxpu_share_is_open()) {
		count(s, thread);
		return CUDA_SUCCESS;
	}
	return dxpu_share_begin_slow(l, s, thread, &w);
}

static inline CUresult finish(struct share_launch *l, CUresult r)
{
	if (l->gpu >= 0)
		dxpu_share_follow(l, r);
	return r;
}

#define LAUNCH(symbol, stream, thread, f, blocks, threads, kernels, params, args) \
	CUresult share_##symbol params; \
	CUresult share_##symbol params \
	{ \
		struct share_launch l; \
		CUresult r = begin(&l, stream, thread, f, blocks, threads, kernels); \
\
		if (r != CUDA_SUCCESS) \
			return r; \
		return finish(&l, BEHIND(symbol) args); \
	}

#define GRID unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared
#define KERNEL_PARAMS (CUfunction f, GRID, CUstream s, void **params, void **extra)
#define KERNEL_ARGS (f, gx, gy, gz, bx, by, bz, shared, s, params, extra)
#define COOPERATIVE_PARAMS (CUfunction f, GRID, CUstream s, void **params)
#define COOPERATIVE_ARGS (f, gx, gy, gz, bx, by, bz, shared, s, params)
#define BLOCKS ((uint64_t)gx * gy * gz)
#define THREADS ((uint64_t)bx * by * bz)

LAUNCH(cuLaunchKernel, s, 0, f, BLOCKS, THREADS, 1, KERNEL_PARAMS, KERNEL_ARGS)
LAUNCH(cuLaunchKernel_ptsz, s, 1, f, BLOCKS, THREADS, 1, KERNEL_PARAMS, KERNEL_ARGS)
LAUNCH(cuLaunchCooperativeKernel, s, 0, f, BLOCKS, THREADS, 1, COOPERATIVE_PARAMS, COOPERATIVE_ARGS)
LAUNCH(cuLaunchCooperativeKernel_ptsz, s, 1, f, BLOCKS, THREADS, 1, COOPERATIVE_PARAMS, COOPERATIVE_ARGS)

#define EX_PARAMS (const CUlaunchConfig *c, CUfunction f, void **params, void **extra)
#define EX_BLOCKS (c ? (uint64_t)c->gridDimX * c->gridDimY * c->gridDimZ : 0)
#define EX_THREADS (c ? (uint64_t)c->blockDimX * c->blockDimY * c->blockDimZ : 0)

LAUNCH(cuLaunchKernelEx, c ? c->hStream : NULL, 0, f, EX_BLOCKS, EX_THREADS, 1, EX_PARAMS, (c, f, params, extra))
LAUNCH(cuLaunchKernelEx_ptsz, c ? c->hStream : NULL, 1, f, EX_BLOCKS, EX_THREADS, 1, EX_PARAMS, (c, f, params, extra))

/* Calls from before CUDA 4.0: the size of a block is set by another call. */
LAUNCH(cuLaunch, NULL, 0, f, 1, 0, 1, (CUfunction f), (f))
LAUNCH(cuLaunchGrid, NULL, 0, f, (uint64_t)(unsigned)x * (unsigned)y, 0, 1, (CUfunction f, int x, int y), (f, x, y))
LAUNCH(cuLaunchGridAsync, s, 0, f, (uint64_t)(unsigned)x * (unsigned)y, 0, 1, (CUfunction f, int x, int y, CUstream s), (f, x, y, s))

/* A graph is its kernels and memsets, which the library counts at its instantiation. */
LAUNCH(cuGraphLaunch, s, 0, NULL, 0, 0, dxpu_graph_nodes(e), (CUgraphExec e, CUstream s), (e, s))
LAUNCH(cuGraphLaunch_ptsz, s, 1, NULL, 0, 0, dxpu_graph_nodes(e), (CUgraphExec e, CUstream s), (e, s))

/*
 * One launch on several devices at once. It asks at the gate of each, in order, with
 * the context of the device's stream, and is done on each by that stream's event.
 */
enum { MULTI = 64 };

static CUresult set_stream_context(CUstream s)
{
	CUresult (*of)(CUstream, CUcontext *) = REAL(CUresult(*)(CUstream, CUcontext *), cuStreamGetCtx);
	CUresult (*set)(CUcontext) = REAL(CUresult(*)(CUcontext), cuCtxSetCurrent);
	CUcontext c;

	if (!of || !set || of(s, &c) != CUDA_SUCCESS)
		return CUDA_ERROR_INVALID_CONTEXT;
	return set(c);
}

static CUresult begin_all(struct share_launch *l, const CUDA_LAUNCH_PARAMS *p, unsigned n, unsigned *begun)
{
	CUresult r = CUDA_SUCCESS;

	for (*begun = 0; r == CUDA_SUCCESS && *begun < n; ++*begun) {
		const CUDA_LAUNCH_PARAMS *k = &p[*begun];

		r = set_stream_context(k->hStream);
		if (r == CUDA_SUCCESS)
			r = begin(&l[*begun], k->hStream, 0, k->function, (uint64_t)k->gridDimX * k->gridDimY * k->gridDimZ,
				  (uint64_t)k->blockDimX * k->blockDimY * k->blockDimZ, 1);
		if (r != CUDA_SUCCESS)
			break;
	}
	return r;
}

SHARE(cuLaunchCooperativeKernelMultiDevice, CUDA_LAUNCH_PARAMS *p, unsigned n, unsigned flags)
{
	struct share_launch l[MULTI];
	CUcontext was = dxpu_share_context();
	CUresult (*set)(CUcontext) = REAL(CUresult(*)(CUcontext), cuCtxSetCurrent);
	unsigned begun;
	CUresult r;

	if (!p || n == 0 || n > MULTI)
		return CUDA_ERROR_INVALID_VALUE;
	r = begin_all(l, p, n, &begun);
	(void)set(was);
	if (r == CUDA_SUCCESS)
		r = BEHIND(cuLaunchCooperativeKernelMultiDevice)(p, n, flags);
	for (unsigned i = 0; i < begun; i++)
		(void)finish(&l[i], r);
	return r;
}
