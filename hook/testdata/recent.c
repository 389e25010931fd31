/* Scenarios with calls of CUDA 12 and 13. */
#include <stdint.h>

#include "program.h"

static CUmemcpy3DOperand at(const void *host, CUdeviceptr p) { return (CUmemcpy3DOperand){.type = CU_MEMCPY_OPERAND_TYPE_POINTER, .ptr = host ? (uintptr_t)host : p}; }
static CUmemcpy3DOperand in_array(uintptr_t a) { return (CUmemcpy3DOperand){.type = CU_MEMCPY_OPERAND_TYPE_ARRAY, .array = (CUarray)a}; }

/* Copies of three dimensions, in batches, and between arrays. */
static void copies(void)
{
	CUDA_MEMCPY3D in = {.srcMemoryType = CU_MEMORYTYPE_HOST, .dstMemoryType = CU_MEMORYTYPE_DEVICE, .WidthInBytes = 64, .Height = 4, .Depth = 2};
	CUDA_MEMCPY3D out = {.srcMemoryType = CU_MEMORYTYPE_ARRAY, .dstMemoryType = CU_MEMORYTYPE_HOST, .WidthInBytes = 64, .Height = 4, .Depth = 1};
	CUDA_MEMCPY3D within = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .dstMemoryType = CU_MEMORYTYPE_UNIFIED, .WidthInBytes = 1, .Height = 1, .Depth = 1};
	CUDA_MEMCPY3D_BATCH_OP ops[4] = {
		{at(host, 0), at(NULL, device), 64, 4, 2, 1, 0},        /* 512 bytes in */
		{in_array(0x6001), at(host, 0), 10, 10, 1, 1, 0},       /* 800 bytes out */
		{at(host, 0), in_array(0x6001), 100, 100, 1, 1, 0},     /* 80000 bytes in */
		{in_array(0x6001), at(NULL, device), 100, 100, 1, 1, 0}, /* within the device */
	};
	CUDA_MEMCPY3D_BATCH_OP video = {at(host, 0), in_array(0x6002), 200, 200, 1, 1, 0}, unknown = {{.type = 9}, at(NULL, device), 64, 1, 1, 1, 0};
	CUdeviceptr to[2] = {device, (uintptr_t)host}, from[2] = {(uintptr_t)host, device};
	size_t sizes[2] = {40000, 512}, failed = 99;
	CUgraph g;

	within.dstDevice = device;
	check("peer", cu.peer3d(&in) == 0 && cu.peer3d_async(&in, stream) == 0 && cu.peer3d_async(&out, stream) == 0 && cu.peer3d_async(&within, stream) == 0);
	check("one", cu.attributes3d(&ops[0], 0, stream) == 0 && cu.attributes3d(&ops[2], 0, stream) == 0 && cu.attributes3d(&video, 0, stream) == 0);
	check("none", cu.attributes3d(&ops[3], 0, stream) == 0 && cu.attributes3d(&unknown, 0, stream) == 0);
	check("many", cu.batch3d(4, ops, 0, stream) == 0 && cu.batch3d(1, &ops[1], 0, stream) == 0);
	check("many, first form", cu.batch3d1(3, &ops[1], &failed, 0, stream) == 0 && failed == 0);
	failed = 99;
	check("batch, first form", cu.batch1(to, from, sizes, 2, NULL, NULL, 0, &failed, stream) == 0 && failed == 0);
	check("arrays", cu.a_to_d(device, (CUarray)0x6001, 0, 100) == 0 && cu.d_to_a((CUarray)0x6001, 0, device, 100) == 0);
	check("array to array", cu.a_to_a((CUarray)0x6001, 0, (CUarray)0x6001, 512, 100) == 0);
	check("begin", cu.cuStreamBeginCapture(stream, 0) == 0);
	check("captured", cu.attributes3d(&ops[0], 0, stream) == 0 && cu.peer3d_async(&in, stream) == 0);
	check("end", cu.cuStreamEndCapture(stream, &g) == 0);
}

static void prefetching(void)
{
	CUmemLocation there = {CU_MEM_LOCATION_TYPE_DEVICE, 0}, here = {2, 0}, both[2] = {there, here};
	CUdeviceptr ranges[3] = {device, device, device};
	size_t lengths[3] = {1000, 40000, 700}, first[2] = {0, 2};
	CUgraph g;

	check("first form", cu.prefetch1(device, 1000, 0, stream) == 0 && cu.prefetch1(device, 1000, -1, stream) == 0);
	check("one", cu.prefetch(device, LARGE, there, 0, stream) == 0 && cu.prefetch(device, 1000, here, 0, stream) == 0);
	check("many", cu.prefetches(ranges, lengths, 3, both, first, 2, 0, stream) == 0);
	check("to the device", cu.prefetches(ranges, lengths, 1, both, first, 1, 0, NULL) == 0);
	check("discarded", cu.discards(ranges, lengths, 3, both, first, 2, 0, stream) == 0);
	check("discarded, to the host", cu.discards(ranges, lengths, 3, &here, first, 1, 0, stream) == 0);
	check("begin", cu.cuStreamBeginCapture(stream, 0) == 0);
	check("captured", cu.prefetches(ranges, lengths, 3, both, first, 2, 0, stream) == 0);
	check("end", cu.cuStreamEndCapture(stream, &g) == 0);
}

void recent(void)
{
	start();
	copies();
	prefetching();
}

static CUgraphNode add(CUgraph g, int type, unsigned n)
{
	CUgraphNodeParams p = {.type = type};
	CUgraphNode x = NULL;

	for (unsigned i = 0; i < n; i++)
		check("add", cu.add(&x, g, NULL, NULL, 0, &p) == 0);
	return x;
}

/*
 * A kernel, a memset, an "if" of two kernels and a "while" of three, and a
 * "switch" between one kernel and four memsets: 2 + 2 + 3 + 4.
 */
void conditional(void)
{
	CUgraphNodeParams once = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL, .conditional = {.size = 1}}, loop = once, either = once;
	CUgraph g;
	CUgraphNode n;
	CUgraphExec e;

	start();
	check("create", cu.cuGraphCreate(&g, 0) == 0);
	add(g, CU_GRAPH_NODE_TYPE_KERNEL, 1);
	add(g, CU_GRAPH_NODE_TYPE_MEMSET, 1);
	check("if", cu.add1(&n, g, NULL, 0, &once) == 0);
	add(once.conditional.phGraph_out[0], CU_GRAPH_NODE_TYPE_KERNEL, 2);
	check("while", cu.add(&n, once.conditional.phGraph_out[0], NULL, NULL, 0, &loop) == 0);
	add(loop.conditional.phGraph_out[0], CU_GRAPH_NODE_TYPE_KERNEL, 3);
	either.conditional.size = 2;
	check("switch", cu.add(&n, g, NULL, NULL, 0, &either) == 0);
	add(either.conditional.phGraph_out[0], CU_GRAPH_NODE_TYPE_KERNEL, 1);
	add(either.conditional.phGraph_out[1], CU_GRAPH_NODE_TYPE_MEMSET, 4);
	check("first", cu.cuGraphInstantiateWithFlags(&e, g, 0) == 0 && cu.cuGraphLaunch(e, stream) == 0);
	check("without", cu.cuGraphDestroyNode(n) == 0 && cu.cuGraphInstantiateWithFlags(&e, g, 0) == 0 && cu.cuGraphLaunch(e, stream) == 0);
	check("destroy", cu.cuGraphDestroy(g) == 0 && cu.cuGraphExecDestroy(e) == 0);
}
