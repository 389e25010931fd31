/* Objects that are wrong in one way, of a random program. They are not made. */

static void wrong_create(int kind)
{
	const cl_mem_flags two[] = {CL_MEM_READ_ONLY | CL_MEM_WRITE_ONLY, CL_MEM_READ_WRITE | CL_MEM_READ_ONLY, CL_MEM_HOST_READ_ONLY | CL_MEM_HOST_NO_ACCESS,
				    CL_MEM_HOST_READ_ONLY | CL_MEM_HOST_WRITE_ONLY, (cl_mem_flags)1 << 40, CL_MEM_USE_HOST_PTR | CL_MEM_ALLOC_HOST_PTR, CL_MEM_USE_HOST_PTR | CL_MEM_COPY_HOST_PTR};
	static unsigned char host[4096];
	const cl_context_properties bad[] = {CL_CONTEXT_PLATFORM, 0, 0}, unknown[] = {0x1111, 0, 0};
	const cl_queue_properties queue[] = {0x1111, 0, 0}, flags[] = {CL_QUEUE_PROPERTIES, (cl_queue_properties)1 << 20, 0};
	const cl_mem_properties property[] = {0x1111, 1, 0};
	cl_mem_flags f = two[any(7)];
	cl_int code = 99;
	void *made = NULL;

	switch (kind) {
	case 0:
		made = clCreateBuffer(r.c, f, 64, f & CL_MEM_USE_HOST_PTR ? host : NULL, &code);
		break;
	case 1:
		made = clCreateBuffer(r.c, 0, 0, NULL, &code);
		break;
	case 2:
		made = clCreateBuffer(r.c, any(2) ? CL_MEM_USE_HOST_PTR : CL_MEM_COPY_HOST_PTR, 64, NULL, &code);
		break;
	case 3:
		made = clCreateBuffer(r.c, 0, 64, host, &code);
		break;
	case 4:
		made = clCreateBuffer(NULL, 0, 64, NULL, &code);
		break;
	case 5:
		made = clCreateContext(any(2) ? bad : unknown, 1, &r.d, NULL, NULL, &code);
		break;
	case 6:
		made = clCreateContext(NULL, 0, &r.d, NULL, NULL, &code);
		break;
	case 7:
		made = clCreateContext(NULL, 1, NULL, NULL, NULL, &code);
		break;
	case 8:
		made = clCreateContext(NULL, 1, &r.d, NULL, host, &code);
		break;
	case 9:
		made = clCreateCommandQueueWithProperties(r.c, r.d, any(2) ? queue : flags, &code);
		break;
	case 10:
		made = clCreateCommandQueueWithProperties(r.c, NULL, NULL, &code);
		break;
	case 11:
		made = clCreateBufferWithProperties(r.c, property, 0, 64, NULL, &code);
		break;
	case 12:
		made = clCreateUserEvent(NULL, &code);
		break;
	case 13:
		made = clCreateProgramWithSource(r.c, 0, NULL, NULL, &code);
		break;
	case 14:
		made = clCreateKernel(r.g, any(2) ? "nothing" : NULL, &code);
		break;
	case 15:
		made = clCreateKernel(NULL, "mix_up", &code);
		break;
	case 16:
		made = clCloneKernel(NULL, &code);
		break;
	case 17:
		made = clCreateCommandQueue(r.c, r.d, (cl_command_queue_properties)1 << 20, &code);
		break;
	}
	say("wrong %d: %d, made %d", kind, code, made != NULL);
}

static void wrong_part(int kind)
{
	struct mem *m = pick(0, 0, 0);
	cl_buffer_region part = {0, 1};
	cl_mem_flags flags = 0;
	cl_int code = 99;

	if (!m || (kind != 5 && (m->root != (int)(m - r.mems) || m->size < 1000)))
		return;
	switch (kind) {
	case 0:
		part.size = m->size + 1;
		break;
	case 1:
		part.origin = 128, part.size = m->size - 127;
		break;
	case 2:
		part.size = 0;
		break;
	case 3:
		part.origin = between(1, 127);
		break;
	case 4:
		flags = any(2) ? CL_MEM_USE_HOST_PTR : CL_MEM_COPY_HOST_PTR;
		break;
	case 5:
		if (m->root == (int)(m - r.mems))
			return;
		break;
	case 6:
		if (m->flags & CL_MEM_READ_ONLY)
			flags = CL_MEM_WRITE_ONLY;
		else if (m->flags & CL_MEM_WRITE_ONLY)
			flags = CL_MEM_READ_ONLY;
		else
			return;
		break;
	}
	cl_mem made = clCreateSubBuffer(m->m, flags, kind == 7 ? 0x1111 : CL_BUFFER_CREATE_TYPE_REGION, kind == 8 ? NULL : &part, &code);
	say("wrong part %d of %d: %d", kind, (int)(m - r.mems), code);
	if (made)
		clReleaseMemObject(made);
}

static void wrong_image(int kind)
{
	struct mem *m = pick(1, 1, 0), *b = pick(0, 1, 0);
	size_t origin[3] = {0}, region[3] = {1, 1, 1};
	unsigned char bytes[256] = {0};
	cl_image_format f = {CL_RGBA, CL_UNSIGNED_INT8};
	cl_image_desc d = {.image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = 4, .image_height = 4};
	cl_mem made = NULL;
	cl_int code = 99;

	if (!m || !b)
		return;
	switch (kind) {
	case 0:
		made = clCreateImage(r.c, 0, NULL, &d, NULL, &code);
		break;
	case 1:
		made = clCreateImage(r.c, 0, &f, NULL, NULL, &code);
		break;
	case 2:
		made = clCreateImage(r.c, CL_MEM_COPY_HOST_PTR, &f, &d, NULL, &code);
		break;
	case 3:
		origin[0] = m->extent[0];
		code = clEnqueueFillImage(r.queues[0], m->m, bytes, origin, region, 0, NULL, NULL);
		break;
	case 4:
		code = clEnqueueFillImage(r.queues[0], m->m, NULL, origin, region, 0, NULL, NULL);
		break;
	case 5:
		code = clEnqueueCopyImageToBuffer(r.queues[0], m->m, b->m, origin, region, b->size, 0, NULL, NULL);
		break;
	case 6:
		code = clEnqueueCopyImage(r.queues[0], m->m, m->m, origin, origin, region, 0, NULL, NULL);
		break;
	case 7:
		code = clEnqueueReadImage(r.queues[0], b->m, CL_FALSE, origin, region, 0, 0, bytes, 0, NULL, NULL);
		break;
	case 8:
		code = m->flags & host_reads ? 0 : clEnqueueReadImage(r.queues[0], m->m, CL_FALSE, origin, region, 0, 0, NULL, 0, NULL, NULL);
		break;
	case 9:
		if (!(m->flags & host_reads))
			return;
		code = clEnqueueReadImage(r.queues[0], m->m, CL_FALSE, origin, region, 0, 0, bytes, 0, NULL, NULL);
		break;
	}
	say("wrong image %d: %d, %d", kind, code, made != NULL);
}
