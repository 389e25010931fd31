/* Programs that are compiled, linked, and made of binaries, by a random program. */

static const char *const parts[] = {
	"#include \"value.h\"\nint twice(int v) { return VALUE * v; }\n",
	"int twice(int v); __kernel void f(__global int *a, int v) { a[get_global_id(0)] = twice(v) + get_global_id(0); }\n",
	"#define VALUE 2\n", "__kernel void broken(__global int *a) { a[0] = no_such_name; }\n", "int other(int v) { return v; }\n",
};

static void say_program(const char *what, cl_program g, cl_int code)
{
	cl_build_status status = 99;
	cl_program_binary_type type = 99;
	size_t sizes[2] = {0}, kernels = 99;
	cl_int codes[5] = {99, 99, 99, 99, 99};

	/* PoCL has a type and no options for what does not compile, no options of a library, and kernels of what
	 * was not linked. */
	if (g) {
		codes[0] = clGetProgramBuildInfo(g, r.d, CL_PROGRAM_BUILD_STATUS, sizeof status, &status, NULL);
		if (!code)
			codes[1] = clGetProgramBuildInfo(g, r.d, CL_PROGRAM_BINARY_TYPE, sizeof type, &type, NULL);
		if (!code && type != CL_PROGRAM_BINARY_TYPE_LIBRARY)
			codes[2] = clGetProgramBuildInfo(g, r.d, CL_PROGRAM_BUILD_OPTIONS, 0, NULL, &sizes[0]);
		if (type == CL_PROGRAM_BINARY_TYPE_EXECUTABLE)
			codes[3] = clGetProgramInfo(g, CL_PROGRAM_NUM_KERNELS, sizeof kernels, &kernels, NULL);
		codes[4] = clGetProgramInfo(g, CL_PROGRAM_SOURCE, 0, NULL, &sizes[1]);
	}
	say("%s: %d; %d %d, %d %u, %d %zu, %d %zu, %d %zu", what, code, codes[0], status, codes[1], type, codes[2], sizes[0], codes[3], codes[3] ? 0 : kernels, codes[4], sizes[1]);
}

static cl_program part_of(int i)
{
	cl_int code;
	cl_program g = clCreateProgramWithSource(r.c, 1, (const char **)&parts[i], NULL, &code);

	say("source: %d", code);
	return g;
}

/* run_linked runs the kernel of a program, if it has one. */
static void run_linked(cl_program g)
{
	const size_t n = 64;
	cl_int code, out[64], v = (cl_int)any(1000);
	cl_kernel k = clCreateKernel(g, "f", &code);

	say("linked kernel: %d", code);
	if (code)
		return;
	cl_mem m = clCreateBuffer(r.c, 0, sizeof out, NULL, &code);
	ARG(k, 0, m);
	ARG(k, 1, v);
	code |= clEnqueueNDRangeKernel(r.queues[0], k, 1, NULL, &n, NULL, 0, NULL, NULL);
	code |= clEnqueueReadBuffer(r.queues[0], m, r.ordered[0], 0, sizeof out, out, 0, NULL, NULL);
	code |= clFinish(r.queues[0]);
	say("linked: %d %lx", code, r.ordered[0] ? hash(out, sizeof out) : 0);
	say("build with a kernel: %d", clBuildProgram(g, 1, &r.d, "", NULL, NULL));
	clReleaseMemObject(m);
	clReleaseKernel(k);
}

/* other_program compiles and links, by a way that is right or wrong. */
static void other_program(void)
{
	static const char *const options[] = {"", "-DA=1", "-cl-mad-enable", "-cl-std=CL1.2", "-w -cl-fast-relaxed-math"};
	const char *name = "value.h";

	cl_program header = part_of(2), list[3] = {part_of(0), part_of(1), part_of(any(8) ? 4 : 3)};
	size_t way = any(6);
	int failed = 0; /* PoCL's process ends when it links what does not compile */
	cl_int code = clCompileProgram(list[0], 1, &r.d, options[any(5)], way != 0, way ? &header : NULL, way ? &name : NULL, NULL, NULL);
	say_program("compiled", list[0], code);
	failed |= code;
	code = clCompileProgram(list[1], any(2), any(2) ? &r.d : NULL, options[any(5)], 0, NULL, NULL, NULL, NULL);
	say("devices: %d", code);
	code = clCompileProgram(list[1], 0, NULL, options[any(5)], 0, NULL, NULL, NULL, NULL);
	say_program("compiled", list[1], code);
	code = clCompileProgram(list[2], 1, &r.d, "", 0, NULL, NULL, NULL, NULL);
	say_program("compiled", list[2], code);
	failed |= code;
	cl_program linked = failed ? NULL : clLinkProgram(r.c, 1, &r.d, way == 2 ? "-create-library" : "", way == 3 ? 0 : way == 4 ? 2 : 3, way == 3 ? NULL : list, NULL, NULL, &code);
	say_program("linked", linked, code);
	if (linked && !code && way != 2)
		run_linked(linked);
	for (int i = 0; i < 3; i++)
		clReleaseProgram(list[i]);
	clReleaseProgram(header);
	if (linked)
		clReleaseProgram(linked);
}

/* of_binary makes the random program's own program of its binary. */
static void of_binary(void)
{
	size_t size = 0;
	cl_int code, state = 99;
	cl_uint n = 0;
	cl_kernel all[KERNELS];

	say("binary: %d", clGetProgramInfo(r.g, CL_PROGRAM_BINARY_SIZES, sizeof size, &size, NULL));
	unsigned char *bytes = malloc(size ? size : 1);
	code = clGetProgramInfo(r.g, CL_PROGRAM_BINARIES, sizeof bytes, &bytes, NULL);
	if (any(4) == 0)
		memset(bytes, 0, size);
	cl_program g = clCreateProgramWithBinary(r.c, 1, &r.d, &size, (const unsigned char **)&bytes, &state, &code);
	free(bytes);
	say("program of a binary: %d %d", code, state);
	if (code)
		return;
	cl_program_binary_type type = 99;
	clGetProgramBuildInfo(g, r.d, CL_PROGRAM_BINARY_TYPE, sizeof type, &type, NULL);
	say("type %u, kernels before: %d", type, clCreateKernelsInProgram(g, KERNELS, all, &n));
	say("build: %d", clBuildProgram(g, 1, &r.d, "", NULL, NULL));
	code = clCreateKernelsInProgram(g, KERNELS, all, &n);
	say("kernels: %d, %u", code, n);
	for (cl_uint i = 0; !code && i < n; i++) {
		char name[64];
		cl_uint count = 0;
		clGetKernelInfo(all[i], CL_KERNEL_FUNCTION_NAME, sizeof name, name, NULL);
		clGetKernelInfo(all[i], CL_KERNEL_NUM_ARGS, sizeof count, &count, NULL);
		say("kernel %s, %u arguments", name, count);
		clReleaseKernel(all[i]);
	}
	say("too little room: %d", clCreateKernelsInProgram(g, 1, all, NULL));
	clReleaseProgram(g);
}

static void CL_CALLBACK built(cl_program g, void *data)
{
	(void)g;
	tell(data);
}

/* again builds a program more than once. */
static void again(void)
{
	static const char *const texts[] = {"__kernel void f(__global int *a, int v) { a[get_global_id(0)] = v * VALUE; }\n", "__kernel void g(__global int *a) { a[0] = 1; }\n"};
	static const char *const options[] = {"-DVALUE=3", "-D VALUE=4 -cl-opt-disable", "-DVALUE=", "-no-such-option"};
	const size_t lengths[2] = {0, strlen(texts[1])};
	cl_int code;
	int calls = 0;

	cl_program g = clCreateProgramWithSource(r.c, 2, (const char **)texts, lengths, &code);
	say("source: %d, kernel %d", code, clCreateKernel(g, "f", NULL) != NULL);
	for (int i = 0; i < 3; i++) {
		int o = (int)any(4), notify = (int)any(2);
		code = clBuildProgram(g, 1, &r.d, options[o], notify ? built : NULL, notify ? &calls : NULL);
		int called = told(&calls, notify);
		say("build %d: %d, calls %d", o, notify ? 0 : code, called);
		calls = 0;
		say_program("built", g, notify ? 1 : code);
	}
	clReleaseProgram(g);
}

static void program_step(void)
{
	if (r.user || any(12)) /* they take time */
		return;
	switch (any(3)) {
	case 0:
		of_binary();
		break;
	case 1:
		again();
		break;
	default:
		other_program();
	}
}
