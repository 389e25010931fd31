/* Times of one OpenCL device, as lines of a name and a number: microseconds, or GB/s. */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { EMPTY = 2000, CHAIN = 10000, COPIES = 5, MADE = 2000 };

static void check(cl_int code, const char *what)
{
	if (code) {
		fprintf(stderr, "%s: %d\n", what, code);
		exit(1);
	}
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int order(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *v, int n)
{
	qsort(v, (size_t)n, sizeof *v, order);
	return v[n / 2];
}

static cl_command_queue q;

static void run(cl_kernel k, int times)
{
	const size_t one = 1;

	for (int i = 0; i < times; i++)
		check(clEnqueueNDRangeKernel(q, k, 1, NULL, &one, &one, 0, NULL, NULL), "kernel");
	check(clFinish(q), "finish");
}

/* made runs kernels with a buffer for each, as an expression of arrays does. */
static void made(cl_context c, cl_kernel k)
{
	const size_t one = 1;
	cl_int code;

	for (int i = 0; i < MADE; i++) {
		cl_mem m = clCreateBuffer(c, CL_MEM_READ_WRITE, 4096, NULL, &code);
		check(code, "buffer");
		check(clSetKernelArg(k, 0, sizeof m, &m), "argument");
		check(clEnqueueNDRangeKernel(q, k, 1, NULL, &one, &one, 0, NULL, NULL), "kernel");
		check(clReleaseMemObject(m), "release");
		if (i % 10 == 9)
			check(clFinish(q), "finish");
	}
}

static void copies(cl_mem m, size_t n)
{
	double up[COPIES], down[COPIES];
	unsigned char *host = malloc(n);

	if (!host)
		exit(1);
	memset(host, 7, n);
	for (int i = 0; i < COPIES; i++) {
		double start = now();
		check(clEnqueueWriteBuffer(q, m, CL_TRUE, 0, n, host, 0, NULL, NULL), "write");
		up[i] = (double)n / (now() - start) / 1e3;
		memset(host, 0, n);
		start = now();
		check(clEnqueueReadBuffer(q, m, CL_TRUE, 0, n, host, 0, NULL, NULL), "read");
		down[i] = (double)n / (now() - start) / 1e3;
		for (size_t j = 0; j < n; j++)
			if (host[j] != 7) {
				fprintf(stderr, "byte %zu is wrong\n", j);
				exit(1);
			}
	}
	printf("write %.3f\nread %.3f\n", median(up, COPIES), median(down, COPIES));
	free(host);
}

int main(void)
{
	static const char *source = "__kernel void nothing(__global float *x) {}\n"
				    "__kernel void work(__global float *x, int n) {\n"
				    "	float v = x[0];\n"
				    "	for (int i = 0; i < n; i++) v = v * 1.000001f + 0.5f;\n"
				    "	x[0] = v;\n"
				    "}\n";
	static double times[EMPTY];
	const size_t size = 64 << 20;
	int n = 8000;
	cl_platform_id p;
	cl_device_id d;
	cl_int code;

	check(clGetPlatformIDs(1, &p, NULL), "platforms");
	check(clGetDeviceIDs(p, CL_DEVICE_TYPE_ALL, 1, &d, NULL), "devices");
	cl_context c = clCreateContext(NULL, 1, &d, NULL, NULL, &code);
	check(code, "context");
	q = clCreateCommandQueue(c, d, 0, &code);
	check(code, "queue");
	cl_program g = clCreateProgramWithSource(c, 1, &source, NULL, &code);
	check(code, "program");
	check(clBuildProgram(g, 1, &d, "", NULL, NULL), "build");
	cl_kernel nothing = clCreateKernel(g, "nothing", &code), work = clCreateKernel(g, "work", &code);
	check(code, "kernel");
	cl_mem m = clCreateBuffer(c, CL_MEM_READ_WRITE, size, NULL, &code);
	check(code, "buffer");
	check(clSetKernelArg(nothing, 0, sizeof m, &m), "argument");
	check(clSetKernelArg(work, 0, sizeof m, &m), "argument");
	check(clSetKernelArg(work, 1, sizeof n, &n), "argument");
	run(nothing, 100);
	for (int i = 0; i < EMPTY; i++) {
		double start = now();
		run(nothing, 1);
		times[i] = now() - start;
	}
	printf("empty %.1f\n", median(times, EMPTY));
	run(work, 1);
	double start = now();
	run(work, CHAIN);
	printf("chain %.2f\n", (now() - start) / CHAIN);
	start = now();
	made(c, nothing);
	printf("made %.2f\n", (now() - start) / MADE);
	copies(m, size);
	return 0;
}
