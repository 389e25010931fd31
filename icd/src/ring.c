#include <string.h>

#include "channel_private.h"

/* room is a wait for a slot and for n bytes of the ring. */
struct room {
	struct channel *channel;
	uint64_t n;
};

static int has_room(void *arg)
{
	struct room *w = arg;
	struct channel *c = w->channel;

	pthread_mutex_lock(&c->lock);
	int ok = c->in_flight < SLOTS - 1 && c->tail + w->n - c->freed <= RING_SIZE;
	pthread_mutex_unlock(&c->lock);
	return ok;
}

/* flush sends the packets that have not left, and the doorbell. The caller holds post. A
 * write that fails means a lost device: its thread ends the packets. */
static void flush(struct channel *c)
{
	struct write_part parts[3];
	uint32_t tail = (uint32_t)c->tail; /* only the holder of post changes it */
	int n = 0;

	while (c->sent < c->tail) {
		uint32_t from = (uint32_t)(c->sent % RING_SIZE);
		uint64_t count = c->tail - c->sent;
		if (count > RING_SIZE - from)
			count = RING_SIZE - from;
		parts[n++] = (struct write_part){REGION_BAR2, (uint32_t)count, from, c->ring + from};
		c->sent += count;
	}
	if (n == 0)
		return;
	parts[n++] = (struct write_part){REGION_BAR0, sizeof tail, REG_TAIL, &tail};
	(void)vfio_write(c->vfio, parts, n);
}

void channel_flush(struct channel *c)
{
	if (channel_forked)
		return;
	pthread_mutex_lock(&c->post);
	flush(c);
	pthread_mutex_unlock(&c->post);
}

/* take_slot waits for a slot and for n bytes of the ring, and tells whether the packet is to
 * leave at once. The caller holds post. */
static struct slot *take_slot(struct channel *c, uint64_t n, uint32_t room, completion done, void *arg, int *eager)
{
	struct room w = {c, n};
	struct slot *s = NULL;

	if (!has_room(&w)) {
		flush(c);
		channel_until(c, has_room, &w);
	}
	pthread_mutex_lock(&c->lock);
	if (!c->failed) {
		/* A cookie names its slot. A slot may be busy longer than others. */
		do
			c->cookie++;
		while (c->cookie == 0 || c->slots[c->cookie % SLOTS].used);
		s = &c->slots[c->cookie % SLOTS];
		s->used = 1;
		s->cookie = c->cookie;
		s->done = done;
		s->arg = arg;
		c->tail += n;
		s->end = c->tail;
		s->room = room;
		c->in_flight++;
	}
	*eager = c->in_flight <= EAGER;
	pthread_mutex_unlock(&c->lock);
	return s;
}

/* put copies to the ring, which may wrap. */
static void put(struct channel *c, uint64_t at, const void *data, uint32_t n)
{
	uint32_t from = (uint32_t)(at % RING_SIZE), first = n < RING_SIZE - from ? n : RING_SIZE - from;

	memcpy(c->ring + from, data, first);
	memcpy(c->ring, (const unsigned char *)data + first, n - first);
}

uint64_t channel_post(struct channel *c, const struct packet *p, const struct staging *out, completion done, void *arg)
{
	struct {
		uint32_t size;
		uint16_t op, flags;
		uint64_t cookie, out;
		uint32_t room, queue;
	} header = {32 + p->length, p->op, p->flags, 0, 0, 0, p->queue};

	if (channel_forked)
		return 0;
	if (p->flags & PACKET_FETCH) {
		header.out = p->fetch_at;
		header.room = p->fetch_size;
	} else if (out) {
		header.out = out->at;
		header.room = (uint32_t)out->size;
	}
	pthread_mutex_lock(&c->post);
	int eager;
	struct slot *s = take_slot(c, header.size, out ? (uint32_t)out->size : 0, done, arg, &eager);
	if (!s) {
		pthread_mutex_unlock(&c->post);
		return 0;
	}
	uint64_t cookie = header.cookie = s->cookie, at = s->end - header.size; /* only an event frees s */
	put(c, at, &header, sizeof header);
	put(c, at + sizeof header, p->body, p->length);
	if (eager || c->tail - c->sent >= BATCH)
		flush(c);
	pthread_mutex_unlock(&c->post);
	return cookie;
}

static int reached(void *arg) { return __atomic_load_n((volatile int32_t *)arg, __ATOMIC_ACQUIRE) <= 0; }

void channel_settle(struct channel *c, int (*ready)(void *arg), void *arg)
{
	if (channel_forked)
		return; /* nothing completes here */
	channel_flush(c);
	channel_until(c, ready, arg);
}

void channel_wait(struct channel *c, volatile int32_t *word)
{
	channel_settle(c, reached, (void *)(uintptr_t)word);
	(void)channel_load(c, word); /* channel_finish touches it no more */
}

int32_t channel_load(struct channel *c, volatile int32_t *word)
{
	if (channel_forked)
		return *word;
	pthread_mutex_lock(&c->lock);
	int32_t v = *word;
	pthread_mutex_unlock(&c->lock);
	return v;
}

void channel_set(struct channel *c, volatile int32_t *word, int32_t value)
{
	__atomic_store_n(word, value, __ATOMIC_RELEASE);
	vfio_notify(c->vfio);
}

void channel_finish(struct channel *c, volatile int32_t *status, int32_t value, volatile int32_t *pending)
{
	pthread_mutex_lock(&c->lock);
	__atomic_store_n(status, value, __ATOMIC_RELEASE);
	if (pending)
		__atomic_sub_fetch(pending, 1, __ATOMIC_ACQ_REL);
	pthread_mutex_unlock(&c->lock);
	vfio_notify(c->vfio);
}
