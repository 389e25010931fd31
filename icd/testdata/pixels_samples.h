/* Kernels read images of each type through samplers, as numbers of each kind. */
static const char *const names[] = {"f", "i", "ui"}, *const values[] = {"float4", "int4", "uint4"};
static const struct {
	cl_mem_object_type type;
	const char *name, *at;
} kinds[] = {
	{CL_MEM_OBJECT_IMAGE1D, "image1d_t", "x"},
	{CL_MEM_OBJECT_IMAGE2D, "image2d_t", "(float2)(x, y)"},
	{CL_MEM_OBJECT_IMAGE3D, "image3d_t", "(float4)(x, y, z, 0)"},
	{CL_MEM_OBJECT_IMAGE1D_ARRAY, "image1d_array_t", "(float2)(x, y)"},
	{CL_MEM_OBJECT_IMAGE2D_ARRAY, "image2d_array_t", "(float4)(x, y, z, 0)"},
};

static void build(void)
{
	static char text[32 << 10];
	const char *source = text;
	cl_int code;
	int n = 0;

	for (int v = 0; v < 3; v++)
		for (int k = 0; k < 5; k++)
			n += snprintf(text + n, sizeof text - (size_t)n,
				      "__kernel void read_%d_%d(read_only %s m, sampler_t s, __global %s *out, float4 first, float4 step) { int i = get_global_id(0);\n"
				      " float x = first.x + step.x * i, y = first.y + step.y * i, z = first.z + step.z * i; out[i] = read_image%s(m, s, %s); }\n",
				      v, k, kinds[k].name, values[v], names[v], kinds[k].at);
	program = clCreateProgramWithSource(c, 1, &source, NULL, &code);
	sure("build", clBuildProgram(program, 1, &d, "", NULL, NULL));
	for (int v = 0; v < 3; v++)
		for (int k = 0; k < 5; k++) {
			char name[32];
			snprintf(name, sizeof name, "read_%d_%d", v, k);
			reads[v][k] = clCreateKernel(program, name, &code);
			sure("kernel", code);
		}
}

static void sample(const struct image *m)
{
	static const cl_addressing_mode modes[] = {CL_ADDRESS_NONE, CL_ADDRESS_CLAMP, CL_ADDRESS_CLAMP_TO_EDGE, CL_ADDRESS_REPEAT, CL_ADDRESS_MIRRORED_REPEAT};
	enum { POINTS = 40 };
	const size_t n = POINTS;
	cl_channel_type t = m->format.image_channel_data_type;
	int v = t >= CL_SIGNED_INT8 && t <= CL_SIGNED_INT32 ? 1 : t >= CL_UNSIGNED_INT8 && t <= CL_UNSIGNED_INT32 ? 2 : 0, k = 0;
	unsigned char got[POINTS * 16];
	cl_float first[4] = {0}, step[4] = {0};
	cl_int code;

	if (in_buffer(m))
		return;
	while (kinds[k].type != m->type)
		k++;
	size_t mode = any(5);
	int normalized = mode > 2; /* the last ones are for such coordinates alone */
	cl_sampler s = clCreateSampler(c, normalized ? CL_TRUE : CL_FALSE, modes[mode], CL_FILTER_NEAREST, &code);
	sure("sampler", code);
	for (int i = 0; i < 3; i++) {
		double scale = normalized && (i == 0 || m->type == CL_MEM_OBJECT_IMAGE2D || m->type == CL_MEM_OBJECT_IMAGE3D || (i == 1 && m->type == CL_MEM_OBJECT_IMAGE2D_ARRAY)) ? (double)m->extent[i] : 1;
		double low = mode == 0 ? 0.25 : -1.75, high = mode == 0 ? (double)m->extent[i] - 0.5 : (double)m->extent[i] + 1.75;
		first[i] = (cl_float)(low / scale);
		step[i] = (cl_float)((high - low) / POINTS / scale);
	}
	cl_mem out = clCreateBuffer(c, 0, sizeof got, NULL, &code);
	sure("buffer", code);
	cl_kernel f = reads[v][k];
	sure("argument", clSetKernelArg(f, 0, sizeof m->m, &m->m) | clSetKernelArg(f, 1, sizeof s, &s) | clSetKernelArg(f, 2, sizeof out, &out) | clSetKernelArg(f, 3, 16, first) | clSetKernelArg(f, 4, 16, step));
	sure("kernel", clEnqueueNDRangeKernel(q, f, 1, NULL, &n, NULL, 0, NULL, NULL));
	sure("read", clEnqueueReadBuffer(q, out, CL_TRUE, 0, sizeof got, got, 0, NULL, NULL));
	if (v == 0) /* not a number has many forms */
		for (size_t i = 0; i < sizeof got; i += 4) {
			cl_float x;
			memcpy(&x, got + i, 4);
			if (x != x)
				memset(got + i, 0xff, 4);
		}
	say("samples of %d, %#x %#x, mode %zu: %lx", (int)(m - images), m->format.image_channel_order, t, mode, (long)hash(got, sizeof got));
	clReleaseMemObject(out);
	clReleaseSampler(s);
}
