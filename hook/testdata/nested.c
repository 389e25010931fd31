/*
 * A program that shares a GPU and launches a graph with memory in nested graphs: "nest DEPTH
 * BYTES". It answers as share.c does.
 */
#include <stdio.h>
#include <string.h>

#include "cu.h"

CUresult cuInit(unsigned), cuDevicePrimaryCtxRetain(CUcontext *, CUdevice), cuCtxSetCurrent(CUcontext), cuStreamCreate(CUstream *, unsigned);
CUresult cuStreamBeginCapture_v2(CUstream, int), cuMemAllocAsync(CUdeviceptr *, size_t, CUstream), cuStreamEndCapture(CUstream, CUgraph *);
CUresult cuGraphCreate(CUgraph *, unsigned), cuGraphAddChildGraphNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUgraph);
CUresult cuGraphInstantiateWithFlags(CUgraphExec *, CUgraph, unsigned long long), cuGraphLaunch(CUgraphExec, CUstream), cuGraphExecDestroy(CUgraphExec);

static CUstream stream;

static CUresult start(void)
{
	CUcontext c;
	CUresult r = cuInit(0);

	return r || (r = cuDevicePrimaryCtxRetain(&c, 0)) || (r = cuCtxSetCurrent(c)) ? r : cuStreamCreate(&stream, 0);
}

static CUresult nest(int depth, size_t bytes)
{
	CUgraphExec e;
	CUgraph g, outer;
	CUgraphNode n;
	CUdeviceptr p;
	CUresult r;

	(void)cuStreamBeginCapture_v2(stream, 0);
	(void)cuMemAllocAsync(&p, bytes, stream);
	(void)cuStreamEndCapture(stream, &g);
	for (; depth > 0; depth--, g = outer) {
		(void)cuGraphCreate(&outer, 0);
		(void)cuGraphAddChildGraphNode(&n, outer, NULL, 0, g);
	}
	r = cuGraphInstantiateWithFlags(&e, g, 0);
	if (!r && (r = cuGraphLaunch(e, stream)) == CUDA_SUCCESS)
		r = cuGraphExecDestroy(e);
	return r;
}

int main(void)
{
	char what[16];
	size_t bytes;
	int depth;

	while (scanf("%15s %d %zu", what, &depth, &bytes) == 3) {
		printf("%d 0 0\n", strcmp(what, "init") == 0 ? start() : nest(depth, bytes));
		fflush(stdout);
	}
	return 0;
}
