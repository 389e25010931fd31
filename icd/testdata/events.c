/* User events, out-of-order queues, callbacks and mapped buffers: it prints the same on
 * every platform that works. With "failures" it goes on after a user event that fails. */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void check(cl_int code, const char *what)
{
	if (code) {
		printf("%s: %d\n", what, code);
		exit(1);
	}
}

static cl_context c;
static cl_command_queue q, other, loose;
static cl_kernel step, add;
static const size_t one = 1;
static int fds[2];

/* told waits for a byte of a callback. */
static char told(void)
{
	char b = 0;

	if (read(fds[0], &b, 1) != 1)
		exit(1);
	return b;
}

static void tell(char b)
{
	if (write(fds[1], &b, 1) != 1)
		exit(1);
}

static void CL_CALLBACK note(cl_event e, cl_int status, void *data)
{
	(void)e;
	tell(status == CL_COMPLETE ? *(char *)data : status < 0 ? '-' : '?');
}

static cl_int value(cl_mem m)
{
	cl_int v = -1;

	check(clEnqueueReadBuffer(q, m, CL_TRUE, 0, sizeof v, &v, 0, NULL, NULL), "read");
	return v;
}

static void set(cl_mem m, cl_int v)
{
	check(clEnqueueWriteBuffer(q, m, CL_TRUE, 0, sizeof v, &v, 0, NULL, NULL), "write");
}

static void user_events(cl_mem m)
{
	cl_int code, v = 5, got = 0;
	cl_event last, user = clCreateUserEvent(c, &code);

	check(code, "user event");
	set(m, 1);
	/* All commands wait: by the list, by the order of the queue, and by an event that waits. */
	check(clEnqueueWriteBuffer(other, m, CL_FALSE, 0, sizeof v, &v, 1, &user, NULL), "write that waits");
	check(clSetKernelArg(step, 0, sizeof m, &m), "argument");
	check(clEnqueueNDRangeKernel(other, step, 1, NULL, &one, NULL, 0, NULL, &last), "kernel that waits");
	check(clEnqueueReadBuffer(q, m, CL_FALSE, 0, sizeof got, &got, 1, &last, NULL), "read that waits");
	check(clSetEventCallback(last, CL_COMPLETE, note, "k"), "callback");
	check(clFlush(other), "flush");
	check(clGetEventInfo(last, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof code, &code, NULL), "status");
	printf("before: waits %d, ", code > CL_COMPLETE);
	/* Another context ends while commands wait. */
	cl_device_id d;
	check(clGetContextInfo(c, CL_CONTEXT_DEVICES, sizeof d, &d, NULL), "device");
	cl_context another = clCreateContext(NULL, 1, &d, NULL, NULL, &code);
	check(code, "another context");
	clReleaseContext(another);
	v = 6; /* the data of a write that waits belong to the program until then */
	check(clSetUserEventStatus(user, CL_COMPLETE), "status of the event");
	check(clFinish(q), "finish");
	printf("after: %d, callback %c, again %d\n", got, told(), clSetUserEventStatus(user, CL_COMPLETE));
	clReleaseEvent(last);
	clReleaseEvent(user);
}

/* A user event that fails ends the commands that wait for it. PoCL 3.1 itself hangs here. */
static void failed_event(cl_mem m)
{
	cl_int code;
	cl_event last, user = clCreateUserEvent(c, &code);

	check(code, "user event");
	check(clEnqueueNDRangeKernel(q, step, 1, NULL, &one, NULL, 1, &user, &last), "kernel that fails");
	check(clSetEventCallback(last, CL_COMPLETE, note, "k"), "callback");
	check(clFlush(q), "flush");
	check(clSetUserEventStatus(user, -7), "failure of the event");
	code = clWaitForEvents(1, &last);
	printf("failed: %d, callback %c\n", code, told());
	clReleaseEvent(last);
	code = clEnqueueMarkerWithWaitList(q, 1, &user, &last);
	printf("enqueued later: %d", code);
	printf(", %d", clWaitForEvents(1, &last));
	printf(", and blocking %d\n", clEnqueueReadBuffer(q, m, CL_TRUE, 0, sizeof code, &code, 1, &user, NULL));
	clReleaseEvent(last);
	clReleaseEvent(user);
}

/* An out-of-order queue: a chain by events, and a barrier. */
static void out_of_order(cl_mem m)
{
	cl_event chain[100];
	unsigned want = 0;

	set(m, 0);
	for (int i = 0; i < 100; i++) {
		check(clEnqueueNDRangeKernel(loose, step, 1, NULL, &one, NULL, i > 0, i > 0 ? &chain[i - 1] : NULL, &chain[i]), "chain");
		want = want * 3 + 1;
	}
	check(clEnqueueBarrierWithWaitList(loose, 0, NULL, NULL), "barrier");
	check(clEnqueueNDRangeKernel(loose, step, 1, NULL, &one, NULL, 0, NULL, NULL), "behind the barrier");
	want = want * 3 + 1;
	check(clFinish(loose), "finish");
	printf("out of order: %s\n", (unsigned)value(m) == want ? "equal" : "different");
	for (int i = 0; i < 100; i++)
		clReleaseEvent(chain[i]);
}

/* A read that takes several packets of the driver, the last one of a byte, in the out-of-order
 * queue. A fill waits for the read, and overwrites bytes of the packet before the last one. */
static void large_read(void)
{
	const size_t packet = 4032 * 1024, n = 4 * packet + 1, tail = packet / 2;
	unsigned char *from = malloc(n), *to = calloc(1, n), pattern = 0;
	cl_event written, got;
	cl_int code;
	cl_mem m = clCreateBuffer(c, CL_MEM_READ_WRITE, n, NULL, &code);
	int equal = 1;

	check(code, "large buffer");
	for (int round = 1; round <= 5; round++) {
		for (size_t i = 0; i < n; i++)
			from[i] = (unsigned char)((i >> 12) + (size_t)round) | 1;
		check(clEnqueueWriteBuffer(loose, m, CL_FALSE, 0, n, from, 0, NULL, &written), "large write");
		check(clEnqueueReadBuffer(loose, m, CL_FALSE, 0, n, to, 1, &written, &got), "large read");
		check(clEnqueueFillBuffer(loose, m, &pattern, 1, n - tail, tail, 1, &got, NULL), "fill behind the read");
		check(clFinish(loose), "finish");
		equal &= !memcmp(from, to, n);
		clReleaseEvent(written);
		clReleaseEvent(got);
	}
	printf("large read: %s\n", equal ? "equal" : "different");
	clReleaseMemObject(m);
	free(from);
	free(to);
}

/* A callback that enqueues more commands than the driver keeps in flight. */
static void CL_CALLBACK enqueue_many(cl_event e, cl_int status, void *data)
{
	(void)status;
	(void)e;
	for (int i = 0; i < *(int *)data; i++)
		if (clEnqueueNDRangeKernel(q, add, 1, NULL, &one, NULL, 0, NULL, NULL))
			tell('!');
	clFlush(q);
	tell('m');
}

static void callbacks(cl_mem m)
{
	static int many = 10000;
	cl_event e;

	set(m, 0);
	check(clSetKernelArg(add, 0, sizeof m, &m), "argument");
	check(clEnqueueMarkerWithWaitList(other, 0, NULL, &e), "marker");
	check(clSetEventCallback(e, CL_COMPLETE, enqueue_many, &many), "callback");
	check(clFlush(other), "flush");
	char b = told();
	check(clFinish(q), "finish");
	printf("callback: %c, %d\n", b, value(m));
	clReleaseEvent(e);
}

static void CL_CALLBACK gone(cl_mem m, void *data)
{
	(void)m;
	tell(*(char *)data);
}

static void CL_CALLBACK note_state(cl_event e, cl_int status, void *data)
{
	(void)e;
	(void)data;
	tell((char)('0' + status));
}

/* Callbacks of an event come in the order of its states. */
static void states(void)
{
	cl_int code;
	cl_event e, user = clCreateUserEvent(c, &code);

	check(code, "user event");
	check(clSetEventCallback(user, CL_SUBMITTED, note_state, NULL), "callback");
	alarm(120); /* ends a wait for ever */
	printf("state of a user event: %c\n", told());
	alarm(0);
	check(clEnqueueNDRangeKernel(other, add, 1, NULL, &one, NULL, 1, &user, &e), "kernel that waits");
	check(clSetEventCallback(e, CL_SUBMITTED, note_state, NULL), "callback");
	check(clSetEventCallback(e, CL_COMPLETE, note_state, NULL), "callback");
	check(clSetEventCallback(e, CL_RUNNING, note_state, NULL), "callback");
	check(clSetUserEventStatus(user, CL_COMPLETE), "status of the event");
	check(clFinish(other), "finish");
	printf("states: %c", told());
	printf("%c", told());
	printf("%c\n", told());
	clReleaseEvent(e);
	clReleaseEvent(user);
}

/* Buffers that end while commands use them. */
static void maps(void)
{
	const size_t n = 8 << 20;
	cl_int code, pattern = 9;
	cl_event e;
	cl_mem m = clCreateBuffer(c, CL_MEM_READ_WRITE, n, NULL, &code);

	check(code, "buffer");
	check(clSetMemObjectDestructorCallback(m, gone, "1"), "callback");
	check(clSetMemObjectDestructorCallback(m, gone, "2"), "callback");
	check(clEnqueueFillBuffer(q, m, &pattern, sizeof pattern, 0, n, 0, NULL, NULL), "fill");
	int *p = clEnqueueMapBuffer(q, m, CL_FALSE, CL_MAP_READ | CL_MAP_WRITE, 0, n, 0, NULL, &e, &code);
	check(code, "map");
	check(clEnqueueUnmapMemObject(q, m, p, 0, NULL, NULL), "unmap of a map that has not ended");
	check(clReleaseMemObject(m), "release");
	check(clWaitForEvents(1, &e), "wait");
	clReleaseEvent(e);
	check(clFinish(q), "finish");
	check(clFinish(q), "finish");
	printf("destructors: %c", told());
	printf("%c\n", told());
	m = clCreateBuffer(c, CL_MEM_READ_WRITE | CL_MEM_HOST_READ_ONLY, 64, NULL, &code);
	check(code, "buffer");
	p = clEnqueueMapBuffer(q, m, CL_TRUE, CL_MAP_WRITE, 0, 64, 0, NULL, NULL, &code);
	printf("map to write of a buffer to read: %d\n", code);
	clReleaseMemObject(m);
}

int main(int argc, char **argv)
{
	static const char *source = "__kernel void advance(__global int *x) { x[0] = x[0] * 3 + 1; }\n"
				    "__kernel void increment(__global int *x) { x[0]++; }\n";
	cl_platform_id p;
	cl_device_id d;
	cl_int code;

	if (pipe(fds))
		return 1;
	check(clGetPlatformIDs(1, &p, NULL), "platforms");
	check(clGetDeviceIDs(p, CL_DEVICE_TYPE_ALL, 1, &d, NULL), "devices");
	c = clCreateContext(NULL, 1, &d, NULL, NULL, &code);
	check(code, "context");
	q = clCreateCommandQueue(c, d, 0, &code);
	check(code, "queue");
	other = clCreateCommandQueue(c, d, CL_QUEUE_PROFILING_ENABLE, &code);
	check(code, "second queue");
	loose = clCreateCommandQueue(c, d, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, &code);
	check(code, "out-of-order queue");
	cl_program g = clCreateProgramWithSource(c, 1, &source, NULL, &code);
	check(code, "program");
	check(clBuildProgram(g, 1, &d, "", NULL, NULL), "build");
	step = clCreateKernel(g, "advance", &code);
	check(code, "kernel");
	add = clCreateKernel(g, "increment", &code);
	check(code, "kernel");
	cl_mem m = clCreateBuffer(c, CL_MEM_READ_WRITE, 64, NULL, &code);
	check(code, "buffer");
	user_events(m);
	if (argc > 1 && !strcmp(argv[1], "failures"))
		failed_event(m);
	out_of_order(m);
	large_read();
	callbacks(m);
	states();
	maps();
	clReleaseMemObject(m);
	clReleaseKernel(step);
	clReleaseKernel(add);
	clReleaseProgram(g);
	clReleaseCommandQueue(loose);
	clReleaseCommandQueue(other);
	clReleaseCommandQueue(q);
	clReleaseContext(c);
	return 0;
}
