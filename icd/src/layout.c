#include "image.h"

static size_t channels(cl_channel_order order)
{
	switch (order) {
	case CL_R:
	case CL_A:
	case CL_INTENSITY:
	case CL_LUMINANCE:
	case CL_Rx:
	case CL_DEPTH:
		return 1;
	case CL_RG:
	case CL_RA:
	case CL_RGx:
		return 2;
	case CL_RGB:
	case CL_RGBx:
	case CL_sRGB:
		return 3;
	case CL_RGBA:
	case CL_BGRA:
	case CL_ARGB:
	case CL_ABGR:
	case CL_sRGBA:
	case CL_sRGBx:
	case CL_sBGRA:
		return 4;
	}
	return 0;
}

/* goes_with reports whether channels of an order may have a type. Only the packed types belong to orders. */
static int goes_with(cl_channel_order order, cl_channel_type t)
{
	switch (t) {
	case CL_UNORM_SHORT_565:
	case CL_UNORM_SHORT_555:
	case CL_UNORM_INT_101010:
		return order == CL_RGB || order == CL_RGBx;
	case CL_UNORM_INT_101010_2:
		return order == CL_RGBA;
	}
	return 1;
}

size_t pixel_size(const cl_image_format *f)
{
	size_t n = goes_with(f->image_channel_order, f->image_channel_data_type) ? channels(f->image_channel_order) : 0;

	switch (f->image_channel_data_type) {
	case CL_UNORM_SHORT_565:
	case CL_UNORM_SHORT_555:
		return n ? 2 : 0;
	case CL_UNORM_INT_101010:
	case CL_UNORM_INT_101010_2:
		return n ? 4 : 0;
	case CL_SNORM_INT8:
	case CL_UNORM_INT8:
	case CL_SIGNED_INT8:
	case CL_UNSIGNED_INT8:
		return n;
	case CL_SNORM_INT16:
	case CL_UNORM_INT16:
	case CL_SIGNED_INT16:
	case CL_UNSIGNED_INT16:
	case CL_HALF_FLOAT:
		return 2 * n;
	case CL_SIGNED_INT32:
	case CL_UNSIGNED_INT32:
	case CL_FLOAT:
		return 4 * n;
	}
	return 0;
}

int image_layout(struct image *m)
{
	cl_image_desc *d = &m->desc;
	size_t *e = m->extent;

	e[0] = d->image_width;
	e[1] = e[2] = 1;
	switch (d->image_type) {
	case CL_MEM_OBJECT_IMAGE1D:
	case CL_MEM_OBJECT_IMAGE1D_BUFFER:
		d->image_height = d->image_depth = d->image_array_size = 0;
		return 1;
	case CL_MEM_OBJECT_IMAGE1D_ARRAY:
		d->image_height = d->image_depth = 0;
		e[1] = d->image_array_size;
		return 1;
	case CL_MEM_OBJECT_IMAGE2D:
		d->image_depth = d->image_array_size = 0;
		e[1] = d->image_height;
		return 1;
	case CL_MEM_OBJECT_IMAGE2D_ARRAY:
		d->image_depth = 0;
		e[1] = d->image_height;
		e[2] = d->image_array_size;
		return 1;
	case CL_MEM_OBJECT_IMAGE3D:
		d->image_array_size = 0;
		e[1] = d->image_height;
		e[2] = d->image_depth;
		return 1;
	}
	return 0;
}

int image_strides(const struct image *m, const size_t region[3], size_t row, size_t slice, size_t stride[2])
{
	size_t least = region[0] * m->pixel;

	if (row == 0)
		row = least;
	if (row < least)
		return 0;
	/* The slices of a 1D array are its layers. */
	if (m->desc.image_type == CL_MEM_OBJECT_IMAGE1D_ARRAY) {
		stride[0] = slice ? slice : row;
		stride[1] = stride[0] * region[1];
		return stride[0] >= row;
	}
	if (__builtin_mul_overflow(row, region[1], &least))
		return 0;
	stride[0] = row;
	stride[1] = slice ? slice : least;
	return region[2] == 1 || stride[1] >= least;
}
