/*
 * A program that shares a GPU. It reads commands from standard input, one in a line,
 * and answers each with one line that begins with the driver's result.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cu.h"

#define GRID unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned
typedef CUmemGenericAllocationHandle handle;

#define CALLS(X) \
	X(cuInit, (unsigned)) X(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice)) X(cuDevicePrimaryCtxRelease_v2, (CUdevice)) \
	X(cuDevicePrimaryCtxReset_v2, (CUdevice)) X(cuCtxSetCurrent, (CUcontext)) X(cuCtxGetCurrent, (CUcontext *)) \
	X(cuCtxCreate_v2, (CUcontext *, unsigned, CUdevice)) X(cuCtxDestroy_v2, (CUcontext)) X(cuCtxSynchronize, (void)) X(cuCtxSetLimit, (int, size_t)) \
	X(cuCtxAttach, (CUcontext *, unsigned)) X(cuCtxDetach, (CUcontext)) X(cuGreenCtxCreate, (void **, void *, CUdevice, unsigned)) X(cuGreenCtxDestroy, (void *)) X(cuCtxFromGreenCtx, (CUcontext *, void *)) \
	X(cuMemAlloc, (unsigned *, unsigned)) X(cuMemAllocPitch, (unsigned *)) X(cuArrayCreate, (CUarray *)) X(cuArray3DCreate, (CUarray *)) X(cuMemAlloc_v2, (CUdeviceptr *, size_t)) X(cuMemAllocManaged, (CUdeviceptr *, size_t, unsigned)) \
	X(cuMemAllocPitch_v2, (CUdeviceptr *, size_t *, size_t, size_t, unsigned)) X(cuMemFree_v2, (CUdeviceptr)) \
	X(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream)) X(cuMemAllocAsync_ptsz, (CUdeviceptr *, size_t, CUstream)) \
	X(cuMemAllocFromPoolAsync, (CUdeviceptr *, size_t, void *, CUstream)) X(cuMemAllocFromPoolAsync_ptsz, (CUdeviceptr *, size_t, void *, CUstream)) \
	X(cuMemFreeAsync, (CUdeviceptr, CUstream)) X(cuMemFreeAsync_ptsz, (CUdeviceptr, CUstream)) \
	X(cuMemPoolCreate, (void **, const CUmemPoolProps *)) X(cuMemPoolDestroy, (void *)) X(cuMemPoolTrimTo, (void *, size_t)) \
	X(cuArrayCreate_v2, (CUarray *, const CUDA_ARRAY_DESCRIPTOR *)) X(cuArray3DCreate_v2, (CUarray *, const CUDA_ARRAY3D_DESCRIPTOR *)) \
	X(cuArrayDestroy, (CUarray)) X(cuMipmappedArrayCreate, (void **, const CUDA_ARRAY3D_DESCRIPTOR *, unsigned)) X(cuMipmappedArrayDestroy, (void *)) \
	X(cuMemCreate, (handle *, size_t, const CUmemAllocationProp *, unsigned long long)) X(cuMemRelease, (handle)) \
	X(cuMemMap, (CUdeviceptr, size_t, size_t, handle, unsigned long long)) X(cuMemUnmap, (CUdeviceptr, size_t)) \
	X(cuMemRetainAllocationHandle, (handle *, void *)) X(cuMemMapArrayAsync, (CUarrayMapInfo *, unsigned, CUstream)) \
	X(cuMemMapArrayAsync_ptsz, (CUarrayMapInfo *, unsigned, CUstream)) X(cuMemImportFromShareableHandle, (handle *, void *, int)) X(cuMemAddressReserve, (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long)) \
	X(cuIpcOpenMemHandle_v2, (CUdeviceptr *, const void *, unsigned)) X(cuMemGetInfo_v2, (size_t *, size_t *)) X(cuDeviceTotalMem_v2, (size_t *, CUdevice)) \
	X(cuModuleGetFunction, (CUfunction *, CUmodule, const char *)) X(cuStreamCreate, (CUstream *, unsigned)) X(cuStreamSynchronize, (CUstream)) \
	X(cuStreamBeginCapture_v2, (CUstream, int)) X(cuStreamEndCapture, (CUstream, CUgraph *)) \
	X(cuGraphInstantiate, (CUgraphExec *, CUgraph, CUgraphNode *, char *, size_t)) X(cuGraphInstantiate_v2, (CUgraphExec *, CUgraph, CUgraphNode *, char *, size_t)) \
	X(cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long)) X(cuGraphInstantiateWithParams, (CUgraphExec *, CUgraph, void *)) X(cuGraphInstantiateWithParams_ptsz, (CUgraphExec *, CUgraph, void *)) \
	X(cuGraphLaunch, (CUgraphExec, CUstream)) X(cuGraphLaunch_ptsz, (CUgraphExec, CUstream)) X(cuGraphExecDestroy, (CUgraphExec)) \
	X(cuLaunchKernel, (CUfunction, GRID, CUstream, void **, void **)) X(cuLaunchKernel_ptsz, (CUfunction, GRID, CUstream, void **, void **)) \
	X(cuLaunchKernelEx, (const CUlaunchConfig *, CUfunction, void **, void **)) X(cuLaunchKernelEx_ptsz, (const CUlaunchConfig *, CUfunction, void **, void **)) \
	X(cuLaunchCooperativeKernel, (CUfunction, GRID, CUstream, void **)) X(cuLaunchCooperativeKernel_ptsz, (CUfunction, GRID, CUstream, void **)) X(cuLaunchCooperativeKernelMultiDevice, (CUDA_LAUNCH_PARAMS *, unsigned, unsigned)) \
	X(cuLaunch, (CUfunction)) X(cuLaunchGrid, (CUfunction, int, int)) X(cuLaunchGridAsync, (CUfunction, int, int, CUstream)) \
	X(cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void *, size_t, CUstream)) X(cuMemsetD32Async, (CUdeviceptr, unsigned, size_t, CUstream))

#define DECLARE(name, params) extern CUresult name params;
CALLS(DECLARE)

static CUcontext context;
static CUstream stream;
static void *pool;
static _Thread_local CUfunction function; /* of the last launch */
static atomic_int interrupted;

/* ---- every way to take memory ---- */

struct taken {
	int way;
	CUdeviceptr p;
	void *object;
	handle h;
};

static CUmemAllocationProp on_device = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};

static CUresult take_mapped(struct taken *t, size_t n)
{
	CUresult r = cuMemCreate(&t->h, n, &on_device, 0);
	handle again = 0;

	if (r)
		return r;
	(void)cuMemAddressReserve(&t->p, n, 0, 0, 0);
	r = cuMemMap(t->p, n, 0, t->h, 0);
	if (!r)
		r = cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)t->p);
	if (!r)
		r = cuMemRelease(again);
	(void)cuMemRelease(t->h); /* the mapping keeps it */
	return r;
}

/* Memory of a graph: one node, made by a capture. */
static CUresult take_graph(struct taken *t, size_t n, int form)
{
	CUdeviceptr p;
	CUgraph g;
	CUresult r = cuStreamBeginCapture_v2(stream, 0);

	if (!r)
		r = cuMemAllocAsync(&p, n, stream);
	if (!r)
		r = cuStreamEndCapture(stream, &g);
	if (r)
		return r;
	switch (form) {
	case 0: r = cuGraphInstantiateWithFlags(&t->object, g, 0); break;
	case 1: r = cuGraphInstantiateWithParams(&t->object, g, NULL); break;
	case 2: r = cuGraphInstantiateWithParams_ptsz(&t->object, g, NULL); break;
	case 3: r = cuGraphInstantiate_v2(&t->object, g, NULL, NULL, 0); break;
	default: r = cuGraphInstantiate(&t->object, g, NULL, NULL, 0);
	}
	return r ? r : cuGraphLaunch(t->object, stream);
}

static CUDA_ARRAY3D_DESCRIPTOR cube(size_t n) { return (CUDA_ARRAY3D_DESCRIPTOR){.Width = n, .Height = 1, .Depth = 1, .Format = 1, .NumChannels = 1}; }

/* The names of the ways that share_memory_test.go uses. */
static const char *const ways[] = {
	"cuMemAlloc_v2", "cuMemAllocManaged", "cuMemAllocPitch_v2", "cuMemAllocAsync", "cuMemAllocAsync_ptsz", "cuMemAllocFromPoolAsync",
	"cuMemAllocFromPoolAsync_ptsz", "cuArrayCreate_v2", "cuArray3DCreate_v2", "cuMipmappedArrayCreate", "cuMemCreate", "cuMemMap",
	"cuGraphInstantiateWithFlags", "cuGraphInstantiateWithParams", "cuGraphInstantiateWithParams_ptsz", "cuGraphInstantiate_v2", "cuGraphInstantiate",
};
enum { WAYS = sizeof ways / sizeof ways[0] };

static CUresult take(struct taken *t, int way, size_t n)
{
	CUDA_ARRAY_DESCRIPTOR flat = {.Width = n, .Format = 1, .NumChannels = 1};
	CUDA_ARRAY3D_DESCRIPTOR solid = cube(n);
	size_t pitch;

	*t = (struct taken){.way = way};
	switch (way) {
	case 0: return cuMemAlloc_v2(&t->p, n);
	case 1: return cuMemAllocManaged(&t->p, n, 1);
	case 2: return cuMemAllocPitch_v2(&t->p, &pitch, n, 1, 4);
	case 3: return cuMemAllocAsync(&t->p, n, stream);
	case 4: return cuMemAllocAsync_ptsz(&t->p, n, stream);
	case 5: return cuMemAllocFromPoolAsync(&t->p, n, pool, stream);
	case 6: return cuMemAllocFromPoolAsync_ptsz(&t->p, n, pool, stream);
	case 7: return cuArrayCreate_v2(&t->object, &flat);
	case 8: return cuArray3DCreate_v2(&t->object, &solid);
	case 9: return cuMipmappedArrayCreate(&t->object, &solid, 1);
	case 10: return cuMemCreate(&t->h, n, &on_device, 0);
	case 11: return take_mapped(t, n);
	default: return take_graph(t, n, way - 12);
	}
}

/* Memory of any device, which needs no context. */
static CUresult take_on(struct taken *t, size_t n, int device)
{
	CUmemAllocationProp p = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};

	*t = (struct taken){.way = 10};
	return cuMemCreate(&t->h, n, &p, 0);
}

static CUresult drop(const struct taken *t)
{
	switch (t->way) {
	case 0: case 1: case 2: case 5: return cuMemFree_v2(t->p);
	case 3: case 6: return cuMemFreeAsync(t->p, stream);
	case 4: return cuMemFreeAsync_ptsz(t->p, stream);
	case 7: case 8: return cuArrayDestroy(t->object);
	case 9: return cuMipmappedArrayDestroy(t->object);
	case 10: return cuMemRelease(t->h);
	case 11: return cuMemUnmap(t->p, 1);
	default: return cuGraphExecDestroy(t->object);
	}
}

static int way_of(const char *name)
{
	for (int i = 0; i < WAYS; i++) {
		if (strcmp(ways[i], name) == 0)
			return i;
	}
	printf("no way %s\n", name);
	exit(2);
}

/* ---- every way to launch ---- */

static CUgraphExec recorded(unsigned kernels)
{
	CUgraph g;
	CUgraphExec e = NULL;

	(void)cuStreamBeginCapture_v2(stream, 0);
	for (unsigned i = 0; i < kernels; i++)
		(void)cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
	(void)cuStreamEndCapture(stream, &g);
	(void)cuGraphInstantiateWithFlags(&e, g, 0);
	return e;
}

static CUresult launch(const char *way, const char *name)
{
	CUlaunchConfig c = {.gridDimX = 2, .gridDimY = 3, .gridDimZ = 4, .blockDimX = 32, .blockDimY = 2, .blockDimZ = 1, .hStream = stream};
	CUDA_LAUNCH_PARAMS multi = {.gridDimX = 2, .gridDimY = 3, .gridDimZ = 4, .blockDimX = 32, .blockDimY = 2, .blockDimZ = 1, .hStream = stream};

	(void)cuModuleGetFunction(&function, NULL, name);
	multi.function = function;
#define SHAPE 2, 3, 4, 32, 2, 1, 0, stream
#define IS(symbol) if (strcmp(way, #symbol) == 0) return symbol
	IS(cuLaunchKernel)(function, SHAPE, NULL, NULL);
	IS(cuLaunchKernel_ptsz)(function, SHAPE, NULL, NULL);
	IS(cuLaunchKernelEx)(&c, function, NULL, NULL);
	IS(cuLaunchKernelEx_ptsz)(&c, function, NULL, NULL);
	IS(cuLaunchCooperativeKernel)(function, SHAPE, NULL);
	IS(cuLaunchCooperativeKernel_ptsz)(function, SHAPE, NULL);
	IS(cuLaunchCooperativeKernelMultiDevice)(&multi, 1, 0);
	IS(cuLaunch)(function);
	IS(cuLaunchGrid)(function, 6, 4);
	IS(cuLaunchGridAsync)(function, 6, 4, stream);
	IS(cuGraphLaunch)(recorded(3), stream);
	IS(cuGraphLaunch_ptsz)(recorded(3), stream);
	return -1;
}

/* ---- many at once ---- */

static unsigned long next_random(unsigned long *seed) { return *seed = *seed * 6364136223846793005u + 1442695040888963407u, *seed >> 33; }

/* Takes and frees memory in all ways at random; returns how often the share refused. */
static unsigned stress(unsigned long seed, unsigned rounds, int first, int last)
{
	struct taken held[32];
	bool used[32] = {0};
	unsigned refused = 0;

	(void)cuCtxSetCurrent(context);
	for (unsigned i = 0; i < rounds; i++) {
		unsigned at = next_random(&seed) % 32;

		if (used[at]) {
			used[at] = false;
			if (drop(&held[at]) != CUDA_SUCCESS)
				exit(3);
			continue;
		}
		used[at] = take(&held[at], first + (int)(next_random(&seed) % (unsigned)(last - first)), 1 + next_random(&seed) % 4000) == CUDA_SUCCESS;
		refused += !used[at];
	}
	for (unsigned at = 0; at < 32; at++) {
		if (used[at] && drop(&held[at]) != CUDA_SUCCESS)
			exit(3);
	}
	(void)cuMemPoolTrimTo(pool, 0);
	return refused;
}

enum { THREADS = 8 };
static unsigned thread_rounds;
static pthread_barrier_t begin;

static void *stress_thread(void *arg)
{
	(void)cuCtxSetCurrent(context);
	/* The first launches are at once, so that a sanitizer sees what they share. */
	pthread_barrier_wait(&begin);
	(void)launch("cuLaunchKernel_ptsz", "k1");
	/* Captures are of one thread at a time: only ways without a graph. */
	(void)stress((unsigned long)(uintptr_t)arg, thread_rounds, 0, 12);
	for (unsigned i = 1; i < thread_rounds / 10; i++)
		(void)launch("cuLaunchKernel_ptsz", "k1");
	return NULL;
}

static void stress_threads(unsigned rounds)
{
	pthread_t t[THREADS];

	thread_rounds = rounds;
	pthread_barrier_init(&begin, NULL, THREADS);
	for (uintptr_t i = 0; i < THREADS; i++)
		pthread_create(&t[i], NULL, stress_thread, (void *)(i + 1));
	for (int i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
	pthread_barrier_destroy(&begin);
}

/* ---- commands ---- */

static struct taken slots[1024];
static CUcontext other;

static CUresult start(int device)
{
	CUmemPoolProps props = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
	CUresult r = cuInit(0);

	on_device.location.id = device;
	if (r || (r = cuDevicePrimaryCtxRetain(&context, device)) || (r = cuCtxSetCurrent(context)) || (r = cuStreamCreate(&stream, 0)))
		return r;
	return cuMemPoolCreate(&pool, &props);
}

static CUresult in_child(void)
{
	CUdeviceptr p;
	int status = 0;
	pid_t child = fork();

	if (child == 0)
		_exit(cuMemAlloc_v2(&p, 1) == CUDA_ERROR_NOT_INITIALIZED && launch("cuLaunchKernel", "k1") == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
	return waitpid(child, &status, 0) == child ? status : -1;
}

/* The result of all first forms, or -1 if they differ. */
static CUresult old_forms(void)
{
	CUarray a;
	unsigned p;
	CUresult r = cuMemAlloc(&p, 1);

	return cuMemAllocPitch(&p) == r && cuArrayCreate(&a) == r && cuArray3DCreate(&a) == r ? r : -1;
}

static double now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* Time of a launch in ns. */
static double bench(unsigned n)
{
	double t = now_ns();

	(void)cuModuleGetFunction(&function, NULL, "k0");
	for (unsigned i = 0; i < n; i++)
		(void)cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
	return (now_ns() - t) / n;
}

/* ---- other contexts ---- */

static CUstream other_stream;
static void *green;

/* Makes a context of a device with a stream, and returns to the first one. */
static CUresult start_other(CUdevice d)
{
	CUresult r = cuCtxCreate_v2(&other, 0, d);

	if (!r)
		r = cuStreamCreate(&other_stream, 0);
	(void)cuCtxSetCurrent(context);
	return r;
}

/* Launches into the other context's stream while the first context is current. */
static CUresult launch_other(void)
{
	CUstream own = stream;
	CUresult r;

	stream = other_stream;
	r = launch("cuLaunchKernel", "k100");
	stream = own;
	return r;
}

static CUresult start_green(void)
{
	CUresult r = cuGreenCtxCreate(&green, NULL, 0, 0);

	return r || (r = cuCtxFromGreenCtx(&other, green)) ? r : cuCtxSetCurrent(other);
}

static CUresult end_green(void)
{
	CUresult r = cuGreenCtxDestroy(green);

	(void)cuCtxSetCurrent(context);
	return r;
}

/* ---- a thread that launches while the program ends ---- */

static pthread_t last;
static bool has_last;

static void *launch_last(void *arg)
{
	(void)arg;
	(void)cuCtxSetCurrent(context);
	(void)launch("cuLaunchKernel_ptsz", "k1");
	return NULL;
}

static void join_last(void) { (void)(has_last && pthread_join(last, NULL)); }
static void on_term(int signal) { (void)signal, atomic_store(&interrupted, 1); }

static void run(char *line)
{
	char what[32] = "", name[64] = "";
	unsigned long long n = 0, slot = 0;
	size_t a = 0, b = 0;
	CUresult r = 0;

	(void)sscanf(line, "%31s %63s %llu %llu", what, name, &n, &slot);
	if (strcmp(what, "init") == 0)
		r = start(atoi(name));
	else if (strcmp(what, "take") == 0)
		r = take(&slots[slot], way_of(name), n);
	else if (strcmp(what, "take-on") == 0)
		r = take_on(&slots[1], n, (int)slot);
	else if (strcmp(what, "drop") == 0)
		r = drop(&slots[atoi(name)]);
	else if (strcmp(what, "free") == 0)
		r = cuMemFree_v2(strtoull(name, NULL, 0));
	else if (strcmp(what, "launch") == 0)
		r = launch(name, slot ? "k1000" : "k100");
	else if (strcmp(what, "sync") == 0)
		r = cuCtxSynchronize();
	else if (strcmp(what, "copy") == 0)
		r = cuMemcpyHtoDAsync_v2(0, &n, 8, stream);
	else if (strcmp(what, "memset") == 0)
		r = cuMemsetD32Async(0, 0, 8, stream);
	else if (strcmp(what, "info") == 0)
		r = cuMemGetInfo_v2(&a, &b);
	else if (strcmp(what, "nothing") == 0)
		r = cuMemGetInfo_v2(NULL, NULL);
	else if (strcmp(what, "total") == 0)
		r = cuDeviceTotalMem_v2(&b, atoi(name));
	else if (strcmp(what, "context") == 0)
		r = cuCtxCreate_v2(&other, 0, atoi(name));
	else if (strcmp(what, "destroy") == 0)
		(void)(r = cuCtxDestroy_v2(other)), cuCtxSetCurrent(context);
	else if (strcmp(what, "reset") == 0)
		r = cuDevicePrimaryCtxReset_v2(0);
	else if (strcmp(what, "release") == 0)
		r = cuDevicePrimaryCtxRelease_v2(0);
	else if (strcmp(what, "trim") == 0)
		r = cuMemPoolTrimTo(pool, 0);
	else if (strcmp(what, "endpool") == 0)
		r = cuMemPoolDestroy(pool);
	else if (strcmp(what, "limit") == 0)
		r = cuCtxSetLimit(strcmp(name, "stack") == 0 ? CU_LIMIT_STACK_SIZE : CU_LIMIT_MALLOC_HEAP_SIZE, n);
	else if (strcmp(what, "attach") == 0)
		r = cuCtxAttach(&other, 0);
	else if (strcmp(what, "detach") == 0)
		(void)(r = cuCtxDetach(other)), cuCtxSetCurrent(context);
	else if (strcmp(what, "other") == 0)
		r = start_other(atoi(name));
	else if (strcmp(what, "launch-other") == 0)
		r = launch_other();
	else if (strcmp(what, "take-other") == 0)
		r = cuMemAllocAsync(&slots[0].p, n, other_stream);
	else if (strcmp(what, "green") == 0)
		r = start_green();
	else if (strcmp(what, "end-green") == 0)
		r = end_green();
	else if (strcmp(what, "last") == 0)
		has_last = pthread_create(&last, NULL, launch_last, NULL) == 0;
	else if (strcmp(what, "cancel") == 0)
		r = pthread_cancel(last);
	else if (strcmp(what, "old") == 0)
		r = old_forms();
	else if (strcmp(what, "import") == 0)
		r = cuIpcOpenMemHandle_v2(&slots[0].p, &n, 0);
	else if (strcmp(what, "sparse") == 0) {
		CUarrayMapInfo m = {.memOperationType = CU_MEM_OPERATION_TYPE_MAP, .memHandle = slots[slot].h};

		(void)((r = cuMemMapArrayAsync(&m, 1, stream)) || (r = cuMemMapArrayAsync_ptsz(&m, 1, stream)));
	} else if (strcmp(what, "again") == 0)
		r = cuMemImportFromShareableHandle(&slots[slot].h, (void *)(uintptr_t)slots[slot].h, 1);
	else if (strcmp(what, "fork") == 0)
		r = in_child();
	else if (strcmp(what, "exec") == 0)
		r = execl("/bin/sh", "sh", "-c", "echo 0 0 0; exec $0", program_invocation_name, NULL);
	else if (strcmp(what, "stress") == 0)
		a = stress((unsigned long)n, (unsigned)slot, 0, WAYS);
	else if (strcmp(what, "threads") == 0)
		stress_threads((unsigned)n);
	else if (strcmp(what, "bench") == 0)
		a = (size_t)(bench((unsigned)n) * 100);
	else if (strcmp(what, "catch") == 0)
		signal(SIGTERM, on_term);
	else if (strcmp(what, "exits") == 0)
		signal(SIGTERM, exit);
	else if (strcmp(what, "caught") == 0)
		a = (size_t)atomic_load(&interrupted);
	else
		r = -2;
	printf("%d %zu %zu\n", r, a, b);
	fflush(stdout);
}

int main(void)
{
	char line[256];

	atexit(join_last); /* after the library's handler, as a destructor of C++ runs */
	while (fgets(line, sizeof line, stdin))
		run(line);
	return 0;
}
