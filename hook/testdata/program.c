/*
 * A program that uses the driver. It is linked to the driver (WAY_LINK), or finds it
 * as the first argument selects: d (dlsym), v1 (cuGetProcAddress) or v2
 * (cuGetProcAddress_v2); a t after that selects the per-thread forms. The second
 * argument is the scenario.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "program.h"

struct functions cu;

typedef CUresult (*get_v1)(const char *, void **, int, uint64_t);
typedef CUresult (*get_v2)(const char *, void **, int, uint64_t, int *);

static void *library;
static int failures;

void check(const char *what, int ok)
{
	if (!ok) {
		printf("FAILED %s\n", what);
		failures++;
	}
}

#ifdef WAY_LINK
#define PROTOTYPE(name, type, v, tv, suffix, tsuffix) extern CUresult name##suffix type;
#define THREAD_PROTOTYPE(name, type, v, tv, suffix, tsuffix) extern CUresult name##tsuffix type;
CALLS(PROTOTYPE)
CALLS(THREAD_PROTOTYPE)
LEGACY(PROTOTYPE)
#define RECENT_PROTOTYPE(field, name, type, v, tv, suffix, tsuffix) PROTOTYPE(name, type, v, tv, suffix, tsuffix)
#define RECENT_THREAD_PROTOTYPE(field, name, type, v, tv, suffix, tsuffix) THREAD_PROTOTYPE(name, type, v, tv, suffix, tsuffix)
RECENT(RECENT_PROTOTYPE)
RECENT(RECENT_THREAD_PROTOTYPE)

static void find(const char *way)
{
	int thread = strchr(way, 't') != NULL;

#define LINK(name, type, v, tv, suffix, tsuffix) cu.name = thread ? name##tsuffix : name##suffix;
#define LINK_LEGACY(name, type, v, tv, suffix, tsuffix) cu.name = name##suffix;
	CALLS(LINK)
	LEGACY(LINK_LEGACY)
#define LINK_RECENT(field, name, type, v, tv, suffix, tsuffix) cu.field = thread ? name##tsuffix : name##suffix;
	RECENT(LINK_RECENT)
	library = dlopen("libcuda.so.1", RTLD_NOW);
}
#else
static void *lookup(const char *way, const char *name, const char *symbol, int version, uint64_t flags)
{
	void *fn = NULL;
	int status = -1;

	if (way[0] == 'd')
		return dlsym(library, symbol);
	if (way[1] == '1')
		check(name, ((get_v1)dlsym(library, "cuGetProcAddress"))(name, &fn, version, flags) == CUDA_SUCCESS);
	else
		check(name, ((get_v2)dlsym(library, "cuGetProcAddress_v2"))(name, &fn, version, flags, &status) == CUDA_SUCCESS && status == 0);
	return fn;
}

static void find(const char *way)
{
	int thread = strchr(way, 't') != NULL;

	library = dlopen("libcuda.so.1", RTLD_NOW);
	if (!library) {
		printf("FAILED %s\n", dlerror());
		exit(1);
	}
#define FIND_RECENT(field, name, type, v, tv, suffix, tsuffix) \
	cu.field = (CUresult(*) type)(thread ? lookup(way, #name, #name #tsuffix, tv, 2) : lookup(way, #name, #name #suffix, v, 0)); \
	check(#name, cu.field != NULL);
#define FIND(name, type, v, tv, suffix, tsuffix) FIND_RECENT(name, name, type, v, tv, suffix, tsuffix)
#define FIND_LEGACY(name, type, v, tv, suffix, tsuffix) \
	cu.name = (CUresult(*) type)lookup(way, #name, #name #suffix, v, 0); \
	check(#name, cu.name != NULL);
	CALLS(FIND)
	LEGACY(FIND_LEGACY)
	RECENT(FIND_RECENT)
}
#endif

CUstream stream;
static CUfunction user;
CUdeviceptr device;
char *host;

void start(void)
{
	CUcontext c;
	CUmodule m;

	check("cuInit", cu.cuInit(0) == CUDA_SUCCESS);
	check("retain", cu.cuDevicePrimaryCtxRetain(&c, 0) == CUDA_SUCCESS && cu.cuCtxSetCurrent(c) == CUDA_SUCCESS);
	check("alloc", cu.cuMemAlloc(&device, 2 * LARGE) == CUDA_SUCCESS);
	check("module", cu.cuModuleLoadData(&m, "user's code") == CUDA_SUCCESS && cu.cuModuleGetFunction(&user, m, "user") == CUDA_SUCCESS);
	check("stream", cu.cuStreamCreate(&stream, 1) == CUDA_SUCCESS);
	host = calloc(1, LARGE);
	memset(host, 7, LARGE);
}

static CUresult launch(CUstream s) { return cu.cuLaunchKernel(user, 1, 2, 3, 1, 1, 1, 0, s, NULL, NULL); }

/* Every kind of call once, on the default stream and on another. */
static void every(void)
{
	CUlaunchAttribute pdl = {.id = 6};
	CUlaunchConfig k = {.gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .attrs = &pdl, .numAttrs = 1};
	CUDA_MEMCPY2D in = {.srcMemoryType = CU_MEMORYTYPE_HOST, .dstMemoryType = CU_MEMORYTYPE_DEVICE, .WidthInBytes = 64, .Height = 4};
	CUdeviceptr to[2], from[2];
	size_t sizes[2] = {512, 512};
	char *back = calloc(1, LARGE);

	start();
	k.hStream = stream;
	in.srcHost = host;
	in.dstDevice = to[0] = to[1] = device;
	from[0] = from[1] = (uintptr_t)host;
	check("launch", launch(NULL) == 0 && launch(stream) == 0);
	check("launch ex", cu.cuLaunchKernelEx(&k, user, NULL, NULL) == 0);
	check("in", cu.cuMemcpyHtoD(device, host, 1000) == 0 && cu.cuMemcpyHtoD(device, host, LARGE) == 0);
	check("in async", cu.cuMemcpyHtoDAsync(device, host, 17920, stream) == 0 && cu.cuMemcpyHtoDAsync(device, host, LARGE, stream) == 0);
	check("out", cu.cuMemcpyDtoH(back, device, LARGE) == 0 && memcmp(back, host, LARGE) == 0);
	check("out async", cu.cuMemcpyDtoHAsync(back, device, 1000, stream) == 0);
	check("within", cu.cuMemcpyDtoDAsync(device + LARGE, device, 1000, stream) == 0);
	check("generic", cu.cuMemcpyAsync(device, (uintptr_t)host, 1000, stream) == 0 && cu.cuMemcpyAsync((uintptr_t)back, device, 1000, stream) == 0);
	check("2d", cu.cuMemcpy2DAsync(&in, stream) == 0);
	check("batch", cu.cuMemcpyBatchAsync(to, from, sizes, 2, NULL, NULL, 0, stream) == 0);
	check("memset", cu.cuMemsetD8(device, 0, 100) == 0 && cu.cuMemsetD8Async(device, 0, 100, stream) == 0);
	check("wait", cu.cuStreamSynchronize(stream) == 0 && cu.cuCtxSynchronize() == 0);
	/* The library returns the driver's errors. */
	check("bad kernel", cu.cuLaunchKernel((CUfunction)99, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL) == 400);
	check("bad copy", cu.cuMemcpyHtoD(device, NULL, 10) == 1);
}

static void graph(void)
{
	CUgraph g;
	CUgraphExec e;

	start();
	if (getenv("WARM"))
		check("launch", launch(stream) == 0);
	check("begin", cu.cuStreamBeginCapture(stream, 0) == 0);
	for (int i = 0; i < 3; i++)
		check("captured", launch(stream) == 0);
	check("captured memset", cu.cuMemsetD8Async(device, 0, 10, stream) == 0);
	check("captured copy", cu.cuMemcpyHtoDAsync(device, host, 1000, stream) == 0);
	check("end", cu.cuStreamEndCapture(stream, &g) == 0);
	check("instantiate", cu.cuGraphInstantiateWithFlags(&e, g, 0) == 0);
	for (int i = 0; i < 2; i++)
		check("launch graph", cu.cuGraphLaunch(e, stream) == 0);
	check("destroy", cu.cuGraphExecDestroy(e) == 0);
	/* An invalidated capture ends with an error and leaves no state behind. */
	check("begin", cu.cuStreamBeginCapture(stream, 0) == 0);
	check("forbidden", cu.cuCtxSynchronize() == 900);
	check("end", cu.cuStreamEndCapture(stream, &g) == 901);
	check("not capturing", cu.cuStreamEndCapture(stream, &g) == 401);
	check("launch", launch(stream) == 0);
}

/* Prints the time of each kind of operation on its stream, ns. */
static void timing(void)
{
	static const char *const names[] = {"kernel", "memset", "htod_1000", "htod_1M", "dtoh_1000", "dtoh_1M"};
	enum { N = 1000 };
	CUevent from, to;

	start();
	check("events", cu.cuEventCreate(&from, 0) == 0 && cu.cuEventCreate(&to, 0) == 0);
	for (int what = 0; what < 6; what++) {
		float ms;

		check("record", cu.cuEventRecord(from, stream) == 0);
		for (int i = 0; i < N; i++) {
			switch (what) {
			case 0: check("op", launch(stream) == 0); break;
			case 1: check("op", cu.cuMemsetD8Async(device, 0, 10, stream) == 0); break;
			case 2: check("op", cu.cuMemcpyHtoDAsync(device, host, 1000, stream) == 0); break;
			case 3: check("op", cu.cuMemcpyHtoDAsync(device, host, LARGE, stream) == 0); break;
			case 4: check("op", cu.cuMemcpyDtoHAsync(host, device, 1000, stream) == 0); break;
			case 5: check("op", cu.cuMemcpyDtoHAsync(host, device, LARGE, stream) == 0); break;
			}
		}
		check("record", cu.cuEventRecord(to, stream) == 0 && cu.cuEventSynchronize(to) == 0 && cu.cuEventElapsedTime(&ms, from, to) == 0);
		printf("%s %.1f\n", names[what], ms * 1e6 / N);
	}
}

static CUcontext shared_context;

static void *work(void *arg)
{
	CUstream s;

	(void)arg;
	check("current", cu.cuCtxSetCurrent(shared_context) == 0 && cu.cuStreamCreate(&s, 1) == 0);
	for (int i = 0; i < 500; i++)
		check("launch", launch(s) == 0 && cu.cuMemcpyHtoDAsync(device, host, 100, s) == 0);
	return NULL;
}

static void threads(void)
{
	pthread_t t[8];

	start();
	check("retain", cu.cuDevicePrimaryCtxRetain(&shared_context, 0) == 0);
	for (int i = 0; i < 8; i++)
		pthread_create(&t[i], NULL, work, NULL);
	for (int i = 0; i < 8; i++)
		pthread_join(t[i], NULL);
}

/* A child of a process that uses the driver, and one from before. */
static void forks(void)
{
	int status;
	pid_t p = fork();

	if (p == 0) {
		start();
		check("launch in the child", launch(stream) == 0);
		exit(failures);
	}
	check("child", waitpid(p, &status, 0) == p && status == 0);
	start();
	check("launch", launch(stream) == 0);
	p = fork();
	if (p == 0) {
		check("init in the child", cu.cuInit(0) == CUDA_ERROR_NOT_INITIALIZED);
		check("launch in the child", launch(stream) == CUDA_ERROR_NOT_INITIALIZED);
		exit(failures);
	}
	check("child", waitpid(p, &status, 0) == p && status == 0);
	check("launch", launch(stream) == 0);
}

/* Resolution of unknown, newer and older calls. */
static void resolution(void)
{
	get_v1 v1 = (get_v1)dlsym(library, "cuGetProcAddress");
	get_v2 v2 = (get_v2)dlsym(library, "cuGetProcAddress_v2");
	void *fn, *again;
	int status;

	/* The static runtime's first question. */
	check("empty name", v2("", &fn, 12040, 0, &status) == 0 && fn == NULL && status == 1);
	check("empty name, v1", v1("", &fn, 12040, 0) == 500 && fn == NULL);
	check("unknown", v2("cuNoSuchCall", &fn, 12040, 0, &status) == 0 && fn == NULL && status == 1);
	check("suffix", v2("cuMemcpyHtoD_v2", &fn, 12040, 0, &status) == 0 && fn == NULL);
	check("too old", v2("cuLaunchKernelEx", &fn, 11000, 0, &status) == 0 && fn == NULL && status == 2);
	check("bad flags", v2("cuInit", &fn, 12040, 4, &status) == 1);
	check("null status", v2("cuInit", &fn, 12040, 0, NULL) == 0 && fn != NULL);
	check("future", v2("cuFutureCall", &fn, 99000, 0, &status) == 0 && fn && ((CUresult(*)(int))fn)(42) == 42);
	check("future form", v2("cuLaunchKernel", &fn, 99000, 0, &status) == 0 && fn && ((CUresult(*)(CUfunction))fn)((CUfunction)1) == 0);
	/* The resolver also resolves itself. */
	check("itself", v2("cuGetProcAddress", &fn, 12000, 0, &status) == 0 && fn && v2("cuLaunchKernel", &again, 12040, 0, &status) == 0);
	check("itself again", ((get_v2)fn)("cuLaunchKernel", &fn, 12040, 0, &status) == 0 && fn == again);
	check("itself, old", v2("cuGetProcAddress", &fn, 11030, 0, &status) == 0 && fn && ((get_v1)fn)("cuLaunchKernel", &fn, 12040, 0) == 0 && fn == again);
	check("first form", v2("cuMemcpyHtoD", &fn, 3010, 0, &status) == 0 && fn && v2("cuMemcpyHtoD", &again, 3020, 0, &status) == 0 && fn != again);
	check("flags 3", v2("cuLaunchKernel", &fn, 12040, 3, &status) == 0 && v2("cuLaunchKernel", &again, 12040, 2, &status) == 0 && fn == again);
	/* For calls that are not wrapped the driver's addresses are returned; the log has the form. */
	check("contexts", v2("cuCtxCreate", &fn, 12040, 0, &status) == 0 && fn && ((CUresult(*)(void))fn)() == 0);
	check("contexts, new", v2("cuCtxCreate", &fn, 12050, 0, &status) == 0 && fn && ((CUresult(*)(void))fn)() == 0);
}

/* A new context with the handle of a destroyed one. */
static void contexts(void)
{
	CUcontext c;

	start();
	check("launch", launch(stream) == 0 && launch(stream) == 0);
	check("release", cu.cuDevicePrimaryCtxRelease(0) == 0);
	check("retain", cu.cuDevicePrimaryCtxRetain(&c, 0) == 0 && cu.cuCtxSetCurrent(c) == 0);
	check("launch", launch(stream) == 0);
	check("none", cu.cuCtxSetCurrent(NULL) == 0 && launch(stream) == 201);
}

/* Launches on streams of two devices, while the context of the first one is current. */
static void devices(void)
{
	CUDA_LAUNCH_PARAMS p[2] = {{.gridDimX = 1, .gridDimY = 1, .gridDimZ = 1}, {.gridDimX = 1, .gridDimY = 1, .gridDimZ = 1}};
	CUcontext first, second;
	CUmodule m;

	start();
	p[0].function = user;
	p[0].hStream = stream;
	check("retain", cu.cuDevicePrimaryCtxRetain(&first, 0) == 0 && cu.cuDevicePrimaryCtxRetain(&second, 1) == 0 && cu.cuCtxSetCurrent(second) == 0);
	check("module", cu.cuModuleLoadData(&m, "user's code") == 0 && cu.cuModuleGetFunction(&p[1].function, m, "user") == 0);
	check("stream", cu.cuStreamCreate(&p[1].hStream, 1) == 0 && cu.cuCtxSetCurrent(first) == 0);
	check("both", cu.cuLaunchCooperativeKernelMultiDevice(p, 2, 0) == 0);
	check("second", cu.cuLaunchKernel(p[1].function, 1, 1, 1, 1, 1, 1, 0, p[1].hStream, NULL, NULL) == 0);
	check("first", launch(stream) == 0);
}

/* Several threads make the first calls at the same time. */
static void *first_calls(void *barrier)
{
	CUcontext c;
	CUmodule m;
	CUfunction f;
	CUstream s;

	pthread_barrier_wait(barrier);
	check("cuInit", cu.cuInit(0) == CUDA_SUCCESS);
	check("retain", cu.cuDevicePrimaryCtxRetain(&c, 0) == CUDA_SUCCESS && cu.cuCtxSetCurrent(c) == CUDA_SUCCESS);
	check("module", cu.cuModuleLoadData(&m, "user's code") == CUDA_SUCCESS && cu.cuModuleGetFunction(&f, m, "user") == CUDA_SUCCESS);
	check("stream", cu.cuStreamCreate(&s, 1) == CUDA_SUCCESS);
	for (int i = 0; i < 50; i++)
		check("launch", cu.cuLaunchKernel(f, 1, 2, 3, 1, 1, 1, 0, s, NULL, NULL) == 0);
	return NULL;
}

static void first(void)
{
	pthread_barrier_t barrier;
	pthread_t t[8];

	pthread_barrier_init(&barrier, NULL, 8);
	for (int i = 0; i < 8; i++)
		pthread_create(&t[i], NULL, first_calls, &barrier);
	for (int i = 0; i < 8; i++)
		pthread_join(t[i], NULL);
}

static atomic_int first_caller; /* thread id; below 0 before it may call */

static void *call_first(void *arg)
{
	(void)arg;
	while (atomic_load(&first_caller) == 0)
		;
	atomic_store(&first_caller, (int)gettid());
	check("cuInit of the thread", cu.cuInit(0) == CUDA_SUCCESS);
	return NULL;
}

/* The state of a thread, as in /proc: R, S, ... */
static char thread_state(int id)
{
	char path[64], line[256] = "";
	FILE *f;

	snprintf(path, sizeof path, "/proc/self/task/%d/stat", id);
	f = fopen(path, "re");
	if (f) {
		if (!fgets(line, sizeof line, f))
			line[0] = '\0';
		fclose(f);
	}
	return strchr(line, ')') ? strchr(line, ')')[2] : '?';
}

/*
 * testdata/constructor.c calls this while the loader holds its lock. Another thread
 * makes the first call, and sleeps because it needs that lock.
 */
void in_constructor(void)
{
	int id;

	atomic_store(&first_caller, -1);
	while ((id = atomic_load(&first_caller)) < 0 || thread_state(id) != 'S')
		;
	check("cuInit in a constructor", cu.cuInit(0) == CUDA_SUCCESS);
}

static void loader(void)
{
	pthread_t t;

	alarm(20); /* ends a deadlock */
	pthread_create(&t, NULL, call_first, NULL);
	check("dlopen", dlopen(getenv("CONSTRUCTOR"), RTLD_NOW) != NULL);
	pthread_join(t, NULL);
}

/* Overwrites the environment, like programs that set their process title. */
static void environment(void)
{
	char *v = getenv("DXPU_STATS");

	start();
	memset(v, '/', strlen(v));
	check("launch", launch(stream) == 0);
}

static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Prints the time of calls through an entry, of records and of launches, ns. */
static void bench(void)
{
	enum { N = 20000000, WRAPPED = 200000 };
	CUresult (*entry)(void) = (CUresult(*)(void))dlsym(library, "cuDriverGetVersion");
	CUevent e;
	double t;

	start();
	t = seconds();
	for (int i = 0; i < N; i++)
		entry();
	printf("entry %.2f\n", (seconds() - t) / N * 1e9);
	check("event", cu.cuEventCreate(&e, 0) == 0);
	t = seconds();
	for (int i = 0; i < WRAPPED; i++)
		cu.cuEventRecord(e, stream);
	printf("record %.2f\n", (seconds() - t) / WRAPPED * 1e9);
	t = seconds();
	for (int i = 0; i < WRAPPED; i++)
		launch(stream);
	printf("launch %.2f\n", (seconds() - t) / WRAPPED * 1e9);
}

static void nothing(void)
{
	check("no device", cu.cuInit(0) == 100);
}

int main(int argc, char **argv)
{
	static const struct { const char *name; void (*run)(void); } scenarios[] = {
		{"every", every}, {"graph", graph}, {"timing", timing}, {"threads", threads}, {"fork", forks},
		{"resolution", resolution}, {"bench", bench}, {"nothing", nothing}, {"contexts", contexts}, {"devices", devices},
		{"recent", recent}, {"conditional", conditional}, {"first", first}, {"loader", loader}, {"environment", environment},
	};

	if (argc != 3)
		return 2;
	find(argv[1]);
	if (failures)
		return 1;
	for (size_t i = 0; i < sizeof scenarios / sizeof scenarios[0]; i++) {
		if (strcmp(argv[2], scenarios[i].name) == 0) {
			scenarios[i].run();
			return failures ? 1 : 0;
		}
	}
	return 2;
}
