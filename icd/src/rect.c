#include <stdlib.h>

#include "command.h"

/* box_check fills in the pitches of a box and checks them (clEnqueueReadBufferRect). */
static cl_int box_check(struct box *b, size_t bound)
{
	for (int i = 0; i < 3; i++)
		if (b->region[i] == 0 || b->region[i] > (size_t)1 << 40 || b->origin[i] > (size_t)1 << 40)
			return CL_INVALID_VALUE;
	if (b->row == 0)
		b->row = b->region[0];
	size_t plane, last, rows;
	if (__builtin_mul_overflow(b->row, b->region[1], &plane))
		return CL_INVALID_VALUE;
	if (b->slice == 0)
		b->slice = plane;
	if (b->row < b->region[0] || b->slice < plane || b->slice % b->row)
		return CL_INVALID_VALUE;
	/* The end of the box also bounds its volume. */
	if (__builtin_mul_overflow(b->origin[2] + b->region[2] - 1, b->slice, &last) ||
	    __builtin_mul_overflow(b->origin[1] + b->region[1] - 1, b->row, &rows) ||
	    __builtin_add_overflow(last, rows, &last) || __builtin_add_overflow(last, b->origin[0] + b->region[0], &last))
		return CL_INVALID_VALUE;
	return bound && last > bound ? CL_INVALID_VALUE : CL_SUCCESS;
}

static struct box box_of(const size_t *origin, const size_t *region, size_t row, size_t slice)
{
	struct box b = {{origin[0], origin[1], origin[2]}, {region[0], region[1], region[2]}, row, slice};
	return b;
}

static void add_box(struct packet *p, const struct box *b)
{
	for (int i = 0; i < 3; i++)
		packet_u64(p, b->origin[i]);
	packet_u64(p, b->row);
	packet_u64(p, b->slice);
}

static void add_region(struct packet *p, const struct box *b)
{
	for (int i = 0; i < 3; i++)
		packet_u64(p, b->region[i]);
}

cl_int move_box(struct command *c)
{
	struct channel *ch = channel_of(c->queue);
	struct part *part = part_new(c);
	struct packet p;

	if (!part)
		return CL_OUT_OF_HOST_MEMORY;
	const struct box *in = &c->in;
	part->size = in->region[0] * in->region[1] * in->region[2];
	part->read = !c->write;
	part->host = c->host;
	part->boxed = 1;
	part->box = c->out;
	/* A box is one packet: a larger one does not fit staging memory. */
	if (part->size > channel_block(ch) * 2 || channel_reserve(ch, part->size, &part->staging)) {
		free(part);
		return CL_OUT_OF_RESOURCES;
	}
	part->staged = 1;
	packet_start(&p, c->write ? PACKET_WRITE_RECT : PACKET_READ_RECT, c->queue->handle);
	if (c->write) {
		box_gather(&c->out, c->host, part->staging.mirror);
		(void)channel_upload(ch, &part->staging, part->staging.mirror, part->size, &p);
	}
	packet_u32(&p, c->mem->handle);
	packet_u32(&p, 0);
	add_box(&p, in);
	add_region(&p, in);
	packet_u64(&p, c->write ? part->staging.at : 0);
	add_waits(&p, c->waits, c->list);
	return post(part, &p);
}

static cl_int transfer_box(cl_command_queue q, cl_mem m, cl_bool blocking, int write, struct box in, struct box out, void *host,
			   cl_uint waits, const cl_event *list, cl_event *event)
{
	struct command c = {
		.queue = q, .type = write ? CL_COMMAND_WRITE_BUFFER_RECT : CL_COMMAND_READ_BUFFER_RECT, .waits = waits, .list = list,
		.kind = COMMAND_MOVE_BOX, .mem = m, .write = write, .host = host,
	};
	cl_int code = check_range(q, m, 0, 1);

	if (!code)
		code = host ? box_check(&in, m->size) : CL_INVALID_VALUE;
	if (!code)
		code = box_check(&out, 0);
	if (!code)
		code = begin(&c);
	if (code)
		return code;
	c.in = in;
	c.out = out;
	return end(&c, blocking, event);
}

cl_int CL_API_CALL dxpu_EnqueueReadBufferRect(cl_command_queue q, cl_mem m, cl_bool blocking, const size_t *from, const size_t *to,
						     const size_t *region, size_t row, size_t slice, size_t host_row, size_t host_slice,
						     void *host, cl_uint waits, const cl_event *list, cl_event *event)
{
	if (!from || !to || !region)
		return CL_INVALID_VALUE;
	return transfer_box(q, m, blocking, 0, box_of(from, region, row, slice), box_of(to, region, host_row, host_slice), host, waits,
			    list, event);
}

cl_int CL_API_CALL dxpu_EnqueueWriteBufferRect(cl_command_queue q, cl_mem m, cl_bool blocking, const size_t *to, const size_t *from,
						      const size_t *region, size_t row, size_t slice, size_t host_row, size_t host_slice,
						      const void *host, cl_uint waits, const cl_event *list, cl_event *event)
{
	if (!from || !to || !region)
		return CL_INVALID_VALUE;
	return transfer_box(q, m, blocking, 1, box_of(to, region, row, slice), box_of(from, region, host_row, host_slice),
			    (void *)(uintptr_t)host, waits, list, event);
}

cl_int CL_API_CALL dxpu_EnqueueCopyBufferRect(cl_command_queue q, cl_mem from, cl_mem to, const size_t *a, const size_t *b,
						     const size_t *region, size_t row_a, size_t slice_a, size_t row_b, size_t slice_b,
						     cl_uint waits, const cl_event *list, cl_event *event)
{
	struct command c = {.queue = q, .type = CL_COMMAND_COPY_BUFFER_RECT, .waits = waits, .list = list};
	struct packet p;
	cl_int code = check_range(q, from, 0, 1);

	if (!code)
		code = check_range(q, to, 0, 1);
	if (!code && (!a || !b || !region))
		code = CL_INVALID_VALUE;
	if (code)
		return code;
	struct box ba = box_of(a, region, row_a, slice_a), bb = box_of(b, region, row_b, slice_b);
	code = box_check(&ba, from->size);
	if (!code)
		code = box_check(&bb, to->size);
	if (!code)
		code = begin(&c);
	if (code)
		return code;
	packet_start(&p, PACKET_COPY_RECT, q->handle);
	packet_u32(&p, from->handle);
	packet_u32(&p, to->handle);
	add_box(&p, &ba);
	add_box(&p, &bb);
	add_region(&p, &ba);
	return simple(&c, &p, event);
}
