/* User events, and the commands that wait for them. Such commands stay in the driver: in
 * the device, they would look like commands without progress. Commands behind them in an
 * ordered queue stay as well, and so do releases of objects, which the commands may use. */
#include <stdlib.h>
#include <string.h>

#include "command.h"

/* kept is a command, or the release of an object. */
struct kept {
	struct kept *next;
	struct channel *channel; /* of a release, whose context may have ended; NULL: a command */
	cl_uint handle;
	struct command command; /* with copies of what it points to */
	cl_event *list;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the fields below, and deferred of events */
static struct kept *first, **last = &first;
static int open;     /* user events without a status; read without the lock */
static int keeping;  /* commands that have not run, and releases that were not sent; read without the lock */

static int is_open(cl_event e) { return !e->queue && __atomic_load_n(&e->status, __ATOMIC_ACQUIRE) > 0; }

/* blocked reports whether a command has to wait for a user event. */
static int blocked(const struct command *c)
{
	for (cl_uint i = 0; i < c->waits; i++)
		if (is_open(c->list[i]) || c->list[i]->deferred)
			return 1;
	return 0;
}

static int out_of_order(cl_command_queue q) { return (q->properties & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE) != 0; }

/* behind reports whether a command comes after one of its queue that is kept, up to an
 * entry. */
static int behind(const struct command *c, const struct kept *until)
{
	for (const struct kept *k = first; k != until; k = k->next)
		if (!k->channel && k->command.queue == c->queue && (!out_of_order(c->queue) || c->last || k->command.barrier))
			return 1;
	return 0;
}

static void append(struct kept *k)
{
	k->next = NULL;
	*last = k;
	last = &k->next;
	__atomic_add_fetch(&keeping, 1, __ATOMIC_ACQ_REL);
}

static void kept_free(struct kept *k)
{
	for (cl_uint i = 0; k->list && i < k->command.waits; i++)
		event_release(k->list[i]);
	if (k->command.mem)
		mem_release(k->command.mem);
	if (k->command.later)
		free(k->command.later->data);
	free(k->command.later);
	free(k->command.packet);
	free(k->list);
	free(k);
}

/* keep copies a command. */
static struct kept *keep(const struct command *c)
{
	struct kept *k = calloc(1, sizeof *k);

	if (!k)
		return NULL;
	k->command = *c;
	k->command.mem = NULL;
	k->command.packet = NULL;
	k->command.markers = NULL;
	k->command.waits = 0;
	k->list = malloc((c->waits ? c->waits : 1) * sizeof *k->list);
	if (!k->list || (c->packet && !(k->command.packet = malloc(sizeof *c->packet)))) {
		kept_free(k);
		return NULL;
	}
	if (c->packet)
		memcpy(k->command.packet, c->packet, offsetof(struct packet, body) + c->packet->length);
	for (cl_uint i = 0; i < c->waits; i++) {
		k->list[i] = c->list[i];
		object_retain(k->list[i]);
	}
	k->command.list = k->list;
	k->command.waits = c->waits;
	k->command.mem = c->mem;
	if (c->mem)
		object_retain(c->mem);
	return k;
}

int command_defer(struct command *c, cl_int *code)
{
	if (!__atomic_load_n(&open, __ATOMIC_ACQUIRE) && !__atomic_load_n(&keeping, __ATOMIC_ACQUIRE))
		return 0;
	pthread_mutex_lock(&lock);
	int wait = blocked(c) || behind(c, NULL);
	if (wait) {
		struct kept *k = keep(c);
		if (k) {
			c->event->deferred = 1;
			object_retain(c->event);
			append(k);
			stamp_post(c);
		} else
			*code = CL_OUT_OF_HOST_MEMORY;
	}
	pthread_mutex_unlock(&lock);
	if (*code)
		part_end(c->event, *code, NULL);
	return wait;
}

int commands_kept(void) { return __atomic_load_n(&keeping, __ATOMIC_ACQUIRE) > 0; }

int event_deferred(cl_event e)
{
	pthread_mutex_lock(&lock);
	int deferred = e->deferred;
	pthread_mutex_unlock(&lock);
	return deferred;
}

int release_defer(struct channel *ch, cl_uint handle)
{
	int wait = 0;

	if (channel_forked || !__atomic_load_n(&keeping, __ATOMIC_ACQUIRE))
		return 0;
	pthread_mutex_lock(&lock);
	if (first) {
		struct kept *k = calloc(1, sizeof *k);
		wait = 1; /* without memory, the object stays */
		if (k) {
			k->channel = ch;
			k->handle = handle;
			append(k);
		}
	}
	pthread_mutex_unlock(&lock);
	return wait;
}

/* next takes the first entry that need not wait. */
static struct kept *next(void)
{
	for (struct kept **at = &first; *at; at = &(*at)->next) {
		struct kept *k = *at;
		if (k->channel ? k != first : blocked(&k->command) || behind(&k->command, k))
			continue;
		*at = k->next;
		if (!*at)
			last = at;
		return k;
	}
	return NULL;
}

/* run_kept runs the entries that need not wait, and those that wait for them. The caller
 * holds the lock, which keeps the order of the commands of a queue. It returns the entries. */
static struct kept *run_kept(void)
{
	struct kept *done = NULL, *k;

	while ((k = next())) {
		if (!k->channel) {
			stamp_end(k->command.event);
			(void)command_run(&k->command);
			k->command.event->deferred = 0;
			/* Until here, a command that another thread enqueues has to come behind this one. */
			__atomic_sub_fetch(&keeping, 1, __ATOMIC_ACQ_REL);
		}
		k->next = done;
		done = k;
	}
	return done;
}

cl_event CL_API_CALL dxpu_CreateUserEvent(cl_context c, cl_int *error)
{
	cl_event e = object_is(c, KIND_CONTEXT) ? event_new(c, NULL, CL_COMMAND_USER) : NULL;

	if (e) {
		e->status = CL_SUBMITTED;
		__atomic_add_fetch(&open, 1, __ATOMIC_ACQ_REL);
	}
	if (error)
		*error = e ? CL_SUCCESS : object_is(c, KIND_CONTEXT) ? CL_OUT_OF_HOST_MEMORY : CL_INVALID_CONTEXT;
	return e;
}

cl_int CL_API_CALL dxpu_SetUserEventStatus(cl_event e, cl_int status)
{
	if (!object_is(e, KIND_EVENT) || e->queue)
		return CL_INVALID_EVENT;
	if (status > 0)
		return CL_INVALID_VALUE;
	if (channel_forked)
		return CL_DEVICE_NOT_AVAILABLE;
	pthread_mutex_lock(&lock);
	int again = !is_open(e);
	struct kept *done = NULL;
	if (!again) {
		part_end(e, status, NULL);
		__atomic_sub_fetch(&open, 1, __ATOMIC_ACQ_REL);
		done = run_kept();
	}
	pthread_mutex_unlock(&lock);
	/* Without the lock: a release may end an object of the engine. */
	while (done) {
		struct kept *k = done;
		done = k->next;
		if (k->channel) {
			release_post(k->channel, k->handle);
			__atomic_sub_fetch(&keeping, 1, __ATOMIC_ACQ_REL);
			free(k);
			continue;
		}
		channel_flush(k->command.event->context->device->channel);
		event_release(k->command.event);
		kept_free(k);
	}
	return again ? CL_INVALID_OPERATION : CL_SUCCESS;
}
