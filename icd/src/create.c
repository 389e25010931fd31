/* Objects of the engine. Their packets are posted if the device is sure to take them: it has taken
 * one of the kind before, and has memory. Else the call waits for the answer. A device that refuses
 * a posted one, as a platform that has less memory than it says, has commands that use the object
 * end with CL_MEM_OBJECT_ALLOCATION_FAILURE. Programs may not look at the event of each command, so
 * the next call that enqueues or waits returns an error, too, in each context of the device, and for
 * each queue with a command that used the object. */
#include "command.h"

/* POSTED_SHARE is the share of the device's memory up to which buffers are posted, and POSTED_OBJECTS
 * the number of objects, of which the device takes 65536. */
enum { POSTED_SHARE = 2, POSTED_OBJECTS = 16 << 10 };

static uint64_t *place_of(cl_device_id d, uint64_t kind) { return &d->kinds[kind * 0x9e3779b97f4a7c15u >> 56]; }

/* settle forgets the released objects. Until nothing is kept or in flight, commands may use their memory,
 * and the device may not have their releases. The caller holds the driver's lock. */
static void settle(cl_device_id d)
{
	if (d->gone && !commands_kept() && channel_idle(d->channel))
		d->gone = d->released = 0;
}

int create_count(cl_device_id d, uint64_t bytes, uint64_t kind)
{
	pthread_mutex_lock(&dxpu_lock);
	settle(d);
	d->objects++;
	d->bytes += bytes;
	int sure = kind && *place_of(d, kind) == kind && d->objects + d->gone <= POSTED_OBJECTS &&
		   d->bytes + d->released <= channel_memory(d->channel) / POSTED_SHARE;
	pthread_mutex_unlock(&dxpu_lock);
	return sure;
}

/* uncount takes back the count of an object that is not there. */
static void uncount(cl_device_id d, uint64_t bytes)
{
	pthread_mutex_lock(&dxpu_lock);
	d->objects--;
	d->bytes -= bytes;
	pthread_mutex_unlock(&dxpu_lock);
}

void create_release(cl_context c, cl_uint handle, uint64_t bytes)
{
	cl_device_id d = c->device;

	/* Before this release is in flight: a program may wait between all its releases. */
	pthread_mutex_lock(&dxpu_lock);
	settle(d);
	pthread_mutex_unlock(&dxpu_lock);
	dxpu_release(c, handle);
	pthread_mutex_lock(&dxpu_lock);
	d->objects--;
	d->bytes -= bytes;
	d->gone++;
	d->released += bytes;
	pthread_mutex_unlock(&dxpu_lock);
}

static void learn(cl_device_id d, uint64_t kind)
{
	pthread_mutex_lock(&dxpu_lock);
	*place_of(d, kind) = kind;
	pthread_mutex_unlock(&dxpu_lock);
}

static void refuse(cl_device_id d) { __atomic_add_fetch(&d->refusals, 1, __ATOMIC_ACQ_REL); }

static unsigned refusals(cl_device_id d) { return __atomic_load_n(&d->refusals, __ATOMIC_ACQUIRE); }

static void created(void *device, int32_t status, uint32_t length, const struct times *t)
{
	(void)length;
	(void)t;
	if (status < 0)
		refuse(device);
}

cl_int create(cl_context c, const struct packet *p, uint64_t bytes, uint64_t kind)
{
	cl_device_id d = c->device;
	cl_int code = CL_SUCCESS;

	if (!create_count(d, bytes, kind)) {
		code = channel_call(d->channel, p, NULL, NULL);
		if (!code)
			learn(d, kind);
		if (code == CL_INVALID_MEM_OBJECT && refusals(d))
			code = CL_MEM_OBJECT_ALLOCATION_FAILURE; /* of what it lies in */
	} else if (!channel_post(d->channel, p, NULL, created, d))
		code = CL_DEVICE_NOT_AVAILABLE;
	if (code)
		uncount(d, bytes);
	return code;
}

cl_int create_filled(cl_context c, const struct packet *p, uint64_t bytes, uint64_t kind, struct command *fill)
{
	cl_int code = create(c, p, bytes, kind);
	cl_event e = NULL;

	if (code || !fill->host)
		return code;
	fill->queue = &c->own;
	code = begin(fill);
	if (!code)
		code = end(fill, 0, &e);
	if (code) {
		create_release(c, fill->mem->handle, bytes);
		return code;
	}
	pthread_mutex_lock(&dxpu_lock);
	if (e->cookie > c->filled)
		__atomic_store_n(&c->filled, e->cookie, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&dxpu_lock);
	event_release(e);
	return CL_SUCCESS;
}

uint64_t create_filling(cl_command_queue q)
{
	cl_context c = q->context;

	return q != &c->own && __atomic_load_n(&c->own.pending, __ATOMIC_ACQUIRE) > 0 ? __atomic_load_n(&c->filled, __ATOMIC_ACQUIRE) : 0;
}

int32_t create_missing(cl_event e, int32_t status)
{
	cl_device_id d = e->context->device;
	int fill = e->queue == &e->context->own;

	if (status >= 0 || status == CL_DEVICE_NOT_AVAILABLE ||
	    !(fill || (refusals(d) && (status == CL_INVALID_MEM_OBJECT || status == CL_INVALID_ARG_VALUE))))
		return status;
	if (!fill)
		__atomic_store_n(&e->queue->missing, 1, __ATOMIC_RELEASE);
	refuse(d);
	return CL_MEM_OBJECT_ALLOCATION_FAILURE;
}

cl_int create_refused(cl_context c, cl_command_queue q)
{
	unsigned n = refusals(c->device);
	int news = __atomic_exchange_n(&c->refusals, n, __ATOMIC_ACQ_REL) != n;

	/* A call for another queue may have had the news of the context. */
	if (q && __atomic_load_n(&q->missing, __ATOMIC_ACQUIRE))
		news |= __atomic_exchange_n(&q->missing, 0, __ATOMIC_ACQ_REL);
	return news ? CL_MEM_OBJECT_ALLOCATION_FAILURE : CL_SUCCESS;
}
