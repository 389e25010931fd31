/*
 * Declarations shared by the files of the test program: the driver's functions,
 * found in the way that the first argument selects, and the state of a scenario.
 */
#ifndef PROGRAM_H
#define PROGRAM_H

#include "cu.h"

#define GRID unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned

/* name, type, versions of the legacy and the per-thread form, suffixes of both */
#define CALLS(X) \
	X(cuInit, (unsigned), 2000, 2000, , ) \
	X(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice), 7000, 7000, , ) \
	X(cuCtxSetCurrent, (CUcontext), 4000, 4000, , ) \
	X(cuDevicePrimaryCtxRelease, (CUdevice), 11000, 11000, _v2, _v2) \
	X(cuCtxSynchronize, (void), 2000, 2000, , ) \
	X(cuMemAlloc, (CUdeviceptr *, size_t), 3020, 3020, _v2, _v2) \
	X(cuModuleLoadData, (CUmodule *, const void *), 2000, 2000, , ) \
	X(cuModuleGetFunction, (CUfunction *, CUmodule, const char *), 2000, 2000, , ) \
	X(cuStreamCreate, (CUstream *, unsigned), 2000, 2000, , ) \
	X(cuEventCreate, (CUevent *, unsigned), 2000, 2000, , ) \
	X(cuEventElapsedTime, (float *, CUevent, CUevent), 2000, 2000, , ) \
	X(cuLaunchKernel, (CUfunction, GRID, CUstream, void **, void **), 4000, 7000, , _ptsz) \
	X(cuLaunchKernelEx, (const CUlaunchConfig *, CUfunction, void **, void **), 11060, 11060, , _ptsz) \
	X(cuMemcpyHtoD, (CUdeviceptr, const void *, size_t), 3020, 7000, _v2, _v2_ptds) \
	X(cuMemcpyDtoH, (void *, CUdeviceptr, size_t), 3020, 7000, _v2, _v2_ptds) \
	X(cuMemcpyHtoDAsync, (CUdeviceptr, const void *, size_t, CUstream), 3020, 7000, _v2, _v2_ptsz) \
	X(cuMemcpyDtoHAsync, (void *, CUdeviceptr, size_t, CUstream), 3020, 7000, _v2, _v2_ptsz) \
	X(cuMemcpyDtoDAsync, (CUdeviceptr, CUdeviceptr, size_t, CUstream), 3020, 7000, _v2, _v2_ptsz) \
	X(cuMemcpyAsync, (CUdeviceptr, CUdeviceptr, size_t, CUstream), 4000, 7000, , _ptsz) \
	X(cuMemcpy2DAsync, (const CUDA_MEMCPY2D *, CUstream), 3020, 7000, _v2, _v2_ptsz) \
	X(cuMemcpyBatchAsync, (CUdeviceptr *, CUdeviceptr *, size_t *, size_t, void *, size_t *, size_t, CUstream), 13000, 13000, _v2, _v2_ptsz) \
	X(cuMemsetD8, (CUdeviceptr, unsigned char, size_t), 3020, 7000, _v2, _v2_ptds) \
	X(cuMemsetD8Async, (CUdeviceptr, unsigned char, size_t, CUstream), 3020, 7000, , _ptsz) \
	X(cuStreamSynchronize, (CUstream), 2000, 7000, , _ptsz)

/* Calls of CUDA 12 and 13: field, name, and the rest as above. */
#define RECENT(X) \
	X(batch1, cuMemcpyBatchAsync, (CUdeviceptr *, CUdeviceptr *, size_t *, size_t, void *, size_t *, size_t, size_t *, CUstream), 12080, 12080, , _ptsz) \
	X(batch3d1, cuMemcpy3DBatchAsync, (size_t, CUDA_MEMCPY3D_BATCH_OP *, size_t *, unsigned long long, CUstream), 12080, 12080, , _ptsz) \
	X(batch3d, cuMemcpy3DBatchAsync, (size_t, CUDA_MEMCPY3D_BATCH_OP *, unsigned long long, CUstream), 13000, 13000, _v2, _v2_ptsz) \
	X(attributes3d, cuMemcpy3DWithAttributesAsync, (CUDA_MEMCPY3D_BATCH_OP *, unsigned long long, CUstream), 13020, 13020, , _ptsz) \
	X(peer3d, cuMemcpy3DPeer, (const CUDA_MEMCPY3D *), 4000, 7000, , _ptds) \
	X(peer3d_async, cuMemcpy3DPeerAsync, (const CUDA_MEMCPY3D *, CUstream), 4000, 7000, , _ptsz) \
	X(a_to_d, cuMemcpyAtoD, (CUdeviceptr, CUarray, size_t, size_t), 3020, 7000, _v2, _v2_ptds) \
	X(d_to_a, cuMemcpyDtoA, (CUarray, size_t, CUdeviceptr, size_t), 3020, 7000, _v2, _v2_ptds) \
	X(a_to_a, cuMemcpyAtoA, (CUarray, size_t, CUarray, size_t, size_t), 3020, 7000, _v2, _v2_ptds) \
	X(prefetch1, cuMemPrefetchAsync, (CUdeviceptr, size_t, CUdevice, CUstream), 8000, 8000, , _ptsz) \
	X(prefetch, cuMemPrefetchAsync, (CUdeviceptr, size_t, CUmemLocation, unsigned, CUstream), 12020, 12020, _v2, _v2_ptsz) \
	X(prefetches, cuMemPrefetchBatchAsync, RANGES, 13000, 13000, , _ptsz) \
	X(discards, cuMemDiscardAndPrefetchBatchAsync, RANGES, 13000, 13000, , _ptsz) \
	X(add1, cuGraphAddNode, (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUgraphNodeParams *), 12020, 12020, , ) \
	X(add, cuGraphAddNode, (CUgraphNode *, CUgraph, const CUgraphNode *, const void *, size_t, CUgraphNodeParams *), 12030, 12030, _v2, _v2)
#define RANGES (CUdeviceptr *, size_t *, size_t, CUmemLocation *, size_t *, size_t, unsigned long long, CUstream)

/* Calls that the scenarios use in their legacy form only. */
#define LEGACY(X) \
	X(cuEventRecord, (CUevent, CUstream), 2000, 2000, , ) \
	X(cuEventSynchronize, (CUevent), 2000, 2000, , ) \
	X(cuStreamBeginCapture, (CUstream, int), 10010, 10010, _v2, _v2) \
	X(cuStreamEndCapture, (CUstream, CUgraph *), 10000, 10000, , ) \
	X(cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long), 11040, 11040, , ) \
	X(cuGraphLaunch, (CUgraphExec, CUstream), 10000, 10000, , ) \
	X(cuGraphExecDestroy, (CUgraphExec), 10000, 10000, , ) \
	X(cuGraphCreate, (CUgraph *, unsigned), 10000, 10000, , ) \
	X(cuGraphDestroy, (CUgraph), 10000, 10000, , ) \
	X(cuGraphDestroyNode, (CUgraphNode), 10000, 10000, , ) \
	X(cuLaunchCooperativeKernelMultiDevice, (CUDA_LAUNCH_PARAMS *, unsigned, unsigned), 9000, 9000, , )

extern struct functions {
#define FIELD(name, type, v, tv, suffix, tsuffix) CUresult (*name) type;
	CALLS(FIELD)
	LEGACY(FIELD)
#undef FIELD
#define FIELD(field, name, type, v, tv, suffix, tsuffix) CUresult (*field) type;
	RECENT(FIELD)
#undef FIELD
} cu;

extern CUstream stream;
extern CUdeviceptr device;
extern char *host;
enum { LARGE = 1 << 20 }; /* bytes of host; device has twice as many */

void check(const char *what, int ok);
void start(void);
void in_constructor(void);

/* Scenarios of recent.c. */
void recent(void);
void conditional(void);

#endif
