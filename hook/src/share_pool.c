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
	void *handle;     /* NULL: the program has destroyed the pool, and uses memory of it still */
	uintptr_t number; /* of its owners; a handle may be used again */
	int gpu;          /* UNCOUNTED: memory of the host */
	uint64_t used, charged;
} pools[POOLS];
static unsigned npools;
static uintptr_t last_number;

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
	struct pool *p = npools < POOLS ? &pools[npools++] : NULL;

	if (p)
		*p = (struct pool){.handle = handle, .number = ++last_number, .gpu = gpu};
	return p;
}

/*
 * The bytes that the driver has for a pool. It keeps those of a destroyed one until its
 * last allocation is freed, and tells them no more.
 */
static uint64_t reserved(const struct pool *p)
{
	CUresult (*get)(void *, int, void *) = REAL(CUresult(*)(void *, int, void *), cuMemPoolGetAttribute);
	uint64_t n = 0;

	if (!p->handle)
		return p->used > 0 ? p->charged : 0;
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

/* Removes a destroyed pool of which nothing is in use. */
static void forget_locked(struct pool *p)
{
	if (!p->handle && p->used == 0)
		*p = pools[--npools];
}

/* Does nothing while another thread has the pools: it may wait for this one's answer. */
void dxpu_share_pools_settle(void)
{
	if (pthread_mutex_trylock(&lock) != 0)
		return;
	for (unsigned i = npools; i-- > 0;) {
		settle_locked(&pools[i]);
		forget_locked(&pools[i]);
	}
	pthread_mutex_unlock(&lock);
}

static void trim_locked(int gpu)
{
	CUresult (*trim)(void *, size_t) = REAL(CUresult(*)(void *, size_t), cuMemPoolTrimTo);

	for (unsigned i = 0; trim && i < npools; i++) {
		if (pools[i].gpu == gpu && pools[i].handle && pools[i].charged > pools[i].used && atomic_load(&dxpu_captures) == 0)
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
	struct owner o = {.kind = OWNED_POINTER, .context = dxpu_share_context(), .gpu = p->gpu, .bytes = n, .other = p->number};
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
static CUresult allocate_in_context(struct call_of *c, CUstream s, CUresult (*driver)(void *))
{
	void *handle = c->pool ? c->pool : current_pool();
	struct pool *p;
	CUresult r;

	if (dxpu_share_current() == NO_CONTEXT)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!c->out || !handle)
		return CUDA_ERROR_INVALID_VALUE;
	if (!dxpu_not_captured(s))
		return driver(c);
	pthread_mutex_lock(&lock);
	p = find_locked(handle);
	if (!p)
		p = add_locked(handle, dxpu_share_pool_gpu(handle));
	r = p ? allocate_locked(p, c->out, c->n, s, driver, c) : CUDA_ERROR_OUT_OF_MEMORY;
	pthread_mutex_unlock(&lock);
	return r;
}

/* The stream's context tells the device, and is in most cases the current one. */
static CUresult allocate(struct call_of *c, int thread, CUresult (*driver)(void *))
{
	CUstream s = dxpu_stream(c->s, thread);
	CUcontext was;
	CUresult r;

	if (atomic_load(&dxpu_share_state) == SHARE_OFF)
		return CUDA_ERROR_NOT_INITIALIZED;
	was = dxpu_share_enter(s);
	r = allocate_in_context(c, s, driver);
	dxpu_share_leave(was);
	return r;
}

#define ASYNC(symbol, thread) \
	SHARE(symbol, CUdeviceptr *p, size_t n, CUstream s) \
	{ \
		struct call_of c = {(void *)BEHIND(symbol), p, n, NULL, s}; \
\
		return allocate(&c, thread, call_plain); \
	}

#define FROM_POOL(symbol, thread) \
	SHARE(symbol, CUdeviceptr *p, size_t n, void *pool, CUstream s) \
	{ \
		struct call_of c = {(void *)BEHIND(symbol), p, n, pool, s}; \
\
		return pool ? allocate(&c, thread, call_from_pool) : CUDA_ERROR_INVALID_VALUE; \
	}

ASYNC(cuMemAllocAsync, 0)
ASYNC(cuMemAllocAsync_ptsz, 1)
FROM_POOL(cuMemAllocFromPoolAsync, 0)
FROM_POOL(cuMemAllocFromPoolAsync_ptsz, 1)

void dxpu_share_pool_freed(const struct owner *o)
{
	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < npools; i++) {
		struct pool *p = &pools[i];

		if (p->number != o->other)
			continue;
		p->used -= o->bytes < p->used ? o->bytes : p->used;
		settle_locked(p);
		forget_locked(p);
		break;
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
	struct pool *p;
	int gpu = UNCOUNTED;

	if (r != CUDA_SUCCESS || !dxpu_share_is_on())
		return r;
	if (props->location.type == CU_MEM_LOCATION_TYPE_DEVICE)
		gpu = dxpu_share_gpu(props->location.id);
	else if (props->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED)
		gpu = dxpu_share_current(); /* it counts where cuMemAllocManaged does */
	pthread_mutex_lock(&lock);
	p = find_locked(*pool);
	if (p) /* the end of its context ended the pool that had this handle */
		p->handle = NULL;
	(void)add_locked(*pool, gpu);
	pthread_mutex_unlock(&lock);
	return r;
}

/* The driver frees a destroyed pool when its last allocation is freed. */
SHARE(cuMemPoolDestroy, void *pool)
{
	CUresult (*trim)(void *, size_t) = REAL(CUresult(*)(void *, size_t), cuMemPoolTrimTo);
	struct pool *p;
	CUresult r;

	pthread_mutex_lock(&lock);
	p = find_locked(pool);
	if (p && trim && atomic_load(&dxpu_captures) == 0)
		(void)trim(pool, 0);
	if (p)
		settle_locked(p);
	r = BEHIND(cuMemPoolDestroy)(pool);
	if (p && r == CUDA_SUCCESS) {
		p->handle = NULL;
		settle_locked(p);
		forget_locked(p);
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
