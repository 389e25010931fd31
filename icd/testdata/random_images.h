/* Images of a random program. */

static const cl_image_format formats[] = {
	{CL_RGBA, CL_UNSIGNED_INT8}, {CL_RGBA, CL_UNSIGNED_INT16}, {CL_RGBA, CL_UNSIGNED_INT32}, {CL_R, CL_UNSIGNED_INT8},
	{CL_RGBA, CL_UNORM_INT8}, {CL_RGBA, CL_FLOAT}, {CL_RGBA, CL_SIGNED_INT16}, {CL_R, CL_FLOAT},
};
static const size_t pixels[] = {4, 8, 16, 1, 4, 16, 8, 4};

/* readable reports whether kernels read an image as unsigned numbers. */
static int readable(const struct mem *m) { return m->format.image_channel_data_type == CL_UNSIGNED_INT8 || m->format.image_channel_data_type == CL_UNSIGNED_INT16 || m->format.image_channel_data_type == CL_UNSIGNED_INT32; }

/* image_box chooses a box. */
static void image_box(const struct mem *m, size_t origin[3], size_t region[3])
{
	for (int i = 0; i < 3; i++) {
		origin[i] = any(m->extent[i]);
		region[i] = any(4) ? between(1, m->extent[i] - origin[i]) : m->extent[i] - origin[i];
	}
}

static void say_box(const struct mem *m, const size_t *origin, const size_t *region)
{
	say("mem %d, %zu %zu %zu at %zu %zu %zu", (int)(m - r.mems), region[0], region[1], region[2], origin[0], origin[1], origin[2]);
}

/* pitches chooses those of memory of the program, 0 is the default; it returns the bytes of the box. */
static size_t pitches(const struct mem *m, const size_t region[3], size_t *row, size_t *slice)
{
	size_t rows = m->type == CL_MEM_OBJECT_IMAGE1D_ARRAY ? 1 : region[1], slices = m->type == CL_MEM_OBJECT_IMAGE1D_ARRAY ? region[1] : region[2];
	size_t a = region[0] * m->pixel + (any(2) ? any(3) * m->pixel : 0), b = a * (rows + (any(2) ? any(3) : 0));

	/* PoCL takes the pitch of rows for that of the layers of a 1D array. */
	if (m->type == CL_MEM_OBJECT_IMAGE1D_ARRAY)
		b = a;
	*row = a;
	*slice = slices > 1 ? b : 0;
	if (a == region[0] * m->pixel && any(2))
		*row = 0;
	if (slices > 1 && b == a * rows && any(2))
		*slice = 0;
	return b * slices;
}

static void new_image(struct mem *m, int index)
{
	static const cl_mem_object_type types[] = {
		CL_MEM_OBJECT_IMAGE1D, CL_MEM_OBJECT_IMAGE2D, CL_MEM_OBJECT_IMAGE2D, CL_MEM_OBJECT_IMAGE3D, CL_MEM_OBJECT_IMAGE1D_ARRAY, CL_MEM_OBJECT_IMAGE2D_ARRAY,
	};
	static const cl_mem_flags flags[] = {0, CL_MEM_READ_WRITE, CL_MEM_READ_ONLY, CL_MEM_WRITE_ONLY, CL_MEM_HOST_READ_ONLY, CL_MEM_HOST_WRITE_ONLY};
	size_t f = any(sizeof formats / sizeof *formats), row = 0, slice = 0;
	unsigned char *host = NULL;
	cl_int code;

	*m = (struct mem){.root = index, .image = 1, .format = formats[f], .pixel = pixels[f], .type = types[any(6)], .flags = flags[any(6)]};
	m->extent[0] = between(1, 40);
	m->extent[1] = m->extent[2] = 1;
	if (m->type != CL_MEM_OBJECT_IMAGE1D)
		m->extent[1] = between(1, 12);
	if (m->type == CL_MEM_OBJECT_IMAGE3D || m->type == CL_MEM_OBJECT_IMAGE2D_ARRAY)
		m->extent[2] = between(1, 5);
	size_t n = pitches(m, m->extent, &row, &slice);
	m->flags |= any(2) ? CL_MEM_COPY_HOST_PTR : CL_MEM_USE_HOST_PTR;
	host = aligned_alloc(64, (n + 64) / 64 * 64);
	scribble(host, n);
	m->host = m->flags & CL_MEM_USE_HOST_PTR ? host : NULL;
	const cl_image_desc d = {
		.image_type = m->type, .image_width = m->extent[0], .image_height = m->type == CL_MEM_OBJECT_IMAGE1D || m->type == CL_MEM_OBJECT_IMAGE1D_ARRAY ? 0 : m->extent[1],
		.image_depth = m->type == CL_MEM_OBJECT_IMAGE3D ? m->extent[2] : 0,
		.image_array_size = m->type == CL_MEM_OBJECT_IMAGE1D_ARRAY ? m->extent[1] : m->type == CL_MEM_OBJECT_IMAGE2D_ARRAY ? m->extent[2] : 0,
		.image_row_pitch = row, .image_slice_pitch = slice,
	};
	m->m = clCreateImage(r.c, m->flags, &m->format, &d, host, &code);
	say("image %d, type %#x, format %zu, flags %#lx, %zu %zu %zu, pitches %zu %zu: %d", index, m->type, f, (long)m->flags, m->extent[0],
	    m->extent[1], m->extent[2], row, slice, code);
	if (!m->host)
		free(host);
}

/* check_images reads what the host may read. */
static void check_images(void)
{
	const size_t origin[3] = {0};

	for (int i = 0; i < MEMS; i++) {
		struct mem *m = &r.mems[i];
		if (!m->m || !m->image || m->writes || m->flags & host_reads)
			continue;
		size_t n = m->extent[0] * m->extent[1] * m->extent[2] * m->pixel;
		unsigned char *bytes = malloc(n);
		cl_int code = clEnqueueReadImage(r.queues[i % QUEUES], m->m, CL_TRUE, origin, m->extent, 0, 0, bytes, 0, NULL, NULL);
		say("image %d: %d %lx", i, code, hash(bytes, n));
		free(bytes);
	}
}

static void image_transfer(int write)
{
	struct mem *m = pick(1, write, write ? host_writes : host_reads);
	struct area *a = &r.areas[any(AREAS)];
	size_t origin[3], region[3], row, slice;
	cl_event e = NULL;

	if (!m)
		return;
	cl_command_queue q = start();
	image_box(m, origin, region);
	pitches(m, region, &row, &slice);
	needs(&m->uses, write);
	needs(&a->uses, !write);
	cl_bool wait = blocking();
	const cl_event *l = list();
	cl_int code = write ? clEnqueueWriteImage(q, m->m, wait, origin, region, row, slice, a->bytes, r.wait_count, l, &e)
			    : clEnqueueReadImage(q, m->m, wait, origin, region, row, slice, a->bytes, r.wait_count, l, &e);
	ended(write ? "write image" : "read image", code, &e);
	say_box(m, origin, region);
	say("area %d, pitches %zu %zu", (int)(a - r.areas), row, slice);
	if (wait && !code)
		say("pixels: %lx", hash(a->bytes, AREA));
}

static void image_copy(void)
{
	struct mem *from = pick(1, 0, 0), *to = pick(1, 1, 0);
	size_t a[3], b[3], region[3];
	cl_event e = NULL;

	if (!from || !to || from == to || memcmp(&from->format, &to->format, sizeof from->format))
		return;
	cl_command_queue q = start();
	for (int i = 0; i < 3; i++) {
		region[i] = between(1, from->extent[i] < to->extent[i] ? from->extent[i] : to->extent[i]);
		a[i] = any(from->extent[i] - region[i] + 1);
		b[i] = any(to->extent[i] - region[i] + 1);
	}
	needs(&from->uses, 0);
	needs(&to->uses, 1);
	const cl_event *l = list();
	ended("copy image", clEnqueueCopyImage(q, from->m, to->m, a, b, region, r.wait_count, l, &e), &e);
}

static void image_buffer(int out)
{
	struct mem *m = pick(1, !out, 0), *b = pick(0, out, 0);
	size_t origin[3], region[3];
	cl_event e = NULL;

	/* PoCL's process ends with a part. */
	if (!m || !b || is_part(b))
		return;
	image_box(m, origin, region);
	size_t n = region[0] * region[1] * region[2] * m->pixel;
	if (n > b->size)
		return;
	size_t at = any(b->size - n + 1);
	cl_command_queue q = start();
	needs(&m->uses, !out);
	needs(uses_of(b), out);
	const cl_event *l = list();
	ended(out ? "image to buffer" : "buffer to image",
	      out ? clEnqueueCopyImageToBuffer(q, m->m, b->m, origin, region, at, r.wait_count, l, &e)
		  : clEnqueueCopyBufferToImage(q, b->m, m->m, at, origin, region, r.wait_count, l, &e),
	      &e);
	say_box(m, origin, region);
	say("buffer %d at %zu", (int)(b - r.mems), at);
}

static void image_fill(void)
{
	struct mem *m = pick(1, 1, 0);
	union {
		cl_uint u[4];
		cl_float f[4];
	} color;
	size_t origin[3], region[3];
	cl_event e = NULL;

	if (!m)
		return;
	cl_command_queue q = start();
	image_box(m, origin, region);
	for (int i = 0; i < 4; i++)
		if (m->format.image_channel_data_type == CL_FLOAT || m->format.image_channel_data_type == CL_UNORM_INT8)
			color.f[i] = (float)any(2); /* platforms round others */
		else
			color.u[i] = (cl_uint)any(100);
	needs(&m->uses, 1);
	const cl_event *l = list();
	ended("fill image", clEnqueueFillImage(q, m->m, &color, origin, region, r.wait_count, l, &e), &e);
	say_box(m, origin, region);
}

static void image_step(void)
{
	switch (any(7)) {
	case 0:
	case 1:
		image_transfer(0);
		break;
	case 2:
		image_transfer(1);
		break;
	case 3:
		image_copy();
		break;
	case 4:
		image_fill();
		break;
	default:
		image_buffer((int)any(2));
	}
}
