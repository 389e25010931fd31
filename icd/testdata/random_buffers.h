/* Buffers of a random program, and the commands for them. */

static void fresh(struct mem *m)
{
	/* The content of new memory is not defined. */
	struct area *a = &r.areas[any(AREAS)];
	cl_command_queue q = start();
	cl_event e = NULL;

	if (m->flags & host_writes) {
		cl_uint pattern = (cl_uint)next();
		needs(uses_of(m), 1);
		ended("first fill", clEnqueueFillBuffer(q, m->m, &pattern, 1, 0, m->size, r.wait_count, r.wait_count ? r.waits : NULL, &e), &e);
		return;
	}
	needs(&a->uses, 0);
	needs(uses_of(m), 1);
	ended("first write", clEnqueueWriteBuffer(q, m->m, CL_FALSE, 0, m->size, a->bytes, r.wait_count, r.wait_count ? r.waits : NULL, &e), &e);
}

static cl_mem_flags random_flags(void)
{
	static const cl_mem_flags access[] = {0, CL_MEM_READ_WRITE, CL_MEM_READ_WRITE, CL_MEM_READ_ONLY, CL_MEM_WRITE_ONLY},
				  host[] = {0, 0, 0, 0, 0, CL_MEM_HOST_READ_ONLY, CL_MEM_HOST_WRITE_ONLY, CL_MEM_HOST_NO_ACCESS},
				  pointer[] = {0, 0, CL_MEM_ALLOC_HOST_PTR, CL_MEM_COPY_HOST_PTR, CL_MEM_ALLOC_HOST_PTR | CL_MEM_COPY_HOST_PTR, CL_MEM_USE_HOST_PTR};

	return access[any(5)] | host[any(8)] | pointer[any(6)];
}

static void new_buffer(struct mem *m, int index)
{
	static const size_t sizes[] = {64, 256, 1000, 4096, 10004, 65536, 200000};
	unsigned char bytes[200000], *host = NULL;
	cl_int code;

	*m = (struct mem){.root = index, .size = sizes[any(7)], .flags = random_flags()};
	if (m->flags & CL_MEM_USE_HOST_PTR)
		m->host = host = aligned_alloc(64, (m->size + 63) / 64 * 64);
	else if (m->flags & CL_MEM_COPY_HOST_PTR)
		host = bytes;
	if (host)
		scribble(host, m->size);
	const cl_mem_properties none = 0;
	m->m = any(4) ? clCreateBuffer(r.c, m->flags, m->size, host, &code) : clCreateBufferWithProperties(r.c, any(2) ? &none : NULL, m->flags, m->size, host, &code);
	say("buffer %d, flags %#lx, size %zu: %d", index, (long)m->flags, m->size, code);
	if (!host)
		fresh(m);
}

static void new_part(struct mem *m, int index)
{
	int root = (int)any(MEMS);
	const struct mem *whole = &r.mems[root];
	static const cl_mem_flags flags[] = {0, 0, CL_MEM_READ_WRITE, CL_MEM_READ_ONLY, CL_MEM_HOST_NO_ACCESS};
	cl_int code;

	if (!whole->m || whole->image || whole->root != root || whole->size < 1000)
		return;
	cl_buffer_region region = {any(whole->size / 128) * 128, 0};
	region.size = between(1, whole->size - region.origin);
	cl_mem_flags f = flags[any(5)];
	*m = (struct mem){.root = root, .origin = region.origin, .size = region.size, .host = whole->host ? whole->host + region.origin : NULL};
	m->m = clCreateSubBuffer(whole->m, f, CL_BUFFER_CREATE_TYPE_REGION, &region, &code);
	say("part %d of %d, %zu at %zu, flags %#lx: %d", index, root, region.size, region.origin, (long)f, code);
	if (code) {
		*m = (struct mem){0};
		return;
	}
	clGetMemObjectInfo(m->m, CL_MEM_FLAGS, sizeof m->flags, &m->flags, NULL);
}

static void new_mem(void)
{
	int index = (int)any(MEMS);
	struct mem *m = &r.mems[index];

	if (m->m)
		return;
	switch (any(4)) {
	case 0:
		new_image(m, index);
		break;
	case 1:
		new_part(m, index);
		break;
	default:
		new_buffer(m, index);
	}
}

/* drop releases memory; commands may still use it. */
static void drop_mem(void)
{
	int index = (int)any(MEMS);
	struct mem *m = &r.mems[index];

	if (!m->m || r.mems[m->root].maps || m->host)
		return;
	for (int i = 0; i < MEMS; i++)
		if (i != index && r.mems[i].m && r.mems[i].root == index)
			return;
	say("release %d: %d", index, clReleaseMemObject(m->m));
	if (m->root == index)
		m->uses = (struct uses){0};
	m->m = NULL;
}

/* span chooses a range of memory. */
static size_t span(size_t size, size_t unit, size_t *n)
{
	size_t units = size / unit, first = any(units);

	*n = between(1, units - first) * unit;
	if (any(8) == 0)
		*n = (units - first) * unit;
	return first * unit;
}

static void transfer(void)
{
	int write = (int)any(2);
	struct mem *m = pick(0, write, write ? host_writes : host_reads);
	struct area *a = &r.areas[any(AREAS)];
	cl_event e = NULL;
	size_t n, at;

	if (!m)
		return;
	cl_command_queue q = start();
	at = span(m->size, 1, &n);
	unsigned char *host = a->bytes + any(AREA - n + 1);
	if (any(20) == 0)
		n = 0;
	needs(uses_of(m), write);
	needs(&a->uses, !write);
	cl_bool wait = blocking();
	const cl_event *l = list();
	cl_int code = write ? clEnqueueWriteBuffer(q, m->m, wait, at, n, host, r.wait_count, l, &e)
			    : clEnqueueReadBuffer(q, m->m, wait, at, n, host, r.wait_count, l, &e);
	ended(write ? "write" : "read", code, &e);
	if (wait && !code && n)
		say("%s of %zu at %zu: %lx", write ? "write" : "read", n, at, hash(host, n));
}

/* box chooses a box in memory of a size, and its pitches. */
static int box(size_t size, const size_t region[3], size_t origin[3], size_t *row, size_t *slice)
{
	*row = region[0] + (any(2) ? any(20) : 0);
	*slice = *row * (region[1] + (any(2) ? any(3) : 0));
	if (any(4) == 0) {
		*row = region[0];
		*slice = *row * region[1];
	}
	size_t z = any(3), y = any(4), x = any(30);
	origin[0] = x, origin[1] = y, origin[2] = z;
	size_t end = (z + region[2] - 1) * *slice + (y + region[1] - 1) * *row + x + region[0];
	if (*row == region[0] && *slice == *row * region[1] && any(2))
		*row = *slice = 0; /* the default */
	else if (*slice == *row * region[1] && any(2))
		*slice = 0;
	return end <= size;
}

static void box_transfer(void)
{
	int write = (int)any(2);
	struct mem *m = pick(0, write, write ? host_writes : host_reads);
	struct area *a = &r.areas[any(AREAS)];
	const size_t region[3] = {between(1, 60), between(1, 12), between(1, 4)};
	size_t in[3], out[3], row, slice, host_row, host_slice;
	cl_event e = NULL;

	if (!m || !box(m->size, region, in, &row, &slice) || !box(AREA, region, out, &host_row, &host_slice))
		return;
	cl_command_queue q = start();
	needs(uses_of(m), write);
	needs(&a->uses, !write);
	cl_bool wait = blocking();
	const cl_event *l = list();
	cl_int code = write ? clEnqueueWriteBufferRect(q, m->m, wait, in, out, region, row, slice, host_row, host_slice, a->bytes, r.wait_count, l, &e)
			    : clEnqueueReadBufferRect(q, m->m, wait, in, out, region, row, slice, host_row, host_slice, a->bytes, r.wait_count, l, &e);
	ended(write ? "write box" : "read box", code, &e);
	if (wait && !code)
		say("box of %zu %zu %zu: %lx", region[0], region[1], region[2], hash(a->bytes, AREA));
}

static void copy(void)
{
	struct mem *from = pick(0, 0, 0), *to = pick(0, 1, 0);
	const size_t region[3] = {between(1, 60), between(1, 12), between(1, 4)};
	size_t a[3], b[3], rows[2], slices[2], n, at;
	cl_event e = NULL;

	if (!from || !to)
		return;
	cl_command_queue q = start();
	needs(uses_of(from), 0);
	needs(uses_of(to), 1);
	if (from->root == to->root) /* one use, which writes */
		r.used[0] = r.used[--r.used_count], r.writes[0] = 1;
	if (any(2)) {
		at = span(from->size < to->size ? from->size : to->size, 1, &n);
		size_t target = any(to->size - n + 1);
		const cl_event *l = list();
		ended("copy", clEnqueueCopyBuffer(q, from->m, to->m, at, target, n, r.wait_count, l, &e), &e);
		return;
	}
	if (!box(from->size, region, a, &rows[0], &slices[0]) || !box(to->size, region, b, &rows[1], &slices[1]))
		return;
	/* Copies of boxes of parts end PoCL's process. Boxes in one buffer may overlap. */
	if (from->root == to->root || is_part(from) || is_part(to))
		return;
	const cl_event *l = list();
	ended("copy box", clEnqueueCopyBufferRect(q, from->m, to->m, a, b, region, rows[0], slices[0], rows[1], slices[1], r.wait_count, l, &e), &e);
}

static void fill(void)
{
	static const size_t sizes[] = {1, 2, 4, 8, 16, 32, 64, 128};
	struct mem *m = pick(0, 1, 0);
	unsigned char pattern[128];
	cl_event e = NULL;
	size_t unit = sizes[any(8)], n, at;

	if (!m || m->size < unit)
		return;
	cl_command_queue q = start();
	scribble(pattern, sizeof pattern);
	at = span(m->size, unit, &n);
	needs(uses_of(m), 1);
	const cl_event *l = list();
	ended("fill", clEnqueueFillBuffer(q, m->m, pattern, unit, at, n, r.wait_count, l, &e), &e);
}
