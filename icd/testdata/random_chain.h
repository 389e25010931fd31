/* Commands of a random program that wait for a user event, and callbacks for their states. The event does not
 * fail: PoCL then calls no callback, and may wait for ever. */

enum { CHAIN = 6 };

/* watch is one callback of an event. */
struct watch {
	int asked, called;
	cl_int status;
};

static void CL_CALLBACK see(cl_event e, cl_int status, void *data)
{
	struct watch *w = data;

	(void)e;
	w->status = status;
	tell(&w->called);
}

/* follow enqueues a command that waits for some events. */
static cl_int follow(cl_command_queue q, cl_mem m, unsigned char *bytes, cl_uint n, const cl_event *l, cl_event *e)
{
	cl_uint pattern = (cl_uint)next(), words = 64;
	const size_t one = 1;
	cl_kernel k = r.kernels[MIX];
	cl_int code = 0;

	switch (any(6)) {
	case 0:
		return clEnqueueMarkerWithWaitList(q, n, l, e);
	case 1:
		return clEnqueueBarrierWithWaitList(q, n, l, e);
	case 2:
		return clEnqueueReadBuffer(q, m, CL_FALSE, 0, 64, bytes, n, l, e);
	case 3:
		return clEnqueueWriteBuffer(q, m, CL_FALSE, 64, 64, bytes + 64, n, l, e);
	case 4:
		ARG(k, 0, m);
		ARG(k, 1, words);
		ARG(k, 2, m);
		ARG(k, 3, words);
		ARG(k, 4, pattern);
		return code | clEnqueueNDRangeKernel(q, k, 1, NULL, &one, NULL, n, l, e);
	default:
		return clEnqueueFillBuffer(q, m, &pattern, 4, 192, 64, n, l, e);
	}
}

/* chain makes commands that wait for each other and for an event of the program, and ends that one. */
static void chain(void)
{
	struct watch watches[CHAIN][3] = {{{0}}};
	static const cl_int states[3] = {CL_COMPLETE, CL_RUNNING, CL_SUBMITTED};
	cl_event e[CHAIN + 1] = {NULL};
	unsigned char bytes[128] = {0};
	cl_int code;
	size_t count = between(1, CHAIN);

	if (r.user)
		return;
	unsigned char first[256];
	scribble(first, sizeof first);
	cl_mem m = clCreateBuffer(r.c, CL_MEM_COPY_HOST_PTR, sizeof first, first, &code);
	e[0] = clCreateUserEvent(r.c, &code);
	for (size_t i = 0; i < count; i++) {
		const cl_event waits[2] = {e[any(i + 1)], e[i]};
		code = follow(r.queues[any(QUEUES)], m, bytes, (cl_uint)(waits[0] == waits[1] ? 1 : 2), waits, &e[i + 1]);
		say("follows: %d", code);
		for (int s = 0; s < 3; s++)
			if (any(2)) {
				watches[i][s].asked = 1;
				say("callback: %d", clSetEventCallback(e[i + 1], states[s], see, &watches[i][s]));
			}
	}
	for (int i = 0; i < QUEUES; i++)
		clFlush(r.queues[i]);
	say("user event: %d", clSetUserEventStatus(e[0], CL_COMPLETE));
	say("again: %d", clSetUserEventStatus(e[0], -7));
	say("wait: %d", clWaitForEvents((cl_uint)count, e + 1));
	for (int i = 0; i < QUEUES; i++)
		say("finish: %d", clFinish(r.queues[i]));
	for (size_t i = 0; i < count; i++)
		for (int s = 0; s < 3; s++) {
			struct watch *w = &watches[i][s];
			int called = told(&w->called, w->asked);
			if (w->asked)
				say("callback %zu of state %d: called %d with %d", i, states[s], called, w->status);
		}
	for (size_t i = 0; i <= count; i++) {
		cl_int status = 99;
		clGetEventInfo(e[i], CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL);
		say("state %zu: %d", i, status);
		clReleaseEvent(e[i]);
	}
	say("bytes: %lx", hash(bytes, sizeof bytes));
	clReleaseMemObject(m);
}
