/*
 * Declarations shared by the files of the driver library. hook/README.md describes
 * the library. The states of a process under it are:
 *
 *   loaded ---first call---> filled ---cuInit succeeds---> active
 *                               |                             |
 *                               | no setting                  | fork
 *                               v                             v
 *                          transparent                  passes through
 *
 * Invariant: the library has no constructor, and before "active" it calls only the
 * driver functions that the program calls. It starts no thread, except one in sharing
 * mode (share.h).
 */
#ifndef DXPU_H
#define DXPU_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "cu.h"
#include "symbols.h"

/* ---- generated tables (symbols.c) ---- */

struct form {
	int version; /* 0: unknown */
	int thread;  /* nonzero: uses the per-thread default stream */
};

struct call {
	const char *name;
	int first, count; /* range of its forms in dxpu_forms */
	int held;         /* nonzero: sharing mode has to see each call of it */
};

extern const char *const dxpu_names[DXPU_SYMBOLS];
extern void *const dxpu_hooks[DXPU_SYMBOLS];       /* NULL: not wrapped */
extern void *const dxpu_share_hooks[DXPU_SYMBOLS]; /* in sharing mode */
extern const struct form dxpu_forms[DXPU_SYMBOLS];
extern const struct call dxpu_calls[DXPU_CALLS];

/* ---- real.c: the real library ---- */

/* The target of each entry. */
extern _Atomic(void *) dxpu_table[DXPU_SYMBOLS];

/*
 * The driver's own functions, NULL if it has none. They are set before any entry
 * leads to a wrapper, and do not change.
 */
extern _Atomic(void *) dxpu_real[DXPU_SYMBOLS];

/* Finds the driver and fills the table if necessary; returns the entry's target. */
void *dxpu_resolve(unsigned symbol) __attribute__((visibility("hidden")));

/* The driver's own function, of the given type. */
#define REAL(type, symbol) ((type)atomic_load_explicit(&dxpu_real[SYM_##symbol], memory_order_relaxed))

/* ---- config.c: the environment ---- */

enum graph_policy { GRAPH_LAUNCH, GRAPH_NODE, GRAPH_NONE };

struct config {
	bool on;           /* a setting needs wrappers */
	bool inject;       /* DXPU_RTT is set */
	bool calibrate;    /* measure the cost of insertions */
	bool syncs;        /* delay the return of blocking waits too */
	bool verbose;
	enum graph_policy graphs;
	double rtt, native; /* ns */
	double tags, mrrs;
	double native_rate;  /* bytes per ns; 0: measure */
	double kernel_cost, copy_cost; /* ns; negative: measure */
	size_t scratch;      /* bytes of each scratch buffer */
	const char *share;         /* path of the agent's socket: sharing mode */
	const char *trace, *stats; /* copies: the program may change its environment */
};

extern struct config dxpu_config;

/* The wrapper of a symbol under the settings, or NULL. */
static inline void *dxpu_wrapper(int symbol)
{
	if (dxpu_config.share)
		return dxpu_share_hooks[symbol];
	return dxpu_config.on ? dxpu_hooks[symbol] : NULL;
}

void dxpu_configure(void);

/* Parses "6.8us", "6800ns" or "0.0068ms" to nanoseconds. */
bool dxpu_parse_time(const char *text, double *ns);

/* The time of term ❶, which is added to a round trip, in ns. */
static inline double dxpu_delta(void)
{
	return dxpu_config.rtt > dxpu_config.native ? dxpu_config.rtt - dxpu_config.native : 0;
}

/* ---- state.c: the process ---- */

/* Set from a successful cuInit to fork; otherwise wrappers pass calls through. */
extern atomic_bool dxpu_active;

/* Number of streams of the process that are being captured. */
extern atomic_int dxpu_captures;

/* Above 0 while the library itself or a wrapped call is in the driver. */
extern _Thread_local int dxpu_depth;

void dxpu_activate(void);
uint64_t dxpu_now(void); /* CLOCK_MONOTONIC, ns */

/* ---- counters, written to DXPU_STATS at exit ---- */

#define COUNTERS(X) \
	X(kernels) X(memsets) X(htod_small) X(htod_large) X(dtoh) X(other_copies) \
	X(graph_launches) X(waits) X(spins) X(copies_inserted) X(bytes_inserted) \
	X(in_capture) X(not_ready) X(failed) X(serialized) X(unknown_forms) X(records) X(lost)

struct counters {
#define FIELD(name) atomic_ullong name;
	COUNTERS(FIELD)
#undef FIELD
};

extern struct counters dxpu_counters;
#define COUNT(name) ((void)atomic_fetch_add_explicit(&dxpu_counters.name, 1, memory_order_relaxed))
#define COUNT_BY(name, n) ((void)atomic_fetch_add_explicit(&dxpu_counters.name, (n), memory_order_relaxed))

/* ---- inject.c and context.c ---- */

/* The cost of one insertion: fixed + slope x argument, in ns. */
struct cost {
	double fixed, slope;
};

#define DEBTS 256

/* The library's state in one context. When it is ready, only debts change. */
struct context {
	CUcontext handle;
	CUdevice device;
	enum { CONTEXT_NEW, CONTEXT_READY, CONTEXT_FAILED } state;
	CUmodule module;
	CUfunction spin;
	CUdeviceptr device_scratch;
	void *host_scratch;
	struct cost kernel, htod, dtoh;
	const char *clock;
	/* Delay owed to each stream, ns: for kernels, copies in, copies out. */
	atomic_llong debt[3][DEBTS];
	struct context *next;
};

/*
 * Makes the context of a stream current, and returns its state, which it sets up if
 * necessary; NULL on failure. dxpu_context_exit restores the thread's own context.
 */
struct context *dxpu_context_enter(CUstream s, CUcontext *thread);
void dxpu_context_exit(CUcontext *thread);
void dxpu_context_forget(CUcontext handle);
void dxpu_context_forget_device(CUdevice device);
void dxpu_contexts_report(void (*each)(const struct context *, void *), void *arg);

bool dxpu_calibrate(struct context *c, CUfunction probe);
CUresult dxpu_spin(struct context *c, CUstream s, uint64_t count);

enum direction { COPY_HTOD, COPY_DTOH, COPY_DTOD, COPY_OTHER };

/*
 * These insert the delay that disaggregation adds to the next operation into the
 * stream, and return it in ns. A stream is a handle from dxpu_stream.
 */
double dxpu_inject_kernels(CUstream s, unsigned count);
double dxpu_inject_copy(CUstream s, enum direction d, size_t bytes);
void dxpu_inject_wait(void);

/* Whether the driver reports that the stream is not being captured. */
bool dxpu_not_captured(CUstream s);

/* Resolves the handle 0 to the default stream of the entry's kind. */
static inline CUstream dxpu_stream(CUstream s, int thread)
{
	if (s)
		return s;
	return thread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
}

enum direction dxpu_direction(CUdeviceptr dst, CUdeviceptr src);

/* Whether the driver reports an address as host memory. */
bool dxpu_on_host(CUdeviceptr p);

/* ---- hooks_graph.c ---- */

/* Depth to which graphs within graphs are counted; the driver allows no cycles. */
enum { GRAPH_DEPTH = 16 };

unsigned dxpu_graph_nodes(CUgraphExec e);

/* ---- hooks_conditional.c ---- */

/* Writes up to max bodies of a conditional node and returns their number. */
unsigned dxpu_conditional_bodies(CUgraphNode node, CUgraph *bodies, unsigned max);

/* ---- record.c: the trace of calls, described in hook/TRACE.md ---- */

enum kind {
	KIND_LAUNCH = 1, KIND_MEMSET, KIND_HTOD, KIND_DTOH, KIND_DTOD, KIND_COPY, KIND_PREFETCH,
	KIND_GRAPH_LAUNCH, KIND_GRAPH_INSTANTIATE, KIND_CAPTURE_BEGIN, KIND_CAPTURE_END,
	KIND_STREAM_SYNC, KIND_CTX_SYNC, KIND_EVENT_SYNC, KIND_STREAM_QUERY, KIND_EVENT_QUERY,
	KIND_EVENT_RECORD, KIND_STREAM_WAIT_EVENT,
};

enum { FLAG_CAPTURED = 1, FLAG_BLOCKING = 2, FLAG_THREAD = 4, FLAG_SERIALIZED = 8, FLAG_DISCARD = 16 };

struct record {
	uint64_t start, end;   /* CLOCK_MONOTONIC, ns */
	uint64_t stream, arg;
	uint32_t thread;
	uint16_t kind, flags;
	int32_t result;
	uint32_t count;
	uint64_t injected;     /* ns */
	uint64_t context;
};

_Static_assert(sizeof(struct record) == 64, "hook/TRACE.md gives 64 bytes");

bool dxpu_record_open(void);
void dxpu_record(const struct record *r);
void dxpu_record_close(void);
extern bool dxpu_recording;

/* ---- resolve.c ---- */

/* Returns the wrapper of the function that the driver answered, or the answer. */
void *dxpu_substitute(const char *name, void *answer, int version, uint64_t flags);

#endif
