/* The graphs of the fake GPU: lists of nodes, run in order. */
#include "gpu.h"

#include <stdlib.h>
#include <string.h>

struct node {
	int type;
	const char *name;
	uint64_t bytes;
	const struct graph *child;
};

struct graph {
	unsigned n;
	struct node nodes[64];
};

struct executable {
	struct graph graph;
	int device;
	uint64_t held; /* bytes since its first launch */
};

static uint64_t kept[GPUS]; /* of destroyed graphs, until a trim */
static uint64_t launched[GPUS]; /* of others */
static uint64_t ending[GPUS];	 /* kept no more, but not free yet */

void graph_add(struct graph *g, int type, const char *name, uint64_t bytes)
{
	if (g->n == sizeof g->nodes / sizeof g->nodes[0])
		abort();
	g->nodes[g->n++] = (struct node){.type = type, .name = name, .bytes = bytes};
}

static uint64_t bytes_of(const struct graph *g)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < g->n; i++)
		sum += g->nodes[i].child ? bytes_of(g->nodes[i].child) : g->nodes[i].bytes;
	return sum;
}

/* The child is the graph itself, which tests do not change afterwards. */
CUresult cuGraphAddChildGraphNode(CUgraphNode *n, CUgraph g, const CUgraphNode *after, size_t count, CUgraph child)
{
	struct graph *of = g;

	(void)after, (void)count;
	graph_add(of, CU_GRAPH_NODE_TYPE_GRAPH, NULL, 0);
	*n = &of->nodes[of->n - 1];
	of->nodes[of->n - 1].child = child;
	return CUDA_SUCCESS;
}

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode n, CUgraph *g) { *g = (CUgraph)(uintptr_t)((struct node *)n)->child; return CUDA_SUCCESS; }

CUresult cuGraphCreate(CUgraph *g, unsigned flags) { (void)flags; *g = calloc(1, sizeof(struct graph)); return CUDA_SUCCESS; }
CUresult cuStreamBeginCapture_v2(CUstream s, int mode) { (void)mode; stream_of(s)->capture = calloc(1, sizeof(struct graph)); return CUDA_SUCCESS; }
CUresult cuStreamEndCapture(CUstream s, CUgraph *g) { *g = stream_of(s)->capture; stream_of(s)->capture = NULL; return CUDA_SUCCESS; }

CUresult cuGraphGetNodes(CUgraph h, CUgraphNode *nodes, size_t *n)
{
	struct graph *g = h;

	for (size_t i = 0; nodes && i < *n && i < g->n; i++)
		nodes[i] = &g->nodes[i];
	*n = g->n;
	return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetType(CUgraphNode n, int *type) { *type = ((struct node *)n)->type; return CUDA_SUCCESS; }
CUresult cuGraphMemAllocNodeGetParams(CUgraphNode n, CUDA_MEM_ALLOC_NODE_PARAMS *p) { p->bytesize = ((struct node *)n)->bytes; return CUDA_SUCCESS; }

CUresult cuGraphInstantiateWithFlags(CUgraphExec *e, CUgraph g, unsigned long long flags)
{
	struct executable *x = calloc(1, sizeof *x);
	CUresult r = usable(SYM_cuGraphInstantiateWithFlags);

	(void)flags;
	if (r) {
		free(x);
		return r;
	}
	x->graph = *(struct graph *)g;
	x->device = current->device;
	*e = x;
	return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *e, CUgraph g, void *params) { (void)params; return cuGraphInstantiateWithFlags(e, g, 0); }
CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *e, CUgraph g, void *params) { (void)params; return cuGraphInstantiateWithFlags(e, g, 0); }
CUresult cuGraphInstantiate_v2(CUgraphExec *e, CUgraph g, CUgraphNode *failed, char *log, size_t size) { (void)failed, (void)log, (void)size; return cuGraphInstantiateWithFlags(e, g, 0); }
CUresult cuGraphInstantiate(CUgraphExec *e, CUgraph g, CUgraphNode *failed, char *log, size_t size) { (void)failed, (void)log, (void)size; return cuGraphInstantiateWithFlags(e, g, 0); }

CUresult cuGraphLaunch(CUgraphExec e, CUstream s)
{
	struct executable *x = e;
	CUresult r = usable(SYM_cuGraphLaunch);
	uint64_t need = bytes_of(&x->graph);

	if (!r && need > x->held && !take(x->device, need - x->held))
		r = NO_MEMORY;
	if (r)
		return r;
	pthread_mutex_lock(&lock);
	launched[x->device] += need - x->held;
	pthread_mutex_unlock(&lock);
	x->held = need;
	for (unsigned i = 0; i < x->graph.n && !r; i++) {
		if (x->graph.nodes[i].type == CU_GRAPH_NODE_TYPE_KERNEL)
			r = run_kernel(stream_of(s), x->graph.nodes[i].name);
	}
	return r;
}

CUresult cuGraphLaunch_ptsz(CUgraphExec e, CUstream s) { return cuGraphLaunch(e, s); }

CUresult cuGraphExecDestroy(CUgraphExec e)
{
	struct executable *x = e;

	pthread_mutex_lock(&lock);
	launched[x->device] -= x->held;
	kept[x->device] += x->held;
	pthread_mutex_unlock(&lock);
	free(x);
	return CUDA_SUCCESS;
}

CUresult cuDeviceGraphMemTrim(CUdevice d)
{
	uint64_t n, unfreed = setting("FAKE_GPU_UNFREED", 0);

	pthread_mutex_lock(&lock);
	n = unfreed < kept[d] ? kept[d] - unfreed : 0;
	kept[d] -= n;
	ending[d] += n;
	pthread_mutex_unlock(&lock);
	give(d, n);
	pthread_mutex_lock(&lock);
	ending[d] -= n;
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice d, int what, void *v)
{
	(void)what;
	pthread_mutex_lock(&lock);
	*(uint64_t *)v = kept[d] + launched[d] + ending[d];
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}
