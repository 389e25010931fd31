/* Extensions that the device of a platform with an intermediate language and floating-point atomics has:
 * their names, their queries, and the program that clCreateProgramWithILKHR makes. Argument: the file of the program. */
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>
#include <CL/cl_ext.h>
#include <stdio.h>
#include <string.h>

enum { FLOAT_ATOMICS = 0x4231 };

static void list(cl_device_id d, const char *name)
{
	char all[4096] = " ", found[64];
	cl_int code = clGetDeviceInfo(d, CL_DEVICE_EXTENSIONS, sizeof all - 2, all + 1, NULL);

	strcat(all, " ");
	snprintf(found, sizeof found, " %s ", name);
	printf("%s: %d\n", name, !code && strstr(all, found));
}

static void query(cl_device_id d, const char *name, cl_uint param)
{
	unsigned char value[64] = {0};
	size_t n = 0;
	cl_int code = clGetDeviceInfo(d, param, sizeof value, value, &n);

	printf("%s: %d, %zu bytes:", name, code, n);
	for (size_t i = 0; i < n && i < sizeof value; i++)
		printf(" %02x", value[i]);
	printf("\n");
}

static void intermediate(cl_platform_id p, cl_device_id d, const char *path)
{
	static char il[64 << 10];
	clCreateProgramWithILKHR_fn create;
	void *address = clGetExtensionFunctionAddressForPlatform(p, "clCreateProgramWithILKHR");
	FILE *f = fopen(path, "r");
	size_t n = f ? fread(il, 1, sizeof il, f) : 0;
	cl_int code;

	if (f)
		fclose(f);
	printf("the call has an address: %d\n", address != NULL);
	if (!address)
		return;
	memcpy(&create, &address, sizeof create);
	cl_context c = clCreateContext(NULL, 1, &d, NULL, NULL, &code);
	cl_program g = create(c, il, n, &code);
	printf("program: %d, ", code);
	printf("build: %d\n", clBuildProgram(g, 1, &d, "", NULL, NULL));
	clReleaseProgram(g);
	g = create(c, NULL, 0, &code);
	printf("of nothing: %d %d\n", g != NULL, code);
	clReleaseContext(c);
}

int main(int argc, char **argv)
{
	static const char *const names[] = {"cl_khr_il_program", "cl_ext_float_atomics", "cl_khr_extended_bit_ops"};
	cl_platform_id p;
	cl_device_id d;

	if (argc != 2 || clGetPlatformIDs(1, &p, NULL) || clGetDeviceIDs(p, CL_DEVICE_TYPE_ALL, 1, &d, NULL))
		return 1;
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		list(d, names[i]);
	query(d, "language", CL_DEVICE_IL_VERSION_KHR);
	query(d, "floating-point atomics", FLOAT_ATOMICS);
	intermediate(p, d, argv[1]);
	list(d, "cl_narrow_host_call");
	return 0;
}
