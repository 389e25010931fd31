/* Ends of a random program: a context that is released while its commands run, a child process, and
 * events that fail. */
#include <sys/wait.h>
#include <unistd.h>

enum { ENDING = 24 };

/* releases takes references of objects in a random order. */
static void releases(cl_context c, cl_command_queue q, cl_program g, cl_kernel k, cl_mem m, cl_mem part)
{
	int more[6], left = 0;
	cl_int code = 0;

	for (int i = 0; i < 6; i++) {
		more[i] = 1 + (int)any(3);
		left += more[i];
	}
	for (int i = 1; i < more[0]; i++)
		code |= clRetainContext(c);
	for (int i = 1; i < more[1]; i++)
		code |= clRetainCommandQueue(q);
	for (int i = 1; i < more[2]; i++)
		code |= clRetainProgram(g);
	for (int i = 1; i < more[3]; i++)
		code |= clRetainKernel(k);
	for (int i = 1; i < more[4]; i++)
		code |= clRetainMemObject(m);
	for (int i = 1; i < more[5]; i++)
		code |= clRetainMemObject(part);
	while (left > 0) {
		size_t which = any(6);
		if (!more[which])
			continue;
		more[which]--;
		left--;
		code |= which == 0   ? clReleaseContext(c)
			: which == 1 ? clReleaseCommandQueue(q)
			: which == 2 ? clReleaseProgram(g)
			: which == 3 ? clReleaseKernel(k)
			: which == 4 ? clReleaseMemObject(m)
				     : clReleaseMemObject(part);
	}
	say("releases: %d", code);
}

/* ends_step releases a context whose commands run, and waits for the last one. */
static void ends_step(void)
{
	const size_t items = 64;
	static _Thread_local unsigned char in[4096], out[4096];
	cl_event last = NULL, e;
	cl_int code, all = 0, status = 99;

	if (r.user || any(3))
		return;
	cl_context c = clCreateContext(NULL, 1, &r.d, NULL, NULL, &code);
	cl_command_queue q = clCreateCommandQueueWithProperties(c, r.d, NULL, &code);
	cl_program g = build(c);
	cl_kernel k = clCreateKernel(g, "mix_up", &code);
	cl_mem m = clCreateBuffer(c, 0, sizeof in, NULL, &code);
	const cl_buffer_region half = {2048, 2048};
	cl_mem part = clCreateSubBuffer(m, 0, CL_BUFFER_CREATE_TYPE_REGION, &half, &code);
	cl_uint n = sizeof in / 8, factor = (cl_uint)next();
	scribble(in, sizeof in);
	all |= clEnqueueWriteBuffer(q, m, CL_FALSE, 0, sizeof in, in, 0, NULL, NULL);
	cl_mem other = clCreateBuffer(c, CL_MEM_COPY_HOST_PTR, 64, in, &code);
	for (size_t i = between(1, ENDING); i > 0; i--) {
		code = 0;
		ARG(k, 0, part);
		ARG(k, 1, n);
		ARG(k, 2, other);
		cl_uint few = 16;
		ARG(k, 3, few);
		ARG(k, 4, factor);
		all |= code | clEnqueueNDRangeKernel(q, k, 1, NULL, &items, NULL, last != NULL, last ? &last : NULL, &e);
		if (last)
			clReleaseEvent(last);
		last = e;
	}
	all |= clEnqueueReadBuffer(q, m, CL_FALSE, 0, sizeof out, out, 1, &last, &e);
	clReleaseEvent(last);
	clReleaseMemObject(other);
	releases(c, q, g, k, m, part);
	code = clWaitForEvents(1, &e);
	clGetEventInfo(e, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL);
	say("ends: %d %d %d, %lx", all, code, status, hash(out, sizeof out));
	clReleaseEvent(e);
}

/* child_step makes a child process, which ends. */
static void child_step(void)
{
	int status = 0;

	if (!alone || any(3))
		return;
	fflush(stdout);
	pid_t child = fork();
	if (child == 0)
		_exit(3);
	waitpid(child, &status, 0);
	say("child: %d", WEXITSTATUS(status));
}

enum { LINKS = 20 };
static int failures; /* events may fail, for which PoCL waits for ever */

/* fails_step makes commands that wait for each other and for events of the program, some of which fail:
 * exactly those fail that wait for one that has failed. */
static void fails_step(void)
{
	cl_event users[3], e[LINKS];
	struct watch seen[LINKS] = {{0}};
	int fails[3], bad[LINKS] = {0};
	unsigned char bytes[128] = {0};
	unsigned wrong = 0;
	cl_int code;

	if (!failures || r.user)
		return;
	const cl_queue_properties list[] = {CL_QUEUE_PROPERTIES, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, 0};
	cl_command_queue q = clCreateCommandQueueWithProperties(r.c, r.d, list, &code);
	cl_mem m = clCreateBuffer(r.c, 0, 256, NULL, &code);
	for (int i = 0; i < 3; i++) {
		users[i] = clCreateUserEvent(r.c, &code);
		fails[i] = any(2) ? -(int)between(1, 70) : 0;
	}
	int early = (int)any(4); /* some end before the commands are there */
	for (int i = 0; i < early && i < 3; i++)
		code |= clSetUserEventStatus(users[i], fails[i]);
	for (int i = 0; i < LINKS; i++) {
		cl_event waits[3];
		cl_uint n = 0, most = (cl_uint)any(4);
		for (; n < most; n++)
			if (i == 0 || any(3) == 0) {
				size_t u = any(3);
				waits[n] = users[u];
				bad[i] |= fails[u] < 0;
			} else {
				size_t before = any((size_t)i);
				waits[n] = e[before];
				bad[i] |= bad[before];
			}
		/* A marker or a barrier of no list would wait for all. */
		if (n)
			code |= follow(q, m, bytes, n, waits, &e[i]);
		else
			code |= clEnqueueReadBuffer(q, m, CL_FALSE, 0, 64, bytes, 0, NULL, &e[i]);
		seen[i].asked = 1;
		code |= clSetEventCallback(e[i], CL_COMPLETE, see, &seen[i]);
	}
	for (int i = early; i < 3; i++)
		code |= clSetUserEventStatus(users[i], fails[i]);
	say("fails: %d", code);
	for (int i = 0; i < LINKS; i++) {
		cl_int status = 99;
		wrong += (clWaitForEvents(1, &e[i]) == CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST) != bad[i];
		clGetEventInfo(e[i], CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL);
		wrong += bad[i] ? status >= 0 : status != CL_COMPLETE;
		wrong += told(&seen[i].called, 1) != 1 || seen[i].status != status;
		clReleaseEvent(e[i]);
	}
	say("fails: finish %d, wrong %u", clFinish(q), wrong);
	for (int i = 0; i < 3; i++)
		clReleaseEvent(users[i]);
	clReleaseMemObject(m);
	clReleaseCommandQueue(q);
	if (wrong)
		printf("%lu.%lu events are wrong: %u\n", r.seed, r.step, wrong);
}
