/* An OpenCL platform that says less than it does, as NVIDIA's: PoCL, but its kernels take
 * work-groups of up to 16 items by their properties, and more in fact. */
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>
#include <CL/cl_icd.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

struct _cl_platform_id {
	cl_icd_dispatch *calls;
};

static const size_t said = 16;
static void *(*address)(const char *);
static clIcdGetPlatformIDsKHR_fn platforms;
static cl_api_clGetKernelWorkGroupInfo group_info;

static cl_int CL_API_CALL narrow(cl_kernel k, cl_device_id d, cl_kernel_work_group_info what, size_t room, void *out, size_t *size)
{
	cl_int code = group_info(k, d, what, room, out, size);

	if (!code && what == CL_KERNEL_WORK_GROUP_SIZE && out)
		memcpy(out, &said, sizeof said);
	return code;
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
	void *pocl = dlopen(path, RTLD_NOW);
	void *found = pocl ? dlsym(pocl, "clGetExtensionFunctionAddress") : NULL;
	if (!found)
		return -1;
	memcpy(&address, &found, sizeof address);
	found = address("clIcdGetPlatformIDsKHR");
	memcpy(&platforms, &found, sizeof platforms);
	return platforms ? 0 : -1;
}

/* narrowed puts our call into the table of PoCL's objects. */
static void narrowed(cl_icd_dispatch *calls)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), from = (size_t)calls / page * page;

	if (calls->clGetKernelWorkGroupInfo == narrow)
		return;
	group_info = calls->clGetKernelWorkGroupInfo;
	if (mprotect((void *)from, (size_t)(calls + 1) - from, PROT_READ | PROT_WRITE) == 0)
		calls->clGetKernelWorkGroupInfo = narrow;
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
