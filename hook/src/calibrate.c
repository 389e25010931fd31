/*
 * Measures the cost of the library's own insertions. An inserted kernel or copy
 * takes time even if it does no work. That time is part of the injected latency, so
 * the library subtracts it.
 *
 * The measurement runs on a stream of the library's own, after a kernel that spins
 * until the host has queued everything. It takes the time of N operations without
 * insertions, with the shortest insertion and with a long one. The differences give
 * the fixed cost and the slope of an insertion.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dxpu.h"

#define CALL(symbol, params) REAL(CUresult(*) params, symbol)

enum { OPERATIONS = 32, REPEATS = 5 };

/* More than twice the time in which the host queues all operations and insertions at 10 us each. */
#define HEAD_START 2e6 /* ns */

/* Longest step of the global timer with which the spin uses it. */
#define TIMER_STEP 100 /* ns */

/* A measurement in one context. */
struct measurement {
	struct context *c;
	CUstream stream;
	CUevent from, to;
	double ns; /* nominal clock counts of the spin per ns */
};

typedef CUresult (*operation)(struct context *c, CUstream s, uint64_t arg);

CUresult dxpu_spin(struct context *c, CUstream s, uint64_t count)
{
	void *params[] = {&count};

	return CALL(cuLaunchKernel, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **))
		(c->spin, 1, 1, 1, 1, 1, 1, 0, s, params, NULL);
}

static CUresult copy_in(struct context *c, CUstream s, uint64_t bytes)
{
	return CALL(cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void *, size_t, CUstream))(c->device_scratch, c->host_scratch, bytes, s);
}

static CUresult copy_out(struct context *c, CUstream s, uint64_t bytes)
{
	return CALL(cuMemcpyDtoHAsync_v2, (void *, CUdeviceptr, size_t, CUstream))(c->host_scratch, c->device_scratch, bytes, s);
}

/* The time of one operation with the insertion before it, if any, ns; negative on error. */
static double time_one(const struct measurement *r, operation insert, uint64_t arg, operation op, uint64_t op_arg)
{
	CUresult (*record)(CUevent, CUstream) = CALL(cuEventRecord, (CUevent, CUstream));
	float ms = 0;

	if (dxpu_spin(r->c, r->stream, (uint64_t)(HEAD_START * r->ns)) != CUDA_SUCCESS || record(r->from, r->stream) != CUDA_SUCCESS)
		return -1;
	for (int i = 0; i < OPERATIONS; i++) {
		if ((insert && insert(r->c, r->stream, arg) != CUDA_SUCCESS) || op(r->c, r->stream, op_arg) != CUDA_SUCCESS)
			return -1;
	}
	if (record(r->to, r->stream) != CUDA_SUCCESS || CALL(cuEventSynchronize, (CUevent))(r->to) != CUDA_SUCCESS ||
	    CALL(cuEventElapsedTime, (float *, CUevent, CUevent))(&ms, r->from, r->to) != CUDA_SUCCESS)
		return -1;
	return (double)ms * 1e6 / OPERATIONS;
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double time_median(const struct measurement *r, operation insert, uint64_t arg, operation op, uint64_t op_arg)
{
	double t[REPEATS];

	for (int i = 0; i < REPEATS; i++) {
		t[i] = time_one(r, insert, arg, op, op_arg);
		if (t[i] < 0)
			return -1;
	}
	qsort(t, REPEATS, sizeof t[0], ascending);
	return t[REPEATS / 2];
}

static bool fit(const struct measurement *r, operation op, uint64_t low, uint64_t high, struct cost *to)
{
	double without = time_median(r, NULL, 0, op, low), with_low = time_median(r, op, low, op, low),
	       with_high = time_median(r, op, high, op, low), slope = (with_high - with_low) / (double)(high - low);

	if (without < 0 || with_low < 0 || with_high < 0 || !(slope > 0))
		return false;
	to->slope = slope;
	to->fixed = with_low - without - slope * (double)low;
	if (to->fixed < 0)
		to->fixed = 0;
	return true;
}

/* Chooses the clock of the spin, and sets its counts per ns. */
static bool choose_clock(struct measurement *r, CUfunction probe)
{
	struct context *c = r->c;
	void *params[] = {&c->device_scratch};
	uint64_t step = 0;
	int khz = 0;
	CUfunction timer;

	if (CALL(cuLaunchKernel, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **))
	    (probe, 1, 1, 1, 1, 1, 1, 0, r->stream, params, NULL) != CUDA_SUCCESS ||
	    copy_out(c, r->stream, sizeof step) != CUDA_SUCCESS ||
	    CALL(cuStreamSynchronize, (CUstream))(r->stream) != CUDA_SUCCESS)
		return false;
	memcpy(&step, c->host_scratch, sizeof step);
	if (step > 0 && step <= TIMER_STEP &&
	    CALL(cuModuleGetFunction, (CUfunction *, CUmodule, const char *))(&timer, c->module, "dxpu_spin_timer") == CUDA_SUCCESS) {
		c->spin = timer;
		c->clock = "globaltimer";
		r->ns = 1;
		return true;
	}
	c->clock = "clock64";
	if (CALL(cuDeviceGetAttribute, (int *, int, CUdevice))(&khz, CU_DEVICE_ATTRIBUTE_CLOCK_RATE, c->device) != CUDA_SUCCESS || khz <= 0)
		khz = 1500000;
	r->ns = khz * 1e-6;
	return true;
}

/* Sets the costs without measurement: no fixed cost, nominal rates. */
static void nominal(struct measurement *r)
{
	struct context *c = r->c;
	double rate = dxpu_config.native_rate > 0 ? dxpu_config.native_rate : dxpu_config.tags * dxpu_config.mrrs / dxpu_config.native;

	c->kernel = (struct cost){0, 1 / r->ns};
	c->htod = c->dtoh = (struct cost){0, 1 / rate};
}

static bool measure(const struct measurement *r)
{
	struct context *c = r->c;
	uint64_t large = dxpu_config.scratch < (1 << 20) ? dxpu_config.scratch : 1 << 20;

	return fit(r, dxpu_spin, 0, (uint64_t)(20000 * r->ns), &c->kernel) && fit(r, copy_in, 64, large, &c->htod) &&
	       fit(r, copy_out, 64, large, &c->dtoh);
}

static bool run(struct measurement *r, CUfunction probe)
{
	struct context *c = r->c;

	if (!choose_clock(r, probe))
		return false;
	nominal(r);
	if (dxpu_config.calibrate && !measure(r))
		return false;
	if (dxpu_config.kernel_cost >= 0)
		c->kernel.fixed = dxpu_config.kernel_cost;
	if (dxpu_config.copy_cost >= 0)
		c->htod.fixed = c->dtoh.fixed = dxpu_config.copy_cost;
	if (dxpu_config.verbose)
		fprintf(stderr, "dxpu: device %d, %s: a kernel costs %.0f ns, a copy in %.0f ns and %.2f GB/s, a copy out %.0f ns and %.2f GB/s\n",
			c->device, c->clock, c->kernel.fixed, c->htod.fixed, 1 / c->htod.slope, c->dtoh.fixed, 1 / c->dtoh.slope);
	return true;
}

bool dxpu_calibrate(struct context *c, CUfunction probe)
{
	struct measurement r = {.c = c};
	CUresult (*event)(CUevent *, unsigned) = CALL(cuEventCreate, (CUevent *, unsigned));
	bool ok = false;

	if (CALL(cuStreamCreate, (CUstream *, unsigned))(&r.stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
		return false;
	if (event(&r.from, 0) == CUDA_SUCCESS) {
		if (event(&r.to, 0) == CUDA_SUCCESS) {
			ok = run(&r, probe);
			(void)CALL(cuEventDestroy_v2, (CUevent))(r.to);
		}
		(void)CALL(cuEventDestroy_v2, (CUevent))(r.from);
	}
	(void)CALL(cuStreamDestroy_v2, (CUstream))(r.stream);
	return ok;
}
