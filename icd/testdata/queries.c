/* Every query of OpenCL 3.0 of objects of every kind, in several states: its code, its size and its value, with too
 * little room and with none. The program prints one line for each object and parameter that has an answer, the
 * same on every platform that works; answers that belong to a platform are left out (own). */
#define CL_TARGET_OPENCL_VERSION 300
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#include <CL/cl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROOM = 64 << 10, FIRST = 0x0900, LAST = 0x12ff };

enum kind { DEVICE, CONTEXT, QUEUE, MEM, IMAGE, PIPE, SAMPLER, PROGRAM, BUILD, KERNEL, GROUP, ARGUMENT, SUBGROUP, EVENT, TIMES };

static cl_platform_id platform;
static cl_device_id device;
static unsigned char bytes[ROOM], before[ROOM];
static int executable; /* the program of a query is */


static cl_int query(enum kind kind, const void *object, cl_uint index, cl_uint param, size_t room, void *out, size_t *size)
{
	void *o = (void *)(uintptr_t)object;

	switch (kind) { /* one line each */
	case DEVICE: return clGetDeviceInfo(o, param, room, out, size);
	case CONTEXT: return clGetContextInfo(o, param, room, out, size);
	case QUEUE: return clGetCommandQueueInfo(o, param, room, out, size);
	case MEM: return clGetMemObjectInfo(o, param, room, out, size);
	case IMAGE: return clGetImageInfo(o, param, room, out, size);
	case PIPE: return clGetPipeInfo(o, param, room, out, size);
	case SAMPLER: return clGetSamplerInfo(o, param, room, out, size);
	case PROGRAM: return clGetProgramInfo(o, param, room, out, size);
	case BUILD: return clGetProgramBuildInfo(o, device, param, room, out, size);
	case KERNEL: return clGetKernelInfo(o, param, room, out, size);
	case GROUP: return clGetKernelWorkGroupInfo(o, index ? NULL : device, param, room, out, size);
	case ARGUMENT: return clGetKernelArgInfo(o, index, param, room, out, size);
	case SUBGROUP: return clGetKernelSubGroupInfo(o, device, param, sizeof(size_t), &(size_t){index}, room, out, size);
	case EVENT: return clGetEventInfo(o, param, room, out, size);
	case TIMES: return clGetEventProfilingInfo(o, param, room, out, size);
	}
	return 99;
}

/* own reports whether an answer belongs to the platform, or differs in the pool: docs/opencl.md lists them. */
static int own(enum kind k, cl_uint p)
{
	static const cl_uint list[] = {
		CL_DEVICE_GLOBAL_MEM_SIZE, CL_DEVICE_MAX_MEM_ALLOC_SIZE, CL_DEVICE_EXTENSIONS, CL_DEVICE_EXTENSIONS_WITH_VERSION, CL_DEVICE_PARTITION_MAX_SUB_DEVICES,
		CL_DEVICE_PARTITION_PROPERTIES, CL_DEVICE_PARTITION_TYPE, CL_DEVICE_SVM_CAPABILITIES, CL_DEVICE_EXECUTION_CAPABILITIES, CL_DEVICE_HOST_UNIFIED_MEMORY,
		CL_DEVICE_BUILT_IN_KERNELS, CL_DEVICE_BUILT_IN_KERNELS_WITH_VERSION, CL_DEVICE_LATEST_CONFORMANCE_VERSION_PASSED, CL_DEVICE_DEVICE_ENQUEUE_CAPABILITIES,
		CL_PROGRAM_BINARY_SIZES, CL_PROGRAM_BINARIES,
	};

	for (size_t i = 0; i < sizeof list / sizeof *list; i++)
		if (list[i] == p)
			return 1;
	if (k == DEVICE)
		return p >= 0x1200; /* of command buffers */
	if (k == BUILD && !executable)
		return p == CL_PROGRAM_BUILD_LOG || p == CL_PROGRAM_BINARY_TYPE || p == CL_PROGRAM_BUILD_OPTIONS;
	return (k == TIMES && p < CL_PROFILING_COMMAND_QUEUED) || (k == PROGRAM && !executable && (p == CL_PROGRAM_NUM_KERNELS || p == CL_PROGRAM_KERNEL_NAMES));
}

/* hidden reports whether a value is a handle, an address or a count of references. */
static int hidden(cl_uint p)
{
	static const cl_uint list[] = {
		CL_DEVICE_PLATFORM, CL_CONTEXT_REFERENCE_COUNT, CL_CONTEXT_DEVICES, CL_QUEUE_CONTEXT, CL_QUEUE_DEVICE, CL_QUEUE_REFERENCE_COUNT,
		CL_MEM_HOST_PTR, CL_MEM_REFERENCE_COUNT, CL_MEM_CONTEXT, CL_MEM_ASSOCIATED_MEMOBJECT, CL_IMAGE_BUFFER, CL_SAMPLER_REFERENCE_COUNT, CL_SAMPLER_CONTEXT,
		CL_PROGRAM_REFERENCE_COUNT, CL_PROGRAM_CONTEXT, CL_PROGRAM_DEVICES, CL_KERNEL_REFERENCE_COUNT, CL_KERNEL_CONTEXT, CL_KERNEL_PROGRAM,
		CL_EVENT_COMMAND_QUEUE, CL_EVENT_REFERENCE_COUNT, CL_EVENT_CONTEXT, CL_CONTEXT_PROPERTIES,
	};

	for (size_t i = 0; i < sizeof list / sizeof *list; i++)
		if (list[i] == p)
			return 1;
	return 0;
}

static void hex(const unsigned char *b, size_t n)
{
	printf(" ");
	for (size_t i = 0; i < n && i < 48; i++)
		printf("%02x", b[i]);
}

/* untouched reports whether bytes behind a value are as they were. */
static int untouched(size_t from) { return !memcmp(bytes + from, before + from, ROOM - from); }

/* ask prints what every parameter of a kind of query gives; those that have no answer are counted by their codes. */
static void ask(const char *name, enum kind kind, const void *object, cl_uint index)
{
	int codes[100] = {0};

	for (cl_uint param = FIRST; param <= LAST; param++) {
		size_t size = 7777, other = 7777;
		if (own(kind, param))
			continue;
		memset(bytes, 0xa5, ROOM);
		cl_int code = query(kind, object, index, param, ROOM, bytes, &size);
		if (code) {
			codes[-code % 100]++;
			if (size != 7777 || !untouched(0))
				printf("%s %#x: %d, and a value\n", name, param, code);
			continue;
		}
		printf("%s %#x: %zu bytes", name, param, size);
		if (!hidden(param))
			hex(bytes, size);
		if (!untouched(size))
			printf(", and more");
		code = query(kind, object, index, param, 0, NULL, &other);
		if (code || other != size)
			printf(", its size: %d %zu", code, other);
		if (size && (code = query(kind, object, index, param, size, bytes, NULL)))
			printf(", without a size: %d", code);
		memset(bytes, 0xa5, ROOM);
		if (size)
			printf(", too little room: %d", query(kind, object, index, param, size - 1, bytes, NULL));
		puts(untouched(0) ? "" : ", and bytes");
	}
	for (int i = 1; i < 100; i++)
		if (codes[i])
			printf("%s: %d times %d\n", name, codes[i], -i);
}

static cl_context c;
static cl_int code;

static void program_of(const char *name, cl_program g)
{
	cl_program_binary_type type = 0;
	cl_build_status status = CL_BUILD_NONE;
	char line[64];

	clGetProgramBuildInfo(g, device, CL_PROGRAM_BUILD_STATUS, sizeof status, &status, NULL);
	clGetProgramBuildInfo(g, device, CL_PROGRAM_BINARY_TYPE, sizeof type, &type, NULL);
	executable = status == CL_BUILD_SUCCESS && type == CL_PROGRAM_BINARY_TYPE_EXECUTABLE;
	snprintf(line, sizeof line, "program %s", name);
	ask(line, PROGRAM, g, 0);
	snprintf(line, sizeof line, "build %s", name);
	ask(line, BUILD, g, 0);
}

/* kernels asks kernels of a program, and what their arguments are if the build was to describe them. */
static void kernels(cl_program g, const char *of, int described)
{
	static const char *const names[] = {"plain", "sized", "images"};
	char line[64];

	for (size_t i = 0; i < 3; i++) {
		cl_kernel k = clCreateKernel(g, names[i], &code);
		cl_uint n = 0;
		snprintf(line, sizeof line, "%s kernel %s", of, names[i]);
		ask(line, KERNEL, k, 0);
		snprintf(line, sizeof line, "%s group %s", of, names[i]);
		ask(line, GROUP, k, 0);
		snprintf(line, sizeof line, "%s group without device %s", of, names[i]);
		ask(line, GROUP, k, 1);
		clGetKernelInfo(k, CL_KERNEL_NUM_ARGS, sizeof n, &n, NULL);
		for (cl_uint a = 0; described && a <= n; a++) {
			snprintf(line, sizeof line, "%s argument %s %u", of, names[i], a);
			ask(line, ARGUMENT, k, a);
		}
		snprintf(line, sizeof line, "%s sub-group %s", of, names[i]);
		ask(line, SUBGROUP, k, 4);
		clReleaseKernel(k);
	}
}

static const char *source = "typedef struct { int a; float b; } pair;\n"
			    "__kernel void plain(__global int *a, __constant const float *b, __local volatile short *c, const int n, uint4 v, pair p, __global const pair *restrict q, float16 w, ulong z) {\n"
			    " a[get_global_id(0)] = n + c[0] + (int)b[0] + (int)v.x + p.a + q->a + (int)w.s3 + (int)z; }\n"
			    "__kernel __attribute__((reqd_work_group_size(4, 2, 1))) void sized(__global double *d, __global void *x) { d[0] = x != 0; }\n"
			    "__kernel __attribute__((work_group_size_hint(8, 1, 1))) __attribute__((vec_type_hint(float4))) void images(read_only image2d_t i, write_only image3d_t o, sampler_t s, write_only image1d_t rw,"
			    " read_only image2d_array_t ar, read_only image1d_buffer_t ib, read_only image1d_array_t ia) {}\n";

static void programs(void)
{
	static const char *broken = "__kernel void f(__global int *a) { a[0] = no_such_name; }", *whole = "__kernel void g(__global int *a) { a[0] = 2; }";

	cl_program g = clCreateProgramWithSource(c, 1, &source, NULL, &code);
	program_of("new", g);
	clBuildProgram(g, 1, &device, "-cl-kernel-arg-info -DA=1", NULL, NULL);
	program_of("built", g);
	kernels(g, "described", 1);
	clReleaseProgram(g);
	g = clCreateProgramWithSource(c, 1, &source, NULL, &code);
	clBuildProgram(g, 1, &device, NULL, NULL, NULL);
	program_of("built without options", g);
	kernels(g, "bare", 0);
	unsigned char *binary = NULL;
	size_t n = 0;
	cl_int status;
	clGetProgramInfo(g, CL_PROGRAM_BINARY_SIZES, sizeof n, &n, NULL);
	binary = malloc(n);
	clGetProgramInfo(g, CL_PROGRAM_BINARIES, sizeof binary, &binary, NULL);
	clReleaseProgram(g);
	g = clCreateProgramWithBinary(c, 1, &device, &n, (const unsigned char **)&binary, &status, &code);
	program_of("of a binary", g);
	clBuildProgram(g, 1, &device, "", NULL, NULL);
	program_of("of a built binary", g);
	kernels(g, "binary", 0);
	clReleaseProgram(g);
	free(binary);
	g = clCreateProgramWithSource(c, 1, &broken, NULL, &code);
	clBuildProgram(g, 1, &device, "-DB", NULL, NULL);
	program_of("broken", g);
	clReleaseProgram(g);
	g = clCreateProgramWithSource(c, 1, &whole, NULL, &code);
	clCompileProgram(g, 1, &device, "-DC", 0, NULL, NULL, NULL, NULL);
	program_of("compiled", g);
	cl_program l = clLinkProgram(c, 1, &device, "", 1, &g, NULL, NULL, &code);
	program_of("linked", l);
	clReleaseProgram(l);
	l = clLinkProgram(c, 1, &device, "-create-library", 1, &g, NULL, NULL, &code);
	program_of("library", l);
	clReleaseProgram(l);
	clReleaseProgram(g);
}

static void queues(void)
{
	const cl_queue_properties list[] = {CL_QUEUE_PROPERTIES, CL_QUEUE_PROFILING_ENABLE, 0}, none[] = {0};
	cl_command_queue q = clCreateCommandQueueWithProperties(c, device, list, &code), p = clCreateCommandQueueWithProperties(c, device, none, &code),
			 o = clCreateCommandQueue(c, device, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, &code);
	cl_mem m = clCreateBuffer(c, 0, 64, NULL, &code);
	cl_event e, user = clCreateUserEvent(c, &code);
	int v = 0;

	ask("queue with times", QUEUE, q, 0);
	ask("queue with a list of nothing", QUEUE, p, 0);
	ask("queue out of order", QUEUE, o, 0);
	clEnqueueFillBuffer(q, m, &v, 4, 0, 64, 0, NULL, &e);
	clWaitForEvents(1, &e);
	ask("event", EVENT, e, 0);
	clReleaseEvent(e);
	clEnqueueFillBuffer(o, m, &v, 4, 0, 64, 0, NULL, &e);
	clWaitForEvents(1, &e);
	ask("times of none", TIMES, e, 0);
	ask("user event", EVENT, user, 0);
	ask("times of a user event", TIMES, user, 0);
	clSetUserEventStatus(user, CL_COMPLETE);
	ask("user event at its end", EVENT, user, 0);
	clReleaseEvent(e);
	clReleaseEvent(user);
	clReleaseMemObject(m);
	clReleaseCommandQueue(q);
	clReleaseCommandQueue(p);
	clReleaseCommandQueue(o);
}

static void image(const char *name, const cl_image_desc *d, cl_mem_flags flags, void *host)
{
	const cl_image_format f = {CL_RGBA, CL_UNSIGNED_INT8};
	char line[64];

	cl_mem m = clCreateImage(c, flags, &f, d, host, &code);
	printf("%s: %d\n", name, code);
	if (code)
		return;
	snprintf(line, sizeof line, "mem %s", name);
	ask(line, MEM, m, 0);
	snprintf(line, sizeof line, "image %s", name);
	ask(line, IMAGE, m, 0);
	snprintf(line, sizeof line, "pipe %s", name);
	ask(line, PIPE, m, 0);
	clReleaseMemObject(m);
}

static void memory(void)
{
	static unsigned char host[1 << 16];
	const cl_buffer_region region = {1024, 512};
	const cl_mem_properties none[] = {0};

	cl_mem m = clCreateBuffer(c, CL_MEM_READ_ONLY, 4096, NULL, &code), h = clCreateBuffer(c, CL_MEM_USE_HOST_PTR | CL_MEM_HOST_READ_ONLY, 4096, host, &code),
	       w = clCreateBufferWithProperties(c, none, CL_MEM_ALLOC_HOST_PTR, 100, NULL, &code);
	cl_mem part = clCreateSubBuffer(h, 0, CL_BUFFER_CREATE_TYPE_REGION, &region, &code);
	ask("buffer", MEM, m, 0);
	ask("buffer of the program's memory", MEM, h, 0);
	ask("buffer with properties", MEM, w, 0);
	ask("part", MEM, part, 0);
	ask("pipe of a buffer", PIPE, m, 0);
	image("1d", &(cl_image_desc){.image_type = CL_MEM_OBJECT_IMAGE1D, .image_width = 10}, 0, NULL);
	image("2d", &(cl_image_desc){.image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = 10, .image_height = 7}, CL_MEM_WRITE_ONLY, NULL);
	image("3d", &(cl_image_desc){.image_type = CL_MEM_OBJECT_IMAGE3D, .image_width = 10, .image_height = 7, .image_depth = 3}, CL_MEM_READ_ONLY | CL_MEM_ALLOC_HOST_PTR, NULL);
	image("1d array", &(cl_image_desc){.image_type = CL_MEM_OBJECT_IMAGE1D_ARRAY, .image_width = 10, .image_array_size = 4}, 0, NULL);
	image("2d array", &(cl_image_desc){.image_type = CL_MEM_OBJECT_IMAGE2D_ARRAY, .image_width = 10, .image_height = 7, .image_array_size = 4}, CL_MEM_HOST_NO_ACCESS, NULL);
	image("buffer", &(cl_image_desc){.image_type = CL_MEM_OBJECT_IMAGE1D_BUFFER, .image_width = 10, .mem_object = m}, CL_MEM_READ_ONLY, NULL);
	image("pitch", &(cl_image_desc){.image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = 10, .image_height = 7, .image_row_pitch = 64}, CL_MEM_COPY_HOST_PTR, host);
	image("pitches", &(cl_image_desc){.image_type = CL_MEM_OBJECT_IMAGE3D, .image_width = 10, .image_height = 7, .image_depth = 3, .image_row_pitch = 64, .image_slice_pitch = 640}, CL_MEM_USE_HOST_PTR, host);
	image("pitches of an array", &(cl_image_desc){.image_type = CL_MEM_OBJECT_IMAGE2D_ARRAY, .image_width = 10, .image_height = 7, .image_array_size = 3, .image_row_pitch = 64, .image_slice_pitch = 640}, CL_MEM_USE_HOST_PTR, host);
	image("in a buffer", &(cl_image_desc){.image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = 16, .image_height = 7, .image_row_pitch = 128, .mem_object = m}, 0, NULL);
	image("in a part", &(cl_image_desc){.image_type = CL_MEM_OBJECT_IMAGE1D_BUFFER, .image_width = 16, .mem_object = part}, 0, NULL);
	image("with members that do not count", &(cl_image_desc){.image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = 16, .image_height = 7, .image_depth = 9, .image_array_size = 8}, 0, NULL);
	clReleaseMemObject(part);
	clReleaseMemObject(h);
	clReleaseMemObject(w);
	clReleaseMemObject(m);
}

static void samplers(void)
{
	const cl_sampler_properties list[] = {CL_SAMPLER_NORMALIZED_COORDS, CL_FALSE, CL_SAMPLER_FILTER_MODE, CL_FILTER_LINEAR, 0};

	cl_sampler s = clCreateSampler(c, CL_TRUE, CL_ADDRESS_REPEAT, CL_FILTER_NEAREST, &code);
	ask("sampler", SAMPLER, s, 0);
	clReleaseSampler(s);
	s = clCreateSamplerWithProperties(c, list, &code);
	ask("sampler with properties", SAMPLER, s, 0);
	clReleaseSampler(s);
}

static void formats(void)
{
	static const cl_mem_object_type types[] = {CL_MEM_OBJECT_IMAGE1D, CL_MEM_OBJECT_IMAGE2D, CL_MEM_OBJECT_IMAGE3D, CL_MEM_OBJECT_IMAGE1D_ARRAY,
						   CL_MEM_OBJECT_IMAGE2D_ARRAY, CL_MEM_OBJECT_IMAGE1D_BUFFER, CL_MEM_OBJECT_BUFFER, 0};
	static const cl_mem_flags flags[] = {0, CL_MEM_READ_WRITE, CL_MEM_READ_ONLY, CL_MEM_WRITE_ONLY, CL_MEM_KERNEL_READ_AND_WRITE};
	static cl_image_format list[256];

	for (size_t t = 0; t < sizeof types / sizeof *types; t++)
		for (size_t f = 0; f < sizeof flags / sizeof *flags; f++) {
			cl_uint n = 0, m = 0;
			unsigned sum = 0;
			memset(list, 0, sizeof list);
			cl_int a = clGetSupportedImageFormats(c, flags[f], types[t], 256, list, &n);
			for (cl_uint i = 0; i < n; i++)
				sum = sum * 31 + list[i].image_channel_order * 7 + list[i].image_channel_data_type;
			cl_int b = clGetSupportedImageFormats(c, flags[f], types[t], 0, NULL, &m), d = clGetSupportedImageFormats(c, flags[f], types[t], 1, list, &m),
			       e = clGetSupportedImageFormats(c, flags[f], types[t], 0, list, &m);
			printf("formats %#x %#lx: %d %u %x, %d %u, %d %d\n", types[t], (long)flags[f], a, n, sum, b, m, d, e);
		}
}

int main(void)
{
	memset(before, 0xa5, ROOM);
	if (clGetPlatformIDs(1, &platform, NULL) || clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL))
		return 1;
	const cl_context_properties list[] = {CL_CONTEXT_PLATFORM, (cl_context_properties)platform, 0}, none[] = {0};
	ask("device", DEVICE, device, 0);
	c = clCreateContext(list, 1, &device, NULL, NULL, &code);
	ask("context", CONTEXT, c, 0);
	clReleaseContext(c);
	c = clCreateContext(none, 1, &device, NULL, NULL, &code);
	ask("context with a list of nothing", CONTEXT, c, 0);
	clReleaseContext(c);
	c = clCreateContext(NULL, 1, &device, NULL, NULL, &code);
	ask("context without a list", CONTEXT, c, 0);
	queues();
	memory();
	samplers();
	formats();
	programs();
	clReleaseContext(c);
	return 0;
}
