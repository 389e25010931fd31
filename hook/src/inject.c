/*
 * The delays of disaggregation (the paper's section 3.4). A kernel, a memset and a
 * small copy to the device wait one ΔRTT longer (❶), a copy to the host half of
 * that. A copy to the device that exceeds the bytes in flight runs at the rate of
 * Equation 1 (❷).
 *
 * An insertion cannot be shorter than its fixed cost. A shorter delay is added to
 * the debt of the stream, until one insertion pays the debt. So the delays are
 * right on average.
 */
#include <stdio.h>

#include "dxpu.h"

enum { OWED_KERNELS, OWED_HTOD, OWED_DTOH };

static atomic_llong *debt_of(struct context *c, int what, CUstream s)
{
	uintptr_t h = (uintptr_t)s;

	/* Handles are addresses. Two streams with the same slot share a debt. */
	return &c->debt[what][(h ^ h >> 4 ^ h >> 12) % DEBTS];
}

/* Adds ns to the debt. If the debt reaches least, clears and returns it; else 0. */
static double collect(atomic_llong *debt, double ns, double least)
{
	long long owed = atomic_fetch_add(debt, (long long)ns) + (long long)ns;

	if (owed <= 0 || (double)owed < least)
		return 0;
	owed = atomic_exchange(debt, 0);
	if (owed <= 0 || (double)owed < least) { /* another thread collected the debt */
		atomic_fetch_add(debt, owed);
		return 0;
	}
	return (double)owed;
}

static double pay_kernel(struct context *c, CUstream s, double ns)
{
	double owed = collect(debt_of(c, OWED_KERNELS, s), ns, c->kernel.fixed);

	if (owed <= 0)
		return 0;
	if (dxpu_spin(c, s, (uint64_t)((owed - c->kernel.fixed) / c->kernel.slope)) != CUDA_SUCCESS) {
		COUNT(failed);
		return 0;
	}
	COUNT(spins);
	return owed;
}

static CUresult copy(struct context *c, CUstream s, int what, size_t bytes)
{
	if (what == OWED_HTOD)
		return REAL(CUresult(*)(CUdeviceptr, const void *, size_t, CUstream), cuMemcpyHtoDAsync_v2)(c->device_scratch, c->host_scratch, bytes, s);
	return REAL(CUresult(*)(void *, CUdeviceptr, size_t, CUstream), cuMemcpyDtoHAsync_v2)(c->host_scratch, c->device_scratch, bytes, s);
}

static double pay_copies(struct context *c, CUstream s, int what, const struct cost *cost, double ns)
{
	atomic_llong *debt = debt_of(c, what, s);
	double owed = collect(debt, ns, cost->fixed + cost->slope), paid = 0;

	while (owed >= cost->fixed + cost->slope) {
		double bytes = (owed - cost->fixed) / cost->slope, took;
		size_t n = bytes < (double)dxpu_config.scratch ? (size_t)bytes : dxpu_config.scratch;

		if (copy(c, s, what, n) != CUDA_SUCCESS) {
			COUNT(failed);
			return paid;
		}
		COUNT(copies_inserted);
		COUNT_BY(bytes_inserted, n);
		took = cost->fixed + cost->slope * (double)n;
		owed -= took;
		paid += took;
	}
	if (owed >= 1)
		atomic_fetch_add(debt, (long long)owed);
	return paid;
}

/* Returns the context for a delay in a stream, NULL without a delay or if it is not ready. */
static struct context *enter(CUstream s, double ns, CUcontext *thread)
{
	struct context *c = ns > 0 ? dxpu_context_enter(s, thread) : NULL;

	if (ns > 0 && !c)
		COUNT(not_ready);
	return c;
}

double dxpu_inject_kernels(CUstream s, unsigned count)
{
	double ns = dxpu_delta() * count;
	CUcontext thread;
	struct context *c = enter(s, ns, &thread);

	if (!c)
		return 0;
	ns = pay_kernel(c, s, ns);
	dxpu_context_exit(&thread);
	return ns;
}

/* The delay of a copy of this size to the device, ns. */
static double htod_delay(const struct context *c, size_t bytes)
{
	double window = dxpu_config.tags * dxpu_config.mrrs, native, slow, more;

	if ((double)bytes <= window)
		return dxpu_delta();
	native = dxpu_config.native_rate > 0 ? 1 / dxpu_config.native_rate : c->htod.slope;
	slow = dxpu_config.rtt / window; /* ns per byte: Equation 1 */
	more = slow > native ? (slow - native) * (double)bytes : 0;
	return more > dxpu_delta() ? more : dxpu_delta();
}

double dxpu_inject_copy(CUstream s, enum direction d, size_t bytes)
{
	CUcontext thread;
	struct context *c;
	double ns;

	if ((d != COPY_HTOD && d != COPY_DTOH) || bytes == 0)
		return 0;
	c = enter(s, dxpu_delta(), &thread);
	if (!c)
		return 0;
	if (d == COPY_DTOH)
		ns = pay_copies(c, s, OWED_DTOH, &c->dtoh, dxpu_delta() / 2);
	else
		ns = pay_copies(c, s, OWED_HTOD, &c->htod, htod_delay(c, bytes));
	dxpu_context_exit(&thread);
	return ns;
}

/*
 * Delays the return of a blocking wait by ΔRTT: half for the completion, which the
 * device writes, and half for the next command. The paper's model does not include
 * it (section 3.5.1), so it is off unless DXPU_SYNCS is set.
 */
void dxpu_inject_wait(void)
{
	uint64_t until;

	if (!dxpu_config.syncs || dxpu_delta() <= 0)
		return;
	until = dxpu_now() + (uint64_t)dxpu_delta();
	while (dxpu_now() < until)
		;
}

bool dxpu_on_host(CUdeviceptr p)
{
	CUresult (*attribute)(void *, int, CUdeviceptr) = REAL(CUresult(*)(void *, int, CUdeviceptr), cuPointerGetAttribute);
	unsigned type = 0;

	/* The driver fails for host memory that is not registered with it. */
	return !attribute || attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p) != CUDA_SUCCESS || type == CU_MEMORYTYPE_HOST;
}

enum direction dxpu_direction(CUdeviceptr dst, CUdeviceptr src)
{
	bool host_from = dxpu_on_host(src), host_to = dxpu_on_host(dst);

	if (host_from && host_to)
		return COPY_OTHER;
	if (host_from)
		return COPY_HTOD;
	return host_to ? COPY_DTOH : COPY_DTOD;
}
