/* Threads of one program share a context, a queue and buffers, and have queues, kernels and
 * buffers of their own. */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { THREADS = 6, ROUNDS = 60, N = 2000 };

static cl_context c;
static cl_device_id d;
static cl_command_queue shared;
static cl_program g;
static cl_mem sum;

static void check(cl_int code, const char *what)
{
	if (code) {
		printf("%s: %d\n", what, code);
		exit(1);
	}
}

static int called;

static void CL_CALLBACK note(cl_event e, cl_int status, void *data)
{
	(void)e;
	(void)status;
	(void)data;
	__atomic_add_fetch(&called, 1, __ATOMIC_RELAXED);
}

static void *work(void *arg)
{
	size_t number = (size_t)arg, n = N, one = 1;
	static __thread int in[N], out[N];
	cl_int code, factor = (cl_int)number + 2;
	cl_command_queue q = clCreateCommandQueue(c, d, 0, &code);

	check(code, "queue");
	cl_kernel k = clCreateKernel(g, "scale", &code), count = clCreateKernel(g, "count", &code);
	check(code, "kernel");
	for (int round = 0; round < ROUNDS; round++) {
		cl_event done, user = clCreateUserEvent(c, &code);
		check(code, "user event");
		cl_mem m = clCreateBuffer(c, CL_MEM_READ_WRITE, sizeof in, NULL, &code);
		check(code, "buffer");
		for (int i = 0; i < N; i++)
			in[i] = i + round;
		check(clSetKernelArg(k, 0, sizeof m, &m), "argument");
		check(clSetKernelArg(k, 1, sizeof factor, &factor), "argument");
		check(clSetKernelArg(count, 0, sizeof sum, &sum), "argument");
		check(clEnqueueWriteBuffer(q, m, CL_FALSE, 0, sizeof in, in, round % 3 == 0, round % 3 == 0 ? &user : NULL, NULL), "write");
		check(clEnqueueNDRangeKernel(q, k, 1, NULL, &n, NULL, 0, NULL, NULL), "kernel");
		check(clEnqueueReadBuffer(q, m, CL_FALSE, 0, sizeof out, out, 0, NULL, &done), "read");
		check(clSetEventCallback(done, CL_COMPLETE, note, NULL), "callback");
		check(clSetUserEventStatus(user, CL_COMPLETE), "status");
		check(clEnqueueNDRangeKernel(shared, count, 1, NULL, &one, NULL, 0, NULL, NULL), "shared queue");
		check(clWaitForEvents(1, &done), "wait");
		for (int i = 0; i < N; i++)
			if (out[i] != in[i] * factor) {
				printf("thread %zu, round %d: element %d is %d\n", number, round, i, out[i]);
				exit(1);
			}
		clReleaseEvent(user);
		clReleaseEvent(done);
		clReleaseMemObject(m);
	}
	clReleaseKernel(k);
	clReleaseKernel(count);
	check(clFinish(q), "finish");
	clReleaseCommandQueue(q);
	return NULL;
}

int main(void)
{
	static const char *source = "__kernel void scale(__global int *x, int f) { x[get_global_id(0)] *= f; }\n"
				    "__kernel void count(__global int *x) { if (++x[0] < 0) printf(\"%d\\n\", x[0]); }\n";
	pthread_t threads[THREADS];
	cl_platform_id p;
	cl_int code, total = 0;

	check(clGetPlatformIDs(1, &p, NULL), "platforms");
	check(clGetDeviceIDs(p, CL_DEVICE_TYPE_ALL, 1, &d, NULL), "devices");
	c = clCreateContext(NULL, 1, &d, NULL, NULL, &code);
	check(code, "context");
	shared = clCreateCommandQueue(c, d, 0, &code);
	check(code, "queue");
	g = clCreateProgramWithSource(c, 1, &source, NULL, &code);
	check(code, "program");
	check(clBuildProgram(g, 1, &d, "", NULL, NULL), "build");
	sum = clCreateBuffer(c, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, sizeof total, &total, &code);
	check(code, "buffer");
	for (size_t i = 0; i < THREADS; i++)
		if (pthread_create(&threads[i], NULL, work, (void *)i))
			return 1;
	for (size_t i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	check(clEnqueueReadBuffer(shared, sum, CL_TRUE, 0, sizeof total, &total, 0, NULL, NULL), "read");
	printf("threads: %d of %d\n", total, THREADS * ROUNDS);
	clReleaseMemObject(sum);
	clReleaseProgram(g);
	clReleaseCommandQueue(shared);
	clReleaseContext(c);
	return 0;
}
