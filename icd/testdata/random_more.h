/* Shared virtual memory, references, and other calls of a random program. */

enum { REGION = 20000 };

/* shared_step writes, copies and fills regions of shared virtual memory, and checks what a kernel makes of them. */
static void shared_step(void)
{
	cl_uint n = REGION / 4;
	unsigned char *a = clSVMAlloc(r.c, CL_MEM_READ_WRITE, REGION, 0), *b = clSVMAlloc(r.c, any(2) ? CL_MEM_READ_WRITE : CL_MEM_READ_ONLY, REGION, (cl_uint)(any(2) ? 128 : 0));
	cl_event e[6] = {NULL};
	cl_int code = 0;
	cl_uint pattern = (cl_uint)next();
	size_t at = any(REGION / 2), count = between(1, REGION / 2);
	const struct shape *s = &shapes[any(4)];

	if (r.user || !a || !b) {
		clSVMFree(r.c, a);
		clSVMFree(r.c, b);
		return;
	}
	struct area *area = &r.areas[any(AREAS)];
	cl_command_queue q = start();
	needs(&area->uses, 0);
	code |= clEnqueueSVMMemcpy(q, CL_FALSE, a, area->bytes, REGION, r.wait_count, r.wait_count ? r.waits : NULL, &e[0]);
	code |= clEnqueueSVMMap(q, CL_TRUE, any(2) ? CL_MAP_WRITE : CL_MAP_WRITE_INVALIDATE_REGION, b, REGION, 0, NULL, NULL);
	scribble(b, REGION);
	code |= clEnqueueSVMUnmap(q, b, 1, e, &e[1]);
	q = r.queues[any(QUEUES)];
	code |= clEnqueueSVMMemFill(q, a + 4 * any(100), &pattern, 4, 4 * between(1, 1000), 1, &e[1], &e[2]);
	cl_kernel k = r.kernels[MIX];
	code |= clSetKernelArgSVMPointer(k, 0, a);
	code |= clSetKernelArgSVMPointer(k, 2, b);
	ARG(k, 1, n);
	ARG(k, 3, n);
	ARG(k, 4, pattern);
	code |= clEnqueueNDRangeKernel(q, k, s->dims, s->has_offset ? s->offset : NULL, s->global, s->has_local ? s->local : NULL, 1, &e[2], &e[3]);
	code |= clEnqueueSVMMemcpy(q, CL_FALSE, b + any(100), a + at, count, 1, &e[3], &e[4]);
	code |= clWaitForEvents(1, &e[4]);
	code |= clEnqueueSVMMap(q, CL_TRUE, CL_MAP_READ, a, REGION, 0, NULL, NULL);
	code |= clEnqueueSVMMap(q, CL_TRUE, CL_MAP_READ, b + 5, REGION - 5, 0, NULL, NULL);
	say("shared: %d, %lx %lx", code, hash(a, REGION), hash(b + 5, REGION - 5));
	code |= clEnqueueSVMUnmap(q, a, 0, NULL, NULL);
	code |= clEnqueueSVMUnmap(q, b + 5, 0, NULL, NULL);
	void *both[2] = {a, b};
	code |= clEnqueueSVMFree(q, 2, both, NULL, NULL, 0, NULL, &e[5]);
	code |= clWaitForEvents(1, &e[5]);
	say("shared: %d", code);
	for (int i = 0; i < 6; i++)
		clReleaseEvent(e[i]);
}

static void CL_CALLBACK destroyed(cl_mem m, void *data)
{
	long *order = data;

	(void)m;
	order[0] = order[0] * 10 + order[1];
}

/* references retains and releases, and sees callbacks at the end. */
static void references(void)
{
	static _Thread_local long order[4][2];
	cl_int code;

	cl_mem m = clCreateBuffer(r.c, 0, 4096, NULL, &code);
	const cl_buffer_region half = {0, 2048};
	cl_mem part = clCreateSubBuffer(m, 0, CL_BUFFER_CREATE_TYPE_REGION, &half, &code);
	long seen[2];
	for (int i = 0; i < 3; i++) {
		order[i][0] = 0, order[i][1] = i + 1;
		code |= clSetMemObjectDestructorCallback(m, destroyed, order[i]);
	}
	code |= clRetainMemObject(m) | clReleaseMemObject(m) | clReleaseMemObject(m);
	seen[0] = order[0][0];
	code |= clReleaseMemObject(part);
	seen[1] = order[0][0] + order[1][0] * 10 + order[2][0] * 100;
	cl_command_queue q = clCreateCommandQueueWithProperties(r.c, r.d, NULL, &code);
	code |= clRetainCommandQueue(q) | clReleaseCommandQueue(q) | clReleaseCommandQueue(q);
	code |= clRetainContext(r.c) | clReleaseContext(r.c) | clRetainProgram(r.g) | clReleaseProgram(r.g);
	code |= clRetainKernel(r.kernels[0]) | clReleaseKernel(r.kernels[0]) | clRetainSampler(r.sampler) | clReleaseSampler(r.sampler);
	say("references: %d, %ld %ld", code, seen[0], seen[1]);
}

/* denies reports whether memory with flags may hold no object with flags of its own. */
static int denies(cl_mem_flags whole, cl_mem_flags own)
{
	cl_mem_flags only = whole & (CL_MEM_READ_ONLY | CL_MEM_WRITE_ONLY);

	return (only && own & (CL_MEM_READ_WRITE | CL_MEM_READ_ONLY | CL_MEM_WRITE_ONLY) && !(own & only)) || (own & CL_MEM_HOST_READ_ONLY && whole & host_reads) ||
	       (own & CL_MEM_HOST_WRITE_ONLY && whole & host_writes);
}

/* image_in makes an image in a buffer, and reads it. */
static void image_in(void)
{
	struct mem *b = pick(0, 1, 0);
	const cl_image_format f = {CL_RGBA, CL_UNSIGNED_INT8};
	cl_image_desc d = {.image_type = CL_MEM_OBJECT_IMAGE1D_BUFFER, .image_width = between(1, 16)};
	static const cl_mem_flags all[] = {0, 0, 0, CL_MEM_READ_ONLY, CL_MEM_WRITE_ONLY, CL_MEM_READ_WRITE, CL_MEM_HOST_READ_ONLY, CL_MEM_HOST_WRITE_ONLY, CL_MEM_HOST_NO_ACCESS};
	cl_mem_flags own = all[any(9)];
	const size_t origin[3] = {0}, region[3] = {d.image_width, 1, 1};
	cl_uint out[16], size = 0;
	cl_int code;

	if (!b || is_part(b) || denies(b->flags, own)) /* PoCL makes an image that the buffer denies */
		return;
	d.mem_object = b->m;
	cl_mem m = clCreateImage(r.c, own, &f, &d, NULL, &code);
	say("image in buffer %d, flags %#lx in %#lx: %d", (int)(b - r.mems), (long)own, (long)b->flags, code);
	if (code)
		return;
	size_t pitch = 0;
	cl_mem_flags flags = 0;
	clGetImageInfo(m, CL_IMAGE_ROW_PITCH, sizeof pitch, &pitch, NULL);
	clGetMemObjectInfo(m, CL_MEM_FLAGS, sizeof flags, &flags, NULL);
	clGetMemObjectInfo(m, CL_MEM_REFERENCE_COUNT, sizeof size, &size, NULL);
	cl_command_queue q = start();
	cl_event e = NULL;
	needs(uses_of(b), 1);
	if (!r.user) {
		code = clEnqueueReadImage(q, m, CL_TRUE, origin, region, 0, 0, out, r.wait_count, r.wait_count ? r.waits : NULL, &e);
		/* PoCL forgets the flags of the buffer when the image has some of its own. */
		say("read in buffer: pitch %zu, flags %#lx, %d %lx", pitch, own ? 0 : (long)flags, code, code ? 0 : hash(out, d.image_width * 4));
		clReleaseEvent(e);
	}
	clReleaseMemObject(m);
}

/* old calls a few that OpenCL has replaced. */
static void old(void)
{
	cl_command_queue q = start();
	cl_event e = NULL;
	cl_int code = 99;

	if (any(2))
		ended("old marker", clEnqueueMarker(q, &e), &e);
	else
		code = clEnqueueBarrier(q);
	say("old: %d, no event: %d, flush: %d", code, clEnqueueMarker(q, NULL), clFlush(q));
}

/* foreign uses objects of two contexts together. */
static void foreign(void)
{
	const size_t zero[3] = {0}, one[3] = {1, 1, 1};
	cl_int code;
	cl_uint v = 0;

	cl_context c = clCreateContext(NULL, 1, &r.d, NULL, NULL, &code);
	cl_command_queue q = clCreateCommandQueueWithProperties(c, r.d, NULL, &code);
	cl_mem m = clCreateBuffer(c, 0, 4096, NULL, &code);
	cl_event e = clCreateUserEvent(c, &code);
	struct mem *own = pick(0, 1, 0);
	cl_command_queue mine = r.queues[any(QUEUES)];
	cl_int codes[8] = {
		clEnqueueReadBuffer(mine, m, CL_FALSE, 0, 4, &v, 0, NULL, NULL), clEnqueueWriteBuffer(mine, m, CL_FALSE, 0, 4, &v, 0, NULL, NULL),
		clEnqueueFillBuffer(mine, m, &v, 4, 0, 4, 0, NULL, NULL), clEnqueueMarkerWithWaitList(mine, 1, &e, NULL),
		clEnqueueNDRangeKernel(q, r.kernels[NUMBERS], 1, NULL, one, NULL, 0, NULL, NULL), clEnqueueUnmapMemObject(mine, m, &v, 0, NULL, NULL),
		own ? clEnqueueCopyBuffer(mine, m, own->m, 0, 0, 4, 0, NULL, NULL) : 0,
		clEnqueueReadBufferRect(mine, m, CL_FALSE, zero, zero, one, 0, 0, 0, 0, &v, 0, NULL, NULL),
	};
	clEnqueueMapBuffer(mine, m, CL_FALSE, CL_MAP_READ, 0, 4, 0, NULL, NULL, &code);
	cl_event both[2] = {e, r.event_count ? r.events[0] : e};
	clSetUserEventStatus(e, CL_COMPLETE);
	say("foreign: %d %d %d %d %d %d %d %d, map %d, wait %d", codes[0], codes[1], codes[2], codes[3], codes[4], codes[5], codes[6], codes[7], code,
	    r.user ? 0 : clWaitForEvents(2, both));
	clReleaseEvent(e);
	clReleaseMemObject(m);
	clReleaseCommandQueue(q);
	clReleaseContext(c);
}

/* image_formats asks for formats. */
static void image_formats(void)
{
	static const cl_mem_flags flags[] = {CL_MEM_READ_WRITE, CL_MEM_READ_ONLY, CL_MEM_WRITE_ONLY};
	cl_image_format out[128] = {{0}};
	cl_mem_flags f = flags[any(3)];
	cl_mem_object_type type = CL_MEM_OBJECT_BUFFER + (cl_mem_object_type)any(8);
	cl_uint room = (cl_uint)any(100), n = 0;
	int null = any(3) == 0;
	cl_int code = clGetSupportedImageFormats(r.c, f, type, room, null ? NULL : out, &n);

	say("formats of %#x for %#lx, room %u, null %d: %d, %u, %lx", type, (long)f, room, null, code, code ? 0 : n, hash(out, sizeof out));
}
