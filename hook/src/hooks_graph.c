/*
 * Graphs and stream capture. The library inserts nothing into a capture, so graphs do
 * not change. It inserts the delay before each launch of a graph: one round trip,
 * because a launch is one doorbell and one fetch on the fabric, or one for each
 * kernel and memset in the graph (DXPU_GRAPHS).
 */
#include <pthread.h>
#include <stdlib.h>

#include "wrap.h"

enum { BUCKETS = 256, BODIES = 64 };

struct executable {
	CUgraphExec handle;
	unsigned nodes;
	struct executable *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct executable *buckets[BUCKETS];

static struct executable **bucket(CUgraphExec e)
{
	uintptr_t h = (uintptr_t)e;

	return &buckets[(h >> 4 ^ h >> 12) % BUCKETS];
}

static unsigned count_nodes(CUgraph g, int depth);

/*
 * Counts the largest body of a conditional node. At most one body runs, once or
 * repeatedly.
 */
static unsigned count_largest(CUgraphNode node, int depth)
{
	CUgraph bodies[BODIES];
	unsigned n = dxpu_conditional_bodies(node, bodies, BODIES), largest = 0;

	for (unsigned i = 0; i < n; i++) {
		unsigned count = count_nodes(bodies[i], depth);

		largest = count > largest ? count : largest;
	}
	return largest;
}

/* Counts the kernels and memsets of a graph. */
static unsigned count_nodes(CUgraph g, int depth)
{
	CUresult (*get)(CUgraph, CUgraphNode *, size_t *) = REAL(CUresult(*)(CUgraph, CUgraphNode *, size_t *), cuGraphGetNodes);
	CUresult (*type_of)(CUgraphNode, int *) = REAL(CUresult(*)(CUgraphNode, int *), cuGraphNodeGetType);
	CUresult (*child_of)(CUgraphNode, CUgraph *) = REAL(CUresult(*)(CUgraphNode, CUgraph *), cuGraphChildGraphNodeGetGraph);
	CUgraphNode *nodes;
	size_t n = 0;
	unsigned count = 0;

	if (depth == 0 || !get || !type_of || get(g, NULL, &n) != CUDA_SUCCESS || n == 0 || !(nodes = calloc(n, sizeof *nodes)))
		return 0;
	if (get(g, nodes, &n) != CUDA_SUCCESS)
		n = 0;
	for (size_t i = 0; i < n; i++) {
		CUgraph child;
		int type;

		if (type_of(nodes[i], &type) != CUDA_SUCCESS)
			continue;
		if (type == CU_GRAPH_NODE_TYPE_KERNEL || type == CU_GRAPH_NODE_TYPE_MEMSET)
			count++;
		else if (type == CU_GRAPH_NODE_TYPE_GRAPH && child_of && child_of(nodes[i], &child) == CUDA_SUCCESS)
			count += count_nodes(child, depth - 1);
		else if (type == CU_GRAPH_NODE_TYPE_CONDITIONAL)
			count += count_largest(nodes[i], depth - 1);
	}
	free(nodes);
	return count;
}

static void remember(CUgraphExec e, unsigned nodes)
{
	struct executable **at = bucket(e), *x;

	pthread_mutex_lock(&lock);
	for (x = *at; x && x->handle != e; x = x->next)
		;
	if (!x && (x = malloc(sizeof *x))) {
		x->handle = e;
		x->next = *at;
		*at = x;
	}
	if (x)
		x->nodes = nodes;
	pthread_mutex_unlock(&lock);
}

static void forget(CUgraphExec e)
{
	pthread_mutex_lock(&lock);
	for (struct executable **at = bucket(e); *at; at = &(*at)->next) {
		struct executable *x = *at;

		if (x->handle == e) {
			*at = x->next;
			free(x);
			break;
		}
	}
	pthread_mutex_unlock(&lock);
}

unsigned dxpu_graph_nodes(CUgraphExec e)
{
	unsigned n = 0;

	pthread_mutex_lock(&lock);
	for (struct executable *x = *bucket(e); x; x = x->next) {
		if (x->handle == e)
			n = x->nodes;
	}
	pthread_mutex_unlock(&lock);
	return n;
}

static CUresult finish_instantiate(struct record *r, const CUgraphExec *e, CUgraph g, CUresult result)
{
	if (result == CUDA_SUCCESS && e) {
		r->count = count_nodes(g, GRAPH_DEPTH);
		r->arg = (uintptr_t)*e;
		remember(*e, r->count);
	}
	return dxpu_leave(r, result);
}

#define INSTANTIATE(symbol, params, args) \
	CUresult hook_##symbol params; \
	CUresult hook_##symbol params \
	{ \
		struct record r; \
\
		if (!dxpu_enter(&r, KIND_GRAPH_INSTANTIATE, 0)) \
			return DRIVER(symbol) args; \
		dxpu_begin(&r); \
		return finish_instantiate(&r, e, g, DRIVER(symbol) args); \
	}

#define OLD_PARAMS (CUgraphExec *e, CUgraph g, CUgraphNode *failed, char *log, size_t size)

INSTANTIATE(cuGraphInstantiate, OLD_PARAMS, (e, g, failed, log, size))
INSTANTIATE(cuGraphInstantiate_v2, OLD_PARAMS, (e, g, failed, log, size))
INSTANTIATE(cuGraphInstantiateWithFlags, (CUgraphExec *e, CUgraph g, unsigned long long flags), (e, g, flags))
INSTANTIATE(cuGraphInstantiateWithParams, (CUgraphExec *e, CUgraph g, void *params), (e, g, params))
INSTANTIATE(cuGraphInstantiateWithParams_ptsz, (CUgraphExec *e, CUgraph g, void *params), (e, g, params))

/* Forgets the handle before the driver destroys it: another thread may get it again. */
HOOK(cuGraphExecDestroy, CUgraphExec e)
{
	if (atomic_load(&dxpu_active))
		forget(e);
	return DRIVER(cuGraphExecDestroy)(e);
}

static bool enter_graph(struct record *r, CUgraphExec e, CUstream s, int thread)
{
	if (!dxpu_enter_stream(r, KIND_GRAPH_LAUNCH, s, thread))
		return false;
	r->arg = (uintptr_t)e;
	r->count = dxpu_graph_nodes(e);
	COUNT(graph_launches);
	if (may_insert(r) && dxpu_config.graphs != GRAPH_NONE)
		r->injected = (uint64_t)dxpu_inject_kernels(record_stream(r), dxpu_config.graphs == GRAPH_NODE ? r->count : 1);
	dxpu_begin(r);
	return true;
}

#define GRAPH(symbol, thread) \
	HOOK(symbol, CUgraphExec e, CUstream s) \
	{ \
		struct record r; \
\
		if (!enter_graph(&r, e, s, thread)) \
			return DRIVER(symbol)(e, s); \
		return dxpu_leave(&r, DRIVER(symbol)(e, s)); \
	}

GRAPH(cuGraphLaunch, 0)
GRAPH(cuGraphLaunch_ptsz, 1)

/* ---- capture ---- */

static CUresult finish_begin(struct record *r, CUresult result)
{
	if (result == CUDA_SUCCESS)
		atomic_fetch_add(&dxpu_captures, 1);
	return dxpu_leave(r, result);
}

#define BEGIN(symbol, thread, params, args) \
	CUresult hook_##symbol params; \
	CUresult hook_##symbol params \
	{ \
		struct record r; \
\
		if (!dxpu_enter_stream(&r, KIND_CAPTURE_BEGIN, s, thread)) \
			return DRIVER(symbol) args; \
		dxpu_begin(&r); \
		return finish_begin(&r, DRIVER(symbol) args); \
	}

#define TO_GRAPH_PARAMS (CUstream s, CUgraph g, const CUgraphNode *on, const void *edges, size_t n, int mode)

BEGIN(cuStreamBeginCapture, 0, (CUstream s), (s))
BEGIN(cuStreamBeginCapture_ptsz, 1, (CUstream s), (s))
BEGIN(cuStreamBeginCapture_v2, 0, (CUstream s, int mode), (s, mode))
BEGIN(cuStreamBeginCapture_v2_ptsz, 1, (CUstream s, int mode), (s, mode))
BEGIN(cuStreamBeginCaptureToGraph, 0, TO_GRAPH_PARAMS, (s, g, on, edges, n, mode))
BEGIN(cuStreamBeginCaptureToGraph_ptsz, 1, TO_GRAPH_PARAMS, (s, g, on, edges, n, mode))

/* A call that fails also ends the capture if the capture was invalidated. */
static CUresult finish_end(struct record *r, bool was, CUresult result)
{
	if (was && dxpu_not_captured(record_stream(r)) && atomic_fetch_sub(&dxpu_captures, 1) <= 0)
		atomic_fetch_add(&dxpu_captures, 1); /* a call that is not wrapped began the capture */
	return dxpu_leave(r, result);
}

#define END(symbol, thread) \
	HOOK(symbol, CUstream s, CUgraph *g) \
	{ \
		struct record r; \
		bool was; \
\
		if (!dxpu_enter_stream(&r, KIND_CAPTURE_END, s, thread)) \
			return DRIVER(symbol)(s, g); \
		was = !dxpu_not_captured(record_stream(&r)); \
		dxpu_begin(&r); \
		return finish_end(&r, was, DRIVER(symbol)(s, g)); \
	}

END(cuStreamEndCapture, 0)
END(cuStreamEndCapture_ptsz, 1)
