/*
 * A driver library without a GPU. It writes every call to FAKE_LOG, one per line, and
 * keeps a clock for each stream. A kernel takes 12 us; a spin of the library 3 us and
 * its count; a copy to the device 1.5 us and 1/12 ns per byte; a copy to the host
 * 1.2 us and 1/13 ns per byte. Handles are small numbers in order of creation, so
 * that tests can compare logs. The driver refuses and logs calls that a real driver
 * forbids during a capture.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake.h"

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
int capturing;
static struct stream streams[MAX];
static double events[MAX];
static unsigned nstreams = 3, nevents, nmodules;
static int log_fd = -1;
static pid_t owner;
static _Thread_local CUcontext current;
static _Thread_local int capture_mode;

enum { FIRST_CONTEXT = 0x1001, /* of device 0 */ FUNCTIONS = 0x1000 };

/* Handles of functions are indexes into this, and FUNCTIONS times their device. */
static const char *const functions[] = {"?", "user", "dxpu_spin_clock", "dxpu_spin_timer", "dxpu_probe"};

void log_call(const char *format, ...)
{
	char line[512];
	va_list ap;
	int n;

	static int quiet = -1; /* to measure the library without the log */

	if (quiet < 0)
		quiet = getenv("FAKE_QUIET") != NULL;
	if (quiet)
		return;
	if (log_fd < 0) {
		const char *path = getenv("FAKE_LOG");

		log_fd = path ? open(path, O_WRONLY | O_CREAT | O_APPEND, 0666) : -1;
		if (log_fd < 0)
			return;
	}
	va_start(ap, format);
	n = vsnprintf(line, sizeof line - 1, format, ap);
	va_end(ap);
	line[n++] = '\n';
	if (write(log_fd, line, (size_t)n) != n)
		abort();
}

unsigned long long id(const void *p) { return (uintptr_t)p; }

struct stream *stream_of(CUstream s, int thread)
{
	uintptr_t i = (uintptr_t)s;

	if (i == 0)
		i = thread ? 2 : 1;
	if (i >= 0x100)
		i -= 0x100;
	return &streams[i < MAX ? i : 0];
}

int usable(void)
{
	if (owner != getpid())
		return CUDA_ERROR_NOT_INITIALIZED;
	return current ? CUDA_SUCCESS : 201;
}

/* Refuses a call that is forbidden during a capture. */
static int unsafe(const char *name)
{
	int bad = 0;

	pthread_mutex_lock(&lock);
	if (capturing > 0 && capture_mode != CU_STREAM_CAPTURE_MODE_RELAXED) {
		log_call("REFUSED %s during a capture", name);
		for (int i = 0; i < MAX; i++)
			streams[i].invalidated |= streams[i].capturing;
		bad = CAPTURE_REFUSED;
	}
	pthread_mutex_unlock(&lock);
	return bad;
}

int add(CUstream h, int thread, int type, double ns)
{
	struct stream *s = stream_of(h, thread);

	pthread_mutex_lock(&lock);
	if (s->capturing) {
		add_node(s->graph, type);
	} else {
		s->time += ns;
	}
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

CUresult fake_generic(int i);
CUresult fake_generic(int i) { log_call("%s", dxpu_names[i]); return CUDA_SUCCESS; }

/* ---- start ---- */

CUresult cuInit(unsigned flags)
{
	log_call("cuInit");
	if (getenv("FAKE_INIT_FAILS"))
		return CUDA_ERROR_NO_DEVICE;
	if (owner && owner != getpid())
		return CUDA_ERROR_NOT_INITIALIZED;
	owner = getpid();
	return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/*
 * dlsym calls the resolver of the last symbol while the library fills its table.
 * With FAKE_RESOLVER it logs the result of an entry of the library at that moment.
 */
static CUresult last(void) { return CUDA_SUCCESS; }
static CUresult (*resolve_last(void))(void)
{
	void *first = getenv("FAKE_RESOLVER") ? dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD) : NULL;

	if (first)
		log_call("entry while the table is filled: %d", ((CUresult(*)(void))dlsym(first, "cuDriverGetVersion"))());
	return last;
}

CUresult cudbgReportDriverInternalError(void) __attribute__((ifunc("resolve_last")));

CUresult cuDeviceGetAttribute(int *v, int attribute, CUdevice d)
{
	log_call("cuDeviceGetAttribute %d %d", attribute, d);
	*v = attribute == CU_DEVICE_ATTRIBUTE_CLOCK_RATE ? 1500000 : attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? 8 : 0;
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice d)
{
	log_call("cuDevicePrimaryCtxRetain %d", d);
	*c = (CUcontext)(uintptr_t)(FIRST_CONTEXT + d); /* the same handle again after a release */
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice d) { log_call("cuDevicePrimaryCtxRelease_v2 %d", d); return CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxGetState(CUdevice d, unsigned *flags, int *active) { (void)d; *flags = 0; *active = 0; return CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext c) { log_call("cuCtxSetCurrent %llx", id(c)); current = c; return CUDA_SUCCESS; }
CUresult cuCtxGetCurrent(CUcontext *c) { *c = current; return owner ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED; }
CUresult cuCtxGetDevice(CUdevice *d) { *d = (CUdevice)((uintptr_t)current - FIRST_CONTEXT); return usable(); }
CUresult cuCtxSynchronize(void) { log_call("cuCtxSynchronize"); return unsafe("cuCtxSynchronize"); }

/* ---- memory and modules ---- */

CUresult cuMemAlloc_v2(CUdeviceptr *p, size_t n)
{
	int r = unsafe("cuMemAlloc_v2");

	log_call("cuMemAlloc_v2 %zu", n);
	if (r || (r = usable()))
		return r;
	if (n > (size_t)1 << 34)
		return 2;
	*p = (CUdeviceptr)(uintptr_t)calloc(1, n) | (CUdeviceptr)1 << 62; /* marks device memory */
	return CUDA_SUCCESS;
}

void *at(CUdeviceptr p) { return (void *)(uintptr_t)(p & ~((CUdeviceptr)1 << 62)); }

CUresult cuMemHostAlloc(void **p, size_t n, unsigned flags)
{
	int r = unsafe("cuMemHostAlloc");

	log_call("cuMemHostAlloc %zu %u", n, flags);
	*p = r ? NULL : calloc(1, n);
	return r;
}

CUresult cuPointerGetAttribute(void *v, int attribute, CUdeviceptr p)
{
	if (attribute != CU_POINTER_ATTRIBUTE_MEMORY_TYPE || !(p >> 62))
		return CUDA_ERROR_INVALID_VALUE;
	*(unsigned *)v = CU_MEMORYTYPE_DEVICE;
	return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule *m, const void *image)
{
	int r = unsafe("cuModuleLoadData");

	log_call("cuModuleLoadData %.12s", (const char *)image);
	*m = (CUmodule)(uintptr_t)(0x2000 + ++nmodules);
	return r;
}

CUresult cuModuleGetFunction(CUfunction *f, CUmodule m, const char *name)
{
	log_call("cuModuleGetFunction %llx %s", id(m), name);
	for (size_t i = 1; i < sizeof functions / sizeof functions[0]; i++) {
		if (strcmp(functions[i], name) == 0) {
			*f = (CUfunction)(i + FUNCTIONS * ((uintptr_t)current - FIRST_CONTEXT));
			return CUDA_SUCCESS;
		}
	}
	return CUDA_ERROR_NOT_FOUND;
}

/* ---- streams and events ---- */

CUresult cuStreamCreate(CUstream *s, unsigned flags)
{
	pthread_mutex_lock(&lock);
	*s = (CUstream)(uintptr_t)(0x100 + nstreams++);
	stream_of(*s, 0)->context = current;
	pthread_mutex_unlock(&lock);
	log_call("cuStreamCreate %u = %llx", flags, id(*s));
	return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream s, CUcontext *c)
{
	CUcontext own = stream_of(s, 0)->context;

	*c = own ? own : current;
	return usable();
}

CUresult cuStreamDestroy_v2(CUstream s) { log_call("cuStreamDestroy_v2 %llx", id(s)); return CUDA_SUCCESS; }
CUresult cuStreamSynchronize(CUstream s) { log_call("cuStreamSynchronize %llx", id(s)); return stream_of(s, 0)->capturing ? unsafe("cuStreamSynchronize") : CUDA_SUCCESS; }
CUresult cuStreamSynchronize_ptsz(CUstream s) { log_call("cuStreamSynchronize_ptsz %llx", id(s)); return CUDA_SUCCESS; }
CUresult cuStreamIsCapturing(CUstream s, int *status) { *status = stream_of(s, 0)->capturing ? 1 : 0; return usable(); }
CUresult cuThreadExchangeStreamCaptureMode(int *mode) { int was = capture_mode; capture_mode = *mode; *mode = was; return CUDA_SUCCESS; }

CUresult cuEventCreate(CUevent *e, unsigned flags)
{
	*e = (CUevent)(uintptr_t)(0x3000 + ++nevents);
	log_call("cuEventCreate %u = %llx", flags, id(*e));
	return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent e) { log_call("cuEventDestroy_v2 %llx", id(e)); return CUDA_SUCCESS; }

CUresult cuEventRecord(CUevent e, CUstream s)
{
	log_call("cuEventRecord %llx %llx", id(e), id(s));
	events[(uintptr_t)e - 0x3000] = stream_of(s, 0)->time;
	return CUDA_SUCCESS;
}

CUresult cuEventSynchronize(CUevent e) { log_call("cuEventSynchronize %llx", id(e)); return unsafe("cuEventSynchronize"); }

CUresult cuEventElapsedTime(float *ms, CUevent a, CUevent b)
{
	*ms = (float)((events[(uintptr_t)b - 0x3000] - events[(uintptr_t)a - 0x3000]) / 1e6);
	return CUDA_SUCCESS;
}

/* ---- work ---- */

static CUresult launch(const char *name, CUfunction f, CUstream s, int thread, void **params)
{
	unsigned long long arg = 0;
	double ns = 12000;
	uintptr_t i = (uintptr_t)f % FUNCTIONS;
	CUcontext of = (CUcontext)((uintptr_t)f / FUNCTIONS + FIRST_CONTEXT), own = stream_of(s, thread)->context;
	int r = usable();

	if (i > 4)
		i = 0;
	if (own && own != of) {
		log_call("REFUSED %s of context %llx on a stream of %llx", functions[i], id(of), id(own));
		return 400;
	}
	if (i >= 2 && params)
		memcpy(&arg, params[0], 8);
	if (i == 4) {
		unsigned long long step = getenv("FAKE_STEP") ? strtoull(getenv("FAKE_STEP"), NULL, 10) : 32;

		memcpy(at(arg), &step, 8);
		arg = 0;
	}
	if (i == 2)
		ns = 3000 + (double)arg / 1.5;
	if (i == 3)
		ns = 3000 + (double)arg;
	log_call("%s %s %llx %llu%s", name, functions[i], id(s), arg, stream_of(s, thread)->capturing ? " captured" : "");
	return r ? r : i == 0 ? 400 : add(s, thread, CU_GRAPH_NODE_TYPE_KERNEL, ns);
}

#define GRID unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned h
#define USE (void)a, (void)b, (void)c, (void)d, (void)e, (void)g, (void)h
CUresult cuLaunchKernel(CUfunction f, GRID, CUstream s, void **p, void **x) { USE, (void)x; return launch("cuLaunchKernel", f, s, 0, p); }
CUresult cuLaunchKernel_ptsz(CUfunction f, GRID, CUstream s, void **p, void **x) { USE, (void)x; return launch("cuLaunchKernel_ptsz", f, s, 1, p); }
CUresult cuLaunchKernelEx(const CUlaunchConfig *k, CUfunction f, void **p, void **x) { (void)x; return launch("cuLaunchKernelEx", f, k->hStream, 0, p); }
CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *k, CUfunction f, void **p, void **x) { (void)x; return launch("cuLaunchKernelEx_ptsz", f, k->hStream, 1, p); }
CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *p, unsigned n, unsigned flags)
{
	CUresult r = CUDA_SUCCESS;

	(void)flags;
	for (unsigned i = 0; i < n && r == CUDA_SUCCESS; i++)
		r = launch("cuLaunchCooperativeKernelMultiDevice", p[i].function, p[i].hStream, 0, NULL);
	return r;
}
CUresult cuLaunchKernel_v9(CUfunction f);
CUresult cuLaunchKernel_v9(CUfunction f) { log_call("cuLaunchKernel_v9 %llx", id(f)); return CUDA_SUCCESS; }
CUresult cuFutureCall(int v);
CUresult cuFutureCall(int v) { log_call("cuFutureCall %d", v); return v; }
static CUresult inner_launch(CUfunction f, GRID, CUstream s, void **p, void **x) { USE, (void)x; return launch("cuLaunchKernel", f, s, 0, p); }

static CUresult copy(const char *name, void *dst, const void *src, size_t n, CUstream s, int thread, double ns)
{
	int r = usable();

	log_call("%s %llx %zu%s", name, id(s), n, stream_of(s, thread)->capturing ? " captured" : "");
	if (stream_of(s, thread)->context && stream_of(s, thread)->context != current)
		log_call("REFUSED a copy on a stream of another context");
	if (r || !dst || !src)
		return r ? r : CUDA_ERROR_INVALID_VALUE;
	if (!stream_of(s, thread)->capturing) {
		pthread_mutex_lock(&lock);
		memcpy(dst, src, n);
		pthread_mutex_unlock(&lock);
	}
	return add(s, thread, 1, ns);
}

#define IN(n) (1500 + (double)(n) / 12)
#define OUT(n) (1200 + (double)(n) / 13)
#define COPIES(suffix, async_suffix, thread) \
	CUresult cuMemcpyHtoD_v2##suffix(CUdeviceptr d, const void *s, size_t n) { return copy("cuMemcpyHtoD_v2" #suffix, at(d), s, n, NULL, thread, IN(n)); } \
	CUresult cuMemcpyDtoH_v2##suffix(void *d, CUdeviceptr s, size_t n) { return copy("cuMemcpyDtoH_v2" #suffix, d, at(s), n, NULL, thread, OUT(n)); } \
	CUresult cuMemcpyHtoDAsync_v2##async_suffix(CUdeviceptr d, const void *s, size_t n, CUstream t) { return copy("cuMemcpyHtoDAsync_v2" #async_suffix, at(d), s, n, t, thread, IN(n)); } \
	CUresult cuMemcpyDtoHAsync_v2##async_suffix(void *d, CUdeviceptr s, size_t n, CUstream t) { return copy("cuMemcpyDtoHAsync_v2" #async_suffix, d, at(s), n, t, thread, OUT(n)); } \
	CUresult cuMemcpyDtoDAsync_v2##async_suffix(CUdeviceptr d, CUdeviceptr s, size_t n, CUstream t) { return copy("cuMemcpyDtoDAsync_v2" #async_suffix, at(d), at(s), n, t, thread, 2000); } \
	CUresult cuMemcpyAsync##async_suffix(CUdeviceptr d, CUdeviceptr s, size_t n, CUstream t) { return copy("cuMemcpyAsync" #async_suffix, at(d), at(s), n, t, thread, s >> 62 ? OUT(n) : IN(n)); } \
	CUresult cuMemsetD8_v2##suffix(CUdeviceptr d, unsigned char v, size_t n) { (void)v, (void)d; log_call("cuMemsetD8_v2" #suffix " %zu", n); return add(NULL, thread, CU_GRAPH_NODE_TYPE_MEMSET, 2000); } \
	CUresult cuMemsetD8Async##async_suffix(CUdeviceptr d, unsigned char v, size_t n, CUstream t) { (void)v, (void)d; log_call("cuMemsetD8Async" #async_suffix " %llx %zu", id(t), n); return add(t, thread, CU_GRAPH_NODE_TYPE_MEMSET, 2000); } \
	CUresult cuMemcpy2DAsync_v2##async_suffix(const CUDA_MEMCPY2D *p, CUstream t) { log_call("cuMemcpy2DAsync_v2" #async_suffix " %llx %zux%zu", id(t), p->WidthInBytes, p->Height); return add(t, thread, 1, IN(p->WidthInBytes * p->Height)); } \
	CUresult cuMemcpyBatchAsync_v2##async_suffix(CUdeviceptr *d, CUdeviceptr *s, size_t *n, size_t k, void *a, size_t *i, size_t m, CUstream t) \
	{ (void)d, (void)s, (void)n, (void)a, (void)i, (void)m; log_call("cuMemcpyBatchAsync_v2" #async_suffix " %llx %zu", id(t), k); return add(t, thread, 1, 5000); }

COPIES(, , 0)
COPIES(_ptds, _ptsz, 1)

/* ---- resolution, as in driver 550 ---- */

static void *resolve(const char *name, int version, uint64_t flags, int *status)
{
	void *self = NULL, *found = NULL;
	Dl_info me;
	int best = 0;

	*status = 1;
	if (strcmp(name, "cuLaunchKernel") == 0 && version >= 99000)
		return *status = 0, (void *)cuLaunchKernel_v9;
	if (strcmp(name, "cuFutureCall") == 0)
		return *status = 0, (void *)cuFutureCall;
	if (strcmp(name, "cuLaunchKernel") == 0 && getenv("FAKE_ALIAS"))
		return *status = 0, (void *)inner_launch;
	if (dladdr((void *)cuFutureCall, &me))
		self = dlopen(me.dli_fname, RTLD_NOW | RTLD_NOLOAD);
	for (int i = 0; self && i < DXPU_CALLS; i++) {
		const struct call *c = &dxpu_calls[i];

		if (strcmp(c->name, name) != 0)
			continue;
		/* Legacy forms count only if there are no per-thread forms. */
		for (int thread = (flags & 2) != 0; thread >= 0 && !found && *status == 1; thread--) {
			for (int k = c->first; k < c->first + c->count; k++) {
				void *f = dxpu_forms[k].thread == thread ? dlsym(self, dxpu_names[k]) : NULL;

				if (!f)
					continue;
				if (dxpu_forms[k].version > version)
					*status = 2;
				else if (dxpu_forms[k].version >= best)
					best = dxpu_forms[k].version, found = f;
			}
		}
	}
	if (found)
		*status = 0;
	if (self)
		dlclose(self);
	return found;
}

CUresult cuGetProcAddress_v2(const char *name, void **fn, int version, uint64_t flags, int *status)
{
	int s;

	log_call("cuGetProcAddress_v2 '%s' %d %llu", name, version, (unsigned long long)flags);
	if (flags >= 4)
		return CUDA_ERROR_INVALID_VALUE;
	*fn = resolve(name, version, flags, &s);
	if (status)
		*status = s;
	return CUDA_SUCCESS;
}

CUresult cuGetProcAddress(const char *name, void **fn, int version, uint64_t flags)
{
	int s;

	log_call("cuGetProcAddress '%s' %d %llu", name, version, (unsigned long long)flags);
	*fn = resolve(name, version, flags, &s);
	return *fn ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
