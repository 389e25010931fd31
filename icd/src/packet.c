#include <string.h>

#include "channel.h"

void packet_start(struct packet *p, uint16_t op, uint32_t queue)
{
	p->op = op;
	p->flags = 0;
	p->queue = queue;
	p->length = 0;
	p->overflow = 0;
}

static unsigned char *packet_room(struct packet *p, size_t n)
{
	if (n > sizeof p->body - p->length) {
		p->overflow = 1;
		return NULL;
	}
	unsigned char *at = p->body + p->length;
	p->length += (uint32_t)n;
	return at;
}

void packet_u32(struct packet *p, uint32_t v)
{
	unsigned char *at = packet_room(p, sizeof v);
	if (at)
		memcpy(at, &v, sizeof v);
}

void packet_u64(struct packet *p, uint64_t v)
{
	unsigned char *at = packet_room(p, sizeof v);
	if (at)
		memcpy(at, &v, sizeof v);
}

void packet_bytes(struct packet *p, const void *data, size_t n)
{
	size_t padded = (n + 7) & ~(size_t)7;
	unsigned char *at = n <= sizeof p->body ? packet_room(p, padded) : NULL;
	if (!at) {
		p->overflow = 1;
		return;
	}
	memset(at + n, 0, padded - n);
	memcpy(at, data, n);
}
