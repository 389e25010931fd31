#include "gpu.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
struct machine *machine;
_Thread_local struct ctx *current;

static int file = -1;
static pid_t owner;
static bool stepped, cheap;
static struct ctx primary[GPUS];
static unsigned retained[GPUS];
static struct stream defaults[GPUS];
static atomic_uint calls[DXPU_SYMBOLS];

uint64_t setting(const char *name, uint64_t otherwise)
{
	const char *v = getenv(name);

	return v && *v ? strtoull(v, NULL, 10) : otherwise;
}

/* Processes exclude each other by the file, threads by the mutex. */
void lock_machine(void)
{
	pthread_mutex_lock(&lock);
	while (flock(file, LOCK_EX) != 0)
		;
}

void unlock_machine(void)
{
	flock(file, LOCK_UN);
	pthread_mutex_unlock(&lock);
}

CUresult scripted(int symbol)
{
	unsigned k = atomic_fetch_add(&calls[symbol], 1) + 1;
	const char *list = getenv("FAKE_GPU_ERRORS");
	const char *raises = getenv("FAKE_GPU_RAISE");
	size_t n = strlen(dxpu_names[symbol]);

	if (raises && strcmp(raises, dxpu_names[symbol]) == 0)
		raise(SIGTERM);
	while (list && (list = strstr(list, dxpu_names[symbol]))) {
		unsigned at;
		int error;

		list += n;
		if (sscanf(list, "@%u=%d", &at, &error) == 2 && at == k)
			return error;
	}
	return CUDA_SUCCESS;
}

CUresult usable(int symbol)
{
	CUresult r = scripted(symbol);

	if (r)
		return r;
	if (owner != getpid())
		return CUDA_ERROR_NOT_INITIALIZED;
	return current && current->alive ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult fake_generic(int i);
CUresult fake_generic(int i) { return scripted(i); }

/* ---- the machine ---- */

static int devices(void) { return (int)setting("FAKE_GPU_DEVICES", 1); }

static void forget(struct gpu *g, struct process *p)
{
	g->used -= p->used;
	*p = (struct process){0};
}

/* Removes the records of processes that have ended, whose memory the driver frees. */
static void reap(struct gpu *g)
{
	for (int i = 0; i < PROCESSES; i++) {
		struct process *p = &g->processes[i];

		if (p->pid && p->pid != owner && kill(p->pid, 0) != 0 && errno == ESRCH)
			forget(g, p);
	}
}

CUresult cuInit(unsigned flags)
{
	const char *path = getenv("FAKE_GPU");
	CUresult r = scripted(SYM_cuInit);

	if (r || flags || (owner && owner != getpid()))
		return r ? r : CUDA_ERROR_NOT_INITIALIZED;
	if (owner)
		return CUDA_SUCCESS;
	file = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
	if (file < 0 || ftruncate(file, sizeof *machine) != 0)
		return CUDA_ERROR_NO_DEVICE;
	machine = mmap(NULL, sizeof *machine, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (machine == MAP_FAILED)
		return CUDA_ERROR_NO_DEVICE;
	stepped = getenv("FAKE_GPU_CLOCK") && strcmp(getenv("FAKE_GPU_CLOCK"), "step") == 0;
	cheap = getenv("FAKE_GPU_FREE") != NULL;
	owner = getpid();
	lock_machine();
	for (int i = 0; i < GPUS; i++) {
		primary[i] = (struct ctx){.device = i};
		if (!machine->ready)
			machine->gpus[i].total = setting("FAKE_GPU_MEMORY", 1 << 30);
		forget(&machine->gpus[i], self(&machine->gpus[i])); /* of the program before an exec */
		reap(&machine->gpus[i]);
	}
	machine->ready = 1;
	unlock_machine();
	return CUDA_SUCCESS;
}

uint64_t now(void)
{
	struct timespec t;

	if (stepped)
		return __atomic_load_n(&machine->clock, __ATOMIC_SEQ_CST);
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void wait_until(uint64_t ns)
{
	struct timespec t = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};

	if (!stepped) {
		while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
			;
		return;
	}
	lock_machine();
	if (machine->clock < ns)
		__atomic_store_n(&machine->clock, ns, __ATOMIC_SEQ_CST);
	unlock_machine();
}

struct process *self(struct gpu *g)
{
	struct process *empty = NULL;

	for (int i = 0; i < PROCESSES; i++) {
		if (g->processes[i].pid == owner)
			return &g->processes[i];
		if (!g->processes[i].pid && !empty)
			empty = &g->processes[i];
	}
	if (!empty)
		abort();
	empty->pid = owner;
	return empty;
}

bool take(int device, uint64_t bytes)
{
	struct gpu *g = &machine->gpus[device];
	bool fits;

	lock_machine();
	reap(g);
	fits = bytes <= g->total && g->used <= g->total - bytes;
	if (fits) {
		g->used += bytes;
		self(g)->used += bytes;
		g->peak = g->used > g->peak ? g->used : g->peak;
	}
	unlock_machine();
	return fits;
}

void give(int device, uint64_t bytes)
{
	struct gpu *g = &machine->gpus[device];

	lock_machine();
	if (self(g)->used < bytes)
		abort();
	g->used -= bytes;
	self(g)->used -= bytes;
	unlock_machine();
}

/* ---- devices and contexts ---- */

CUresult cuDeviceGetCount(int *n) { *n = devices(); return CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice *d, int i) { *d = i; return i < devices() ? CUDA_SUCCESS : 101; }
CUresult cuDeviceGetUuid_v2(uint8_t *uuid, CUdevice d) { memset(uuid, 0xa0 + d, 16); return CUDA_SUCCESS; }
CUresult cuDeviceTotalMem_v2(size_t *n, CUdevice d) { *n = machine->gpus[d].total; return CUDA_SUCCESS; }

/* Two multiprocessors of ten threads. */
CUresult cuDeviceGetAttribute(int *n, int what, CUdevice d) { (void)d; *n = what == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT ? 2 : 10; return CUDA_SUCCESS; }

CUresult cuDeviceGetPCIBusId(char *text, int size, CUdevice d)
{
	snprintf(text, (size_t)size, "0000:%02x:00.0", 0x3b + d);
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice d)
{
	pthread_mutex_lock(&lock);
	retained[d]++;
	primary[d].alive = true;
	*c = &primary[d];
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

static void end_primary(CUdevice d)
{
	primary[d].alive = false;
	free_context(&primary[d]);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice d)
{
	if (retained[d] == 0)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (--retained[d] == 0)
		end_primary(d);
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice d) { return cuDevicePrimaryCtxRelease_v2(d); }
CUresult cuDevicePrimaryCtxReset_v2(CUdevice d) { CUresult r = scripted(SYM_cuDevicePrimaryCtxReset_v2); if (!r) end_primary(d); return r; }
CUresult cuDevicePrimaryCtxReset(CUdevice d) { end_primary(d); return CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxGetState(CUdevice d, unsigned *flags, int *active) { *flags = 0; *active = primary[d].alive; return CUDA_SUCCESS; }

CUresult cuCtxCreate_v2(CUcontext *c, unsigned flags, CUdevice d)
{
	struct ctx *x = calloc(1, sizeof *x);

	(void)flags;
	*x = (struct ctx){.device = d, .alive = true};
	current = x;
	*c = x;
	return CUDA_SUCCESS;
}

CUresult cuCtxCreate(CUcontext *c, unsigned flags, CUdevice d) { return cuCtxCreate_v2(c, flags, d); }
CUresult cuCtxCreate_v3(CUcontext *c, void *a, int n, unsigned flags, CUdevice d) { (void)a, (void)n; return cuCtxCreate_v2(c, flags, d); }
CUresult cuCtxCreate_v4(CUcontext *c, void *a, unsigned flags, CUdevice d) { (void)a; return cuCtxCreate_v2(c, flags, d); }

CUresult cuCtxDestroy_v2(CUcontext c)
{
	struct ctx *x = c;
	CUresult r = scripted(SYM_cuCtxDestroy_v2);

	if (r)
		return r;
	x->alive = false; /* the handle is never used again, so that tests can use a dead one */
	free_context(x);
	if (current == x)
		current = NULL;
	return CUDA_SUCCESS;
}

CUresult cuCtxDestroy(CUcontext c) { return cuCtxDestroy_v2(c); }
CUresult cuCtxDetach(CUcontext c) { return cuCtxDestroy_v2(c); }

/* A green context is its context. Its end leaves its memory. */
CUresult cuGreenCtxCreate(void **g, void *resources, CUdevice d, unsigned flags) { CUcontext was = current; CUresult r = cuCtxCreate_v2(g, flags, d); (void)resources; current = was; return r; }
CUresult cuCtxFromGreenCtx(CUcontext *c, void *g) { *c = g; return CUDA_SUCCESS; }
CUresult cuGreenCtxDestroy(void *g) { ((struct ctx *)g)->alive = false; return CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext c) { current = c; return CUDA_SUCCESS; }
CUresult cuCtxGetCurrent(CUcontext *c) { *c = current; return owner ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED; }
CUresult cuCtxGetDevice(CUdevice *d) { *d = current ? current->device : 0; return current ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT; }

CUresult cuCtxSynchronize(void)
{
	TRY(cuCtxSynchronize);
	wait_until(machine->gpus[current->device].free_at);
	return CUDA_SUCCESS;
}

/* ---- streams and events ---- */

struct stream *stream_of(CUstream s)
{
	if ((uintptr_t)s > 2)
		return s;
	defaults[current->device].ctx = current;
	return &defaults[current->device];
}

CUresult cuStreamCreate(CUstream *s, unsigned flags)
{
	struct stream *x = calloc(1, sizeof *x);

	(void)flags;
	TRY(cuStreamCreate);
	x->ctx = current;
	*s = x;
	return CUDA_SUCCESS;
}

CUresult cuStreamDestroy_v2(CUstream s) { free(s); return CUDA_SUCCESS; }
CUresult cuStreamSynchronize(CUstream s) { TRY(cuStreamSynchronize); wait_until(stream_of(s)->end); return CUDA_SUCCESS; }
CUresult cuStreamSynchronize_ptsz(CUstream s) { return cuStreamSynchronize(s); }
CUresult cuStreamIsCapturing(CUstream s, int *status) { TRY(cuStreamIsCapturing); *status = stream_of(s)->capture != NULL; return CUDA_SUCCESS; }
CUresult cuStreamGetCtx(CUstream s, CUcontext *c) { *c = (uintptr_t)s > 2 ? ((struct stream *)s)->ctx : current; return CUDA_SUCCESS; }

struct event {
	struct ctx *ctx;
	uint64_t at;
};

CUresult cuEventCreate(CUevent *e, unsigned flags)
{
	struct event *x = calloc(1, sizeof *x);

	(void)flags;
	TRY(cuEventCreate);
	x->ctx = current;
	*e = x;
	return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent e) { free(e); return CUDA_SUCCESS; }

CUresult cuEventRecord(CUevent e, CUstream s)
{
	struct event *x = e;
	uint64_t end;

	if (cheap)
		return CUDA_SUCCESS;
	TRY(cuEventRecord);
	if (x->ctx != stream_of(s)->ctx)
		return INVALID_HANDLE;
	pthread_mutex_lock(&lock); /* streams and events are of this process */
	end = stream_of(s)->end;
	x->at = end > now() ? end : now();
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent e)
{
	uint64_t at;

	if (cheap)
		return CUDA_SUCCESS;
	TRY(cuEventQuery);
	pthread_mutex_lock(&lock);
	at = ((struct event *)e)->at;
	pthread_mutex_unlock(&lock);
	return now() >= at ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent e) { TRY(cuEventSynchronize); wait_until(((struct event *)e)->at); return CUDA_SUCCESS; }

CUresult cuEventElapsedTime(float *ms, CUevent a, CUevent b)
{
	*ms = (float)((double)(((struct event *)b)->at - ((struct event *)a)->at) / 1e6);
	return CUDA_SUCCESS;
}

/* ---- kernels ---- */

CUresult cuModuleLoadData(CUmodule *m, const void *image) { *m = (CUmodule)(uintptr_t)image; return scripted(SYM_cuModuleLoadData); }
CUresult cuModuleGetFunction(CUfunction *f, CUmodule m, const char *name) { (void)m; *f = strdup(name); return CUDA_SUCCESS; }
CUresult cuFuncGetName(const char **name, CUfunction f) { *name = f; return CUDA_SUCCESS; }

CUresult run_kernel(struct stream *s, const char *name)
{
	unsigned us = 12;
	struct gpu *g = &machine->gpus[s->ctx->device];
	uint64_t start, ns;

	if (s->capture) {
		graph_add(s->capture, CU_GRAPH_NODE_TYPE_KERNEL, name, 0);
		return CUDA_SUCCESS;
	}
	if (name)
		(void)sscanf(name, "k%u", &us);
	ns = (uint64_t)us * 1000;
	lock_machine();
	start = now();
	start = s->end > start ? s->end : start;
	start = g->free_at > start ? g->free_at : start;
	s->end = g->free_at = start + ns;
	g->launches++;
	g->busy += ns;
	self(g)->launches++;
	self(g)->busy += ns;
	unlock_machine();
	return CUDA_SUCCESS;
}

static CUresult launch(int symbol, CUfunction f, CUstream s)
{
	CUresult r;

	if (cheap)
		return CUDA_SUCCESS;
	r = usable(symbol);
	return r ? r : run_kernel(stream_of(s), f);
}

#define GRID unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned h
#define USE (void)a, (void)b, (void)c, (void)d, (void)e, (void)g, (void)h, (void)p
#define KERNEL(name) CUresult name(CUfunction f, GRID, CUstream s, void **p, void **x) { USE, (void)x; return launch(SYM_##name, f, s); }
#define COOPERATIVE(name) CUresult name(CUfunction f, GRID, CUstream s, void **p) { USE; return launch(SYM_##name, f, s); }
#define EX(name) CUresult name(const CUlaunchConfig *k, CUfunction f, void **p, void **x) { (void)p, (void)x; return launch(SYM_##name, f, k->hStream); }
KERNEL(cuLaunchKernel)
KERNEL(cuLaunchKernel_ptsz)
COOPERATIVE(cuLaunchCooperativeKernel)
COOPERATIVE(cuLaunchCooperativeKernel_ptsz)
EX(cuLaunchKernelEx)
EX(cuLaunchKernelEx_ptsz)
CUresult cuLaunch(CUfunction f) { return launch(SYM_cuLaunch, f, NULL); }
CUresult cuLaunchGrid(CUfunction f, int x, int y) { (void)x, (void)y; return launch(SYM_cuLaunchGrid, f, NULL); }
CUresult cuLaunchGridAsync(CUfunction f, int x, int y, CUstream s) { (void)x, (void)y; return launch(SYM_cuLaunchGridAsync, f, s); }

CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *p, unsigned n, unsigned flags)
{
	CUresult r = CUDA_SUCCESS;

	(void)flags;
	TRY(cuLaunchCooperativeKernelMultiDevice);
	for (unsigned i = 0; i < n && !r; i++)
		r = run_kernel(stream_of(p[i].hStream), p[i].function);
	return r;
}
