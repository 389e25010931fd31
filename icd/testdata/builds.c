/* Random builds: builds FIRST COUNT [show]. Each seed makes programs of sources in pieces, compiles, links and builds them
 * with options and lists of devices that are right or wrong, takes binaries, runs the kernels and asks what they are.
 * It prints a digest of each seed, the same on every platform that works. */
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "numbers.h"

static cl_context c;
static cl_device_id d;
static cl_command_queue q;
static cl_mem out;
static uint64_t state, digest;
static unsigned long seed;
static int show;

static uint64_t next(void) { return next_number(&state); }

static size_t any(size_t n) { return (size_t)(next() >> 11) % n; }

__attribute__((format(printf, 1, 2))) static void say(const char *format, ...)
{
	char line[512];
	va_list list;

	va_start(list, format);
	int n = vsnprintf(line, sizeof line, format, list);
	va_end(list);
	digest = (digest ^ hash(line, (size_t)n)) * 0x100000001b3u;
	if (show)
		printf("%lu %s\n", seed, line);
	fflush(stdout);
}

static const char *const texts[] = {
	"__kernel void f(__global int *a, int v) {\n#ifdef FACTOR\n a[get_global_id(0)] = v * FACTOR;\n#else\n a[get_global_id(0)] = v;\n#endif\n}\n",
	"#include \"one.h\"\n__kernel void f(__global int *a, int v) { a[get_global_id(0)] = ONE + v; }\n",
	"int help(int v);\n__kernel void f(__global int *a, int v) { a[get_global_id(0)] = help(v); }\n",
	"__constant int table[4] = {3, 1, 4, 1};\n__kernel void f(__global int *a, const int v) { a[get_global_id(0)] = table[v & 3] + get_global_id(0); }\n"
	"__kernel __attribute__((reqd_work_group_size(2, 1, 1))) void g(__global volatile float *restrict x, __local uint2 *y, __constant char *z) { y[0] = 0; x[0] = y[0].x + z[0]; }\n",
	"__kernel void f(__global int *a, int v) { a[0] = not_there; }\n",
	"__kernel void f(__global int *a, int v) { int unused; a[get_global_id(0)] = v; }\n#warning \"of this program\"\n",
	"",
	"int help(int v) { return v + 100; }\n",
	"__kernel void f(__global int *a, int v) { a[get_global_id(0)] = __OPENCL_C_VERSION__ / 100 + v; }\n",
	"__kernel void f(__global int *a, int v) {\n#ifdef __FAST_RELAXED_MATH__\n v += 7;\n#endif\n#ifdef NAME\n v += sizeof(STRING(NAME));\n#endif\n a[get_global_id(0)] = v; }\n",
};
enum { TEXTS = sizeof texts / sizeof *texts };

static const char *const options[] = {
	NULL, "", "-DFACTOR=3", "-D FACTOR=5", "-DFACTOR", "-D FACTOR=2 -DFACTOR=4", "-cl-kernel-arg-info", "-cl-kernel-arg-info -DFACTOR=9", "-w", "-Werror",
	"-cl-opt-disable", "-cl-fast-relaxed-math", "-cl-mad-enable -cl-no-signed-zeros -cl-finite-math-only -cl-unsafe-math-optimizations", "-cl-std=CL1.2", "-cl-std=CL3.0",
	"-cl-single-precision-constant", "-cl-strict-aliasing", "-UFACTOR", "-cl-std=CL9.9", "-no-such-option", "-cl-no-such-option",
	"-I /tmp", "-DFACTOR=\"6\"", "\t-DFACTOR=7\n", "-DFACTOR=(1+1)",
};
enum { OPTIONS = sizeof options / sizeof *options };

static cl_program source(int i)
{
	const char *text = texts[i];
	size_t n = strlen(text), cut = n ? any(n) : 0;
	const char *pieces[3] = {text, text + cut, ""};
	size_t lengths[3] = {cut, n - cut, 0};
	cl_int code;
	cl_program g;

	if (any(2) || cut == 0)
		g = clCreateProgramWithSource(c, 1, &text, any(2) ? &n : NULL, &code);
	else
		g = clCreateProgramWithSource(c, any(2) ? 2 : 3, pieces, lengths, &code);
	say("source %d: %d", i, code);
	return g;
}

static void devices(cl_uint *n, const cl_device_id **list)
{
	static cl_device_id twice[2];

	twice[0] = twice[1] = d;
	*n = 1;
	*list = twice;
	switch (any(10)) {
	case 0:
		*n = 0;
		break;
	case 1:
		*list = NULL;
		break;
	case 2:
	case 3:
		*n = 0;
		*list = NULL;
		break;
	case 4:
		*n = 2;
		break;
	}
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t change = PTHREAD_COND_INITIALIZER;
static int calls;

static void CL_CALLBACK called(cl_program g, void *data)
{
	(void)g;
	(void)data;
	pthread_mutex_lock(&lock);
	calls++;
	pthread_cond_broadcast(&change);
	pthread_mutex_unlock(&lock);
}

static void await(int n)
{
	pthread_mutex_lock(&lock);
	while (calls < n)
		pthread_cond_wait(&change, &lock);
	calls = 0;
	pthread_mutex_unlock(&lock);
}

/* state_of says the state of a program, and returns whether it can be run. */
static int state_of(const char *what, cl_program g)
{
	cl_build_status status = 99;
	cl_program_binary_type type = 99;
	char chosen[256] = "", names[256] = "";
	size_t kernels = 99, log = 0;

	cl_int a = clGetProgramBuildInfo(g, d, CL_PROGRAM_BUILD_STATUS, sizeof status, &status, NULL), b = clGetProgramBuildInfo(g, d, CL_PROGRAM_BINARY_TYPE, sizeof type, &type, NULL);
	cl_int o = clGetProgramBuildInfo(g, d, CL_PROGRAM_BUILD_OPTIONS, sizeof chosen, chosen, NULL), l = clGetProgramBuildInfo(g, d, CL_PROGRAM_BUILD_LOG, 0, NULL, &log);
	int good = status == CL_BUILD_SUCCESS && type == CL_PROGRAM_BINARY_TYPE_EXECUTABLE;
	if (status != CL_BUILD_SUCCESS) /* PoCL keeps those of an earlier build */
		b = o = 0, type = 0, chosen[0] = 0;
	if (type == CL_PROGRAM_BINARY_TYPE_LIBRARY)
		chosen[0] = 0;
	if (status == CL_BUILD_NONE)
		l = 0;
	cl_int k = 0, m = 0;
	if (good) {
		k = clGetProgramInfo(g, CL_PROGRAM_NUM_KERNELS, sizeof kernels, &kernels, NULL);
		m = clGetProgramInfo(g, CL_PROGRAM_KERNEL_NAMES, sizeof names, names, NULL);
	}
	say("%s: status %d %d, type %d %u, options %d '%s', log %d, kernels %d %zu %d '%s'", what, a, status, b, type, o, chosen, l, k, kernels, m, names);
	return good;
}

static void describe(cl_kernel k)
{
	char name[128] = "", attributes[256] = "";
	cl_uint n = 0;

	cl_int a = clGetKernelInfo(k, CL_KERNEL_FUNCTION_NAME, sizeof name, name, NULL), b = clGetKernelInfo(k, CL_KERNEL_NUM_ARGS, sizeof n, &n, NULL), e = clGetKernelInfo(k, CL_KERNEL_ATTRIBUTES, sizeof attributes, attributes, NULL);
	say("kernel %d %s, %d %u arguments, %d %s", a, name, b, n, e, attributes);
	cl_program g = NULL;
	char chosen[256] = "";
	clGetKernelInfo(k, CL_KERNEL_PROGRAM, sizeof g, &g, NULL);
	clGetProgramBuildInfo(g, d, CL_PROGRAM_BUILD_OPTIONS, sizeof chosen, chosen, NULL);
	for (cl_uint i = 0; strstr(chosen, "arg-info") && i <= n; i++) {
		char type[64] = "", argument[64] = "";
		cl_ulong q1 = 0;
		cl_uint space = 0, access = 0;
		cl_int codes[5] = {
			clGetKernelArgInfo(k, i, CL_KERNEL_ARG_TYPE_NAME, sizeof type, type, NULL), clGetKernelArgInfo(k, i, CL_KERNEL_ARG_NAME, sizeof argument, argument, NULL),
			clGetKernelArgInfo(k, i, CL_KERNEL_ARG_TYPE_QUALIFIER, sizeof q1, &q1, NULL), clGetKernelArgInfo(k, i, CL_KERNEL_ARG_ADDRESS_QUALIFIER, sizeof space, &space, NULL),
			clGetKernelArgInfo(k, i, CL_KERNEL_ARG_ACCESS_QUALIFIER, sizeof access, &access, NULL),
		};
		say("argument %u: %d %s, %d %s, %d %lu, %d %#x, %d %#x", i, codes[0], type, codes[1], argument, codes[2], (unsigned long)q1, codes[3], space, codes[4], access);
	}
}

static void run(cl_program g)
{
	cl_int code, v = (cl_int)any(50), got[8] = {0};
	const size_t n = 8;
	cl_kernel k = clCreateKernel(g, "f", &code), all[4], copy = NULL;
	cl_uint made = 0;

	say("kernel: %d", code);
	if (code)
		return;
	describe(k);
	code = clSetKernelArg(k, 0, sizeof out, &out) | clSetKernelArg(k, 1, sizeof v, &v);
	if (any(2)) {
		cl_int cloned;
		copy = clCloneKernel(k, &cloned);
		code |= cloned;
		v = 999;
		code |= clSetKernelArg(k, 1, sizeof v, &v); /* not that of the clone */
	}
	code |= clEnqueueFillBuffer(q, out, &v, 1, 0, sizeof got, 0, NULL, NULL);
	code |= clEnqueueNDRangeKernel(q, copy ? copy : k, 1, NULL, &n, NULL, 0, NULL, NULL);
	code |= clEnqueueReadBuffer(q, out, CL_TRUE, 0, sizeof got, got, 0, NULL, NULL);
	say("ran: %d, %d %d %d", code, got[0], got[1], got[7]);
	say("build beside a kernel: %d, compile %d", clBuildProgram(g, 1, &d, "", NULL, NULL), clCompileProgram(g, 1, &d, "", 0, NULL, NULL, NULL, NULL));
	code = clCreateKernelsInProgram(g, 4, all, &made);
	say("kernels: %d %u", code, made);
	for (cl_uint i = 0; !code && i < made; i++) {
		describe(all[i]);
		clReleaseKernel(all[i]);
	}
	if (copy)
		clReleaseKernel(copy);
	clReleaseKernel(k);
}

static void of_binary(cl_program g)
{
	size_t n = 0;
	cl_int code, status = 77;
	cl_uint count = 1;
	const cl_device_id *list = &d;

	code = clGetProgramInfo(g, CL_PROGRAM_BINARY_SIZES, sizeof n, &n, NULL);
	unsigned char *b = calloc(1, n ? n : 1);
	code |= clGetProgramInfo(g, CL_PROGRAM_BINARIES, sizeof b, &b, NULL);
	say("binary: %d, %d", code, n > 0);
	size_t way = any(8), given = n;
	if (way == 0)
		memset(b, 'x', n);
	else if (way == 1)
		given = 0;
	const unsigned char *from = way == 2 ? NULL : b;
	if (way == 3)
		count = 0;
	cl_program h = clCreateProgramWithBinary(c, count, list, &given, &from, any(2) ? &status : NULL, &code);
	free(b);
	say("of a binary, way %zu: %d %d", way, code, code || status == 77 ? 0 : status); /* PoCL sets it rarely */
	if (code)
		return;
	state_of("before its build", h);
	say("kernel before: %d", clCreateKernel(h, "f", NULL) != NULL);
	say("compile of a binary: %d", clCompileProgram(h, 1, &d, "", 0, NULL, NULL, NULL, NULL));
	say("build of a binary: %d", clBuildProgram(h, 1, &d, any(2) ? "" : NULL, NULL, NULL));
	if (state_of("binary", h))
		run(h);
	clReleaseProgram(h);
}

static void build(void)
{
	int i = (int)any(TEXTS);
	cl_program g = source(i);

	for (size_t times = 1 + any(2); times > 0; times--) {
		size_t o = any(OPTIONS), notify = any(3) == 0;
		const cl_device_id *list;
		cl_uint n;
		devices(&n, &list);
		cl_int code = clBuildProgram(g, n, list, options[o], notify ? called : NULL, notify ? &seed : any(10) ? NULL : &seed);
		if (notify && !code)
			await(1);
		say("build of %d with '%s', devices %u %d, notify %zu: %d", i, options[o] ? options[o] : "NULL", n, list != NULL, notify, notify && code != CL_INVALID_VALUE ? 0 : code);
		calls = 0;
		if (state_of("built", g)) {
			run(g);
			if (any(2))
				of_binary(g);
		}
	}
	clReleaseProgram(g);
}

static void parts(void)
{
	static const char *header = "#define ONE 11\n", *name = "one.h";
	cl_int code, failed = 0;
	cl_program h = clCreateProgramWithSource(c, 1, &header, NULL, &code), list[2] = {source((int)any(4)), source(any(4) ? 7 : (int)any(TEXTS))}, g;

	for (int i = 0; i < 2; i++) {
		const cl_device_id *on;
		cl_uint n;
		devices(&n, &on);
		int with = any(4) != 0;
		size_t o = any(OPTIONS), notify = any(4) == 0;
		code = clCompileProgram(list[i], n, on, options[o], (cl_uint)with, with ? &h : NULL, with ? &name : NULL, notify ? called : NULL, NULL);
		if (notify && !code)
			await(1);
		calls = 0;
		say("compile with '%s', header %d: %d", options[o] ? options[o] : "NULL", with, notify && code != CL_INVALID_VALUE ? 0 : code);
		cl_build_status s = 0;
		state_of("compiled", list[i]);
		clGetProgramBuildInfo(list[i], d, CL_PROGRAM_BUILD_STATUS, sizeof s, &s, NULL);
		failed |= s != CL_BUILD_SUCCESS;
	}
	static const char *const ways[] = {"", NULL, "-create-library", "-cl-fast-relaxed-math", "-create-library -enable-link-options", "-no-such-option", "-cl-finite-math-only"};
	size_t w = any(7);
	g = failed ? NULL : clLinkProgram(c, 1, &d, ways[w], any(6) ? 2 : 1, list, NULL, NULL, &code); /* PoCL's process ends */
	if (!failed)
		say("link with '%s': %d, %d", ways[w] ? ways[w] : "NULL", code, g != NULL);
	if (g && !code) {
		if (state_of("linked", g)) {
			run(g);
			if (any(2))
				of_binary(g);
		} else {
			cl_program again = clLinkProgram(c, 0, NULL, "", 1, &g, NULL, NULL, &code);
			say("link of a library: %d", code);
			if (again && !code && state_of("of a library", again))
				run(again);
			if (again)
				clReleaseProgram(again);
		}
	}
	if (g)
		clReleaseProgram(g);
	clReleaseProgram(h);
	clReleaseProgram(list[0]);
	clReleaseProgram(list[1]);
}

static void wrong(void)
{
	const char *text = texts[0], *none = NULL;
	cl_int code;
	cl_program g = clCreateProgramWithSource(c, 1, &text, NULL, &code), h;

	clCreateProgramWithSource(c, 0, &text, NULL, &code);
	say("no source: %d", code);
	clCreateProgramWithSource(NULL, 1, &text, NULL, &code);
	say("no context: %d", code);
	say("kernel of a source: %d", (clCreateKernel(g, "f", &code), code));
	h = clLinkProgram(c, 1, &d, "", 0, NULL, NULL, NULL, &code);
	say("link of nothing: %d %d", code, h != NULL);
	h = clLinkProgram(c, 1, &d, "", 1, &g, NULL, NULL, &code);
	say("link of a source: %d %d", code, h != NULL);
	say("built-in: %d", (clCreateProgramWithBuiltInKernels(c, 1, &d, NULL, &code), code));
	say("build of nothing: %d", clBuildProgram(NULL, 1, &d, "", NULL, NULL));
	say("name: %d", (clCreateKernel(g, none, &code), code));
	clBuildProgram(g, 1, &d, "", NULL, NULL);
	say("another name: %d, an empty one %d", (clCreateKernel(g, "none", &code), code), (clCreateKernel(g, "", &code), code));
	say("link of an executable: %d", (h = clLinkProgram(c, 1, &d, "", 1, &g, NULL, NULL, &code), code));
	if (h)
		clReleaseProgram(h);
	clReleaseProgram(g);
}

int main(int argc, char **argv)
{
	unsigned long first = argc > 1 ? strtoul(argv[1], NULL, 10) : 1, count = argc > 2 ? strtoul(argv[2], NULL, 10) : 1;
	cl_platform_id p;
	cl_int code;

	show = argc > 3;
	if (clGetPlatformIDs(1, &p, NULL) || clGetDeviceIDs(p, CL_DEVICE_TYPE_ALL, 1, &d, NULL))
		return 1;
	c = clCreateContext(NULL, 1, &d, NULL, NULL, &code);
	q = clCreateCommandQueueWithProperties(c, d, NULL, &code);
	out = clCreateBuffer(c, 0, 256, NULL, &code);
	for (seed = first; seed < first + count; seed++) {
		state = seed * 0x2545f4914f6cdd1du + 1;
		digest = 0;
		for (int i = 0; i < 3; i++)
			if (any(3))
				build();
			else
				parts();
		if (any(4) == 0)
			wrong();
		printf("%lu %lx\n", seed, (unsigned long)digest);
		fflush(stdout);
	}
	clReleaseMemObject(out);
	clReleaseCommandQueue(q);
	clReleaseContext(c);
	return 0;
}
