/* Wrong calls for images: each has the code of the standard, or, of PoCL 3.1, none (all). They change nothing. */

static void expect(const char *what, int kind, cl_int code, cl_int want)
{
	if (code != want)
		printf("%lu.%lu %s %d: wrong, %d, want %d\n", seed, at_step, what, kind, code, want);
	wrong += code != want;
	say("%s %d: %d", what, kind, code);
}

static void wrong_box(struct image *m)
{
	static unsigned char host[1 << 16];
	size_t o[3] = {0}, r[3] = {m->extent[0], m->extent[1], m->extent[2]}, i = any(3), least = r[0] * m->pixel;
	int write = (int)any(2);

	if (!all)
		return;
	switch (any(5)) {
	case 0:
		r[i] = 0;
		break;
	case 1:
		o[i] = 1; /* behind the last one */
		break;
	case 2:
		o[i] = SIZE_MAX;
		break;
	case 3:
		least -= 1;
		if (least == 0)
			return;
		expect("narrow", write, write ? clEnqueueWriteImage(q, m->m, CL_FALSE, o, r, least, 0, host, 0, NULL, NULL) : clEnqueueReadImage(q, m->m, CL_FALSE, o, r, least, 0, host, 0, NULL, NULL), CL_INVALID_VALUE);
		return;
	default:
		if (m->extent[2] == 1)
			return;
		expect("flat", write, write ? clEnqueueWriteImage(q, m->m, CL_FALSE, o, r, 0, least * r[1] - 1, host, 0, NULL, NULL) : clEnqueueReadImage(q, m->m, CL_FALSE, o, r, 0, least * r[1] - 1, host, 0, NULL, NULL), CL_INVALID_VALUE);
		return;
	}
	if (!in_buffer(m))
		expect("copy to a buffer", write, write ? clEnqueueCopyBufferToImage(q, buffer, m->m, 0, o, r, 0, NULL, NULL) : clEnqueueCopyImageToBuffer(q, m->m, buffer, o, r, 0, 0, NULL, NULL), CL_INVALID_VALUE);
	expect("box", write, write ? clEnqueueWriteImage(q, m->m, CL_FALSE, o, r, 0, 0, host, 0, NULL, NULL) : clEnqueueReadImage(q, m->m, CL_FALSE, o, r, 0, 0, host, 0, NULL, NULL), CL_INVALID_VALUE);
}

static void wrong_object(struct image *m)
{
	static unsigned char host[1 << 16];
	const size_t zero[3] = {0}, *r = m->extent;
	const cl_event none = NULL;
	size_t row, slice, n = volume(m);
	cl_int code = 0;
	int kind = (int)any(14);

	switch (kind) {
	case 0:
		expect("object", kind, clEnqueueReadImage(q, NULL, CL_FALSE, zero, r, 0, 0, host, 0, NULL, NULL), CL_INVALID_MEM_OBJECT);
		break;
	case 1:
		expect("object", kind, clEnqueueReadImage(NULL, m->m, CL_FALSE, zero, r, 0, 0, host, 0, NULL, NULL), CL_INVALID_COMMAND_QUEUE);
		break;
	case 2:
		expect("object", kind, clEnqueueReadImage(q, m->m, CL_FALSE, zero, r, 0, 0, NULL, 0, NULL, NULL), CL_INVALID_VALUE);
		break;
	case 3:
		expect("object", kind, clEnqueueWriteImage(q, m->m, CL_FALSE, zero, r, 0, 0, host, 1, NULL, NULL), CL_INVALID_EVENT_WAIT_LIST);
		break;
	case 4:
		expect("object", kind, clEnqueueWriteImage(q, m->m, CL_FALSE, zero, r, 0, 0, host, 0, &none, NULL), CL_INVALID_EVENT_WAIT_LIST);
		break;
	case 5:
		if (all)
			expect("object", kind, clEnqueueReadImage(q, buffer, CL_FALSE, zero, r, 0, 0, host, 0, NULL, NULL), CL_INVALID_MEM_OBJECT);
		break;
	case 6:
		if (!in_buffer(m))
			expect("object", kind, clEnqueueCopyImageToBuffer(q, m->m, buffer, zero, r, BUFFER - n + 1, 0, NULL, NULL), CL_INVALID_VALUE);
		break;
	case 7:
		if (!in_buffer(m))
			expect("object", kind, clEnqueueCopyBufferToImage(q, buffer, m->m, BUFFER - n + 1, zero, r, 0, NULL, NULL), CL_INVALID_VALUE);
		break;
	case 8:
		expect("object", kind, clEnqueueFillImage(q, m->m, NULL, zero, r, 0, NULL, NULL), CL_INVALID_VALUE);
		break;
	case 9:
		if (!all)
			break;
		(void)clEnqueueMapImage(q, m->m, CL_FALSE, CL_MAP_READ, zero, r, NULL, &slice, 0, NULL, NULL, &code);
		expect("object", kind, code, CL_INVALID_VALUE);
		break;
	case 10:
		if (m->type == CL_MEM_OBJECT_IMAGE1D || m->type == CL_MEM_OBJECT_IMAGE2D || in_buffer(m))
			break;
		(void)clEnqueueMapImage(q, m->m, CL_FALSE, CL_MAP_READ, zero, r, &row, NULL, 0, NULL, NULL, &code);
		expect("object", kind, code, CL_INVALID_VALUE);
		break;
	case 11:
		expect("object", kind, clEnqueueUnmapMemObject(q, m->m, host, 0, NULL, NULL), CL_INVALID_VALUE);
		break;
	case 12:
		expect("object", kind, clEnqueueCopyImage(q, m->m, NULL, zero, zero, r, 0, NULL, NULL), CL_INVALID_MEM_OBJECT);
		break;
	default:
		if (all)
			expect("object", kind, clEnqueueReadBuffer(q, m->m, CL_FALSE, 0, 1, host, 0, NULL, NULL), CL_INVALID_MEM_OBJECT);
	}
}

static void wrong_call(struct image *m)
{
	if (any(2))
		wrong_box(m);
	else
		wrong_object(m);
}
