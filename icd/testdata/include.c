/* A program that includes files of its own machine, from its working directory, the argument: it
 * prints the same on every platform that works. */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

static cl_context c;
static cl_device_id d;
static cl_command_queue q;

/* run runs the kernel f of a program, which writes numbers. */
static void run(cl_program g, cl_int got[2])
{
	const size_t one = 1;
	cl_int code;
	cl_kernel k = clCreateKernel(g, "f", &code);

	check(code, "kernel");
	cl_mem b = clCreateBuffer(c, CL_MEM_READ_WRITE, 2 * sizeof *got, NULL, &code);
	check(code, "buffer");
	check(clSetKernelArg(k, 0, sizeof b, &b), "argument");
	check(clEnqueueNDRangeKernel(q, k, 1, NULL, &one, NULL, 0, NULL, NULL), "run");
	check(clEnqueueReadBuffer(q, b, CL_TRUE, 0, 2 * sizeof *got, got, 0, NULL, NULL), "read");
	clReleaseMemObject(b);
	clReleaseKernel(k);
	clReleaseProgram(g);
}

static cl_program made(const char *source)
{
	cl_int code;
	cl_program g = clCreateProgramWithSource(c, 1, &source, NULL, &code);

	check(code, "program");
	return g;
}

/* Files of the working directory, without an option, and files that say that they count once. */
static void here(const char *directory)
{
	cl_int got[2] = {0};

	file(directory, "once.h", "#pragma once\n#include \"again.h\"\nstruct s { int a; };\n");
	file(directory, "again.h", "#pragma once\n#include \"once.h\"\nenum { AGAIN = 3 };\n");
	cl_program g = made("#if 0\n#include \"once.h\"\n#endif\n#include \"once.h\"\n#include <again.h>\n#include \"once.h\"\n"
			    "__kernel void f(__global int *a) { struct s v = {AGAIN}; a[0] = v.a; a[1] = __LINE__; }\n");
	check(clBuildProgram(g, 1, &d, "", NULL, NULL), "build with files of the working directory");
	run(g, got);
	printf("working directory: %d, line %d\n", got[0], got[1]);
}

/* given compiles a program with a header, and files of a directory, and runs it. */
static void given(const char *directory, const char *header, const char *name, const char *source, cl_int *got)
{
	cl_int code;
	char options[8192];

	snprintf(options, sizeof options, "-I %s", directory);
	cl_program h = made(header), g = made(source);
	check(clCompileProgram(g, 1, &d, options, 1, &h, &name, NULL, NULL), "compile");
	cl_program linked = clLinkProgram(c, 1, &d, "", 1, &g, NULL, NULL, &code);
	check(code, "link");
	run(linked, got);
}

/* A header that is given to the compiler comes before a file of its name. */
static void embedded(const char *directory)
{
	cl_int got[2] = {0};

	file(directory, "both.h", "#define BOTH 1\n");
	given(directory, "#define BOTH 2\n", "both.h", "#include <both.h>\n__kernel void f(__global int *a) { a[0] = BOTH; }\n", got);
	printf("embedded: %d\n", got[0]);
}

/* A header that is given to the compiler includes a file. */
static void outward(const char *directory)
{
	cl_int got[2] = {0};

	file(directory, "inner.h", "#define INNER 5\n");
	given(directory, "#include <inner.h>\n#define GIVEN (INNER + 1)\n", "given.h",
	      "#include \"given.h\"\n__kernel void f(__global int *a) { a[0] = GIVEN; a[1] = __LINE__; }\n", got);
	printf("file of an embedded header: %d, line %d\n", got[0], got[1]);
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
	char options[8192], log[4096] = "";
	cl_int got[2] = {0}, code;
	cl_platform_id p;

	if (argc != 2 || chdir(argv[1]))
		return 2;
	file(argv[1], "one.h", "#include \"two.h\"\n#define ONE (TWO - 1)");
	file(argv[1], "two.h", "#ifndef TWO\n#define TWO 2\n#endif\n");
	check(clGetPlatformIDs(1, &p, NULL), "platform");
	check(clGetDeviceIDs(p, CL_DEVICE_TYPE_ALL, 1, &d, NULL), "device");
	c = clCreateContext(NULL, 1, &d, NULL, NULL, &code);
	q = clCreateCommandQueue(c, d, 0, &code);
	cl_program g = made(source);
	snprintf(options, sizeof options, "-D PLACE=%s -I %s", argv[1], argv[1]);
	check(clBuildProgram(g, 1, &d, options, NULL, NULL), "build");
	run(g, got);
	printf("included: %d, line %d\n", got[0], got[1]);
	g = made("#include \"missing.h\"\n__kernel void f(__global int *a) { a[0] = 1; }\n");
	code = clBuildProgram(g, 1, &d, options, NULL, NULL);
	check(clGetProgramBuildInfo(g, d, CL_PROGRAM_BUILD_LOG, sizeof log, log, NULL), "log");
	printf("missing: %d, log %d\n", code, strstr(log, "missing.h") != NULL);
	here(argv[1]);
	embedded(argv[1]);
	outward(argv[1]);
	return 0;
}
