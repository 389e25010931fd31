/* Timers of the device and of the host, which is the clock of the program's machine. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "command.h"

static cl_ulong nanoseconds(const struct timespec *t) { return (cl_ulong)t->tv_sec * 1000000000 + (cl_ulong)t->tv_nsec; }

static cl_ulong host_time(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return nanoseconds(&t);
}

/* has_timer reports whether the platform behind a device has timers, and the engine a packet for them. */
static int has_timer(cl_device_id d)
{
	return channel_features(d->channel) & FEATURE_TIMER && device_number(d, CL_PLATFORM_HOST_TIMER_RESOLUTION) > 0;
}

cl_ulong timer_resolution(cl_device_id d)
{
	struct timespec t;

	return has_timer(d) && !clock_getres(CLOCK_MONOTONIC, &t) ? nanoseconds(&t) : 0;
}

cl_int CL_API_CALL dxpu_GetDeviceAndHostTimer(cl_device_id d, cl_ulong *device, cl_ulong *host)
{
	struct packet p;
	struct staging s;
	uint32_t length;
	cl_ulong before, after;
	cl_int code;

	if (!object_is(d, KIND_DEVICE))
		return CL_INVALID_DEVICE;
	if (!has_timer(d))
		return CL_INVALID_OPERATION;
	if (!device || !host)
		return CL_INVALID_VALUE;
	if (channel_reserve(d->channel, sizeof *device, &s))
		return CL_DEVICE_NOT_AVAILABLE;
	packet_start(&p, PACKET_TIMER, 0);
	before = host_time();
	code = channel_call(d->channel, &p, &s, &length);
	after = host_time();
	if (!code && length != sizeof *device)
		code = CL_OUT_OF_RESOURCES; /* of a hostile device */
	if (!code) {
		memcpy(device, s.mirror, sizeof *device);
		/* The device was asked between both, at most half of the round trip from the middle. */
		*host = before + (after - before) / 2;
	}
	channel_free(d->channel, &s);
	return code;
}

cl_int CL_API_CALL dxpu_GetHostTimer(cl_device_id d, cl_ulong *host)
{
	if (!object_is(d, KIND_DEVICE))
		return CL_INVALID_DEVICE;
	if (!has_timer(d))
		return CL_INVALID_OPERATION;
	if (!host)
		return CL_INVALID_VALUE;
	*host = host_time();
	return CL_SUCCESS;
}

/* A command that waits for a user event reaches the device long after its call. The time of the call is that of
 * the device where it has a timer; else the time in the driver is taken from that of the arrival. */

static int timed(const struct command *c) { return (c->queue->properties & CL_QUEUE_PROFILING_ENABLE) != 0; }

void stamp_post(struct command *c)
{
	cl_event e = c->event;
	struct packet p;

	if (!timed(c))
		return;
	e->kept = host_time();
	if (!has_timer(c->queue->context->device))
		return;
	struct part *part = part_new(c);
	if (!part)
		return;
	if (channel_reserve(channel_of(c->queue), sizeof e->queued, &part->staging)) {
		free(part);
		return;
	}
	part->staged = part->read = part->stamp = 1;
	part->host = (unsigned char *)&e->queued;
	part->size = sizeof e->queued;
	packet_start(&p, PACKET_TIMER, 0);
	(void)post(part, &p); /* a lost device fails the command later */
	e->cookie = 0;        /* nothing waits for the time */
}

void stamp_end(cl_event e)
{
	if (e->kept)
		e->kept = host_time() - e->kept;
}

cl_ulong stamp_queued(cl_event e)
{
	cl_ulong at = e->times.at[0];

	if (e->queued && e->queued < at)
		return e->queued;
	return e->kept < at ? at - e->kept : at;
}
