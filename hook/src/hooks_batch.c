/*
 * Batches of copies and prefetches. A batch is one command, so its delay follows
 * from the sum of bytes in each direction.
 */
#include "wrap.h"

struct batch {
	size_t in, out, total;
	unsigned to_device; /* number of parts in that direction */
};

static void add_to_batch(struct batch *b, bool from_host, bool to_host, size_t n)
{
	b->total += n;
	if (from_host && !to_host) {
		b->in += n;
		b->to_device++;
	} else if (to_host && !from_host) {
		b->out += n;
	}
}

/* Inserts the delays of in bytes to the device and out bytes to the host. */
static void inject_batch(struct record *r, size_t in, size_t out)
{
	if (in > 0)
		dxpu_count_copy(COPY_HTOD, in);
	if (out > 0)
		dxpu_count_copy(COPY_DTOH, out);
	if (may_insert(r))
		r->injected = (uint64_t)(dxpu_inject_copy(record_stream(r), COPY_HTOD, in) + dxpu_inject_copy(record_stream(r), COPY_DTOH, out));
	dxpu_begin(r);
}

static void begin_batch(struct record *r, const struct batch *b, size_t count)
{
	r->arg = b->total;
	r->count = count > UINT32_MAX ? UINT32_MAX : (uint32_t)count;
	if (b->in > 0 && b->out == 0)
		r->kind = KIND_HTOD;
	else if (b->out > 0 && b->in == 0)
		r->kind = KIND_DTOH;
	else if (b->in == 0)
		dxpu_count_copy(COPY_OTHER, b->total);
	inject_batch(r, b->in, b->out);
}

#define BATCH(symbol, thread, params, args) \
	CUresult hook_##symbol params; \
	CUresult hook_##symbol params \
	{ \
		struct batch b = {0}; \
		struct record r; \
\
		if (!dxpu_enter_stream(&r, KIND_COPY, s, thread)) \
			return DRIVER(symbol) args; \
		for (size_t i = 0; dsts && srcs && sizes && i < count; i++) \
			add_to_batch(&b, dxpu_on_host(srcs[i]), dxpu_on_host(dsts[i]), sizes[i]); \
		begin_batch(&r, &b, count); \
		return dxpu_leave(&r, DRIVER(symbol) args); \
	}

#define BATCH1_PARAMS (CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count, void *attrs, size_t *indices, size_t attributes, size_t *failed, CUstream s)
#define BATCH2_PARAMS (CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count, void *attrs, size_t *indices, size_t attributes, CUstream s)

BATCH(cuMemcpyBatchAsync, 0, BATCH1_PARAMS, (dsts, srcs, sizes, count, attrs, indices, attributes, failed, s))
BATCH(cuMemcpyBatchAsync_ptsz, 1, BATCH1_PARAMS, (dsts, srcs, sizes, count, attrs, indices, attributes, failed, s))
BATCH(cuMemcpyBatchAsync_v2, 0, BATCH2_PARAMS, (dsts, srcs, sizes, count, attrs, indices, attributes, s))
BATCH(cuMemcpyBatchAsync_v2_ptsz, 1, BATCH2_PARAMS, (dsts, srcs, sizes, count, attrs, indices, attributes, s))

/* ---- three dimensions, between pointers and arrays ---- */

/*
 * Returns the size of an array's element, and 1 for formats other than integers and
 * floats (video planes, compressed blocks). The delay of such a copy is at least
 * one ΔRTT and may lack part of the bandwidth's delay.
 */
static size_t element_size(CUarray a)
{
	CUresult (*describe)(CUDA_ARRAY3D_DESCRIPTOR *, CUarray) = REAL(CUresult(*)(CUDA_ARRAY3D_DESCRIPTOR *, CUarray), cuArray3DGetDescriptor_v2);
	CUDA_ARRAY3D_DESCRIPTOR d = {0};

	if (!describe || describe(&d, a) != CUDA_SUCCESS)
		return 1;
	switch (d.Format) {
	case CU_AD_FORMAT_UNSIGNED_INT8:
	case CU_AD_FORMAT_SIGNED_INT8:
		return d.NumChannels;
	case CU_AD_FORMAT_UNSIGNED_INT16:
	case CU_AD_FORMAT_SIGNED_INT16:
	case CU_AD_FORMAT_HALF:
		return 2 * (size_t)d.NumChannels;
	case CU_AD_FORMAT_UNSIGNED_INT32:
	case CU_AD_FORMAT_SIGNED_INT32:
	case CU_AD_FORMAT_FLOAT:
		return 4 * (size_t)d.NumChannels;
	default:
		return 1;
	}
}

static bool is_array(const CUmemcpy3DOperand *o) { return o->type == CU_MEMCPY_OPERAND_TYPE_ARRAY; }
static bool is_known(const CUmemcpy3DOperand *o) { return is_array(o) || o->type == CU_MEMCPY_OPERAND_TYPE_POINTER; }
static bool is_host(const CUmemcpy3DOperand *o) { return !is_array(o) && dxpu_on_host(o->ptr); }

/* The extent is in elements of the array, or in bytes without an array. */
static void add_operation(struct batch *b, const CUDA_MEMCPY3D_BATCH_OP *op)
{
	const CUmemcpy3DOperand *array = is_array(&op->dst) ? &op->dst : is_array(&op->src) ? &op->src : NULL;
	size_t elements = op->width * op->height * op->depth;

	if (is_known(&op->src) && is_known(&op->dst))
		add_to_batch(b, is_host(&op->src), is_host(&op->dst), elements * (array ? element_size(array->array) : 1));
}

#define BATCH3D(symbol, thread, count, params, args) \
	CUresult hook_##symbol params; \
	CUresult hook_##symbol params \
	{ \
		struct batch b = {0}; \
		struct record r; \
\
		if (!dxpu_enter_stream(&r, KIND_COPY, s, thread)) \
			return DRIVER(symbol) args; \
		for (size_t i = 0; ops && i < (count); i++) \
			add_operation(&b, &ops[i]); \
		begin_batch(&r, &b, count); \
		return dxpu_leave(&r, DRIVER(symbol) args); \
	}

#define BATCH3D1_PARAMS (size_t n, CUDA_MEMCPY3D_BATCH_OP *ops, size_t *failed, unsigned long long flags, CUstream s)
#define BATCH3D2_PARAMS (size_t n, CUDA_MEMCPY3D_BATCH_OP *ops, unsigned long long flags, CUstream s)
#define ONE3D_PARAMS (CUDA_MEMCPY3D_BATCH_OP *ops, unsigned long long flags, CUstream s)

BATCH3D(cuMemcpy3DBatchAsync, 0, n, BATCH3D1_PARAMS, (n, ops, failed, flags, s))
BATCH3D(cuMemcpy3DBatchAsync_ptsz, 1, n, BATCH3D1_PARAMS, (n, ops, failed, flags, s))
BATCH3D(cuMemcpy3DBatchAsync_v2, 0, n, BATCH3D2_PARAMS, (n, ops, flags, s))
BATCH3D(cuMemcpy3DBatchAsync_v2_ptsz, 1, n, BATCH3D2_PARAMS, (n, ops, flags, s))
BATCH3D(cuMemcpy3DWithAttributesAsync, 0, 1, ONE3D_PARAMS, (ops, flags, s))
BATCH3D(cuMemcpy3DWithAttributesAsync_ptsz, 1, 1, ONE3D_PARAMS, (ops, flags, s))

/* ---- prefetching managed memory ---- */

static bool enter_prefetch(struct record *r, CUstream s, int thread) { return dxpu_enter_stream(r, KIND_PREFETCH, s, thread); }

/*
 * A prefetch that discards the contents of memory moves no data. It is a command
 * that changes the mapping, so it is delayed by a round trip (❶) and not by
 * bandwidth (❷).
 */
static void begin_prefetch(struct record *r, const struct batch *b, bool discard)
{
	r->arg = b->total;
	r->count = b->to_device;
	if (discard)
		r->flags |= FLAG_DISCARD;
	inject_batch(r, discard ? b->in > 0 : b->in, discard ? b->out > 0 : b->out);
}

#define PREFETCH(symbol, thread, to_device, params, args) \
	CUresult hook_##symbol params; \
	CUresult hook_##symbol params \
	{ \
		struct batch b = {0}; \
		struct record r; \
\
		if (!enter_prefetch(&r, s, thread)) \
			return DRIVER(symbol) args; \
		add_to_batch(&b, to_device, !(to_device), n); \
		begin_prefetch(&r, &b, false); \
		return dxpu_leave(&r, DRIVER(symbol) args); \
	}

PREFETCH(cuMemPrefetchAsync, 0, to >= 0, (CUdeviceptr p, size_t n, CUdevice to, CUstream s), (p, n, to, s))
PREFETCH(cuMemPrefetchAsync_ptsz, 1, to >= 0, (CUdeviceptr p, size_t n, CUdevice to, CUstream s), (p, n, to, s))
PREFETCH(cuMemPrefetchAsync_v2, 0, to.type == CU_MEM_LOCATION_TYPE_DEVICE, (CUdeviceptr p, size_t n, CUmemLocation to, unsigned flags, CUstream s), (p, n, to, flags, s))
PREFETCH(cuMemPrefetchAsync_v2_ptsz, 1, to.type == CU_MEM_LOCATION_TYPE_DEVICE, (CUdeviceptr p, size_t n, CUmemLocation to, unsigned flags, CUstream s), (p, n, to, flags, s))

/* A location applies from its index up to the index of the next one. */
static struct batch prefetches(const size_t *sizes, size_t count, const CUmemLocation *to, const size_t *first, size_t locations)
{
	struct batch b = {0};
	size_t at = 0;

	for (size_t i = 0; sizes && to && first && locations > 0 && i < count; i++) {
		bool device;

		while (at + 1 < locations && first[at + 1] <= i)
			at++;
		device = to[at].type == CU_MEM_LOCATION_TYPE_DEVICE;
		add_to_batch(&b, device, !device, sizes[i]);
	}
	return b;
}

#define PREFETCHES(symbol, thread, discard) \
	HOOK(symbol, CUdeviceptr *ps, size_t *sizes, size_t count, CUmemLocation *to, size_t *first, size_t locations, unsigned long long flags, CUstream s) \
	{ \
		struct batch b; \
		struct record r; \
\
		if (!enter_prefetch(&r, s, thread)) \
			return DRIVER(symbol)(ps, sizes, count, to, first, locations, flags, s); \
		b = prefetches(sizes, count, to, first, locations); \
		begin_prefetch(&r, &b, discard); \
		return dxpu_leave(&r, DRIVER(symbol)(ps, sizes, count, to, first, locations, flags, s)); \
	}

PREFETCHES(cuMemPrefetchBatchAsync, 0, false)
PREFETCHES(cuMemPrefetchBatchAsync_ptsz, 1, false)
PREFETCHES(cuMemDiscardAndPrefetchBatchAsync, 0, true)
PREFETCHES(cuMemDiscardAndPrefetchBatchAsync_ptsz, 1, true)
