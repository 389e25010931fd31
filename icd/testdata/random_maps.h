/* Mappings of a random program. */

static struct map *free_map(void)
{
	for (int i = 0; i < MAPS; i++)
		if (!r.maps[i].bytes)
			return &r.maps[i];
	return NULL;
}

static void map(void)
{
	static const cl_map_flags kinds[] = {CL_MAP_READ, CL_MAP_WRITE, CL_MAP_READ | CL_MAP_WRITE, CL_MAP_WRITE_INVALIDATE_REGION, CL_MAP_READ};
	cl_map_flags flags = kinds[any(5)];
	int write = flags != CL_MAP_READ, image = any(4) == 0;
	struct map *v = free_map();
	struct mem *m = pick(image ? 2 : 0, write, (write ? host_writes : 0) | (flags & CL_MAP_READ ? host_reads : 0));
	size_t n = 0, at = 0, origin[3];
	cl_int code;
	cl_event e = NULL;

	if (!m || !v)
		return;
	cl_command_queue q = start();
	needs(uses_of(m), write || m->host != NULL); /* memory of the program is written by a map */
	*v = (struct map){.mem = (int)(m - r.mems), .flags = flags};
	cl_bool wait = blocking();
	if (m->image) {
		image_box(m, origin, v->region);
		const cl_event *l = list();
		v->bytes = clEnqueueMapImage(q, m->m, wait, flags, origin, v->region, &v->row, &v->slice, r.wait_count, l, &e, &code);
		say_box(m, origin, v->region);
		say("slices %d", v->slice != 0);
	} else {
		at = span(m->size, 1, &n);
		const cl_event *l = list();
		v->bytes = clEnqueueMapBuffer(q, m->m, wait, flags, at, n, r.wait_count, l, &e, &code);
		v->size = n;
	}
	ended("map", code, &e);
	say("map of %d, flags %#lx, %zu at %zu, right place %d", v->mem, (long)flags, n, at, !m->host || m->image || v->bytes == m->host + at);
	if (code) {
		v->bytes = NULL;
		return;
	}
	v->event = e;
	clRetainEvent(e);
	r.mems[m->root].maps++;
	r.mems[m->root].writes += write;
}

/* use_map reads and writes what is mapped. */
static void use_map(const struct map *v)
{
	const struct mem *m = &r.mems[v->mem];
	size_t rows = m->image ? v->region[1] : 1, slices = m->image ? v->region[2] : 1, n = m->image ? v->region[0] * m->pixel : v->size;

	if (m->image && m->type == CL_MEM_OBJECT_IMAGE1D_ARRAY)
		rows = 1, slices = v->region[1];
	for (size_t z = 0; z < slices; z++)
		for (size_t y = 0; y < rows; y++) {
			unsigned char *p = v->bytes + z * v->slice + y * v->row;
			if (v->flags != CL_MAP_WRITE_INVALIDATE_REGION)
				say("mapped: %lx", hash(p, n));
			if (v->flags == CL_MAP_WRITE_INVALIDATE_REGION)
				scribble(p, n);
			else if (v->flags & CL_MAP_WRITE)
				scribble(p + any(n), 1);
		}
}

static void end_user(void)
{
	if (!r.user)
		return;
	say("user event: %d", clSetUserEventStatus(r.user, CL_COMPLETE));
	r.user = NULL; /* released with the events */
}

static void unmap(void)
{
	struct map *v = &r.maps[any(MAPS)];
	cl_event e = NULL;

	if (!v->bytes)
		return;
	end_user();
	say("wait: %d", clWaitForEvents(1, &v->event));
	clReleaseEvent(v->event);
	use_map(v);
	struct mem *m = &r.mems[v->mem], *root = &r.mems[m->root];
	int write = v->flags != CL_MAP_READ;
	cl_command_queue q = start();
	needs(&root->uses, 1);
	const cl_event *l = list();
	ended("unmap", clEnqueueUnmapMemObject(q, m->m, v->bytes, r.wait_count, l, &e), &e);
	v->bytes = NULL;
	root->maps--;
	root->writes -= write;
}
