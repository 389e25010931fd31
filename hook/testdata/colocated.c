/*
 * A service or a job of the benchmark of programs side by side:
 *
 *   colocated KERNEL LAUNCHES CPU PAUSE MS
 *
 * does, for MS milliseconds, rounds of LAUNCHES launches of KERNEL with CPU microseconds of
 * the processor after each, then waits for the GPU, and rests for PAUSE microseconds. It
 * prints "ready", begins with the next line of its input, and answers with the number of
 * rounds, their median and p99 in nanoseconds, and the mean and p99 of a call that launches.
 */
#include <stdio.h>
#include <stdlib.h>
#include <stdint.h>
#include <time.h>

#include "cu.h"

extern CUresult cuInit(unsigned);
extern CUresult cuDevicePrimaryCtxRetain(CUcontext *, CUdevice);
extern CUresult cuCtxSetCurrent(CUcontext);
extern CUresult cuCtxSynchronize(void);
extern CUresult cuStreamCreate(CUstream *, unsigned);
extern CUresult cuModuleGetFunction(CUfunction *, CUmodule, const char *);
extern CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);

enum { MOST = 1 << 20 };
static uint64_t rounds[MOST], calls[MOST];
static unsigned nrounds, ncalls;

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void fail(const char *what, CUresult r)
{
	fprintf(stderr, "%s: result %d\n", what, r);
	exit(1);
}

#define MUST(call) \
	do { \
		CUresult r_ = call; \
\
		if (r_ != CUDA_SUCCESS) \
			fail(#call, r_); \
	} while (0)

static void round_of(CUfunction f, CUstream s, unsigned launches, uint64_t cpu)
{
	uint64_t start = now();

	for (unsigned i = 0; i < launches; i++) {
		uint64_t before = now(), after;

		MUST(cuLaunchKernel(f, 16, 1, 1, 256, 1, 1, 0, s, NULL, NULL));
		after = now();
		if (ncalls < MOST)
			calls[ncalls++] = after - before;
		while (now() - after < cpu)
			;
	}
	MUST(cuCtxSynchronize());
	if (nrounds < MOST)
		rounds[nrounds++] = now() - start;
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static unsigned long long at(const uint64_t *sorted, unsigned n, unsigned percent) { return n ? sorted[(uint64_t)(n - 1) * percent / 100] : 0; }

int main(int argc, char **argv)
{
	CUcontext context;
	CUstream stream;
	CUfunction function;
	uint64_t until, sum = 0;
	struct timespec pause;

	if (argc != 6)
		return 2;
	MUST(cuInit(0));
	MUST(cuDevicePrimaryCtxRetain(&context, 0));
	MUST(cuCtxSetCurrent(context));
	MUST(cuStreamCreate(&stream, 0));
	MUST(cuModuleGetFunction(&function, NULL, argv[1]));
	puts("ready");
	fflush(stdout);
	(void)getchar();
	pause = (struct timespec){.tv_nsec = atol(argv[4]) * 1000};
	until = now() + strtoull(argv[5], NULL, 10) * 1000000;
	while (now() < until) {
		round_of(function, stream, (unsigned)atoi(argv[2]), strtoull(argv[3], NULL, 10) * 1000);
		if (pause.tv_nsec)
			nanosleep(&pause, NULL);
	}
	for (unsigned i = 0; i < ncalls; i++)
		sum += calls[i];
	qsort(rounds, nrounds, sizeof rounds[0], compare);
	qsort(calls, ncalls, sizeof calls[0], compare);
	printf("%u %llu %llu %llu %llu\n", nrounds, at(rounds, nrounds, 50), at(rounds, nrounds, 99), (unsigned long long)(ncalls ? sum / ncalls : 0), at(calls, ncalls, 99));
	return 0;
}
