#include <stdlib.h>
#include <string.h>

#include "image.h"

static cl_mem fail(cl_int code, cl_int *error, cl_mem m)
{
	if (error)
		*error = code;
	if (m)
		free(m->image);
	free(m);
	return NULL;
}

static int has_images(cl_context c) { return (channel_features(c->device->channel) & FEATURE_IMAGES) != 0; }

/* too_large reports whether an image is larger than those that the device takes. */
static int too_large(cl_device_id d, const struct image *m)
{
	const cl_image_desc *desc = &m->desc;
	int solid = desc->image_type == CL_MEM_OBJECT_IMAGE3D;
	uint64_t width = device_number(d, solid ? CL_DEVICE_IMAGE3D_MAX_WIDTH : CL_DEVICE_IMAGE2D_MAX_WIDTH);

	if (desc->image_type == CL_MEM_OBJECT_IMAGE1D_BUFFER)
		width = device_number(d, CL_DEVICE_IMAGE_MAX_BUFFER_SIZE);
	return desc->image_width > width ||
	       desc->image_height > device_number(d, solid ? CL_DEVICE_IMAGE3D_MAX_HEIGHT : CL_DEVICE_IMAGE2D_MAX_HEIGHT) ||
	       desc->image_depth > device_number(d, CL_DEVICE_IMAGE3D_MAX_DEPTH) ||
	       desc->image_array_size > device_number(d, CL_DEVICE_IMAGE_MAX_ARRAY_SIZE);
}

/* check_desc checks an image with its memory: a pointer of the program, or another object. */
static cl_int check_desc(cl_device_id device, struct image *m, const void *host)
{
	const cl_image_desc *d = &m->desc;
	cl_mem in = d->mem_object;
	size_t pixels;

	if (!image_layout(m) || d->num_mip_levels || d->num_samples)
		return CL_INVALID_IMAGE_DESCRIPTOR;
	m->pixel = pixel_size(&m->format);
	if (m->pixel == 0)
		return CL_INVALID_IMAGE_FORMAT_DESCRIPTOR;
	if (in && (!object_is(in, KIND_MEM) || (d->image_type != CL_MEM_OBJECT_IMAGE2D && in->image)))
		return CL_INVALID_IMAGE_DESCRIPTOR;
	if (d->image_type != CL_MEM_OBJECT_IMAGE2D && !in != (d->image_type != CL_MEM_OBJECT_IMAGE1D_BUFFER))
		return CL_INVALID_IMAGE_DESCRIPTOR;
	if (!host && (d->image_slice_pitch || (d->image_row_pitch && !(in && d->image_type == CL_MEM_OBJECT_IMAGE2D))))
		return CL_INVALID_IMAGE_DESCRIPTOR;
	if (in && in->image && memcmp(in->image->extent, m->extent, sizeof m->extent))
		return CL_INVALID_IMAGE_DESCRIPTOR;
	if (__builtin_mul_overflow(m->extent[0], m->extent[1], &pixels) || __builtin_mul_overflow(pixels, m->extent[2], &pixels) ||
	    pixels == 0 || pixels > (size_t)1 << 40 || too_large(device, m))
		return CL_INVALID_IMAGE_SIZE;
	if (d->image_type == CL_MEM_OBJECT_IMAGE1D_BUFFER && d->image_width > in->size / m->pixel)
		return CL_INVALID_IMAGE_DESCRIPTOR;
	size_t row = d->image_row_pitch ? d->image_row_pitch : m->extent[0] * m->pixel;
	size_t slice = d->image_depth || d->image_array_size ? d->image_slice_pitch : 0;
	if (row % m->pixel || slice % row || !image_strides(m, (const size_t[]){m->extent[0], m->extent[1], 2}, row, slice, m->stride))
		return CL_INVALID_IMAGE_DESCRIPTOR; /* also a pitch for which one slice is too large */
	return CL_SUCCESS;
}

/* make makes the image in the device, and fills it with memory of the program. */
static cl_int make(cl_context c, cl_mem m, void *host)
{
	const cl_image_desc *d = &m->image->desc;
	cl_mem in = d->mem_object;
	struct packet p;

	m->handle = channel_handle(c->device->channel);
	packet_start(&p, PACKET_IMAGE, 0);
	packet_u32(&p, m->handle);
	packet_u32(&p, in ? in->handle : 0);
	packet_u64(&p, m->flags & ACCESS);
	packet_u32(&p, m->image->format.image_channel_order);
	packet_u32(&p, m->image->format.image_channel_data_type);
	packet_u32(&p, d->image_type);
	packet_u32(&p, 0);
	packet_u64(&p, d->image_width);
	packet_u64(&p, d->image_height);
	packet_u64(&p, d->image_depth);
	packet_u64(&p, d->image_array_size);
	packet_u64(&p, in ? d->image_row_pitch : 0);
	struct command fill = {.kind = COMMAND_MOVE_PIXELS, .mem = m, .write = 1, .host = host};
	memcpy(fill.pixels.region, m->image->extent, sizeof m->image->extent);
	memcpy(fill.pixels.stride, m->image->stride, sizeof m->image->stride);
	m->bytes = in ? 0 : m->image->extent[0] * m->image->extent[1] * m->image->extent[2] * m->image->pixel;
	uint64_t kind = (uint64_t)PACKET_IMAGE << 56 | (uint64_t)d->image_type << 40 | (m->flags & ACCESS) << 32 |
			m->image->format.image_channel_order << 16 | m->image->format.image_channel_data_type;
	if (in || m->bytes > device_allocation(c->device))
		kind = 0; /* the platform knows which pitches it takes in another object, and which size */
	cl_int code = create_filled(c, &p, m->bytes, kind, &fill);
	/* Of a format that it does not have, PoCL says what belongs to a device without images, or without 2D
	 * images in other objects. */
	int format = device_number(c->device, CL_DEVICE_IMAGE_SUPPORT) && (!in || d->image_type != CL_MEM_OBJECT_IMAGE2D);
	return code == CL_INVALID_OPERATION && format ? CL_IMAGE_FORMAT_NOT_SUPPORTED : code;
}

cl_mem CL_API_CALL dxpu_CreateImage(cl_context c, cl_mem_flags flags, const cl_image_format *format, const cl_image_desc *desc, void *host,
				    cl_int *error)
{
	cl_mem m, in;
	cl_int code;

	if (!object_is(c, KIND_CONTEXT))
		return fail(CL_INVALID_CONTEXT, error, NULL);
	if (!has_images(c))
		return fail(CL_INVALID_OPERATION, error, NULL);
	if (!flags_ok(flags & ~(cl_mem_flags)CL_MEM_KERNEL_READ_AND_WRITE))
		return fail(CL_INVALID_VALUE, error, NULL);
	if (!format)
		return fail(CL_INVALID_IMAGE_FORMAT_DESCRIPTOR, error, NULL);
	if (!desc)
		return fail(CL_INVALID_IMAGE_DESCRIPTOR, error, NULL);
	if (!(flags & HOST_POINTER) != !host)
		return fail(CL_INVALID_HOST_PTR, error, NULL);
	m = object_new(KIND_MEM, sizeof *m);
	if (!m || !(m->image = calloc(1, sizeof *m->image)))
		return fail(CL_OUT_OF_HOST_MEMORY, error, m);
	m->image->format = *format;
	m->image->desc = *desc;
	code = check_desc(c->device, m->image, host);
	if (code)
		return fail(code, error, m);
	in = m->image->desc.mem_object;
	if (in && !flags_within(in->flags, flags))
		return fail(CL_INVALID_VALUE, error, m);
	flags &= ~(cl_mem_flags)CL_MEM_KERNEL_READ_AND_WRITE;
	m->flags = in && !(flags & ACCESS) ? flags | (in->flags & ACCESS) : flags ? flags : CL_MEM_READ_WRITE;
	if (in)
		m->flags |= in->flags & (HOST_POINTER | CL_MEM_ALLOC_HOST_PTR | (flags & HOST_ACCESS ? 0 : HOST_ACCESS));
	m->size = m->image->stride[m->image->desc.image_type != CL_MEM_OBJECT_IMAGE1D_ARRAY] * m->image->extent[2];
	if (m->image->desc.image_type == CL_MEM_OBJECT_IMAGE1D_ARRAY)
		m->size = m->image->stride[1];
	m->host = flags & CL_MEM_USE_HOST_PTR ? host : in && in->host ? in->host : NULL;
	m->context = c;
	code = make(c, m, host);
	if (code)
		return fail(code, error, m);
	object_retain(c);
	if (in)
		object_retain(m->parent = in);
	if (error)
		*error = CL_SUCCESS;
	return m;
}

cl_mem CL_API_CALL dxpu_CreateImageWithProperties(cl_context c, const cl_mem_properties *properties, cl_mem_flags flags,
						  const cl_image_format *format, const cl_image_desc *desc, void *host, cl_int *error)
{
	if (properties && properties[0])
		return fail(CL_INVALID_PROPERTY, error, NULL);
	cl_mem m = dxpu_CreateImage(c, flags, format, desc, host, error);
	if (m)
		m->listed = properties != NULL;
	return m;
}

cl_mem CL_API_CALL dxpu_CreateImage2D(cl_context c, cl_mem_flags flags, const cl_image_format *format, size_t width, size_t height,
				      size_t row, void *host, cl_int *error)
{
	const cl_image_desc d = {
		.image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = width, .image_height = height, .image_row_pitch = row,
	};
	return dxpu_CreateImage(c, flags, format, &d, host, error);
}

cl_mem CL_API_CALL dxpu_CreateImage3D(cl_context c, cl_mem_flags flags, const cl_image_format *format, size_t width, size_t height,
				      size_t depth, size_t row, size_t slice, void *host, cl_int *error)
{
	const cl_image_desc d = {
		.image_type = CL_MEM_OBJECT_IMAGE3D, .image_width = width, .image_height = height, .image_depth = depth,
		.image_row_pitch = row, .image_slice_pitch = slice,
	};
	return dxpu_CreateImage(c, flags, format, &d, host, error);
}

cl_int CL_API_CALL dxpu_GetSupportedImageFormats(cl_context c, cl_mem_flags flags, cl_mem_object_type type, cl_uint room,
						 cl_image_format *out, cl_uint *n)
{
	enum { ROOM = 16 << 10 };
	struct packet p;
	struct staging s;
	uint32_t length = 0;

	if (!object_is(c, KIND_CONTEXT))
		return CL_INVALID_CONTEXT;
	if ((out && room == 0) || !flags_ok(flags & ~(cl_mem_flags)CL_MEM_KERNEL_READ_AND_WRITE) || type < CL_MEM_OBJECT_IMAGE2D || type > CL_MEM_OBJECT_IMAGE1D_BUFFER)
		return CL_INVALID_VALUE;
	if (!has_images(c)) {
		if (n)
			*n = 0;
		return CL_SUCCESS;
	}
	if (channel_reserve(c->device->channel, ROOM, &s))
		return CL_DEVICE_NOT_AVAILABLE;
	packet_start(&p, PACKET_FORMATS, 0);
	packet_u64(&p, flags);
	packet_u32(&p, type);
	packet_u32(&p, 0);
	cl_int code = channel_call(c->device->channel, &p, &s, &length);
	cl_uint found = length / sizeof *out;
	if (!code && out)
		memcpy(out, s.mirror, (room < found ? room : found) * sizeof *out);
	if (!code && n)
		*n = found;
	channel_free(c->device->channel, &s);
	return code;
}

cl_int CL_API_CALL dxpu_GetImageInfo(cl_mem m, cl_image_info param, size_t room, void *out, size_t *size)
{
	if (!object_is(m, KIND_MEM) || !m->image)
		return CL_INVALID_MEM_OBJECT;
	const cl_image_desc *d = &m->image->desc;
	int line = d->image_type == CL_MEM_OBJECT_IMAGE1D_ARRAY;
	switch (param) {
	case CL_IMAGE_FORMAT:
		return give(room, out, size, &m->image->format, sizeof m->image->format);
	case CL_IMAGE_ELEMENT_SIZE:
		return GIVE(size_t, m->image->pixel);
	case CL_IMAGE_ROW_PITCH:
		return GIVE(size_t, d->image_row_pitch ? d->image_row_pitch : m->image->extent[0] * m->image->pixel);
	case CL_IMAGE_SLICE_PITCH:
		return GIVE(size_t, line ? m->image->stride[0] : d->image_depth || d->image_array_size ? m->image->stride[1] : 0);
	case CL_IMAGE_WIDTH:
		return GIVE(size_t, d->image_width);
	case CL_IMAGE_HEIGHT:
		return GIVE(size_t, d->image_height);
	case CL_IMAGE_DEPTH:
		return GIVE(size_t, d->image_depth);
	case CL_IMAGE_ARRAY_SIZE:
		return GIVE(size_t, d->image_array_size);
	case CL_IMAGE_BUFFER:
		return GIVE(cl_mem, d->mem_object);
	case CL_IMAGE_NUM_MIP_LEVELS:
	case CL_IMAGE_NUM_SAMPLES:
		return GIVE(cl_uint, 0);
	}
	return CL_INVALID_VALUE;
}
