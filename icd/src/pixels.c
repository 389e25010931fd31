/* Commands for images. */
#include <string.h>

#include "image.h"

static cl_int check_image(cl_command_queue q, cl_mem m, const size_t *origin, const size_t *region)
{
	if (!object_is(q, KIND_QUEUE))
		return CL_INVALID_COMMAND_QUEUE;
	if (!object_is(m, KIND_MEM) || !m->image)
		return CL_INVALID_MEM_OBJECT;
	if (m->context != q->context)
		return CL_INVALID_CONTEXT;
	if (!origin || !region)
		return CL_INVALID_VALUE;
	for (int i = 0; i < 3; i++)
		if (region[i] == 0 || region[i] > m->image->extent[i] || origin[i] > m->image->extent[i] - region[i])
			return CL_INVALID_VALUE;
	return CL_SUCCESS;
}

static void add_three(struct packet *p, const size_t v[3])
{
	for (int i = 0; i < 3; i++)
		packet_u64(p, v[i]);
}

/* move_pixels sends the packets of a copy between host memory and an image. */
cl_int move_pixels(struct command *c)
{
	size_t most = (size_t)channel_block(channel_of(c->queue)) / 4;
	const struct pixels *all = &c->pixels;
	const size_t bytes[3] = {all->region[0] * c->mem->image->pixel, all->region[1], all->region[2]};
	struct piece piece = {0};
	cl_int code = CL_SUCCESS;

	while (!code && piece_next(&piece, bytes, most)) {
		const struct box host = {{0, piece.y, piece.z}, {bytes[0], piece.rows, piece.slices}, all->stride[0], all->stride[1]};
		const size_t origin[3] = {all->origin[0], all->origin[1] + piece.y, all->origin[2] + piece.z};
		const size_t region[3] = {all->region[0], piece.rows, piece.slices};
		struct packet p;
		struct part *part = part_boxed(c, &host, PACKET_WRITE_IMAGE, PACKET_READ_IMAGE, &p, &code);
		if (!part)
			return code;
		packet_u32(&p, c->mem->handle);
		packet_u32(&p, 0);
		add_three(&p, origin);
		add_three(&p, region);
		packet_u64(&p, c->write ? part->staging.at : 0);
		add_waits(&p, c);
		code = post(part, &p);
	}
	return code;
}

static cl_int transfer(struct command *c, cl_bool blocking, const size_t *origin, const size_t *region, size_t row, size_t slice,
		       void *host, cl_event *event)
{
	cl_mem m = c->mem;
	cl_int code = check_image(c->queue, m, origin, region);

	/* An image without layers or depth has no slices. */
	if (!code && slice && !m->image->desc.image_depth && !m->image->desc.image_array_size)
		code = CL_INVALID_VALUE;
	if (!code && (!host || !image_strides(m->image, region, row, slice, c->pixels.stride)))
		code = CL_INVALID_VALUE;
	if (!code &&
	    m->flags & (c->write ? CL_MEM_HOST_READ_ONLY | CL_MEM_HOST_NO_ACCESS : CL_MEM_HOST_WRITE_ONLY | CL_MEM_HOST_NO_ACCESS))
		code = CL_INVALID_OPERATION;
	if (!code)
		code = begin(c);
	if (code)
		return code;
	memcpy(c->pixels.origin, origin, sizeof c->pixels.origin);
	memcpy(c->pixels.region, region, sizeof c->pixels.region);
	c->host = host;
	return end(c, blocking, event);
}

cl_int CL_API_CALL dxpu_EnqueueReadImage(cl_command_queue q, cl_mem m, cl_bool blocking, const size_t *origin, const size_t *region,
					 size_t row, size_t slice, void *host, cl_uint waits, const cl_event *list, cl_event *event)
{
	struct command c = {
		.queue = q, .type = CL_COMMAND_READ_IMAGE, .waits = waits, .list = list, .kind = COMMAND_MOVE_PIXELS, .mem = m,
	};
	return transfer(&c, blocking, origin, region, row, slice, host, event);
}

cl_int CL_API_CALL dxpu_EnqueueWriteImage(cl_command_queue q, cl_mem m, cl_bool blocking, const size_t *origin, const size_t *region,
					  size_t row, size_t slice, const void *host, cl_uint waits, const cl_event *list,
					  cl_event *event)
{
	struct command c = {
		.queue = q, .type = CL_COMMAND_WRITE_IMAGE, .waits = waits, .list = list, .kind = COMMAND_MOVE_PIXELS, .mem = m, .write = 1,
	};
	return transfer(&c, blocking, origin, region, row, slice, (void *)(uintptr_t)host, event);
}

static int overlap(const size_t *a, const size_t *b, const size_t *region)
{
	for (int i = 0; i < 3; i++)
		if (a[i] + region[i] <= b[i] || b[i] + region[i] <= a[i])
			return 0;
	return 1;
}

cl_int CL_API_CALL dxpu_EnqueueCopyImage(cl_command_queue q, cl_mem from, cl_mem to, const size_t *a, const size_t *b,
					 const size_t *region, cl_uint waits, const cl_event *list, cl_event *event)
{
	struct command c = {.queue = q, .type = CL_COMMAND_COPY_IMAGE, .waits = waits, .list = list};
	struct packet p;
	cl_int code = check_image(q, from, a, region);

	if (!code)
		code = check_image(q, to, b, region);
	if (!code && memcmp(&from->image->format, &to->image->format, sizeof from->image->format))
		code = CL_IMAGE_FORMAT_MISMATCH;
	if (!code && from == to && overlap(a, b, region))
		code = CL_MEM_COPY_OVERLAP;
	if (!code)
		code = begin(&c);
	if (code)
		return code;
	packet_start(&p, PACKET_COPY_IMAGE, q->handle);
	packet_u32(&p, from->handle);
	packet_u32(&p, to->handle);
	add_three(&p, a);
	add_three(&p, b);
	add_three(&p, region);
	return simple(&c, &p, event);
}

cl_int CL_API_CALL dxpu_EnqueueFillImage(cl_command_queue q, cl_mem m, const void *color, const size_t *origin, const size_t *region,
					 cl_uint waits, const cl_event *list, cl_event *event)
{
	enum { COLOR = 16 };
	struct command c = {.queue = q, .type = CL_COMMAND_FILL_IMAGE, .waits = waits, .list = list};
	unsigned char bytes[COLOR] = {0};
	struct packet p;
	cl_int code = check_image(q, m, origin, region);

	if (!code && !color)
		code = CL_INVALID_VALUE;
	if (!code)
		code = begin(&c);
	if (code)
		return code;
	/* The color of a depth image is one number. */
	memcpy(bytes, color, m->image->format.image_channel_order == CL_DEPTH ? sizeof(cl_float) : COLOR);
	packet_start(&p, PACKET_FILL_IMAGE, q->handle);
	packet_u32(&p, m->handle);
	packet_u32(&p, 0);
	add_three(&p, origin);
	add_three(&p, region);
	packet_bytes(&p, bytes, sizeof bytes);
	return simple(&c, &p, event);
}

/* copy_buffer copies between an image and a buffer. */
static cl_int copy_buffer(struct command *c, uint16_t op, cl_mem image, cl_mem buffer, const size_t *origin, const size_t *region,
			  size_t offset, cl_event *event)
{
	struct packet p;
	cl_int code = check_image(c->queue, image, origin, region);

	if (!code)
		code = check_range(c->queue, buffer, offset, region[0] * region[1] * region[2] * image->image->pixel);
	if (!code)
		code = begin(c);
	if (code)
		return code;
	packet_start(&p, op, c->queue->handle);
	packet_u32(&p, image->handle);
	packet_u32(&p, buffer->handle);
	add_three(&p, origin);
	add_three(&p, region);
	packet_u64(&p, offset);
	return simple(c, &p, event);
}

cl_int CL_API_CALL dxpu_EnqueueCopyImageToBuffer(cl_command_queue q, cl_mem from, cl_mem to, const size_t *origin, const size_t *region,
						 size_t offset, cl_uint waits, const cl_event *list, cl_event *event)
{
	struct command c = {.queue = q, .type = CL_COMMAND_COPY_IMAGE_TO_BUFFER, .waits = waits, .list = list};
	return copy_buffer(&c, PACKET_IMAGE_BUFFER, from, to, origin, region, offset, event);
}

cl_int CL_API_CALL dxpu_EnqueueCopyBufferToImage(cl_command_queue q, cl_mem from, cl_mem to, size_t offset, const size_t *origin,
						 const size_t *region, cl_uint waits, const cl_event *list, cl_event *event)
{
	struct command c = {.queue = q, .type = CL_COMMAND_COPY_BUFFER_TO_IMAGE, .waits = waits, .list = list};
	return copy_buffer(&c, PACKET_BUFFER_IMAGE, to, from, origin, region, offset, event);
}

/* map_pixels makes the mapping of a box: its bytes are packed, or those of the program. */
static struct mapping *map_pixels(cl_mem m, cl_map_flags flags, const size_t *origin, const size_t *region)
{
	const struct image *image = m->image;
	struct pixels box = {{origin[0], origin[1], origin[2]}, {region[0], region[1], region[2]}, {image->stride[0], image->stride[1]}};

	if (!m->host)
		(void)image_strides(image, region, 0, 0, box.stride);
	struct mapping *map = mapping_new(m, flags, origin[0] * image->pixel + origin[1] * box.stride[0] + origin[2] * box.stride[1],
					  region[0] * region[1] * region[2] * image->pixel);
	if (map)
		map->pixels = box;
	return map;
}

void *CL_API_CALL dxpu_EnqueueMapImage(cl_command_queue q, cl_mem m, cl_bool blocking, cl_map_flags flags, const size_t *origin,
				       const size_t *region, size_t *row, size_t *slice, cl_uint waits, const cl_event *list,
				       cl_event *event, cl_int *error)
{
	struct command c = {
		.queue = q, .type = CL_COMMAND_MAP_IMAGE, .waits = waits, .list = list, .kind = COMMAND_MOVE_PIXELS, .mem = m,
	};
	struct mapping *map = NULL;
	cl_int code = check_image(q, m, origin, region);
	int slices = !code && (m->image->desc.image_depth || m->image->desc.image_array_size);

	if (!code && (!row || (slices && !slice)))
		code = CL_INVALID_VALUE;
	if (!code)
		code = map_check(m, flags);
	if (!code && !(map = map_pixels(m, flags, origin, region)))
		code = CL_MAP_FAILURE;
	if (!code) {
		int line = m->image->desc.image_type == CL_MEM_OBJECT_IMAGE1D_ARRAY;
		c.pixels = map->pixels;
		*row = c.pixels.stride[0];
		if (slice)
			*slice = !slices ? 0 : c.pixels.stride[!line];
		code = map_run(&c, map, blocking, event);
	}
	if (error)
		*error = code;
	return code ? NULL : c.host;
}
