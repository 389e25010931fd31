/* Programs that have a GPU together with others:
 *   turns kernels N MICROSECONDS   N kernels, one after the other, each with its result checked;
 *                                  prints their number, and how long they took, in ms
 *   turns flood FILE MICROSECONDS  kernels without end, some in flight; makes FILE when the first
 *                                  one has ended
 *   turns rate SECONDS MICROSECONDS WINDOW
 *                                  kernels with up to WINDOW in flight; prints their number, and the
 *                                  part of the time for which the device ran them
 *   turns forever FILE             a kernel that does not end; makes FILE before it, and prints the
 *                                  code of the end
 * The kernels take about as long as asked, on the whole device. */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ITEMS = 64 };

static cl_command_queue queue;
static cl_kernel kernel;
static cl_mem memory;

static const char *source =
	"__kernel void work(__global volatile int *a, int rounds) {\n"
	"	int i = get_global_id(0), v = i;\n"
	"	for (int r = 0; r != rounds; r++) { v = v * 1103515245 + 12345; if (rounds < 0) a[i] = v; }\n"
	"	a[i] = v;\n"
	"}\n";

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void check(cl_int code, const char *what)
{
	if (code) {
		printf("%s: %d\n", what, code);
		exit(1);
	}
}

static void touch(const char *name)
{
	FILE *f = fopen(name, "w");

	if (f)
		fclose(f);
}

static cl_int launch(int rounds, cl_event *event)
{
	size_t n = ITEMS;
	cl_int code = clSetKernelArg(kernel, 1, sizeof rounds, &rounds);

	return code ? code : clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &n, NULL, 0, NULL, event);
}

static double time_of(cl_event e)
{
	cl_ulong from = 0, to = 0;

	check(clWaitForEvents(1, &e), "kernel");
	check(clGetEventProfilingInfo(e, CL_PROFILING_COMMAND_START, sizeof from, &from, NULL), "start");
	check(clGetEventProfilingInfo(e, CL_PROFILING_COMMAND_END, sizeof to, &to, NULL), "end");
	clReleaseEvent(e);
	return (double)(to - from) / 1e3;
}

/* rounds_for finds the rounds of a kernel that takes some microseconds: the least of some
 * measurements, as others may run beside it. */
static int rounds_for(double us)
{
	const int probe = 100000;
	double best = 1e12;

	for (int i = 0; i < 5; i++) {
		cl_event e;
		check(launch(probe, &e), "probe");
		double took = time_of(e);
		if (took < best)
			best = took;
	}
	double rounds = probe * us / best;
	return rounds > 2e9 ? 2000000000 : rounds < 1 ? 1 : (int)rounds;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void kernels(int n, int rounds)
{
	static double took[100000];
	cl_int out[ITEMS], want[ITEMS];
	double began = now(), device = 0;

	if (n > 100000)
		n = 100000;
	for (int i = 0; i < ITEMS; i++) {
		unsigned v = (unsigned)i;
		for (int r = 0; r != rounds; r++)
			v = v * 1103515245u + 12345u;
		want[i] = (cl_int)v;
	}
	for (int i = 0; i < n; i++) {
		double from = now();
		cl_event e;
		check(launch(rounds, &e), "launch");
		check(clEnqueueReadBuffer(queue, memory, CL_TRUE, 0, sizeof out, out, 0, NULL, NULL), "read");
		took[i] = now() - from;
		device += time_of(e);
		if (memcmp(out, want, sizeof out))
			check(1, "wrong result");
	}
	printf("%d kernels are right\n", n);
	double all = now() - began;
	qsort(took, (size_t)n, sizeof took[0], compare);
	fprintf(stderr, "p50 %.2f ms, p99 %.2f ms, worst %.2f ms, device %.1f %%\n", took[n / 2], took[n - 1 - n / 100], took[n - 1], device / 10 / all);
}

static void flood(const char *file, int rounds)
{
	cl_event window[4] = { NULL };

	for (unsigned long i = 0;; i++) {
		cl_event *e = &window[i % 4];
		if (*e) {
			check(clWaitForEvents(1, e), "flood");
			clReleaseEvent(*e);
		}
		check(launch(rounds, e), "flood");
		if (i == 4)
			touch(file);
	}
}

static void rate(double seconds, int rounds, int window)
{
	static cl_event flight[256];
	double began = now(), device = 0, all;
	int n = 0;

	if (window < 1 || window > 256)
		window = 256;
	while ((all = now() - began) < seconds * 1e3) {
		cl_event *e = &flight[n++ % window];
		if (*e)
			device += time_of(*e);
		check(launch(rounds, e), "rate");
	}
	printf("%d kernels, device %.1f %%\n", n, device / 10 / all);
}

int main(int argc, char **argv)
{
	cl_platform_id p;
	cl_device_id d;
	cl_int code;

	if (argc < 3)
		return 2;
	setvbuf(stdout, NULL, _IOLBF, 0);
	check(clGetPlatformIDs(1, &p, NULL), "platform");
	check(clGetDeviceIDs(p, CL_DEVICE_TYPE_ALL, 1, &d, NULL), "device");
	cl_context c = clCreateContext(NULL, 1, &d, NULL, NULL, &code);
	check(code, "context");
	queue = clCreateCommandQueue(c, d, CL_QUEUE_PROFILING_ENABLE, &code);
	check(code, "queue");
	memory = clCreateBuffer(c, CL_MEM_READ_WRITE, ITEMS * sizeof(cl_int), NULL, &code);
	check(code, "buffer");
	cl_program g = clCreateProgramWithSource(c, 1, &source, NULL, &code);
	check(code, "program");
	check(clBuildProgram(g, 1, &d, "", NULL, NULL), "build");
	kernel = clCreateKernel(g, "work", &code);
	check(code, "kernel");
	check(clSetKernelArg(kernel, 0, sizeof memory, &memory), "argument");
	if (!strcmp(argv[1], "kernels")) {
		kernels(atoi(argv[2]), rounds_for(argc > 3 ? atof(argv[3]) : 1000));
	} else if (!strcmp(argv[1], "flood")) {
		flood(argv[2], rounds_for(argc > 3 ? atof(argv[3]) : 1000));
	} else if (!strcmp(argv[1], "rate")) {
		rate(atof(argv[2]), rounds_for(argc > 3 ? atof(argv[3]) : 1000), argc > 4 ? atoi(argv[4]) : 4);
	} else {
		touch(argv[2]);
		code = launch(-1, NULL);
		printf("the endless kernel: %d, %d\n", code, code ? code : clFinish(queue));
	}
	return 0;
}
