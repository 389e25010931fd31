/* Counts of references: those that the program holds, whatever else uses an object. The program prints the wrong
 * ones, and how many it has checked. */
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>
#include <stdio.h>

static int checks;
static cl_int code;

static void expect(const char *what, cl_uint got, cl_uint want)
{
	checks++;
	if (got != want)
		printf("%s: %u, want %u\n", what, got, want);
}

#define COUNT(call, object, param) (count = 99, call(object, param, sizeof count, &count, NULL), count)
#define CHECK(what, call, object, param, want) expect(what, COUNT(call, object, param), want)

static cl_uint count;

static void all(const char *when, cl_context c, cl_command_queue q, cl_mem m, cl_program g, cl_kernel k, cl_sampler s, cl_event e)
{
	printf("%s\n", when);
	CHECK("context", clGetContextInfo, c, CL_CONTEXT_REFERENCE_COUNT, 1);
	CHECK("queue", clGetCommandQueueInfo, q, CL_QUEUE_REFERENCE_COUNT, 1);
	CHECK("buffer", clGetMemObjectInfo, m, CL_MEM_REFERENCE_COUNT, 1);
	CHECK("program", clGetProgramInfo, g, CL_PROGRAM_REFERENCE_COUNT, 1);
	CHECK("kernel", clGetKernelInfo, k, CL_KERNEL_REFERENCE_COUNT, 1);
	CHECK("sampler", clGetSamplerInfo, s, CL_SAMPLER_REFERENCE_COUNT, 1);
	CHECK("event", clGetEventInfo, e, CL_EVENT_REFERENCE_COUNT, 1);
}

/* TWICE retains and releases an object. */
#define TWICE(what, kind, object, call, param) \
	do { \
		expect("retain of a " what, (cl_uint)clRetain##kind(object), 0); \
		CHECK(what ", retained", call, object, param, 2); \
		expect("release of a " what, (cl_uint)clRelease##kind(object), 0); \
		CHECK(what ", released", call, object, param, 1); \
	} while (0)

static void CL_CALLBACK called(cl_event e, cl_int status, void *data)
{
	(void)e;
	(void)status;
	(void)data;
}

int main(void)
{
	static const char *text = "__kernel void f(__global int *a) { a[0] = 1; }";
	const cl_buffer_region half = {0, 2048};
	const cl_image_format pixel = {CL_RGBA, CL_UNSIGNED_INT8};
	const size_t one = 1;
	cl_platform_id p;
	cl_device_id d;
	cl_event user, e, last;
	int v = 0;

	if (clGetPlatformIDs(1, &p, NULL) || clGetDeviceIDs(p, CL_DEVICE_TYPE_ALL, 1, &d, NULL))
		return 1;
	cl_context c = clCreateContext(NULL, 1, &d, NULL, NULL, &code);
	cl_command_queue q = clCreateCommandQueueWithProperties(c, d, NULL, &code);
	cl_mem m = clCreateBuffer(c, 0, 4096, NULL, &code), part = clCreateSubBuffer(m, 0, CL_BUFFER_CREATE_TYPE_REGION, &half, &code);
	const cl_image_desc line = {.image_type = CL_MEM_OBJECT_IMAGE1D_BUFFER, .image_width = 16, .mem_object = m};
	cl_mem image = clCreateImage(c, 0, &pixel, &line, NULL, &code);
	cl_program g = clCreateProgramWithSource(c, 1, &text, NULL, &code);
	clBuildProgram(g, 1, &d, "", NULL, NULL);
	cl_kernel k = clCreateKernel(g, "f", &code), clone = clCloneKernel(k, &code);
	cl_sampler s = clCreateSamplerWithProperties(c, NULL, &code);
	clSetKernelArg(k, 0, sizeof m, &m);
	user = clCreateUserEvent(c, &code);
	all("objects that use each other", c, q, m, g, k, s, user);

	clSetEventCallback(user, CL_COMPLETE, called, NULL);
	clEnqueueNDRangeKernel(q, k, 1, NULL, &one, NULL, 1, &user, &e);
	clEnqueueFillBuffer(q, m, &v, sizeof v, 0, 4096, 1, &e, NULL);
	void *map = clEnqueueMapBuffer(q, m, CL_FALSE, CL_MAP_READ, 0, 64, 0, NULL, &last, &code);
	all("behind a user event", c, q, m, g, k, s, e);
	CHECK("map", clGetEventInfo, last, CL_EVENT_REFERENCE_COUNT, 1);
	clSetUserEventStatus(user, CL_COMPLETE);
	all("in flight", c, q, m, g, k, s, user);
	clWaitForEvents(1, &last);
	clEnqueueUnmapMemObject(q, m, map, 0, NULL, NULL);
	clFinish(q);
	all("at the end", c, q, m, g, k, s, last);
	TWICE("context", Context, c, clGetContextInfo, CL_CONTEXT_REFERENCE_COUNT);
	TWICE("queue", CommandQueue, q, clGetCommandQueueInfo, CL_QUEUE_REFERENCE_COUNT);
	TWICE("buffer", MemObject, m, clGetMemObjectInfo, CL_MEM_REFERENCE_COUNT);
	TWICE("part", MemObject, part, clGetMemObjectInfo, CL_MEM_REFERENCE_COUNT);
	TWICE("image", MemObject, image, clGetMemObjectInfo, CL_MEM_REFERENCE_COUNT);
	TWICE("program", Program, g, clGetProgramInfo, CL_PROGRAM_REFERENCE_COUNT);
	TWICE("kernel", Kernel, k, clGetKernelInfo, CL_KERNEL_REFERENCE_COUNT);
	TWICE("clone", Kernel, clone, clGetKernelInfo, CL_KERNEL_REFERENCE_COUNT);
	TWICE("sampler", Sampler, s, clGetSamplerInfo, CL_SAMPLER_REFERENCE_COUNT);
	TWICE("event", Event, last, clGetEventInfo, CL_EVENT_REFERENCE_COUNT);
	TWICE("user event", Event, user, clGetEventInfo, CL_EVENT_REFERENCE_COUNT);

	/* What others use is there without a reference of the program, which then has none to give back. */
	clReleaseMemObject(m);
	clReleaseProgram(g);
	clReleaseEvent(e);
	expect("release of a buffer that is gone", clReleaseMemObject(m) == CL_INVALID_MEM_OBJECT, 1);
	expect("release of a program that is gone", clReleaseProgram(g) == CL_INVALID_PROGRAM, 1);
	cl_mem whole = NULL;
	clGetMemObjectInfo(part, CL_MEM_ASSOCIATED_MEMOBJECT, sizeof whole, &whole, NULL);
	expect("whole of a part", whole == m, 1);
	clReleaseMemObject(part);
	clReleaseMemObject(image);
	clReleaseKernel(k);
	clReleaseKernel(clone);
	clReleaseSampler(s);
	clReleaseEvent(user);
	clReleaseEvent(last);
	clReleaseCommandQueue(q);
	clReleaseContext(c);
	printf("%d checks\n", checks);
	return 0;
}
