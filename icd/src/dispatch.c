/* The dispatch table: the driver's own calls, and refusals for pipes, sub-devices and other APIs. */
#include <string.h>

#include "calls.h"

/* A refused call that returns a code. The calling convention lets a function ignore its
 * arguments. */
static cl_int CL_API_CALL refuse(void) { return CL_INVALID_OPERATION; }

/* No device can be divided, so no list of properties is one that a device supports. */
static cl_int CL_API_CALL no_sub_device(void) { return CL_INVALID_VALUE; }

/* A refused call that returns an object, by the number of its arguments: the last one is
 * the place of the code. */
static void *no_object(cl_int *error)
{
	if (error)
		*error = CL_INVALID_OPERATION;
	return NULL;
}

typedef uintptr_t word;
static void *CL_API_CALL refuse3(word a, word b, cl_int *e) { (void)a; (void)b; return no_object(e); }
static void *CL_API_CALL refuse4(word a, word b, word c, cl_int *e) { (void)a; (void)b; (void)c; return no_object(e); }

/* No device has a built-in kernel, so no name is that of one. */
static void *CL_API_CALL no_built_in(cl_context c, cl_uint n, const cl_device_id *list, const char *names, cl_int *e)
{
	(void)names;
	if (e)
		*e = !object_is(c, KIND_CONTEXT) ? CL_INVALID_CONTEXT : CL_INVALID_VALUE;
	(void)n;
	(void)list;
	return NULL;
}

static void *CL_API_CALL refuse6(word a, word b, word c, word d, word f, cl_int *e)
{
	(void)a; (void)b; (void)c; (void)d; (void)f;
	return no_object(e);
}
static cl_int CL_API_CALL no_pipe(void) { return CL_INVALID_MEM_OBJECT; }

DXPU_EXPORT CL_API_ENTRY void *CL_API_CALL clGetExtensionFunctionAddress(const char *name);

static void *CL_API_CALL address_for_platform(cl_platform_id p, const char *name)
{
	(void)p;
	if (name && !strcmp(name, "clGetKernelSubGroupInfoKHR"))
		return (void *)dxpu_GetKernelSubGroupInfo;
	if (name && !strcmp(name, "clCreateProgramWithILKHR"))
		return (void *)dxpu_CreateProgramWithIL;
	return clGetExtensionFunctionAddress(name);
}

struct _cl_icd_dispatch dxpu_dispatch = {
#include "table.h"
};

CL_API_ENTRY DXPU_EXPORT cl_int CL_API_CALL clIcdGetPlatformIDsKHR(cl_uint room, cl_platform_id *out, cl_uint *n);

CL_API_ENTRY cl_int CL_API_CALL clIcdGetPlatformIDsKHR(cl_uint room, cl_platform_id *out, cl_uint *n)
{
	return dxpu_GetPlatformIDs(room, out, n);
}

CL_API_ENTRY void *CL_API_CALL clGetExtensionFunctionAddress(const char *name)
{
	if (name && !strcmp(name, "clIcdGetPlatformIDsKHR"))
		return (void *)clIcdGetPlatformIDsKHR;
	/* ocl-icd asks for it before it has a platform. */
	if (name && !strcmp(name, "clGetPlatformInfo"))
		return (void *)dxpu_GetPlatformInfo;
	return NULL;
}
