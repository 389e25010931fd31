/*
 * A driver library without a GPU that models one GPU, or several, shared by processes.
 * The file FAKE_GPU holds the GPUs' state. A GPU runs one kernel at a time. A function
 * named kN takes N microseconds, others 12. Memory of a process that has ended is free.
 *
 *   FAKE_GPU_CLOCK=step     the clock is the word in the file: tests set it, and waits
 *                           set it to the end of what they wait for. By default it is
 *                           CLOCK_MONOTONIC.
 *   FAKE_GPU_DEVICES=n      number of GPUs, 1 to 4; default 1
 *   FAKE_GPU_MEMORY=n       bytes of each; default 1 GiB
 *   FAKE_GPU_CHUNK=n        pools grow by multiples of n bytes; default 1
 *   FAKE_GPU_CHUNKS_STAY=1  a trimmed pool keeps whole chunks while anything of it is in use
 *   FAKE_GPU_PAD=n          arrays take multiples of n bytes; default 1
 *   FAKE_GPU_UNFREED=n      n bytes that destroyed graphs allocated are not freed
 *   FAKE_GPU_FREE=1         launches and events do nothing, to measure what the library adds
 *   FAKE_GPU_ERRORS=list    NAME@K=E, separated by spaces: call K of NAME returns E
 *   FAKE_GPU_RAISE=NAME     each call of NAME raises SIGTERM in its thread
 */
#ifndef GPU_H
#define GPU_H

#include <pthread.h>

#include "dxpu.h"

enum { GPUS = 4, PROCESSES = 64, MEM_UNKNOWN = 1, NO_MEMORY = 2, INVALID_HANDLE = 400 };

struct process {
	int32_t pid;
	uint32_t launches;
	uint64_t used, busy; /* bytes; ns */
};

/* The words that tests read, at these offsets for each GPU: share_fake_test.go. */
struct gpu {
	uint64_t total, used, peak; /* bytes */
	uint64_t free_at;           /* ns: end of the last kernel */
	uint64_t launches, busy;
	struct process processes[PROCESSES];
};

struct machine {
	uint64_t ready, clock; /* ns */
	struct gpu gpus[GPUS];
};

struct ctx {
	int device;
	bool alive;
};

struct stream {
	struct ctx *ctx;
	uint64_t end; /* ns */
	struct graph *capture;
};

#pragma GCC visibility push(hidden)

extern pthread_mutex_t lock;      /* of this process */
extern struct machine *machine;   /* guarded by lock_machine */
extern _Thread_local struct ctx *current;

void lock_machine(void);
void unlock_machine(void);
uint64_t setting(const char *name, uint64_t otherwise);

/* The scripted error of this call of a symbol, or what an unusable thread gets. */
CUresult scripted(int symbol);
CUresult usable(int symbol);

/* This process's record on a GPU, under lock_machine. */
struct process *self(struct gpu *g);

/* Takes bytes of a GPU's memory; false: none left. */
bool take(int device, uint64_t bytes);
void give(int device, uint64_t bytes);

struct stream *stream_of(CUstream s);

/* Runs a kernel in a stream. */
CUresult run_kernel(struct stream *s, const char *name);
void graph_add(struct graph *g, int type, const char *name, uint64_t bytes);
void free_context(const struct ctx *c);
void wait_until(uint64_t ns);
uint64_t now(void);

#pragma GCC visibility pop

#define TRY(symbol) \
	do { \
		CUresult error = usable(SYM_##symbol); \
\
		if (error) \
			return error; \
	} while (0)

#endif
