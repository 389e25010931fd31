/*
 * Devices and contexts in sharing mode. The driver frees a context's memory with it, so
 * the ledger gives it back.
 */
#include <stdio.h>
#include <string.h>

#include "share.h"

enum { DEVICES = 64, CREATED = 256 };

/* Index in the page of each device, and the number of devices; set before the state is "on". */
static int gpus[DEVICES];
static int ndevices;

/* Guards the contexts, and their end: no other thread waits for a context that ends. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CUcontext primary[DEVICES];
static CUcontext created[CREATED];
static unsigned ncreated; /* contexts beyond CREATED are not waited for at a graceful exit */

/* ---- devices ---- */

static bool zero_uuid(const struct share_gpu *g)
{
	static const uint8_t none[16];

	return memcmp(g->uuid, none, sizeof none) == 0;
}

static bool is_device(const struct share_gpu *g, unsigned index, CUdevice d, const uint8_t uuid[16])
{
	CUresult (*bus)(char *, int, CUdevice) = REAL(CUresult(*)(char *, int, CUdevice), cuDeviceGetPCIBusId);
	unsigned domain, number, slot, function;
	char text[32] = "";

	if (!zero_uuid(g))
		return memcmp(g->uuid, uuid, 16) == 0;
	if (!g->domain && !g->address)
		return (unsigned)d == index;
	return bus && bus(text, sizeof text, d) == CUDA_SUCCESS &&
	       sscanf(text, "%x:%x:%x.%x", &domain, &number, &slot, &function) == 4 &&
	       domain == g->domain && (number << 8 | slot << 3 | function) == g->address;
}

void dxpu_share_devices(void)
{
	CUresult (*count)(int *) = REAL(CUresult(*)(int *), cuDeviceGetCount);
	CUresult (*uuid_of)(uint8_t *, CUdevice) = REAL(CUresult(*)(uint8_t *, CUdevice), cuDeviceGetUuid_v2);
	const struct share_page *p = dxpu_share_page;
	int n = 0;

	if (!uuid_of)
		uuid_of = REAL(CUresult(*)(uint8_t *, CUdevice), cuDeviceGetUuid);
	if (!count || count(&n) != CUDA_SUCCESS)
		n = 0;
	ndevices = n < DEVICES ? n : DEVICES;
	for (CUdevice d = 0; d < DEVICES; d++) {
		uint8_t uuid[16] = {0};

		gpus[d] = NOT_IN_SHARE;
		if (d >= ndevices)
			continue;
		if (uuid_of)
			(void)uuid_of(uuid, d);
		for (unsigned i = 0; i < p->gpus && gpus[d] < 0; i++) {
			if (is_device(&p->gpu[i], i, d, uuid))
				gpus[d] = (int)i;
		}
	}
}

int dxpu_share_gpu(CUdevice d)
{
	int gpu = d >= 0 && d < DEVICES ? gpus[d] : NOT_IN_SHARE;

	return gpu >= 0 && dxpu_share_is_shut(gpu) ? NOT_IN_SHARE : gpu;
}

CUdevice dxpu_share_device(int gpu)
{
	CUdevice d = 0;

	while (d < ndevices - 1 && gpus[d] != gpu)
		d++;
	return d;
}

int dxpu_share_current(void)
{
	CUresult (*device)(CUdevice *) = REAL(CUresult(*)(CUdevice *), cuCtxGetDevice);
	CUdevice d;

	return device && device(&d) == CUDA_SUCCESS ? dxpu_share_gpu(d) : NO_CONTEXT;
}

CUcontext dxpu_share_context(void)
{
	CUresult (*current)(CUcontext *) = REAL(CUresult(*)(CUcontext *), cuCtxGetCurrent);
	CUcontext c = NULL;

	return current && current(&c) == CUDA_SUCCESS ? c : NULL;
}

CUcontext dxpu_share_enter(CUstream s)
{
	CUresult (*of)(CUstream, CUcontext *) = REAL(CUresult(*)(CUstream, CUcontext *), cuStreamGetCtx);
	CUresult (*set)(CUcontext) = REAL(CUresult(*)(CUcontext), cuCtxSetCurrent);
	CUcontext was = dxpu_share_context(), c = was;

	/* The driver does not name the context of a stream of a green one, which is current then. */
	if ((uintptr_t)s > (uintptr_t)CU_STREAM_PER_THREAD && of && set && of(s, &c) == CUDA_SUCCESS && c && c != was)
		(void)set(c);
	return was;
}

void dxpu_share_leave(CUcontext was)
{
	CUresult (*set)(CUcontext) = REAL(CUresult(*)(CUcontext), cuCtxSetCurrent);

	if (set && dxpu_share_context() != was)
		(void)set(was);
}

int dxpu_share_pool_gpu(void *pool)
{
	CUresult (*first)(void **, CUdevice) = REAL(CUresult(*)(void **, CUdevice), cuDeviceGetDefaultMemPool);
	CUresult (*present)(void **, CUdevice) = REAL(CUresult(*)(void **, CUdevice), cuDeviceGetMemPool);

	for (CUdevice d = 0; d < ndevices; d++) {
		void *p = NULL;

		if ((first && first(&p, d) == CUDA_SUCCESS && p == pool) || (present && present(&p, d) == CUDA_SUCCESS && p == pool))
			return dxpu_share_gpu(d);
	}
	return dxpu_share_current();
}

/* ---- contexts ---- */

static void forget_locked(CUcontext c)
{
	for (unsigned i = 0; i < ncreated; i++) {
		if (created[i] == c)
			created[i] = created[--ncreated];
	}
}

static CUresult remember(CUcontext *c, CUresult r)
{
	pthread_mutex_lock(&lock);
	if (r == CUDA_SUCCESS && c && ncreated < CREATED)
		created[ncreated++] = *c;
	pthread_mutex_unlock(&lock);
	return r;
}

void dxpu_share_contexts_forget(void)
{
	pthread_mutex_init(&lock, NULL);
	ncreated = 0;
	memset(primary, 0, sizeof primary);
}

void dxpu_share_synchronize(void)
{
	CUresult (*set)(CUcontext) = REAL(CUresult(*)(CUcontext), cuCtxSetCurrent);
	CUresult (*wait)(void) = REAL(CUresult(*)(void), cuCtxSynchronize);

	pthread_mutex_lock(&lock);
	for (unsigned i = 0; set && wait && i < ncreated + DEVICES; i++) {
		CUcontext c = i < ncreated ? created[i] : primary[i - ncreated];

		if (c && set(c) == CUDA_SUCCESS)
			(void)wait();
	}
	pthread_mutex_unlock(&lock);
}

static bool in_context(const struct owner *o, const void *c) { return o->context == c; }

/*
 * Ends a context by a call of the driver. The library's thread does not look at the
 * context's events meanwhile.
 */
static CUresult end_context(CUcontext c, CUresult (*end)(uintptr_t), uintptr_t arg)
{
	struct owner *list = NULL;
	CUresult r;

	pthread_mutex_lock(&lock);
	if (c)
		list = dxpu_share_detach(in_context, c);
	dxpu_share_lock();
	r = end(arg);
	if (r == CUDA_SUCCESS && c) {
		dxpu_share_flights_forget_locked(c);
		forget_locked(c);
	}
	dxpu_share_unlock();
	pthread_mutex_unlock(&lock);
	/* Without the lock: another thread may have the pools and wait for the agent. */
	dxpu_share_settle(list, r == CUDA_SUCCESS);
	return r;
}

#define DESTROY(symbol) \
	static CUresult end_##symbol(uintptr_t c) { return REAL(CUresult(*)(CUcontext), symbol)((CUcontext)c); } \
	SHARE(symbol, CUcontext c) \
	{ \
		if (!dxpu_share_is_on()) \
			return BEHIND(symbol)(c); \
		return end_context(c, end_##symbol, (uintptr_t)c); \
	}

DESTROY(cuCtxDestroy)
DESTROY(cuCtxDestroy_v2)
DESTROY(cuCtxDetach) /* the only use of the context ends, because cuCtxAttach fails */

SHARE(cuCtxAttach, CUcontext *c, unsigned flags)
{
	(void)flags;
	if (!dxpu_share_is_on())
		return BEHIND(cuCtxAttach)(c, flags);
	return CUDA_ERROR_NOT_SUPPORTED;
}

/*
 * The end of a green context ends its events. Memory that was allocated in it is the
 * device's, and stays until it is freed.
 */
SHARE(cuGreenCtxDestroy, void *green)
{
	CUresult (*context_of)(CUcontext *, void *) = REAL(CUresult(*)(CUcontext *, void *), cuCtxFromGreenCtx);
	struct owner *list;
	CUcontext c = NULL;
	CUresult r;

	if (!dxpu_share_is_on() || !context_of || context_of(&c, green) != CUDA_SUCCESS || !c)
		return BEHIND(cuGreenCtxDestroy)(green);
	list = dxpu_share_detach(in_context, c);
	dxpu_share_lock();
	r = BEHIND(cuGreenCtxDestroy)(green);
	if (r == CUDA_SUCCESS)
		dxpu_share_flights_forget_locked(c);
	dxpu_share_unlock();
	for (struct owner *o = list; r == CUDA_SUCCESS && o; o = o->next)
		o->context = NULL;
	dxpu_share_settle(list, false);
	return r;
}

#define RESET(symbol) \
	static CUresult end_##symbol(uintptr_t d) { return REAL(CUresult(*)(CUdevice), symbol)((CUdevice)d); } \
	SHARE(symbol, CUdevice d) \
	{ \
		if (!dxpu_share_is_on() || d < 0 || d >= DEVICES) \
			return BEHIND(symbol)(d); \
		return end_context(primary[d], end_##symbol, (uintptr_t)d); \
	}

RESET(cuDevicePrimaryCtxReset)
RESET(cuDevicePrimaryCtxReset_v2)

/* A primary context ends with its last release. */
static CUresult release(CUdevice d, CUresult (*driver)(CUdevice))
{
	CUresult (*state)(CUdevice, unsigned *, int *) = REAL(CUresult(*)(CUdevice, unsigned *, int *), cuDevicePrimaryCtxGetState);
	struct owner *list = NULL;
	unsigned flags;
	int active = 1;
	CUresult r;

	pthread_mutex_lock(&lock);
	dxpu_share_lock();
	r = driver(d);
	if (r != CUDA_SUCCESS || !state || state(d, &flags, &active) != CUDA_SUCCESS)
		active = 1;
	if (!active && primary[d])
		dxpu_share_flights_forget_locked(primary[d]);
	dxpu_share_unlock();
	if (!active && primary[d]) {
		list = dxpu_share_detach(in_context, primary[d]);
		primary[d] = NULL;
	}
	pthread_mutex_unlock(&lock);
	dxpu_share_settle(list, true);
	return r;
}

#define RELEASE(symbol) \
	SHARE(symbol, CUdevice d) \
	{ \
		if (!dxpu_share_is_on() || d < 0 || d >= DEVICES) \
			return BEHIND(symbol)(d); \
		return release(d, BEHIND(symbol)); \
	}

RELEASE(cuDevicePrimaryCtxRelease)
RELEASE(cuDevicePrimaryCtxRelease_v2)

/*
 * Without a context, nothing runs on a device: one that is not in the share gets none. The
 * agent hears of the others, so that it knows whose end a GPU needs that leaves the share.
 */
static bool forbidden(CUdevice d)
{
	int gpu;

	if (!dxpu_share_is_on() || d < 0 || d >= ndevices)
		return false;
	gpu = dxpu_share_gpu(d);
	if (gpu >= 0)
		dxpu_share_opens(gpu);
	return gpu < 0;
}

SHARE(cuDevicePrimaryCtxRetain, CUcontext *c, CUdevice d)
{
	CUresult r;

	if (!dxpu_share_is_on() || d < 0 || d >= ndevices)
		return BEHIND(cuDevicePrimaryCtxRetain)(c, d);
	if (forbidden(d))
		return CUDA_ERROR_NOT_PERMITTED;
	pthread_mutex_lock(&lock);
	r = BEHIND(cuDevicePrimaryCtxRetain)(c, d);
	if (r == CUDA_SUCCESS)
		primary[d] = *c;
	pthread_mutex_unlock(&lock);
	return r;
}

#define CREATE(symbol, params, args) \
	CUresult share_##symbol params; \
	CUresult share_##symbol params { return forbidden(d) ? CUDA_ERROR_NOT_PERMITTED : remember(c, BEHIND(symbol) args); }

CREATE(cuCtxCreate, (CUcontext *c, unsigned flags, CUdevice d), (c, flags, d))
CREATE(cuCtxCreate_v2, (CUcontext *c, unsigned flags, CUdevice d), (c, flags, d))
CREATE(cuCtxCreate_v3, (CUcontext *c, void *affinity, int n, unsigned flags, CUdevice d), (c, affinity, n, flags, d))
CREATE(cuCtxCreate_v4, (CUcontext *c, void *params, unsigned flags, CUdevice d), (c, params, flags, d))

SHARE(cuGreenCtxCreate, void **green, void *resources, CUdevice d, unsigned flags)
{
	return forbidden(d) ? CUDA_ERROR_NOT_PERMITTED : BEHIND(cuGreenCtxCreate)(green, resources, d, flags);
}
