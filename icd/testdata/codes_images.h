/* The part of codes.c for images. */

/* formats makes images of all formats: those that are listed are made. Packed types belong to some orders. */
static void formats(void)
{
	static const cl_channel_order orders[] = {CL_R, CL_A, CL_RG, CL_RA, CL_RGB, CL_RGBA, CL_BGRA, CL_ARGB, CL_INTENSITY, CL_LUMINANCE, CL_Rx, CL_RGx, CL_RGBx, CL_DEPTH,
						  CL_sRGB, CL_sRGBx, CL_sRGBA, CL_sBGRA, CL_ABGR};
	const cl_image_desc square = {.image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = 4, .image_height = 4};
	cl_image_format list[512];
	cl_uint n = 0;

	expect("formats", clGetSupportedImageFormats(c, CL_MEM_READ_WRITE, CL_MEM_OBJECT_IMAGE2D, 512, list, &n), 0);
	for (size_t i = 0; i < sizeof orders / sizeof *orders; i++)
		for (cl_channel_type type = CL_SNORM_INT8; type <= CL_UNORM_INT_101010_2; type++) {
			const cl_image_format f = {orders[i], type};
			char name[64];
			int listed = 0;
			for (cl_uint j = 0; j < n; j++)
				listed |= !memcmp(&list[j], &f, sizeof f);
			snprintf(name, sizeof name, "image of %#x, %#x, listed %d", orders[i], type, listed);
			cl_mem image = clCreateImage(c, CL_MEM_READ_WRITE, &f, &square, NULL, &code);
			int rgb = orders[i] == CL_RGB || orders[i] == CL_RGBx;
			int packed = type == CL_UNORM_SHORT_565 || type == CL_UNORM_SHORT_555 || type == CL_UNORM_INT_101010;
			/* CL_UNORM_INT24 is of depths with a stencil. */
			int wrong = (packed && !rgb) || (type == CL_UNORM_INT_101010_2 && orders[i] != CL_RGBA) || type == CL_UNORM_INT24;
			expect(name, code, listed ? CL_SUCCESS : wrong ? CL_INVALID_IMAGE_FORMAT_DESCRIPTOR : CL_IMAGE_FORMAT_NOT_SUPPORTED);
			if (image)
				clReleaseMemObject(image);
		}
}

/* descriptors makes images of 8 x 8 with pitches, and in other objects. */
static void descriptors(void)
{
	const cl_image_format format = {CL_RGBA, CL_UNSIGNED_INT8};
	const cl_image_desc square = {.image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = 8, .image_height = 8};
	static unsigned char bytes[SIZE];
	cl_mem image = clCreateImage(c, 0, &format, &square, NULL, &code);
	cl_uint alignment = 0;
	CHECK(clGetDeviceInfo(d, CL_DEVICE_IMAGE_PITCH_ALIGNMENT, sizeof alignment, &alignment, NULL), CL_SUCCESS);
	enum { NONE, HOST, BUFFER, IMAGE };
	const struct {
		cl_mem_object_type type;
		size_t width, depth, row, slice;
		int in;
		cl_int code;
	} list[] = {
		{CL_MEM_OBJECT_IMAGE3D, 8, 1, 0, 32, HOST, CL_INVALID_IMAGE_DESCRIPTOR},
		{CL_MEM_OBJECT_IMAGE3D, 8, 2, 0, 320, HOST, CL_SUCCESS},
		{CL_MEM_OBJECT_IMAGE3D, 8, 2, 0, 256, NONE, CL_INVALID_IMAGE_DESCRIPTOR},
		{CL_MEM_OBJECT_IMAGE2D_ARRAY, 8, 1, 0, 32, HOST, CL_INVALID_IMAGE_DESCRIPTOR},
		{CL_MEM_OBJECT_IMAGE2D_ARRAY, 8, 2, 0, 260, HOST, CL_INVALID_IMAGE_DESCRIPTOR},
		{CL_MEM_OBJECT_IMAGE1D_ARRAY, 8, 2, 0, 16, HOST, CL_INVALID_IMAGE_DESCRIPTOR},
		{CL_MEM_OBJECT_IMAGE1D_ARRAY, 8, 2, 0, 48, HOST, CL_INVALID_IMAGE_DESCRIPTOR},
		{CL_MEM_OBJECT_IMAGE1D_ARRAY, 8, 2, 64, 32, HOST, CL_INVALID_IMAGE_DESCRIPTOR},
		{CL_MEM_OBJECT_IMAGE1D_ARRAY, 8, 2, 32, 64, HOST, CL_SUCCESS},
		{CL_MEM_OBJECT_IMAGE2D, 8, 0, 34, 0, HOST, CL_INVALID_IMAGE_DESCRIPTOR},
		{CL_MEM_OBJECT_IMAGE2D, 8, 0, 32, 0, NONE, CL_INVALID_IMAGE_DESCRIPTOR},
		{CL_MEM_OBJECT_IMAGE1D, 8, 0, 0, 0, BUFFER, CL_INVALID_IMAGE_DESCRIPTOR},
		{CL_MEM_OBJECT_IMAGE1D_BUFFER, 8, 0, 0, 0, NONE, CL_INVALID_IMAGE_DESCRIPTOR},
		{CL_MEM_OBJECT_IMAGE1D_BUFFER, 8, 0, 0, 0, IMAGE, CL_INVALID_IMAGE_DESCRIPTOR},
		{CL_MEM_OBJECT_IMAGE1D_BUFFER, 8, 0, 32, 0, BUFFER, CL_INVALID_IMAGE_DESCRIPTOR},
		{CL_MEM_OBJECT_IMAGE1D_BUFFER, 8, 0, 0, 32, BUFFER, CL_INVALID_IMAGE_DESCRIPTOR},
		{CL_MEM_OBJECT_IMAGE1D_BUFFER, SIZE / 4 + 1, 0, 0, 0, BUFFER, CL_INVALID_IMAGE_DESCRIPTOR},
		{CL_MEM_OBJECT_IMAGE1D_BUFFER, SIZE / 4, 0, 0, 0, BUFFER, CL_SUCCESS},
		{CL_MEM_OBJECT_IMAGE2D, 8, 0, 32, 256, BUFFER, CL_INVALID_IMAGE_DESCRIPTOR},
		{CL_MEM_OBJECT_IMAGE2D, 4, 0, 0, 0, IMAGE, CL_INVALID_IMAGE_DESCRIPTOR},
		{CL_MEM_OBJECT_IMAGE2D, 8, 0, 0, 0, BUFFER, alignment ? CL_SUCCESS : CL_INVALID_OPERATION},
	};
	for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
		const cl_image_desc one = {
			.image_type = list[i].type, .image_width = list[i].width, .image_height = 8, .image_depth = list[i].depth,
			.image_array_size = list[i].depth, .image_row_pitch = list[i].row, .image_slice_pitch = list[i].slice,
			.mem_object = list[i].in == BUFFER ? m : list[i].in == IMAGE ? image : NULL,
		};
		int host = list[i].in == HOST;
		cl_mem made = clCreateImage(c, host ? CL_MEM_COPY_HOST_PTR : 0, &format, &one, host ? bytes : NULL, &code);
		char name[32];
		snprintf(name, sizeof name, "descriptor %zu", i);
		expect(name, code, list[i].code);
		if (made)
			clReleaseMemObject(made);
	}
	clReleaseMemObject(image);
}

static void images(void)
{
	static unsigned char bytes[65536];
	const cl_image_format format = {CL_RGBA, CL_UNSIGNED_INT8}, odd = {CL_RGBA, 0x1111}, wide = {CL_R, CL_UNSIGNED_INT8}, mixed = {CL_R, CL_UNORM_SHORT_565};
	const cl_image_desc square = {.image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = 8, .image_height = 8};
	cl_image_desc desc = square;
	cl_mem image, second, single, write_only;
	const size_t eight[3] = {8, 8, 1}, out[3] = {1, 0, 0}, layer[3] = {0, 0, 1}, deep[3] = {1, 1, 2};
	size_t row, slice;
	cl_uint n;

	MADE(clCreateImage(c, 0, NULL, &square, NULL, &code), CL_INVALID_IMAGE_FORMAT_DESCRIPTOR);
	MADE(clCreateImage(c, 0, &format, NULL, NULL, &code), CL_INVALID_IMAGE_DESCRIPTOR);
	MADE(clCreateImage(c, 0, &odd, &square, NULL, &code), CL_INVALID_IMAGE_FORMAT_DESCRIPTOR);
	MADE(clCreateImage(c, 0, &mixed, &square, NULL, &code), CL_INVALID_IMAGE_FORMAT_DESCRIPTOR);
	MADE(clCreateImage(c, CL_MEM_READ_ONLY | CL_MEM_WRITE_ONLY, &format, &square, NULL, &code), CL_INVALID_VALUE);
	MADE(clCreateImage(c, 0, &format, &square, bytes, &code), CL_INVALID_HOST_PTR);
	MADE(clCreateImage(c, CL_MEM_COPY_HOST_PTR, &format, &square, NULL, &code), CL_INVALID_HOST_PTR);
	desc.image_width = 0;
	MADE(clCreateImage(c, 0, &format, &desc, NULL, &code), CL_INVALID_IMAGE_SIZE);
	desc.image_width = (size_t)1 << 30;
	MADE(clCreateImage(c, 0, &format, &desc, NULL, &code), CL_INVALID_IMAGE_SIZE);
	desc = square;
	desc.image_row_pitch = 64;
	MADE(clCreateImage(c, 0, &format, &desc, NULL, &code), CL_INVALID_IMAGE_DESCRIPTOR);
	desc.image_row_pitch = 16;
	MADE(clCreateImage(c, CL_MEM_COPY_HOST_PTR, &format, &desc, bytes, &code), CL_INVALID_IMAGE_DESCRIPTOR);
	desc.image_row_pitch = 33;
	MADE(clCreateImage(c, CL_MEM_COPY_HOST_PTR, &format, &desc, bytes, &code), CL_INVALID_IMAGE_DESCRIPTOR);
	desc = square;
	desc.image_type = 0x1111;
	MADE(clCreateImage(c, 0, &format, &desc, NULL, &code), CL_INVALID_IMAGE_DESCRIPTOR);
	desc = square;
	desc.num_samples = 2;
	MADE(clCreateImage(c, 0, &format, &desc, NULL, &code), CL_INVALID_IMAGE_DESCRIPTOR);

	image = clCreateImage(c, 0, &format, &square, NULL, &code);
	expect("image", code, 0);
	second = clCreateImage(c, CL_MEM_HOST_WRITE_ONLY, &format, &square, NULL, &code);
	single = clCreateImage(c, 0, &wide, &square, NULL, &code);
	write_only = clCreateImage(c, CL_MEM_HOST_READ_ONLY, &format, &square, NULL, &code);
	CHECK(clEnqueueReadImage(q, m, CL_TRUE, zero, one, 0, 0, bytes, 0, NULL, NULL), CL_INVALID_MEM_OBJECT);
	CHECK(clEnqueueReadBuffer(q, image, CL_TRUE, 0, 4, bytes, 0, NULL, NULL), CL_INVALID_MEM_OBJECT);
	CHECK(clEnqueueReadImage(q, image, CL_TRUE, out, eight, 0, 0, bytes, 0, NULL, NULL), CL_INVALID_VALUE);
	CHECK(clEnqueueReadImage(q, image, CL_TRUE, layer, one, 0, 0, bytes, 0, NULL, NULL), CL_INVALID_VALUE);
	CHECK(clEnqueueReadImage(q, image, CL_TRUE, zero, deep, 0, 0, bytes, 0, NULL, NULL), CL_INVALID_VALUE);
	CHECK(clEnqueueReadImage(q, image, CL_TRUE, zero, zero, 0, 0, bytes, 0, NULL, NULL), CL_INVALID_VALUE);
	CHECK(clEnqueueReadImage(q, image, CL_TRUE, zero, eight, 31, 0, bytes, 0, NULL, NULL), CL_INVALID_VALUE);
	CHECK(clEnqueueReadImage(q, image, CL_TRUE, zero, eight, 0, 4, bytes, 0, NULL, NULL), CL_INVALID_VALUE);
	CHECK(clEnqueueReadImage(q, image, CL_TRUE, zero, eight, 0, 0, NULL, 0, NULL, NULL), CL_INVALID_VALUE);
	CHECK(clEnqueueReadImage(q, image, CL_TRUE, NULL, eight, 0, 0, bytes, 0, NULL, NULL), CL_INVALID_VALUE);
	CHECK(clEnqueueReadImage(q, image, CL_TRUE, zero, NULL, 0, 0, bytes, 0, NULL, NULL), CL_INVALID_VALUE);
	CHECK(clEnqueueReadImage(q, second, CL_TRUE, zero, eight, 0, 0, bytes, 0, NULL, NULL), CL_INVALID_OPERATION);
	CHECK(clEnqueueWriteImage(q, write_only, CL_TRUE, zero, eight, 0, 0, bytes, 0, NULL, NULL), CL_INVALID_OPERATION);
	CHECK(clEnqueueFillImage(q, image, NULL, zero, eight, 0, NULL, NULL), CL_INVALID_VALUE);
	CHECK(clEnqueueFillImage(q, image, bytes, out, eight, 0, NULL, NULL), CL_INVALID_VALUE);
	CHECK(clEnqueueFillImage(q, image, bytes, zero, zero, 0, NULL, NULL), CL_INVALID_VALUE);
	CHECK(clEnqueueCopyImage(q, image, single, zero, zero, eight, 0, NULL, NULL), CL_IMAGE_FORMAT_MISMATCH);
	CHECK(clEnqueueCopyImage(q, image, image, zero, out, one, 0, NULL, NULL), CL_SUCCESS);
	CHECK(clEnqueueCopyImage(q, image, image, zero, zero, one, 0, NULL, NULL), CL_MEM_COPY_OVERLAP);
	CHECK(clEnqueueCopyImage(q, image, second, out, zero, eight, 0, NULL, NULL), CL_INVALID_VALUE);
	CHECK(clEnqueueCopyImage(q, image, second, zero, out, eight, 0, NULL, NULL), CL_INVALID_VALUE);
	CHECK(clEnqueueCopyImageToBuffer(q, image, m, zero, eight, SIZE - 8, 0, NULL, NULL), CL_INVALID_VALUE);
	CHECK(clEnqueueCopyImageToBuffer(q, image, image, zero, eight, 0, 0, NULL, NULL), CL_INVALID_MEM_OBJECT);
	CHECK(clEnqueueCopyBufferToImage(q, m, image, SIZE - 8, zero, eight, 0, NULL, NULL), CL_INVALID_VALUE);
	CHECK(clEnqueueCopyBufferToImage(q, m, m, 0, zero, eight, 0, NULL, NULL), CL_INVALID_MEM_OBJECT);
	MADE(clEnqueueMapImage(q, image, CL_TRUE, CL_MAP_READ, zero, eight, NULL, &slice, 0, NULL, NULL, &code), CL_INVALID_VALUE);
	MADE(clEnqueueMapImage(q, image, CL_TRUE, CL_MAP_READ, out, eight, &row, &slice, 0, NULL, NULL, &code), CL_INVALID_VALUE);
	MADE(clEnqueueMapImage(q, m, CL_TRUE, CL_MAP_READ, zero, eight, &row, &slice, 0, NULL, NULL, &code), CL_INVALID_MEM_OBJECT);
	MADE(clEnqueueMapImage(q, second, CL_TRUE, CL_MAP_READ, zero, eight, &row, &slice, 0, NULL, NULL, &code), CL_INVALID_OPERATION);
	MADE(clEnqueueMapImage(q, write_only, CL_TRUE, CL_MAP_WRITE, zero, eight, &row, &slice, 0, NULL, NULL, &code), CL_INVALID_OPERATION);
	CHECK(clGetSupportedImageFormats(c, CL_MEM_READ_WRITE, CL_MEM_OBJECT_BUFFER, 0, NULL, &n), CL_INVALID_VALUE);
	CHECK(clGetSupportedImageFormats(c, CL_MEM_READ_ONLY | CL_MEM_WRITE_ONLY, CL_MEM_OBJECT_IMAGE2D, 0, NULL, &n), CL_INVALID_VALUE);
	CHECK(clGetSupportedImageFormats(c, CL_MEM_READ_WRITE, CL_MEM_OBJECT_IMAGE2D, 0, (cl_image_format[1]){{0}}, &n), CL_INVALID_VALUE);
	CHECK(clGetImageInfo(image, 0x2222, 0, NULL, NULL), CL_INVALID_VALUE);
	const cl_sampler_properties wrong[] = {CL_SAMPLER_ADDRESSING_MODE, 0x2222, 0}, twice[] = {CL_SAMPLER_NORMALIZED_COORDS, 1, CL_SAMPLER_NORMALIZED_COORDS, 1, 0},
				    unknown[] = {0x2222, 1, 0};
	MADE(clCreateSamplerWithProperties(c, wrong, &code), CL_INVALID_VALUE);
	MADE(clCreateSamplerWithProperties(c, twice, &code), CL_INVALID_VALUE);
	MADE(clCreateSamplerWithProperties(c, unknown, &code), CL_INVALID_VALUE);
	MADE(clCreateSamplerWithProperties(NULL, NULL, &code), CL_INVALID_CONTEXT);
	CHECK(clFinish(q), CL_SUCCESS);
}
