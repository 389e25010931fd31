/*
 * Functions and macros for wrappers. The program calls a wrapper in place of the
 * driver's function. The wrapper passes the call through if the library is not
 * active, or if the call comes from the driver or from the library itself.
 */
#ifndef DXPU_WRAP_H
#define DXPU_WRAP_H

#include "dxpu.h"

/* The driver's function behind the wrapper of the same name. */
#define DRIVER(symbol) REAL(__typeof__(&hook_##symbol), symbol)

/* Begins the definition of a wrapper, with the prototype that the compiler requires. */
#define HOOK(symbol, ...) \
	CUresult hook_##symbol(__VA_ARGS__); \
	CUresult hook_##symbol(__VA_ARGS__)

/*
 * Begins a call; false: pass it through. For a call with a stream, FLAG_CAPTURED
 * tells that the stream is or may be captured, and then forbids insertions.
 */
bool dxpu_enter(struct record *r, enum kind kind, unsigned flags);
bool dxpu_enter_stream(struct record *r, enum kind kind, CUstream s, int thread);

/* Records the start of the driver's function. */
void dxpu_begin(struct record *r);

/* Ends a call and returns result. */
CUresult dxpu_leave(struct record *r, CUresult result);

/* Copies pattern with %p replaced by the process id. */
bool dxpu_expand(const char *pattern, char *to, size_t size);

static inline CUstream record_stream(const struct record *r) { return (CUstream)(uintptr_t)r->stream; }
static inline bool may_insert(const struct record *r) { return dxpu_config.inject && !(r->flags & FLAG_CAPTURED); }

/* Counts a copy for DXPU_STATS. */
void dxpu_count_copy(enum direction d, size_t bytes);

/* Like dxpu_direction, but does not ask the driver unless the library is active. */
static inline enum direction dxpu_active_direction(CUdeviceptr dst, CUdeviceptr src)
{
	if (!atomic_load_explicit(&dxpu_active, memory_order_acquire) || dxpu_depth > 0)
		return COPY_OTHER;
	return dxpu_direction(dst, src);
}

#endif
