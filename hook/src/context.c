/*
 * The library's state in each context: its kernel, its scratch buffers and the cost
 * of insertions. The first insertion sets it up.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dxpu.h"
#include "ptx.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct context *all;     /* guarded by lock */
static struct context *retired; /* destroyed contexts, which other threads may still read */
static atomic_uint generation = 1;

#define CALL(symbol, params) REAL(CUresult(*) params, symbol)

static bool load_module(struct context *c)
{
	CUresult (*attribute)(int *, int, CUdevice) = CALL(cuDeviceGetAttribute, (int *, int, CUdevice));
	CUresult (*load)(CUmodule *, const void *) = CALL(cuModuleLoadData, (CUmodule *, const void *));
	char text[sizeof DXPU_PTX + 128];
	int major = 0;

	if (!attribute || !load || attribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, c->device) != CUDA_SUCCESS)
		return false;
	/* The newest drivers no longer translate PTX for the oldest GPUs. */
	snprintf(text, sizeof text, ".version %s\n.target %s\n.address_size 64\n%s",
		 major >= 8 ? "7.0" : "6.0", major >= 8 ? "sm_80" : major == 7 ? "sm_70" : "sm_50", DXPU_PTX);
	return load(&c->module, text) == CUDA_SUCCESS;
}

static bool make_scratch(struct context *c)
{
	CUresult (*alloc)(CUdeviceptr *, size_t) = CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t));
	CUresult (*host_alloc)(void **, size_t, unsigned) = CALL(cuMemHostAlloc, (void **, size_t, unsigned));

	if (!alloc || !host_alloc || alloc(&c->device_scratch, dxpu_config.scratch) != CUDA_SUCCESS)
		return false;
	return host_alloc(&c->host_scratch, dxpu_config.scratch, 0) == CUDA_SUCCESS;
}

static bool set_up(struct context *c)
{
	CUresult (*device)(CUdevice *) = CALL(cuCtxGetDevice, (CUdevice *));
	CUresult (*function)(CUfunction *, CUmodule, const char *) = CALL(cuModuleGetFunction, (CUfunction *, CUmodule, const char *));
	CUfunction probe;

	if (!device || !function || !dxpu_real[SYM_cuLaunchKernel] || device(&c->device) != CUDA_SUCCESS)
		return false;
	return load_module(c) && make_scratch(c) && function(&c->spin, c->module, "dxpu_spin_clock") == CUDA_SUCCESS &&
	       function(&probe, c->module, "dxpu_probe") == CUDA_SUCCESS && dxpu_calibrate(c, probe);
}

/*
 * The driver refuses allocations while any thread captures in the strictest mode,
 * unless the calling thread is in relaxed mode.
 */
static bool set_up_relaxed(struct context *c)
{
	CUresult (*exchange)(int *) = CALL(cuThreadExchangeStreamCaptureMode, (int *));
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	bool changed = exchange && exchange(&mode) == CUDA_SUCCESS, ok = set_up(c);

	if (changed)
		(void)exchange(&mode);
	return ok;
}

static struct context *find_locked(CUcontext handle)
{
	struct context *c = all;

	while (c && c->handle != handle)
		c = c->next;
	if (!c && (c = calloc(1, sizeof *c))) {
		c->handle = handle;
		c->next = all;
		all = c;
	}
	return c;
}

/*
 * Returns the context of a stream. Those of the default streams, and of all streams if
 * the driver does not tell, are the calling thread's. NULL: the thread has no context, so
 * the driver will refuse the program's call.
 */
static CUcontext context_of(CUstream s, CUcontext *thread)
{
	CUresult (*current)(CUcontext *) = CALL(cuCtxGetCurrent, (CUcontext *));
	CUresult (*of)(CUstream, CUcontext *) = CALL(cuStreamGetCtx, (CUstream, CUcontext *));
	CUcontext handle = NULL;

	*thread = NULL;
	if (!current || current(thread) != CUDA_SUCCESS || !*thread)
		return NULL;
	if (s == CU_STREAM_LEGACY || s == CU_STREAM_PER_THREAD || !of || of(s, &handle) != CUDA_SUCCESS || !handle)
		return *thread;
	return handle;
}

/* Returns the state of a context, which is current, and sets it up if necessary; NULL on failure. */
static struct context *state_of(CUcontext handle)
{
	static _Thread_local struct {
		CUcontext handle;
		unsigned generation;
		struct context *c;
	} last;
	struct context *c;

	if (last.handle == handle && last.generation == atomic_load_explicit(&generation, memory_order_acquire))
		return last.c;
	pthread_mutex_lock(&lock);
	c = find_locked(handle);
	if (c && c->state == CONTEXT_NEW && atomic_load(&dxpu_captures) == 0) {
		c->state = set_up_relaxed(c) ? CONTEXT_READY : CONTEXT_FAILED;
		if (c->state == CONTEXT_FAILED) {
			COUNT(failed);
			fprintf(stderr, "dxpu: device %d: cannot set up insertions; no latency is added in this context\n", c->device);
		}
	}
	if (c && c->state != CONTEXT_NEW) {
		last.handle = handle;
		last.generation = atomic_load(&generation);
		last.c = c = c->state == CONTEXT_READY ? c : NULL;
	} else {
		c = NULL;
	}
	pthread_mutex_unlock(&lock);
	return c;
}

struct context *dxpu_context_enter(CUstream s, CUcontext *thread)
{
	CUresult (*set)(CUcontext) = CALL(cuCtxSetCurrent, (CUcontext));
	CUcontext handle = context_of(s, thread);
	struct context *c;

	if (!handle)
		return NULL;
	if (handle == *thread) {
		*thread = NULL;
		return state_of(handle);
	}
	if (!set || set(handle) != CUDA_SUCCESS) {
		*thread = NULL;
		return NULL;
	}
	c = state_of(handle);
	if (!c)
		dxpu_context_exit(thread);
	return c;
}

void dxpu_context_exit(CUcontext *thread)
{
	if (*thread)
		(void)CALL(cuCtxSetCurrent, (CUcontext))(*thread);
	*thread = NULL;
}

/* The driver frees a context's memory and modules; this drops the record of them. */
static void forget(bool (*match)(const struct context *, uintptr_t), uintptr_t arg)
{
	pthread_mutex_lock(&lock);
	for (struct context **at = &all; *at;) {
		struct context *c = *at;

		if (!match(c, arg)) {
			at = &c->next;
			continue;
		}
		*at = c->next;
		c->next = retired;
		retired = c;
		atomic_fetch_add(&generation, 1);
	}
	pthread_mutex_unlock(&lock);
}

static bool has_handle(const struct context *c, uintptr_t arg) { return (uintptr_t)c->handle == arg; }

/*
 * Matches all contexts of a device, because the library does not know which of them
 * is the primary one. Setting up another one again is harmless.
 */
static bool has_device(const struct context *c, uintptr_t arg) { return c->device == (CUdevice)arg; }

void dxpu_context_forget(CUcontext handle) { forget(has_handle, (uintptr_t)handle); }
void dxpu_context_forget_device(CUdevice device) { forget(has_device, (uintptr_t)device); }

void dxpu_contexts_report(void (*each)(const struct context *, void *), void *arg)
{
	pthread_mutex_lock(&lock);
	for (const struct context *c = all; c; c = c->next)
		each(c, arg);
	pthread_mutex_unlock(&lock);
}
