/* A buffer with parts that overlap, of a random program, and maps of the whole and of parts at once. A copy of
 * its bytes in the program says what each command must find. */

enum { WHOLE = 8192, PIECES = 5, PIECE_MAPS = 4 };

/* piece is the whole, or a part of it. */
struct piece {
	cl_mem m;
	size_t origin, size;
};

/* view is a map of a piece. */
struct view {
	int piece, write;
	unsigned char *bytes;
	size_t at, n; /* in the whole */
};

struct pieces {
	struct piece list[PIECES];
	struct view views[PIECE_MAPS];
	unsigned char model[WHOLE];
	unsigned wrong;
	cl_int code;
	cl_command_queue q;
};

/* may reports whether a command may use bytes of the whole: no map writes them, and none reads what it writes. */
static int may(const struct pieces *p, size_t at, size_t n, int write)
{
	for (int i = 0; i < PIECE_MAPS; i++) {
		const struct view *v = &p->views[i];
		if (v->bytes && at < v->at + v->n && v->at < at + n && (write || v->write))
			return 0;
	}
	return 1;
}

static void piece_map(struct pieces *p, int piece, size_t at, size_t n)
{
	static const cl_map_flags kinds[] = {CL_MAP_READ, CL_MAP_READ, CL_MAP_READ | CL_MAP_WRITE, CL_MAP_WRITE, CL_MAP_WRITE_INVALIDATE_REGION};
	cl_map_flags flags = kinds[any(5)];
	const struct piece *m = &p->list[piece];
	struct view *v = NULL;
	cl_int code;

	for (int i = 0; i < PIECE_MAPS; i++)
		if (!p->views[i].bytes)
			v = &p->views[i];
	if (!v || !may(p, m->origin + at, n, flags != CL_MAP_READ))
		return;
	*v = (struct view){.piece = piece, .write = flags != CL_MAP_READ, .at = m->origin + at, .n = n};
	v->bytes = clEnqueueMapBuffer(p->q, m->m, CL_TRUE, flags, at, n, 0, NULL, NULL, &code);
	p->code |= code;
	if (flags != CL_MAP_WRITE_INVALIDATE_REGION)
		p->wrong += memcmp(v->bytes, p->model + v->at, n) != 0;
	if (flags == CL_MAP_WRITE_INVALIDATE_REGION)
		scribble(v->bytes, n);
	else if (v->write)
		scribble(v->bytes + any(n), 1);
	if (v->write)
		memcpy(p->model + v->at, v->bytes, n);
}

static void piece_unmap(struct pieces *p, int i)
{
	struct view *v = &p->views[i];

	if (!v->bytes)
		return;
	p->wrong += !v->write && memcmp(v->bytes, p->model + v->at, v->n) != 0; /* nothing has changed them */
	p->code |= clEnqueueUnmapMemObject(p->q, p->list[v->piece].m, v->bytes, 0, NULL, NULL);
	v->bytes = NULL;
}

static void piece_copy(struct pieces *p, const struct piece *from, const struct piece *to)
{
	size_t n = between(1, 500), a = any(from->size - n), b = any(to->size - n), source = from->origin + a, target = to->origin + b;

	if (!may(p, source, n, 0) || !may(p, target, n, 1))
		return;
	int over = source < target + n && target < source + n;
	cl_int code = clEnqueueCopyBuffer(p->q, from->m, to->m, a, b, n, 0, NULL, NULL);
	/* PoCL looks for this in one object only. */
	if (over && from->m == to->m)
		p->wrong += code != CL_MEM_COPY_OVERLAP;
	else if (!over) {
		p->code |= code;
		memcpy(p->model + target, p->model + source, n);
	} else
		p->wrong += !!(code && code != CL_MEM_COPY_OVERLAP);
}

static void piece_kernel(struct pieces *p, const struct piece *m)
{
	cl_kernel k = r.kernels[MIX];
	const size_t items = 64;
	cl_uint n = (cl_uint)(m->size / 4), one = 1, factor = (cl_uint)next(), number;
	cl_int code = 0;

	if (!may(p, m->origin, m->size, 1))
		return;
	ARG(k, 0, m->m);
	ARG(k, 1, n);
	ARG(k, 2, r.mems[0].m); /* replaced below */
	ARG(k, 3, one);
	ARG(k, 4, factor);
	cl_mem other = clCreateBuffer(r.c, CL_MEM_COPY_HOST_PTR, 4, &factor, &code);
	ARG(k, 2, other);
	p->code |= clEnqueueNDRangeKernel(p->q, k, 1, NULL, &items, NULL, 0, NULL, NULL);
	clReleaseMemObject(other);
	for (cl_uint i = 0; i < n; i++) {
		memcpy(&number, p->model + m->origin + i * 4, 4);
		number = number * factor + factor + 1;
		memcpy(p->model + m->origin + i * 4, &number, 4);
	}
}

static void piece_command(struct pieces *p)
{
	int piece = (int)any(PIECES);
	const struct piece *m = &p->list[piece];
	size_t n = between(1, 700), at = any(m->size - n), unit = (size_t)1 << any(8);
	unsigned char bytes[1024];

	switch (any(9)) {
	case 0:
	case 1:
		piece_map(p, piece, at, n);
		return;
	case 2:
		piece_unmap(p, (int)any(PIECE_MAPS));
		return;
	case 3:
		piece_copy(p, m, &p->list[any(PIECES)]);
		return;
	case 4:
		piece_kernel(p, m);
		return;
	case 5:
		if (!may(p, m->origin + at, n, 1))
			return;
		scribble(bytes, n);
		p->code |= clEnqueueWriteBuffer(p->q, m->m, CL_TRUE, at, n, bytes, 0, NULL, NULL);
		memcpy(p->model + m->origin + at, bytes, n);
		return;
	case 6:
		at = at / unit * unit, n = (n + unit - 1) / unit * unit;
		if (at + n > m->size || !may(p, m->origin + at, n, 1))
			return;
		scribble(bytes, unit);
		p->code |= clEnqueueFillBuffer(p->q, m->m, bytes, unit, at, n, 0, NULL, NULL);
		for (size_t i = 0; i < n; i += unit)
			memcpy(p->model + m->origin + at + i, bytes, unit);
		return;
	case 7:
		p->code |= clEnqueueMigrateMemObjects(p->q, 1, &m->m, any(2) ? CL_MIGRATE_MEM_OBJECT_HOST : 0, 0, NULL, NULL);
		return;
	default:
		if (!may(p, m->origin + at, n, 0))
			return;
		p->code |= clEnqueueReadBuffer(p->q, m->m, CL_TRUE, at, n, bytes, 0, NULL, NULL);
		p->wrong += memcmp(bytes, p->model + m->origin + at, n) != 0;
	}
}

/* pieces_step uses a buffer and parts of it that overlap. */
static void pieces_step(void)
{
	static _Thread_local struct pieces p;
	int with_host = (int)any(2);
	unsigned char *host = aligned_alloc(4096, WHOLE);
	const struct timespec pause = {0, 100000};
	cl_uint maps = 1;
	cl_int code;

	memset(&p, 0, sizeof p);
	scribble(p.model, WHOLE);
	memcpy(host, p.model, WHOLE);
	p.q = clCreateCommandQueueWithProperties(r.c, r.d, NULL, &code);
	p.list[0] = (struct piece){clCreateBuffer(r.c, with_host ? CL_MEM_USE_HOST_PTR : CL_MEM_COPY_HOST_PTR, WHOLE, host, &code), 0, WHOLE};
	for (int i = 1; i < PIECES; i++) {
		const cl_buffer_region region = {any(24) * 256, between(500, 1000) * 2};
		p.list[i] = (struct piece){clCreateSubBuffer(p.list[0].m, 0, CL_BUFFER_CREATE_TYPE_REGION, &region, &code), region.origin, region.size};
		p.code |= code;
	}
	for (size_t n = between(5, 60); n > 0; n--)
		piece_command(&p);
	for (int i = 0; i < PIECE_MAPS; i++)
		piece_unmap(&p, i);
	p.code |= clEnqueueReadBuffer(p.q, p.list[0].m, CL_TRUE, 0, WHOLE, host, 0, NULL, NULL);
	p.wrong += memcmp(host, p.model, WHOLE) != 0;
	for (int i = 0; i < PIECES; i++) {
		for (int n = 0; n == 0 || (maps && n < 10000); n++) { /* PoCL's count comes late */
			p.code |= clGetMemObjectInfo(p.list[i].m, CL_MEM_MAP_COUNT, sizeof maps, &maps, NULL);
			if (maps)
				nanosleep(&pause, NULL);
		}
		p.wrong += maps;
	}
	for (int i = 0; i < PIECES; i++) /* the whole may go first */
		p.code |= clReleaseMemObject(p.list[i].m);
	p.code |= clReleaseCommandQueue(p.q);
	say("pieces: %d, wrong %u, %lx", p.code, p.wrong, hash(p.model, WHOLE));
	free(host);
}
