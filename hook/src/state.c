/* The state of the process, from cuInit to fork or exit. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "share.h"
#include "wrap.h"

atomic_bool dxpu_active;
atomic_int dxpu_captures;
_Thread_local int dxpu_depth;
struct counters dxpu_counters;

static pthread_once_t once = PTHREAD_ONCE_INIT;

uint64_t dxpu_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void write_context(const struct context *c, void *file)
{
	fprintf(file, "\n    {\"device\": %d, \"ready\": %s, \"clock\": \"%s\", \"kernel_ns\": %.1f, \"kernel_slope\": %.6g,"
		      " \"htod_ns\": %.1f, \"htod_ns_per_byte\": %.6g, \"dtoh_ns\": %.1f, \"dtoh_ns_per_byte\": %.6g}%s",
		c->device, c->state == CONTEXT_READY ? "true" : "false", c->clock ? c->clock : "", c->kernel.fixed, c->kernel.slope,
		c->htod.fixed, c->htod.slope, c->dtoh.fixed, c->dtoh.slope, c->next ? "," : "");
}

/* Writes the counters as JSON. */
static void write_stats(void)
{
	char path[4096];
	FILE *f;

	if (!dxpu_config.stats || !dxpu_expand(dxpu_config.stats, path, sizeof path))
		return;
	f = fopen(path, "we");
	if (!f) {
		fprintf(stderr, "dxpu: DXPU_STATS=%s: cannot be written\n", path);
		return;
	}
	fprintf(f, "{\n  \"rtt_ns\": %.1f,\n  \"native_rtt_ns\": %.1f,\n  \"delta_ns\": %.1f,\n", dxpu_config.rtt, dxpu_config.native, dxpu_delta());
#define FIELD(name) fprintf(f, "  \"%s\": %llu,\n", #name, atomic_load(&dxpu_counters.name));
	COUNTERS(FIELD)
#undef FIELD
	fprintf(f, "  \"contexts\": [");
	dxpu_contexts_report(write_context, f);
	fprintf(f, "]\n}\n");
	fclose(f);
}

static void at_exit(void)
{
	if (!atomic_load(&dxpu_active))
		return;
	dxpu_share_exit();
	dxpu_record_close();
	write_stats();
}

/*
 * The child of a process that has used the driver cannot use it: cuInit returns an
 * error. Threads may have held locks at the fork. So the library passes all calls
 * of the child through and writes no files.
 */
static void in_child(void)
{
	atomic_store(&dxpu_active, false);
	if (dxpu_config.share)
		dxpu_share_in_child();
}

static void activate(void)
{
	dxpu_recording = dxpu_record_open();
	pthread_atfork(NULL, NULL, in_child);
	atexit(at_exit);
	atomic_store(&dxpu_active, true);
}

void dxpu_activate(void)
{
	pthread_once(&once, activate);
}

CUresult hook_cuInit(unsigned flags);

CUresult hook_cuInit(unsigned flags)
{
	CUresult r = DRIVER(cuInit)(flags);

	if (r == CUDA_SUCCESS && dxpu_config.share)
		r = dxpu_share_activate();
	if (r == CUDA_SUCCESS)
		dxpu_activate();
	return r;
}
