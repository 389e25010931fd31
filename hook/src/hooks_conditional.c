/*
 * Conditional nodes of graphs. The driver creates the bodies of a node when the
 * program adds it, and the program fills them afterwards. Since CUDA 13.2 the driver
 * returns the bodies of a node on request; before, only the call that adds the node
 * returns them, so the library stores them. The device decides how often a body
 * runs, and does not report it.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "wrap.h"

enum { BUCKETS = 64 };

struct conditional {
	CUgraphNode node;
	CUgraph graph; /* that contains the node */
	struct conditional *next;
	unsigned size;
	CUgraph bodies[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct conditional *buckets[BUCKETS]; /* guarded by lock */
static atomic_uint known;                    /* number of entries; 0 skips the lock */

static struct conditional **bucket(CUgraphNode n)
{
	uintptr_t h = (uintptr_t)n;

	return &buckets[(h >> 4 ^ h >> 12) % BUCKETS];
}

static void remove_locked(struct conditional **at)
{
	struct conditional *x = *at;

	*at = x->next;
	free(x);
	atomic_fetch_sub(&known, 1);
}

static void forget_node_locked(CUgraphNode n)
{
	for (struct conditional **at = bucket(n); *at; at = &(*at)->next) {
		if ((*at)->node == n) {
			remove_locked(at);
			return;
		}
	}
}

static struct conditional **in_graph_locked(CUgraph g)
{
	for (unsigned i = 0; i < BUCKETS; i++) {
		for (struct conditional **at = &buckets[i]; *at; at = &(*at)->next) {
			if ((*at)->graph == g)
				return at;
		}
	}
	return NULL;
}

/* Forgets the conditional nodes of a graph and of their bodies. */
static void forget_graph_locked(CUgraph g, int depth)
{
	struct conditional **at;

	while (depth > 0 && (at = in_graph_locked(g))) {
		struct conditional *x = *at;

		*at = x->next;
		for (unsigned i = 0; i < x->size; i++)
			forget_graph_locked(x->bodies[i], depth - 1);
		free(x);
		atomic_fetch_sub(&known, 1);
	}
}

static void remember(CUgraphNode n, CUgraph g, const CUDA_CONDITIONAL_NODE_PARAMS *p)
{
	struct conditional *x;

	if (!p->phGraph_out || p->size == 0 || !(x = malloc(sizeof *x + p->size * sizeof x->bodies[0])))
		return;
	x->node = n;
	x->graph = g;
	x->size = p->size;
	memcpy(x->bodies, p->phGraph_out, p->size * sizeof x->bodies[0]);
	pthread_mutex_lock(&lock);
	forget_node_locked(n);
	x->next = *bucket(n);
	*bucket(n) = x;
	atomic_fetch_add(&known, 1);
	pthread_mutex_unlock(&lock);
}

static unsigned copy_bodies(CUgraph *bodies, unsigned max, const CUgraph *from, unsigned n)
{
	n = n < max ? n : max;
	memcpy(bodies, from, n * sizeof bodies[0]);
	return n;
}

unsigned dxpu_conditional_bodies(CUgraphNode node, CUgraph *bodies, unsigned max)
{
	CUresult (*get)(CUgraphNode, CUgraphNodeParams *) = REAL(CUresult(*)(CUgraphNode, CUgraphNodeParams *), cuGraphNodeGetParams);
	CUgraphNodeParams p = {0};
	unsigned n = 0;

	if (get && get(node, &p) == CUDA_SUCCESS && p.type == CU_GRAPH_NODE_TYPE_CONDITIONAL && p.conditional.phGraph_out)
		return copy_bodies(bodies, max, p.conditional.phGraph_out, p.conditional.size);
	pthread_mutex_lock(&lock);
	for (struct conditional *x = *bucket(node); x; x = x->next) {
		if (x->node == node)
			n = copy_bodies(bodies, max, x->bodies, x->size);
	}
	pthread_mutex_unlock(&lock);
	return n;
}

static CUresult finish_add(const CUgraphNode *n, CUgraph g, const CUgraphNodeParams *p, CUresult r)
{
	if (r == CUDA_SUCCESS && n && p && p->type == CU_GRAPH_NODE_TYPE_CONDITIONAL && atomic_load(&dxpu_active))
		remember(*n, g, &p->conditional);
	return r;
}

HOOK(cuGraphAddNode, CUgraphNode *n, CUgraph g, const CUgraphNode *on, size_t count, CUgraphNodeParams *p)
{
	return finish_add(n, g, p, DRIVER(cuGraphAddNode)(n, g, on, count, p));
}

HOOK(cuGraphAddNode_v2, CUgraphNode *n, CUgraph g, const CUgraphNode *on, const void *edges, size_t count, CUgraphNodeParams *p)
{
	return finish_add(n, g, p, DRIVER(cuGraphAddNode_v2)(n, g, on, edges, count, p));
}

/*
 * The wrappers forget a node before the driver destroys it, because another thread
 * may get the same handle afterwards. If the driver refuses, a body is not counted.
 */
HOOK(cuGraphDestroyNode, CUgraphNode n)
{
	if (atomic_load(&known) > 0 && atomic_load(&dxpu_active)) {
		pthread_mutex_lock(&lock);
		forget_node_locked(n);
		pthread_mutex_unlock(&lock);
	}
	return DRIVER(cuGraphDestroyNode)(n);
}

HOOK(cuGraphDestroy, CUgraph g)
{
	if (atomic_load(&known) > 0 && atomic_load(&dxpu_active)) {
		pthread_mutex_lock(&lock);
		forget_graph_locked(g, GRAPH_DEPTH);
		pthread_mutex_unlock(&lock);
	}
	return DRIVER(cuGraphDestroy)(g);
}
