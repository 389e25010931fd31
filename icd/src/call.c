#include "channel.h"

#define DEVICE_NOT_AVAILABLE (-2)

/* call is a packet for whose status its sender waits. It stays where it is until then. */
struct call {
	struct channel *channel;
	volatile int32_t waiting;
	int32_t status;
	uint32_t length;
};

static void call_done(void *arg, int32_t status, uint32_t length, const struct times *t)
{
	struct call *call = arg;

	(void)t;
	call->status = status;
	call->length = length;
	channel_set(call->channel, &call->waiting, 0);
}

int32_t channel_call(struct channel *c, const struct packet *p, const struct staging *out, uint32_t *length)
{
	struct call call = {c, 1, 0, 0};

	if (p->overflow || !channel_post(c, p, out, call_done, &call))
		call = (struct call){c, 0, DEVICE_NOT_AVAILABLE, 0};
	channel_wait(c, &call.waiting);
	if (length)
		*length = call.length;
	return call.status;
}
