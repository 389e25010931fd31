/* A program that includes files of its own machine, from the directory in the argument: it prints
 * the same on every platform that works. */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
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

static void file(const char *directory, const char *name, const char *text)
{
	char path[4096];

	snprintf(path, sizeof path, "%s/%s", directory, name);
	FILE *f = fopen(path, "w");
	if (!f || fputs(text, f) < 0 || fclose(f))
		exit(1);
}

int main(int argc, char **argv)
{
	const char *source = "/* comment\n#include \"none.h\"\n*/ // /*\n"
			     "#define STRING_(x) #x\n#define STRING(x) STRING_(x)\n"
			     "#include <one.h>\n"
			     "#if 0\n#include \"one.h\"\n#endif\n"
			     "  #  include STRING(PLACE/two.h)\n"
			     "#include \"two.h\" // again\n"
			     "__kernel void f(__global int *a) { a[0] = ONE * 10 + TWO; a[1] = __LINE__; }\n";
	const size_t one = 1;
	char options[8192], log[4096] = "";
	cl_int got[2] = {0}, code;
	cl_platform_id p;
	cl_device_id d;

	if (argc != 2)
		return 2;
	file(argv[1], "one.h", "#include \"two.h\"\n#define ONE (TWO - 1)");
	file(argv[1], "two.h", "#ifndef TWO\n#define TWO 2\n#endif\n");
	check(clGetPlatformIDs(1, &p, NULL), "platform");
	check(clGetDeviceIDs(p, CL_DEVICE_TYPE_ALL, 1, &d, NULL), "device");
	cl_context c = clCreateContext(NULL, 1, &d, NULL, NULL, &code);
	cl_command_queue q = clCreateCommandQueue(c, d, 0, &code);
	cl_program g = clCreateProgramWithSource(c, 1, &source, NULL, &code);
	check(code, "program");
	snprintf(options, sizeof options, "-D PLACE=%s -I %s", argv[1], argv[1]);
	check(clBuildProgram(g, 1, &d, options, NULL, NULL), "build");
	cl_kernel k = clCreateKernel(g, "f", &code);
	cl_mem b = clCreateBuffer(c, CL_MEM_READ_WRITE, sizeof got, NULL, &code);
	check(code, "buffer");
	check(clSetKernelArg(k, 0, sizeof b, &b), "argument");
	check(clEnqueueNDRangeKernel(q, k, 1, NULL, &one, NULL, 0, NULL, NULL), "run");
	check(clEnqueueReadBuffer(q, b, CL_TRUE, 0, sizeof got, got, 0, NULL, NULL), "read");
	printf("included: %d, line %d\n", got[0], got[1]);
	const char *missing = "#include \"missing.h\"\n__kernel void f(__global int *a) { a[0] = 1; }\n";
	g = clCreateProgramWithSource(c, 1, &missing, NULL, &code);
	code = clBuildProgram(g, 1, &d, options, NULL, NULL);
	check(clGetProgramBuildInfo(g, d, CL_PROGRAM_BUILD_LOG, sizeof log, log, NULL), "log");
	printf("missing: %d, log %d\n", code, strstr(log, "missing.h") != NULL);
	return 0;
}
