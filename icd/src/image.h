/* Images: their layout in host memory. */
#ifndef DXPU_IMAGE_H
#define DXPU_IMAGE_H

#include "command.h"

/* pixel_size returns the bytes of a pixel, or 0 for a format that is not known. */
size_t pixel_size(const cl_image_format *f);

/* image_layout fills in the extent of an image, without the members of its description that its
 * type ignores. It returns 0 for a type that is not known. */
int image_layout(struct image *m);

/* image_strides makes strides of the pitches of a region in host memory, which may be 0. It
 * returns 0 if they are too small. */
int image_strides(const struct image *m, const size_t region[3], size_t row, size_t slice, size_t stride[2]);

#endif
