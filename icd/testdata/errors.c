/* Codes that calls return at once: it prints the same on every platform that works. */
#define CL_TARGET_OPENCL_VERSION 300
#define CL_USE_DEPRECATED_OPENCL_1_1_APIS
#include <CL/cl.h>
#include <stdio.h>
#include <stdlib.h>

static void check(cl_int code, const char *what)
{
	if (code) {
		printf("%s: %d\n", what, code);
		exit(1);
	}
}

/* Codes of binaries for devices that are not those of the context. */
static void binaries(cl_context c, cl_device_id d, cl_program g)
{
	size_t size;
	cl_int code, status[2];

	check(clGetProgramInfo(g, CL_PROGRAM_BINARY_SIZES, sizeof size, &size, NULL), "size of the binary");
	unsigned char *bytes = malloc(size);
	check(clGetProgramInfo(g, CL_PROGRAM_BINARIES, sizeof bytes, &bytes, NULL), "binary");
	const cl_device_id none = NULL, twice[2] = {d, d};
	const size_t sizes[2] = {size, size};
	const unsigned char *both[2] = {bytes, bytes};
	clCreateProgramWithBinary(c, 1, &none, sizes, both, status, &code);
	printf("binaries: no device %d, ", code);
	clCreateProgramWithBinary(c, 2, twice, sizes, both, status, &code);
	printf("one twice %d\n", code);
	free(bytes);
}

/* Codes of a device that is named twice, of a marker, and of an intermediate language of nothing. */
static void programs(cl_context c, cl_device_id d, cl_command_queue q)
{
	static const char *source = "__kernel void f(__global int *a) { a[0] = 1; }\n";
	const cl_device_id twice[2] = {d, d};
	cl_int code;
	cl_program whole = clCreateProgramWithSource(c, 1, &source, NULL, &code), part = clCreateProgramWithSource(c, 1, &source, NULL, &code);

	printf("a device twice: build %d, ", clBuildProgram(whole, 2, twice, "", NULL, NULL));
	printf("compile %d, ", clCompileProgram(part, 2, twice, "", 0, NULL, NULL, NULL, NULL));
	clReleaseProgram(clLinkProgram(c, 2, twice, "", 1, &part, NULL, NULL, &code));
	printf("link %d\n", code);
	clCreateProgramWithIL(c, source, 0, &code);
	printf("marker without an event: %d\n", clEnqueueMarker(q, NULL));
	printf("no words of a language: %d\n", code);
	clReleaseProgram(whole);
	clReleaseProgram(part);
}

/* The code of a wait for events of two contexts. */
static void contexts(cl_context c, cl_device_id d)
{
	cl_int code;
	cl_context other = clCreateContext(NULL, 1, &d, NULL, NULL, &code);
	check(code, "context");
	const cl_event both[2] = {clCreateUserEvent(c, NULL), clCreateUserEvent(other, NULL)};
	check(clSetUserEventStatus(both[0], CL_COMPLETE), "user event");
	check(clSetUserEventStatus(both[1], CL_COMPLETE), "user event");
	printf("events of two contexts: %d\n", clWaitForEvents(2, both));
	clReleaseEvent(both[0]);
	clReleaseEvent(both[1]);
	clReleaseContext(other);
}

int main(void)
{
	static const char *source = "__attribute__((reqd_work_group_size(4, 2, 1))) __kernel void f(__global int *a) { a[0] = 1; }\n"
				    "__kernel void g(__global int *a) { a[0] = 1; }\n";
	const size_t global[3] = {8, 8, 1}, right[3] = {4, 2, 1}, wrong[3] = {2, 4, 1}, uneven[3] = {3, 8, 1}, huge[3] = {1 << 20, 1 << 20, 1};
	const cl_mem_properties none[] = {0};
	const cl_context_properties strange[] = {CL_CONTEXT_PLATFORM, 0, 0};
	char host[256] = {7}, got = 0;
	cl_platform_id p;
	cl_device_id d;
	cl_int code, v = 0;
	size_t size;

	check(clGetPlatformIDs(1, &p, NULL), "platform");
	check(clGetDeviceIDs(p, CL_DEVICE_TYPE_ALL, 1, &d, NULL), "device");
	clCreateContext(strange, 1, &d, NULL, NULL, &code);
	printf("platform of a context: %d\n", code);
	cl_context c = clCreateContext(NULL, 1, &d, NULL, NULL, &code);
	check(code, "context");
	const cl_queue_properties list[] = {CL_QUEUE_PROPERTIES, CL_QUEUE_PROFILING_ENABLE, 0};
	cl_command_queue q = clCreateCommandQueueWithProperties(c, d, list, &code);
	check(code, "queue");
	check(clGetCommandQueueInfo(q, CL_QUEUE_PROPERTIES_ARRAY, 0, NULL, &size), "array");
	printf("properties of the queue: %zu bytes\n", size);
	cl_program g = clCreateProgramWithSource(c, 1, &source, NULL, &code);
	check(clBuildProgram(g, 1, &d, "", NULL, NULL), "build");
	binaries(c, d, g);
	programs(c, d, q);
	cl_kernel f = clCreateKernel(g, "f", &code), h = clCreateKernel(g, "g", &code);
	cl_mem hidden = clCreateBuffer(c, CL_MEM_COPY_HOST_PTR | CL_MEM_HOST_NO_ACCESS, sizeof host, host, &code);
	contexts(c, d);
	printf("buffer that the host does not reach: %d, ", code);
	printf("read %d, ", clEnqueueReadBuffer(q, hidden, CL_TRUE, 0, 4, &v, 0, NULL, NULL));
	cl_mem b = clCreateBufferWithProperties(c, none, CL_MEM_READ_WRITE, sizeof host, NULL, &code);
	check(code, "buffer");
	check(clEnqueueCopyBuffer(q, hidden, b, 0, 0, sizeof host, 0, NULL, NULL), "copy");
	check(clEnqueueReadBuffer(q, b, CL_TRUE, 0, 1, &got, 0, NULL, NULL), "read");
	check(clGetMemObjectInfo(b, CL_MEM_PROPERTIES, 0, NULL, &size), "properties");
	printf("its byte %d, list of %zu bytes\n", got, size);
	check(clSetKernelArg(f, 0, sizeof b, &b), "argument");
	check(clSetKernelArg(h, 0, sizeof b, &b), "argument");
	cl_kernel_arg_address_qualifier where;
	printf("description of an argument, not asked for: %d\n",
	       clGetKernelArgInfo(f, 0, CL_KERNEL_ARG_ADDRESS_QUALIFIER, sizeof where, &where, NULL));
	printf("the loader's function: %s\n", clGetExtensionFunctionAddressForPlatform(p, "clIcdGetPlatformIDsKHR") ? "found" : "absent");
	printf("work-groups: %d", clEnqueueNDRangeKernel(q, f, 3, NULL, global, right, 0, NULL, NULL));
	printf(" %d", clEnqueueNDRangeKernel(q, f, 3, NULL, global, wrong, 0, NULL, NULL));
	printf(" %d", clEnqueueNDRangeKernel(q, h, 3, NULL, global, uneven, 0, NULL, NULL));
	printf(" %d\n", clEnqueueNDRangeKernel(q, h, 3, NULL, huge, huge, 0, NULL, NULL));
	check(clFinish(q), "finish");
	return 0;
}
