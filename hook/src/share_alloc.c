/*
 * Wrappers of the calls that allocate and free memory with an address, arrays, and the
 * calls that tell how much memory there is. Memory of the host does not count, nor does
 * memory that another process or another API owns and this one maps.
 */
#include <stdlib.h>

#include "share.h"
#include "wrap.h"

/* ---- for all wrappers of memory ---- */

CUresult dxpu_share_before(int gpu, uint64_t bytes)
{
	enum share_state state = atomic_load_explicit(&dxpu_share_state, memory_order_acquire);
	CUresult r;

	if (state == SHARE_OFF)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (gpu == NO_CONTEXT)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (gpu == UNCOUNTED)
		return CUDA_SUCCESS;
	r = dxpu_share_take(gpu, bytes);
	if (r == CUDA_SUCCESS || gpu < 0)
		return r;
	dxpu_share_pools_trim(gpu);
	return dxpu_share_take(gpu, bytes);
}

CUresult dxpu_share_after(struct owner *o, CUresult result, uint64_t real, CUresult (*undo)(uintptr_t))
{
	if (result != CUDA_SUCCESS || o->gpu < 0) {
		dxpu_share_give(o->gpu, o->bytes);
		return result;
	}
	if (real > o->bytes && dxpu_share_before(o->gpu, real - o->bytes) != CUDA_SUCCESS) {
		/* The memory that does not fit stays counted if the driver keeps it. */
		if (undo(o->key) == CUDA_SUCCESS) {
			dxpu_share_give(o->gpu, o->bytes);
			return CUDA_ERROR_OUT_OF_MEMORY;
		}
		real = o->bytes;
	}
	if (real < o->bytes)
		dxpu_share_give(o->gpu, o->bytes - real);
	o->bytes = real;
	dxpu_share_add(o);
	return CUDA_SUCCESS;
}

void dxpu_share_free(struct freeing *f, enum owned kind, uintptr_t key)
{
	f->known = key && dxpu_share_is_on() && dxpu_share_remove(kind, key, &f->o);
}

CUresult dxpu_share_freed(struct freeing *f, CUresult result)
{
	if (!f->known)
		return result;
	if (result != CUDA_SUCCESS)
		dxpu_share_add(&f->o);
	else if (f->o.other)
		dxpu_share_pool_freed(&f->o);
	else
		dxpu_share_give(f->o.gpu, f->o.bytes);
	return result;
}

/* Rounds up; UINT64_MAX if that is not possible. */
static uint64_t round_up(uint64_t n, uint64_t to)
{
	return n > UINT64_MAX - (to - 1) ? UINT64_MAX : (n + to - 1) / to * to;
}

static uint64_t times(uint64_t a, uint64_t b)
{
	uint64_t p;

	return __builtin_mul_overflow(a, b, &p) ? UINT64_MAX : p;
}

/* ---- addresses ---- */

static CUresult undo_pointer(uintptr_t p) { return REAL(CUresult(*)(CUdeviceptr), cuMemFree_v2)(p); }

static struct owner new_pointer(uint64_t bytes)
{
	return (struct owner){.kind = OWNED_POINTER, .context = dxpu_share_context(), .gpu = dxpu_share_current(), .bytes = bytes};
}

SHARE(cuMemAlloc_v2, CUdeviceptr *p, size_t n)
{
	struct owner o = new_pointer(n);
	CUresult r = dxpu_share_before(o.gpu, n);

	if (r != CUDA_SUCCESS)
		return r;
	r = BEHIND(cuMemAlloc_v2)(p, n);
	if (r == CUDA_SUCCESS)
		o.key = (uintptr_t)*p;
	return dxpu_share_after(&o, r, n, undo_pointer);
}

SHARE(cuMemAllocManaged, CUdeviceptr *p, size_t n, unsigned flags)
{
	struct owner o = new_pointer(n);
	CUresult r = dxpu_share_before(o.gpu, n);

	if (r != CUDA_SUCCESS)
		return r;
	r = BEHIND(cuMemAllocManaged)(p, n, flags);
	if (r == CUDA_SUCCESS)
		o.key = (uintptr_t)*p;
	return dxpu_share_after(&o, r, n, undo_pointer);
}

/* The driver aligns rows to 512 bytes; a driver that does more is counted afterwards. */
enum { PITCH = 512 };

SHARE(cuMemAllocPitch_v2, CUdeviceptr *p, size_t *pitch, size_t width, size_t height, unsigned element)
{
	uint64_t bytes = times(round_up(width, PITCH), height);
	struct owner o = new_pointer(bytes);
	CUresult r = dxpu_share_before(o.gpu, bytes);

	if (r != CUDA_SUCCESS)
		return r;
	r = BEHIND(cuMemAllocPitch_v2)(p, pitch, width, height, element);
	if (r == CUDA_SUCCESS)
		o.key = (uintptr_t)*p;
	return dxpu_share_after(&o, r, r == CUDA_SUCCESS ? times(*pitch, height) : 0, undo_pointer);
}

SHARE(cuMemFree_v2, CUdeviceptr p)
{
	struct freeing f;

	dxpu_share_free(&f, OWNED_POINTER, (uintptr_t)p);
	return dxpu_share_freed(&f, BEHIND(cuMemFree_v2)(p));
}

/* Forms with 32-bit pointers and sizes, of CUDA before 3.2: no 64-bit program needs them. */
#define REFUSE(symbol) \
	SHARE(symbol, void) { return CUDA_ERROR_NOT_SUPPORTED; }

REFUSE(cuMemAlloc)
REFUSE(cuMemAllocPitch)
REFUSE(cuArrayCreate)
REFUSE(cuArray3DCreate)

/* ---- arrays ---- */

/* Bytes of one channel, from the format's code; the largest for unknown ones. */
static unsigned channel_bytes(int format)
{
	switch (format) {
	case CU_AD_FORMAT_UNSIGNED_INT8:
	case CU_AD_FORMAT_SIGNED_INT8:
		return 1;
	case CU_AD_FORMAT_UNSIGNED_INT16:
	case CU_AD_FORMAT_SIGNED_INT16:
	case CU_AD_FORMAT_HALF:
		return 2;
	default:
		return 4;
	}
}

static uint64_t array_bytes(size_t w, size_t h, size_t d, int format, unsigned channels)
{
	uint64_t n = times(times(w, h ? h : 1), times(d ? d : 1, channel_bytes(format)));

	return times(n, channels ? channels : 1);
}

/* No memory is bound to these at their creation; cuMemMapArrayAsync binds handles. */
static bool has_memory(unsigned flags) { return !(flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)); }

static struct owner new_array(uint64_t bytes)
{
	return (struct owner){.kind = OWNED_ARRAY, .context = dxpu_share_context(), .gpu = dxpu_share_current(), .bytes = bytes};
}

typedef CUresult (*requirements)(CUDA_ARRAY_MEMORY_REQUIREMENTS *, void *, CUdevice);
typedef CUresult (*destroy)(void *);

/* Returns the bytes that the driver requires for an array without memory, which ends here; 0: it does not tell. */
static uint64_t required(void *probe, requirements f, destroy end)
{
	CUresult (*device)(CUdevice *) = REAL(CUresult(*)(CUdevice *), cuCtxGetDevice);
	CUDA_ARRAY_MEMORY_REQUIREMENTS q = {0};
	CUdevice d = 0;

	if (!f || !device || device(&d) != CUDA_SUCCESS || f(&q, probe, d) != CUDA_SUCCESS)
		q.size = 0;
	(void)end(probe);
	return q.size;
}

/*
 * The bytes that an array takes, before the driver allocates it. The driver tells them only of
 * an array that gets its memory later (CUDA 11.6), so one with the same sides is made and
 * destroyed. Where the driver has none, the elements count, without padding.
 */
static uint64_t array_size(const CUDA_ARRAY3D_DESCRIPTOR *d)
{
	CUresult (*create)(void **, const CUDA_ARRAY3D_DESCRIPTOR *) = REAL(CUresult(*)(void **, const CUDA_ARRAY3D_DESCRIPTOR *), cuArray3DCreate_v2);
	CUDA_ARRAY3D_DESCRIPTOR later = *d;
	void *probe;
	uint64_t n = 0;

	if (!has_memory(d->Flags))
		return 0;
	later.Flags |= CUDA_ARRAY3D_DEFERRED_MAPPING;
	if (create && create(&probe, &later) == CUDA_SUCCESS)
		n = required(probe, REAL(requirements, cuArrayGetMemoryRequirements), REAL(destroy, cuArrayDestroy));
	return n ? n : array_bytes(d->Width, d->Height, d->Depth, d->Format, d->NumChannels);
}

/* The size is the driver's already, so there is nothing to undo. */
static CUresult after_array(struct owner *o, CUresult r, void *const *a)
{
	if (r == CUDA_SUCCESS)
		o->key = (uintptr_t)*a;
	return dxpu_share_after(o, r, o->bytes, NULL);
}

SHARE(cuArrayCreate_v2, CUarray *a, const CUDA_ARRAY_DESCRIPTOR *d)
{
	CUDA_ARRAY3D_DESCRIPTOR same = {0};
	struct owner o;
	CUresult r;

	if (d)
		same = (CUDA_ARRAY3D_DESCRIPTOR){.Width = d->Width, .Height = d->Height, .Format = d->Format, .NumChannels = d->NumChannels};
	o = new_array(d ? array_size(&same) : 0);
	r = dxpu_share_before(o.gpu, o.bytes);
	return r != CUDA_SUCCESS ? r : after_array(&o, BEHIND(cuArrayCreate_v2)(a, d), a);
}

SHARE(cuArray3DCreate_v2, CUarray *a, const CUDA_ARRAY3D_DESCRIPTOR *d)
{
	struct owner o = new_array(d ? array_size(d) : 0);
	CUresult r = dxpu_share_before(o.gpu, o.bytes);

	return r != CUDA_SUCCESS ? r : after_array(&o, BEHIND(cuArray3DCreate_v2)(a, d), a);
}

SHARE(cuArrayDestroy, CUarray a)
{
	struct freeing f;

	dxpu_share_free(&f, OWNED_ARRAY, (uintptr_t)a);
	return dxpu_share_freed(&f, BEHIND(cuArrayDestroy)(a));
}

/* Each level halves the sides; layers of a layered array stay. */
static uint64_t mipmap_bytes(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < levels && i < 32; i++) {
		uint64_t level = array_bytes(d->Width >> i ? d->Width >> i : 1, d->Height >> i, d->Depth, d->Format, d->NumChannels);

		if (__builtin_add_overflow(sum, level, &sum))
			return UINT64_MAX;
	}
	return sum;
}

static uint64_t mipmap_size(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels)
{
	CUresult (*create)(void **, const CUDA_ARRAY3D_DESCRIPTOR *, unsigned) =
		REAL(CUresult(*)(void **, const CUDA_ARRAY3D_DESCRIPTOR *, unsigned), cuMipmappedArrayCreate);
	CUDA_ARRAY3D_DESCRIPTOR later = *d;
	void *probe;
	uint64_t n = 0;

	if (!has_memory(d->Flags))
		return 0;
	later.Flags |= CUDA_ARRAY3D_DEFERRED_MAPPING;
	if (create && create(&probe, &later, levels) == CUDA_SUCCESS)
		n = required(probe, REAL(requirements, cuMipmappedArrayGetMemoryRequirements), REAL(destroy, cuMipmappedArrayDestroy));
	return n ? n : mipmap_bytes(d, levels);
}

SHARE(cuMipmappedArrayCreate, void **a, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels)
{
	struct owner o = new_array(d ? mipmap_size(d, levels) : 0);
	CUresult r = dxpu_share_before(o.gpu, o.bytes);

	return r != CUDA_SUCCESS ? r : after_array(&o, BEHIND(cuMipmappedArrayCreate)(a, d, levels), a);
}

SHARE(cuMipmappedArrayDestroy, void *a)
{
	struct freeing f;

	dxpu_share_free(&f, OWNED_ARRAY, (uintptr_t)a);
	return dxpu_share_freed(&f, BEHIND(cuMipmappedArrayDestroy)(a));
}

/* ---- limits of a context that are memory ---- */

enum { USUAL_STACK = 1024 }; /* bytes of a thread, which each context has */

/* The stacks of all threads that the device can run at a time. */
static uint64_t stack_bytes(size_t value)
{
	CUresult (*get)(int *, int, CUdevice) = REAL(CUresult(*)(int *, int, CUdevice), cuDeviceGetAttribute);
	CUresult (*device)(CUdevice *) = REAL(CUresult(*)(CUdevice *), cuCtxGetDevice);
	int units = 0, threads = 0;
	CUdevice d;

	if (value <= USUAL_STACK || !get || !device || device(&d) != CUDA_SUCCESS)
		return 0;
	if (get(&units, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, d) != CUDA_SUCCESS ||
	    get(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, d) != CUDA_SUCCESS || units < 0 || threads < 0)
		return 0;
	return times(value - USUAL_STACK, (uint64_t)units * (uint64_t)threads);
}

SHARE(cuCtxSetLimit, int limit, size_t value)
{
	struct owner o = {.kind = OWNED_LIMIT, .context = dxpu_share_context(), .gpu = dxpu_share_current(), .bytes = value}, old = {0};
	bool known;
	CUresult r;

	if (!dxpu_share_is_on() || (limit != CU_LIMIT_STACK_SIZE && limit != CU_LIMIT_PRINTF_FIFO_SIZE && limit != CU_LIMIT_MALLOC_HEAP_SIZE))
		return BEHIND(cuCtxSetLimit)(limit, value);
	if (limit == CU_LIMIT_STACK_SIZE)
		o.bytes = stack_bytes(value);
	o.key = (uintptr_t)o.context ^ (uintptr_t)limit;
	known = dxpu_share_remove(OWNED_LIMIT, o.key, &old);
	/* The driver may keep what it has: a smaller limit frees nothing. */
	if (o.bytes < old.bytes)
		o.bytes = old.bytes;
	r = dxpu_share_before(o.gpu, o.bytes - old.bytes);
	if (r == CUDA_SUCCESS && (r = BEHIND(cuCtxSetLimit)(limit, value)) != CUDA_SUCCESS)
		dxpu_share_give(o.gpu, o.bytes - old.bytes);
	if (r == CUDA_SUCCESS)
		dxpu_share_add(&o);
	else if (known)
		dxpu_share_add(&old);
	return r;
}

/* ---- how much memory there is ---- */

static size_t least(uint64_t a, uint64_t b) { return (size_t)(a < b ? a : b); }

/* The share's limit, and what it has left of it, if the GPU has as much. */
static CUresult get_info(CUresult (*driver)(size_t *, size_t *), size_t *free_bytes, size_t *total)
{
	size_t real_free = 0, real_total = 0;
	CUresult r = driver ? driver(&real_free, &real_total) : CUDA_ERROR_NOT_SUPPORTED;
	int gpu;

	if (r == CUDA_SUCCESS && dxpu_share_is_on()) {
		uint64_t limit = 0, left = 0;

		gpu = dxpu_share_current();
		if (gpu >= 0)
			dxpu_share_room(gpu, &limit, &left);
		real_total = least(real_total, limit);
		real_free = least(real_free, left);
	}
	if (r == CUDA_SUCCESS && free_bytes)
		*free_bytes = real_free;
	if (r == CUDA_SUCCESS && total)
		*total = real_total;
	return r;
}

SHARE(cuMemGetInfo_v2, size_t *free_bytes, size_t *total) { return get_info(BEHIND(cuMemGetInfo_v2), free_bytes, total); }

SHARE(cuMemGetInfo, unsigned *free_bytes, unsigned *total)
{
	size_t f = 0, t = 0;
	CUresult r = get_info(REAL(CUresult(*)(size_t *, size_t *), cuMemGetInfo_v2), &f, &t);

	if (r == CUDA_SUCCESS && free_bytes)
		*free_bytes = (unsigned)least(f, UINT32_MAX);
	if (r == CUDA_SUCCESS && total)
		*total = (unsigned)least(t, UINT32_MAX);
	return r;
}

static CUresult get_total(CUresult (*driver)(size_t *, CUdevice), size_t *total, CUdevice d)
{
	uint64_t limit = 0, left;
	CUresult r = driver ? driver(total, d) : CUDA_ERROR_NOT_SUPPORTED;

	if (r != CUDA_SUCCESS || !dxpu_share_is_on())
		return r;
	if (dxpu_share_gpu(d) >= 0)
		dxpu_share_room(dxpu_share_gpu(d), &limit, &left);
	*total = least(*total, limit);
	return r;
}

SHARE(cuDeviceTotalMem_v2, size_t *total, CUdevice d) { return get_total(BEHIND(cuDeviceTotalMem_v2), total, d); }

SHARE(cuDeviceTotalMem, unsigned *total, CUdevice d)
{
	size_t t = 0;
	CUresult r = get_total(REAL(CUresult(*)(size_t *, CUdevice), cuDeviceTotalMem_v2), &t, d);

	if (r == CUDA_SUCCESS && total)
		*total = (unsigned)least(t, UINT32_MAX);
	return r;
}
