/*
 * The fake driver's graphs and the calls on them. The handle of a graph is its number;
 * that of a node is the number of its graph and its own number in the graph.
 */
#include <stdlib.h>

#include "fake.h"

struct node {
	int type;
	unsigned first, bodies; /* of a conditional node: graphs from first on */
};

struct graph {
	unsigned n;
	struct node nodes[NODES];
};

static struct graph graphs[MAX];
static CUgraph handles[MAX]; /* targets of a conditional node's phGraph_out */
static unsigned ngraphs, nexecs;
static unsigned exec_graph[MAX];

static unsigned number(CUgraph g) { return (unsigned)((uintptr_t)g - 0x4000); }
static CUgraph handle(unsigned graph) { return (CUgraph)(uintptr_t)(0x4000 + graph); }
static CUgraphNode node_handle(unsigned graph, unsigned i) { return (CUgraphNode)(uintptr_t)(graph << 16 | i); }
static struct node *node_of(CUgraphNode n) { return &graphs[(uintptr_t)n >> 16].nodes[(uintptr_t)n & 0xffff]; }

unsigned add_node(unsigned graph, int type)
{
	struct graph *g = &graphs[graph];

	if (g->n == NODES)
		abort();
	g->nodes[g->n] = (struct node){.type = type};
	return g->n++;
}

static unsigned new_graph(void)
{
	if (++ngraphs == MAX)
		abort();
	handles[ngraphs] = handle(ngraphs);
	return ngraphs;
}

CUresult cuStreamBeginCapture_v2(CUstream h, int mode)
{
	struct stream *s = stream_of(h, 0);

	log_call("cuStreamBeginCapture_v2 %llx %d", id(h), mode);
	if ((uintptr_t)h <= 1)
		return NOT_PERMITTED;
	pthread_mutex_lock(&lock);
	s->capturing = true;
	s->invalidated = false;
	s->graph = new_graph();
	capturing++;
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream h, CUgraph *g)
{
	struct stream *s = stream_of(h, 0);

	log_call("cuStreamEndCapture %llx", id(h));
	if (!s->capturing)
		return 401;
	pthread_mutex_lock(&lock);
	s->capturing = false;
	capturing--;
	pthread_mutex_unlock(&lock);
	*g = s->invalidated ? NULL : handle(s->graph);
	return s->invalidated ? CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph g, CUgraphNode *nodes, size_t *n)
{
	struct graph *x = &graphs[number(g)];

	for (size_t i = 0; nodes && i < *n && i < x->n; i++)
		nodes[i] = node_handle(number(g), (unsigned)i);
	*n = x->n;
	return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetType(CUgraphNode n, int *type) { *type = node_of(n)->type; return CUDA_SUCCESS; }

CUresult cuGraphInstantiateWithFlags(CUgraphExec *e, CUgraph g, unsigned long long flags)
{
	log_call("cuGraphInstantiateWithFlags %llx %llu, %u nodes", id(g), flags, graphs[number(g)].n);
	*e = (CUgraphExec)(uintptr_t)(0x5000 + ++nexecs);
	exec_graph[nexecs] = number(g);
	return CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(CUgraphExec e) { log_call("cuGraphExecDestroy %llx", id(e)); return CUDA_SUCCESS; }

CUresult cuGraphLaunch(CUgraphExec e, CUstream s)
{
	log_call("cuGraphLaunch %llx %llx", id(e), id(s));
	return add(s, 0, CU_GRAPH_NODE_TYPE_GRAPH, 12000.0 * graphs[exec_graph[(uintptr_t)e - 0x5000]].n);
}

CUresult cuGraphCreate(CUgraph *g, unsigned flags)
{
	*g = handle(new_graph());
	log_call("cuGraphCreate %u = %llx", flags, id(*g));
	return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph g) { log_call("cuGraphDestroy %llx", id(g)); return CUDA_SUCCESS; }

static CUresult add_any(CUgraphNode *n, CUgraph g, CUgraphNodeParams *p)
{
	unsigned i = add_node(number(g), p->type);
	struct node *x = &graphs[number(g)].nodes[i];

	*n = node_handle(number(g), i);
	if (p->type != CU_GRAPH_NODE_TYPE_CONDITIONAL)
		return CUDA_SUCCESS;
	x->first = ngraphs + 1;
	x->bodies = p->conditional.size;
	for (unsigned k = 0; k < x->bodies; k++)
		new_graph();
	p->conditional.phGraph_out = &handles[x->first];
	return CUDA_SUCCESS;
}

CUresult cuGraphAddNode(CUgraphNode *n, CUgraph g, const CUgraphNode *on, size_t count, CUgraphNodeParams *p)
{
	(void)on;
	log_call("cuGraphAddNode %llx %d after %zu", id(g), p->type, count);
	return add_any(n, g, p);
}

CUresult cuGraphAddNode_v2(CUgraphNode *n, CUgraph g, const CUgraphNode *on, const void *edges, size_t count, CUgraphNodeParams *p)
{
	(void)on, (void)edges;
	log_call("cuGraphAddNode_v2 %llx %d after %zu", id(g), p->type, count);
	return add_any(n, g, p);
}

/* The number of the node remains in the graph and stands for an empty node. */
CUresult cuGraphDestroyNode(CUgraphNode n)
{
	log_call("cuGraphDestroyNode %llx", id(n));
	node_of(n)->type = CU_GRAPH_NODE_TYPE_EMPTY;
	return CUDA_SUCCESS;
}

/* This call exists since CUDA 13.2. */
CUresult cuGraphNodeGetParams(CUgraphNode n, CUgraphNodeParams *p)
{
	struct node *x = node_of(n);

	if (getenv("FAKE_NO_PARAMS"))
		return NOT_SUPPORTED;
	*p = (CUgraphNodeParams){.type = x->type};
	if (x->type == CU_GRAPH_NODE_TYPE_CONDITIONAL) {
		p->conditional.size = x->bodies;
		p->conditional.phGraph_out = &handles[x->first];
	}
	return CUDA_SUCCESS;
}
