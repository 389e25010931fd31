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

int piece_next(struct piece *p, const size_t region[3], size_t most)
{
	size_t y = p->y + p->rows, z = p->z, rows = most / region[0];

	if (p->rows == region[1] || y == region[1]) {
		y = 0;
		z += p->slices;
	}
	if (z == region[2])
		return 0;
	if (rows == 0)
		rows = 1;
	p->y = y;
	p->z = z;
	p->slices = 1;
	if (rows < region[1]) {
		p->rows = rows < region[1] - y ? rows : region[1] - y;
		return 1;
	}
	p->rows = region[1];
	p->slices = rows / region[1];
	if (p->slices > region[2] - z)
		p->slices = region[2] - z;
	return 1;
}

struct part *part_boxed(struct command *c, const struct box *b, uint16_t write, uint16_t read, struct packet *p, cl_int *code)
{
	struct channel *ch = channel_of(c->queue);
	struct part *part = part_new(c);

	*code = CL_OUT_OF_HOST_MEMORY;
	if (!part)
		return NULL;
	part->size = b->region[0] * b->region[1] * b->region[2];
	part->read = !c->write;
	part->host = c->host;
	part->boxed = 1;
	part->box = *b;
	if (c->write)
		part_settle(part);
	if (part->size > channel_block(ch) * 2 || channel_reserve(ch, part->size, &part->staging)) {
		*code = CL_OUT_OF_RESOURCES; /* a row that does not fit staging memory */
		free(part);
		return NULL;
	}
	part->staged = 1;
	packet_start(p, c->write ? write : read, c->queue->handle);
	if (c->write) {
		box_gather(b, c->host, part->staging.mirror);
		(void)channel_upload(ch, &part->staging, part->staging.mirror, part->size, p);
	}
	return part;
}

cl_int move_box(struct command *c)
{
	size_t most = (size_t)channel_block(channel_of(c->queue)) / 4;
	struct piece piece = {0};
	cl_int code = CL_SUCCESS;

	while (!code && piece_next(&piece, c->in.region, most)) {
		struct box in = c->in, out = c->out;
		struct packet p;
		in.origin[1] += piece.y;
		in.origin[2] += piece.z;
		out.origin[1] += piece.y;
		out.origin[2] += piece.z;
		in.region[1] = out.region[1] = piece.rows;
		in.region[2] = out.region[2] = piece.slices;
		struct part *part = part_boxed(c, &out, PACKET_WRITE_RECT, PACKET_READ_RECT, &p, &code);
		if (!part)
			return code;
		packet_u32(&p, c->mem->handle);
		packet_u32(&p, 0);
		add_box(&p, &in);
		add_region(&p, &in);
		packet_u64(&p, c->write ? part->staging.at : 0);
		add_waits(&p, c);
		code = post(part, &p);
	}
	return code;
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
	if (!code && m->flags & (write ? CL_MEM_HOST_READ_ONLY | CL_MEM_HOST_NO_ACCESS : CL_MEM_HOST_WRITE_ONLY | CL_MEM_HOST_NO_ACCESS))
		code = CL_INVALID_OPERATION;
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

/* apart reports whether two intervals of the same length, each of a period, have nothing in common. */
static int apart(size_t a, size_t b, size_t length, size_t period)
{
	a %= period;
	b %= period;
	return (b >= a + length && b + length <= a + period) || (a >= b + length && a + length <= b + period);
}

/* overlap reports whether two boxes with the same pitches overlap in a buffer, in which they begin at
 * a and b. */
static int overlap(const struct box *box, size_t a, size_t b)
{
	size_t plane = (box->region[1] - 1) * box->row + box->region[0], all = (box->region[2] - 1) * box->slice + plane;

	return a < b + all && b < a + all && !apart(a, b, box->region[0], box->row) && !apart(a, b, plane, box->slice);
}

static size_t box_start(cl_mem m, const struct box *b)
{
	return m->origin + b->origin[2] * b->slice + b->origin[1] * b->row + b->origin[0];
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
	if (!code && from == to && (ba.row != bb.row || ba.slice != bb.slice))
		code = CL_INVALID_VALUE;
	if (!code && mem_root(from) == mem_root(to) && ba.row == bb.row && ba.slice == bb.slice &&
	    overlap(&ba, box_start(from, &ba), box_start(to, &bb)))
		code = CL_MEM_COPY_OVERLAP;
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
