/* An ordinary OpenCL program: it prints the same on every platform that works. */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N 100000

static const char *source =
	"__kernel void add(__global const float *a, __global const float *b, __global float *c, int k, __local float *l) {\n"
	"	size_t i = get_global_id(0);\n"
	"	l[get_local_id(0)] = a[i];\n"
	"	barrier(CLK_LOCAL_MEM_FENCE);\n"
	"	c[i] = l[get_local_id(0)] + k * b[i];\n"
	"}\n"
	"__kernel void advance(__global int *x) { x[0] = x[0] * 3 + 1; }\n";

static void check(cl_int code, const char *what)
{
	if (code) {
		printf("%s: %d\n", what, code);
		exit(1);
	}
}

static int completed;

static void CL_CALLBACK note(cl_event e, cl_int status, void *data)
{
	(void)e;
	(void)data;
	__atomic_store_n(&completed, status == CL_COMPLETE ? 1 : -1, __ATOMIC_RELEASE);
}

int main(void)
{
	cl_platform_id p;
	cl_device_id d;
	cl_int code;

	check(clGetPlatformIDs(1, &p, NULL), "platforms");
	check(clGetDeviceIDs(p, CL_DEVICE_TYPE_ALL, 1, &d, NULL), "devices");
	cl_context c = clCreateContext(NULL, 1, &d, NULL, NULL, &code);
	check(code, "context");
	cl_command_queue q = clCreateCommandQueue(c, d, CL_QUEUE_PROFILING_ENABLE, &code);
	check(code, "queue");
	cl_command_queue other = clCreateCommandQueue(c, d, 0, &code);
	check(code, "second queue");

	/* A program that does not build has a log. */
	const char *bad = "__kernel void f(__global int *x) { *x = no_such_name; }";
	cl_program wrong = clCreateProgramWithSource(c, 1, &bad, NULL, &code);
	check(code, "program");
	static char log[65536];
	code = clBuildProgram(wrong, 1, &d, "", NULL, NULL);
	check(clGetProgramBuildInfo(wrong, d, CL_PROGRAM_BUILD_LOG, sizeof log, log, NULL), "log");
	printf("wrong program: %d, %s\n", code, strstr(log, "no_such_name") ? "log" : "no log");

	cl_program g = clCreateProgramWithSource(c, 1, &source, NULL, &code);
	check(code, "program");
	check(clBuildProgram(g, 1, &d, "-cl-std=CL1.2", NULL, NULL), "build");
	size_t kernels;
	check(clGetProgramInfo(g, CL_PROGRAM_NUM_KERNELS, sizeof kernels, &kernels, NULL), "number of kernels");
	cl_kernel k = clCreateKernel(g, "add", &code);
	check(code, "kernel");
	clCreateKernel(g, "nothing", &code);
	printf("%zu kernels, a missing one: %d\n", kernels, code);

	float *a = malloc(N * 4), *b = malloc(N * 4), *out = malloc(N * 4);
	for (int i = 0; i < N; i++) {
		a[i] = (float)i;
		b[i] = (float)(i % 7);
	}
	cl_mem ma = clCreateBuffer(c, CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR, N * 4, a, &code);
	check(code, "buffer a");
	cl_mem mb = clCreateBuffer(c, CL_MEM_READ_ONLY, N * 4, NULL, &code);
	check(code, "buffer b");
	cl_mem mc = clCreateBuffer(c, CL_MEM_READ_WRITE, N * 4, NULL, &code);
	check(code, "buffer c");
	int factor = 2;
	cl_event wrote, ran, read;
	check(clEnqueueWriteBuffer(other, mb, CL_FALSE, 0, N * 4, b, 0, NULL, &wrote), "write");
	check(clSetKernelArg(k, 0, sizeof ma, &ma), "argument 0");
	check(clSetKernelArg(k, 1, sizeof mb, &mb), "argument 1");
	check(clSetKernelArg(k, 2, sizeof mc, &mc), "argument 2");
	check(clSetKernelArg(k, 3, sizeof factor, &factor), "argument 3");
	check(clSetKernelArg(k, 4, 100 * 4, NULL), "argument 4");
	size_t global = N, local = 100;
	check(clEnqueueNDRangeKernel(q, k, 1, NULL, &global, &local, 1, &wrote, &ran), "kernel");
	check(clSetEventCallback(ran, CL_COMPLETE, note, NULL), "callback");
	check(clEnqueueReadBuffer(q, mc, CL_FALSE, 0, N * 4, out, 0, NULL, &read), "read");
	check(clWaitForEvents(1, &read), "wait");
	int errors = 0;
	for (int i = 0; i < N; i++)
		errors += out[i] != a[i] + 2 * b[i];
	cl_ulong start, end;
	check(clGetEventProfilingInfo(ran, CL_PROFILING_COMMAND_START, sizeof start, &start, NULL), "start");
	check(clGetEventProfilingInfo(ran, CL_PROFILING_COMMAND_END, sizeof end, &end, NULL), "end");
	printf("add: %d errors, times %s\n", errors, start && end >= start ? "ordered" : "wrong");

	/* Sub-buffer, fill, copy, boxes, map. */
	cl_buffer_region part = {4096, 4096};
	cl_mem sub = clCreateSubBuffer(mc, CL_MEM_READ_WRITE, CL_BUFFER_CREATE_TYPE_REGION, &part, &code);
	check(code, "sub-buffer");
	cl_uint pattern = 0x01020304;
	check(clEnqueueFillBuffer(q, sub, &pattern, 4, 0, 4096, 0, NULL, NULL), "fill");
	check(clEnqueueCopyBuffer(q, sub, mb, 0, 0, 64, 0, NULL, NULL), "copy");
	const size_t from[3] = {4, 1, 0}, to[3] = {0, 0, 0}, region[3] = {8, 3, 2};
	unsigned char box[48];
	check(clEnqueueReadBufferRect(q, ma, CL_TRUE, from, to, region, 64, 640, 0, 0, box, 0, NULL, NULL), "read of a box");
	int same = 1;
	for (int z = 0; z < 2; z++)
		for (int y = 0; y < 3; y++)
			same &= !memcmp(box + (z * 3 + y) * 8, (char *)a + z * 640 + (1 + y) * 64 + 4, 8);
	check(clEnqueueWriteBufferRect(q, mb, CL_TRUE, from, to, region, 64, 640, 0, 0, box, 0, NULL, NULL), "write of a box");
	check(clEnqueueCopyBufferRect(q, mb, mc, from, to, region, 64, 640, 8, 24, 0, NULL, NULL), "copy of a box");
	unsigned char *map = clEnqueueMapBuffer(q, mc, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 0, 8192, 0, NULL, NULL, &code);
	check(code, "map");
	same &= !memcmp(map, box, 48) && map[4096] == 4 && map[8191] == 1;
	map[1] = 77;
	check(clEnqueueUnmapMemObject(q, mc, map, 0, NULL, NULL), "unmap");
	unsigned char two[2];
	check(clEnqueueReadBuffer(q, mc, CL_TRUE, 0, 2, two, 0, NULL, NULL), "read");
	printf("boxes and maps: %s\n", same && two[1] == 77 ? "equal" : "different");

	/* A chain without a wait. */
	cl_kernel step = clCreateKernel(g, "advance", &code);
	check(code, "kernel");
	cl_int zero = 0, x = 0;
	unsigned want = 0;
	check(clEnqueueFillBuffer(q, mc, &zero, 4, 0, 4, 0, NULL, NULL), "fill");
	check(clSetKernelArg(step, 0, sizeof mc, &mc), "argument");
	size_t one = 1;
	for (int i = 0; i < 5000; i++) {
		check(clEnqueueNDRangeKernel(q, step, 1, NULL, &one, NULL, 0, NULL, NULL), "chain");
		want = want * 3 + 1;
	}
	check(clFinish(q), "finish");
	check(clEnqueueReadBuffer(q, mc, CL_TRUE, 0, 4, &x, 0, NULL, NULL), "read");
	printf("chain: %s, callback %d\n", (unsigned)x == want ? "equal" : "different", __atomic_load_n(&completed, __ATOMIC_ACQUIRE));

	/* Errors. */
	size_t none = 0;
	printf("errors: %d %d %d %d\n", clEnqueueNDRangeKernel(q, k, 1, NULL, &none, NULL, 0, NULL, NULL) != CL_SUCCESS,
	       clEnqueueReadBuffer(q, mc, CL_TRUE, N * 4, 4, two, 0, NULL, NULL), clSetKernelArg(k, 9, 4, &x),
	       clSetKernelArg(k, 0, 4, &x));
	/* PoCL aborts when the process exits while it compiles: the kernel of no items waits. */
	check(clFinish(q), "finish");

	clReleaseEvent(wrote);
	clReleaseEvent(ran);
	clReleaseEvent(read);
	clReleaseKernel(step);
	clReleaseKernel(k);
	clReleaseProgram(wrong);
	clReleaseProgram(g);
	clReleaseMemObject(sub);
	clReleaseMemObject(ma);
	clReleaseMemObject(mb);
	clReleaseMemObject(mc);
	clReleaseCommandQueue(other);
	clReleaseCommandQueue(q);
	clReleaseContext(c);
	free(a);
	free(b);
	free(out);
	return 0;
}
