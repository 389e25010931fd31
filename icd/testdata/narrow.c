/* An OpenCL platform that says other things than PoCL, by which it computes. As NVIDIA's, it says less
 * than it does: its kernels take work-groups of up to 16 items by their properties, and more in
 * fact. And it has what PoCL 3.1 lacks: sub-groups of 8 items, and an intermediate language, which is
 * OpenCL C with C7 and C8 for two specialization constants; floating-point atomics; and an extension that no program
 * of the tests may see; and timers of the device and the host, with a clock of the device that is an hour ahead of
 * PoCL's, in its events too. It has no memory for buffers of 12321 bytes. A write of 777
 * bytes ends once a buffer of 778 bytes is made. */
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>
#include <CL/cl_icd.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

struct _cl_platform_id {
	cl_icd_dispatch *calls;
};

enum { SUB_GROUP = 8, MOST_GROUPS = 64, FIRST_CONSTANT = 7, REFUSED = 12321, HELD = 777, LET_GO = 778,
       FLOAT_ATOMICS = 0x4231, ATOMICS = 7 };

static const cl_ulong ahead = 3600 * 1000000000ull;

static const size_t said = 16;
static void *(*address)(const char *);
static clIcdGetPlatformIDsKHR_fn platforms;
static cl_icd_dispatch pocl; /* its own calls */
static int constants[2] = {1, 2};
static cl_program with_constants;
static cl_event held; /* for which a write waits */

static cl_int give(size_t room, void *out, size_t *size, const void *value, size_t n)
{
	if (out && room < n)
		return CL_INVALID_VALUE;
	if (out)
		memcpy(out, value, n);
	if (size)
		*size = n;
	return CL_SUCCESS;
}

static cl_int CL_API_CALL narrow(cl_kernel k, cl_device_id d, cl_kernel_work_group_info what, size_t room, void *out, size_t *size)
{
	cl_int code = pocl.clGetKernelWorkGroupInfo(k, d, what, room, out, size);

	if (!code && what == CL_KERNEL_WORK_GROUP_SIZE && out)
		memcpy(out, &said, sizeof said);
	return code;
}

static cl_int CL_API_CALL device_info(cl_device_id d, cl_device_info what, size_t room, void *out, size_t *size)
{
	static const char language[] = "SPIR-V_1.0";
	static const char added[] = " cl_khr_il_program cl_ext_float_atomics cl_khr_extended_bit_ops cl_narrow_host_call";
	const cl_uint groups = MOST_GROUPS;
	const cl_bitfield atomics = ATOMICS;
	char extensions[2048] = "";

	if (what == CL_DEVICE_EXTENSIONS && !pocl.clGetDeviceInfo(d, what, sizeof extensions - sizeof added, extensions, NULL)) {
		strcat(extensions, added);
		return give(room, out, size, extensions, strlen(extensions) + 1);
	}
	if (what == FLOAT_ATOMICS)
		return give(room, out, size, &atomics, sizeof atomics);
	if (what == CL_DEVICE_MAX_NUM_SUB_GROUPS)
		return give(room, out, size, &groups, sizeof groups);
	if (what == CL_DEVICE_IL_VERSION)
		return give(room, out, size, language, sizeof language);
	return pocl.clGetDeviceInfo(d, what, room, out, size);
}

static cl_int CL_API_CALL group_info(cl_kernel k, cl_device_id d, cl_kernel_sub_group_info what, size_t n, const void *input,
					    size_t room, void *out, size_t *size)
{
	size_t value[3] = {1, 1, 1}, given[3] = {1, 1, 1};

	(void)k;
	(void)d;
	if (n > sizeof given)
		return CL_INVALID_VALUE;
	if (input)
		memcpy(given, input, n);
	switch (what) {
	case CL_KERNEL_MAX_SUB_GROUP_SIZE_FOR_NDRANGE:
		value[0] = SUB_GROUP;
		break;
	case CL_KERNEL_SUB_GROUP_COUNT_FOR_NDRANGE:
		value[0] = (given[0] * given[1] * given[2] + SUB_GROUP - 1) / SUB_GROUP;
		break;
	case CL_KERNEL_LOCAL_SIZE_FOR_SUB_GROUP_COUNT:
		value[0] = SUB_GROUP * given[0];
		return give(room, out, size, value, out ? room : sizeof value);
	case CL_KERNEL_MAX_NUM_SUB_GROUPS:
		value[0] = MOST_GROUPS;
		break;
	case CL_KERNEL_COMPILE_NUM_SUB_GROUPS:
		value[0] = 0;
		break;
	default:
		return CL_INVALID_VALUE;
	}
	return give(room, out, size, value, sizeof *value);
}

static cl_program CL_API_CALL with_il(cl_context c, const void *il, size_t n, cl_int *error)
{
	const char *source = il;

	constants[0] = 1;
	constants[1] = 2;
	with_constants = pocl.clCreateProgramWithSource(c, 1, &source, &n, error);
	return with_constants;
}

static cl_program CL_API_CALL with_source(cl_context c, cl_uint n, const char **strings, const size_t *lengths, cl_int *error)
{
	cl_program g = pocl.clCreateProgramWithSource(c, n, strings, lengths, error);

	if (g == with_constants) /* which was released */
		with_constants = NULL;
	return g;
}

static void *CL_API_CALL platform_address(cl_platform_id p, const char *name)
{
	cl_program(CL_API_CALL *il)(cl_context, const void *, size_t, cl_int *) = with_il;
	void *out;

	if (strcmp(name, "clCreateProgramWithILKHR"))
		return pocl.clGetExtensionFunctionAddressForPlatform(p, name);
	memcpy(&out, &il, sizeof out);
	return out;
}

static cl_int CL_API_CALL set_constant(cl_program g, cl_uint id, size_t n, const void *value)
{
	if (g != with_constants)
		return CL_INVALID_PROGRAM;
	if (id < FIRST_CONSTANT || id > FIRST_CONSTANT + 1)
		return CL_INVALID_SPEC_ID;
	if (!value || n != sizeof *constants)
		return CL_INVALID_VALUE;
	memcpy(&constants[id - FIRST_CONSTANT], value, n);
	return CL_SUCCESS;
}

static cl_int CL_API_CALL build(cl_program g, cl_uint n, const cl_device_id *list, const char *options,
				       void(CL_CALLBACK *notify)(cl_program, void *), void *data)
{
	char all[1024];

	if (g != with_constants)
		return pocl.clBuildProgram(g, n, list, options, notify, data);
	snprintf(all, sizeof all, "%s -DC7=%d -DC8=%d", options ? options : "", constants[0], constants[1]);
	return pocl.clBuildProgram(g, n, list, all, notify, data);
}

static cl_mem CL_API_CALL buffer(cl_context c, cl_mem_flags flags, size_t n, void *host, cl_int *error)
{
	if (n == LET_GO && held) {
		(void)pocl.clSetUserEventStatus(held, CL_COMPLETE);
		(void)pocl.clReleaseEvent(held);
		held = NULL;
	}
	if (n != REFUSED)
		return pocl.clCreateBuffer(c, flags, n, host, error);
	if (error)
		*error = CL_MEM_OBJECT_ALLOCATION_FAILURE;
	return NULL;
}

static cl_int CL_API_CALL write_buffer(cl_command_queue q, cl_mem m, cl_bool blocking, size_t offset, size_t n, const void *host,
					      cl_uint waits, const cl_event *list, cl_event *event)
{
	cl_event all[1 + 16];
	cl_context c;
	cl_int code;

	if (n != HELD || held || waits > 16 || pocl.clGetMemObjectInfo(m, CL_MEM_CONTEXT, sizeof c, &c, NULL))
		return pocl.clEnqueueWriteBuffer(q, m, blocking, offset, n, host, waits, list, event);
	held = pocl.clCreateUserEvent(c, &code);
	if (code)
		return code;
	all[0] = held;
	for (cl_uint i = 0; i < waits; i++)
		all[1 + i] = list[i];
	return pocl.clEnqueueWriteBuffer(q, m, blocking, offset, n, host, 1 + waits, all, event);
}

static cl_ulong clock_time(clockid_t clock)
{
	struct timespec t;

	(void)clock_gettime(clock, &t);
	return (cl_ulong)t.tv_sec * 1000000000 + (cl_ulong)t.tv_nsec;
}

static cl_int CL_API_CALL device_timer(cl_device_id d, cl_ulong *device, cl_ulong *host)
{
	(void)d;
	if (!device || !host)
		return CL_INVALID_VALUE;
	cl_ulong before = clock_time(CLOCK_MONOTONIC);
	*device = clock_time(CLOCK_MONOTONIC_RAW) + ahead; /* the clock of PoCL's events */
	*host = before + (clock_time(CLOCK_MONOTONIC) - before) / 2; /* a thread may rest between the clocks */
	return CL_SUCCESS;
}

static cl_int CL_API_CALL host_timer(cl_device_id d, cl_ulong *host)
{
	(void)d;
	if (!host)
		return CL_INVALID_VALUE;
	*host = clock_time(CLOCK_MONOTONIC);
	return CL_SUCCESS;
}

static cl_int CL_API_CALL times(cl_event e, cl_profiling_info what, size_t room, void *out, size_t *size)
{
	cl_int code = pocl.clGetEventProfilingInfo(e, what, room, out, size);
	cl_ulong t;

	if (code || !out)
		return code;
	memcpy(&t, out, sizeof t);
	t += ahead;
	memcpy(out, &t, sizeof t);
	return CL_SUCCESS;
}

static cl_int CL_API_CALL platform_info(cl_platform_id p, cl_platform_info what, size_t room, void *out, size_t *size)
{
	const cl_ulong resolution = 1;

	if (what == CL_PLATFORM_HOST_TIMER_RESOLUTION)
		return give(room, out, size, &resolution, sizeof resolution);
	return pocl.clGetPlatformInfo(p, what, room, out, size);
}

static int load(void)
{
	char path[256];
	FILE *f = fopen("/etc/OpenCL/vendors/pocl.icd", "r");

	if (!f)
		return -1;
	char *line = fgets(path, sizeof path, f);
	fclose(f);
	if (!line)
		return -1;
	path[strcspn(path, "\n")] = 0;
	void *library = dlopen(path, RTLD_NOW);
	void *found = library ? dlsym(library, "clGetExtensionFunctionAddress") : NULL;
	if (!found)
		return -1;
	memcpy(&address, &found, sizeof address);
	found = address("clIcdGetPlatformIDsKHR");
	memcpy(&platforms, &found, sizeof platforms);
	return platforms ? 0 : -1;
}

/* narrowed puts our calls into the table of PoCL's objects. */
static void narrowed(cl_icd_dispatch *calls)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), from = (size_t)calls / page * page;

	if (calls->clGetKernelWorkGroupInfo == narrow || mprotect((void *)from, (size_t)(calls + 1) - from, PROT_READ | PROT_WRITE))
		return;
	pocl = *calls;
	calls->clGetKernelWorkGroupInfo = narrow;
	calls->clGetPlatformInfo = platform_info;
	calls->clGetDeviceInfo = device_info;
	calls->clGetDeviceAndHostTimer = device_timer;
	calls->clGetHostTimer = host_timer;
	calls->clGetEventProfilingInfo = times;
	calls->clGetKernelSubGroupInfo = group_info;
	calls->clCreateProgramWithIL = with_il;
	calls->clGetExtensionFunctionAddressForPlatform = platform_address;
	calls->clCreateProgramWithSource = with_source;
	calls->clSetProgramSpecializationConstant = set_constant;
	calls->clBuildProgram = build;
	calls->clCreateBuffer = buffer;
	calls->clEnqueueWriteBuffer = write_buffer;
}

static cl_int CL_API_CALL get_platforms(cl_uint room, cl_platform_id *out, cl_uint *n)
{
	cl_int code = platforms(room, out, n);

	if (!code && out && room)
		narrowed(out[0]->calls);
	return code;
}

EXPORT cl_int CL_API_CALL clGetPlatformInfo(cl_platform_id p, cl_platform_info what, size_t room, void *out, size_t *size)
{
	return p->calls->clGetPlatformInfo(p, what, room, out, size);
}

EXPORT void *CL_API_CALL clGetExtensionFunctionAddress(const char *name)
{
	clIcdGetPlatformIDsKHR_fn ours = get_platforms;
	void *out;

	if (!address && load())
		return NULL;
	if (strcmp(name, "clIcdGetPlatformIDsKHR"))
		return address(name);
	memcpy(&out, &ours, sizeof out);
	return out;
}
