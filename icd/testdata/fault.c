/* A program whose kernel faults loses its GPU: every command fails, and nothing hangs. */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <stdio.h>

static const char *source = "__kernel void f(__global int *a) { *(volatile __global int *)(long)(a[0] * 4) = 1; }";

int main(void)
{
	cl_platform_id p;
	cl_device_id d;
	cl_int code, zero = 0, status = 1;
	cl_bool available = CL_TRUE;
	size_t one = 1;
	cl_event e;

	if (clGetPlatformIDs(1, &p, NULL) || clGetDeviceIDs(p, CL_DEVICE_TYPE_ALL, 1, &d, NULL))
		return 1;
	cl_context c = clCreateContext(NULL, 1, &d, NULL, NULL, &code);
	cl_command_queue q = clCreateCommandQueue(c, d, 0, &code);
	cl_program g = clCreateProgramWithSource(c, 1, &source, NULL, &code);
	if (clBuildProgram(g, 1, &d, "", NULL, NULL))
		return 1;
	clReleaseProgram(g); /* with a cache, the next one is of it */
	g = clCreateProgramWithSource(c, 1, &source, NULL, &code);
	if (clBuildProgram(g, 1, &d, "", NULL, NULL))
		return 1;
	cl_kernel k = clCreateKernel(g, "f", &code);
	cl_mem m = clCreateBuffer(c, CL_MEM_READ_WRITE, 64, NULL, &code);
	/* The end of this box wraps to 1. */
	const size_t origin[3] = {0}, box[3] = {1, 1, ((size_t)1 << 29) + 1}, pitch = (size_t)1 << 35;
	if (clEnqueueReadBufferRect(q, m, CL_TRUE, origin, origin, box, pitch, pitch, 0, 0, &zero, 0, NULL, NULL) != CL_INVALID_VALUE)
		return 1;
	if (clEnqueueFillBuffer(q, m, &zero, 4, 0, 64, 0, NULL, NULL) || clSetKernelArg(k, 0, sizeof m, &m) ||
	    clEnqueueNDRangeKernel(q, k, 1, NULL, &one, NULL, 0, NULL, &e))
		return 1;
	int finish = clFinish(q);
	clGetEventInfo(e, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL);
	clGetDeviceInfo(d, CL_DEVICE_AVAILABLE, sizeof available, &available, NULL);
	code = clEnqueueNDRangeKernel(q, k, 1, NULL, &one, NULL, 0, NULL, NULL);
	printf("finish %d, event %d, available %u, next command %d\n", finish, status, available, code);
	clReleaseEvent(e);
	clReleaseMemObject(m);
	clReleaseKernel(k);
	code = clBuildProgram(g, 1, &d, "-DLATER", NULL, NULL);
	printf("next build %d, its log %d\n", code, clGetProgramBuildInfo(g, d, CL_PROGRAM_BUILD_LOG, 0, NULL, &one));
	clReleaseProgram(g);
	clReleaseCommandQueue(q);
	clReleaseContext(c);
	return 0;
}
