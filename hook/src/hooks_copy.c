/* Copies to the device, to the host, on a device and between devices. */
#include "wrap.h"

void dxpu_count_copy(enum direction d, size_t bytes)
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
	dxpu_count_copy(d, bytes);
	if (may_insert(r))
		r->injected = (uint64_t)dxpu_inject_copy(record_stream(r), d, bytes);
	dxpu_begin(r);
	return true;
}

/* A synchronous copy runs on the default stream, and so do its insertions. */
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
SYNC(cuMemcpyAtoD_v2, COPY_DTOD, (CUdeviceptr dst, CUarray src, size_t at, size_t n), (dst, src, at, n))
SYNC(cuMemcpyDtoA_v2, COPY_DTOD, (CUarray dst, size_t at, CUdeviceptr src, size_t n), (dst, at, src, n))
SYNC(cuMemcpyAtoA_v2, COPY_DTOD, (CUarray dst, size_t to, CUarray src, size_t from, size_t n), (dst, to, src, from, n))
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

/* The driver knows the location of a unified address. */
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

/* Either side may be host memory. The contexts are in fields that the plain form reserves. */
SHAPE(cuMemcpy3DPeer, NULL, 0, false, VOLUME, (const CUDA_MEMCPY3D *p), (p))
SHAPE(cuMemcpy3DPeer_ptds, NULL, 1, false, VOLUME, (const CUDA_MEMCPY3D *p), (p))
SHAPE(cuMemcpy3DPeerAsync, s, 0, true, VOLUME, (const CUDA_MEMCPY3D *p, CUstream s), (p, s))
SHAPE(cuMemcpy3DPeerAsync_ptsz, s, 1, true, VOLUME, (const CUDA_MEMCPY3D *p, CUstream s), (p, s))
