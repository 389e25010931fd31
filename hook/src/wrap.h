/*
 * What every wrapper does. A wrapper is called by the program in place of the
 * driver's function; it passes through when the library is not active and when
 * the call comes from inside the driver or the library itself.
 */
#ifndef DXPU_WRAP_H
#define DXPU_WRAP_H

#include "dxpu.h"

/* The driver's function behind the wrapper of the same name. */
#define DRIVER(symbol) REAL(__typeof__(&hook_##symbol), symbol)

/* Declares and begins the wrapper; the compiler wants a prototype of each. */
#define HOOK(symbol, ...) \
	CUresult hook_##symbol(__VA_ARGS__); \
	CUresult hook_##symbol(__VA_ARGS__)

/*
 * Begins a call. False: pass it through. With a stream the record says whether
 * it is being captured (or may be), and then nothing may be inserted.
 */
bool dxpu_enter(struct record *r, enum kind kind, unsigned flags);
bool dxpu_enter_stream(struct record *r, enum kind kind, CUstream s, int thread);

/* Just before the driver is called. */
void dxpu_begin(struct record *r);

/* Ends a call and returns its result. */
CUresult dxpu_leave(struct record *r, CUresult result);

/* Replaces %p by the process id. */
bool dxpu_expand(const char *pattern, char *to, size_t size);

static inline CUstream record_stream(const struct record *r) { return (CUstream)(uintptr_t)r->stream; }
static inline bool may_insert(const struct record *r) { return dxpu_config.inject && !(r->flags & FLAG_CAPTURED); }

/* Counts a copy for DXPU_STATS. */
void dxpu_count_copy(enum direction d, size_t bytes);

/* dxpu_direction where the library is active; where not, nothing is asked. */
static inline enum direction dxpu_active_direction(CUdeviceptr dst, CUdeviceptr src)
{
	if (!atomic_load_explicit(&dxpu_active, memory_order_acquire) || dxpu_depth > 0)
		return COPY_OTHER;
	return dxpu_direction(dst, src);
}

#endif
