#include "command.h"

#include <stdlib.h>
#include <string.h>

struct channel *channel_of(cl_command_queue q) { return q->context->device->channel; }

/* retired are events that a thread of the program releases when they are complete: a
 * release may wait, and the channel's thread must not. */
static struct retired {
	struct retired *next;
	cl_event event;
} *retired;

static void retire(cl_event e)
{
	struct retired *r = malloc(sizeof *r);

	if (!r)
		return; /* without memory, the event stays */
	r->event = e;
	pthread_mutex_lock(&dxpu_lock);
	r->next = retired;
	retired = r;
	pthread_mutex_unlock(&dxpu_lock);
}

/* event_new makes the event of a command, with one part open until end_command. */
cl_event event_new(cl_command_queue q, cl_command_type type)
{
	cl_event e = object_new(KIND_EVENT, sizeof *e);

	if (!e)
		return NULL;
	e->context = q->context;
	e->queue = q;
	e->type = type;
	e->status = CL_QUEUED;
	e->parts = 1;
	object_retain(q->context);
	object_retain(q);
	__atomic_add_fetch(&q->pending, 1, __ATOMIC_ACQ_REL);
	return e;
}

void event_release(cl_event e)
{
	if (!object_drop(e))
		return;
	while (e->callbacks) {
		struct callback *next = e->callbacks->next;
		free(e->callbacks);
		e->callbacks = next;
	}
	queue_release(e->queue);
	context_release(e->context);
	free(e);
}

/* part_end ends a part of a command, and the command with the last one. It may run in
 * the thread of the channel, which must not wait: the program holds the references. */
void part_end(cl_event e, int32_t status, const struct times *t)
{
	struct callback *calls = NULL;

	pthread_mutex_lock(&dxpu_lock);
	if (status < 0 && !e->error)
		e->error = status;
	if (t) {
		if (!e->times.at[0])
			e->times = *t;
		e->times.at[3] = t->at[3];
	}
	int last = --e->parts == 0;
	int32_t code = e->error < 0 ? e->error : CL_COMPLETE;
	if (last) {
		calls = e->callbacks;
		e->callbacks = NULL;
	}
	pthread_mutex_unlock(&dxpu_lock);
	if (!last)
		return;
	cl_command_queue q = e->queue;
	/* From here on, the program may release the event, unless a callback holds it. */
	channel_finish(channel_of(q), &e->status, code, &q->pending);
	while (calls) {
		struct callback *next = calls->next;
		calls->call(e, code < 0 ? code : calls->type, calls->data);
		free(calls);
		retire(e);
		calls = next;
	}
}

static void scatter(const struct box *b, unsigned char *host, const unsigned char *packed)
{
	for (size_t z = 0; z < b->region[2]; z++)
		for (size_t y = 0; y < b->region[1]; y++, packed += b->region[0])
			memcpy(host + (b->origin[2] + z) * b->slice + (b->origin[1] + y) * b->row + b->origin[0], packed, b->region[0]);
}

void box_gather(const struct box *b, const unsigned char *host, unsigned char *packed)
{
	for (size_t z = 0; z < b->region[2]; z++)
		for (size_t y = 0; y < b->region[1]; y++, packed += b->region[0])
			memcpy(packed, host + (b->origin[2] + z) * b->slice + (b->origin[1] + y) * b->row + b->origin[0], b->region[0]);
}

/* part_done is the completion of a part's packet. */
static void part_done(void *arg, int32_t status, uint32_t length, const struct times *t)
{
	struct part *p = arg;

	if (p->read && status == 0 && length != p->size)
		status = CL_OUT_OF_RESOURCES; /* of a hostile device */
	if (p->read && status == 0) {
		if (p->boxed)
			scatter(&p->box, p->host, p->staging.mirror);
		else
			memcpy(p->host, p->staging.mirror, p->size);
	}
	if (p->staged)
		channel_free(channel_of(p->event->queue), &p->staging);
	part_end(p->event, status, t);
	free(p);
}

/* post sends the packet of a part, which it takes over. */
cl_int post(struct part *part, const struct packet *p)
{
	cl_event e = part->event;

	if (p->overflow) {
		if (part->staged)
			channel_free(channel_of(e->queue), &part->staging);
		free(part);
		return CL_OUT_OF_RESOURCES;
	}
	pthread_mutex_lock(&dxpu_lock);
	e->parts++;
	pthread_mutex_unlock(&dxpu_lock);
	/* The event is complete when the last packet is: the queue is in order. */
	uint64_t cookie = channel_post(channel_of(e->queue), p, part->read ? &part->staging : NULL, part_done, part);
	if (!cookie) {
		struct times none = {{0}};
		part_done(part, CL_DEVICE_NOT_AVAILABLE, 0, &none);
		return CL_DEVICE_NOT_AVAILABLE;
	}
	e->cookie = cookie;
	return CL_SUCCESS;
}

cl_int wait_list(cl_context c, cl_uint n, const cl_event *list)
{
	if ((n == 0) != (list == NULL))
		return CL_INVALID_EVENT_WAIT_LIST;
	for (cl_uint i = 0; i < n; i++) {
		if (!object_is(list[i], KIND_EVENT))
			return CL_INVALID_EVENT_WAIT_LIST;
		if (list[i]->context != c)
			return CL_INVALID_CONTEXT;
	}
	return n > 1024 ? CL_OUT_OF_RESOURCES : CL_SUCCESS;
}

void add_waits(struct packet *p, cl_uint n, const cl_event *list)
{
	packet_u32(p, n);
	packet_u32(p, 0);
	for (cl_uint i = 0; i < n; i++)
		packet_u64(p, list[i]->cookie);
}

cl_int begin(struct command *c)
{
	cl_int code;

	if (!object_is(c->queue, KIND_QUEUE))
		return CL_INVALID_COMMAND_QUEUE;
	code = wait_list(c->queue->context, c->waits, c->list);
	if (code)
		return code;
	for (cl_uint i = 0; i < c->waits; i++)
		if (__atomic_load_n(&c->list[i]->status, __ATOMIC_ACQUIRE) < 0)
			return CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST;
	if (channel_failed(channel_of(c->queue)))
		return CL_DEVICE_NOT_AVAILABLE;
	c->event = event_new(c->queue, c->type);
	return c->event ? CL_SUCCESS : CL_OUT_OF_HOST_MEMORY;
}

struct part *part_new(struct command *c)
{
	struct part *p = calloc(1, sizeof *p);

	if (p)
		p->event = c->event;
	return p;
}

void sweep(void)
{
	struct retired *list, *keep = NULL;

	pthread_mutex_lock(&dxpu_lock);
	list = retired;
	retired = NULL;
	pthread_mutex_unlock(&dxpu_lock);
	while (list) {
		struct retired *next = list->next;
		if (__atomic_load_n(&list->event->status, __ATOMIC_ACQUIRE) > 0) {
			list->next = keep;
			keep = list;
		} else {
			event_release(list->event);
			free(list);
		}
		list = next;
	}
	while (keep) {
		struct retired *next = keep->next;
		pthread_mutex_lock(&dxpu_lock);
		keep->next = retired;
		retired = keep;
		pthread_mutex_unlock(&dxpu_lock);
		keep = next;
	}
}

/* end completes an enqueue call. */
cl_int end(struct command *c, cl_int code, int blocking, cl_event *out)
{
	cl_event e = c->event;
	struct channel *ch = channel_of(c->queue);
	static _Thread_local unsigned calls;

	part_end(e, code, NULL);
	/* After an error, other parts may still use memory that the caller frees. */
	if (code)
		channel_wait(ch, &e->status);
	else if (blocking) {
		channel_wait(ch, &e->status);
		if (e->status < 0)
			code = e->status == CL_DEVICE_NOT_AVAILABLE ? e->status : CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST;
	}
	if (!code && out) {
		object_retain(e);
		*out = e;
	}
	retire(e);
	if (++calls % 256 == 0 || blocking)
		sweep();
	return code;
}

/* Events. */

cl_int CL_API_CALL dxpu_WaitForEvents(cl_uint n, const cl_event *list)
{
	cl_int code = n == 0 || !list ? CL_INVALID_VALUE : CL_SUCCESS;

	for (cl_uint i = 0; i < n && !code; i++)
		if (!object_is(list[i], KIND_EVENT))
			code = CL_INVALID_EVENT;
	if (code)
		return code;
	for (cl_uint i = 0; i < n; i++) {
		channel_wait(list[i]->context->device->channel, &list[i]->status);
		/* In a child of fork, the status stays. */
		if (list[i]->status > 0 || list[i]->status == CL_DEVICE_NOT_AVAILABLE)
			code = CL_DEVICE_NOT_AVAILABLE;
		else if (list[i]->status < 0)
			code = CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST;
	}
	sweep();
	return code;
}

cl_int CL_API_CALL dxpu_GetEventInfo(cl_event e, cl_event_info param, size_t room, void *out, size_t *size)
{
	if (!object_is(e, KIND_EVENT))
		return CL_INVALID_EVENT;
	switch (param) {
	case CL_EVENT_COMMAND_QUEUE:
		return GIVE(cl_command_queue, e->queue);
	case CL_EVENT_CONTEXT:
		return GIVE(cl_context, e->context);
	case CL_EVENT_COMMAND_TYPE:
		return GIVE(cl_command_type, e->type);
	case CL_EVENT_COMMAND_EXECUTION_STATUS:
		return GIVE(cl_int, __atomic_load_n(&e->status, __ATOMIC_ACQUIRE));
	case CL_EVENT_REFERENCE_COUNT:
		return GIVE(cl_uint, (cl_uint)e->object.references);
	}
	return CL_INVALID_VALUE;
}

cl_int CL_API_CALL dxpu_GetEventProfilingInfo(cl_event e, cl_profiling_info param, size_t room, void *out, size_t *size)
{
	if (!object_is(e, KIND_EVENT))
		return CL_INVALID_EVENT;
	if (!(e->queue->properties & CL_QUEUE_PROFILING_ENABLE) || __atomic_load_n(&e->status, __ATOMIC_ACQUIRE) != CL_COMPLETE)
		return CL_PROFILING_INFO_NOT_AVAILABLE;
	switch (param) {
	case CL_PROFILING_COMMAND_QUEUED:
	case CL_PROFILING_COMMAND_SUBMIT:
	case CL_PROFILING_COMMAND_START:
	case CL_PROFILING_COMMAND_END:
		return GIVE(cl_ulong, e->times.at[param - CL_PROFILING_COMMAND_QUEUED]);
	case CL_PROFILING_COMMAND_COMPLETE:
		return GIVE(cl_ulong, e->times.at[3]);
	}
	return CL_INVALID_VALUE;
}

cl_int CL_API_CALL dxpu_RetainEvent(cl_event e)
{
	if (!object_is(e, KIND_EVENT))
		return CL_INVALID_EVENT;
	object_retain(e);
	return CL_SUCCESS;
}

cl_int CL_API_CALL dxpu_ReleaseEvent(cl_event e)
{
	if (!object_is(e, KIND_EVENT))
		return CL_INVALID_EVENT;
	event_release(e);
	return CL_SUCCESS;
}

cl_int CL_API_CALL dxpu_SetEventCallback(cl_event e, cl_int type, void(CL_CALLBACK *call)(cl_event, cl_int, void *), void *data)
{
	if (!object_is(e, KIND_EVENT))
		return CL_INVALID_EVENT;
	if (!call || type < CL_COMPLETE || type > CL_SUBMITTED)
		return CL_INVALID_VALUE;
	struct callback *b = malloc(sizeof *b);
	if (!b)
		return CL_OUT_OF_HOST_MEMORY;
	*b = (struct callback){NULL, type, call, data};
	pthread_mutex_lock(&dxpu_lock);
	int done = e->parts == 0;
	int32_t code = e->error;
	if (!done) {
		b->next = e->callbacks;
		e->callbacks = b;
		e->object.references++;
	}
	pthread_mutex_unlock(&dxpu_lock);
	if (done) {
		call(e, code < 0 ? code : type, data);
		free(b);
	}
	return CL_SUCCESS;
}
