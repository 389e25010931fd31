/* A child of fork has no device, and the device of its parent goes on. */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static cl_context c;
static cl_command_queue q;
static volatile int over;

static void CL_CALLBACK nothing(cl_event e, cl_int status, void *data)
{
	(void)e;
	(void)status;
	(void)data;
}

/* busy keeps the driver at work with user events and callbacks until the end. */
static void *busy(void *event)
{
	while (!over) {
		cl_event user = clCreateUserEvent(c, NULL);
		if (clSetEventCallback(event, CL_COMPLETE, nothing, NULL) || clSetUserEventStatus(user, CL_COMPLETE))
			return event;
		clReleaseEvent(user);
	}
	return NULL;
}

/* at_work forks while another thread is in the driver, which has locks of its own. Each child calls
 * what takes them, and none may wait for what only its parent can give. */
static int at_work(cl_event done, cl_mem m)
{
	enum { COMMANDS = 200, CHILDREN = 200 };
	cl_event user = clCreateUserEvent(c, NULL);
	pthread_t thread;
	int bad = 0, ended;

	for (int i = 0; i < COMMANDS; i++) /* that are kept, so that the driver has a list to go through */
		if (clEnqueueMarkerWithWaitList(q, 1, &user, NULL))
			return 1;
	if (pthread_create(&thread, NULL, busy, done))
		return 1;
	for (int i = 0; i < CHILDREN && !bad; i++) {
		pid_t child = fork();
		if (child == 0) {
			alarm(20);
			bad = clSetEventCallback(done, CL_COMPLETE, nothing, NULL) != CL_DEVICE_NOT_AVAILABLE ||
			      clSetUserEventStatus(user, CL_COMPLETE) != CL_DEVICE_NOT_AVAILABLE;
			clReleaseMemObject(m);
			_exit(bad);
		}
		bad = waitpid(child, &ended, 0) != child || ended;
	}
	over = 1;
	pthread_join(thread, NULL);
	return clSetUserEventStatus(user, CL_COMPLETE) || clReleaseEvent(user) || bad;
}

int main(void)
{
	cl_platform_id p;
	cl_device_id d;
	cl_int code, in = 42, out = 0;
	int ended = 0;

	if (clGetPlatformIDs(1, &p, NULL) || clGetDeviceIDs(p, CL_DEVICE_TYPE_ALL, 1, &d, NULL))
		return 1;
	c = clCreateContext(NULL, 1, &d, NULL, NULL, &code);
	q = clCreateCommandQueue(c, d, 0, &code);
	cl_mem m = clCreateBuffer(c, CL_MEM_READ_WRITE, sizeof in, NULL, &code);
	cl_event e;
	if (clEnqueueWriteBuffer(q, m, CL_FALSE, 0, sizeof in, &in, 0, NULL, &e))
		return 1;
	pid_t child = fork();
	if (child == 0) {
		int bad = clEnqueueReadBuffer(q, m, CL_TRUE, 0, sizeof out, &out, 0, NULL, NULL) != CL_DEVICE_NOT_AVAILABLE ||
			  clFinish(q) != CL_DEVICE_NOT_AVAILABLE;
		cl_mem none = clCreateBuffer(c, CL_MEM_READ_WRITE, 64, NULL, &code);
		bad |= none || code != CL_DEVICE_NOT_AVAILABLE;
		clReleaseMemObject(m);
		clReleaseCommandQueue(q);
		clReleaseContext(c);
		_exit(bad);
	}
	if (waitpid(child, &ended, 0) != child)
		return 1;
	code = clEnqueueReadBuffer(q, m, CL_TRUE, 0, sizeof out, &out, 0, NULL, NULL);
	printf("child %d, read %d, value %d\n", ended, code, out);
	printf("children of a process at work: %d\n", at_work(e, m));
	clReleaseEvent(e);
	clReleaseMemObject(m);
	clReleaseCommandQueue(q);
	clReleaseContext(c);
	return 0;
}
