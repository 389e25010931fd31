#include "channel.h"

#define DEVICE_NOT_AVAILABLE (-2)

static void call_done(void *arg, int32_t status, uint32_t length, const struct times *t)
{
	struct call *call = arg;

	(void)t;
	call->status = status;
	call->length = length;
	channel_set(call->channel, &call->waiting, 0);
}

void channel_ask(struct channel *c, const struct packet *p, const struct staging *out, struct call *call)
{
	*call = (struct call){c, 1, 0, 0};
	if (p->overflow || !channel_post(c, p, out, call_done, call))
		*call = (struct call){c, 0, DEVICE_NOT_AVAILABLE, 0};
}

int32_t channel_answer(struct call *call)
{
	channel_wait(call->channel, &call->waiting);
	return call->status;
}

int32_t channel_call(struct channel *c, const struct packet *p, const struct staging *out, uint32_t *length)
{
	struct call call;

	channel_ask(c, p, out, &call);
	int32_t status = channel_answer(&call);
	if (length)
		*length = call.length;
	return status;
}
