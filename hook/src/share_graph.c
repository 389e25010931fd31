/*
 * Memory of graphs. A graph with memory nodes gets its memory when it is launched, and
 * the driver keeps it afterwards. The library charges an executable graph for the sum of
 * its memory nodes, which is the most that it can hold, until it is destroyed. The driver
 * may keep memory longer, because the program has not freed an allocation of the graph, or
 * for other graphs. The charge stays until the driver gives the memory back.
 */
#include <stdlib.h>

#include "share.h"
#include "wrap.h"

enum { BODIES = 64 }; /* of a conditional node */

/* Guards what the graphs are charged for. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct graphs {
	uint64_t charged, needed; /* bytes; needed: by executable graphs that are not destroyed */
} graphs[SHARE_GPUS];

/* Bytes of memory nodes on each GPU. */
struct bytes {
	uint64_t of[SHARE_GPUS];
	bool refused; /* too many, or on a GPU that is not in the share */
};

/* ---- nodes ---- */

static void add_node(struct bytes *b, CUgraphNode n)
{
	CUresult (*get)(CUgraphNode, CUDA_MEM_ALLOC_NODE_PARAMS *) =
		REAL(CUresult(*)(CUgraphNode, CUDA_MEM_ALLOC_NODE_PARAMS *), cuGraphMemAllocNodeGetParams);
	CUDA_MEM_ALLOC_NODE_PARAMS p = {0};
	bool device;
	int gpu;

	if (!get || get(n, &p) != CUDA_SUCCESS)
		return;
	device = p.poolProps.location.type == CU_MEM_LOCATION_TYPE_DEVICE;
	gpu = device ? dxpu_share_gpu(p.poolProps.location.id) : dxpu_share_current();
	if (gpu < 0 || __builtin_add_overflow(b->of[gpu], p.bytesize, &b->of[gpu]))
		b->refused = true;
}

static void add_graph(struct bytes *b, CUgraph g, int depth);

/* Adds all bodies of a conditional node: the driver may have memory for each. */
static void add_bodies(struct bytes *b, CUgraphNode node, int depth)
{
	CUgraph bodies[BODIES];
	unsigned n = dxpu_conditional_bodies(node, bodies, BODIES);

	for (unsigned i = 0; i < n; i++)
		add_graph(b, bodies[i], depth);
}

/* Adds the memory nodes of a graph and the graphs in it. Deeper ones are refused, because they cannot be counted. */
static void add_graph(struct bytes *b, CUgraph g, int depth)
{
	CUresult (*get)(CUgraph, CUgraphNode *, size_t *) = REAL(CUresult(*)(CUgraph, CUgraphNode *, size_t *), cuGraphGetNodes);
	CUresult (*type_of)(CUgraphNode, int *) = REAL(CUresult(*)(CUgraphNode, int *), cuGraphNodeGetType);
	CUresult (*child_of)(CUgraphNode, CUgraph *) = REAL(CUresult(*)(CUgraphNode, CUgraph *), cuGraphChildGraphNodeGetGraph);
	CUgraphNode *nodes;
	size_t n = 0;

	if (!get || !type_of || get(g, NULL, &n) != CUDA_SUCCESS || n == 0)
		return;
	if (depth == 0) {
		b->refused = true;
		return;
	}
	nodes = calloc(n, sizeof *nodes);
	if (!nodes || get(g, nodes, &n) != CUDA_SUCCESS) {
		b->refused = true;
		n = 0;
	}
	for (size_t i = 0; i < n; i++) {
		CUgraph child;
		int type;

		if (type_of(nodes[i], &type) != CUDA_SUCCESS)
			continue;
		if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
			add_node(b, nodes[i]);
		else if (type == CU_GRAPH_NODE_TYPE_GRAPH && child_of && child_of(nodes[i], &child) == CUDA_SUCCESS)
			add_graph(b, child, depth - 1);
		else if (type == CU_GRAPH_NODE_TYPE_CONDITIONAL)
			add_bodies(b, nodes[i], depth - 1);
	}
	free(nodes);
}

/* ---- charges ---- */

/* The bytes that the driver has for the graphs of a GPU. */
static uint64_t reserved(int gpu)
{
	CUresult (*get)(CUdevice, int, void *) = REAL(CUresult(*)(CUdevice, int, void *), cuDeviceGetGraphMemAttribute);
	uint64_t n = 0;

	return get && get(dxpu_share_device(gpu), CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &n) == CUDA_SUCCESS ? n : 0;
}

static void settle_locked(int gpu)
{
	struct graphs *g = &graphs[gpu];
	uint64_t need = g->needed;

	if (g->charged > need) {
		uint64_t has = reserved(gpu);

		need = has > need ? has : need;
	}
	if (g->charged > need) {
		dxpu_share_give(gpu, g->charged - need);
		g->charged = need;
	}
}

/* Does nothing while another thread has the graphs. */
void dxpu_share_graphs_settle(void)
{
	if (pthread_mutex_trylock(&lock) != 0)
		return;
	for (int i = 0; i < SHARE_GPUS; i++)
		settle_locked(i);
	pthread_mutex_unlock(&lock);
}

void dxpu_share_graphs_forget(void)
{
	pthread_mutex_init(&lock, NULL);
	for (int i = 0; i < SHARE_GPUS; i++)
		graphs[i] = (struct graphs){0};
}

/* Takes the memory of all GPUs, or none. */
static CUresult take(const struct bytes *b)
{
	CUresult r = b->refused ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;

	for (int i = 0; i < SHARE_GPUS && r == CUDA_SUCCESS; i++) {
		r = b->of[i] ? dxpu_share_before(i, b->of[i]) : CUDA_SUCCESS;
		for (int k = 0; k < i && r != CUDA_SUCCESS; k++)
			dxpu_share_give(k, b->of[k]);
	}
	return r;
}

static CUresult instantiated(const struct bytes *b, CUresult r, const CUgraphExec *e)
{
	for (int i = 0; i < SHARE_GPUS; i++) {
		struct owner o = {.kind = OWNED_GRAPH, .gpu = i, .bytes = b->of[i]};

		if (o.bytes == 0)
			continue;
		if (r != CUDA_SUCCESS) {
			dxpu_share_give(i, o.bytes);
			continue;
		}
		pthread_mutex_lock(&lock);
		graphs[i].charged += o.bytes;
		graphs[i].needed += o.bytes;
		pthread_mutex_unlock(&lock);
		o.key = (uintptr_t)*e;
		dxpu_share_add(&o);
	}
	return r;
}

/* The wrapper of injection counts the kernels. */
#define INSTANTIATE(symbol, params, args) \
	CUresult hook_##symbol params; \
	CUresult share_##symbol params; \
	CUresult share_##symbol params \
	{ \
		struct bytes b = {0}; \
		CUresult r; \
\
		if (dxpu_share_is_on() && e) \
			add_graph(&b, g, GRAPH_DEPTH); \
		r = take(&b); \
		return r != CUDA_SUCCESS ? r : instantiated(&b, hook_##symbol args, e); \
	}

#define OLD_PARAMS (CUgraphExec *e, CUgraph g, CUgraphNode *failed, char *log, size_t size)

INSTANTIATE(cuGraphInstantiate, OLD_PARAMS, (e, g, failed, log, size))
INSTANTIATE(cuGraphInstantiate_v2, OLD_PARAMS, (e, g, failed, log, size))
INSTANTIATE(cuGraphInstantiateWithFlags, (CUgraphExec *e, CUgraph g, unsigned long long flags), (e, g, flags))
INSTANTIATE(cuGraphInstantiateWithParams, (CUgraphExec *e, CUgraph g, void *params), (e, g, params))
INSTANTIATE(cuGraphInstantiateWithParams_ptsz, (CUgraphExec *e, CUgraph g, void *params), (e, g, params))

/* The owner of a destroyed graph: the driver keeps the memory until it is told to trim. */
static void destroyed(const struct owner *o)
{
	CUresult (*trim)(CUdevice) = REAL(CUresult(*)(CUdevice), cuDeviceGraphMemTrim);

	pthread_mutex_lock(&lock);
	graphs[o->gpu].needed -= o->bytes;
	if (trim)
		(void)trim(dxpu_share_device(o->gpu));
	settle_locked(o->gpu);
	pthread_mutex_unlock(&lock);
}

SHARE(cuGraphExecDestroy, CUgraphExec e)
{
	CUresult hook_cuGraphExecDestroy(CUgraphExec);
	struct owner owners[SHARE_GPUS];
	unsigned n = 0;
	CUresult r;

	while (e && dxpu_share_is_on() && n < SHARE_GPUS && dxpu_share_remove(OWNED_GRAPH, (uintptr_t)e, &owners[n]))
		n++;
	r = hook_cuGraphExecDestroy(e);
	for (unsigned i = 0; i < n; i++) {
		if (r == CUDA_SUCCESS)
			destroyed(&owners[i]);
		else
			dxpu_share_add(&owners[i]);
	}
	return r;
}
