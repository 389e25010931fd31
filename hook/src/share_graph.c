/*
 * Memory of graphs. A graph with memory nodes gets its memory when it is launched, and
 * the driver keeps it afterwards. The library charges an executable graph for the sum of
 * its memory nodes, which is the most that it can hold, until it is destroyed.
 */
#include <stdlib.h>

#include "share.h"
#include "wrap.h"

static uint64_t node_bytes(CUgraphNode n)
{
	CUresult (*get)(CUgraphNode, CUDA_MEM_ALLOC_NODE_PARAMS *) =
		REAL(CUresult(*)(CUgraphNode, CUDA_MEM_ALLOC_NODE_PARAMS *), cuGraphMemAllocNodeGetParams);
	CUDA_MEM_ALLOC_NODE_PARAMS p = {0};

	return get && get(n, &p) == CUDA_SUCCESS ? p.bytesize : 0;
}

/* Sums the memory nodes of a graph and its child graphs; UINT64_MAX: too much. */
static uint64_t graph_bytes(CUgraph g, int depth)
{
	CUresult (*get)(CUgraph, CUgraphNode *, size_t *) = REAL(CUresult(*)(CUgraph, CUgraphNode *, size_t *), cuGraphGetNodes);
	CUresult (*type_of)(CUgraphNode, int *) = REAL(CUresult(*)(CUgraphNode, int *), cuGraphNodeGetType);
	CUresult (*child_of)(CUgraphNode, CUgraph *) = REAL(CUresult(*)(CUgraphNode, CUgraph *), cuGraphChildGraphNodeGetGraph);
	CUgraphNode *nodes;
	uint64_t sum = 0;
	size_t n = 0;

	if (depth == 0 || !get || !type_of || get(g, NULL, &n) != CUDA_SUCCESS || n == 0)
		return 0;
	nodes = calloc(n, sizeof *nodes);
	if (!nodes || get(g, nodes, &n) != CUDA_SUCCESS) {
		free(nodes);
		return UINT64_MAX;
	}
	for (size_t i = 0; i < n; i++) {
		CUgraph child;
		uint64_t more = 0;
		int type;

		if (type_of(nodes[i], &type) != CUDA_SUCCESS)
			continue;
		if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
			more = node_bytes(nodes[i]);
		else if (type == CU_GRAPH_NODE_TYPE_GRAPH && child_of && child_of(nodes[i], &child) == CUDA_SUCCESS)
			more = graph_bytes(child, depth - 1);
		if (__builtin_add_overflow(sum, more, &sum))
			sum = UINT64_MAX;
	}
	free(nodes);
	return sum;
}

static CUresult destroy(CUgraphExec e)
{
	CUresult hook_cuGraphExecDestroy(CUgraphExec);

	return hook_cuGraphExecDestroy(e);
}

static CUresult undo_graph(uintptr_t e) { return destroy((CUgraphExec)e); }

static CUresult instantiated(struct owner *o, CUresult r, const CUgraphExec *e)
{
	if (r == CUDA_SUCCESS)
		o->key = (uintptr_t)*e;
	if (o->bytes == 0)
		return r;
	return dxpu_share_after(o, r, o->bytes, undo_graph);
}

/* The wrapper of injection counts the kernels. */
#define INSTANTIATE(symbol, params, args) \
	CUresult hook_##symbol params; \
	CUresult share_##symbol params; \
	CUresult share_##symbol params \
	{ \
		struct owner o = {.kind = OWNED_GRAPH, .gpu = dxpu_share_current(), .bytes = dxpu_share_is_on() && e ? graph_bytes(g, GRAPH_DEPTH) : 0}; \
		CUresult r = o.bytes ? dxpu_share_before(o.gpu, o.bytes) : CUDA_SUCCESS; \
\
		return r != CUDA_SUCCESS ? r : instantiated(&o, hook_##symbol args, e); \
	}

#define OLD_PARAMS (CUgraphExec *e, CUgraph g, CUgraphNode *failed, char *log, size_t size)

INSTANTIATE(cuGraphInstantiate, OLD_PARAMS, (e, g, failed, log, size))
INSTANTIATE(cuGraphInstantiate_v2, OLD_PARAMS, (e, g, failed, log, size))
INSTANTIATE(cuGraphInstantiateWithFlags, (CUgraphExec *e, CUgraph g, unsigned long long flags), (e, g, flags))
INSTANTIATE(cuGraphInstantiateWithParams, (CUgraphExec *e, CUgraph g, void *params), (e, g, params))
INSTANTIATE(cuGraphInstantiateWithParams_ptsz, (CUgraphExec *e, CUgraph g, void *params), (e, g, params))

/* The driver keeps the memory of destroyed graphs until it is told to trim. */
SHARE(cuGraphExecDestroy, CUgraphExec e)
{
	CUresult (*device)(CUdevice *) = REAL(CUresult(*)(CUdevice *), cuCtxGetDevice);
	CUresult (*trim)(CUdevice) = REAL(CUresult(*)(CUdevice), cuDeviceGraphMemTrim);
	struct freeing f;
	CUdevice d;
	CUresult r;

	dxpu_share_free(&f, OWNED_GRAPH, (uintptr_t)e);
	r = destroy(e);
	if (f.known && r == CUDA_SUCCESS && trim && device && device(&d) == CUDA_SUCCESS)
		(void)trim(d);
	return dxpu_share_freed(&f, r);
}
