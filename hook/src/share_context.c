/*
 * Devices and contexts in sharing mode. The driver frees a context's memory with it, so
 * the ledger gives it back.
 */
#include <stdio.h>
#include <string.h>

#include "share.h"

enum { DEVICES = 64, CREATED = 256 };

static int gpus[DEVICES]; /* index in the page of each device; set before the state is "on" */

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
	for (CUdevice d = 0; d < DEVICES; d++) {
		uint8_t uuid[16] = {0};

		gpus[d] = NOT_IN_SHARE;
		if (d >= n)
			continue;
		if (uuid_of)
			(void)uuid_of(uuid, d);
		for (unsigned i = 0; i < p->gpus && gpus[d] < 0; i++) {
			if (is_device(&p->gpu[i], i, d, uuid))
				gpus[d] = (int)i;
		}
	}
}

int dxpu_share_gpu(CUdevice d) { return d >= 0 && d < DEVICES ? gpus[d] : NOT_IN_SHARE; }

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
	pthread_mutex_lock(&dxpu_share_mu);
	r = end(arg);
	if (r == CUDA_SUCCESS && c) {
		dxpu_share_flights_forget_locked(c);
		forget_locked(c);
	}
	pthread_mutex_unlock(&dxpu_share_mu);
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
	pthread_mutex_lock(&dxpu_share_mu);
	r = driver(d);
	if (r != CUDA_SUCCESS || !state || state(d, &flags, &active) != CUDA_SUCCESS)
		active = 1;
	if (!active && primary[d])
		dxpu_share_flights_forget_locked(primary[d]);
	pthread_mutex_unlock(&dxpu_share_mu);
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

SHARE(cuDevicePrimaryCtxRetain, CUcontext *c, CUdevice d)
{
	CUresult r;

	if (!dxpu_share_is_on() || d < 0 || d >= DEVICES)
		return BEHIND(cuDevicePrimaryCtxRetain)(c, d);
	pthread_mutex_lock(&lock);
	r = BEHIND(cuDevicePrimaryCtxRetain)(c, d);
	if (r == CUDA_SUCCESS)
		primary[d] = *c;
	pthread_mutex_unlock(&lock);
	return r;
}

#define CREATE(symbol, params, args) \
	CUresult share_##symbol params; \
	CUresult share_##symbol params { return remember(c, BEHIND(symbol) args); }

CREATE(cuCtxCreate, (CUcontext *c, unsigned flags, CUdevice d), (c, flags, d))
CREATE(cuCtxCreate_v2, (CUcontext *c, unsigned flags, CUdevice d), (c, flags, d))
CREATE(cuCtxCreate_v3, (CUcontext *c, void *affinity, int n, unsigned flags, CUdevice d), (c, affinity, n, flags, d))
CREATE(cuCtxCreate_v4, (CUcontext *c, void *params, unsigned flags, CUdevice d), (c, params, flags, d))
