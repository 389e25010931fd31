/* Copies, by direction: to the device, to the host, within and between devices. */
#include "wrap.h"

static void count_copy(enum direction d, size_t bytes)
{
	if (d == COPY_HTOD && (double)bytes <= dxpu_config.tags * dxpu_config.mrrs)
		COUNT(htod_small);
	else if (d == COPY_HTOD)
		COUNT(htod_large);
	else if (d == COPY_DTOH)
		COUNT(dtoh);
	else
		COUNT(other_copies);
}

static bool enter_copy(struct record *r, enum direction d, CUstream s, int thread, bool async, size_t bytes)
{
	static const enum kind kinds[] = {
		[COPY_HTOD] = KIND_HTOD, [COPY_DTOH] = KIND_DTOH, [COPY_DTOD] = KIND_DTOD, [COPY_OTHER] = KIND_COPY,
	};

	if (!dxpu_enter_stream(r, kinds[d], s, thread))
		return false;
	if (!async)
		r->flags |= FLAG_BLOCKING;
	r->arg = bytes;
	r->count = 1;
	count_copy(d, bytes);
	if (may_insert(r))
		r->injected = (uint64_t)dxpu_inject_copy(record_stream(r), d, bytes);
	dxpu_begin(r);
	return true;
}

/* A synchronous copy runs on the default stream, so insertions go there. */
#define COPY(symbol, direction, stream, thread, async, bytes, params, args) \
	CUresult hook_##symbol params; \
	CUresult hook_##symbol params \
	{ \
		struct record r; \
\
		if (!enter_copy(&r, direction, stream, thread, async, bytes)) \
			return DRIVER(symbol) args; \
		return dxpu_leave(&r, DRIVER(symbol) args); \
	}

#define SYNC(symbol, direction, params, args) \
	COPY(symbol, direction, NULL, 0, false, n, params, args) \
	COPY(symbol##_ptds, direction, NULL, 1, false, n, params, args)
#define ASYNC(symbol, direction, params, args) \
	COPY(symbol, direction, s, 0, true, n, params, args) \
	COPY(symbol##_ptsz, direction, s, 1, true, n, params, args)

SYNC(cuMemcpyHtoD_v2, COPY_HTOD, (CUdeviceptr dst, const void *src, size_t n), (dst, src, n))
SYNC(cuMemcpyHtoA_v2, COPY_HTOD, (CUarray dst, size_t at, const void *src, size_t n), (dst, at, src, n))
SYNC(cuMemcpyDtoH_v2, COPY_DTOH, (void *dst, CUdeviceptr src, size_t n), (dst, src, n))
SYNC(cuMemcpyAtoH_v2, COPY_DTOH, (void *dst, CUarray src, size_t at, size_t n), (dst, src, at, n))
SYNC(cuMemcpyDtoD_v2, COPY_DTOD, (CUdeviceptr dst, CUdeviceptr src, size_t n), (dst, src, n))
SYNC(cuMemcpy, dxpu_active_direction(dst, src), (CUdeviceptr dst, CUdeviceptr src, size_t n), (dst, src, n))
SYNC(cuMemcpyPeer, COPY_DTOD, (CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from, size_t n), (dst, to, src, from, n))

ASYNC(cuMemcpyHtoDAsync_v2, COPY_HTOD, (CUdeviceptr dst, const void *src, size_t n, CUstream s), (dst, src, n, s))
ASYNC(cuMemcpyHtoAAsync_v2, COPY_HTOD, (CUarray dst, size_t at, const void *src, size_t n, CUstream s), (dst, at, src, n, s))
ASYNC(cuMemcpyDtoHAsync_v2, COPY_DTOH, (void *dst, CUdeviceptr src, size_t n, CUstream s), (dst, src, n, s))
ASYNC(cuMemcpyAtoHAsync_v2, COPY_DTOH, (void *dst, CUarray src, size_t at, size_t n, CUstream s), (dst, src, at, n, s))
ASYNC(cuMemcpyDtoDAsync_v2, COPY_DTOD, (CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream s), (dst, src, n, s))
ASYNC(cuMemcpyAsync, dxpu_active_direction(dst, src), (CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream s), (dst, src, n, s))
ASYNC(cuMemcpyPeerAsync, COPY_DTOD, (CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from, size_t n, CUstream s), (dst, to, src, from, n, s))
ASYNC(cuMemcpyWithAttributesAsync, dxpu_active_direction(dst, src), (CUdeviceptr dst, CUdeviceptr src, size_t n, void *attributes, CUstream s), (dst, src, n, attributes, s))

/* ---- two and three dimensions ---- */

/* Unified addresses say by themselves where they are. */
static enum direction between(unsigned from, CUdeviceptr src, unsigned to, CUdeviceptr dst)
{
	CUdeviceptr unknown = 0;

	if (from == CU_MEMORYTYPE_UNIFIED || to == CU_MEMORYTYPE_UNIFIED) {
		enum direction d = dxpu_active_direction(to == CU_MEMORYTYPE_UNIFIED ? dst : unknown, from == CU_MEMORYTYPE_UNIFIED ? src : unknown);
		bool host_from = from == CU_MEMORYTYPE_UNIFIED ? d == COPY_HTOD || d == COPY_OTHER : from == CU_MEMORYTYPE_HOST;
		bool host_to = to == CU_MEMORYTYPE_UNIFIED ? d == COPY_DTOH || d == COPY_OTHER : to == CU_MEMORYTYPE_HOST;

		from = host_from ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
		to = host_to ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
	}
	if (from == CU_MEMORYTYPE_HOST)
		return to == CU_MEMORYTYPE_HOST ? COPY_OTHER : COPY_HTOD;
	return to == CU_MEMORYTYPE_HOST ? COPY_DTOH : COPY_DTOD;
}

#define SHAPE(symbol, stream, thread, async, bytes, params, args) \
	COPY(symbol, p ? between(p->srcMemoryType, p->srcDevice, p->dstMemoryType, p->dstDevice) : COPY_OTHER, \
	     stream, thread, async, p ? (bytes) : 0, params, args)

#define AREA (p->WidthInBytes * p->Height)
#define VOLUME (p->WidthInBytes * p->Height * p->Depth)

SHAPE(cuMemcpy2D_v2, NULL, 0, false, AREA, (const CUDA_MEMCPY2D *p), (p))
SHAPE(cuMemcpy2D_v2_ptds, NULL, 1, false, AREA, (const CUDA_MEMCPY2D *p), (p))
SHAPE(cuMemcpy2DUnaligned_v2, NULL, 0, false, AREA, (const CUDA_MEMCPY2D *p), (p))
SHAPE(cuMemcpy2DUnaligned_v2_ptds, NULL, 1, false, AREA, (const CUDA_MEMCPY2D *p), (p))
SHAPE(cuMemcpy3D_v2, NULL, 0, false, VOLUME, (const CUDA_MEMCPY3D *p), (p))
SHAPE(cuMemcpy3D_v2_ptds, NULL, 1, false, VOLUME, (const CUDA_MEMCPY3D *p), (p))
SHAPE(cuMemcpy2DAsync_v2, s, 0, true, AREA, (const CUDA_MEMCPY2D *p, CUstream s), (p, s))
SHAPE(cuMemcpy2DAsync_v2_ptsz, s, 1, true, AREA, (const CUDA_MEMCPY2D *p, CUstream s), (p, s))
SHAPE(cuMemcpy3DAsync_v2, s, 0, true, VOLUME, (const CUDA_MEMCPY3D *p, CUstream s), (p, s))
SHAPE(cuMemcpy3DAsync_v2_ptsz, s, 1, true, VOLUME, (const CUDA_MEMCPY3D *p, CUstream s), (p, s))

/* ---- batches: one command, so the directions' bytes are taken together ---- */

struct batch {
	size_t in, out, total;
};

static void add_to_batch(struct batch *b, CUdeviceptr dst, CUdeviceptr src, size_t n)
{
	enum direction d = dxpu_direction(dst, src);

	b->total += n;
	if (d == COPY_HTOD)
		b->in += n;
	else if (d == COPY_DTOH)
		b->out += n;
}

static bool enter_batch(struct record *r, CUstream s, int thread)
{
	return dxpu_enter_stream(r, KIND_COPY, s, thread);
}

static void begin_batch(struct record *r, const struct batch *b, size_t count)
{
	r->arg = b->total;
	r->count = (uint32_t)count;
	if (b->in > 0 && b->out == 0)
		r->kind = KIND_HTOD;
	else if (b->out > 0 && b->in == 0)
		r->kind = KIND_DTOH;
	if (b->in > 0)
		count_copy(COPY_HTOD, b->in);
	if (b->out > 0)
		count_copy(COPY_DTOH, b->out);
	if (may_insert(r))
		r->injected = (uint64_t)(dxpu_inject_copy(record_stream(r), COPY_HTOD, b->in) + dxpu_inject_copy(record_stream(r), COPY_DTOH, b->out));
	dxpu_begin(r);
}

#define BATCH(symbol, thread, params, args) \
	CUresult hook_##symbol params; \
	CUresult hook_##symbol params \
	{ \
		struct batch b = {0}; \
		struct record r; \
\
		if (!enter_batch(&r, s, thread)) \
			return DRIVER(symbol) args; \
		for (size_t i = 0; dsts && srcs && sizes && i < count; i++) \
			add_to_batch(&b, dsts[i], srcs[i], sizes[i]); \
		begin_batch(&r, &b, count); \
		return dxpu_leave(&r, DRIVER(symbol) args); \
	}

#define BATCH1_PARAMS (CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count, void *attrs, size_t *indices, size_t attributes, size_t *failed, CUstream s)
#define BATCH2_PARAMS (CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count, void *attrs, size_t *indices, size_t attributes, CUstream s)

BATCH(cuMemcpyBatchAsync, 0, BATCH1_PARAMS, (dsts, srcs, sizes, count, attrs, indices, attributes, failed, s))
BATCH(cuMemcpyBatchAsync_ptsz, 1, BATCH1_PARAMS, (dsts, srcs, sizes, count, attrs, indices, attributes, failed, s))
BATCH(cuMemcpyBatchAsync_v2, 0, BATCH2_PARAMS, (dsts, srcs, sizes, count, attrs, indices, attributes, s))
BATCH(cuMemcpyBatchAsync_v2_ptsz, 1, BATCH2_PARAMS, (dsts, srcs, sizes, count, attrs, indices, attributes, s))

/* Of operations on arrays the element size is not known; they are passed by. */
#define BATCH3D(symbol, thread, params, args) \
	CUresult hook_##symbol params; \
	CUresult hook_##symbol params \
	{ \
		struct batch b = {0}; \
		struct record r; \
\
		if (!enter_batch(&r, s, thread)) \
			return DRIVER(symbol) args; \
		for (size_t i = 0; ops && i < count; i++) { \
			if (ops[i].src.type == CU_MEMCPY_OPERAND_TYPE_POINTER && ops[i].dst.type == CU_MEMCPY_OPERAND_TYPE_POINTER) \
				add_to_batch(&b, ops[i].dst.ptr, ops[i].src.ptr, ops[i].width * ops[i].height * ops[i].depth); \
		} \
		begin_batch(&r, &b, count); \
		return dxpu_leave(&r, DRIVER(symbol) args); \
	}

#define BATCH3D1_PARAMS (size_t count, CUDA_MEMCPY3D_BATCH_OP *ops, size_t *failed, unsigned long long flags, CUstream s)
#define BATCH3D2_PARAMS (size_t count, CUDA_MEMCPY3D_BATCH_OP *ops, unsigned long long flags, CUstream s)

BATCH3D(cuMemcpy3DBatchAsync, 0, BATCH3D1_PARAMS, (count, ops, failed, flags, s))
BATCH3D(cuMemcpy3DBatchAsync_ptsz, 1, BATCH3D1_PARAMS, (count, ops, failed, flags, s))
BATCH3D(cuMemcpy3DBatchAsync_v2, 0, BATCH3D2_PARAMS, (count, ops, flags, s))
BATCH3D(cuMemcpy3DBatchAsync_v2_ptsz, 1, BATCH3D2_PARAMS, (count, ops, flags, s))

/* ---- prefetching managed memory ---- */

static bool enter_prefetch(struct record *r, bool to_device, CUstream s, int thread, size_t bytes)
{
	enum direction d = to_device ? COPY_HTOD : COPY_DTOH;

	if (!dxpu_enter_stream(r, KIND_PREFETCH, s, thread))
		return false;
	r->arg = bytes;
	r->count = to_device;
	count_copy(d, bytes);
	if (may_insert(r))
		r->injected = (uint64_t)dxpu_inject_copy(record_stream(r), d, bytes);
	dxpu_begin(r);
	return true;
}

#define PREFETCH(symbol, thread, to_device, params, args) \
	CUresult hook_##symbol params; \
	CUresult hook_##symbol params \
	{ \
		struct record r; \
\
		if (!enter_prefetch(&r, to_device, s, thread, n)) \
			return DRIVER(symbol) args; \
		return dxpu_leave(&r, DRIVER(symbol) args); \
	}

PREFETCH(cuMemPrefetchAsync, 0, to >= 0, (CUdeviceptr p, size_t n, CUdevice to, CUstream s), (p, n, to, s))
PREFETCH(cuMemPrefetchAsync_ptsz, 1, to >= 0, (CUdeviceptr p, size_t n, CUdevice to, CUstream s), (p, n, to, s))
PREFETCH(cuMemPrefetchAsync_v2, 0, to.type == CU_MEM_LOCATION_TYPE_DEVICE, (CUdeviceptr p, size_t n, CUmemLocation to, unsigned flags, CUstream s), (p, n, to, flags, s))
PREFETCH(cuMemPrefetchAsync_v2_ptsz, 1, to.type == CU_MEM_LOCATION_TYPE_DEVICE, (CUdeviceptr p, size_t n, CUmemLocation to, unsigned flags, CUstream s), (p, n, to, flags, s))
