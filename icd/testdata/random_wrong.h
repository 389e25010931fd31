/* Commands of a random program that are wrong in one way. They fail, and change nothing. */

static void wrong_transfer(int kind)
{
	int write = (int)any(2);
	struct mem *m = pick(0, write, kind == 6 ? 0 : write ? host_writes : host_reads);
	cl_command_queue q = r.queues[any(QUEUES)];
	unsigned char bytes[64];
	const cl_event none = NULL;
	cl_event e = NULL;
	cl_mem of = m ? m->m : NULL;
	size_t at = 0, n = 4;
	cl_uint waits = 0;
	const cl_event *l = NULL;
	void *host = bytes;

	if (!m)
		return;
	switch (kind) {
	case 0:
		at = m->size - 3;
		break;
	case 1:
		at = m->size + 1, n = 1;
		break;
	case 2:
		at = SIZE_MAX - 1;
		break;
	case 3:
		host = NULL;
		break;
	case 4:
		waits = 1;
		break;
	case 5:
		l = &none;
		break;
	case 6:
		if (!(m->flags & (write ? host_writes : host_reads)))
			return;
		break;
	case 7:
		q = NULL;
		break;
	case 8:
		of = NULL;
		break;
	case 9:
		l = &none, waits = 1;
		break;
	}
	cl_int code = write ? clEnqueueWriteBuffer(q, of, CL_FALSE, at, n, host, waits, l, any(2) ? &e : NULL) : clEnqueueReadBuffer(q, of, CL_FALSE, at, n, host, waits, l, any(2) ? &e : NULL);
	say("wrong transfer %d: %d, event %d", kind, code, e != NULL);
}

static void wrong_box(int kind)
{
	struct mem *m = pick(0, 0, host_reads);
	size_t in[3] = {0}, out[3] = {0}, region[3] = {4, 2, 2}, row = 4, slice = 8, host_row = 4, host_slice = 8;
	unsigned char bytes[256];
	void *host = bytes;

	if (!m)
		return;
	switch (kind) {
	case 0:
		region[any(3)] = 0;
		break;
	case 1:
		row = 3;
		break;
	case 2:
		slice = 7;
		break;
	case 3:
		slice = 9;
		break;
	case 4:
		host_row = 3;
		break;
	case 5:
		host_slice = 9;
		break;
	case 6:
		in[0] = m->size;
		break;
	case 7:
		in[2] = m->size / 8;
		break;
	case 8:
		host = NULL;
		break;
	case 9:
		in[1] = SIZE_MAX / 2;
		break;
	}
	say("wrong box %d: %d", kind, clEnqueueReadBufferRect(r.queues[0], m->m, CL_FALSE, in, out, region, row, slice, host_row, host_slice, host, 0, NULL, NULL));
}

static void wrong_copy(int kind)
{
	struct mem *from = pick(0, 0, 0), *to = pick(0, 1, 0);
	cl_command_queue q = r.queues[0];
	const cl_uint pattern[32] = {0};
	const size_t zero[3] = {0}, region[3] = {8, 2, 1}, near[3] = {4, 0, 0};
	cl_int code = 99;

	/* PoCL takes the end of the whole for that of a part. */
	if (!from || !to || from->size < 64 || to->size < 64 || is_part(from) || is_part(to))
		return;
	switch (kind) {
	case 0:
		code = clEnqueueCopyBuffer(q, from->m, from->m, 0, between(0, 31), 32, 0, NULL, NULL);
		break;
	case 1:
		code = clEnqueueCopyBuffer(q, from->m, from->m, between(1, 31), 0, 32, 0, NULL, NULL);
		break;
	case 2:
		code = clEnqueueCopyBuffer(q, from->m, to->m, from->size - 3, 0, 4, 0, NULL, NULL);
		break;
	case 3:
		code = clEnqueueCopyBuffer(q, from->m, to->m, 0, to->size - 3, 4, 0, NULL, NULL);
		break;
	case 4:
		code = clEnqueueCopyBuffer(q, from->m, NULL, 0, 0, 4, 0, NULL, NULL);
		break;
	case 5:
		code = clEnqueueFillBuffer(q, to->m, pattern, any(2) ? 3 : 256, 0, 48, 0, NULL, NULL);
		break;
	case 6:
		code = clEnqueueFillBuffer(q, to->m, pattern, 4, any(2) ? 2 : 0, 6, 0, NULL, NULL);
		break;
	case 7:
		code = clEnqueueFillBuffer(q, to->m, NULL, 4, 0, 8, 0, NULL, NULL);
		break;
	case 8:
		code = clEnqueueFillBuffer(q, to->m, pattern, 4, to->size / 4 * 4, 4, 0, NULL, NULL);
		break;
	case 9:
		code = clEnqueueCopyBufferRect(q, from->m, from->m, zero, near, region, 16, 0, 16, 0, 0, NULL, NULL);
		break;
	case 10:
		code = clEnqueueFillBuffer(q, to->m, pattern, 0, 0, 8, 0, NULL, NULL);
		break;
	case 11:
		code = clEnqueueMigrateMemObjects(q, 1, &to->m, 1 << 5, 0, NULL, NULL);
		break;
	case 12:
		code = clEnqueueMigrateMemObjects(q, 0, &to->m, 0, 0, NULL, NULL);
		break;
	}
	say("wrong copy %d: %d", kind, code);
}

static void wrong_map(int kind)
{
	struct mem *m = pick(0, 0, host_reads);
	cl_int code = 99;
	void *p = NULL;

	if (!m)
		return;
	switch (kind) {
	case 0:
		p = clEnqueueMapBuffer(r.queues[0], m->m, CL_FALSE, CL_MAP_READ, m->size - 3, 4, 0, NULL, NULL, &code);
		break;
	case 1:
		p = clEnqueueMapBuffer(r.queues[0], m->m, CL_FALSE, CL_MAP_READ, 0, 0, 0, NULL, NULL, &code);
		break;
	case 2:
		p = clEnqueueMapBuffer(NULL, m->m, CL_FALSE, CL_MAP_READ, 0, 4, 0, NULL, NULL, &code);
		break;
	case 3:
		code = clEnqueueUnmapMemObject(r.queues[0], m->m, &code, 0, NULL, NULL);
		break;
	case 4:
		code = clEnqueueUnmapMemObject(r.queues[0], m->m, NULL, 0, NULL, NULL);
		break;
	case 5:
		code = clEnqueueUnmapMemObject(r.queues[0], NULL, &code, 0, NULL, NULL);
		break;
	case 6:
		m = pick(0, 0, 0);
		if (!m || !(m->flags & host_reads))
			return;
		p = clEnqueueMapBuffer(r.queues[0], m->m, CL_FALSE, CL_MAP_READ, 0, 4, 0, NULL, NULL, &code);
		break;
	case 7:
		m = pick(0, 1, 0);
		if (!m || !(m->flags & host_writes))
			return;
		p = clEnqueueMapBuffer(r.queues[0], m->m, CL_FALSE, any(2) ? CL_MAP_WRITE : CL_MAP_WRITE_INVALIDATE_REGION, 0, 4, 0, NULL, NULL, &code);
		break;
	}
	say("wrong map %d: %d, %d", kind, code, p != NULL);
}

static void wrong_kernel(int kind)
{
	cl_kernel k = r.kernels[any(NAMES)], values = r.kernels[3], sums = r.kernels[2];
	const size_t global[3] = {64, 1, 1}, local[3] = {5, 1, 1}, big[3] = {1 << 20, 1, 1};
	struct mem *m = pick(0, 1, CL_MEM_READ_ONLY);
	cl_ulong v[16] = {0};
	cl_int code = 99;

	switch (kind) {
	case 0:
		code = clSetKernelArg(k, 20, 4, v);
		break;
	case 1:
		code = clSetKernelArg(values, 1, any(2) ? 0 : 2, v);
		break;
	case 2:
		code = clSetKernelArg(values, (cl_uint)between(1, 8), 4, NULL);
		break;
	case 3:
		code = clSetKernelArg(sums, 2, 64, v);
		break;
	case 4:
		code = clSetKernelArg(sums, 2, 0, NULL);
		break;
	case 5:
		code = clSetKernelArg(sums, 0, 4, v);
		break;
	case 6:
		code = clSetKernelArg(NULL, 0, 4, v);
		break;
	case 7:
		code = clEnqueueNDRangeKernel(r.queues[0], k, (cl_uint)(any(2) ? 0 : 4), NULL, global, NULL, 0, NULL, NULL);
		break;
	case 8:
		code = clEnqueueNDRangeKernel(NULL, k, 1, NULL, global, NULL, 0, NULL, NULL);
		break;
	case 9:
	case 10:
		if (!m || m->size < 1024)
			return;
		clSetKernelArg(r.kernels[1], 0, sizeof m->m, &m->m);
		clSetKernelArg(r.kernels[1], 1, sizeof(cl_uint), v);
		code = kind == 9 ? clEnqueueNDRangeKernel(r.queues[0], r.kernels[1], 1, NULL, big, big, 0, NULL, NULL)
				 : clEnqueueNDRangeKernel(r.queues[0], r.kernels[1], 1, NULL, global, local, 0, NULL, NULL);
		break;
	case 11: {
		cl_kernel fresh = clCreateKernel(r.g, "numbers", &code);
		code = clEnqueueNDRangeKernel(r.queues[0], fresh, 1, NULL, global, NULL, 0, NULL, NULL);
		clReleaseKernel(fresh);
		break;
	}
	case 12:
		code = clSetKernelArg(values, 7, any(2) ? 8 : 25, v);
		break;
	case 13:
		code = clSetKernelArg(values, 6, any(2) ? 32 : 128, v);
		break;
	}
	say("wrong kernel %d: %d", kind, code);
}

static void CL_CALLBACK note(cl_event e, cl_int status, void *data);

static void wrong_event(int kind)
{
	cl_event e = r.event_count ? r.events[any((size_t)r.event_count)] : NULL, none[2] = {e, NULL};
	cl_int code = 99;

	if (!e)
		return;
	switch (kind) {
	case 0:
		code = clWaitForEvents(0, NULL);
		break;
	case 1:
		code = clWaitForEvents(1, NULL);
		break;
	case 2:
		code = r.user ? 0 : clWaitForEvents(2, none);
		break;
	case 3:
		code = clSetEventCallback(e, (cl_int)(any(2) ? 7 : -1), note, &r);
		break;
	case 4:
		code = clSetEventCallback(e, CL_COMPLETE, NULL, NULL);
		break;
	case 5:
		code = clSetUserEventStatus(e == r.user || !e ? NULL : e, CL_COMPLETE);
		break;
	case 6:
		code = r.user ? clSetUserEventStatus(r.user, CL_SUBMITTED) : 0;
		break;
	case 7:
		code = clGetEventProfilingInfo(r.user ? r.user : NULL, CL_PROFILING_COMMAND_END, 8, &code, NULL);
		break;
	case 8:
		code = clReleaseEvent(NULL);
		break;
	case 9:
		code = clRetainEvent(NULL);
		break;
	case 10:
		code = clEnqueueMarkerWithWaitList(r.queues[0], 1, &none[1], NULL);
		break;
	case 11:
		code = clEnqueueBarrierWithWaitList(r.queues[0], 0, none, NULL);
		break;
	}
	say("wrong event %d: %d", kind, code);
}

static void wrong(void)
{
	switch (any(9)) {
	case 0:
		wrong_create((int)any(18));
		break;
	case 1:
		wrong_part((int)any(9));
		break;
	case 2:
	case 3:
		wrong_transfer((int)any(10));
		break;
	case 4:
		wrong_box((int)any(10));
		break;
	case 5:
		wrong_copy((int)any(13));
		break;
	case 6:
		wrong_map((int)any(8));
		break;
	case 7:
		wrong_kernel((int)any(14));
		break;
	default:
		if (any(2))
			wrong_event((int)any(12));
		else
			wrong_image((int)any(10));
	}
}
