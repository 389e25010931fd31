/* Work-groups larger than a kernel's properties allow. A platform may take them. */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <stdio.h>
#include <stdlib.h>

enum { ITEMS = 64 };

static void check(cl_int code, const char *what)
{
	if (code) {
		printf("%s: %d\n", what, code);
		exit(1);
	}
}

int main(void)
{
	static const char *source = "__kernel void f(__global int *a) { a[get_global_id(0)] += get_local_size(0); }";
	const size_t local = ITEMS, huge = 1 << 30;
	int values[ITEMS] = {0}, right = 0;
	size_t most = 0;
	cl_platform_id p;
	cl_device_id d;
	cl_event late;
	cl_int code, end = 0;

	check(clGetPlatformIDs(1, &p, NULL), "platform");
	check(clGetDeviceIDs(p, CL_DEVICE_TYPE_ALL, 1, &d, NULL), "device");
	cl_context c = clCreateContext(NULL, 1, &d, NULL, NULL, &code);
	check(code, "context");
	cl_command_queue q = clCreateCommandQueue(c, d, 0, &code);
	cl_program g = clCreateProgramWithSource(c, 1, &source, NULL, &code);
	check(clBuildProgram(g, 1, &d, "", NULL, NULL), "build");
	cl_kernel f = clCreateKernel(g, "f", &code);
	cl_mem a = clCreateBuffer(c, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, sizeof values, values, &code);
	check(code, "buffer");
	check(clSetKernelArg(f, 0, sizeof a, &a), "argument");
	check(clGetKernelWorkGroupInfo(f, d, CL_KERNEL_WORK_GROUP_SIZE, sizeof most, &most, NULL), "property");
	printf("the kernel takes %zu items\n", most);
	/* The first one waits for a user event: its call has no answer of the device. */
	cl_event user = clCreateUserEvent(c, &code);
	printf("behind a user event %d", clEnqueueNDRangeKernel(q, f, 1, NULL, &local, &local, 1, &user, &late));
	check(clSetUserEventStatus(user, CL_COMPLETE), "event");
	check(clWaitForEvents(1, &late), "wait");
	check(clGetEventInfo(late, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof end, &end, NULL), "status");
	printf(", at its end %d\n", end);
	printf("%d items: %d", ITEMS, clEnqueueNDRangeKernel(q, f, 1, NULL, &local, &local, 0, NULL, NULL));
	printf(" %d", clEnqueueNDRangeKernel(q, f, 1, NULL, &local, &local, 0, NULL, NULL));
	printf(", more than the device takes: %d\n", clEnqueueNDRangeKernel(q, f, 1, NULL, &huge, &huge, 0, NULL, NULL));
	check(clEnqueueReadBuffer(q, a, CL_TRUE, 0, sizeof values, values, 0, NULL, NULL), "read");
	for (int i = 0; i < ITEMS; i++)
		right += values[i] == 3 * ITEMS;
	printf("%d of %d items ran three times\n", right, ITEMS);
	return 0;
}
