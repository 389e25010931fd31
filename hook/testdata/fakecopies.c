/*
 * The fake driver's copies of several dimensions and in batches, and its prefetches.
 * The log shows the arguments of each.
 */
#include "fake.h"

/* Array 0x6001 has elements of two floats, array 0x6002 a video format. */
CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *d, CUarray a)
{
	*d = (CUDA_ARRAY3D_DESCRIPTOR){.Width = 1024, .Height = 1024, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 2};
	if ((uintptr_t)a == 0x6002)
		d->Format = 0xb0;
	return CUDA_SUCCESS;
}

static const char *captured(CUstream s, int thread) { return stream_of(s, thread)->capturing ? " captured" : ""; }

static CUresult volume(const char *name, const CUDA_MEMCPY3D *p, CUstream s, int thread)
{
	log_call("%s %llx %zux%zux%zu from %u to %u%s", name, id(s), p->WidthInBytes, p->Height, p->Depth, p->srcMemoryType, p->dstMemoryType, captured(s, thread));
	return add(s, thread, 1, 5000);
}

static CUresult operations(const char *name, size_t n, const CUDA_MEMCPY3D_BATCH_OP *ops, CUstream s, int thread)
{
	log_call("%s %llx %zu, the last %zux%zux%zu%s", name, id(s), n, ops[n - 1].width, ops[n - 1].height, ops[n - 1].depth, captured(s, thread));
	return add(s, thread, 1, 5000);
}

static CUresult ranges(const char *name, const CUdeviceptr *p, const size_t *sizes, size_t n, const CUmemLocation *to, const size_t *first, size_t k, unsigned long long flags, CUstream s, int thread)
{
	log_call("%s %llx %zu, the last %zu of %d, to %zu, the last %d from %zu, flags %llu%s", name, id(s), n, sizes[n - 1], p[n - 1] != 0,
	    k, to[k - 1].type, first[k - 1], flags, captured(s, thread));
	return add(s, thread, 1, 5000);
}

#define BATCH_PARAMS CUdeviceptr *p, size_t *sizes, size_t n, CUmemLocation *to, size_t *first, size_t k, unsigned long long flags, CUstream s
#define MORE(suffix, async_suffix, thread) \
	CUresult cuMemcpy3DPeer##suffix(const CUDA_MEMCPY3D *p) { return volume("cuMemcpy3DPeer" #suffix, p, NULL, thread); } \
	CUresult cuMemcpy3DPeerAsync##async_suffix(const CUDA_MEMCPY3D *p, CUstream s) { return volume("cuMemcpy3DPeerAsync" #async_suffix, p, s, thread); } \
	CUresult cuMemcpy3DWithAttributesAsync##async_suffix(CUDA_MEMCPY3D_BATCH_OP *op, unsigned long long flags, CUstream s) \
	{ (void)flags; return operations("cuMemcpy3DWithAttributesAsync" #async_suffix, 1, op, s, thread); } \
	CUresult cuMemcpy3DBatchAsync##async_suffix(size_t n, CUDA_MEMCPY3D_BATCH_OP *ops, size_t *failed, unsigned long long flags, CUstream s) \
	{ (void)flags; *failed = 0; return operations("cuMemcpy3DBatchAsync" #async_suffix, n, ops, s, thread); } \
	CUresult cuMemcpy3DBatchAsync_v2##async_suffix(size_t n, CUDA_MEMCPY3D_BATCH_OP *ops, unsigned long long flags, CUstream s) \
	{ (void)flags; return operations("cuMemcpy3DBatchAsync_v2" #async_suffix, n, ops, s, thread); } \
	CUresult cuMemcpyBatchAsync##async_suffix(CUdeviceptr *d, CUdeviceptr *f, size_t *sizes, size_t n, void *a, size_t *i, size_t m, size_t *failed, CUstream s) \
	{ (void)d, (void)f, (void)sizes, (void)a, (void)i, (void)m; *failed = 0; log_call("cuMemcpyBatchAsync" #async_suffix " %llx %zu", id(s), n); return add(s, thread, 1, 5000); } \
	CUresult cuMemPrefetchAsync##async_suffix(CUdeviceptr p, size_t n, CUdevice to, CUstream s) \
	{ (void)p; log_call("cuMemPrefetchAsync" #async_suffix " %llx %zu to %d", id(s), n, to); return add(s, thread, 1, 5000); } \
	CUresult cuMemPrefetchAsync_v2##async_suffix(CUdeviceptr p, size_t n, CUmemLocation to, unsigned flags, CUstream s) \
	{ (void)p, (void)flags; log_call("cuMemPrefetchAsync_v2" #async_suffix " %llx %zu to %d", id(s), n, to.type); return add(s, thread, 1, 5000); } \
	CUresult cuMemPrefetchBatchAsync##async_suffix(BATCH_PARAMS) { return ranges("cuMemPrefetchBatchAsync" #async_suffix, p, sizes, n, to, first, k, flags, s, thread); } \
	CUresult cuMemDiscardAndPrefetchBatchAsync##async_suffix(BATCH_PARAMS) { return ranges("cuMemDiscardAndPrefetchBatchAsync" #async_suffix, p, sizes, n, to, first, k, flags, s, thread); }

MORE(, , 0)
MORE(_ptds, _ptsz, 1)
