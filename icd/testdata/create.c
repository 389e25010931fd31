/* Makes objects and uses them at once. "content" checks what objects are made with, in several queues
 * and contexts. "refused" is for a platform that refuses buffers of 12321 bytes (narrow.c), and for one
 * whose memory ends. */
#define CL_TARGET_OPENCL_VERSION 300
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#include <CL/cl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { REFUSED = 12321, HELD = 777, LET_GO = 778, MOST_POSTED = 16 << 10, HANG_S = 120, ROUNDS = 60, MOST = 3 << 20, QUEUES = 3 };

static void check(cl_int code, const char *what)
{
	if (code) {
		fprintf(stderr, "%s: %d\n", what, code);
		exit(1);
	}
}

static cl_context context;
static cl_device_id device;
static cl_command_queue queues[QUEUES];
static cl_kernel kernel;

static void set_up(void)
{
	static const char *source = "__kernel void twice(__global const uchar *x, __global uchar *y) {\n"
				    "	y[get_global_id(0)] = 2 * x[get_global_id(0)];\n}\n";
	cl_platform_id p;
	cl_int code;

	check(clGetPlatformIDs(1, &p, NULL), "platforms");
	check(clGetDeviceIDs(p, CL_DEVICE_TYPE_ALL, 1, &device, NULL), "devices");
	context = clCreateContext(NULL, 1, &device, NULL, NULL, &code);
	check(code, "context");
	for (int i = 0; i < QUEUES; i++) {
		queues[i] = clCreateCommandQueue(context, device, i ? 0 : CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, &code);
		check(code, "queue");
	}
	cl_program g = clCreateProgramWithSource(context, 1, &source, NULL, &code);
	check(code, "program");
	check(clBuildProgram(g, 1, &device, "", NULL, NULL), "build");
	kernel = clCreateKernel(g, "twice", &code);
	check(code, "kernel");
	clReleaseProgram(g);
}

static unsigned number(void)
{
	static unsigned long long state = 1;

	state = state * 6364136223846793005ull + 1442695040888963407ull;
	return (unsigned)(state >> 33);
}

/* filled makes a buffer with content, which the program changes after the call. */
static cl_mem filled(unsigned char *host, size_t n, unsigned char value)
{
	cl_int code;

	memset(host, value, n);
	cl_mem m = clCreateBuffer(context, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, n, host, &code);
	check(code, "filled buffer");
	memset(host, value + 1, n);
	return m;
}

static int all(const unsigned char *p, size_t n, unsigned char value)
{
	for (size_t i = 0; i < n; i++)
		if (p[i] != value)
			return 0;
	return 1;
}

/* image_round makes an image with content, and reads it. */
static int image_round(cl_command_queue q, unsigned char *host, unsigned char value)
{
	const cl_image_format f = {CL_RGBA, CL_UNSIGNED_INT8};
	const cl_image_desc d = {.image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = 1 + number() % 600, .image_height = 1 + number() % 600};
	const size_t zero[3] = {0}, region[3] = {d.image_width, d.image_height, 1}, n = d.image_width * d.image_height * 4;
	cl_int code;

	memset(host, value, n);
	cl_mem m = clCreateImage(context, CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR, &f, &d, host, &code);
	check(code, "image");
	memset(host, value + 1, n);
	check(clEnqueueReadImage(q, m, CL_FALSE, zero, region, 0, 0, host, 0, NULL, NULL), "read of an image");
	check(clReleaseMemObject(m), "release");
	check(clFinish(q), "finish");
	return all(host, n, value);
}

static int round_of(unsigned char *host)
{
	const size_t group = 64, n = group * (1 + number() % (number() % 2 ? 100 : MOST / group)), half = n / 2;
	const unsigned char value = (unsigned char)number();
	cl_command_queue q = queues[number() % QUEUES];
	cl_event e;
	cl_int code;

	if (number() % 4 == 0)
		return image_round(q, host, value);
	unsigned char last = 0;
	cl_mem m = filled(host, n, value);
	check(clEnqueueReadBuffer(queues[number() % QUEUES], m, CL_FALSE, n - 1, 1, &last, 0, NULL, NULL), "read");
	cl_mem out = clCreateBuffer(context, CL_MEM_WRITE_ONLY, n, NULL, &code);
	check(code, "buffer");
	check(clSetKernelArg(kernel, 0, sizeof m, &m), "argument");
	check(clSetKernelArg(kernel, 1, sizeof out, &out), "argument");
	check(clEnqueueNDRangeKernel(q, kernel, 1, NULL, &n, &group, 0, NULL, &e), "kernel");
	check(clEnqueueReadBuffer(queues[number() % QUEUES], out, CL_FALSE, 0, n, host, 1, &e, NULL), "read");
	cl_command_queue other = queues[number() % QUEUES];
	unsigned char *map = clEnqueueMapBuffer(other, m, CL_TRUE, CL_MAP_READ, half, n - half, 0, NULL, NULL, &code);
	check(code, "map");
	int right = all(map, n - half, value);
	check(clEnqueueUnmapMemObject(other, m, map, 0, NULL, NULL), "unmap");
	check(clReleaseMemObject(m), "release");
	check(clReleaseMemObject(out), "release");
	check(clReleaseEvent(e), "release");
	for (int i = 0; i < QUEUES; i++)
		check(clFinish(queues[i]), "finish");
	return right && last == value && all(host, n, (unsigned char)(2 * value));
}

static void CL_CALLBACK note(cl_context c, void *data)
{
	(void)c;
	*(int *)data = 1;
}

/* released tells whether a context is gone with its last reference, although it was just filling a buffer. */
static int released(void)
{
	cl_int code;
	int gone = 0;
	cl_context c = clCreateContext(NULL, 1, &device, NULL, NULL, &code);
	check(code, "context");
	check(clSetContextDestructorCallback(c, note, &gone), "callback");
	cl_mem m = clCreateBuffer(c, CL_MEM_COPY_HOST_PTR, 4, "abc", &code);
	check(code, "buffer");
	check(clReleaseContext(c), "release");
	check(clReleaseMemObject(m), "release");
	return gone;
}

static void content(void)
{
	unsigned char *host = malloc(MOST);
	int right = 0;

	for (int i = 0; host && i < ROUNDS; i++)
		right += round_of(host);
	printf("content: %d of %d, context released: %d\n", right, ROUNDS, released());
	free(host);
}

static cl_int status_of(cl_event e)
{
	cl_int status;

	check(clGetEventInfo(e, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL), "status");
	return status;
}

/* next returns the errors of a fill of a good buffer and of the wait for it. */
static cl_int next(cl_command_queue q, cl_mem good, cl_int *finish)
{
	cl_int code = clEnqueueFillBuffer(q, good, "x", 1, 0, 100, 0, NULL, NULL);

	*finish = clFinish(q);
	return code;
}

/* told prints that one call has returned an error since, and that the one after it returns none. */
static void told(const char *what, cl_command_queue q, cl_mem good)
{
	cl_int finish, again, code = next(q, good, &finish);
	int once = (code == CL_MEM_OBJECT_ALLOCATION_FAILURE && !finish) || (!code && finish == CL_OUT_OF_RESOURCES);

	code = next(q, good, &again);
	printf("%s: %d, then %d %d\n", what, once, code, again);
}

/* unseen returns the code of a program that sees only the end of a read, behind a kernel that fails. */
static cl_int unseen(cl_command_queue q, cl_mem good, int poll)
{
	static unsigned char byte;
	cl_int code, status = CL_QUEUED;
	cl_event e, go = clCreateUserEvent(context, &code);

	check(code, "user event");
	/* Both are there before the first one fails. */
	check(clEnqueueNDRangeKernel(q, kernel, 1, NULL, &(size_t){1}, NULL, 1, &go, NULL), "kernel");
	check(clEnqueueReadBuffer(q, good, CL_FALSE, 0, 1, &byte, 0, NULL, &e), "read");
	check(clSetUserEventStatus(go, CL_COMPLETE), "user event");
	if (!poll)
		code = clWaitForEvents(1, &e);
	while (poll && !code && status > CL_COMPLETE)
		code = clGetEventInfo(e, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL);
	check(clReleaseEvent(e), "release");
	check(clReleaseEvent(go), "release");
	return code;
}

/* taken lets another queue wait for a kernel that fails, and hear of it first. */
static void taken(cl_command_queue q)
{
	cl_int code;
	cl_event e, go = clCreateUserEvent(context, &code);

	check(code, "user event");
	check(clEnqueueNDRangeKernel(q, kernel, 1, NULL, &(size_t){1}, NULL, 1, &go, NULL), "kernel");
	check(clEnqueueMarkerWithWaitList(q, 0, NULL, &e), "marker");
	check(clEnqueueMarkerWithWaitList(queues[2], 1, &e, NULL), "marker");
	check(clSetUserEventStatus(go, CL_COMPLETE), "user event");
	code = clFinish(queues[2]);
	cl_int own = clFinish(q);
	printf("the queue that waits: %d, that of the kernel: %d, then %d\n", code, own, clFinish(q));
	check(clReleaseEvent(e), "release");
	check(clReleaseEvent(go), "release");
}

/* waiting lets a command of another queue wait for one that the device refuses, and a third one for that: they do
 * not run. */
static void waiting(cl_mem bad, cl_mem good)
{
	unsigned char host[100] = {0};
	cl_int code, finish;
	cl_event go = clCreateUserEvent(context, &code), write, fill, last;

	check(code, "user event");
	check(clEnqueueWriteBuffer(queues[1], bad, CL_FALSE, 0, 1, host, 1, &go, &write), "write");
	check(clEnqueueFillBuffer(queues[2], good, "y", 1, 0, 100, 1, &write, &fill), "fill");
	check(clEnqueueMarkerWithWaitList(queues[1], 1, &fill, &last), "marker");
	check(clSetUserEventStatus(go, CL_COMPLETE), "user event");
	(void)clWaitForEvents(1, &last);
	printf("waits for what was refused: %d %d %d\n", status_of(write), status_of(fill), status_of(last));
	for (int i = 0; i < 4; i++)
		(void)clFinish(queues[1 + i % 2]); /* they tell */
	code = clEnqueueReadBuffer(queues[2], good, CL_TRUE, 0, 100, host, 0, NULL, NULL);
	printf("what did not run: %d, %d\n", code, all(host, 100, 'x'));
	(void)next(queues[1], good, &finish);
	for (cl_event *e = (cl_event[]){go, write, fill, last, NULL}; *e; e++)
		check(clReleaseEvent(*e), "release");
}

/* brief makes an object and releases it. */
static void brief(int i)
{
	cl_int code;

	if (i % 2) {
		cl_sampler s = clCreateSampler(context, CL_FALSE, CL_ADDRESS_NONE, CL_FILTER_NEAREST, &code);
		check(code, "sampler");
		check(clReleaseSampler(s), "release");
	} else {
		cl_mem m = clCreateBuffer(context, 0, 16, NULL, &code);
		check(code, "buffer");
		check(clReleaseMemObject(m), "release");
	}
}

/* refuse makes the buffer that the device refuses, and returns the error of the call. */
static cl_int refuse(cl_command_queue q, cl_mem good)
{
	cl_int code, finish;
	cl_mem m = clCreateBuffer(context, 0, REFUSED, NULL, &code);

	if (m)
		check(clReleaseMemObject(m), "release");
	(void)next(q, good, &finish);
	return code;
}

/* many makes more objects than are posted. Those that are released count while the device may have them. */
static void many(cl_command_queue q, cl_mem good)
{
	cl_int code, finish;
	cl_event go = clCreateUserEvent(context, &code);

	check(code, "user event");
	check(clEnqueueFillBuffer(queues[2], good, "x", 1, 0, 100, 1, &go, NULL), "fill");
	for (int i = 0; i < MOST_POSTED; i++)
		brief(i);
	code = refuse(q, good);
	check(clSetUserEventStatus(go, CL_COMPLETE), "user event");
	check(clFinish(queues[2]), "finish");
	check(clReleaseEvent(go), "release");
	check(next(q, good, &finish), "fill");
	check(finish, "finish");
	printf("many behind a user event: %d, at its end %d\n", code, refuse(q, good));
	cl_mem list[64];
	for (int i = 0; i <= MOST_POSTED; i += 64) {
		for (int j = 0; j < 64; j++) {
			list[j] = clCreateBuffer(context, 0, 16, NULL, &code);
			check(code, "buffer");
		}
		check(next(q, good, &finish), "fill");
		check(finish, "finish");
		for (int j = 0; j < 64; j++)
			check(clReleaseMemObject(list[j]), "release");
	}
	printf("many with waits: %d\n", refuse(q, good));
}

/* held releases a context that the program retains, while a buffer in it is being filled. */
static void held(void)
{
	unsigned char host[HELD], back[HELD];
	cl_int code;
	cl_context c = clCreateContext(NULL, 1, &device, NULL, NULL, &code);
	check(code, "context");
	cl_command_queue q = clCreateCommandQueue(c, device, 0, &code);
	check(code, "queue");
	memset(host, 'h', sizeof host);
	cl_mem m = clCreateBuffer(c, CL_MEM_COPY_HOST_PTR, HELD, host, &code);
	check(code, "buffer");
	check(clRetainContext(c), "retain");
	alarm(HANG_S); /* a release that waits does so for ever */
	check(clReleaseContext(c), "release");
	cl_mem go = clCreateBuffer(c, 0, LET_GO, NULL, &code);
	check(code, "buffer");
	check(clEnqueueReadBuffer(q, m, CL_TRUE, 0, HELD, back, 0, NULL, NULL), "read");
	alarm(0);
	printf("held: %d\n", all(back, HELD, 'h'));
	check(clReleaseMemObject(go), "release");
	check(clReleaseMemObject(m), "release");
	check(clReleaseCommandQueue(q), "release");
	check(clReleaseContext(c), "release");
}

static void refused(void)
{
	char host[REFUSED] = "a";
	cl_int code, finish;
	cl_event e;
	cl_context second = clCreateContext(NULL, 1, &device, NULL, NULL, &code);
	check(code, "context");
	cl_command_queue q = queues[1], other = clCreateCommandQueue(second, device, 0, &code);
	check(code, "queue");
	cl_mem good = clCreateBuffer(context, 0, REFUSED - 1, NULL, &code), theirs = clCreateBuffer(second, 0, 100, NULL, &code);
	check(code, "buffer");
	cl_mem bad = clCreateBuffer(context, 0, REFUSED, NULL, &code);
	printf("buffer: %d\n", code);
	told("refused", q, good);
	told("in the other context", other, theirs);

	code = clEnqueueWriteBuffer(q, bad, CL_FALSE, 0, 1, host, 0, NULL, &e);
	cl_int wait = clWaitForEvents(1, &e);
	printf("write: %d %d %d\n", code, wait, status_of(e));
	told("after the write", q, good);
	told("in the other context", other, theirs);
	printf("blocking: %d\n", clEnqueueReadBuffer(q, bad, CL_TRUE, 0, 1, host, 0, NULL, NULL));
	check(clSetKernelArg(kernel, 0, sizeof bad, &bad), "argument");
	check(clSetKernelArg(kernel, 1, sizeof good, &good), "argument");
	code = clEnqueueNDRangeKernel(q, kernel, 1, NULL, &(size_t){1}, NULL, 0, NULL, &e);
	wait = clWaitForEvents(1, &e);
	printf("kernel: %d %d %d\n", code, wait, status_of(e));
	told("after the kernel", q, good);
	for (int poll = 0; poll < 2; poll++) {
		cl_int unseen_code = unseen(q, good, poll), again = next(q, good, &finish);
		printf("unseen kernel: %d, then %d %d\n", unseen_code, again, finish);
	}
	taken(q);
	waiting(bad, good);
	cl_mem part = clCreateSubBuffer(bad, 0, CL_BUFFER_CREATE_TYPE_REGION, &(cl_buffer_region){0, 1}, &code);
	printf("part: %d, %d\n", part != NULL, code);
	check(clReleaseMemObject(bad), "release");
	check(clEnqueueReadBuffer(q, good, CL_TRUE, 0, 100, host, 0, NULL, NULL), "read");
	printf("the next commands: %d\n", all((unsigned char *)host, 100, 'x'));

	bad = clCreateBuffer(context, CL_MEM_COPY_HOST_PTR, REFUSED, host, &code);
	cl_int later = next(q, good, &finish);
	printf("filled: %d\n", code == CL_MEM_OBJECT_ALLOCATION_FAILURE || later == CL_MEM_OBJECT_ALLOCATION_FAILURE || finish == CL_OUT_OF_RESOURCES);
	if (bad)
		check(clReleaseMemObject(bad), "release");
	(void)next(q, good, &finish); /* that of the fill */
	many(q, good);
}

/* memory makes buffers until the device has no more memory. */
static void memory(void)
{
	enum { BUFFERS = 64 };
	cl_mem list[BUFFERS];
	cl_ulong size;
	cl_int code = CL_SUCCESS;
	int n = 0;

	(void)next(queues[1], clCreateBuffer(context, 0, 100, NULL, NULL), &code);
	check(clGetDeviceInfo(device, CL_DEVICE_MAX_MEM_ALLOC_SIZE, sizeof size, &size, NULL), "size");
	for (code = CL_SUCCESS; n < BUFFERS && !code; n += !code)
		list[n] = clCreateBuffer(context, 0, size, NULL, &code);
	printf("more than the memory: %d\n", code);
	for (int i = 0; i < n; i++)
		check(clReleaseMemObject(list[i]), "release");
	check(clFinish(queues[1]), "finish");
}

int main(int argc, char **argv)
{
	set_up();
	if (argc < 2 || strcmp(argv[1], "refused"))
		content();
	else {
		refused();
		held();
		memory();
	}
	return 0;
}
