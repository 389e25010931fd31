/* Calls with arguments at the edges of what OpenCL allows: it prints the same on every platform that works. */
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static cl_context c;
static cl_device_id d;
static cl_command_queue q, loose;
static cl_int code;

static void check(cl_int code, const char *what)
{
	if (code) {
		printf("%s: %d\n", what, code);
		exit(1);
	}
}

static cl_mem part(cl_mem m, cl_mem_flags flags, size_t origin, size_t size)
{
	const cl_buffer_region r = {origin, size};

	return clCreateSubBuffer(m, flags, CL_BUFFER_CREATE_TYPE_REGION, &r, &code);
}

static int status(cl_event e)
{
	cl_int s = 99;

	check(clGetEventInfo(e, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof s, &s, NULL), "status");
	return s;
}

static unsigned type(cl_event e)
{
	cl_command_type t = 0;

	check(clGetEventInfo(e, CL_EVENT_COMMAND_TYPE, sizeof t, &t, NULL), "type");
	return t;
}

/* flags_of prints the flags of a buffer, of an image, and of a part of the buffer. */
static void flags_of(cl_mem_flags flags)
{
	const cl_image_format format = {CL_RGBA, CL_UNSIGNED_INT8};
	const cl_image_desc square = {.image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = 8, .image_height = 8};
	cl_mem m = clCreateBuffer(c, flags, 4096, NULL, &code), list[3] = {m, clCreateImage(c, flags, &format, &square, NULL, &code), part(m, 0, 0, 128)};

	printf("flags %#x:", (unsigned)flags);
	for (int i = 0; i < 3; i++) {
		cl_mem_flags got = 0;
		check(clGetMemObjectInfo(list[i], CL_MEM_FLAGS, sizeof got, &got, NULL), "flags");
		printf(" %#x", (unsigned)got);
	}
	printf("\n");
}

/* buffers: copies that overlap, flags and sizes. */
static void buffers(cl_mem a)
{
	enum { HALF = 4096 };
	const size_t zero[3] = {0}, near[3] = {16, 0, 0}, beside[3] = {32, 0, 0}, region[3] = {32, 4, 1};
	cl_mem low = part(a, 0, 0, 2 * HALF), high = part(a, 0, HALF, 2 * HALF), other = part(a, 0, 2 * HALF, 2 * HALF);
	cl_mem shown = clCreateBuffer(c, CL_MEM_HOST_READ_ONLY, HALF, NULL, &code), b = clCreateBuffer(c, 0, HALF, NULL, &code), none = NULL;

	printf("copies: beside %d, overlapping %d, into the whole %d\n", clEnqueueCopyBuffer(q, low, other, 0, 0, HALF, 0, NULL, NULL),
	       clEnqueueCopyBuffer(q, low, high, HALF, 0, HALF, 0, NULL, NULL), clEnqueueCopyBuffer(q, low, a, 0, 16, 32, 0, NULL, NULL));
	printf("boxes: elsewhere %d, overlapping %d, between the rows of the other %d\n",
	       clEnqueueCopyBufferRect(q, a, b, zero, zero, region, 64, 0, 64, 0, 0, NULL, NULL),
	       clEnqueueCopyBufferRect(q, a, a, zero, near, region, 64, 0, 64, 0, 0, NULL, NULL),
	       clEnqueueCopyBufferRect(q, a, a, zero, beside, region, 64, 0, 64, 0, 0, NULL, NULL));
	part(shown, CL_MEM_HOST_WRITE_ONLY, 0, HALF);
	printf("part that the host writes: %d", code);
	part(shown, CL_MEM_HOST_NO_ACCESS, 0, HALF);
	printf(", that it does not reach: %d\n", code);
	clCreateBuffer(c, 0, (size_t)1 << 60, NULL, &code);
	printf("buffer of 2^60 bytes: %d\n", code);
	flags_of(0);
	flags_of(CL_MEM_HOST_NO_ACCESS);
	flags_of(CL_MEM_ALLOC_HOST_PTR | CL_MEM_READ_ONLY);
	printf("migration of no buffer: %d\n", clEnqueueMigrateMemObjects(q, 1, &none, 0, 0, NULL, NULL));
	check(clFinish(q), "finish");
}

/* kernels: sizes of arguments, ranges of nothing. */
static void kernels(cl_program g, cl_mem a)
{
	const size_t nothing = 0;
	cl_kernel f = clCreateKernel(g, "f", &code);
	cl_event e;
	long v = 1;

	printf("query that does not exist: %d\n", clGetKernelArgInfo(f, 0, CL_KERNEL_ARG_NAME + 1, 0, NULL, NULL));
	printf("arguments: %d %d %d\n", clSetKernelArg(f, 1, 8, &v), clSetKernelArg(f, 1, 2, &v), clSetKernelArg(f, 1, 4, &v));
	printf("range of nothing without arguments: %d", clEnqueueNDRangeKernel(q, f, 1, NULL, &nothing, NULL, 0, NULL, NULL));
	check(clSetKernelArg(f, 0, sizeof a, &a), "argument");
	check(clEnqueueNDRangeKernel(q, f, 1, NULL, &nothing, NULL, 0, NULL, &e), "nothing");
	printf(", with them: type %#x\n", type(e));
	check(clFinish(q), "finish");
}

/* waits: a list of more events than a packet holds; maps that wait for what is before them. */
static void waits(cl_program g, cl_mem a)
{
	enum { EVENTS = 1100, TURNS = 1 << 20 };
	static cl_event list[EVENTS + 1];
	const size_t one = 1;
	const cl_int turns = TURNS;
	cl_kernel f = clCreateKernel(g, "count", &code);
	cl_event user = clCreateUserEvent(c, &code), e;
	cl_int got = 0;
	void *map;

	check(clSetKernelArg(f, 0, sizeof a, &a), "argument");
	check(clSetKernelArg(f, 1, sizeof turns, &turns), "argument");
	check(clEnqueueFillBuffer(q, a, &got, sizeof got, 0, sizeof got, 0, NULL, NULL), "fill");
	check(clEnqueueNDRangeKernel(q, f, 1, NULL, &one, NULL, 0, NULL, NULL), "kernel");
	map = clEnqueueMapBuffer(q, a, CL_TRUE, CL_MAP_WRITE_INVALIDATE_REGION, 4096, 64, 0, NULL, &e, &code);
	printf("map of what will be written: %d, status %d\n", code, status(e));
	check(clEnqueueUnmapMemObject(q, a, map, 0, NULL, NULL), "unmap");
	check(clFinish(q), "finish");
	for (int i = 0; i < EVENTS; i++)
		check(clEnqueueMarkerWithWaitList(loose, i % 2, i % 2 ? &user : NULL, &list[i]), "marker");
	list[EVENTS] = user;
	check(clEnqueueReadBuffer(loose, a, CL_FALSE, 0, sizeof got, &got, EVENTS + 1, list, &e), "read");
	check(clFlush(loose), "flush");
	printf("behind %d events: %s", EVENTS + 1, status(e) > 0 ? "waits" : "does not wait");
	check(clSetUserEventStatus(user, CL_COMPLETE), "user event");
	check(clWaitForEvents(1, &e), "wait");
	printf(", then %d\n", got == turns);
	printf("wait for all of them: %d\n", clWaitForEvents(EVENTS + 1, list));
}

/* maps_that_wait: a map and its unmap behind a user event. */
static void maps_that_wait(cl_mem a)
{
	cl_event user = clCreateUserEvent(c, &code);
	cl_int v[2] = {3, 4}, got[2] = {0};

	check(clEnqueueWriteBuffer(q, a, CL_TRUE, 0, sizeof v, v, 0, NULL, NULL), "write");
	alarm(120); /* ends a wait for ever */
	void *map = clEnqueueMapBuffer(q, a, CL_FALSE, CL_MAP_READ | CL_MAP_WRITE, 0, sizeof v, 1, &user, NULL, &code);
	check(code, "map");
	check(clEnqueueUnmapMemObject(q, a, map, 0, NULL, NULL), "unmap");
	check(clSetUserEventStatus(user, CL_COMPLETE), "user event");
	check(clEnqueueReadBuffer(q, a, CL_TRUE, 0, sizeof got, got, 0, NULL, NULL), "read");
	alarm(0);
	printf("map and unmap behind an event: %d %d\n", got[0], got[1]);
	clReleaseEvent(user);
}

/* independent prints that commands of a queue that is not in order end while one before them waits. */
static void independent(cl_program g, cl_mem a)
{
	const size_t nothing = 0, one = 1;
	const cl_int v = 1;
	cl_event user = clCreateUserEvent(c, &code), held, e[10];
	cl_kernel f = clCreateKernel(g, "f", &code);
	cl_mem b = clCreateBuffer(c, 0, 64, NULL, &code);
	cl_int got = 0;
	void *shared = clSVMAlloc(c, 0, 64, 0), *unused = clSVMAlloc(c, 0, 64, 0);
	const void *pointers[] = {shared};

	check(clSetKernelArg(f, 0, sizeof b, &b), "argument");
	check(clSetKernelArg(f, 1, sizeof v, &v), "argument");
	check(clEnqueueFillBuffer(loose, a, &v, sizeof v, 0, 64, 1, &user, &held), "fill that waits");
	check(clEnqueueMigrateMemObjects(loose, 1, &b, 0, 0, NULL, &e[0]), "migration");
	check(clEnqueueNDRangeKernel(loose, f, 1, NULL, &nothing, NULL, 0, NULL, &e[1]), "nothing");
	check(clEnqueueReadBuffer(loose, b, CL_FALSE, 0, 0, &got, 0, NULL, &e[2]), "read of nothing");
	check(clEnqueueNDRangeKernel(loose, f, 1, NULL, &one, NULL, 0, NULL, &e[3]), "kernel");
	check(clEnqueueReadBuffer(loose, b, CL_FALSE, 0, sizeof got, &got, 1, &e[3], &e[4]), "read");
	void *map = clEnqueueMapBuffer(loose, b, CL_FALSE, CL_MAP_WRITE_INVALIDATE_REGION, 32, 4, 0, NULL, &e[5], &code);
	check(clEnqueueUnmapMemObject(loose, b, map, 1, &e[5], &e[6]), "unmap");
	check(clEnqueueSVMMigrateMem(loose, 1, pointers, NULL, 0, 0, NULL, &e[7]), "migration");
	check(clEnqueueSVMFree(loose, 1, &shared, NULL, NULL, 1, &e[7], &e[8]), "free");
	check(clEnqueueSVMFree(loose, 1, &unused, NULL, NULL, 0, NULL, &e[9]), "free");
	alarm(120); /* ends a wait for ever */
	for (int i = 0; i < 10; i++)
		check(clWaitForEvents(1, &e[i]), "wait");
	alarm(0);
	printf("independent: %d, the first one waits %d\n", got, status(held) > 0);
	check(clSetUserEventStatus(user, CL_COMPLETE), "user event");
	check(clFinish(loose), "finish");
}

static void *set_event(void *event)
{
	check(clSetUserEventStatus(event, CL_COMPLETE), "user event");
	return NULL;
}

/* order: another thread lets a long command run, and the next one of the queue comes behind it. */
static void order(void)
{
	enum { N = 32 << 20 };
	unsigned char *from = malloc(N), last = 0;
	cl_mem m = clCreateBuffer(c, 0, N, NULL, &code);
	cl_event user = clCreateUserEvent(c, &code);
	pthread_t thread;

	memset(from, 7, N);
	check(clEnqueueFillBuffer(q, m, &last, 1, 0, N, 0, NULL, NULL), "fill");
	check(clEnqueueWriteBuffer(q, m, CL_FALSE, 0, N, from, 1, &user, NULL), "write");
	check(pthread_create(&thread, NULL, set_event, user), "thread");
	while (status(user) != CL_COMPLETE)
		;
	check(clEnqueueReadBuffer(q, m, CL_TRUE, N - 1, 1, &last, 0, NULL, NULL), "read");
	printf("behind a long write: %d\n", last);
	pthread_join(thread, NULL);
	clReleaseEvent(user);
	clReleaseMemObject(m);
	free(from);
}

/* chains: two queues read into the same memory in turn, each behind the other by an event. The last
 * one counts. */
static void chains(cl_mem a)
{
	enum { CHAINS = 400, LINKS = 4 };
	static cl_int to[CHAINS];
	const cl_int values[LINKS] = {1, 2, 3, 4};
	cl_command_queue queues[2] = {clCreateCommandQueueWithProperties(c, d, NULL, &code), q};
	int right = 0;

	check(clEnqueueWriteBuffer(q, a, CL_TRUE, 0, sizeof values, values, 0, NULL, NULL), "write");
	for (int i = 0; i < CHAINS; i++) {
		cl_event before = NULL, e;
		for (int j = 0; j < LINKS; j++) {
			check(clEnqueueReadBuffer(queues[(i + j) % 2], a, CL_FALSE, (size_t)j * sizeof *to, sizeof *to, &to[i], before != NULL,
						  before ? &before : NULL, &e),
			      "read");
			if (before)
				clReleaseEvent(before);
			before = e;
		}
		clReleaseEvent(before);
	}
	check(clFinish(queues[0]), "finish");
	check(clFinish(queues[1]), "finish");
	for (int i = 0; i < CHAINS; i++)
		right += to[i] == LINKS;
	printf("chains of two queues: %d end with the last read\n", right);
	clReleaseCommandQueue(queues[0]);
}

/* programs: one of no source, and one of a binary. */
static void programs(cl_program g)
{
	static const char *empty = "";
	cl_program nothing = clCreateProgramWithSource(c, 1, &empty, NULL, &code), copy;
	unsigned char *binary;
	cl_kernel f;
	size_t size = 0;

	check(clGetProgramInfo(nothing, CL_PROGRAM_SOURCE, 0, NULL, &size), "source");
	printf("source of nothing: %zu byte, build %d\n", size, clBuildProgram(nothing, 1, &d, "", NULL, NULL));
	check(clGetProgramInfo(g, CL_PROGRAM_BINARY_SIZES, sizeof size, &size, NULL), "size");
	binary = malloc(size);
	check(clGetProgramInfo(g, CL_PROGRAM_BINARIES, sizeof binary, &binary, NULL), "binary");
	copy = clCreateProgramWithBinary(c, 1, &d, &size, (const unsigned char **)&binary, NULL, &code);
	check(code, "program of a binary");
	check(clBuildProgram(copy, 0, NULL, NULL, NULL, NULL), "build");
	f = clCreateKernel(copy, "f", &code);
	printf("kernel of a binary: %d, %d\n", f != NULL, code);
}

/* parts prints what copies of boxes, and between an image and a buffer, do with parts of a buffer. */
static void parts(cl_mem a)
{
	enum { N = 4096, SIDE = 8 };
	const cl_image_format format = {CL_RGBA, CL_UNSIGNED_INT8};
	const cl_image_desc square = {.image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = SIDE, .image_height = SIDE};
	const size_t zero[3] = {0}, box[3] = {16, 4, 1}, pixels[3] = {SIDE, SIDE, 1}, at[3] = {16, 1, 0};
	cl_mem low = part(a, 0, N, N), high = part(a, 0, 3 * N, N), image = clCreateImage(c, 0, &format, &square, NULL, &code);
	unsigned char v[N], got[N];
	int right = 0;

	check(code, "image");
	for (int i = 0; i < N; i++)
		v[i] = (unsigned char)(i * 7);
	check(clEnqueueWriteBuffer(q, low, CL_TRUE, 0, N, v, 0, NULL, NULL), "write");
	check(clEnqueueCopyBufferRect(q, low, high, at, zero, box, 64, 0, 64, 0, 0, NULL, NULL), "box");
	check(clEnqueueReadBuffer(q, high, CL_TRUE, 0, N, got, 0, NULL, NULL), "read");
	for (int i = 0; i < 64; i++)
		right += got[i / 16 * 64 + i % 16] == v[64 + 16 + i / 16 * 64 + i % 16];
	printf("box between parts: %d bytes right", right);
	check(clEnqueueCopyBufferToImage(q, low, image, 128, zero, pixels, 0, NULL, NULL), "to image");
	check(clEnqueueCopyImageToBuffer(q, image, high, zero, pixels, 512, 0, NULL, NULL), "to buffer");
	check(clEnqueueReadBuffer(q, a, CL_TRUE, 3 * N, N, got, 0, NULL, NULL), "read");
	printf(", image %d\n", memcmp(got + 512, v + 128, SIDE * SIDE * 4) == 0);
	clReleaseMemObject(image);
}

/* refusals are of a program that was linked, a binary of nothing, a range behind the end of numbers and an
 * image of slices that end within a row. */
static void refusals(cl_program g)
{
	static const char *source = "__kernel void f(__global int *a) { a[0] = 1; }\n";
	static char host[4096];
	const cl_image_format format = {CL_RGBA, CL_UNSIGNED_INT8};
	const cl_image_desc slices = {
		.image_type = CL_MEM_OBJECT_IMAGE3D, .image_width = 8, .image_height = 8, .image_depth = 2, .image_slice_pitch = 8 * 32 + 4,
	};
	const size_t nothing = 0, behind = SIZE_MAX, some = 16;
	const unsigned char *none = NULL;
	cl_int state = 1;
	cl_program part = clCreateProgramWithSource(c, 1, &source, NULL, &code);

	check(clCompileProgram(part, 1, &d, "", 0, NULL, NULL, NULL, NULL), "compile");
	cl_program linked = clLinkProgram(c, 1, &d, "", 1, &part, NULL, NULL, &code);
	check(code, "link");
	printf("build of what was linked: %d, ", clBuildProgram(linked, 1, &d, "", NULL, NULL));
	clCreateProgramWithBinary(c, 1, &d, &nothing, &none, &state, &code);
	printf("no binary: %d %d, ", code, state);
	cl_kernel f = clCreateKernel(g, "f", &code);
	printf("offset: %d, ", clEnqueueNDRangeKernel(q, f, 1, &behind, &some, NULL, 0, NULL, NULL));
	clCreateImage(c, CL_MEM_COPY_HOST_PTR, &format, &slices, host, &code);
	printf("slices: %d\n", code);
	static const char *broken = "int missing(int v); __kernel void f(__global int *a) { a[0] = missing(1); }\n";
	cl_program other = clCreateProgramWithSource(c, 1, &broken, NULL, &code);
	check(clCompileProgram(other, 1, &d, "", 0, NULL, NULL, NULL, NULL), "compile");
	linked = clLinkProgram(c, 1, &d, "", 1, &other, NULL, NULL, &code);
	printf("link that fails: %d, its log: %d\n", code, clGetProgramBuildInfo(linked, d, CL_PROGRAM_BUILD_LOG, 0, NULL, NULL));
}

/* new prints what not every platform does: groups of a size that the kernel requires and the call does not
 * name, and local memory that counts the arguments. */
static void new(cl_program g, cl_mem a)
{
	const size_t some = 16;
	cl_int got[16] = {0}, sum = 0;
	cl_kernel f = clCreateKernel(g, "fixed", &code), local = clCreateKernel(g, "local_sum", &code);
	cl_ulong before, after;

	check(clEnqueueWriteBuffer(q, a, CL_TRUE, 0, sizeof got, got, 0, NULL, NULL), "write");
	check(clSetKernelArg(f, 0, sizeof a, &a), "argument");
	printf("required groups, not named: %d", clEnqueueNDRangeKernel(q, f, 1, NULL, &some, NULL, 0, NULL, NULL));
	check(clEnqueueReadBuffer(q, a, CL_TRUE, 0, sizeof got, got, 0, NULL, NULL), "read");
	for (int i = 0; i < 16; i++)
		sum += got[i];
	printf(", sum %d\n", sum);
	check(clGetKernelWorkGroupInfo(local, d, CL_KERNEL_LOCAL_MEM_SIZE, sizeof before, &before, NULL), "local memory");
	check(clSetKernelArg(local, 1, 512, NULL), "argument");
	check(clGetKernelWorkGroupInfo(local, d, CL_KERNEL_LOCAL_MEM_SIZE, sizeof after, &after, NULL), "local memory");
	printf("local memory: %d\n", after >= before + 512);
	cl_platform_id p;
	cl_uint n = 0;
	check(clGetDeviceInfo(d, CL_DEVICE_PLATFORM, sizeof p, &p, NULL), "platform");
	printf("devices without a list: %d, ", clGetDeviceIDs(p, CL_DEVICE_TYPE_ALL, 2, NULL, &n));
	printf("%u\n", n);
}

/* denied makes images in a buffer with flags that the buffer denies, and with some that it allows. */
static void denied(void)
{
	const cl_mem_flags pairs[][2] = {
		{CL_MEM_READ_ONLY, CL_MEM_READ_WRITE}, {CL_MEM_READ_ONLY, CL_MEM_WRITE_ONLY}, {CL_MEM_WRITE_ONLY, CL_MEM_READ_ONLY},
		{CL_MEM_HOST_READ_ONLY, CL_MEM_HOST_WRITE_ONLY}, {CL_MEM_HOST_WRITE_ONLY, CL_MEM_HOST_READ_ONLY}, {CL_MEM_HOST_NO_ACCESS, CL_MEM_HOST_READ_ONLY},
		{0, CL_MEM_ALLOC_HOST_PTR}, {0, CL_MEM_USE_HOST_PTR}, {0, CL_MEM_COPY_HOST_PTR},
		{CL_MEM_READ_ONLY, CL_MEM_READ_ONLY}, {CL_MEM_READ_WRITE, CL_MEM_WRITE_ONLY}, {CL_MEM_HOST_READ_ONLY, CL_MEM_HOST_NO_ACCESS}, {CL_MEM_COPY_HOST_PTR, 0},
	};
	const cl_image_format format = {CL_RGBA, CL_UNSIGNED_INT8};
	static unsigned char bytes[4096];

	printf("images in a buffer:");
	for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
		cl_mem b = clCreateBuffer(c, pairs[i][0], sizeof bytes, pairs[i][0] & CL_MEM_COPY_HOST_PTR ? bytes : NULL, &code);
		check(code, "buffer");
		const cl_image_desc desc = {.image_type = CL_MEM_OBJECT_IMAGE1D_BUFFER, .image_width = 16, .mem_object = b};
		cl_mem m = clCreateImage(c, pairs[i][1], &format, &desc, pairs[i][1] & (CL_MEM_USE_HOST_PTR | CL_MEM_COPY_HOST_PTR) ? bytes : NULL, &code);
		printf(" %d", code);
		if (m)
			clReleaseMemObject(m);
		clReleaseMemObject(b);
	}
	puts("");
}

/* relays: data pass from one buffer to another through memory of the program, which waits for
 * none of the commands: a write takes what is there when it runs. */
static void relays(cl_program g)
{
	enum { N = 1 << 20, ROW = 1024, ROWS = N / ROW };
	static unsigned char by[N], out[N];
	const size_t one = 1, zero[3] = {0}, region[3] = {ROW / 2, ROWS, 1}, beside[3] = {ROW / 2, 0, 0};
	const char *names[] = {"in order", "by events", "boxes", "boxes beside each other"};
	cl_mem from = clCreateBuffer(c, 0, N, NULL, &code), to = clCreateBuffer(c, 0, N, NULL, &code);
	cl_kernel k = clCreateKernel(g, "count", &code);
	const int turns = 3000000;
	cl_event e;

	check(clSetKernelArg(k, 0, sizeof from, &from), "argument");
	check(clSetKernelArg(k, 1, sizeof turns, &turns), "argument");
	for (int i = 0; i < 4; i++) {
		const int seven = 7, none = 0;
		size_t right = 0;
		memset(by, 0, N);
		check(clEnqueueFillBuffer(q, to, &none, sizeof none, 0, N, 0, NULL, NULL), "fill");
		check(clEnqueueNDRangeKernel(q, k, 1, NULL, &one, NULL, 0, NULL, NULL), "kernel");
		check(clEnqueueFillBuffer(q, from, &seven, sizeof seven, 0, N, 0, NULL, &e), "fill");
		if (i == 0) {
			check(clEnqueueReadBuffer(q, from, CL_FALSE, 0, N, by, 0, NULL, NULL), "read");
			check(clEnqueueWriteBuffer(q, to, CL_FALSE, 0, N, by, 0, NULL, NULL), "write");
		} else if (i == 1) {
			cl_event last = e;
			check(clEnqueueReadBuffer(loose, from, CL_FALSE, 0, N, by, 1, &last, &e), "read");
			check(clEnqueueWriteBuffer(loose, to, CL_FALSE, 0, N, by, 1, &e, NULL), "write");
			check(clFinish(loose), "finish");
			clReleaseEvent(last);
		} else {
			const size_t *at = i == 2 ? zero : beside;
			check(clEnqueueReadBufferRect(q, from, CL_FALSE, zero, zero, region, ROW, 0, ROW, 0, by, 0, NULL, NULL), "read");
			check(clEnqueueWriteBufferRect(q, to, CL_FALSE, zero, at, region, ROW, 0, ROW, 0, by, 0, NULL, NULL), "write");
		}
		check(clEnqueueReadBuffer(q, to, CL_TRUE, 0, N, out, 0, NULL, NULL), "read");
		for (size_t j = 0; j < N; j += 4)
			right += out[j] == 7;
		printf("relay %s: %zu numbers arrived\n", names[i], right);
		clReleaseEvent(e);
	}
	clReleaseKernel(k);
	clReleaseMemObject(from);
	clReleaseMemObject(to);
}

/* long_name builds a program whose kernel has a name that is too long for a file, and goes on when it is
 * released. */
static void long_name(void)
{
	char name[301], source[400];
	const char *text = source;

	memset(name, 'k', sizeof name - 1);
	name[sizeof name - 1] = 0;
	snprintf(source, sizeof source, "__kernel void %s(__global int *a) { a[0] = 1; }\n", name);
	cl_program g = clCreateProgramWithSource(c, 1, &text, NULL, &code);
	check(clBuildProgram(g, 1, &d, "", NULL, NULL), "build");
	check(clReleaseProgram(g), "release");
	clCreateBuffer(c, 0, 64, NULL, &code);
	printf("after a long name: %d\n", code);
}

int main(int argc, char **argv)
{
	static const char *source = "__kernel void f(__global int *a, int v) { a[get_global_id(0)] = v; }\n"
				    "__kernel void count(__global int *a, int n) { for (int i = 0; i < n; i++) a[0] += 1; }\n"
				    "__kernel void local_sum(__global int *a, __local int *s) { s[0] = 1; a[0] = s[0]; }\n"
				    "__attribute__((reqd_work_group_size(4, 1, 1))) __kernel void fixed(__global int *a) { a[get_global_id(0)] = get_local_size(0); }\n";
	cl_platform_id p;

	check(clGetPlatformIDs(1, &p, NULL), "platform");
	check(clGetDeviceIDs(p, CL_DEVICE_TYPE_ALL, 1, &d, NULL), "device");
	const cl_context_properties twice[] = {CL_CONTEXT_PLATFORM, (cl_context_properties)p, CL_CONTEXT_PLATFORM, (cl_context_properties)p, 0};
	const cl_queue_properties list[] = {CL_QUEUE_PROPERTIES, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, 0};
	clCreateContext(twice, 1, &d, NULL, NULL, &code);
	printf("context of two platforms: %d\n", code);
	c = clCreateContext(NULL, 1, &d, NULL, NULL, &code);
	check(code, "context");
	q = clCreateCommandQueueWithProperties(c, d, NULL, &code);
	check(code, "queue");
	loose = clCreateCommandQueueWithProperties(c, d, list, &code);
	check(code, "queue");
	cl_mem a = clCreateBuffer(c, CL_MEM_READ_WRITE, 65536, NULL, &code);
	check(code, "buffer");
	cl_program g = clCreateProgramWithSource(c, 1, &source, NULL, &code);
	check(clBuildProgram(g, 1, &d, "-cl-kernel-arg-info", NULL, NULL), "build");
	if (argc > 1 && !strcmp(argv[1], "new")) {
		new(g, a);
		refusals(g);
		parts(a);
		denied();
		return 0;
	}
	if (argc > 1 && !strcmp(argv[1], "long")) {
		long_name();
		return 0;
	}
	buffers(a);
	kernels(g, a);
	waits(g, a);
	maps_that_wait(a);
	independent(g, a);
	order();
	chains(a);
	programs(g);
	relays(g);
	return 0;
}
