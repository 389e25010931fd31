/* How long a program takes to the end of its first kernel, in milliseconds, since its start and
 * since a time in nanoseconds of the epoch: lines of a name and a number. */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double last;

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void check(cl_int code, const char *what)
{
	if (code) {
		fprintf(stderr, "%s: %d\n", what, code);
		exit(1);
	}
	printf("%s %.2f\n", what, now() - last);
	last = now();
}

int main(int argc, char **argv)
{
	const char *since = argc > 1 ? argv[1] : getenv("DXPU_LEASED_NS");
	const char *source = "__kernel void count(__global float *c) { size_t i = get_global_id(0); c[i] = (float)i + 1.0f; }";
	const size_t n = 1024;
	float out[1024];
	cl_platform_id p;
	cl_device_id d;
	cl_int code;

	last = now();
	if (since)
		printf("program %.2f\n", last - atof(since) / 1e6);
	check(clGetPlatformIDs(1, &p, NULL), "platform");
	code = clGetDeviceIDs(p, CL_DEVICE_TYPE_ALL, 1, &d, NULL);
	cl_context c = code ? NULL : clCreateContext(NULL, 1, &d, NULL, NULL, &code);
	cl_command_queue q = code ? NULL : clCreateCommandQueue(c, d, 0, &code);
	cl_mem m = code ? NULL : clCreateBuffer(c, CL_MEM_READ_WRITE, sizeof out, NULL, &code);
	check(code, "context");
	cl_program g = clCreateProgramWithSource(c, 1, &source, NULL, &code);
	if (!code)
		code = clBuildProgram(g, 1, &d, "", NULL, NULL);
	cl_kernel k = code ? NULL : clCreateKernel(g, "count", &code);
	check(code, "build");
	clSetKernelArg(k, 0, sizeof m, &m);
	code = clEnqueueNDRangeKernel(q, k, 1, NULL, &n, NULL, 0, NULL, NULL);
	if (!code)
		code = clEnqueueReadBuffer(q, m, CL_TRUE, 0, sizeof out, out, 0, NULL, NULL);
	check(code, "kernel");
	if (since)
		printf("first %.2f\n", now() - atof(since) / 1e6);
	for (size_t i = 0; i < n; i++)
		if (out[i] != (float)i + 1.0f)
			code = printf("number %zu is %f\n", i, out[i]);
	clReleaseKernel(k);
	clReleaseProgram(g);
	clReleaseMemObject(m);
	clReleaseCommandQueue(q);
	clReleaseContext(c);
	return code != CL_SUCCESS;
}
