/*
 * Pools of the stream-ordered allocator. A pool keeps memory that the program freed, so
 * it is charged for the larger of the bytes in use and what the driver has reserved for
 * it. An allocation from what a pool keeps needs no grant.
 */
#include "share.h"
#include "wrap.h"

enum { POOLS = 1024 };

/* Guards the pools, so that none ends while another thread looks at it. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pool {
	void *handle;
	int gpu; /* UNCOUNTED: memory of the host */
	uint64_t used, charged;
} pools[POOLS];
static unsigned npools;

static struct pool *find_locked(void *handle)
{
	for (unsigned i = 0; i < npools; i++) {
		if (pools[i].handle == handle)
			return &pools[i];
	}
	return NULL;
}

static struct pool *add_locked(void *handle, int gpu)
{
	struct pool *p = find_locked(handle);

	if (!p && npools < POOLS)
		p = &pools[npools++];
	if (p)
		*p = (struct pool){.handle = handle, .gpu = gpu};
	return p;
}

static uint64_t reserved(const struct pool *p)
{
	CUresult (*get)(void *, int, void *) = REAL(CUresult(*)(void *, int, void *), cuMemPoolGetAttribute);
	uint64_t n = 0;

	return get && get(p->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &n) == CUDA_SUCCESS ? n : 0;
}

static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* Gives back what the pool needs no more. */
static void settle_locked(struct pool *p)
{
	uint64_t need = p->gpu == UNCOUNTED ? 0 : larger(p->used, reserved(p));

	if (need < p->charged) {
		dxpu_share_give(p->gpu, p->charged - need);
		p->charged = need;
	}
}

/* Does nothing while another thread has the pools: it may wait for this one's answer. */
void dxpu_share_pools_settle(void)
{
	if (pthread_mutex_trylock(&lock) != 0)
		return;
	for (unsigned i = 0; i < npools; i++)
		settle_locked(&pools[i]);
	pthread_mutex_unlock(&lock);
}

static void trim_locked(int gpu)
{
	CUresult (*trim)(void *, size_t) = REAL(CUresult(*)(void *, size_t), cuMemPoolTrimTo);

	for (unsigned i = 0; trim && i < npools; i++) {
		if (pools[i].gpu == gpu && pools[i].charged > pools[i].used && atomic_load(&dxpu_captures) == 0)
			(void)trim(pools[i].handle, 0);
		settle_locked(&pools[i]);
	}
}

void dxpu_share_pools_trim(int gpu)
{
	pthread_mutex_lock(&lock);
	trim_locked(gpu);
	pthread_mutex_unlock(&lock);
}

/* ---- allocations ---- */

/* Charges the pool up to a size, after making room if necessary. */
static CUresult charge_locked(struct pool *p, uint64_t size)
{
	uint64_t more = size > p->charged ? size - p->charged : 0;
	CUresult r = p->gpu == UNCOUNTED ? CUDA_SUCCESS : dxpu_share_take(p->gpu, more);

	if (r != CUDA_SUCCESS && p->gpu >= 0) {
		trim_locked(p->gpu);
		more = size > p->charged ? size - p->charged : 0;
		r = dxpu_share_take(p->gpu, more);
	}
	if (r == CUDA_SUCCESS && p->gpu != UNCOUNTED)
		p->charged += more;
	return r;
}

/* Frees at once what does not fit, which needs the stream's end. */
static void undo(const struct pool *p, CUdeviceptr at, CUstream s)
{
	CUresult (*trim)(void *, size_t) = REAL(CUresult(*)(void *, size_t), cuMemPoolTrimTo);

	if (REAL(CUresult(*)(CUdeviceptr, CUstream), cuMemFreeAsync)(at, s) != CUDA_SUCCESS)
		return;
	(void)REAL(CUresult(*)(CUstream), cuStreamSynchronize)(s);
	if (trim)
		(void)trim(p->handle, 0);
}

/*
 * Allocates by a call of the driver. The driver reserves more than it is asked for; if
 * the share has no room for that, the memory is freed again, in the order of the stream.
 */
static CUresult allocate_locked(struct pool *p, CUdeviceptr *out, size_t n, CUstream s, CUresult (*driver)(void *), void *call)
{
	struct owner o = {.kind = OWNED_POINTER, .context = dxpu_share_context(), .gpu = p->gpu, .bytes = n, .other = (uintptr_t)p->handle};
	CUresult r = n <= SHARE_MOST ? charge_locked(p, p->used + n) : CUDA_ERROR_OUT_OF_MEMORY;

	if (r != CUDA_SUCCESS)
		return r;
	r = driver(call);
	if (r == CUDA_SUCCESS && p->gpu != UNCOUNTED && charge_locked(p, reserved(p)) != CUDA_SUCCESS) {
		undo(p, *out, s);
		r = CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (r == CUDA_SUCCESS) {
		p->used += n;
		o.key = (uintptr_t)*out;
		dxpu_share_add(&o);
	}
	settle_locked(p);
	return r;
}

/* The pool of the stream's device from which cuMemAllocAsync takes memory. */
static void *current_pool(void)
{
	CUresult (*device)(CUdevice *) = REAL(CUresult(*)(CUdevice *), cuCtxGetDevice);
	CUresult (*pool)(void **, CUdevice) = REAL(CUresult(*)(void **, CUdevice), cuDeviceGetMemPool);
	void *p = NULL;
	CUdevice d;

	return device && pool && device(&d) == CUDA_SUCCESS && pool(&p, d) == CUDA_SUCCESS ? p : NULL;
}

/* A call of the driver with its arguments. */
struct call_of {
	void *function;
	CUdeviceptr *out;
	size_t n;
	void *pool;
	CUstream s;
};

static CUresult call_plain(void *arg)
{
	struct call_of *c = arg;

	return ((CUresult(*)(CUdeviceptr *, size_t, CUstream))c->function)(c->out, c->n, c->s);
}

static CUresult call_from_pool(void *arg)
{
	struct call_of *c = arg;

	return ((CUresult(*)(CUdeviceptr *, size_t, void *, CUstream))c->function)(c->out, c->n, c->pool, c->s);
}

/* Memory of a capture is a node of its graph, and is charged with that (share_graph.c). */
static CUresult allocate(void *handle, CUstream s, int thread, CUresult (*driver)(void *), struct call_of *c)
{
	CUstream resolved = dxpu_stream(s, thread);
	int gpu = dxpu_share_current();
	struct pool *p;
	CUresult r;

	if (atomic_load(&dxpu_share_state) == SHARE_OFF)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (gpu == NO_CONTEXT)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!c->out || !handle)
		return CUDA_ERROR_INVALID_VALUE;
	if (!dxpu_not_captured(resolved))
		return driver(c);
	pthread_mutex_lock(&lock);
	p = find_locked(handle);
	if (!p)
		p = add_locked(handle, gpu);
	r = p ? allocate_locked(p, c->out, c->n, resolved, driver, c) : CUDA_ERROR_OUT_OF_MEMORY;
	pthread_mutex_unlock(&lock);
	return r;
}

#define ASYNC(symbol, thread) \
	SHARE(symbol, CUdeviceptr *p, size_t n, CUstream s) \
	{ \
		struct call_of c = {(void *)BEHIND(symbol), p, n, NULL, s}; \
\
		return allocate(current_pool(), s, thread, call_plain, &c); \
	}

#define FROM_POOL(symbol, thread) \
	SHARE(symbol, CUdeviceptr *p, size_t n, void *pool, CUstream s) \
	{ \
		struct call_of c = {(void *)BEHIND(symbol), p, n, pool, s}; \
\
		return allocate(pool, s, thread, call_from_pool, &c); \
	}

ASYNC(cuMemAllocAsync, 0)
ASYNC(cuMemAllocAsync_ptsz, 1)
FROM_POOL(cuMemAllocFromPoolAsync, 0)
FROM_POOL(cuMemAllocFromPoolAsync_ptsz, 1)

void dxpu_share_pool_freed(const struct owner *o)
{
	struct pool *p;

	pthread_mutex_lock(&lock);
	p = find_locked((void *)o->other);
	if (p) {
		p->used -= o->bytes < p->used ? o->bytes : p->used;
		settle_locked(p);
	} else {
		dxpu_share_give(o->gpu, o->bytes); /* the program has destroyed the pool */
	}
	pthread_mutex_unlock(&lock);
}

#define FREE_ASYNC(symbol) \
	SHARE(symbol, CUdeviceptr p, CUstream s) \
	{ \
		struct freeing f; \
\
		dxpu_share_free(&f, OWNED_POINTER, (uintptr_t)p); \
		return dxpu_share_freed(&f, BEHIND(symbol)(p, s)); \
	}

FREE_ASYNC(cuMemFreeAsync)
FREE_ASYNC(cuMemFreeAsync_ptsz)

/* ---- pools ---- */

SHARE(cuMemPoolCreate, void **pool, const CUmemPoolProps *props)
{
	CUresult r = BEHIND(cuMemPoolCreate)(pool, props);
	bool device = props && props->location.type == CU_MEM_LOCATION_TYPE_DEVICE;

	if (r != CUDA_SUCCESS || !dxpu_share_is_on())
		return r;
	pthread_mutex_lock(&lock);
	(void)add_locked(*pool, device ? dxpu_share_gpu(props->location.id) : UNCOUNTED);
	pthread_mutex_unlock(&lock);
	return r;
}

/* The driver frees a destroyed pool when its last allocation is freed. */
SHARE(cuMemPoolDestroy, void *pool)
{
	struct pool *p;
	CUresult r;

	pthread_mutex_lock(&lock);
	r = BEHIND(cuMemPoolDestroy)(pool);
	p = r == CUDA_SUCCESS ? find_locked(pool) : NULL;
	if (p) {
		dxpu_share_give(p->gpu, p->charged - p->used);
		*p = pools[--npools];
	}
	pthread_mutex_unlock(&lock);
	return r;
}

SHARE(cuMemPoolTrimTo, void *pool, size_t keep)
{
	CUresult r = BEHIND(cuMemPoolTrimTo)(pool, keep);
	struct pool *p;

	pthread_mutex_lock(&lock);
	p = find_locked(pool);
	if (p)
		settle_locked(p);
	pthread_mutex_unlock(&lock);
	return r;
}

void dxpu_share_pools_forget(void)
{
	pthread_mutex_init(&lock, NULL);
	npools = 0;
}
