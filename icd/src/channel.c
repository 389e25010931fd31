#include "channel.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "vfio.h"

/* Registers of BAR 0. */
enum {
	REG_ID = 0x000,
	REG_CAPS = 0x008,
	REG_VRAM_SIZE = 0x040,
	REG_APERTURE_SIZE = 0x048,
	REG_VERSION = 0x3004,
	REG_CONTROL = 0x3008,
	REG_STATE = 0x300c,
	REG_TAIL = 0x3014,
	REG_SEEN = 0x3020,
	REG_VECTOR = 0x3024,
	REG_RING = 0x3028,
	REG_RING_SIZE = 0x3030,
	REG_EVENT_SIZE = 0x3034,
	REG_EVENT_BASE = 0x3038,
	REG_MIRROR = 0x3040,
	REG_MEMORY = 0x3048,
};

enum { MAGIC = 0x55505844, CAP_COMPUTE = 1 << 4, STATE_STARTING = 1, STATE_READY = 2, PACKET_VERSION = 1 };

enum {
	RING_SIZE = 1 << 20, /* at VRAM address 0; staging memory follows */
	EVENT_ENTRIES = 4096,
	EVENT_SIZE = 64,
	EVENT_BYTES = EVENT_ENTRIES * EVENT_SIZE,
	SLOTS = 4096, /* packets in flight */
	PAGE = 4096,
	START_TRIES = 3000,
	SPINS = 2000, /* looks at the count before a thread sleeps: some 20 us */
};

#define DMA_BASE 0x100000000u
#define EVENTS_FAILED (1ull << 63)
#define DEVICE_NOT_AVAILABLE (-2)
#define OUT_OF_RESOURCES (-5)

/* forked says that this process is a child of the one that has the connections. */
static volatile int forked;

struct event {
	uint64_t cookie;
	int32_t status;
	uint32_t length;
	uint64_t times[4];
	uint64_t out, reserved;
};

struct slot {
	int used;
	uint64_t cookie;
	uint64_t end; /* of the packet in the ring, in bytes since the start */
	uint32_t room; /* for its result */
	completion done;
	void *arg;
};

struct channel {
	struct vfio *vfio;
	unsigned char *memory; /* mirror of VRAM, then the event ring and its count */
	size_t memory_size;
	uint64_t vram, engine_memory;
	volatile struct event *events;
	volatile uint64_t *count;

	pthread_mutex_t post;   /* held while a packet goes into the ring */
	pthread_mutex_t handle; /* held while events are handled, so that they are in order */

	pthread_mutex_t lock; /* guards the fields below */
	pthread_cond_t changed;
	int failed;
	uint64_t tail, freed; /* bytes of the ring since the start: put, and taken by the device */
	uint64_t cookie;
	uint32_t next_handle, seen, told;
	uint32_t next_slot, in_flight;
	struct slot slots[SLOTS];
	unsigned char *pages; /* 1: taken, for each page of staging memory */
	size_t page_count;
};

/* take handles one event. The device may be hostile: a result is not longer than its room. */
static void take(struct channel *c, struct event *e)
{
	completion done = NULL;
	void *arg = NULL;
	struct times t;
	struct slot *s = &c->slots[e->cookie % SLOTS];

	pthread_mutex_lock(&c->lock);
	if (s->used && s->cookie == e->cookie) {
		done = s->done;
		arg = s->arg;
		if (e->length > s->room || e->status > 0) {
			e->status = OUT_OF_RESOURCES;
			e->length = 0;
		}
		s->used = 0;
		c->in_flight--;
		if (s->end > c->freed)
			c->freed = s->end;
	}
	__atomic_store_n(&c->seen, c->seen + 1, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&c->lock);
	memcpy(t.at, e->times, sizeof t.at);
	if (done)
		done(arg, e->status, e->length, &t);
}

/* fail ends all packets in flight. */
static void fail(struct channel *c)
{
	struct times t = {{0}};

	pthread_mutex_lock(&c->lock);
	c->failed = 1;
	pthread_mutex_unlock(&c->lock);
	for (int i = 0; i < SLOTS; i++) {
		pthread_mutex_lock(&c->lock);
		struct slot s = c->slots[i];
		c->slots[i].used = 0;
		if (s.used)
			c->in_flight--;
		pthread_mutex_unlock(&c->lock);
		if (s.used)
			s.done(s.arg, DEVICE_NOT_AVAILABLE, 0, &t);
	}
	pthread_mutex_lock(&c->lock);
	pthread_cond_broadcast(&c->changed);
	pthread_mutex_unlock(&c->lock);
}

/* handle_events handles what has arrived. */
static void handle_events(struct channel *c)
{
	int any = 0;

	pthread_mutex_lock(&c->handle);
	uint64_t count = __atomic_load_n(c->count, __ATOMIC_ACQUIRE);
	while (c->seen != (uint32_t)count) {
		struct event e;
		if ((uint32_t)count - c->seen > EVENT_ENTRIES) {
			count |= EVENTS_FAILED; /* of a hostile device: the ring has no more */
			break;
		}
		memcpy(&e, (const void *)&c->events[c->seen % EVENT_ENTRIES], sizeof e);
		take(c, &e);
		any = 1;
		count = __atomic_load_n(c->count, __ATOMIC_ACQUIRE);
	}
	int failed = (count & EVENTS_FAILED) != 0 || vfio_lost(c->vfio);
	uint32_t seen = c->seen;
	/* The device stops at a full event ring only. */
	if (!failed && seen - c->told >= EVENT_ENTRIES / 4) {
		struct write_part w = {REGION_BAR0, sizeof seen, REG_SEEN, &seen};
		c->told = seen;
		(void)vfio_write(c->vfio, &w, 1);
	}
	if (failed && !channel_failed(c))
		fail(c);
	pthread_mutex_unlock(&c->handle);
	if (any) {
		pthread_mutex_lock(&c->lock);
		pthread_cond_broadcast(&c->changed);
		pthread_mutex_unlock(&c->lock);
	}
}

/* interrupt runs in the thread of the socket. Before the channel is set up, and after
 * it, there is nothing to handle. */
static void interrupt(void *arg)
{
	struct channel *c = arg;

	if (__atomic_load_n(&c->count, __ATOMIC_ACQUIRE))
		handle_events(c);
}

static int read_register(struct channel *c, uint32_t offset, void *value, uint32_t size)
{
	return vfio_read(c->vfio, REGION_BAR0, offset, value, size);
}

static int write32(struct channel *c, uint32_t offset, uint32_t value)
{
	struct write_part w = {REGION_BAR0, sizeof value, offset, &value};
	return vfio_write(c->vfio, &w, 1);
}

static int write64(struct channel *c, uint32_t offset, uint64_t value)
{
	struct write_part w = {REGION_BAR0, sizeof value, offset, &value};
	return vfio_write(c->vfio, &w, 1);
}

/* share makes the memory that mirrors VRAM, and the event ring behind it. */
static int share(struct channel *c)
{
	uint64_t aperture;

	if (read_register(c, REG_VRAM_SIZE, &c->vram, sizeof c->vram) ||
	    read_register(c, REG_APERTURE_SIZE, &aperture, sizeof aperture) ||
	    read_register(c, REG_MEMORY, &c->engine_memory, sizeof c->engine_memory))
		return -1;
	if (c->vram > aperture)
		c->vram = aperture;
	if (c->vram > 1ull << 32 || c->vram < RING_SIZE * 2)
		return -1;
	c->vram &= ~(uint64_t)(PAGE - 1);
	c->memory_size = c->vram + EVENT_BYTES + PAGE;
	int fd = memfd_create("dxpu-opencl", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return -1;
	/* The other side has the file too: if it made it shorter, this process would fault. */
	if (ftruncate(fd, (off_t)c->memory_size) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
		c->memory = mmap(NULL, c->memory_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	int bad = c->memory == MAP_FAILED || !c->memory || vfio_map(c->vfio, fd, DMA_BASE, c->memory_size);
	close(fd);
	if (bad)
		return -1;
	c->events = (volatile struct event *)(c->memory + c->vram);
	c->page_count = (size_t)(c->vram - RING_SIZE) / PAGE;
	c->pages = calloc(c->page_count, 1);
	return c->pages ? 0 : -1;
}

/* start makes the context and waits until its process runs. */
static int start(struct channel *c)
{
	uint32_t state = STATE_STARTING;
	struct timespec pause = {0, 2000000};

	__atomic_store_n(&c->count, (volatile uint64_t *)(c->memory + c->vram + EVENT_BYTES), __ATOMIC_RELEASE);
	if (write32(c, REG_CONTROL, 0) || write64(c, REG_RING, 0) || write32(c, REG_RING_SIZE, RING_SIZE) ||
	    write32(c, REG_EVENT_SIZE, EVENT_ENTRIES) || write64(c, REG_EVENT_BASE, DMA_BASE + c->vram) ||
	    write64(c, REG_MIRROR, DMA_BASE) || write32(c, REG_VECTOR, 0) || write32(c, REG_CONTROL, 1))
		return -1;
	for (int i = 0; i < START_TRIES && state == STATE_STARTING; i++) {
		nanosleep(&pause, NULL);
		if (read_register(c, REG_STATE, &state, sizeof state))
			return -1;
	}
	return state == STATE_READY ? 0 : -1;
}

struct channel *channel_open(const char *path)
{
	struct channel *c = calloc(1, sizeof *c);
	uint32_t id = 0, caps = 0, version = 0;

	if (!c)
		return NULL;
	pthread_mutex_init(&c->post, NULL);
	pthread_mutex_init(&c->handle, NULL);
	pthread_mutex_init(&c->lock, NULL);
	pthread_cond_init(&c->changed, NULL);
	c->vfio = vfio_open(path, interrupt, c);
	if (!c->vfio) {
		free(c);
		return NULL;
	}
	if (read_register(c, REG_ID, &id, sizeof id) || id != MAGIC || read_register(c, REG_CAPS, &caps, sizeof caps) ||
	    !(caps & CAP_COMPUTE) || read_register(c, REG_VERSION, &version, sizeof version) || version != PACKET_VERSION ||
	    share(c) || start(c)) {
		channel_close(c);
		errno = ENODEV;
		return NULL;
	}
	return c;
}

void channel_close(struct channel *c)
{
	(void)write32(c, REG_CONTROL, 0);
	vfio_close(c->vfio);
	if (c->memory && c->memory != MAP_FAILED)
		munmap(c->memory, c->memory_size);
	free(c->pages);
	pthread_mutex_destroy(&c->post);
	pthread_mutex_destroy(&c->handle);
	pthread_mutex_destroy(&c->lock);
	pthread_cond_destroy(&c->changed);
	free(c);
}

void channel_after_fork(struct channel *c)
{
	forked = 1;
	vfio_after_fork(c->vfio);
}

int channel_failed(struct channel *c)
{
	if (forked)
		return 1; /* without the lock, which a thread of the parent may have held */
	pthread_mutex_lock(&c->lock);
	int failed = c->failed;
	pthread_mutex_unlock(&c->lock);
	return failed;
}

uint64_t channel_memory(struct channel *c) { return c->engine_memory; }

uint32_t channel_handle(struct channel *c)
{
	if (forked)
		return 1; /* of an object that will not be */
	pthread_mutex_lock(&c->lock);
	if (++c->next_handle == 0)
		c->next_handle = 1;
	uint32_t h = c->next_handle;
	pthread_mutex_unlock(&c->lock);
	return h;
}

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

int channel_reserve(struct channel *c, uint64_t size, struct staging *s)
{
	size_t n = (size_t)((size + PAGE - 1) / PAGE);
	long at = -1;

	if (forked)
		return -1;
	if (n == 0)
		n = 1;
	pthread_mutex_lock(&c->lock);
	while (!c->failed && n <= c->page_count && (at = find(c, n)) < 0)
		pthread_cond_wait(&c->changed, &c->lock);
	if (at >= 0)
		memset(c->pages + at, 1, n);
	pthread_mutex_unlock(&c->lock);
	if (at < 0)
		return -1;
	s->at = RING_SIZE + (uint64_t)at * PAGE;
	s->size = n * PAGE;
	s->mirror = c->memory + s->at;
	return 0;
}

void channel_free(struct channel *c, const struct staging *s)
{
	if (forked)
		return;
	pthread_mutex_lock(&c->lock);
	memset(c->pages + (s->at - RING_SIZE) / PAGE, 0, (size_t)(s->size / PAGE));
	pthread_cond_broadcast(&c->changed);
	pthread_mutex_unlock(&c->lock);
}

int channel_upload(struct channel *c, const struct staging *s, const void *data, size_t n)
{
	const unsigned char *p = data;

	for (size_t done = 0; done < n;) {
		size_t part = n - done > 1 << 20 ? 1 << 20 : n - done;
		struct write_part w = {REGION_BAR2, (uint32_t)part, s->at + done, p + done};
		if (vfio_write(c->vfio, &w, 1))
			return -1;
		done += part;
	}
	return 0;
}

/* take_slot waits for a slot and for n bytes of the ring. The caller holds post. */
static struct slot *take_slot(struct channel *c, uint64_t n, uint32_t room, completion done, void *arg)
{
	struct slot *s = NULL;

	pthread_mutex_lock(&c->lock);
	while (!c->failed && (c->in_flight >= SLOTS - 1 || c->tail + n - c->freed > RING_SIZE))
		pthread_cond_wait(&c->changed, &c->lock);
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
	pthread_mutex_unlock(&c->lock);
	return s;
}

uint64_t channel_post(struct channel *c, const struct packet *p, const struct staging *out, completion done, void *arg)
{
	struct {
		uint32_t size;
		uint16_t op, flags;
		uint64_t cookie, out;
		uint32_t room, queue;
	} header = {32 + p->length, p->op, p->flags, 0, out ? out->at : 0, out ? (uint32_t)out->size : 0, p->queue};
	struct write_part parts[5];
	int n = 0;

	if (forked)
		return 0;
	pthread_mutex_lock(&c->post);
	struct slot *s = take_slot(c, header.size, header.room, done, arg);
	if (!s) {
		pthread_mutex_unlock(&c->post);
		return 0;
	}
	uint64_t cookie = header.cookie = s->cookie;
	uint32_t tail = (uint32_t)s->end;
	uint64_t at = s->end - header.size;
	/* The header, the body, and what of each wraps at the end of the ring. */
	const struct {
		const void *data;
		uint32_t length;
	} pieces[2] = {{&header, sizeof header}, {p->body, p->length}};
	for (int i = 0; i < 2; i++) {
		const unsigned char *data = pieces[i].data;
		for (uint32_t left = pieces[i].length; left > 0;) {
			uint32_t from = (uint32_t)(at % RING_SIZE);
			uint32_t count = left < RING_SIZE - from ? left : RING_SIZE - from;
			parts[n++] = (struct write_part){REGION_BAR2, count, from, data};
			data += count;
			at += count;
			left -= count;
		}
	}
	parts[n++] = (struct write_part){REGION_BAR0, sizeof tail, REG_TAIL, &tail};
	/* A write that fails means a lost device: its thread ends the packet. */
	(void)vfio_write(c->vfio, parts, n);
	pthread_mutex_unlock(&c->post);
	return cookie;
}

void channel_wait(struct channel *c, volatile int32_t *word)
{
	if (forked)
		return; /* nothing completes here */
	for (int i = 0; i < SPINS && __atomic_load_n(word, __ATOMIC_ACQUIRE) > 0; i++) {
		if (__atomic_load_n(&c->seen, __ATOMIC_RELAXED) != (uint32_t)__atomic_load_n(c->count, __ATOMIC_ACQUIRE))
			handle_events(c);
	}
	pthread_mutex_lock(&c->lock);
	while (__atomic_load_n(word, __ATOMIC_ACQUIRE) > 0)
		pthread_cond_wait(&c->changed, &c->lock);
	pthread_mutex_unlock(&c->lock);
}

void channel_set(struct channel *c, volatile int32_t *word, int32_t value)
{
	pthread_mutex_lock(&c->lock);
	__atomic_store_n(word, value, __ATOMIC_RELEASE);
	pthread_cond_broadcast(&c->changed);
	pthread_mutex_unlock(&c->lock);
}

void channel_finish(struct channel *c, volatile int32_t *status, int32_t value, volatile int32_t *pending)
{
	pthread_mutex_lock(&c->lock);
	__atomic_store_n(status, value, __ATOMIC_RELEASE);
	__atomic_sub_fetch(pending, 1, __ATOMIC_ACQ_REL);
	pthread_cond_broadcast(&c->changed);
	pthread_mutex_unlock(&c->lock);
}
