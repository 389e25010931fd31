/* The waits of commands in an out-of-order queue, while another command waits for a user event: it prints the same
 * on every platform that works. And when such a command was enqueued. */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { TURNS = 1 << 27, WIDE = 64, TRIES = 5, LIMIT = 120 };

static cl_context c;
static cl_device_id d;
static cl_command_queue loose, other;
static cl_kernel spin;

static void check(cl_int code, const char *what)
{
	if (code) {
		printf("%s: %d\n", what, code);
		exit(1);
	}
}

static cl_event user_event(void)
{
	cl_int code;
	cl_event e = clCreateUserEvent(c, &code);

	check(code, "user event");
	return e;
}

/* groups enqueues a kernel of some work-groups that takes some turns of a loop. */
static cl_event groups(cl_command_queue q, size_t n, cl_uint turns, cl_uint waits, const cl_event *list)
{
	const size_t one = 1;
	cl_event e;

	check(clSetKernelArg(spin, 1, sizeof turns, &turns), "argument");
	check(clEnqueueNDRangeKernel(q, spin, 1, NULL, &n, &one, waits, list, &e), "kernel");
	return e;
}

static cl_event run(cl_command_queue q, cl_uint turns, cl_uint waits, const cl_event *list) { return groups(q, 1, turns, waits, list); }

/* wait_for waits, and releases an event. A program that waits for ever is ended. */
static void wait_for(cl_event e)
{
	alarm(LIMIT);
	check(clWaitForEvents(1, &e), "wait");
	alarm(0);
	clReleaseEvent(e);
}

static int complete(cl_event e)
{
	cl_int status = -1;

	check(clGetEventInfo(e, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL), "status");
	return status == CL_COMPLETE;
}

/* let ends a user event, and waits for what it held. */
static void let(cl_event user, cl_event held)
{
	check(clSetUserEventStatus(user, CL_COMPLETE), "end of the user event");
	wait_for(held);
	clReleaseEvent(user);
}

/* A marker without a list waits for the command before it, and lets the one behind it run. */
static void behind_a_marker(void)
{
	cl_event user = user_event(), held = run(loose, 1, 1, &user), mark;

	check(clEnqueueMarkerWithWaitList(loose, 0, NULL, &mark), "marker");
	wait_for(run(loose, 1, 0, NULL));
	printf("behind a marker: marker %d", complete(mark));
	let(user, held);
	wait_for(mark);
	printf(", and then complete\n");
}

/* A barrier with a list waits for it alone, and what is behind it for the barrier. */
static void barrier_with_a_list(void)
{
	cl_event done = run(loose, 1, 0, NULL), user = user_event(), held = run(loose, 1, 1, &user), barrier;

	check(clEnqueueBarrierWithWaitList(loose, 1, &done, &barrier), "barrier");
	wait_for(barrier);
	wait_for(run(loose, 1, 0, NULL));
	printf("barrier with a list: held %d\n", complete(held));
	let(user, held);
	user = user_event();
	check(clEnqueueBarrierWithWaitList(loose, 1, &user, &barrier), "barrier");
	cl_event behind = run(loose, 1, 0, NULL);
	printf("behind a barrier: %d %d\n", complete(barrier), complete(behind));
	let(user, barrier);
	wait_for(behind);
	clReleaseEvent(done);
}

/* A marker without a list waits for all before it. The first kernel takes the whole device, the second one a
 * part of it. */
static void marker_of_all(void)
{
	int right = 0;

	for (int i = 0; i < TRIES; i++) {
		cl_event mark, wide = groups(loose, WIDE, TURNS / WIDE, 0, NULL), before = run(loose, TURNS, 0, NULL);
		check(clFlush(loose), "flush");
		check(clEnqueueMarkerWithWaitList(loose, 0, NULL, &mark), "marker");
		wait_for(mark);
		right += complete(before);
		wait_for(before);
		wait_for(wide);
	}
	printf("marker of all: %d of %d\n", right, TRIES);
}

static cl_ulong at(cl_event e, cl_profiling_info what)
{
	cl_ulong t = 0;

	check(clGetEventProfilingInfo(e, what, sizeof t, &t, NULL), "time");
	return t;
}

/* A command that waits for a user event was enqueued before one that ran meanwhile ended. Where the device has no
 * timer, the time takes part in the delay of a message: one try of several has to be right. */
static void queued(cl_command_queue q)
{
	int early = 0, ordered = 0;

	for (int i = 0; i < TRIES && !early; i++) {
		cl_event user = user_event(), held = run(q, 1, 1, &user), later = run(other, TURNS, 0, NULL);
		check(clWaitForEvents(1, &later), "wait");
		clRetainEvent(held);
		let(user, held);
		early = at(held, CL_PROFILING_COMMAND_QUEUED) < at(later, CL_PROFILING_COMMAND_END);
		ordered = at(held, CL_PROFILING_COMMAND_QUEUED) <= at(held, CL_PROFILING_COMMAND_SUBMIT) &&
			  at(held, CL_PROFILING_COMMAND_SUBMIT) <= at(held, CL_PROFILING_COMMAND_START) &&
			  at(later, CL_PROFILING_COMMAND_END) < at(held, CL_PROFILING_COMMAND_START);
		clReleaseEvent(held);
		clReleaseEvent(later);
	}
	printf("queued: early %d, in order %d\n", early, ordered);
}

int main(void)
{
	static const char *source = "__kernel void spin(__global uint *x, uint n) { uint v = x[0];\n"
				    "for (uint i = 0; i < n; i++) v = v * 1664525u + (v >> 7) + i; x[get_group_id(0)] = v; }\n";
	cl_platform_id p;
	cl_int code;

	check(clGetPlatformIDs(1, &p, NULL), "platforms");
	check(clGetDeviceIDs(p, CL_DEVICE_TYPE_ALL, 1, &d, NULL), "devices");
	c = clCreateContext(NULL, 1, &d, NULL, NULL, &code);
	check(code, "context");
	loose = clCreateCommandQueue(c, d, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE | CL_QUEUE_PROFILING_ENABLE, &code);
	check(code, "out-of-order queue");
	other = clCreateCommandQueue(c, d, CL_QUEUE_PROFILING_ENABLE, &code);
	check(code, "queue");
	cl_command_queue ordered = clCreateCommandQueue(c, d, CL_QUEUE_PROFILING_ENABLE, &code);
	check(code, "queue");
	cl_program g = clCreateProgramWithSource(c, 1, &source, NULL, &code);
	check(code, "program");
	check(clBuildProgram(g, 1, &d, "", NULL, NULL), "build");
	spin = clCreateKernel(g, "spin", &code);
	check(code, "kernel");
	cl_mem m = clCreateBuffer(c, CL_MEM_READ_WRITE, WIDE * sizeof(cl_uint), NULL, &code);
	check(code, "buffer");
	check(clSetKernelArg(spin, 0, sizeof m, &m), "argument");
	behind_a_marker();
	barrier_with_a_list();
	marker_of_all();
	queued(ordered);
	queued(loose);
	clReleaseMemObject(m);
	clReleaseKernel(spin);
	clReleaseProgram(g);
	clReleaseCommandQueue(ordered);
	clReleaseCommandQueue(other);
	clReleaseCommandQueue(loose);
	clReleaseContext(c);
	return 0;
}
