/*
 * Takes and frees memory of two GPUs in every way, at random, and compares what the share
 * says is in use with what the fake GPUs say, to the byte. Arguments: seed, threads. Standard
 * input: "run N", N steps of each thread; "check", which waits until both agree. The answer
 * is a line: 0, or 1 and both numbers.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "cu.h"

#define CALLS(X) \
	X(cuInit, (unsigned)) X(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice)) X(cuDevicePrimaryCtxReset_v2, (CUdevice)) \
	X(cuDevicePrimaryCtxRelease_v2, (CUdevice)) X(cuCtxSetCurrent, (CUcontext)) X(cuCtxGetCurrent, (CUcontext *)) \
	X(cuCtxCreate_v2, (CUcontext *, unsigned, CUdevice)) X(cuCtxDestroy_v2, (CUcontext)) X(cuMemGetInfo_v2, (size_t *, size_t *)) \
	X(cuMemAlloc_v2, (CUdeviceptr *, size_t)) X(cuMemAllocManaged, (CUdeviceptr *, size_t, unsigned)) X(cuMemFree_v2, (CUdeviceptr)) \
	X(cuMemAllocPitch_v2, (CUdeviceptr *, size_t *, size_t, size_t, unsigned)) X(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream)) \
	X(cuMemAllocFromPoolAsync, (CUdeviceptr *, size_t, void *, CUstream)) X(cuMemFreeAsync, (CUdeviceptr, CUstream)) \
	X(cuMemPoolCreate, (void **, const CUmemPoolProps *)) X(cuMemPoolDestroy, (void *)) X(cuMemPoolTrimTo, (void *, size_t)) \
	X(cuArrayCreate_v2, (CUarray *, const CUDA_ARRAY_DESCRIPTOR *)) X(cuArrayDestroy, (CUarray)) X(cuMipmappedArrayDestroy, (void *)) \
	X(cuMipmappedArrayCreate, (void **, const CUDA_ARRAY3D_DESCRIPTOR *, unsigned)) X(cuStreamCreate, (CUstream *, unsigned)) \
	X(cuMemCreate, (CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long)) \
	X(cuMemRelease, (CUmemGenericAllocationHandle)) X(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle *, void *)) \
	X(cuMemAddressReserve, (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long)) X(cuMemUnmap, (CUdeviceptr, size_t)) \
	X(cuMemMap, (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long)) \
	X(cuMemImportFromShareableHandle, (CUmemGenericAllocationHandle *, void *, int)) X(cuStreamBeginCapture_v2, (CUstream, int)) \
	X(cuStreamEndCapture, (CUstream, CUgraph *)) X(cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long)) \
	X(cuGraphLaunch, (CUgraphExec, CUstream)) X(cuGraphExecDestroy, (CUgraphExec))

#define DECLARE(name, params) extern CUresult name params;
CALLS(DECLARE)

enum { DEVICES = 2, CONTEXTS = 4, SLOTS = 24, THREADS = 4, MOST = 3000 };
enum thing { NOTHING, POINTER, ARRAY, MIPMAP, HANDLE, MAPPING, POOL, GRAPH };

/* One thread, with what it has. */
struct actor {
	uint64_t seed;
	unsigned steps;
	struct {
		CUcontext handle;
		CUstream stream;
		CUdevice device; /* -1: the context is the thread's own no more */
	} contexts[CONTEXTS]; /* the first ones are primary, and of all threads */
	unsigned at;          /* the current one */
	struct {
		enum thing kind;
		uintptr_t object;
		CUcontext context; /* whose end frees it */
	} slots[SLOTS];
};

static bool alone; /* one thread: it may reset contexts */

static unsigned next(struct actor *a, unsigned n)
{
	a->seed = a->seed * 6364136223846793005u + 1442695040888963407u;
	return (unsigned)(a->seed >> 33) % n;
}

static void enter(struct actor *a, unsigned at)
{
	if (a->contexts[at].device >= 0 && a->contexts[at].handle)
		a->at = at;
	(void)cuCtxSetCurrent(a->contexts[a->at].handle);
}

static CUstream stream(struct actor *a)
{
	if (!a->contexts[a->at].stream)
		(void)cuStreamCreate(&a->contexts[a->at].stream, 0);
	return a->contexts[a->at].stream;
}

/* Returns a slot of a kind, or any with NOTHING as the kind; -1: none. */
static int slot(struct actor *a, enum thing kind)
{
	for (unsigned i = next(a, SLOTS), n = 0; n < SLOTS; n++, i = (i + 1) % SLOTS) {
		if (a->slots[i].kind == kind)
			return (int)i;
	}
	return -1;
}

static void keep(struct actor *a, enum thing kind, uintptr_t object, bool of_context, CUresult r)
{
	int i = slot(a, NOTHING);

	if (r != CUDA_SUCCESS)
		return;
	if (i < 0)
		exit(3); /* step leaves room */
	a->slots[i].kind = kind;
	a->slots[i].object = object;
	a->slots[i].context = of_context ? a->contexts[a->at].handle : NULL;
}

/* ---- steps ---- */

static CUresult drop(struct actor *a, int i)
{
	uintptr_t o = a->slots[i].object;
	CUresult r = -1;

	switch (a->slots[i].kind) {
	case POINTER: r = next(a, 2) ? cuMemFree_v2(o) : cuMemFreeAsync(o, stream(a)); break;
	case ARRAY: r = cuArrayDestroy((void *)o); break;
	case MIPMAP: r = cuMipmappedArrayDestroy((void *)o); break;
	case HANDLE: r = cuMemRelease(o); break;
	case MAPPING: r = cuMemUnmap(o, 1); break;
	case POOL: r = cuMemPoolDestroy((void *)o); break;
	case GRAPH: r = cuGraphExecDestroy((void *)o); break;
	default: return 0;
	}
	if (r == CUDA_SUCCESS)
		a->slots[i].kind = NOTHING;
	return r;
}

static void take_graph(struct actor *a)
{
	CUdeviceptr p;
	CUgraph g;
	CUgraphExec e;
	CUresult r;

	if (cuStreamBeginCapture_v2(stream(a), 0) != CUDA_SUCCESS)
		return;
	for (unsigned n = next(a, 3) + 1; n > 0; n--)
		(void)cuMemAllocAsync(&p, 1 + next(a, MOST), stream(a));
	(void)cuStreamEndCapture(stream(a), &g);
	r = cuGraphInstantiateWithFlags(&e, g, 0);
	if (r == CUDA_SUCCESS) /* the driver takes the memory with the first launch */
		while (cuGraphLaunch(e, stream(a)) != CUDA_SUCCESS)
			;
	keep(a, GRAPH, (uintptr_t)e, false, r);
}

static void take_any(struct actor *a)
{
	size_t n = 1 + next(a, MOST), pitch;
	CUDA_ARRAY_DESCRIPTOR flat = {.Width = n, .Format = 1, .NumChannels = 1};
	CUDA_ARRAY3D_DESCRIPTOR solid = {.Width = n, .Format = 1, .NumChannels = 1};
	CUmemAllocationProp prop = {.type = 1, .location = {next(a, 5) ? CU_MEM_LOCATION_TYPE_DEVICE : 2, (int)next(a, DEVICES)}};
	CUmemPoolProps pool = {.allocType = 1, .location = {next(a, 5) ? CU_MEM_LOCATION_TYPE_DEVICE : 2, (int)next(a, DEVICES)}};
	CUmemGenericAllocationHandle h;
	CUdeviceptr p;
	void *o;
	CUresult r;
	int i;

	switch (next(a, 10)) {
	case 0: r = cuMemAlloc_v2(&p, n), keep(a, POINTER, p, true, r); break;
	case 1: r = cuMemAllocManaged(&p, n, 1), keep(a, POINTER, p, true, r); break;
	case 2: r = cuMemAllocPitch_v2(&p, &pitch, n, 1 + next(a, 3), 4), keep(a, POINTER, p, true, r); break;
	case 3: r = cuMemAllocAsync(&p, n, stream(a)), keep(a, POINTER, p, true, r); break;
	case 4:
		if ((i = slot(a, POOL)) >= 0)
			r = cuMemAllocFromPoolAsync(&p, n, (void *)a->slots[i].object, stream(a)), keep(a, POINTER, p, true, r);
		break;
	case 5: r = cuArrayCreate_v2(&o, &flat), keep(a, ARRAY, (uintptr_t)o, true, r); break;
	case 6: r = cuMipmappedArrayCreate(&o, &solid, 1), keep(a, MIPMAP, (uintptr_t)o, true, r); break;
	case 7: r = cuMemCreate(&h, n, &prop, 0), keep(a, HANDLE, h, false, r); break;
	case 8: r = cuMemPoolCreate(&o, &pool), keep(a, POOL, (uintptr_t)o, false, r); break;
	default: take_graph(a);
	}
}

/* References and mappings of a handle. */
static void refer(struct actor *a)
{
	CUmemGenericAllocationHandle h;
	CUdeviceptr p;
	int i = slot(a, HANDLE), m = slot(a, MAPPING);
	CUresult r;

	if (m >= 0 && next(a, 3) == 0) {
		r = cuMemRetainAllocationHandle(&h, (void *)a->slots[m].object), keep(a, HANDLE, h, false, r);
	} else if (i >= 0 && next(a, 3) == 0) {
		r = cuMemImportFromShareableHandle(&h, (void *)a->slots[i].object, 1), keep(a, HANDLE, h, false, r);
	} else if (i >= 0) {
		(void)cuMemAddressReserve(&p, 1, 0, 0, 0);
		r = cuMemMap(p, 1, 0, a->slots[i].object, 0), keep(a, MAPPING, p, false, r);
	}
}

static void forget(struct actor *a, CUcontext c)
{
	for (unsigned i = 0; i < SLOTS; i++) {
		if (c && a->slots[i].context == c)
			a->slots[i].kind = NOTHING, a->slots[i].context = NULL;
	}
}

static void change_context(struct actor *a)
{
	unsigned at = DEVICES + next(a, CONTEXTS - DEVICES);
	CUdevice d = (CUdevice)next(a, DEVICES);
	CUcontext c;

	if (next(a, 2)) {
		enter(a, next(a, CONTEXTS));
		return;
	}
	if (!a->contexts[at].handle) {
		if (cuCtxCreate_v2(&c, 0, d) == CUDA_SUCCESS)
			a->contexts[at].handle = c, a->contexts[at].device = d, a->contexts[at].stream = NULL;
	} else if (next(a, 2) && cuCtxDestroy_v2(a->contexts[at].handle) == CUDA_SUCCESS) {
		forget(a, a->contexts[at].handle);
		a->contexts[at].handle = NULL;
		if (a->at == at)
			a->at = 0;
	} else if (alone && (next(a, 2) ? cuDevicePrimaryCtxReset_v2(d) : cuDevicePrimaryCtxRelease_v2(d)) == CUDA_SUCCESS) {
		forget(a, a->contexts[d].handle);
		(void)cuDevicePrimaryCtxRetain(&c, d);
		while (cuDevicePrimaryCtxRelease_v2(d) == CUDA_SUCCESS)
			;
		(void)cuDevicePrimaryCtxRetain(&a->contexts[d].handle, d);
	}
	enter(a, a->at);
}

static void step(struct actor *a)
{
	unsigned used = 0;
	int i;

	for (unsigned k = 0; k < SLOTS; k++)
		used += a->slots[k].kind != NOTHING;
	if (next(a, SLOTS) < used) {
		(void)drop(a, (int)next(a, SLOTS));
		return;
	}
	switch (next(a, 8)) {
	case 0: change_context(a); break;
	case 1: case 2: refer(a); break;
	case 3:
		if ((i = slot(a, POOL)) >= 0)
			(void)cuMemPoolTrimTo((void *)a->slots[i].object, next(a, MOST));
		break;
	default: take_any(a);
	}
}

static void *act(void *arg)
{
	struct actor *a = arg;

	enter(a, a->at);
	for (unsigned n = a->steps; n > 0; n--)
		step(a);
	return NULL;
}

/* ---- both accounts ---- */

static uint64_t of_share(CUcontext c)
{
	CUcontext was;
	size_t left = 0, all = 0;

	(void)cuCtxGetCurrent(&was);
	(void)cuCtxSetCurrent(c);
	(void)cuMemGetInfo_v2(&left, &all);
	(void)cuCtxSetCurrent(was);
	return all - left;
}

/* The state of the fake GPUs: testdata/gpu/gpu.h. */
struct machine {
	uint64_t ready, clock;
	struct {
		uint64_t total, used, rest[4 + 3 * 64];
	} gpus[DEVICES];
};

static uint64_t of_gpu(const struct machine *m, CUdevice d) { return __atomic_load_n(&m->gpus[d].used, __ATOMIC_SEQ_CST); }

int main(int argc, char **argv)
{
	static struct actor actors[THREADS];
	unsigned threads = argc > 2 ? (unsigned)atoi(argv[2]) : 1;
	FILE *f;
	const struct machine *m;
	char line[64];

	alone = threads == 1;
	if (cuInit(0) != CUDA_SUCCESS)
		return 2;
	f = fopen(getenv("FAKE_GPU"), "r");
	m = f ? mmap(NULL, sizeof *m, PROT_READ, MAP_SHARED, fileno(f), 0) : MAP_FAILED;
	if (m == MAP_FAILED)
		return 2;
	for (unsigned i = 0; i < threads; i++) {
		actors[i].seed = strtoull(argv[1], NULL, 10) * THREADS + i;
		for (CUdevice d = 0; d < DEVICES; d++)
			(void)(actors[i].contexts[d].device = d, cuDevicePrimaryCtxRetain(&actors[i].contexts[d].handle, d));
	}
	while (fgets(line, sizeof line, stdin)) {
		unsigned steps = 0;
		int bad = 0;
		uint64_t share = 0, gpu = 0;

		if (sscanf(line, "run %u", &steps) == 1) {
			pthread_t t[THREADS];

			for (unsigned i = 0; i < threads; i++)
				actors[i].steps = steps, (void)pthread_create(&t[i], NULL, act, &actors[i]);
			for (unsigned i = 0; i < threads; i++)
				(void)pthread_join(t[i], NULL);
		}
		for (CUdevice d = 0; d < DEVICES && steps == 0 && !bad; d++) {
			struct timespec ms = {.tv_nsec = 1000000};

			for (int i = 0; i < 20000; i++) {
				share = of_share(actors[0].contexts[d].handle), gpu = of_gpu(m, d);
				if (!(bad = share != gpu))
					break;
				nanosleep(&ms, NULL);
			}
		}
		printf("%d %llu %llu\n", bad, (unsigned long long)share, (unsigned long long)gpu);
		fflush(stdout);
	}
	return 0;
}
