/* Images of all formats and types of a random program. */

/* format_image makes an image of any type, with a format that is listed for it. It returns NULL if none is. */
static cl_mem format_image(cl_image_format *f, size_t extent[3], size_t *pixel, cl_mem_object_type *type, cl_mem *in)
{
	static const cl_mem_object_type types[] = {CL_MEM_OBJECT_IMAGE1D, CL_MEM_OBJECT_IMAGE2D, CL_MEM_OBJECT_IMAGE3D, CL_MEM_OBJECT_IMAGE1D_ARRAY,
						   CL_MEM_OBJECT_IMAGE2D_ARRAY, CL_MEM_OBJECT_IMAGE1D_BUFFER};
	cl_image_format list[256];
	cl_uint n = 0;
	cl_int code;

	*type = types[any(6)];
	clGetSupportedImageFormats(r.c, CL_MEM_READ_WRITE, *type, 256, list, &n);
	if (!n)
		return NULL;
	*f = list[any(n)];
	int array = *type == CL_MEM_OBJECT_IMAGE1D_ARRAY, flat = *type == CL_MEM_OBJECT_IMAGE1D || *type == CL_MEM_OBJECT_IMAGE1D_BUFFER;
	extent[0] = between(1, 20);
	extent[1] = flat ? 1 : between(1, 9);
	extent[2] = *type == CL_MEM_OBJECT_IMAGE3D || *type == CL_MEM_OBJECT_IMAGE2D_ARRAY ? between(1, 4) : 1;
	*in = *type == CL_MEM_OBJECT_IMAGE1D_BUFFER ? clCreateBuffer(r.c, 0, 20 * 16, NULL, &code) : NULL;
	const cl_image_desc d = {
		.image_type = *type, .image_width = extent[0], .image_height = flat || array ? 0 : extent[1],
		.image_depth = *type == CL_MEM_OBJECT_IMAGE3D ? extent[2] : 0,
		.image_array_size = array ? extent[1] : *type == CL_MEM_OBJECT_IMAGE2D_ARRAY ? extent[2] : 0, .mem_object = *in,
	};
	cl_mem m = clCreateImage(r.c, 0, f, &d, NULL, &code);
	size_t size = 0;
	clGetImageInfo(m, CL_IMAGE_ELEMENT_SIZE, sizeof *pixel, pixel, NULL);
	clGetMemObjectInfo(m, CL_MEM_SIZE, sizeof size, &size, NULL);
	say("image of %#x %#x, type %#x, %zu %zu %zu, pixel %zu: %d, %zu bytes", f->image_channel_order, f->image_channel_data_type, *type, extent[0], extent[1], extent[2],
	    *pixel, code, size);
	return m;
}

/* formats_step writes, fills, copies, maps and reads an image. */
static void formats_step(void)
{
	static _Thread_local unsigned char bytes[65536], got[65536];
	size_t extent[3], pixel = 0, origin[3] = {0}, row = 0, slice = 0;
	cl_mem_object_type type;
	cl_image_format f;
	cl_mem in = NULL;
	cl_int code;

	if (r.user || any(2))
		return;
	cl_mem m = format_image(&f, extent, &pixel, &type, &in);
	if (!m)
		return;
	cl_command_queue q = clCreateCommandQueueWithProperties(r.c, r.d, NULL, &code);
	cl_mem b = clCreateBuffer(r.c, 0, sizeof bytes, NULL, &code);
	size_t n = extent[0] * extent[1] * extent[2] * pixel, whole[3] = {extent[0], extent[1], extent[2]}, at[3], region[3];
	unsigned wrong = 0;
	scribble(bytes, sizeof bytes);
	code = clEnqueueWriteImage(q, m, CL_TRUE, origin, whole, 0, 0, bytes, 0, NULL, NULL);
	code |= clEnqueueReadImage(q, m, CL_TRUE, origin, whole, 0, 0, got, 0, NULL, NULL);
	wrong += memcmp(bytes, got, n) != 0;
	for (int i = 0; i < 3; i++) {
		at[i] = any(extent[i]);
		region[i] = between(1, extent[i] - at[i]);
	}
	size_t box = region[0] * region[1] * region[2] * pixel, offset = any(100);
	if (type != CL_MEM_OBJECT_IMAGE1D_BUFFER) { /* PoCL's process ends */
		code |= clEnqueueReadImage(q, m, CL_TRUE, at, region, 0, 0, bytes, 0, NULL, NULL);
		code |= clEnqueueCopyImageToBuffer(q, m, b, at, region, offset * pixel, 0, NULL, NULL);
		code |= clEnqueueReadBuffer(q, b, CL_TRUE, offset * pixel, box, got, 0, NULL, NULL);
		wrong += memcmp(bytes, got, box) != 0;
		scribble(bytes, box);
		code |= clEnqueueWriteBuffer(q, b, CL_TRUE, 0, box, bytes, 0, NULL, NULL);
		code |= clEnqueueCopyBufferToImage(q, b, m, 0, at, region, 0, NULL, NULL);
		code |= clEnqueueReadImage(q, m, CL_TRUE, at, region, 0, 0, got, 0, NULL, NULL);
		wrong += memcmp(bytes, got, box) != 0;
		union {
			cl_float f[4];
			cl_uint u[4];
		} color;
		int floats = f.image_channel_data_type != CL_SIGNED_INT8 && f.image_channel_data_type != CL_SIGNED_INT16 && f.image_channel_data_type != CL_SIGNED_INT32 &&
			     f.image_channel_data_type != CL_UNSIGNED_INT8 && f.image_channel_data_type != CL_UNSIGNED_INT16 && f.image_channel_data_type != CL_UNSIGNED_INT32;
		for (int i = 0; i < 4; i++)
			if (floats)
				color.f[i] = (cl_float)any(9) / 8;
			else
				color.u[i] = (cl_uint)any(128);
		code |= clEnqueueFillImage(q, m, &color, at, region, 0, NULL, NULL);
		cl_int mapped;
		unsigned char *p = clEnqueueMapImage(q, m, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, at, region, &row, &slice, 0, NULL, NULL, &mapped);
		code |= mapped;
		if (p) {
			say("color: %lx", hash(p, region[0] * pixel));
			scribble(p, pixel);
			code |= clEnqueueUnmapMemObject(q, m, p, 0, NULL, NULL);
		}
	}
	code |= clEnqueueReadImage(q, m, CL_TRUE, origin, whole, 0, 0, got, 0, NULL, NULL);
	say("formats: %d, wrong %u, %lx", code, wrong, hash(got, n));
	clReleaseMemObject(m);
	clReleaseMemObject(b);
	if (in)
		clReleaseMemObject(in);
	clReleaseCommandQueue(q);
}
