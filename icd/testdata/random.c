/* Random OpenCL programs: random FIRST COUNT [show | threads | quiet | failures]. Each seed makes a sequence of calls, right
 * and wrong, whose results OpenCL defines. It prints a digest of all results, the same on every
 * platform that works; show prints each of them. threads runs the seeds at once, in one context, and
 * quiet one by one, without what threads leave out: printf and child processes.
 * failures lets events fail, for which PoCL 3.1 waits for ever: it prints what then is not as OpenCL says. */
#include "random.h"
#include "random_images.h"
#include "random_buffers.h"
#include "random_maps.h"
#include "random_kernels.h"
#include "random_programs.h"
#include "random_more.h"
#include "random_chain.h"
#include "random_info.h"
#include "random_refused.h"
#include "random_wrong.h"
#include "random_parts.h"
#include "random_values.h"
#include "random_formats.h"

static cl_device_id device;

static cl_program build(cl_context c)
{
	cl_int code;
	cl_program g = clCreateProgramWithSource(c, 1, &source, NULL, &code);

	if (clBuildProgram(g, 1, &device, "-cl-kernel-arg-info", NULL, NULL))
		puts("no program");
	return g;
}

#include "random_ends.h"

static void CL_CALLBACK note(cl_event e, cl_int status, void *data)
{
	struct run *run = data;

	(void)e;
	__atomic_add_fetch(&run->sum, status, __ATOMIC_ACQ_REL);
	tell(&run->called);
}

static void callback(void)
{
	if (!r.event_count)
		return;
	/* PoCL calls none for a state that has passed. */
	cl_int code = clSetEventCallback(r.events[any((size_t)r.event_count)], CL_COMPLETE, note, &r);
	say("callback: %d", code);
	r.expected += !code;
}

static void marker(void)
{
	cl_command_queue q = start();
	cl_event e = NULL;
	const cl_event *l = list();

	if (any(2))
		ended("marker", clEnqueueMarkerWithWaitList(q, r.wait_count, l, &e), &e);
	else
		ended("barrier", clEnqueueBarrierWithWaitList(q, r.wait_count, l, &e), &e);
}

static void migrate(void)
{
	struct mem *m = pick(0, 1, 0); /* PoCL changes images, with CL_MIGRATE_MEM_OBJECT_HOST */
	cl_event e = NULL;

	if (!m)
		return;
	cl_command_queue q = start();
	needs(uses_of(m), 1);
	const cl_event *l = list();
	ended("migrate", clEnqueueMigrateMemObjects(q, 1, &m->m, any(2) ? CL_MIGRATE_MEM_OBJECT_HOST : 0, r.wait_count, l, &e), &e);
}

static void new_user(void)
{
	cl_int code;

	if (r.user)
		return;
	r.user = clCreateUserEvent(r.c, &code);
	say("user event: %d", code);
	r.events[r.event_count++] = r.user;
}

static void synchronize(void)
{
	end_user();
	for (int i = 0; i < QUEUES; i++)
		say("finish: %d", clFinish(r.queues[i]));
	int called = told(&r.called, r.expected);
	say("callbacks: %d of %d, sum %ld", called, r.expected, r.sum);
	for (int i = 0; i < r.event_count; i++) {
		cl_int status = 99;
		cl_command_type type = 0;
		clGetEventInfo(r.events[i], CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL);
		clGetEventInfo(r.events[i], CL_EVENT_COMMAND_TYPE, sizeof type, &type, NULL);
		if (status)
			say("event %d, type %#x: %d", i, type, status);
		clReleaseEvent(r.events[i]);
	}
	r.event_count = 0;
	for (int i = 0; i < AREAS; i++) {
		say("area %d: %lx", i, hash(r.areas[i].bytes, AREA));
		r.areas[i].uses = (struct uses){0};
	}
	for (int i = 0; i < MEMS; i++) {
		struct mem *m = &r.mems[i];
		m->uses = (struct uses){0};
		if (!m->m || m->image || r.mems[m->root].writes || m->flags & host_reads)
			continue;
		unsigned char *bytes = malloc(m->size);
		cl_int code = clEnqueueReadBuffer(r.queues[i % QUEUES], m->m, CL_TRUE, 0, m->size, bytes, 0, NULL, NULL);
		say("buffer %d: %d %lx", i, code, hash(bytes, m->size));
		free(bytes);
	}
	check_images();
}

static void step(void)
{
	static void (*const steps[])(void) = {
		transfer, transfer, transfer, box_transfer, box_transfer, copy, copy, fill, map, map, unmap, unmap, kernel, kernel, kernel, kernel,
		marker, migrate, callback, new_user, new_mem, new_mem, drop_mem, image_step, image_step, wrong, wrong, info, info, end_user,
		shared_step, program_step, chain, chain, references, image_in, old, foreign, image_formats,
		device_info, device_info, profile, pieces_step, values_step, formats_step, ends_step, child_step, fails_step,
	};

	if (any(40) == 0 || full())
		synchronize();
	steps[any(sizeof steps / sizeof *steps)]();
	r.step++;
}

static cl_context shared;
static cl_program shared_program;

static void setup(void)
{
	cl_int code = CL_SUCCESS;

	r.d = device;
	r.c = shared;
	if (shared)
		clRetainContext(r.c);
	else
		r.c = clCreateContext(NULL, 1, &device, NULL, NULL, &code);
	say("context: %d", code);
	for (int i = 0; i < QUEUES; i++) {
		cl_queue_properties list[] = {CL_QUEUE_PROPERTIES, 0, 0};
		if (any(2))
			list[1] |= CL_QUEUE_PROFILING_ENABLE;
		if (any(2))
			list[1] |= CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE;
		r.ordered[i] = !(list[1] & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE);
		r.queues[i] = clCreateCommandQueueWithProperties(r.c, r.d, list, &code);
		say("queue: %d", code);
	}
	for (int i = 0; i < AREAS; i++) {
		r.areas[i].bytes = malloc(AREA);
		scribble(r.areas[i].bytes, AREA);
	}
	r.g = shared_program;
	if (r.g)
		clRetainProgram(r.g);
	else
		r.g = build(r.c);
	const cl_sampler_properties nearest[] = {CL_SAMPLER_NORMALIZED_COORDS, CL_FALSE, CL_SAMPLER_ADDRESSING_MODE, CL_ADDRESS_CLAMP_TO_EDGE, CL_SAMPLER_FILTER_MODE, CL_FILTER_NEAREST, 0};
	r.sampler = clCreateSamplerWithProperties(r.c, nearest, &code);
	say("sampler: %d", code);
	for (int i = 0; i < NAMES; i++) {
		r.kernels[i] = clCreateKernel(r.g, names[i], &code);
		say("kernel: %d", code);
	}
	for (int i = 0; i < MEMS / 2; i++)
		new_mem();
}

static void finish(void)
{
	for (int i = 0; i < 400; i++)
		unmap();
	synchronize();
	for (int i = 0; i < KERNELS; i++)
		if (r.kernels[i])
			clReleaseKernel(r.kernels[i]);
	clReleaseSampler(r.sampler);
	clReleaseProgram(r.g);
	for (int i = MEMS - 1; i >= 0; i--)
		if (r.mems[i].m)
			clReleaseMemObject(r.mems[i].m);
	for (int i = 0; i < QUEUES; i++)
		clReleaseCommandQueue(r.queues[i]);
	clReleaseContext(r.c);
	for (int i = 0; i < AREAS; i++)
		free(r.areas[i].bytes);
	for (int i = 0; i < MEMS; i++)
		if (r.mems[i].root == i)
			free(r.mems[i].host);
}

static uint64_t one(unsigned long seed)
{
	memset(&r, 0, sizeof r);
	r.seed = seed;
	r.state = seed * 0x2545f4914f6cdd1du + 1;
	setup();
	size_t steps = between(20, 300);
	while (r.step < steps)
		step();
	finish();
	return r.digest;
}

static void *thread(void *arg) { return (void *)(uintptr_t)one((unsigned long)(uintptr_t)arg); }

static void threads(unsigned long first, unsigned long count)
{
	enum { MOST = 16 };
	pthread_t list[MOST];

	shared = clCreateContext(NULL, 1, &device, NULL, NULL, NULL);
	shared_program = build(shared);
	for (unsigned long i = 0; i < count && i < MOST; i++)
		pthread_create(&list[i], NULL, thread, (void *)(uintptr_t)(first + i));
	for (unsigned long i = 0; i < count && i < MOST; i++) {
		void *digest;
		pthread_join(list[i], &digest);
		printf("%lu %lx\n", first + i, (unsigned long)(uintptr_t)digest);
	}
	clReleaseProgram(shared_program);
	clReleaseContext(shared);
}

int main(int argc, char **argv)
{
	cl_platform_id p;
	unsigned long first = argc > 1 ? strtoul(argv[1], NULL, 10) : 1, count = argc > 2 ? strtoul(argv[2], NULL, 10) : 1;

	if (clGetPlatformIDs(1, &p, NULL) || clGetDeviceIDs(p, CL_DEVICE_TYPE_ALL, 1, &device, NULL)) {
		puts("no device");
		return 1;
	}
	verbose = argc > 3 && !strcmp(argv[3], "show");
	failures = argc > 3 && !strcmp(argv[3], "failures");
	alone = argc <= 3 || (strcmp(argv[3], "threads") && strcmp(argv[3], "quiet"));
	if (argc > 3 && !strcmp(argv[3], "threads")) {
		threads(first, count);
		return 0;
	}
	for (unsigned long i = 0; i < count; i++) {
		printf("%lu %lx\n", first + i, (unsigned long)one(first + i));
		fflush(stdout);
	}
	return 0;
}
