/* Codes that the specification of OpenCL 3.0 gives for wrong arguments. The program prints the calls with
 * another code, and a count. */
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(call, want) expect(#call, (call), want)
/* MADE checks a call that returns an object. */
#define MADE(call, want) (code = 99, made = (call), expect(#call, code, want), expect(#call " returns an object", made != NULL, (want) == 0))

static int checks;
static cl_context c, other;
static cl_device_id d;
static cl_command_queue q, untimed;
static cl_mem m, shown, given, hidden;
static cl_program g;
static cl_int code;
static void *made;

enum { SIZE = 4096 };
static const size_t zero[3], one[3] = {1, 1, 1};

static void expect(const char *what, long got, long want)
{
	checks++;
	if (got != want)
		printf("%s: %ld, want %ld\n", what, got, want);
}

static cl_program source(const char *text)
{
	cl_program p = clCreateProgramWithSource(c, 1, &text, NULL, &code);

	expect("source", code, 0);
	return p;
}

static void CL_CALLBACK built(cl_program p, void *data)
{
	(void)p;
	(void)data;
}

static void programs(void)
{
	static const char *name = "a.h", *text = "__kernel void f(__global int *a) { a[0] = 1; }";
	const char *none[] = {text, NULL};
	cl_device_id wrong = NULL;
	cl_program list[2] = {source(text), source("int other(void) { return 1; }")}, nothing = NULL, whole = source(text);
	char buffer[8];
	size_t size;

	MADE(clCreateProgramWithSource(c, 0, none, NULL, &code), CL_INVALID_VALUE);
	MADE(clCreateProgramWithSource(c, 1, NULL, NULL, &code), CL_INVALID_VALUE);
	CHECK(clBuildProgram(whole, 1, NULL, "", NULL, NULL), CL_INVALID_VALUE);
	CHECK(clBuildProgram(whole, 0, &d, "", NULL, NULL), CL_INVALID_VALUE);
	CHECK(clBuildProgram(whole, 1, &d, "", NULL, buffer), CL_INVALID_VALUE);
	CHECK(clBuildProgram(whole, 1, &wrong, "", NULL, NULL), CL_INVALID_DEVICE);
	CHECK(clBuildProgram(whole, 1, &d, "-no-such-option", NULL, NULL), CL_INVALID_BUILD_OPTIONS);
	MADE(clCreateKernel(list[0], "f", &code), CL_INVALID_PROGRAM_EXECUTABLE);
	CHECK(clCompileProgram(list[0], 1, &d, "", 1, NULL, NULL, NULL, NULL), CL_INVALID_VALUE);
	CHECK(clCompileProgram(list[0], 1, &d, "", 0, &list[1], &name, NULL, NULL), CL_INVALID_VALUE);
	CHECK(clCompileProgram(list[0], 1, &d, "", 1, &list[1], NULL, NULL, NULL), CL_INVALID_VALUE);
	CHECK(clCompileProgram(list[0], 1, &d, "", 0, NULL, NULL, NULL, buffer), CL_INVALID_VALUE);
	CHECK(clCompileProgram(list[0], 1, &d, "-no-such-option", 0, NULL, NULL, NULL, NULL), CL_INVALID_COMPILER_OPTIONS);
	MADE(clLinkProgram(c, 1, &d, "", 2, list, NULL, NULL, &code), CL_INVALID_OPERATION);
	CHECK(clCompileProgram(list[0], 1, &d, "", 0, NULL, NULL, NULL, NULL), CL_SUCCESS);
	MADE(clCreateKernel(list[0], "f", &code), CL_INVALID_PROGRAM_EXECUTABLE);
	CHECK(clCreateKernelsInProgram(list[0], 0, NULL, NULL), CL_INVALID_PROGRAM_EXECUTABLE);
	CHECK(clGetProgramInfo(list[0], CL_PROGRAM_NUM_KERNELS, sizeof size, &size, NULL), CL_INVALID_PROGRAM_EXECUTABLE);
	CHECK(clGetProgramInfo(list[0], CL_PROGRAM_KERNEL_NAMES, 0, NULL, &size), CL_INVALID_PROGRAM_EXECUTABLE);
	MADE(clLinkProgram(c, 1, &d, "", 0, list, NULL, NULL, &code), CL_INVALID_VALUE);
	MADE(clLinkProgram(c, 1, &d, "", 1, NULL, NULL, NULL, &code), CL_INVALID_VALUE);
	MADE(clLinkProgram(c, 0, NULL, "", 0, NULL, NULL, NULL, &code), CL_INVALID_VALUE);
	MADE(clLinkProgram(c, 1, &d, "", 1, &nothing, NULL, NULL, &code), CL_INVALID_PROGRAM);
	MADE(clLinkProgram(c, 1, NULL, "", 1, list, NULL, NULL, &code), CL_INVALID_VALUE);
	MADE(clLinkProgram(c, 1, &d, "", 1, list, NULL, buffer, &code), CL_INVALID_VALUE);
	MADE(clLinkProgram(c, 1, &wrong, "", 1, list, NULL, NULL, &code), CL_INVALID_DEVICE);
	MADE(clLinkProgram(NULL, 1, &d, "", 1, list, NULL, NULL, &code), CL_INVALID_CONTEXT);
	CHECK(clBuildProgram(whole, 1, &d, "-DA -I", NULL, NULL), CL_INVALID_BUILD_OPTIONS);
	CHECK(clCompileProgram(whole, 1, &d, "-D ", 0, NULL, NULL, NULL, NULL), CL_INVALID_COMPILER_OPTIONS);
	MADE(clLinkProgram(c, 1, &d, "-no-such-option", 1, list, NULL, NULL, &code), CL_INVALID_LINKER_OPTIONS);
	CHECK(clBuildProgram(whole, 1, &d, "", built, buffer), CL_SUCCESS);
	CHECK(clGetProgramBuildInfo(g, wrong, CL_PROGRAM_BUILD_STATUS, 0, NULL, &size), CL_INVALID_DEVICE);
	CHECK(clGetProgramBuildInfo(g, d, 0x1111, 0, NULL, &size), CL_INVALID_VALUE);
	CHECK(clGetProgramInfo(g, 0x1111, 0, NULL, &size), CL_INVALID_VALUE);
	CHECK(clGetProgramInfo(g, CL_PROGRAM_SOURCE, 1, buffer, &size), CL_INVALID_VALUE);
	MADE(clCreateKernel(g, "none", &code), CL_INVALID_KERNEL_NAME);
	MADE(clCreateKernel(g, NULL, &code), CL_INVALID_VALUE);
	cl_kernel k;
	CHECK(clCreateKernelsInProgram(g, 1, &k, NULL), CL_INVALID_VALUE);
}

static void kernels(void)
{
	cl_kernel f = clCreateKernel(g, "f", &code), l = clCreateKernel(g, "l", &code), s = clCreateKernel(g, "s", &code), i = clCreateKernel(g, "i", &code),
		  k = clCreateKernel(g, "k", &code);
	const cl_image_format format = {CL_RGBA, CL_UNSIGNED_INT8};
	const cl_image_desc square = {.image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = 4, .image_height = 4};
	cl_mem image = clCreateImage(c, CL_MEM_WRITE_ONLY, &format, &square, NULL, &code);
	cl_command_queue foreign = clCreateCommandQueueWithProperties(other, d, NULL, &code);
	const size_t big[3] = {SIZE_MAX, 1, 1}, some[3] = {64, 1, 1}, three[3] = {3, 1, 1}, none[3] = {0, 1, 1}, two[3] = {2, 1, 1};
	cl_long v = 0;
	cl_event e = NULL;
	size_t size;

	CHECK(clSetKernelArg(f, 9, sizeof m, &m), CL_INVALID_ARG_INDEX);
	CHECK(clSetKernelArg(f, 0, 4, &m), CL_INVALID_ARG_SIZE);
	CHECK(clSetKernelArg(f, 1, sizeof v, &v), CL_INVALID_ARG_SIZE);
	CHECK(clSetKernelArg(f, 1, 4, NULL), CL_INVALID_ARG_VALUE);
	CHECK(clSetKernelArg(l, 1, 0, NULL), CL_INVALID_ARG_SIZE);
	CHECK(clSetKernelArg(l, 1, 64, &v), CL_INVALID_ARG_VALUE);
	CHECK(clSetKernelArg(s, 1, sizeof m, &m), CL_INVALID_SAMPLER);
	CHECK(clSetKernelArg(s, 1, 4, &m), CL_INVALID_ARG_SIZE);
	CHECK(clSetKernelArg(i, 0, sizeof m, &m), CL_INVALID_MEM_OBJECT);
	CHECK(clSetKernelArg(i, 0, sizeof image, &image), CL_INVALID_ARG_VALUE);
	CHECK(clEnqueueNDRangeKernel(q, f, 1, NULL, some, NULL, 0, NULL, NULL), CL_INVALID_KERNEL_ARGS);
	CHECK(clSetKernelArg(f, 0, sizeof m, &m), CL_SUCCESS);
	CHECK(clSetKernelArg(f, 1, 4, &v), CL_SUCCESS);
	CHECK(clSetKernelArg(k, 0, sizeof m, &m), CL_SUCCESS);
	CHECK(clEnqueueNDRangeKernel(q, f, 0, NULL, some, NULL, 0, NULL, NULL), CL_INVALID_WORK_DIMENSION);
	CHECK(clEnqueueNDRangeKernel(q, f, 4, NULL, some, NULL, 0, NULL, NULL), CL_INVALID_WORK_DIMENSION);
	CHECK(clEnqueueNDRangeKernel(foreign, f, 1, NULL, some, NULL, 0, NULL, NULL), CL_INVALID_CONTEXT);
	CHECK(clEnqueueNDRangeKernel(q, f, 1, big, some, NULL, 0, NULL, NULL), CL_INVALID_GLOBAL_OFFSET);
	CHECK(clEnqueueNDRangeKernel(q, f, 1, NULL, some, none, 0, NULL, NULL), CL_INVALID_WORK_GROUP_SIZE);
	CHECK(clEnqueueNDRangeKernel(q, f, 1, NULL, some, three, 0, NULL, NULL), CL_INVALID_WORK_GROUP_SIZE);
	CHECK(clEnqueueNDRangeKernel(q, k, 1, NULL, some, two, 0, NULL, NULL), CL_INVALID_WORK_GROUP_SIZE);
	CHECK(clEnqueueNDRangeKernel(q, f, 1, NULL, some, NULL, 1, NULL, NULL), CL_INVALID_EVENT_WAIT_LIST);
	CHECK(clEnqueueNDRangeKernel(q, f, 1, NULL, some, NULL, 0, &e, NULL), CL_INVALID_EVENT_WAIT_LIST);
	CHECK(clEnqueueNDRangeKernel(q, f, 1, NULL, some, NULL, 1, &e, NULL), CL_INVALID_EVENT_WAIT_LIST);
	CHECK(clGetKernelInfo(f, 0x1111, 0, NULL, &size), CL_INVALID_VALUE);
	CHECK(clGetKernelArgInfo(f, 9, CL_KERNEL_ARG_NAME, 0, NULL, &size), CL_INVALID_ARG_INDEX);
	CHECK(clGetKernelArgInfo(f, 0, CL_KERNEL_ARG_NAME, 0, NULL, &size), CL_KERNEL_ARG_INFO_NOT_AVAILABLE);
	CHECK(clGetKernelWorkGroupInfo(f, (cl_device_id)q, CL_KERNEL_WORK_GROUP_SIZE, 0, NULL, &size), CL_INVALID_DEVICE);
	CHECK(clGetKernelWorkGroupInfo(f, d, 0x1111, 0, NULL, &size), CL_INVALID_VALUE);
	CHECK(clGetKernelWorkGroupInfo(f, d, CL_KERNEL_GLOBAL_WORK_SIZE, 0, NULL, &size), CL_INVALID_VALUE);
	MADE(clCloneKernel(NULL, &code), CL_INVALID_KERNEL);
	CHECK(clFinish(q), CL_SUCCESS);
}

static void buffers(void)
{
	static unsigned char bytes[SIZE];
	const cl_buffer_region part = {0, 64}, outside = {SIZE, 64}, empty = {0, 0}, near = {1, 64};
	const cl_mem_properties unknown[] = {0x1111, 1, 0};
	const cl_mem_flags access = CL_MEM_READ_ONLY | CL_MEM_WRITE_ONLY, host = CL_MEM_HOST_READ_ONLY | CL_MEM_HOST_WRITE_ONLY;
	cl_mem foreign = clCreateBuffer(other, 0, SIZE, NULL, &code), read = clCreateBuffer(c, CL_MEM_READ_ONLY, SIZE, NULL, &code);
	cl_mem sub = clCreateSubBuffer(m, 0, CL_BUFFER_CREATE_TYPE_REGION, &part, &code);
	cl_ulong most;
	const size_t four[3] = {4, 4, 1};
	size_t size;

	clGetDeviceInfo(d, CL_DEVICE_MAX_MEM_ALLOC_SIZE, sizeof most, &most, NULL);
	MADE(clCreateBuffer(c, access, 64, NULL, &code), CL_INVALID_VALUE);
	MADE(clCreateBuffer(c, host, 64, NULL, &code), CL_INVALID_VALUE);
	MADE(clCreateBuffer(c, CL_MEM_READ_WRITE | CL_MEM_READ_ONLY, 64, NULL, &code), CL_INVALID_VALUE);
	MADE(clCreateBuffer(c, CL_MEM_USE_HOST_PTR | CL_MEM_ALLOC_HOST_PTR, 64, bytes, &code), CL_INVALID_VALUE);
	MADE(clCreateBuffer(c, CL_MEM_USE_HOST_PTR | CL_MEM_COPY_HOST_PTR, 64, bytes, &code), CL_INVALID_VALUE);
	MADE(clCreateBuffer(c, (cl_mem_flags)1 << 40, 64, NULL, &code), CL_INVALID_VALUE);
	MADE(clCreateBuffer(c, 0, 0, NULL, &code), CL_INVALID_BUFFER_SIZE);
	MADE(clCreateBuffer(c, 0, most + 1, NULL, &code), CL_INVALID_BUFFER_SIZE);
	MADE(clCreateBuffer(c, 0, 64, bytes, &code), CL_INVALID_HOST_PTR);
	MADE(clCreateBuffer(c, CL_MEM_USE_HOST_PTR, 64, NULL, &code), CL_INVALID_HOST_PTR);
	MADE(clCreateBuffer(c, CL_MEM_COPY_HOST_PTR, 64, NULL, &code), CL_INVALID_HOST_PTR);
	MADE(clCreateBufferWithProperties(c, unknown, 0, 64, NULL, &code), CL_INVALID_PROPERTY);
	MADE(clCreateSubBuffer(m, 0, 0x1111, &part, &code), CL_INVALID_VALUE);
	MADE(clCreateSubBuffer(m, 0, CL_BUFFER_CREATE_TYPE_REGION, NULL, &code), CL_INVALID_VALUE);
	MADE(clCreateSubBuffer(m, 0, CL_BUFFER_CREATE_TYPE_REGION, &outside, &code), CL_INVALID_VALUE);
	MADE(clCreateSubBuffer(m, 0, CL_BUFFER_CREATE_TYPE_REGION, &empty, &code), CL_INVALID_BUFFER_SIZE);
	MADE(clCreateSubBuffer(m, 0, CL_BUFFER_CREATE_TYPE_REGION, &near, &code), CL_MISALIGNED_SUB_BUFFER_OFFSET);
	MADE(clCreateSubBuffer(m, access, CL_BUFFER_CREATE_TYPE_REGION, &part, &code), CL_INVALID_VALUE);
	MADE(clCreateSubBuffer(m, CL_MEM_COPY_HOST_PTR, CL_BUFFER_CREATE_TYPE_REGION, &part, &code), CL_INVALID_VALUE);
	MADE(clCreateSubBuffer(m, CL_MEM_USE_HOST_PTR, CL_BUFFER_CREATE_TYPE_REGION, &part, &code), CL_INVALID_VALUE);
	MADE(clCreateSubBuffer(m, CL_MEM_ALLOC_HOST_PTR, CL_BUFFER_CREATE_TYPE_REGION, &part, &code), CL_INVALID_VALUE);
	MADE(clCreateSubBuffer(read, CL_MEM_READ_WRITE, CL_BUFFER_CREATE_TYPE_REGION, &part, &code), CL_INVALID_VALUE);
	MADE(clCreateSubBuffer(read, CL_MEM_WRITE_ONLY, CL_BUFFER_CREATE_TYPE_REGION, &part, &code), CL_INVALID_VALUE);
	MADE(clCreateSubBuffer(shown, CL_MEM_HOST_WRITE_ONLY, CL_BUFFER_CREATE_TYPE_REGION, &part, &code), CL_INVALID_VALUE);
	MADE(clCreateSubBuffer(given, CL_MEM_HOST_READ_ONLY, CL_BUFFER_CREATE_TYPE_REGION, &part, &code), CL_INVALID_VALUE);
	MADE(clCreateSubBuffer(hidden, CL_MEM_HOST_READ_ONLY, CL_BUFFER_CREATE_TYPE_REGION, &part, &code), CL_INVALID_VALUE);
	MADE(clCreateSubBuffer(sub, 0, CL_BUFFER_CREATE_TYPE_REGION, &part, &code), CL_INVALID_MEM_OBJECT);
	CHECK(clGetMemObjectInfo(m, 0x1111, 0, NULL, &size), CL_INVALID_VALUE);
	CHECK(clGetImageInfo(m, CL_IMAGE_WIDTH, 0, NULL, &size), CL_INVALID_MEM_OBJECT);
	CHECK(clSetMemObjectDestructorCallback(m, NULL, NULL), CL_INVALID_VALUE);

	CHECK(clEnqueueReadBuffer(q, foreign, CL_TRUE, 0, 4, bytes, 0, NULL, NULL), CL_INVALID_CONTEXT);
	CHECK(clEnqueueReadBuffer(q, m, CL_TRUE, SIZE - 3, 4, bytes, 0, NULL, NULL), CL_INVALID_VALUE);
	CHECK(clEnqueueReadBuffer(q, m, CL_TRUE, 0, 4, NULL, 0, NULL, NULL), CL_INVALID_VALUE);
	CHECK(clEnqueueReadBuffer(q, given, CL_TRUE, 0, 4, bytes, 0, NULL, NULL), CL_INVALID_OPERATION);
	CHECK(clEnqueueReadBuffer(q, hidden, CL_TRUE, 0, 4, bytes, 0, NULL, NULL), CL_INVALID_OPERATION);
	CHECK(clEnqueueWriteBuffer(q, shown, CL_TRUE, 0, 4, bytes, 0, NULL, NULL), CL_INVALID_OPERATION);
	CHECK(clEnqueueWriteBuffer(q, hidden, CL_TRUE, 0, 4, bytes, 0, NULL, NULL), CL_INVALID_OPERATION);
	CHECK(clEnqueueReadBufferRect(q, given, CL_TRUE, zero, zero, one, 0, 0, 0, 0, bytes, 0, NULL, NULL), CL_INVALID_OPERATION);
	CHECK(clEnqueueWriteBufferRect(q, shown, CL_TRUE, zero, zero, one, 0, 0, 0, 0, bytes, 0, NULL, NULL), CL_INVALID_OPERATION);
	CHECK(clEnqueueReadBufferRect(q, m, CL_TRUE, zero, zero, zero, 0, 0, 0, 0, bytes, 0, NULL, NULL), CL_INVALID_VALUE);
	CHECK(clEnqueueReadBufferRect(q, m, CL_TRUE, zero, zero, four, 3, 0, 0, 0, bytes, 0, NULL, NULL), CL_INVALID_VALUE);
	CHECK(clEnqueueReadBufferRect(q, m, CL_TRUE, zero, zero, four, 0, 0, 3, 0, bytes, 0, NULL, NULL), CL_INVALID_VALUE);
	CHECK(clEnqueueReadBufferRect(q, m, CL_TRUE, zero, zero, four, 4, 15, 0, 0, bytes, 0, NULL, NULL), CL_INVALID_VALUE);
	CHECK(clEnqueueReadBufferRect(q, m, CL_TRUE, zero, zero, four, 4, 18, 0, 0, bytes, 0, NULL, NULL), CL_INVALID_VALUE);
	CHECK(clEnqueueReadBufferRect(q, m, CL_TRUE, zero, zero, four, SIZE, 0, 0, 0, bytes, 0, NULL, NULL), CL_INVALID_VALUE);
	CHECK(clEnqueueReadBufferRect(q, m, CL_TRUE, zero, zero, four, 0, 0, 0, 0, NULL, 0, NULL, NULL), CL_INVALID_VALUE);
	CHECK(clEnqueueFillBuffer(q, m, NULL, 4, 0, 64, 0, NULL, NULL), CL_INVALID_VALUE);
	CHECK(clEnqueueFillBuffer(q, m, bytes, 0, 0, 64, 0, NULL, NULL), CL_INVALID_VALUE);
	CHECK(clEnqueueFillBuffer(q, m, bytes, 3, 0, 63, 0, NULL, NULL), CL_INVALID_VALUE);
	CHECK(clEnqueueFillBuffer(q, m, bytes, 256, 0, 256, 0, NULL, NULL), CL_INVALID_VALUE);
	CHECK(clEnqueueFillBuffer(q, m, bytes, 4, 2, 64, 0, NULL, NULL), CL_INVALID_VALUE);
	CHECK(clEnqueueFillBuffer(q, m, bytes, 4, 0, 62, 0, NULL, NULL), CL_INVALID_VALUE);
	CHECK(clEnqueueFillBuffer(q, m, bytes, 4, SIZE, 4, 0, NULL, NULL), CL_INVALID_VALUE);
	CHECK(clEnqueueFillBuffer(q, foreign, bytes, 4, 0, 4, 0, NULL, NULL), CL_INVALID_CONTEXT);
	CHECK(clEnqueueCopyBuffer(q, m, foreign, 0, 0, 4, 0, NULL, NULL), CL_INVALID_CONTEXT);
	CHECK(clEnqueueCopyBuffer(q, m, shown, SIZE - 3, 0, 4, 0, NULL, NULL), CL_INVALID_VALUE);
	CHECK(clEnqueueCopyBuffer(q, m, shown, 0, SIZE - 3, 4, 0, NULL, NULL), CL_INVALID_VALUE);
	CHECK(clEnqueueCopyBuffer(q, m, shown, SIZE, SIZE, 0, 0, NULL, NULL), CL_SUCCESS);
	CHECK(clEnqueueCopyBuffer(q, m, shown, SIZE + 1, 0, 0, 0, NULL, NULL), CL_INVALID_VALUE);
	CHECK(clEnqueueCopyBuffer(q, m, shown, 0, SIZE + 1, 0, 0, NULL, NULL), CL_INVALID_VALUE);
	CHECK(clEnqueueCopyBuffer(q, m, m, 8, 8, 0, 0, NULL, NULL), CL_SUCCESS);
	CHECK(clEnqueueCopyBuffer(q, m, m, 0, 32, 64, 0, NULL, NULL), CL_MEM_COPY_OVERLAP);
	CHECK(clEnqueueCopyBuffer(q, m, sub, 32, 0, 64, 0, NULL, NULL), CL_MEM_COPY_OVERLAP);
	CHECK(clEnqueueCopyBufferRect(q, m, m, zero, zero, four, 0, 0, 0, 0, 0, NULL, NULL), CL_MEM_COPY_OVERLAP);
	CHECK(clEnqueueCopyBufferRect(q, m, m, zero, zero, four, 8, 0, 16, 0, 0, NULL, NULL), CL_INVALID_VALUE);
	CHECK(clEnqueueCopyBufferRect(q, m, shown, zero, zero, zero, 0, 0, 0, 0, 0, NULL, NULL), CL_INVALID_VALUE);
	CHECK(clEnqueueMigrateMemObjects(q, 0, &m, 0, 0, NULL, NULL), CL_INVALID_VALUE);
	CHECK(clEnqueueMigrateMemObjects(q, 1, NULL, 0, 0, NULL, NULL), CL_INVALID_VALUE);
	CHECK(clEnqueueMigrateMemObjects(q, 1, &m, (cl_mem_migration_flags)1 << 9, 0, NULL, NULL), CL_INVALID_VALUE);
	CHECK(clEnqueueMigrateMemObjects(q, 1, &foreign, 0, 0, NULL, NULL), CL_INVALID_CONTEXT);
	clReleaseMemObject(sub);
}

static void maps(void)
{
	void *p;

	MADE(clEnqueueMapBuffer(q, m, CL_TRUE, CL_MAP_READ, SIZE - 3, 4, 0, NULL, NULL, &code), CL_INVALID_VALUE);
	MADE(clEnqueueMapBuffer(q, m, CL_TRUE, CL_MAP_READ, 0, 0, 0, NULL, NULL, &code), CL_INVALID_VALUE);
	MADE(clEnqueueMapBuffer(q, m, CL_TRUE, (cl_map_flags)1 << 9, 0, 4, 0, NULL, NULL, &code), CL_INVALID_VALUE);
	MADE(clEnqueueMapBuffer(q, m, CL_TRUE, CL_MAP_WRITE_INVALIDATE_REGION | CL_MAP_READ, 0, 4, 0, NULL, NULL, &code), CL_INVALID_VALUE);
	MADE(clEnqueueMapBuffer(q, given, CL_TRUE, CL_MAP_READ, 0, 4, 0, NULL, NULL, &code), CL_INVALID_OPERATION);
	MADE(clEnqueueMapBuffer(q, shown, CL_TRUE, CL_MAP_WRITE, 0, 4, 0, NULL, NULL, &code), CL_INVALID_OPERATION);
	MADE(clEnqueueMapBuffer(q, hidden, CL_TRUE, CL_MAP_WRITE_INVALIDATE_REGION, 0, 4, 0, NULL, NULL, &code), CL_INVALID_OPERATION);
	CHECK(clEnqueueUnmapMemObject(q, m, &code, 0, NULL, NULL), CL_INVALID_VALUE);
	p = clEnqueueMapBuffer(q, m, CL_TRUE, CL_MAP_READ, 0, 4, 0, NULL, NULL, &code);
	expect("map", code, 0);
	CHECK(clEnqueueUnmapMemObject(q, shown, p, 0, NULL, NULL), CL_INVALID_VALUE);
	CHECK(clEnqueueUnmapMemObject(q, m, p, 0, NULL, NULL), CL_SUCCESS);
	CHECK(clEnqueueUnmapMemObject(q, m, p, 0, NULL, NULL), CL_INVALID_VALUE);
	CHECK(clFinish(q), CL_SUCCESS);
}

#include "codes_images.h"

static void CL_CALLBACK told(cl_event e, cl_int status, void *data)
{
	(void)e;
	(void)status;
	(void)data;
}

static void events(void)
{
	cl_event user = clCreateUserEvent(c, &code), foreign = clCreateUserEvent(other, &code), e, none = NULL, both[2] = {user, foreign};
	cl_ulong t;
	size_t size;

	MADE(clCreateUserEvent(NULL, &code), CL_INVALID_CONTEXT);
	CHECK(clWaitForEvents(0, &user), CL_INVALID_VALUE);
	CHECK(clWaitForEvents(1, NULL), CL_INVALID_VALUE);
	CHECK(clWaitForEvents(1, &none), CL_INVALID_EVENT);
	CHECK(clWaitForEvents(2, both), CL_INVALID_CONTEXT);
	CHECK(clSetUserEventStatus(user, CL_SUBMITTED), CL_INVALID_VALUE);
	CHECK(clSetUserEventStatus(user, CL_QUEUED), CL_INVALID_VALUE);
	CHECK(clSetEventCallback(user, CL_QUEUED, told, NULL), CL_INVALID_VALUE);
	CHECK(clSetEventCallback(user, CL_COMPLETE, NULL, NULL), CL_INVALID_VALUE);
	CHECK(clSetEventCallback(user, -1, told, NULL), CL_INVALID_VALUE);
	CHECK(clGetEventProfilingInfo(user, CL_PROFILING_COMMAND_END, sizeof t, &t, NULL), CL_PROFILING_INFO_NOT_AVAILABLE);
	CHECK(clEnqueueMarkerWithWaitList(q, 1, &foreign, NULL), CL_INVALID_CONTEXT);
	CHECK(clEnqueueMarkerWithWaitList(q, 1, NULL, NULL), CL_INVALID_EVENT_WAIT_LIST);
	CHECK(clEnqueueBarrierWithWaitList(q, 0, &user, NULL), CL_INVALID_EVENT_WAIT_LIST);
	CHECK(clEnqueueMarkerWithWaitList(q, 1, &user, &e), CL_SUCCESS);
	CHECK(clGetEventProfilingInfo(e, CL_PROFILING_COMMAND_END, sizeof t, &t, NULL), CL_PROFILING_INFO_NOT_AVAILABLE);
	CHECK(clSetUserEventStatus(e, CL_COMPLETE), CL_INVALID_EVENT);
	CHECK(clSetUserEventStatus(user, CL_COMPLETE), CL_SUCCESS);
	CHECK(clSetUserEventStatus(user, CL_COMPLETE), CL_INVALID_OPERATION);
	CHECK(clWaitForEvents(1, &e), CL_SUCCESS);
	CHECK(clGetEventProfilingInfo(e, 0x1111, sizeof t, &t, NULL), CL_INVALID_VALUE);
	CHECK(clGetEventProfilingInfo(e, CL_PROFILING_COMMAND_END, 1, &t, NULL), CL_INVALID_VALUE);
	CHECK(clGetEventInfo(e, 0x1111, 0, NULL, &size), CL_INVALID_VALUE);
	clReleaseEvent(e);
	CHECK(clEnqueueMarkerWithWaitList(untimed, 0, NULL, &e), CL_SUCCESS);
	CHECK(clFinish(untimed), CL_SUCCESS);
	CHECK(clGetEventProfilingInfo(e, CL_PROFILING_COMMAND_END, sizeof t, &t, NULL), CL_PROFILING_INFO_NOT_AVAILABLE);
}

static void contexts(cl_platform_id p)
{
	const cl_context_properties unknown[] = {CL_CONTEXT_PLATFORM, (cl_context_properties)p, 0x1111, 0, 0}, platform[] = {CL_CONTEXT_PLATFORM, (cl_context_properties)p, 0},
				    twice[] = {CL_CONTEXT_PLATFORM, (cl_context_properties)p, CL_CONTEXT_PLATFORM, (cl_context_properties)p, 0};
	const cl_queue_properties strange[] = {0x1111, 0, 0}, bits[] = {CL_QUEUE_PROPERTIES, 1 << 20, 0}, size[] = {CL_QUEUE_SIZE, 1024, 0};
	cl_device_id none = NULL;
	size_t n;
	cl_uint number;

	MADE(clCreateContext(NULL, 0, &d, NULL, NULL, &code), CL_INVALID_VALUE);
	MADE(clCreateContext(NULL, 1, NULL, NULL, NULL, &code), CL_INVALID_VALUE);
	MADE(clCreateContext(NULL, 1, &d, NULL, &n, &code), CL_INVALID_VALUE);
	MADE(clCreateContext(unknown, 1, &d, NULL, NULL, &code), CL_INVALID_PROPERTY);
	MADE(clCreateContext(twice, 1, &d, NULL, NULL, &code), CL_INVALID_PROPERTY);
	MADE(clCreateContextFromType(platform, CL_DEVICE_TYPE_ACCELERATOR, NULL, NULL, &code), CL_DEVICE_NOT_FOUND);
	MADE(clCreateContextFromType(platform, 0, NULL, NULL, &code), CL_INVALID_DEVICE_TYPE);
	MADE(clCreateContextFromType(unknown, CL_DEVICE_TYPE_ALL, NULL, NULL, &code), CL_INVALID_PROPERTY);
	MADE(clCreateContextFromType(platform, CL_DEVICE_TYPE_ALL, NULL, &n, &code), CL_INVALID_VALUE);
	CHECK(clGetContextInfo(c, 0x1111, 0, NULL, &n), CL_INVALID_VALUE);
	MADE(clCreateCommandQueueWithProperties(c, none, NULL, &code), CL_INVALID_DEVICE);
	MADE(clCreateCommandQueueWithProperties(c, d, strange, &code), CL_INVALID_VALUE);
	MADE(clCreateCommandQueueWithProperties(c, d, bits, &code), CL_INVALID_VALUE);
	MADE(clCreateCommandQueueWithProperties(c, d, size, &code), CL_INVALID_VALUE);
	CHECK(clGetCommandQueueInfo(q, 0x1111, 0, NULL, &n), CL_INVALID_VALUE);
	CHECK(clGetCommandQueueInfo(q, CL_QUEUE_SIZE, sizeof number, &number, NULL), CL_INVALID_COMMAND_QUEUE);
	CHECK(clGetDeviceInfo(d, 0x1111, 0, NULL, &n), CL_INVALID_VALUE);
	CHECK(clGetPlatformInfo(p, 0x1111, 0, NULL, &n), CL_INVALID_VALUE);
	CHECK(clGetDeviceIDs(p, CL_DEVICE_TYPE_ALL, 0, &none, NULL), CL_INVALID_VALUE);
	CHECK(clGetDeviceIDs(p, CL_DEVICE_TYPE_ALL, 0, NULL, NULL), CL_INVALID_VALUE);
	CHECK(clGetDeviceIDs(p, (cl_device_type)1 << 20, 1, &none, NULL), CL_INVALID_DEVICE_TYPE);
	CHECK(clSetContextDestructorCallback(c, NULL, NULL), CL_INVALID_VALUE);
	CHECK(clSetContextDestructorCallback(NULL, NULL, NULL), CL_INVALID_CONTEXT);
}

int main(void)
{
	const char *text = "__kernel void f(__global int *a, int v) { a[0] = v; } __kernel void l(__global int *a, __local int *b) { a[0] = b[0]; }\n"
			   "__kernel void s(__read_only image2d_t i, sampler_t s, __global uint4 *a) { a[0] = read_imageui(i, s, (int2)(0, 0)); }\n"
			   "__kernel void i(__read_only image2d_t i, __global uint4 *a) { a[0] = read_imageui(i, (int2)(0, 0)); }\n"
			   "__attribute__((reqd_work_group_size(4, 1, 1))) __kernel void k(__global int *a) { a[0] = 1; }\n";
	const cl_queue_properties timed[] = {CL_QUEUE_PROPERTIES, CL_QUEUE_PROFILING_ENABLE, 0};
	cl_platform_id p;

	if (clGetPlatformIDs(1, &p, NULL) || clGetDeviceIDs(p, CL_DEVICE_TYPE_ALL, 1, &d, NULL))
		return 1;
	c = clCreateContext(NULL, 1, &d, NULL, NULL, &code);
	other = clCreateContext(NULL, 1, &d, NULL, NULL, &code);
	q = clCreateCommandQueueWithProperties(c, d, timed, &code);
	untimed = clCreateCommandQueueWithProperties(c, d, NULL, &code);
	m = clCreateBuffer(c, 0, SIZE, NULL, &code);
	shown = clCreateBuffer(c, CL_MEM_HOST_READ_ONLY, SIZE, NULL, &code);
	given = clCreateBuffer(c, CL_MEM_HOST_WRITE_ONLY, SIZE, NULL, &code);
	hidden = clCreateBuffer(c, CL_MEM_HOST_NO_ACCESS, SIZE, NULL, &code);
	g = source(text);
	expect("build", clBuildProgram(g, 1, &d, "", NULL, NULL), 0);
	programs();
	kernels();
	buffers();
	maps();
	images();
	descriptors();
	formats();
	events();
	contexts(p);
	printf("%d checks\n", checks);
	return 0;
}
