#include <string.h>

#include "channel_private.h"

uint64_t channel_block(struct channel *c) { return c->page_count / 4 * PAGE; }

/* find returns the first of n free pages in a row, or -1. */
static long find(struct channel *c, size_t n)
{
	size_t run = 0;

	for (size_t i = 0; i < c->page_count; i++) {
		run = c->pages[i] ? 0 : run + 1;
		if (run == n)
			return (long)(i + 1 - n);
	}
	return -1;
}

/* claim is a wait for pages. */
struct claim {
	struct channel *channel;
	size_t n;
	long at;
};

static int claimed(void *arg)
{
	struct claim *w = arg;
	struct channel *c = w->channel;

	if (w->at >= 0)
		return 1;
	pthread_mutex_lock(&c->lock);
	w->at = find(c, w->n);
	if (w->at >= 0)
		memset(c->pages + w->at, 1, w->n);
	pthread_mutex_unlock(&c->lock);
	return w->at >= 0;
}

int channel_reserve(struct channel *c, uint64_t size, struct staging *s)
{
	size_t n = (size_t)((size + PAGE - 1) / PAGE);

	if (channel_forked)
		return -1;
	if (n == 0)
		n = 1;
	struct claim w = {c, n, -1};
	if (n > c->page_count)
		return -1;
	if (!channel_failed(c) && !claimed(&w)) {
		channel_flush(c); /* the packets that hold the pages */
		channel_until(c, claimed, &w);
	}
	if (w.at < 0)
		return -1;
	uint64_t at = (uint64_t)w.at;
	s->at = RING_SIZE + at * PAGE;
	s->size = n * PAGE;
	s->mirror = c->memory + s->at;
	return 0;
}

void channel_free(struct channel *c, const struct staging *s)
{
	if (channel_forked)
		return;
	pthread_mutex_lock(&c->lock);
	memset(c->pages + (s->at - RING_SIZE) / PAGE, 0, (size_t)(s->size / PAGE));
	pthread_mutex_unlock(&c->lock);
	vfio_notify(c->vfio);
}

/* Few bytes go through the aperture with the packet. The device fetches more by DMA, which takes
 * a round trip and no processor here. */
int channel_upload(struct channel *c, const struct staging *s, const void *data, size_t n, struct packet *p)
{
	const unsigned char *bytes = data;

	if (n > vfio_upload(c->vfio) && c->features & FEATURE_FETCH) {
		if (data != s->mirror)
			memcpy(s->mirror, data, n);
		p->flags |= PACKET_FETCH;
		p->fetch_at = s->at;
		p->fetch_size = (uint32_t)n;
		return 0;
	}
	for (size_t done = 0; done < n;) {
		size_t part = n - done > 1 << 20 ? 1 << 20 : n - done;
		struct write_part w = {REGION_BAR2, (uint32_t)part, s->at + done, bytes + done};
		if (vfio_write(c->vfio, &w, 1))
			return -1;
		done += part;
	}
	return 0;
}
