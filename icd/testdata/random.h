/* State of a random program (random.c): its objects, and the commands that use them. */
#ifndef RANDOM_H
#define RANDOM_H
#define CL_TARGET_OPENCL_VERSION 300
#define CL_USE_DEPRECATED_OPENCL_1_1_APIS
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#include <CL/cl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "numbers.h"

static pthread_mutex_t calls_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t calls_change = PTHREAD_COND_INITIALIZER;

/* tell counts a call of a callback. */
static void tell(volatile int *calls)
{
	pthread_mutex_lock(&calls_lock);
	++*calls;
	pthread_cond_broadcast(&calls_change);
	pthread_mutex_unlock(&calls_lock);
}

/* told waits for a number of calls, and returns how many came: within a minute, unless one is lost. */
static int told(volatile int *calls, int n)
{
	struct timespec end;

	clock_gettime(CLOCK_REALTIME, &end);
	end.tv_sec += 60;
	pthread_mutex_lock(&calls_lock);
	while (*calls != n && !pthread_cond_timedwait(&calls_change, &calls_lock, &end))
		;
	n = *calls;
	pthread_mutex_unlock(&calls_lock);
	return n;
}

enum { MEMS = 12, AREAS = 4, AREA = 1 << 18, QUEUES = 4, USES = 24, WAITS = 96, MAPS = 8, KERNELS = 24, EVENTS = 2048 };

static const char *const names[] = {"mix_up", "numbers", "sums", "values", "constants", "picture", "paint", "solid", "layers"};
enum { MIX, NUMBERS, SUMS, VALUES, CONSTANTS, PICTURE, PAINT, SOLID, LAYERS, NAMES };

/* use is a command that uses memory, of the queue in which it is. */
struct use {
	cl_event event;
	int queue;
};

/* uses are the last command that writes memory, and those that have read it since. */
struct uses {
	struct use write, reads[USES];
	int count;
};

/* area is memory of the program. */
struct area {
	unsigned char *bytes;
	struct uses uses;
};

struct mem {
	cl_mem m;
	int root; /* index of the buffer of which it is a part, or its own */
	cl_mem_flags flags;
	size_t size, origin;
	unsigned char *host;
	int maps, writes; /* mappings, and those of them that write; of a root */
	struct uses uses; /* of a root */
	/* Of an image: */
	int image;
	cl_image_format format;
	cl_mem_object_type type;
	size_t pixel, extent[3];
};

struct map {
	int mem;
	unsigned char *bytes;
	cl_map_flags flags;
	size_t size, row, slice, region[3];
	cl_event event; /* after which the bytes are there */
};

/* run is one random program. Each thread has one. */
struct run {
	uint64_t state, digest;
	unsigned long seed, step;
	cl_context c;
	cl_device_id d;
	cl_command_queue queues[QUEUES];
	int ordered[QUEUES];
	struct mem mems[MEMS];
	struct area areas[AREAS];
	struct map maps[MAPS];
	cl_program g;
	cl_kernel kernels[KERNELS];
	cl_sampler sampler;
	cl_event events[EVENTS];
	int event_count;
	cl_event user;
	/* Of the command that is being made: */
	int queue;
	cl_event waits[WAITS];
	cl_uint wait_count;
	struct uses *used[8];
	int writes[8], used_count;
	volatile int called, expected;
	volatile long sum;
};

static _Thread_local struct run r;
static int verbose;

static uint64_t next(void) { return next_number(&r.state); }

/* any returns a number below n. */
static size_t any(size_t n) { return (size_t)(next() >> 11) % n; }

/* between returns a number from low to high. */
static size_t between(size_t low, size_t high) { return low + any(high - low + 1); }

/* say adds a line to what the program has found. */
__attribute__((format(printf, 1, 2))) static void say(const char *format, ...)
{
	char line[512];
	va_list list;

	va_start(list, format);
	int n = snprintf(line, sizeof line, "%lu.%lu ", r.seed, r.step);
	n += vsnprintf(line + n, sizeof line - (size_t)n, format, list);
	va_end(list);
	r.digest = (r.digest ^ hash(line, (size_t)n)) * 0x100000001b3u;
	if (verbose) {
		puts(line);
		fflush(stdout);
	}
}

static void scribble(unsigned char *bytes, size_t n)
{
	uint64_t v = next();

	for (size_t i = 0; i < n; i++) {
		v = v * 6364136223846793005u + 1442695040888963407u;
		bytes[i] = (unsigned char)(v >> 56);
	}
}

/* start begins a command in a random queue. */
static cl_command_queue start(void)
{
	r.queue = (int)any(QUEUES);
	r.wait_count = 0;
	r.used_count = 0;
	return r.queues[r.queue];
}

static void wait_for(struct use u)
{
	/* An ordered queue needs no event of its own. */
	if (!u.event || r.wait_count == WAITS || (u.queue == r.queue && r.ordered[r.queue] && any(2)))
		return;
	for (cl_uint i = 0; i < r.wait_count; i++)
		if (r.waits[i] == u.event)
			return;
	r.waits[r.wait_count++] = u.event;
}

/* needs adds memory that the command reads or writes, and what it waits for. */
static void needs(struct uses *u, int write)
{
	r.used[r.used_count] = u;
	r.writes[r.used_count++] = write;
	wait_for(u->write);
	for (int i = 0; write && i < u->count; i++)
		wait_for(u->reads[i]);
}

static int is_part(const struct mem *m) { return m != &r.mems[m->root]; }

static struct uses *uses_of(const struct mem *m) { return &r.mems[m->root].uses; }

/* list returns the events that a command waits for. */
static const cl_event *list(void)
{
	if (r.user && any(3) == 0)
		wait_for((struct use){r.user, -1});
	if (r.event_count && any(6) == 0)
		wait_for((struct use){r.events[any((size_t)r.event_count)], -1});
	return r.wait_count ? r.waits : NULL;
}

/* blocking says whether a command may wait. */
static cl_bool blocking(void) { return !r.user && any(3) == 0; }

/* ended notes the event of a command. */
static void ended(const char *what, cl_int code, const cl_event *e)
{
	say("%s queue %d, %u waits: %d", what, r.queue, r.wait_count, code);
	if (code)
		return;
	r.events[r.event_count++] = *e;
	for (int i = 0; i < r.used_count; i++) {
		struct uses *u = r.used[i];
		const struct use own = {*e, r.queue};
		if (!r.writes[i])
			u->reads[u->count++] = own;
		else {
			u->write = own;
			u->count = 0;
		}
	}
}

/* full reports whether something has as many uses as there is room for. */
static int full(void)
{
	int most = 0;

	for (int i = 0; i < MEMS; i++)
		most = r.mems[i].uses.count > most ? r.mems[i].uses.count : most;
	for (int i = 0; i < AREAS; i++)
		most = r.areas[i].uses.count > most ? r.areas[i].uses.count : most;
	return most >= USES - 4 || r.event_count >= EVENTS - 8;
}

/* pick finds a buffer (image 0) or an image that a command may read or write, or returns NULL. */
static struct mem *pick(int image, int write, cl_mem_flags refused)
{
	for (int tries = 0; tries < 12; tries++) {
		struct mem *m = &r.mems[any(MEMS)], *root = &r.mems[m->root];
		if (m->m && (image == m->image || (image == 2 && m->image)) && !(m->flags & refused) && !root->writes && !(write && root->maps))
			return m;
	}
	return NULL;
}

static const cl_mem_flags host_reads = CL_MEM_HOST_WRITE_ONLY | CL_MEM_HOST_NO_ACCESS, host_writes = CL_MEM_HOST_READ_ONLY | CL_MEM_HOST_NO_ACCESS;

#endif
