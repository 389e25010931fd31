/* Arguments of all sizes, local memory, and printf of a random program. A kernel returns what it got. */

#define EACH_TYPE(f) f(char, cl_char) f(uchar, cl_uchar) f(short, cl_short) f(ushort, cl_ushort) f(int, cl_int) f(uint, cl_uint) f(long, cl_long) f(ulong, cl_ulong) f(float, cl_float) f(double, cl_double)

#define TAKES(t, c) \
	"__kernel void v_" #t "(" #t " a, " #t "2 b, " #t "3 c, " #t "4 d, " #t "8 e, " #t "16 f, __global " #t " *out) {\n" \
	"	out[0] = a; vstore2(b, 0, out + 1); vstore3(c, 0, out + 3); vstore4(d, 0, out + 6); vstore8(e, 0, out + 10); vstore16(f, 0, out + 18); }\n"

static const char *values_source =
	EACH_TYPE(TAKES)
	"struct eight { int a, b; }; struct odd { char a[3]; }; struct deep { struct odd a; struct eight b[3]; float3 c; };\n"
	"typedef union { long a; float b[2]; } both; enum color { RED, GREEN };\n"
	"__kernel void structs(struct eight a, struct odd b, struct deep c, both d, enum color e, __global uint *out) {\n"
	"	out[0] = a.a; out[1] = a.b; for (int i = 0; i < 3; i++) { out[2 + i] = b.a[i]; out[5 + i] = c.a.a[i]; out[8 + i] = c.b[i].a; out[11 + i] = c.b[i].b; }\n"
	"	out[14] = as_uint(c.c.x); out[15] = as_uint(c.c.y); out[16] = as_uint(c.c.z); out[17] = as_uint(d.b[0]); out[18] = as_uint(d.b[1]); out[19] = e; }\n"
	"__kernel void locals(__local char *a, int n, __local float4 *b, __local short *c, int m, __global int *out) {\n"
	"	int i = get_local_id(0), s = get_local_size(0);\n"
	"	for (int j = i; j < n; j += s) a[j] = j; for (int j = i; j < m; j += s) { b[j] = (float4)(j); c[j] = j * 3; }\n"
	"	barrier(CLK_LOCAL_MEM_FENCE);\n"
	"	int sum = 0; for (int j = 0; j < n; j++) sum += a[j]; for (int j = 0; j < m; j++) sum += (int)b[j].w + c[j];\n"
	"	out[get_global_id(0)] = sum; }\n"
	"__kernel void says(int a, float b, long c, char d, __constant char *text) {\n"
	"	if (get_global_id(0) == get_global_size(0) - 1) printf(\"%d %.3f %ld %c %s %x %v4hld\\n\", a, b, c, d, \"text\", a, (int4)(a, 1, 2, 3)); }\n";

/* value_kernel passes values of one type. */
#define PASSES(t, c) \
	static void pass_##t(cl_program g, cl_command_queue q, cl_mem m) \
	{ \
		cl_int code; \
		cl_kernel k = clCreateKernel(g, "v_" #t, &code); \
		c a; c##2 b; c##3 v; c##4 d; c##8 e; c##16 f; \
		c want[34], got[34]; \
		const size_t one = 1; \
		scribble((unsigned char *)want, sizeof want); \
		memset(&v, 0, sizeof v); \
		memcpy(&a, want, sizeof a); memcpy(&b, want + 1, sizeof b); memcpy(&v, want + 3, 3 * sizeof a); memcpy(&d, want + 6, sizeof d); \
		memcpy(&e, want + 10, sizeof e); memcpy(&f, want + 18, sizeof f); \
		ARG(k, 0, a); ARG(k, 1, b); ARG(k, 2, v); ARG(k, 3, d); ARG(k, 4, e); ARG(k, 5, f); ARG(k, 6, m); \
		say("arguments " #t ": %d", code); \
		code = clEnqueueNDRangeKernel(q, k, 1, NULL, &one, NULL, 0, NULL, NULL); \
		code |= clEnqueueReadBuffer(q, m, CL_TRUE, 0, sizeof got, got, 0, NULL, NULL); \
		say("values " #t ": %d, right %d", code, !memcmp(got, want, sizeof got)); \
		clReleaseKernel(k); \
	}
EACH_TYPE(PASSES)

struct deep {
	cl_char a[3];
	cl_int b[3][2];
	cl_float3 c;
};

static void pass_structs(cl_program g, cl_command_queue q, cl_mem m)
{
	cl_int code, a[2], e = 1;
	cl_kernel k = clCreateKernel(g, "structs", &code);
	cl_char b[3];
	struct deep c;
	cl_long d;
	cl_uint got[20], want[20];
	const size_t one = 1;

	scribble((unsigned char *)a, sizeof a);
	scribble((unsigned char *)b, sizeof b);
	scribble((unsigned char *)&c, sizeof c);
	scribble((unsigned char *)&d, sizeof d);
	ARG(k, 0, a);
	ARG(k, 1, b);
	ARG(k, 2, c);
	ARG(k, 3, d);
	ARG(k, 4, e);
	ARG(k, 5, m);
	say("arguments of structs: %d", code);
	want[0] = (cl_uint)a[0], want[1] = (cl_uint)a[1];
	for (int i = 0; i < 3; i++) {
		want[2 + i] = (cl_uint)b[i], want[5 + i] = (cl_uint)c.a[i], want[8 + i] = (cl_uint)c.b[i][0], want[11 + i] = (cl_uint)c.b[i][1];
		memcpy(&want[14 + i], &c.c.s[i], 4);
	}
	memcpy(&want[17], &d, sizeof d);
	want[19] = 1;
	code = clEnqueueNDRangeKernel(q, k, 1, NULL, &one, NULL, 0, NULL, NULL);
	code |= clEnqueueReadBuffer(q, m, CL_TRUE, 0, sizeof got, got, 0, NULL, NULL);
	say("structs: %d, right %d", code, !memcmp(got, want, sizeof got));
	clReleaseKernel(k);
}

static void pass_locals(cl_program g, cl_command_queue q, cl_mem m)
{
	cl_int code, n = (cl_int)between(1, 100), count = (cl_int)between(1, 60), got[32], sum = 0, right = 1;
	cl_kernel k = clCreateKernel(g, "locals", &code);
	const size_t items = 32, group = 8;

	code |= clSetKernelArg(k, 0, (size_t)n + any(20), NULL);
	ARG(k, 1, n);
	code |= clSetKernelArg(k, 2, 16 * (size_t)count, NULL);
	code |= clSetKernelArg(k, 3, 2 * (size_t)count, NULL);
	ARG(k, 4, count);
	ARG(k, 5, m);
	code |= clEnqueueNDRangeKernel(q, k, 1, NULL, &items, &group, 0, NULL, NULL);
	code |= clEnqueueReadBuffer(q, m, CL_TRUE, 0, sizeof got, got, 0, NULL, NULL);
	for (int i = 0; i < n; i++)
		sum += i;
	for (int i = 0; i < count; i++)
		sum += i * 4;
	for (int i = 0; i < 32; i++)
		right = right && got[i] == sum;
	say("locals: %d, right %d", code, right);
	clReleaseKernel(k);
}

/* prints has a kernel write to the standard output. */
static void prints(cl_program g, cl_command_queue q, cl_mem m)
{
	const size_t items = 1 << any(6);
	cl_int code, a = (cl_int)next();
	cl_float b = (cl_float)any(1000) / 8;
	cl_long l = (cl_long)next();
	cl_char d = (cl_char)('a' + any(26));
	cl_kernel k = clCreateKernel(g, "says", &code);

	fflush(stdout);
	ARG(k, 0, a);
	ARG(k, 1, b);
	ARG(k, 2, l);
	ARG(k, 3, d);
	ARG(k, 4, m);
	code |= clEnqueueNDRangeKernel(q, k, 1, NULL, &items, NULL, 0, NULL, NULL);
	code |= clFinish(q);
	say("prints: %d", code);
	clReleaseKernel(k);
}

/* described asks for what the program says of its arguments. */
static void described(cl_program g)
{
	static const char *const list[] = {"structs", "locals", "says", "v_char", "v_double"};
	cl_uint i = (cl_uint)any(7);
	char name[64] = "", type[64] = "";
	cl_kernel_arg_address_qualifier space = 0;
	cl_kernel_arg_access_qualifier access = 0;
	cl_kernel_arg_type_qualifier kind = 0;
	size_t which = any(5);
	cl_int code;

	cl_kernel k = clCreateKernel(g, list[which], &code);
	code = clGetKernelArgInfo(k, i, CL_KERNEL_ARG_NAME, sizeof name, name, NULL);
	clGetKernelArgInfo(k, i, CL_KERNEL_ARG_TYPE_NAME, sizeof type, type, NULL);
	clGetKernelArgInfo(k, i, CL_KERNEL_ARG_ADDRESS_QUALIFIER, sizeof space, &space, NULL);
	clGetKernelArgInfo(k, i, CL_KERNEL_ARG_ACCESS_QUALIFIER, sizeof access, &access, NULL);
	clGetKernelArgInfo(k, i, CL_KERNEL_ARG_TYPE_QUALIFIER, sizeof kind, &kind, NULL);
	say("argument %u of %s: %d, %s %s %#x %#x %#lx", i, list[which], code, type, name, space, access, (long)kind);
	clReleaseKernel(k);
}

static int alone; /* no other program writes to the standard output */

/* values_step passes arguments. */
static void values_step(void)
{
#define NAMED(t, c) pass_##t,
	static void (*const passes[])(cl_program, cl_command_queue, cl_mem) = {EACH_TYPE(NAMED) pass_structs, pass_structs, pass_locals, pass_locals};
	cl_int code;

	if (r.user || any(4))
		return;
	cl_program g = clCreateProgramWithSource(r.c, 1, &values_source, NULL, &code);
	code |= clBuildProgram(g, 1, &r.d, "-cl-kernel-arg-info", NULL, NULL);
	cl_command_queue q = clCreateCommandQueueWithProperties(r.c, r.d, NULL, NULL);
	cl_mem m = clCreateBuffer(r.c, 0, 4096, NULL, NULL);
	say("values: %d", code);
	for (size_t n = between(1, 4); n > 0 && !code; n--) {
		passes[any(sizeof passes / sizeof *passes)](g, q, m);
		described(g);
		if (alone && any(3) == 0)
			prints(g, q, m);
	}
	clReleaseMemObject(m);
	clReleaseCommandQueue(q);
	clReleaseProgram(g);
}
