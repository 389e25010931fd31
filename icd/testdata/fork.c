/* A child of fork has no device, and the device of its parent goes on. */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void)
{
	cl_platform_id p;
	cl_device_id d;
	cl_int code, in = 42, out = 0;
	int ended = 0;

	if (clGetPlatformIDs(1, &p, NULL) || clGetDeviceIDs(p, CL_DEVICE_TYPE_ALL, 1, &d, NULL))
		return 1;
	cl_context c = clCreateContext(NULL, 1, &d, NULL, NULL, &code);
	cl_command_queue q = clCreateCommandQueue(c, d, 0, &code);
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
	clReleaseEvent(e);
	clReleaseMemObject(m);
	clReleaseCommandQueue(q);
	clReleaseContext(c);
	return 0;
}
