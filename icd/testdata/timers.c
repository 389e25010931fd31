/* Checks the timers of a device and of the host: their errors, their order, the clock of each, and that the times of
 * an event lie between two times of the device. With an argument, it checks what a platform without timers refuses. */
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>
#include <stdio.h>
#include <time.h>

enum { CALLS = 100, COMMANDS = 20, SIZE = 4096 };

static cl_device_id d;
static cl_platform_id p;

static cl_ulong program_time(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (cl_ulong)t.tv_sec * 1000000000 + (cl_ulong)t.tv_nsec;
}

static cl_ulong resolution(void)
{
	cl_ulong v = 99;

	printf("resolution: %d\n", clGetPlatformInfo(p, CL_PLATFORM_HOST_TIMER_RESOLUTION, sizeof v, &v, NULL));
	return v;
}

static void refused(void)
{
	cl_ulong a = 0, b = 0;

	printf("none: %d\n", resolution() == 0);
	printf("both: %d\n", clGetDeviceAndHostTimer(d, &a, &b));
	printf("host: %d\n", clGetHostTimer(d, &a));
}

static void errors(void)
{
	cl_ulong a = 0, b = 0;

	printf("no device: %d %d\n", clGetDeviceAndHostTimer(NULL, &a, &b), clGetHostTimer(NULL, &a));
	printf("no place: %d %d %d\n", clGetDeviceAndHostTimer(d, NULL, &b), clGetDeviceAndHostTimer(d, &a, NULL), clGetHostTimer(d, NULL));
}

/* clocks compares the clocks of device and host at two times: their distance is the same within the time of the
 * calls, and a thousandth for clocks of different rates. */
static void clocks(void)
{
	cl_ulong first_device = 0, first_host = 0, first_trip = 0, device = 0, last_device = 0, last_host = 0;
	int failed = 0, host_right = 0, device_right = 0, together = 0;

	for (int i = 0; i < CALLS; i++) {
		cl_ulong start = program_time(), before = 0, host = 0, after = 0;
		failed |= clGetHostTimer(d, &before) | clGetDeviceAndHostTimer(d, &device, &host) | clGetHostTimer(d, &after);
		host_right += start <= before && before <= host && host <= after && after <= program_time() && last_host <= host;
		device_right += last_device <= device;
		if (i == 0) {
			first_device = device;
			first_host = host;
			first_trip = after - before;
		}
		cl_long apart = (cl_long)(device - first_device) - (cl_long)(host - first_host);
		cl_ulong most = (first_trip + after - before) / 2 + (host - first_host) / 1000 + 1;
		together += (cl_ulong)(apart < 0 ? -apart : apart) <= most;
		last_device = device;
		last_host = host;
	}
	printf("clocks: %d, host %d, device %d, together %d of %d\n", failed, host_right, device_right, together, CALLS);
}

static void events(void)
{
	const char pattern = 1;
	const cl_queue_properties profiling[] = {CL_QUEUE_PROPERTIES, CL_QUEUE_PROFILING_ENABLE, 0};
	cl_ulong before = 0, after = 0, host;
	int right = 0, failed;
	cl_int code;
	cl_context c = clCreateContext(NULL, 1, &d, NULL, NULL, &code);
	cl_command_queue q = clCreateCommandQueueWithProperties(c, d, profiling, &code);
	cl_mem m = clCreateBuffer(c, CL_MEM_READ_WRITE, SIZE, NULL, &code);

	failed = code | clGetDeviceAndHostTimer(d, &before, &host);
	for (int i = 0; i < COMMANDS; i++) {
		cl_event e;
		cl_ulong at[4] = {0};
		failed |= clEnqueueFillBuffer(q, m, &pattern, sizeof pattern, 0, SIZE, 0, NULL, &e) | clWaitForEvents(1, &e);
		failed |= clGetDeviceAndHostTimer(d, &after, &host);
		for (cl_uint t = 0; t < 4; t++)
			failed |= clGetEventProfilingInfo(e, CL_PROFILING_COMMAND_QUEUED + t, sizeof *at, &at[t], NULL);
		right += before <= at[0] && at[0] <= at[1] && at[1] <= at[2] && at[2] <= at[3] && at[3] <= after;
		before = after;
		clReleaseEvent(e);
	}
	printf("events: %d, %d of %d between times of the device\n", failed, right, COMMANDS);
	clReleaseMemObject(m);
	clReleaseCommandQueue(q);
	clReleaseContext(c);
}

/* held checks that a command that waits for a user event was enqueued at its call, before a later time of the device. */
static void held(cl_command_queue_properties order)
{
	const char pattern = 1;
	const cl_queue_properties profiling[] = {CL_QUEUE_PROPERTIES, CL_QUEUE_PROFILING_ENABLE | order, 0};
	int right = 0, failed = 0;
	cl_int code;
	cl_context c = clCreateContext(NULL, 1, &d, NULL, NULL, &code);
	cl_command_queue q = clCreateCommandQueueWithProperties(c, d, profiling, &code);
	cl_mem m = clCreateBuffer(c, CL_MEM_READ_WRITE, SIZE, NULL, &code);

	for (int i = 0; i < COMMANDS; i++) {
		cl_ulong before = 0, between = 0, after = 0, host, at[4] = {0};
		cl_event e, user = clCreateUserEvent(c, &code);
		failed |= code | clGetDeviceAndHostTimer(d, &before, &host);
		failed |= clEnqueueFillBuffer(q, m, &pattern, sizeof pattern, 0, SIZE, 1, &user, &e);
		failed |= clGetDeviceAndHostTimer(d, &between, &host);
		failed |= clSetUserEventStatus(user, CL_COMPLETE) | clWaitForEvents(1, &e) | clGetDeviceAndHostTimer(d, &after, &host);
		for (cl_uint t = 0; t < 4; t++)
			failed |= clGetEventProfilingInfo(e, CL_PROFILING_COMMAND_QUEUED + t, sizeof *at, &at[t], NULL);
		right += before <= at[0] && at[0] <= between && at[0] <= at[1] && between <= at[2] && at[2] <= at[3] && at[3] <= after;
		clReleaseEvent(e);
		clReleaseEvent(user);
	}
	printf("held: %d, %d of %d\n", failed, right, COMMANDS);
	clReleaseMemObject(m);
	clReleaseCommandQueue(q);
	clReleaseContext(c);
}

int main(int argc, char **argv)
{
	(void)argv;
	if (clGetPlatformIDs(1, &p, NULL) || clGetDeviceIDs(p, CL_DEVICE_TYPE_ALL, 1, &d, NULL))
		return 1;
	if (argc > 1) {
		refused();
		return 0;
	}
	printf("timers: %d\n", resolution() > 0);
	errors();
	clocks();
	events();
	held(0);
	held(CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE);
	return 0;
}
