/* Sub-groups, and specialization constants of a program in an intermediate language, whose kernel f
 * stores constant 7 and constant 8. Arguments: the file of the program, and "refusals" to make wrong calls,
 * some of which end a process with PoCL 6.0. */
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>
#include <CL/cl_ext.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(cl_int code, const char *what)
{
	if (code) {
		printf("%s: %d\n", what, code);
		exit(1);
	}
}

static void ask(const char *what, cl_kernel k, cl_device_id d, cl_uint param, size_t n, const size_t *input, size_t room)
{
	size_t value[4] = {0}, size = 0;
	cl_int code = clGetKernelSubGroupInfo(k, d, param, n, input, room, value, &size);

	printf("%s: %d", what, code);
	if (!code)
		printf(", %zu bytes: %zu %zu %zu", size, value[0], value[1], value[2]);
	printf("\n");
}

static void groups(cl_context c, cl_device_id d, int refusals)
{
	static const char *source = "__kernel void f(__global int *a) { a[get_global_id(0)] += 1; }";
	const size_t local[] = {32, 2, 1}, none[] = {0, 1, 1}, count = 1;
	cl_uint most = 0;
	cl_int code;

	check(clGetDeviceInfo(d, CL_DEVICE_MAX_NUM_SUB_GROUPS, sizeof most, &most, NULL), "sub-groups");
	printf("sub-groups: %d\n", most > 0);
	cl_program g = clCreateProgramWithSource(c, 1, &source, NULL, &code);
	check(clBuildProgram(g, 1, &d, "", NULL, NULL), "build");
	cl_kernel k = clCreateKernel(g, "f", &code);
	check(code, "kernel");
	ask("largest, 1 dimension", k, d, CL_KERNEL_MAX_SUB_GROUP_SIZE_FOR_NDRANGE, sizeof *local, local, sizeof *local);
	ask("largest", k, d, CL_KERNEL_MAX_SUB_GROUP_SIZE_FOR_NDRANGE, sizeof local, local, sizeof *local);
	ask("count", k, d, CL_KERNEL_SUB_GROUP_COUNT_FOR_NDRANGE, sizeof local, local, sizeof *local);
	ask("group of 3 dimensions", k, d, CL_KERNEL_LOCAL_SIZE_FOR_SUB_GROUP_COUNT, sizeof count, &count, sizeof local);
	ask("group of 1 dimension", k, d, CL_KERNEL_LOCAL_SIZE_FOR_SUB_GROUP_COUNT, sizeof count, &count, sizeof *local);
	ask("most", k, d, CL_KERNEL_MAX_NUM_SUB_GROUPS, 0, NULL, sizeof *local);
	ask("compiled for", k, d, CL_KERNEL_COMPILE_NUM_SUB_GROUPS, 0, NULL, sizeof *local);
	if (refusals) {
		ask("no input", k, d, CL_KERNEL_SUB_GROUP_COUNT_FOR_NDRANGE, 0, NULL, sizeof *local);
		ask("an empty group", k, d, CL_KERNEL_SUB_GROUP_COUNT_FOR_NDRANGE, sizeof none, none, sizeof *local);
		ask("half a number", k, d, CL_KERNEL_SUB_GROUP_COUNT_FOR_NDRANGE, 4, local, sizeof *local);
		ask("no room", k, d, CL_KERNEL_SUB_GROUP_COUNT_FOR_NDRANGE, sizeof *local, local, 4);
		ask("another query", k, d, 0x1234, 0, NULL, sizeof *local);
		ask("no kernel", NULL, d, CL_KERNEL_MAX_NUM_SUB_GROUPS, 0, NULL, sizeof *local);
	}
	clReleaseKernel(k);
	clReleaseProgram(g);
}

static void run(cl_context c, cl_device_id d, cl_program g)
{
	int values[2] = {0};
	const size_t one = 1;
	cl_int code;

	check(clBuildProgram(g, 1, &d, "", NULL, NULL), "build");
	cl_kernel k = clCreateKernel(g, "f", &code);
	check(code, "kernel");
	cl_mem a = clCreateBuffer(c, CL_MEM_READ_WRITE, sizeof values, NULL, &code);
	cl_command_queue q = clCreateCommandQueueWithProperties(c, d, NULL, &code);
	check(code, "queue");
	check(clSetKernelArg(k, 0, sizeof a, &a), "argument");
	check(clEnqueueNDRangeKernel(q, k, 1, NULL, &one, &one, 0, NULL, NULL), "run");
	check(clEnqueueReadBuffer(q, a, CL_TRUE, 0, sizeof values, values, 0, NULL, NULL), "read");
	printf("constants %d and %d\n", values[0], values[1]);
	clReleaseCommandQueue(q);
	clReleaseMemObject(a);
	clReleaseKernel(k);
}

static void constants(cl_context c, cl_device_id d, const char *path, int refusals)
{
	static const char *source = "__kernel void f(__global int *a) { a[0] = 1; }";
	static char il[64 << 10];
	const int value = 42;
	cl_int code;
	FILE *f = fopen(path, "r");
	size_t n = f ? fread(il, 1, sizeof il, f) : 0;

	if (n == 0) {
		perror(path);
		exit(1);
	}
	fclose(f);
	cl_program g = clCreateProgramWithIL(c, il, n, &code);
	check(code, "program");
	run(c, d, g); /* as they are in the program */
	clReleaseProgram(g);
	g = clCreateProgramWithIL(c, il, n, &code);
	printf("constant: %d\n", clSetProgramSpecializationConstant(g, 7, sizeof value, &value));
	if (refusals) {
		printf("no value: %d\n", clSetProgramSpecializationConstant(g, 7, sizeof value, NULL));
		printf("of another size: %d\n", clSetProgramSpecializationConstant(g, 7, 8, "12345678"));
		printf("of no size: %d\n", clSetProgramSpecializationConstant(g, 7, 3, &value));
		printf("no program: %d\n", clSetProgramSpecializationConstant(NULL, 7, sizeof value, &value));
	}
	printf("no such constant: %d\n", clSetProgramSpecializationConstant(g, 77, sizeof value, &value));
	run(c, d, g);
	clReleaseProgram(g);
	if (!refusals)
		return;
	g = clCreateProgramWithSource(c, 1, &source, NULL, &code);
	printf("of a source: %d\n", clSetProgramSpecializationConstant(g, 7, sizeof value, &value));
	clReleaseProgram(g);
}

int main(int argc, char **argv)
{
	char version[256] = "";
	cl_platform_id p;
	cl_device_id d;
	cl_int code;

	check(clGetPlatformIDs(1, &p, NULL), "platform");
	check(clGetDeviceIDs(p, CL_DEVICE_TYPE_ALL, 1, &d, NULL), "device");
	cl_context c = clCreateContext(NULL, 1, &d, NULL, NULL, &code);
	check(code, "context");
	int refusals = argc > 2 && !strcmp(argv[2], "refusals");
	groups(c, d, refusals);
	check(clGetDeviceInfo(d, CL_DEVICE_IL_VERSION, sizeof version, version, NULL), "language");
	printf("an intermediate language: %d\n", *version != 0);
	if (argc > 1 && *version)
		constants(c, d, argv[1], refusals);
	clReleaseContext(c);
	return 0;
}
