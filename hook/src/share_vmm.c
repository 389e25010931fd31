/*
 * Physical memory with a handle (CUDA's virtual memory management). The driver frees it
 * when neither a reference to the handle nor a mapping of it is left, so a handle counts
 * both. Handles that another process exported count there.
 */
#include <stdlib.h>

#include "share.h"

static void refer(struct owner *o, void *arg)
{
	(void)arg;
	o->references++;
}

static bool refer_to(uintptr_t handle) { return dxpu_share_change(OWNED_HANDLE, handle, refer, NULL); }

static CUresult undo_handle(uintptr_t h) { return REAL(CUresult(*)(CUmemGenericAllocationHandle), cuMemRelease)(h); }

SHARE(cuMemCreate, CUmemGenericAllocationHandle *h, size_t n, const CUmemAllocationProp *p, unsigned long long flags)
{
	bool device = p && p->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
	struct owner o = {.kind = OWNED_HANDLE, .gpu = device ? dxpu_share_gpu(p->location.id) : UNCOUNTED, .bytes = device ? n : 0, .references = 1};
	CUresult r = dxpu_share_before(o.gpu, o.bytes);

	if (r != CUDA_SUCCESS)
		return r;
	r = BEHIND(cuMemCreate)(h, n, p, flags);
	if (r == CUDA_SUCCESS)
		o.key = (uintptr_t)*h;
	return dxpu_share_after(&o, r, o.bytes, undo_handle);
}

/*
 * Drops a reference before the driver does, because another thread may get the handle
 * again; restore takes the step back.
 */
static void restore(bool last, struct owner *o, uintptr_t handle)
{
	if (!last) {
		(void)refer_to(handle);
		return;
	}
	o->references = 1;
	dxpu_share_add(o);
}

SHARE(cuMemRelease, CUmemGenericAllocationHandle h)
{
	struct owner o;
	bool on = dxpu_share_is_on(), last = on && dxpu_share_unreference(OWNED_HANDLE, (uintptr_t)h, &o);
	CUresult r = BEHIND(cuMemRelease)(h);

	if (r != CUDA_SUCCESS && on)
		restore(last, &o, (uintptr_t)h);
	else if (last)
		dxpu_share_give(o.gpu, o.bytes);
	return r;
}

SHARE(cuMemRetainAllocationHandle, CUmemGenericAllocationHandle *h, void *address)
{
	CUresult r = BEHIND(cuMemRetainAllocationHandle)(h, address);

	if (r == CUDA_SUCCESS && dxpu_share_is_on())
		(void)refer_to((uintptr_t)*h);
	return r;
}

/* An import of the process's own export may return the handle that it has. */
SHARE(cuMemImportFromShareableHandle, CUmemGenericAllocationHandle *h, void *os, int type)
{
	CUresult r = BEHIND(cuMemImportFromShareableHandle)(h, os, type);

	if (r == CUDA_SUCCESS && dxpu_share_is_on())
		(void)refer_to((uintptr_t)*h);
	return r;
}

SHARE(cuMemMap, CUdeviceptr p, size_t size, size_t offset, CUmemGenericAllocationHandle h, unsigned long long flags)
{
	struct owner o = {.kind = OWNED_MAPPING, .key = (uintptr_t)p, .gpu = UNCOUNTED, .size = size, .other = (uintptr_t)h};
	bool known = dxpu_share_is_on() && refer_to((uintptr_t)h);
	CUresult r = BEHIND(cuMemMap)(p, size, offset, h, flags);

	if (known && r == CUDA_SUCCESS)
		dxpu_share_add(&o);
	else if (known && dxpu_share_unreference(OWNED_HANDLE, (uintptr_t)h, &o))
		dxpu_share_give(o.gpu, o.bytes); /* another thread released it meanwhile */
	return r;
}

struct range {
	uintptr_t from;
	uint64_t size;
};

static bool in_range(const struct owner *o, const void *arg)
{
	const struct range *r = arg;

	return o->kind == OWNED_MAPPING && o->key >= r->from && o->key - r->from < r->size;
}

/* Ends mappings that the driver has ended, and the memory that had no other use. */
static void end_mappings(struct owner *list)
{
	for (struct owner *m = list; m; m = m->next) {
		struct owner h;

		if (dxpu_share_unreference(OWNED_HANDLE, m->other, &h))
			dxpu_share_give(h.gpu, h.bytes);
	}
	dxpu_share_settle(list, true);
}

SHARE(cuMemUnmap, CUdeviceptr p, size_t size)
{
	struct range range = {(uintptr_t)p, size};
	struct owner *list = dxpu_share_is_on() ? dxpu_share_detach(in_range, &range) : NULL;
	CUresult r = BEHIND(cuMemUnmap)(p, size);

	if (r == CUDA_SUCCESS)
		end_mappings(list);
	else
		dxpu_share_settle(list, false);
	return r;
}

/*
 * Maps handles into sparse arrays. The library does not know which tiles an operation
 * replaces, so a handle that was mapped this way counts until the process ends.
 */
static void pin(const CUarrayMapInfo *list, unsigned n)
{
	for (unsigned i = 0; dxpu_share_is_on() && list && i < n; i++) {
		if (list[i].memOperationType == CU_MEM_OPERATION_TYPE_MAP)
			(void)refer_to((uintptr_t)list[i].memHandle);
	}
}

#define MAP_ARRAY(symbol) \
	SHARE(symbol, CUarrayMapInfo *list, unsigned n, CUstream s) \
	{ \
		pin(list, n); \
		return BEHIND(symbol)(list, n, s); \
	}

MAP_ARRAY(cuMemMapArrayAsync)
MAP_ARRAY(cuMemMapArrayAsync_ptsz)
