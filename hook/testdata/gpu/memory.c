/* The memory of the fake GPU. */
#include "gpu.h"

#include <stdlib.h>
#include <string.h>

/* One piece of memory. An address is that of a small block of the host's. */
struct piece {
	void *at;
	int device;
	uint64_t bytes;
	uint64_t later;          /* that an array without memory requires */
	const struct ctx *ctx;   /* whose end frees it */
	struct pool *pool;
	unsigned references;     /* of a handle */
	struct piece *handle;    /* of a mapping */
	struct piece *next;
};

struct pool {
	int device;
	bool host, destroyed;
	uint64_t used, reserved, ending; /* bytes; ending: reserved no more, but not free yet */
};

CUresult cuMemPoolTrimTo(void *pool, size_t keep);

static struct piece *pieces; /* guarded by lock */
static struct pool default_pools[GPUS] = {{.device = 0}, {.device = 1}, {.device = 2}, {.device = 3}};

static struct piece *add(void *at, int device, uint64_t bytes, const struct ctx *ctx)
{
	struct piece *p = calloc(1, sizeof *p);

	*p = (struct piece){.at = at, .device = device, .bytes = bytes, .ctx = ctx};
	pthread_mutex_lock(&lock);
	p->next = pieces;
	pieces = p;
	pthread_mutex_unlock(&lock);
	return p;
}

static struct piece *unlink_piece(const void *at)
{
	struct piece *x = NULL;

	pthread_mutex_lock(&lock);
	for (struct piece **p = &pieces; *p; p = &(*p)->next) {
		if ((*p)->at == at) {
			x = *p;
			*p = x->next;
			break;
		}
	}
	pthread_mutex_unlock(&lock);
	return x;
}

static uint64_t grain(const char *name, uint64_t n)
{
	uint64_t g = setting(name, 1);

	return (n + g - 1) / g * g;
}

static CUresult allocate(int symbol, void **out, uint64_t bytes)
{
	CUresult r = usable(symbol);

	if (r || bytes == 0)
		return r ? r : CUDA_ERROR_INVALID_VALUE;
	if (!take(current->device, bytes))
		return NO_MEMORY;
	*out = malloc(64);
	add(*out, current->device, bytes, current);
	return CUDA_SUCCESS;
}

/* Pools keep what is freed until they are trimmed. */
static CUresult free_piece(int symbol, const void *at)
{
	CUresult r = scripted(symbol);
	struct piece *p = r ? NULL : unlink_piece(at);
	bool ends;

	if (!p)
		return r ? r : CUDA_ERROR_INVALID_VALUE;
	if (p->pool) {
		pthread_mutex_lock(&lock);
		p->pool->used -= p->bytes;
		ends = p->pool->destroyed && p->pool->used == 0;
		pthread_mutex_unlock(&lock);
		if (ends)
			(void)cuMemPoolTrimTo(p->pool, 0);
	} else {
		give(p->device, p->bytes);
	}
	free(p->at);
	free(p);
	return CUDA_SUCCESS;
}

void free_context(const struct ctx *c)
{
	for (bool found = true; found;) {
		struct piece *p;

		pthread_mutex_lock(&lock);
		for (p = pieces; p && p->ctx != c; p = p->next)
			;
		pthread_mutex_unlock(&lock);
		found = p != NULL;
		if (p)
			(void)free_piece(SYM_cudbgMain, p->at);
	}
}

static void *out_pointer(CUdeviceptr *p) { return p; }
CUresult cuMemAlloc_v2(CUdeviceptr *p, size_t n) { return allocate(SYM_cuMemAlloc_v2, out_pointer(p), n); }
CUresult cuMemAllocManaged(CUdeviceptr *p, size_t n, unsigned flags) { (void)flags; return allocate(SYM_cuMemAllocManaged, out_pointer(p), n); }
CUresult cuMemFree_v2(CUdeviceptr p) { return p ? free_piece(SYM_cuMemFree_v2, (void *)(uintptr_t)p) : CUDA_SUCCESS; }

CUresult cuMemAllocPitch_v2(CUdeviceptr *p, size_t *pitch, size_t width, size_t height, unsigned element)
{
	(void)element;
	*pitch = (width + 511) / 512 * 512;
	return allocate(SYM_cuMemAllocPitch_v2, out_pointer(p), *pitch * height);
}

CUresult cuMemGetInfo_v2(size_t *f, size_t *t)
{
	TRY(cuMemGetInfo_v2);
	*t = machine->gpus[current->device].total;
	*f = *t - machine->gpus[current->device].used;
	return CUDA_SUCCESS;
}

/* A limit of 8 MB for the heap is part of the context, and 1 KiB for each of its 20 stacks. */
CUresult cuCtxSetLimit(int limit, size_t n) { TRY(cuCtxSetLimit); n = limit == CU_LIMIT_STACK_SIZE ? (n - 1024) * 20 : n; return take(current->device, n) ? add(malloc(64), current->device, n, current), CUDA_SUCCESS : NO_MEMORY; }

/* ---- arrays: one byte for each channel and element ---- */

CUresult cuArrayCreate_v2(CUarray *a, const CUDA_ARRAY_DESCRIPTOR *d)
{
	return allocate(SYM_cuArrayCreate_v2, a, grain("FAKE_GPU_PAD", d->Width * (d->Height ? d->Height : 1) * d->NumChannels));
}

static uint64_t array3d(const CUDA_ARRAY3D_DESCRIPTOR *d)
{
	return d->Width * (d->Height ? d->Height : 1) * (d->Depth ? d->Depth : 1) * d->NumChannels;
}

/* An array that gets its memory later, or parts of it. */
static CUresult without_memory(void **a, uint64_t later)
{
	add(*a = malloc(64), current->device, 0, current)->later = later;
	return CUDA_SUCCESS;
}

CUresult cuArray3DCreate_v2(CUarray *a, const CUDA_ARRAY3D_DESCRIPTOR *d)
{
	uint64_t n = grain("FAKE_GPU_PAD", array3d(d));

	if (current && d->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING))
		return without_memory(a, n);
	return allocate(SYM_cuArray3DCreate_v2, a, n);
}

CUresult cuMipmappedArrayCreate(void **a, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels)
{
	uint64_t n = 0;

	for (unsigned i = 0; i < levels; i++)
		n += array3d(d) >> 2 * i;
	if (current && d->Flags & CUDA_ARRAY3D_DEFERRED_MAPPING)
		return without_memory(a, grain("FAKE_GPU_PAD", n));
	return allocate(SYM_cuMipmappedArrayCreate, a, grain("FAKE_GPU_PAD", n));
}

/* NVIDIA's driver tells them only of arrays that get their memory later. */
static CUresult requirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *q, const void *a)
{
	uint64_t later = 0;

	pthread_mutex_lock(&lock);
	for (struct piece *p = pieces; p; p = p->next) {
		if (p->at == a)
			later = p->later;
	}
	pthread_mutex_unlock(&lock);
	q->size = later;
	return later ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *q, CUarray a, CUdevice d) { (void)d; return requirements(q, a); }
CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *q, void *a, CUdevice d) { (void)d; return requirements(q, a); }
CUresult cuArrayDestroy(CUarray a) { return free_piece(SYM_cuArrayDestroy, a); }
CUresult cuMipmappedArrayDestroy(void *a) { return free_piece(SYM_cuMipmappedArrayDestroy, a); }

/* ---- handles ---- */

CUresult cuMemCreate(CUmemGenericAllocationHandle *h, size_t n, const CUmemAllocationProp *p, unsigned long long flags)
{
	bool device = p->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
	CUresult r = scripted(SYM_cuMemCreate);

	(void)flags;
	if (r)
		return r;
	if (device && !take(p->location.id, n))
		return NO_MEMORY;
	*h = (uintptr_t)malloc(64);
	add((void *)(uintptr_t)*h, device ? p->location.id : 0, device ? n : 0, NULL)->references = 1;
	return CUDA_SUCCESS;
}

static struct piece *find_locked(const void *at)
{
	struct piece *p = pieces;

	while (p && p->at != at)
		p = p->next;
	return p;
}

/* Changes the references of a handle by n; frees it at 0. */
static CUresult refer(const void *handle, int n)
{
	struct piece *p;
	unsigned left = 1;

	pthread_mutex_lock(&lock);
	p = find_locked(handle);
	if (p)
		left = p->references += (unsigned)n;
	pthread_mutex_unlock(&lock);
	if (p && left == 0)
		return free_piece(SYM_cudbgMain, handle);
	return p ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle h) { CUresult r = scripted(SYM_cuMemRelease); return r ? r : refer((void *)(uintptr_t)h, -1); }
CUresult cuMemAddressReserve(CUdeviceptr *p, size_t n, size_t alignment, CUdeviceptr at, unsigned long long flags) { (void)n, (void)alignment, (void)at, (void)flags; *p = (uintptr_t)malloc(64); return CUDA_SUCCESS; }

CUresult cuMemMap(CUdeviceptr at, size_t n, size_t offset, CUmemGenericAllocationHandle h, unsigned long long flags)
{
	CUresult r = scripted(SYM_cuMemMap);
	struct piece *m;

	(void)n, (void)offset, (void)flags;
	if (r || (r = refer((void *)(uintptr_t)h, 1)))
		return r;
	m = add((void *)(uintptr_t)at, 0, 0, NULL);
	pthread_mutex_lock(&lock);
	m->handle = find_locked((void *)(uintptr_t)h);
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr at, size_t n)
{
	CUresult r = scripted(SYM_cuMemUnmap);
	struct piece *m = r ? NULL : unlink_piece((void *)(uintptr_t)at);

	(void)n;
	if (!m)
		return r ? r : CUDA_ERROR_INVALID_VALUE;
	r = refer(m->handle->at, -1);
	free(m);
	return r;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *h, void *at)
{
	struct piece *m;

	pthread_mutex_lock(&lock);
	m = find_locked(at);
	if (m && m->handle)
		*h = (uintptr_t)m->handle->at;
	pthread_mutex_unlock(&lock);
	return m && m->handle ? refer((void *)(uintptr_t)*h, 1) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemMapArrayAsync(CUarrayMapInfo *list, unsigned n, CUstream s)
{
	CUresult r = scripted(SYM_cuMemMapArrayAsync);

	(void)s;
	for (unsigned i = 0; i < n && !r; i++)
		r = refer((void *)(uintptr_t)list[i].memHandle, list[i].memOperationType == CU_MEM_OPERATION_TYPE_MAP ? 1 : -1);
	return r;
}

CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo *list, unsigned n, CUstream s) { return cuMemMapArrayAsync(list, n, s); }

/* The export of a handle is the handle, and its import in the same process too. */
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *h, void *os, int type) { (void)type; *h = (uintptr_t)os; return refer(os, 1); }

/* ---- pools ---- */

CUresult cuDeviceGetMemPool(void **pool, CUdevice d) { *pool = &default_pools[d]; return CUDA_SUCCESS; }
CUresult cuMemPoolCreate(void **pool, const CUmemPoolProps *p) { struct pool *x = calloc(1, sizeof *x); x->device = p->location.id; x->host = p->location.type != CU_MEM_LOCATION_TYPE_DEVICE; *pool = x; return CUDA_SUCCESS; }

CUresult cuMemPoolTrimTo(void *pool, size_t keep)
{
	struct pool *p = pool;
	uint64_t extra;

	pthread_mutex_lock(&lock);
	keep = keep > p->used ? keep : p->used;
	if (p->used && setting("FAKE_GPU_CHUNKS_STAY", 0))
		keep = grain("FAKE_GPU_CHUNK", keep);
	extra = p->reserved > keep ? p->reserved - keep : 0;
	p->reserved -= extra;
	p->ending += extra;
	pthread_mutex_unlock(&lock);
	if (!p->host)
		give(p->device, extra);
	pthread_mutex_lock(&lock);
	p->ending -= extra;
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

/* A destroyed pool gives its memory back with its last allocation. */
CUresult cuMemPoolDestroy(void *pool)
{
	struct pool *p = pool;
	CUresult r = scripted(SYM_cuMemPoolDestroy);
	bool ends;

	if (r)
		return r;
	pthread_mutex_lock(&lock);
	p->destroyed = true;
	ends = p->used == 0;
	pthread_mutex_unlock(&lock);
	return ends ? cuMemPoolTrimTo(pool, 0) : CUDA_SUCCESS;
}

CUresult cuMemPoolGetAttribute(void *pool, int what, void *v) { (void)what; pthread_mutex_lock(&lock); *(uint64_t *)v = ((struct pool *)pool)->reserved + ((struct pool *)pool)->ending; pthread_mutex_unlock(&lock); return CUDA_SUCCESS; }

static CUresult from_pool(int symbol, CUdeviceptr *out, size_t n, struct pool *p, CUstream s)
{
	CUresult r = usable(symbol);
	uint64_t more;
	struct piece *x;

	if (r)
		return r;
	if (stream_of(s)->capture) {
		graph_add(stream_of(s)->capture, CU_GRAPH_NODE_TYPE_MEM_ALLOC, NULL, n);
		*out = 0x1000;
		return CUDA_SUCCESS;
	}
	pthread_mutex_lock(&lock);
	more = p->used + n > p->reserved ? grain("FAKE_GPU_CHUNK", p->used + n - p->reserved) : 0;
	pthread_mutex_unlock(&lock);
	if (!p->host && !take(p->device, more))
		return NO_MEMORY;
	pthread_mutex_lock(&lock);
	p->reserved += more;
	p->used += n;
	pthread_mutex_unlock(&lock);
	*out = (uintptr_t)malloc(64);
	x = add((void *)(uintptr_t)*out, p->device, n, current);
	x->pool = p;
	return CUDA_SUCCESS;
}

#define POOL_CALLS(suffix) \
	CUresult cuMemAllocAsync##suffix(CUdeviceptr *p, size_t n, CUstream s) { return from_pool(SYM_cuMemAllocAsync##suffix, p, n, &default_pools[current ? stream_of(s)->ctx->device : 0], s); } \
	CUresult cuMemAllocFromPoolAsync##suffix(CUdeviceptr *p, size_t n, void *pool, CUstream s) { return from_pool(SYM_cuMemAllocFromPoolAsync##suffix, p, n, pool, s); } \
	CUresult cuMemFreeAsync##suffix(CUdeviceptr p, CUstream s) { (void)s; return free_piece(SYM_cuMemFreeAsync##suffix, (void *)(uintptr_t)p); }

POOL_CALLS()
POOL_CALLS(_ptsz)

/* Memory of another process: addresses that this one did not allocate. */
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *p, const void *handle, unsigned flags) { (void)handle, (void)flags; *p = 0x5000; return CUDA_SUCCESS; }
