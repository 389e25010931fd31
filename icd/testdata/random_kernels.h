/* Kernels of a random program. */

static const char *source =
	"struct some { char a; int b[3]; long c; };\n"
	"size_t line(void) { return (get_global_id(2) * get_global_size(1) + get_global_id(1)) * get_global_size(0) + get_global_id(0); }\n"
	"size_t all(void) { return get_global_size(0) * get_global_size(1) * get_global_size(2); }\n"
	"__kernel void mix_up(__global uint *a, uint n, __global const uint *b, uint m, uint k) {\n"
	"	size_t first = (get_global_id(0) - get_global_offset(0)) + get_global_size(0) * ((get_global_id(1) - get_global_offset(1)) +\n"
	"		get_global_size(1) * (get_global_id(2) - get_global_offset(2)));\n"
	"	for (size_t i = first; i < n; i += all()) a[i] = a[i] * k + b[i % m] + 1;\n"
	"}\n"
	"__kernel void numbers(__global uint *a, uint n) {\n"
	"	size_t i = (get_global_id(0) - get_global_offset(0)) + get_global_size(0) * ((get_global_id(1) - get_global_offset(1)) +\n"
	"		get_global_size(1) * (get_global_id(2) - get_global_offset(2)));\n"
	"	uint v = get_work_dim();\n"
	"	for (int d = 0; d < 3; d++)\n"
	"		v = (((v * 31 + get_global_id(d)) * 31 + get_local_id(d)) * 31 + get_group_id(d)) * 31 + get_local_size(d) + get_num_groups(d);\n"
	"	if (i < n) a[i] = v;\n"
	"}\n"
	"__kernel void sums(__global uint *a, uint n, __local uint *l, __local uint *k) {\n"
	"	l[get_local_id(0)] = get_global_id(0) * 3;\n"
	"	k[get_local_id(0)] = 7;\n"
	"	barrier(CLK_LOCAL_MEM_FENCE);\n"
	"	uint sum = 0;\n"
	"	for (uint i = 0; i < get_local_size(0); i++) sum += l[i] * k[i];\n"
	"	if (get_global_id(0) < n) a[get_global_id(0)] = sum;\n"
	"}\n"
	"__kernel void values(__global ulong *a, uchar b, short2 c, int4 d, float2 e, double f, long8 g, struct some h, ushort i) {\n"
	"	a[0] = b + c.x * 3 + c.y * 5; a[1] = d.x + d.y * 3 + d.z * 5 + d.w; a[2] = as_ulong(e); a[3] = as_ulong(f);\n"
	"	a[4] = g.s0 + g.s7 * 3; a[5] = h.a + h.b[0] + h.b[2] * 3; a[6] = h.c; a[7] = i;\n"
	"}\n"
	"__kernel void constants(__constant uint *c, uint m, __global uint *maybe, __global uint *a, uint n) {\n"
	"	if (get_global_id(0) < n) a[get_global_id(0)] = c[get_global_id(0) % m] + (maybe ? maybe[0] : 99);\n"
	"}\n"
	"__kernel void picture(__read_only image2d_t p, sampler_t s, __global uint4 *a, uint w, uint h, uint n) {\n"
	"	for (uint i = get_global_id(0); i < n; i += get_global_size(0)) a[i] = read_imageui(p, s, (int2)(i % w, i / w % h));\n"
	"}\n"
	"__kernel void paint(__write_only image2d_t p, uint w, uint h, uint k) {\n"
	"	for (uint i = get_global_id(0); i < w * h; i += get_global_size(0)) write_imageui(p, (int2)(i % w, i / w), (uint4)(i, k, i * 3, 9) & 255);\n"
	"}\n"
	"__kernel void solid(__read_only image3d_t p, sampler_t s, __global uint4 *a, uint w, uint h, uint d, uint n) {\n"
	"	for (uint i = get_global_id(0); i < n; i += get_global_size(0)) a[i] = read_imageui(p, s, (int4)(i % w, i / w % h, i / w / h % d, 0));\n"
	"}\n"
	"__kernel void layers(__read_only image2d_array_t p, sampler_t s, __global uint4 *a, uint w, uint h, uint d, uint n) {\n"
	"	for (uint i = get_global_id(0); i < n; i += get_global_size(0)) a[i] = read_imageui(p, s, (int4)(i % w, i / w % h, i / w / h % d, 0));\n"
	"}\n";

/* shapes are few: PoCL compiles a kernel for each size of work-groups. */
static const struct shape {
	cl_uint dims;
	size_t global[3], local[3], offset[3];
	int has_local, has_offset;
} shapes[] = {
	{1, {256}, {16}, {0}, 1, 0}, {1, {64}, {0}, {0}, 0, 0}, {2, {16, 8}, {4, 4}, {3, 5}, 1, 1}, {3, {4, 6, 2}, {2, 3, 1}, {0}, 1, 0},
};

#define ARG(k, i, v) (code |= clSetKernelArg(k, i, sizeof(v), &(v)))

/* launch enqueues a kernel. */
static void launch(cl_command_queue q, int kind, cl_kernel k, const struct shape *s, cl_int code)
{
	cl_event e = NULL;
	const cl_event *l = list();

	say("arguments of %s: %d", names[kind], code);
	ended(names[kind], clEnqueueNDRangeKernel(q, k, s->dims, s->has_offset ? s->offset : NULL, s->global, s->has_local ? s->local : NULL, r.wait_count, l, &e), &e);
}

/* some_kernel returns a kernel with that name, or a clone. */
static cl_kernel some_kernel(int kind, int *clone)
{
	cl_int code;

	*clone = any(10) == 0;
	if (!*clone)
		return r.kernels[kind];
	cl_kernel k = clCloneKernel(r.kernels[kind], &code);
	say("clone: %d", code);
	return k;
}

static cl_int two_buffers(cl_kernel k, int kind, struct mem *a, struct mem *b)
{
	cl_uint n = (cl_uint)(a->size / 4), m = (cl_uint)(b->size / 4), v = (cl_uint)next();
	cl_mem none = NULL;
	cl_int code = 0;

	if (kind == MIX) {
		ARG(k, 0, a->m);
		ARG(k, 1, n);
		ARG(k, 2, b->m);
		ARG(k, 3, m);
		ARG(k, 4, v);
		return code;
	}
	if (any(2))
		ARG(k, 2, b->m);
	else if (any(2))
		ARG(k, 2, none);
	else
		code |= clSetKernelArg(k, 2, sizeof none, NULL);
	ARG(k, 0, b->m);
	ARG(k, 1, m);
	ARG(k, 3, a->m);
	ARG(k, 4, n);
	return code;
}

static cl_int values(cl_kernel k, cl_mem m)
{
	struct {
		cl_char a;
		cl_int b[3];
		cl_long c;
	} some;
	cl_uchar b;
	cl_short2 c;
	cl_int4 d;
	cl_float2 e;
	cl_double f;
	cl_long8 g;
	cl_ushort i;
	cl_int code = 0;

	scribble((unsigned char *)&some, sizeof some);
	scribble(&b, sizeof b);
	scribble((unsigned char *)&c, sizeof c);
	scribble((unsigned char *)&d, sizeof d);
	e = (cl_float2){{(float)any(1000), (float)any(1000)}};
	f = (double)any(1000);
	scribble((unsigned char *)&g, sizeof g);
	scribble((unsigned char *)&i, sizeof i);
	ARG(k, 0, m);
	ARG(k, 1, b);
	ARG(k, 2, c);
	ARG(k, 3, d);
	ARG(k, 4, e);
	ARG(k, 5, f);
	ARG(k, 6, g);
	ARG(k, 7, some);
	ARG(k, 8, i);
	return code;
}

static void buffer_kernel(int kind)
{
	struct mem *a = pick(0, 1, CL_MEM_READ_ONLY), *b = pick(0, 0, CL_MEM_WRITE_ONLY);
	int clone, two = kind == MIX || kind == CONSTANTS;
	cl_int code = 0;

	/* The constants fit the device's, and memory is aligned for numbers. */
	if (!a || a->size < 64 || (two && (!b || b->root == a->root || b->size < 4 || (kind == CONSTANTS && b->size > 60000))))
		return;
	cl_command_queue q = start();
	cl_kernel k = some_kernel(kind, &clone);
	const struct shape *s = &shapes[kind == SUMS ? 0 : kind == CONSTANTS ? 1 : kind == VALUES ? 1 : any(4)];
	cl_uint n = (cl_uint)(a->size / 4);
	needs(uses_of(a), 1);
	if (two) {
		needs(uses_of(b), 0);
		code = two_buffers(k, kind, a, b);
	} else if (kind == VALUES)
		code = values(k, a->m);
	else {
		ARG(k, 0, a->m);
		ARG(k, 1, n);
		if (kind == SUMS)
			for (cl_uint i = 2; i < 4; i++)
				code |= clSetKernelArg(k, i, 64 * between(1, 10), NULL);
	}
	launch(q, kind, k, s, code);
	if (clone)
		clReleaseKernel(k);
}

static void image_kernel(int kind)
{
	int paint = kind == PAINT;
	struct mem *m = pick(1, paint, paint ? CL_MEM_READ_ONLY : CL_MEM_WRITE_ONLY), *a = pick(0, 1, CL_MEM_READ_ONLY);
	cl_mem_object_type type = kind == SOLID ? CL_MEM_OBJECT_IMAGE3D : kind == LAYERS ? CL_MEM_OBJECT_IMAGE2D_ARRAY : CL_MEM_OBJECT_IMAGE2D;
	int clone;
	cl_int code = 0;

	if (!m || !a || m->type != type || !readable(m) || a->size < 64 || a->origin % 16)
		return;
	cl_command_queue q = start();
	cl_kernel k = some_kernel(kind, &clone);
	cl_uint size[3] = {(cl_uint)m->extent[0], (cl_uint)m->extent[1], (cl_uint)m->extent[2]}, n = (cl_uint)(a->size / 16), v = (cl_uint)any(256), i = 0;
	ARG(k, i, m->m);
	i++;
	if (!paint) {
		ARG(k, i, r.sampler);
		i++;
		ARG(k, i, a->m);
		i++;
	}
	for (int j = 0; j < (kind == SOLID || kind == LAYERS ? 3 : 2); j++, i++)
		ARG(k, i, size[j]);
	if (paint)
		ARG(k, i, v);
	else
		ARG(k, i, n);
	needs(&m->uses, paint);
	if (!paint)
		needs(uses_of(a), 1);
	launch(q, kind, k, &shapes[1], code);
	if (clone)
		clReleaseKernel(k);
}

static void kernel(void)
{
	int kind = (int)any(NAMES);

	if (kind >= PICTURE)
		image_kernel(kind);
	else
		buffer_kernel(kind);
}
