/* The answers of a device of OpenCL 3.0 about the features that it does not have, and to
 * every query that the standard requires. The program prints the wrong ones, and a count. */
#define CL_TARGET_OPENCL_VERSION 300
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#define CL_USE_DEPRECATED_OPENCL_2_2_APIS
#include <CL/cl.h>
#include <CL/cl_ext.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(call, want) expect(#call, (call), want)
/* MADE checks a call that returns an object: none, with a code. */
#define MADE(call, want) (made = (call), expect(#call, made ? 0 : code, want))

static int checks;

static void expect(const char *what, long got, long want)
{
	checks++;
	if (got != want)
		printf("%s: %ld, want %ld\n", what, got, want);
}

enum { ANY = -1, TEXT = 0 };

/* query is a query with the size of its value, TEXT or ANY for one of its own size, and the value of an
 * absent feature, or ANY. */
struct query {
	cl_device_info param;
	int size;
	long value;
};

#define UINT sizeof(cl_uint)
#define LONG sizeof(cl_ulong)
#define SIZE sizeof(size_t)

static const struct query queries[] = {
	{CL_DEVICE_TYPE, LONG, ANY}, {CL_DEVICE_VENDOR_ID, UINT, ANY}, {CL_DEVICE_MAX_COMPUTE_UNITS, UINT, ANY},
	{CL_DEVICE_MAX_WORK_ITEM_DIMENSIONS, UINT, ANY}, {CL_DEVICE_MAX_WORK_ITEM_SIZES, 3 * SIZE, ANY}, {CL_DEVICE_MAX_WORK_GROUP_SIZE, SIZE, ANY},
	{CL_DEVICE_PREFERRED_VECTOR_WIDTH_CHAR, UINT, ANY}, {CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT, UINT, ANY},
	{CL_DEVICE_MAX_CLOCK_FREQUENCY, UINT, ANY}, {CL_DEVICE_ADDRESS_BITS, UINT, ANY}, {CL_DEVICE_MAX_MEM_ALLOC_SIZE, LONG, ANY},
	{CL_DEVICE_IMAGE_SUPPORT, UINT, ANY}, {CL_DEVICE_MAX_READ_IMAGE_ARGS, UINT, ANY}, {CL_DEVICE_MAX_WRITE_IMAGE_ARGS, UINT, ANY},
	{CL_DEVICE_MAX_READ_WRITE_IMAGE_ARGS, UINT, ANY}, {CL_DEVICE_IL_VERSION, TEXT, ANY}, {CL_DEVICE_ILS_WITH_VERSION, ANY, ANY},
	{CL_DEVICE_IMAGE2D_MAX_WIDTH, SIZE, ANY}, {CL_DEVICE_IMAGE3D_MAX_DEPTH, SIZE, ANY}, {CL_DEVICE_IMAGE_MAX_BUFFER_SIZE, SIZE, ANY},
	{CL_DEVICE_IMAGE_MAX_ARRAY_SIZE, SIZE, ANY}, {CL_DEVICE_MAX_SAMPLERS, UINT, ANY}, {CL_DEVICE_IMAGE_PITCH_ALIGNMENT, UINT, ANY},
	{CL_DEVICE_IMAGE_BASE_ADDRESS_ALIGNMENT, UINT, ANY}, {CL_DEVICE_MAX_PARAMETER_SIZE, SIZE, ANY}, {CL_DEVICE_MEM_BASE_ADDR_ALIGN, UINT, ANY},
	{CL_DEVICE_SINGLE_FP_CONFIG, LONG, ANY}, {CL_DEVICE_DOUBLE_FP_CONFIG, LONG, ANY}, {CL_DEVICE_GLOBAL_MEM_CACHE_TYPE, UINT, ANY},
	{CL_DEVICE_GLOBAL_MEM_CACHELINE_SIZE, UINT, ANY}, {CL_DEVICE_GLOBAL_MEM_CACHE_SIZE, LONG, ANY}, {CL_DEVICE_GLOBAL_MEM_SIZE, LONG, ANY},
	{CL_DEVICE_MAX_CONSTANT_BUFFER_SIZE, LONG, ANY}, {CL_DEVICE_MAX_CONSTANT_ARGS, UINT, ANY}, {CL_DEVICE_MAX_GLOBAL_VARIABLE_SIZE, SIZE, ANY},
	{CL_DEVICE_GLOBAL_VARIABLE_PREFERRED_TOTAL_SIZE, SIZE, ANY}, {CL_DEVICE_LOCAL_MEM_TYPE, UINT, ANY}, {CL_DEVICE_LOCAL_MEM_SIZE, LONG, ANY},
	{CL_DEVICE_ERROR_CORRECTION_SUPPORT, UINT, ANY}, {CL_DEVICE_PROFILING_TIMER_RESOLUTION, SIZE, ANY}, {CL_DEVICE_ENDIAN_LITTLE, UINT, ANY},
	{CL_DEVICE_AVAILABLE, UINT, 1}, {CL_DEVICE_COMPILER_AVAILABLE, UINT, 1}, {CL_DEVICE_LINKER_AVAILABLE, UINT, 1},
	{CL_DEVICE_NAME, TEXT, ANY}, {CL_DEVICE_VENDOR, TEXT, ANY}, {CL_DRIVER_VERSION, TEXT, ANY}, {CL_DEVICE_PROFILE, TEXT, ANY},
	{CL_DEVICE_VERSION, TEXT, ANY}, {CL_DEVICE_NUMERIC_VERSION, UINT, ANY}, {CL_DEVICE_OPENCL_C_VERSION, TEXT, ANY},
	{CL_DEVICE_OPENCL_C_ALL_VERSIONS, ANY, ANY}, {CL_DEVICE_OPENCL_C_FEATURES, ANY, ANY}, {CL_DEVICE_EXTENSIONS, TEXT, ANY},
	{CL_DEVICE_EXTENSIONS_WITH_VERSION, ANY, ANY}, {CL_DEVICE_PRINTF_BUFFER_SIZE, SIZE, ANY}, {CL_DEVICE_PREFERRED_INTEROP_USER_SYNC, UINT, ANY},
	{CL_DEVICE_REFERENCE_COUNT, UINT, 1}, {CL_DEVICE_ATOMIC_MEMORY_CAPABILITIES, LONG, ANY}, {CL_DEVICE_ATOMIC_FENCE_CAPABILITIES, LONG, ANY},
	{CL_DEVICE_NON_UNIFORM_WORK_GROUP_SUPPORT, UINT, ANY}, {CL_DEVICE_WORK_GROUP_COLLECTIVE_FUNCTIONS_SUPPORT, UINT, ANY},
	{CL_DEVICE_GENERIC_ADDRESS_SPACE_SUPPORT, UINT, ANY}, {CL_DEVICE_PREFERRED_PLATFORM_ATOMIC_ALIGNMENT, UINT, ANY},
	{CL_DEVICE_PREFERRED_GLOBAL_ATOMIC_ALIGNMENT, UINT, ANY}, {CL_DEVICE_PREFERRED_LOCAL_ATOMIC_ALIGNMENT, UINT, ANY},
	{CL_DEVICE_LATEST_CONFORMANCE_VERSION_PASSED, TEXT, ANY}, {CL_DEVICE_PREFERRED_WORK_GROUP_SIZE_MULTIPLE, SIZE, ANY},
	{CL_DEVICE_QUEUE_ON_HOST_PROPERTIES, LONG, ANY}, {CL_DEVICE_EXECUTION_CAPABILITIES, LONG, CL_EXEC_KERNEL},
	/* Absent. */
	{CL_DEVICE_SVM_CAPABILITIES, LONG, CL_DEVICE_SVM_COARSE_GRAIN_BUFFER}, {CL_DEVICE_DEVICE_ENQUEUE_CAPABILITIES, LONG, 0}, {CL_DEVICE_QUEUE_ON_DEVICE_PROPERTIES, LONG, 0},
	{CL_DEVICE_QUEUE_ON_DEVICE_PREFERRED_SIZE, UINT, 0}, {CL_DEVICE_QUEUE_ON_DEVICE_MAX_SIZE, UINT, 0},
	{CL_DEVICE_MAX_ON_DEVICE_QUEUES, UINT, 0}, {CL_DEVICE_MAX_ON_DEVICE_EVENTS, UINT, 0}, {CL_DEVICE_PIPE_SUPPORT, UINT, 0},
	{CL_DEVICE_MAX_PIPE_ARGS, UINT, 0}, {CL_DEVICE_PIPE_MAX_ACTIVE_RESERVATIONS, UINT, 0}, {CL_DEVICE_PIPE_MAX_PACKET_SIZE, UINT, 0},
	{CL_DEVICE_MAX_NUM_SUB_GROUPS, UINT, 0}, {CL_DEVICE_SUB_GROUP_INDEPENDENT_FORWARD_PROGRESS, UINT, 0},
	{CL_DEVICE_BUILT_IN_KERNELS, TEXT, ANY}, {CL_DEVICE_BUILT_IN_KERNELS_WITH_VERSION, ANY, ANY}, {CL_DEVICE_PARENT_DEVICE, SIZE, 0},
	{CL_DEVICE_PARTITION_MAX_SUB_DEVICES, UINT, 0}, {CL_DEVICE_PARTITION_PROPERTIES, SIZE, 0}, {CL_DEVICE_PARTITION_AFFINITY_DOMAIN, LONG, 0},
	{CL_DEVICE_PARTITION_TYPE, SIZE, 0},
};

static void ask(cl_device_id d)
{
	for (size_t i = 0; i < sizeof queries / sizeof *queries; i++) {
		const struct query *q = &queries[i];
		static char value[64 << 10];
		char name[64];
		size_t size = 0;
		long number = 0;

		snprintf(name, sizeof name, "query 0x%x", q->param);
		memset(value, 0, sizeof value);
		expect(name, clGetDeviceInfo(d, q->param, sizeof value, value, &size), CL_SUCCESS);
		if (q->size > 0)
			expect(name, (long)size, q->size);
		if (q->size == TEXT)
			expect(name, (long)size, (long)strlen(value) + 1);
		memcpy(&number, value, sizeof number);
		if (q->value != ANY)
			expect(name, number, q->value);
		if (size > 0)
			expect(name, clGetDeviceInfo(d, q->param, size - 1, value, NULL), CL_INVALID_VALUE);
		if (q->param == CL_DEVICE_OPENCL_C_FEATURES)
			for (size_t at = 0; at + sizeof(cl_name_version) <= size; at += sizeof(cl_name_version))
				for (const char **no = (const char *[]){"__opencl_c_pipes", "__opencl_c_subgroups", "__opencl_c_device_enqueue", NULL}; *no; no++)
					expect(*no, strcmp(value + at + offsetof(cl_name_version, name), *no) == 0, 0);
	}
}

static void call(cl_platform_id p, cl_device_id d)
{
	static const char *source = "__kernel void f(__global int *a) { a[0] = 1; }";
	const cl_device_partition_property parts[] = {CL_DEVICE_PARTITION_EQUALLY, 1, 0};
	const cl_queue_properties device[] = {CL_QUEUE_PROPERTIES, CL_QUEUE_ON_DEVICE | CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, 0};
	const cl_device_id twice[] = {d, d};
	char memory[64];
	const void *pointers[] = {memory};
	const cl_bool fine = CL_TRUE;
	void *made;
	cl_ulong time;
	cl_uint n;
	cl_int code = 0;

	CHECK(clGetDeviceIDs(p, 0, 1, &d, NULL), CL_INVALID_DEVICE_TYPE);
	CHECK(clCreateSubDevices(d, parts, 0, NULL, &n), CL_INVALID_VALUE);
	cl_context c = clCreateContext(NULL, 2, twice, NULL, NULL, &code);
	expect("a device that is there twice", code, CL_SUCCESS);
	cl_command_queue q = clCreateCommandQueue(c, d, 0, &code);
	cl_program g = clCreateProgramWithSource(c, 1, &source, NULL, &code);
	expect("build", clBuildProgram(g, 1, &d, "", NULL, NULL), CL_SUCCESS);
	cl_kernel k = clCreateKernel(g, "f", &code);
	cl_mem m = clCreateBuffer(c, CL_MEM_READ_WRITE, 64, NULL, &code);
	cl_bool svm = CL_TRUE;
	CHECK(clGetMemObjectInfo(m, CL_MEM_USES_SVM_POINTER, sizeof svm, &svm, NULL), CL_SUCCESS);
	expect("svm", svm, CL_FALSE);

	made = clSVMAlloc(c, CL_MEM_READ_WRITE | CL_MEM_SVM_FINE_GRAIN_BUFFER, 64, 0);
	expect("clSVMAlloc", made != NULL, 0);
	made = clSVMAlloc(c, CL_MEM_READ_WRITE | CL_MEM_SVM_ATOMICS, 64, 0);
	expect("clSVMAlloc", made != NULL, 0);
	clSVMFree(c, NULL);
	CHECK(clEnqueueSVMMap(q, CL_TRUE, CL_MAP_READ, memory, 64, 0, NULL, NULL), CL_INVALID_VALUE);
	CHECK(clEnqueueSVMUnmap(q, memory, 0, NULL, NULL), CL_INVALID_VALUE);
	CHECK(clEnqueueSVMMigrateMem(q, 1, pointers, NULL, 0, 0, NULL, NULL), CL_INVALID_VALUE);
	CHECK(clSetKernelArgSVMPointer(k, 0, memory), CL_INVALID_ARG_VALUE);
	CHECK(clSetKernelExecInfo(k, CL_KERNEL_EXEC_INFO_SVM_PTRS, sizeof pointers, pointers), CL_INVALID_VALUE);
	CHECK(clSetKernelExecInfo(k, CL_KERNEL_EXEC_INFO_SVM_FINE_GRAIN_SYSTEM, sizeof fine, &fine), CL_INVALID_OPERATION);
	MADE(clCreatePipe(c, CL_MEM_READ_WRITE, 4, 16, NULL, &code), CL_INVALID_OPERATION);
	CHECK(clGetPipeInfo(m, CL_PIPE_PACKET_SIZE, 4, &n, NULL), CL_INVALID_MEM_OBJECT);
	MADE(clCreateCommandQueueWithProperties(c, d, device, &code), CL_INVALID_QUEUE_PROPERTIES);
	CHECK(clSetDefaultDeviceCommandQueue(c, d, q), CL_INVALID_OPERATION);
	CHECK(clGetKernelSubGroupInfo(k, d, CL_KERNEL_MAX_NUM_SUB_GROUPS, 0, NULL, SIZE, &time, NULL), CL_INVALID_OPERATION);
	MADE(clCreateProgramWithBuiltInKernels(c, 1, &d, "none", &code), CL_INVALID_VALUE);
	CHECK(clEnqueueNativeKernel(q, NULL, NULL, 0, 0, NULL, NULL, 0, NULL, NULL), CL_INVALID_OPERATION);
	CHECK(clSetProgramReleaseCallback(g, NULL, NULL), CL_INVALID_OPERATION);
	CHECK(clSetProgramSpecializationConstant(g, 0, 4, &n), CL_INVALID_OPERATION);
	CHECK(clGetDeviceAndHostTimer(d, &time, &time), CL_INVALID_OPERATION);
	CHECK(clGetHostTimer(d, &time), CL_INVALID_OPERATION);
	if (!clGetDeviceInfo(d, CL_DEVICE_IL_VERSION, sizeof memory, memory, NULL) && !*memory)
		MADE(clCreateProgramWithIL(c, memory, sizeof memory, &code), CL_INVALID_OPERATION);
	clReleaseMemObject(m);
	clReleaseKernel(k);
	clReleaseProgram(g);
	clReleaseCommandQueue(q);
	clReleaseContext(c);
}

int main(void)
{
	cl_platform_id list[8];
	cl_uint platforms = 0, devices = 0;
	cl_ulong resolution = 1;

	if (clGetPlatformIDs(8, list, &platforms))
		return 1;
	for (cl_uint i = 0; i < platforms; i++) {
		cl_device_id d;
		cl_uint n = 0;
		expect("devices", clGetDeviceIDs(list[i], CL_DEVICE_TYPE_ALL, 1, &d, &n), CL_SUCCESS);
		expect("devices of a platform", n, 1);
		expect("timer", clGetPlatformInfo(list[i], CL_PLATFORM_HOST_TIMER_RESOLUTION, sizeof resolution, &resolution, NULL), CL_SUCCESS);
		expect("resolution of the host's timer", (long)resolution, 0);
		ask(d);
		call(list[i], d);
		devices += n;
	}
	printf("%u devices, %d checks\n", devices, checks);
	return 0;
}
