#include "command.h"

#include <stdlib.h>
#include <string.h>

struct channel *channel_of(cl_command_queue q) { return q->context->device->channel; }

static struct channel *event_channel(cl_event e) { return e->context->device->channel; }

/* retired are events that a thread of the program releases when they are complete: a
 * release may wait, and a thread that handles completions must not. */
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

/* event_new makes the event of a command, with one part open until command_run has ended, or
 * a user event. */
cl_event event_new(cl_context c, cl_command_queue q, cl_command_type type)
{
	cl_event e = object_new(KIND_EVENT, sizeof *e);

	if (!e)
		return NULL;
	e->context = c;
	e->queue = q;
	e->type = type;
	e->status = CL_QUEUED;
	e->parts = 1;
	object_retain(c);
	if (q) {
		e->object.held = 0; /* until the program gets it (end) */
		object_retain(q);
		__atomic_add_fetch(&q->pending, 1, __ATOMIC_ACQ_REL);
	}
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
	if (e->map)
		mapping_release(e->map);
	if (e->mem)
		mem_release(e->mem);
	if (e->queue)
		queue_release(e->queue);
	context_release(e->context);
	free(e);
}

/* part_end ends a part of a command, and the command with the last one. It may run in
 * a thread that handles completions, which must not wait: the program holds the references. */
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
	struct channel *ch = event_channel(e);
	/* From here on, the program may release the event, unless a callback holds it. */
	channel_finish(ch, &e->status, code, e->queue ? &e->queue->pending : NULL);
	while (calls) {
		struct callback *next = calls->next;
		channel_watch(ch, -1);
		callback_later(calls, e, code < 0 ? code : calls->type);
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

/* Parts in flight that will write memory of the program. Guarded by dxpu_lock. */
static struct part *writers;

static void enter(struct part *p)
{
	if (!p->read && !p->from)
		return;
	pthread_mutex_lock(&dxpu_lock);
	p->next = writers;
	p->at = &writers;
	if (writers)
		writers->at = &p->next;
	writers = p;
	pthread_mutex_unlock(&dxpu_lock);
}

static void leave(struct part *p)
{
	if (!p->read && !p->from)
		return;
	pthread_mutex_lock(&dxpu_lock);
	if (p->at) { /* enter has seen it */
		*p->at = p->next;
		if (p->next)
			p->next->at = p->at;
	}
	pthread_mutex_unlock(&dxpu_lock);
}

/* extent returns the first byte of a part in the program's memory, and sets the one behind it. */
static uintptr_t extent(const struct part *p, uintptr_t *end)
{
	const struct box *b = &p->box;
	uintptr_t low = (uintptr_t)p->host;

	*end = low + p->size;
	if (p->boxed) {
		low += b->origin[2] * b->slice + b->origin[1] * b->row + b->origin[0];
		*end = low + (b->region[2] - 1) * b->slice + (b->region[1] - 1) * b->row + b->region[0];
	}
	return low;
}

static int settled(void *arg)
{
	const struct part *p = arg;
	uintptr_t end, low = extent(p, &end);
	int none = 1;

	pthread_mutex_lock(&dxpu_lock);
	for (const struct part *w = writers; w && none; w = w->next) {
		uintptr_t to, from = extent(w, &to);
		none = from >= end || to <= low || channel_of(w->event->queue) != channel_of(p->event->queue);
	}
	pthread_mutex_unlock(&dxpu_lock);
	return none;
}

void part_settle(const struct part *p)
{
	if (!settled((void *)(uintptr_t)p))
		channel_settle(channel_of(p->event->queue), settled, (void *)(uintptr_t)p);
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
	if (p->from && status == 0)
		memcpy(p->host, p->from, p->size);
	if (p->stamp && status != CL_DEVICE_NOT_AVAILABLE)
		status = CL_SUCCESS; /* the command can do without its time */
	status = create_missing(p->event, status);
	leave(p);
	if (p->staged)
		channel_free(channel_of(p->event->queue), &p->staging);
	if (p->later) {
		channel_watch(channel_of(p->event->queue), -1);
		callback_later(p->later, p->event, status < 0 ? status : CL_COMPLETE);
	}
	part_end(p->event, status, p->stamp ? NULL : t); /* the packet for the time of the call has none of the command's */
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
	enter(part);
	/* The event is complete when the last packet is. */
	uint64_t cookie = channel_post(channel_of(e->queue), p, part->read ? &part->staging : NULL, part_done, part);
	if (!cookie) {
		struct times none = {{0}};
		part_done(part, CL_DEVICE_NOT_AVAILABLE, 0, &none);
		return CL_DEVICE_NOT_AVAILABLE;
	}
	e->cookie = cookie;
	return CL_SUCCESS;
}

/* MAX_WAITS is two less than what a packet takes: a part also waits for the one before, and for what
 * fills objects. */
enum { MAX_WAITS = 1022 };

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
	return CL_SUCCESS;
}

static void forget_markers(struct command *c)
{
	for (cl_uint i = 0; c->markers && i < c->waits; i++)
		if (c->markers[i])
			event_release(c->markers[i]);
	free(c->markers);
	c->markers = NULL;
}

/* shorten replaces a list of events that is too long for a packet by markers that wait for a part of it each. */
static cl_int shorten(struct command *c)
{
	cl_uint n = c->waits / MAX_WAITS + (c->waits % MAX_WAITS != 0), left = c->waits;
	cl_int code = CL_SUCCESS;

	if (n <= 1)
		return CL_SUCCESS;
	if (n > MAX_WAITS)
		return CL_OUT_OF_RESOURCES;
	const cl_event *list = c->list;
	c->markers = calloc(n, sizeof *c->markers);
	if (!c->markers)
		return CL_OUT_OF_HOST_MEMORY;
	c->list = c->markers;
	c->waits = n;
	for (cl_uint i = 0; i < n && !code; i++) {
		cl_uint part = left < MAX_WAITS ? left : MAX_WAITS;
		code = dxpu_EnqueueMarkerWithWaitList(c->queue, part, list, &c->markers[i]);
		list += part;
		left -= part;
	}
	if (code)
		forget_markers(c);
	return code;
}

/* The parts of a command in an out-of-order queue wait for each other, so that all are complete
 * when the last one is. */
void add_waits(struct packet *p, const struct command *c)
{
	uint64_t before = c->queue->properties & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE ? c->event->cookie : 0;
	uint64_t filling = create_filling(c->queue);

	packet_u32(p, c->waits + (before != 0) + (filling != 0));
	packet_u32(p, c->waits + (before != 0)); /* have to succeed; what fills is that of any object */
	for (cl_uint i = 0; i < c->waits; i++)
		packet_u64(p, c->list[i]->cookie); /* 0, that of a user event, is complete */
	if (before)
		packet_u64(p, before);
	if (filling)
		packet_u64(p, filling);
}

cl_int begin(struct command *c)
{
	cl_int code;

	if (!object_is(c->queue, KIND_QUEUE))
		return CL_INVALID_COMMAND_QUEUE;
	code = wait_list(c->queue->context, c->waits, c->list);
	if (code)
		return code;
	if (channel_failed(channel_of(c->queue)))
		return CL_DEVICE_NOT_AVAILABLE;
	code = create_refused(c->queue->context, c->queue);
	if (!code)
		code = shorten(c);
	if (code)
		return code;
	c->event = event_new(c->queue->context, c->queue, c->type);
	if (!c->event)
		forget_markers(c);
	return c->event ? CL_SUCCESS : CL_OUT_OF_HOST_MEMORY;
}

void abandon(struct command *c, cl_int code)
{
	forget_markers(c);
	part_end(c->event, code, NULL);
	event_release(c->event);
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
		if (channel_load(event_channel(list->event), &list->event->status) > 0) {
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

static cl_int run_packet(struct command *c)
{
	struct part *part = part_new(c);

	if (!part)
		return CL_OUT_OF_HOST_MEMORY;
	add_waits(c->packet, c);
	if (c->from) {
		part->host = c->host;
		part->from = c->from;
		part->size = c->size;
	}
	if (c->later) { /* a part of the command, which holds its event */
		part->later = c->later;
		c->later = NULL;
		pthread_mutex_lock(&dxpu_lock);
		c->event->parts++;
		c->event->object.references++;
		pthread_mutex_unlock(&dxpu_lock);
		channel_watch(channel_of(c->queue), 1);
	}
	return post(part, c->packet);
}

/* failed_wait reports whether an event that a command waits for has failed. */
static int failed_wait(const struct command *c)
{
	for (cl_uint i = 0; i < c->waits; i++)
		if (__atomic_load_n(&c->list[i]->status, __ATOMIC_ACQUIRE) < 0)
			return 1;
	return 0;
}

/* drop ends a command that does not run. */
static void drop(struct command *c, cl_int code)
{
	if (c->map)
		mapping_release(c->map);
	if (c->later)
		free(c->later->data);
	free(c->later);
	c->later = NULL;
	part_end(c->event, code, NULL);
}

cl_int command_run(struct command *c)
{
	cl_int code;

	if (failed_wait(c)) { /* the call succeeds, and the event fails */
		drop(c, CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST);
		return CL_SUCCESS;
	}
	switch (c->kind) {
	case COMMAND_MOVE:
		code = move(c);
		break;
	case COMMAND_MOVE_BOX:
		code = move_box(c);
		break;
	case COMMAND_MOVE_PIXELS:
		code = move_pixels(c);
		break;
	default:
		code = run_packet(c);
	}
	if (c->map)
		mapping_release(c->map);
	part_end(c->event, code, NULL);
	return code;
}

cl_int end(struct command *c, int blocking, cl_event *out)
{
	cl_event e = c->event;
	struct channel *ch = channel_of(c->queue);
	static _Thread_local unsigned calls;
	cl_int code = CL_SUCCESS;

	if (!command_defer(c, &code))
		code = command_run(c);
	forget_markers(c);
	/* After an error, other parts may still use memory that the caller frees. */
	if (code)
		channel_wait(ch, &e->status);
	else if (blocking) {
		channel_wait(ch, &e->status);
		output_show(c->queue->context);
		if (e->status > 0 || e->status == CL_DEVICE_NOT_AVAILABLE)
			code = CL_DEVICE_NOT_AVAILABLE;
		else
			code = create_refused(c->queue->context, c->queue);
		if (!code && e->status < 0)
			code = CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST;
	}
	if (!code && out) {
		object_hold(e);
		*out = e;
	}
	retire(e);
	if (++calls % 256 == 0 || blocking)
		sweep();
	return code;
}

cl_int end_empty(struct command *c, int blocking, cl_event *out)
{
	struct packet p;

	packet_start(&p, PACKET_MARKER, c->queue->handle);
	c->kind = COMMAND_PACKET;
	c->packet = &p;
	return end(c, blocking, out);
}
