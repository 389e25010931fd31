#include "channel_private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum {
	MAGIC = 0x55505844,
	CAP_COMPUTE = 1 << 4,
	STATE_STARTING = 1,
	STATE_READY = 2,
	PACKET_VERSION = 1,
	CONTROL_ENABLE = 1 << 0,
	CONTROL_ARMED = 1 << 1,
	START_TRIES = 30000, /* a minute or more: a busy box loads the platform */
	START_PAUSE_NS = 2000000, /* the longest; a box may have a process that is ready */
};

#define DMA_BASE 0x100000000u

volatile int channel_forked;

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
	vfio_notify(c->vfio);
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
	if (any)
		vfio_notify(c->vfio);
}

/* arm asks for an interrupt after the events that were handled, unless one will come. */
static void arm(struct channel *c)
{
	pthread_mutex_lock(&c->lock);
	int now = c->features & FEATURE_ARM && !c->armed && !c->failed;
	uint32_t seen = __atomic_load_n(&c->seen, __ATOMIC_RELAXED);
	if (now)
		c->armed = 1;
	pthread_mutex_unlock(&c->lock);
	if (now)
		(void)channel_write32(c, REG_ARM, seen);
}

/* interrupt runs in a thread that reads the socket. Before the channel is set up, there
 * is nothing to handle. */
static void interrupt(void *arg)
{
	struct channel *c = arg;

	if (!__atomic_load_n(&c->count, __ATOMIC_ACQUIRE))
		return;
	pthread_mutex_lock(&c->lock);
	c->armed = 0;
	pthread_mutex_unlock(&c->lock);
	handle_events(c);
	pthread_mutex_lock(&c->lock);
	int again = c->watchers > 0 && c->in_flight > 0;
	pthread_mutex_unlock(&c->lock);
	if (again)
		arm(c);
}

void channel_watch(struct channel *c, int n)
{
	if (channel_forked)
		return;
	pthread_mutex_lock(&c->lock);
	c->watchers += n;
	pthread_mutex_unlock(&c->lock);
	if (n > 0) {
		channel_flush(c);
		arm(c);
	}
}

void channel_poll(struct channel *c)
{
	if (channel_forked)
		return;
	if (__atomic_load_n(&c->seen, __ATOMIC_RELAXED) != (uint32_t)__atomic_load_n(c->count, __ATOMIC_ACQUIRE) || vfio_lost(c->vfio))
		handle_events(c);
}

static int read_register(struct channel *c, uint32_t offset, void *value, uint32_t size)
{
	return vfio_read(c->vfio, REGION_BAR0, offset, value, size);
}

/* state is what channel_until waits for. */
struct state {
	struct channel *channel;
	int (*ready)(void *arg);
	void *arg;
};

static int armed_or_ready(void *arg)
{
	struct state *s = arg;

	channel_poll(s->channel);
	if (s->ready(s->arg) || channel_failed(s->channel))
		return 1;
	pthread_mutex_lock(&s->channel->lock);
	int armed = s->channel->armed || !(s->channel->features & FEATURE_ARM);
	pthread_mutex_unlock(&s->channel->lock);
	return !armed; /* the interrupt was for earlier events */
}

/* How long a thread looks at the count in memory before it sleeps, and how long another
 * thread may run meanwhile: then sleeping is better. */
enum { SPIN_NS = 100000, PREEMPTED_NS = 200000, LOOKS = 8 };

static int64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* How long a thread waits before it looks whether the device is there, and how many looks in a
 * row find none before it is lost: a link may be slow for a moment. */
enum { LOOK_MS = 1000, GONE_LOOKS = 3 };

/* look ends the wait for a device that has left without a word: its registers read all ones. It
 * counts the looks that found none. */
static void look(struct channel *c, int *gone)
{
	uint32_t id;

	if (!vfio_lost(c->vfio)) {
		*gone = read_register(c, REG_ID, &id, sizeof id) || id != MAGIC ? *gone + 1 : 0;
		if (*gone == GONE_LOOKS)
			vfio_mark_lost(c->vfio);
	}
	if (vfio_lost(c->vfio))
		handle_events(c); /* all packets end */
}

void channel_until(struct channel *c, int (*ready)(void *arg), void *arg)
{
	int gone = 0;

	struct state s = {c, ready, arg};

	while (!channel_failed(c)) {
		for (int64_t start = now_ns(), last = start, now = start; now - start < SPIN_NS && now - last < PREEMPTED_NS;) {
			for (int i = 0; i < LOOKS; i++) {
				channel_poll(c);
				if (ready(arg))
					return;
			}
			sched_yield();
			last = now;
			now = now_ns();
		}
		arm(c);
		if (vfio_await(c->vfio, armed_or_ready, &s, LOOK_MS))
			look(c, &gone);
		if (ready(arg))
			return;
	}
}

int channel_write32(struct channel *c, uint32_t offset, uint32_t value)
{
	struct write_part w = {REGION_BAR0, sizeof value, offset, &value};
	return vfio_write(c->vfio, &w, 1);
}

static int write64(struct channel *c, uint32_t offset, uint64_t value)
{
	struct write_part w = {REGION_BAR0, sizeof value, offset, &value};
	return vfio_write(c->vfio, &w, 1);
}

/* share_memory makes memory of the size of c->vram and gives it to the device. */
static int share_memory(struct channel *c)
{
	c->vram &= ~(uint64_t)(PAGE - 1);
	c->memory_size = c->vram + EVENT_BYTES + PAGE;
	int fd = memfd_create("dxpu-opencl", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return -1;
	/* The other side has the file too: if it made it shorter, this process would fault. */
	void *memory = MAP_FAILED;
	errno = 0;
	if (ftruncate(fd, (off_t)c->memory_size) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
		memory = mmap(NULL, c->memory_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	int bad = memory == MAP_FAILED || vfio_map(c->vfio, fd, memory, DMA_BASE, c->memory_size);
	int why = errno;
	close(fd);
	if (memory != MAP_FAILED && bad)
		munmap(memory, c->memory_size);
	else if (!bad)
		c->memory = memory;
	errno = why;
	return bad ? -1 : 0;
}

/* take_less makes the memory smaller by a quarter where a process may lock less than the device
 * offers, as containers may. Large copies take more parts then. */
static int take_less(struct channel *c)
{
	uint64_t less = c->vram - c->vram / 4;

	if (less < RING_SIZE * 2) {
		fprintf(stderr, "dxpu: %llu bytes cannot be locked for the GPU: see ulimit -l; a container may have the capability IPC_LOCK\n", (unsigned long long)c->memory_size);
		return 0;
	}
	c->vram = less;
	return 1;
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
	while (share_memory(c))
		if (errno != ENOMEM || !take_less(c))
			return -1;
	c->events = (volatile struct event *)(c->memory + c->vram);
	c->page_count = (size_t)(c->vram - RING_SIZE) / PAGE;
	c->pages = calloc(c->page_count, 1);
	c->ring = malloc(RING_SIZE);
	return c->pages && c->ring ? 0 : -1;
}

/* start makes the context and waits until its process runs. */
static int start(struct channel *c)
{
	uint32_t state = STATE_STARTING;
	uint32_t control = CONTROL_ENABLE | (c->features & FEATURE_ARM ? CONTROL_ARMED : 0);
	struct timespec pause = {0, 10000};

	__atomic_store_n(&c->count, (volatile uint64_t *)(c->memory + c->vram + EVENT_BYTES), __ATOMIC_RELEASE);
	if (channel_write32(c, REG_CONTROL, 0) || write64(c, REG_RING, 0) || channel_write32(c, REG_RING_SIZE, RING_SIZE) ||
	    channel_write32(c, REG_EVENT_SIZE, EVENT_ENTRIES) || write64(c, REG_EVENT_BASE, DMA_BASE + c->vram) ||
	    write64(c, REG_MIRROR, DMA_BASE) || channel_write32(c, REG_VECTOR, 0) || channel_write32(c, REG_CONTROL, control))
		return -1;
	for (int i = 0; i < START_TRIES && state == STATE_STARTING; i++) {
		if (read_register(c, REG_STATE, &state, sizeof state))
			return -1;
		if (state == STATE_STARTING)
			nanosleep(&pause, NULL);
		if (pause.tv_nsec < START_PAUSE_NS)
			pause.tv_nsec *= 2;
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
	c->vfio = vfio_open(path, interrupt, c);
	if (!c->vfio) {
		free(c);
		return NULL;
	}
	if (read_register(c, REG_ID, &id, sizeof id) || id != MAGIC || read_register(c, REG_CAPS, &caps, sizeof caps) ||
	    !(caps & CAP_COMPUTE) || read_register(c, REG_VERSION, &version, sizeof version) || version != PACKET_VERSION ||
	    read_register(c, REG_FEATURES, &c->features, sizeof c->features) || share(c) || start(c)) {
		channel_close(c);
		errno = ENODEV;
		return NULL;
	}
	return c;
}

void channel_close(struct channel *c)
{
	(void)channel_write32(c, REG_CONTROL, 0);
	vfio_close(c->vfio);
	if (c->memory)
		munmap(c->memory, c->memory_size);
	free(c->pages);
	free(c->ring);
	pthread_mutex_destroy(&c->post);
	pthread_mutex_destroy(&c->handle);
	pthread_mutex_destroy(&c->lock);
	free(c);
}

void channel_after_fork(struct channel *c)
{
	channel_forked = 1;
	vfio_after_fork(c->vfio);
}

int channel_failed(struct channel *c)
{
	if (channel_forked)
		return 1; /* without the lock, which a thread of the parent may have held */
	pthread_mutex_lock(&c->lock);
	int failed = c->failed;
	pthread_mutex_unlock(&c->lock);
	return failed;
}

int channel_idle(struct channel *c)
{
	if (channel_forked)
		return 1;
	pthread_mutex_lock(&c->lock);
	int idle = c->in_flight == 0;
	pthread_mutex_unlock(&c->lock);
	return idle;
}

uint64_t channel_memory(struct channel *c) { return c->engine_memory; }

uint32_t channel_handle(struct channel *c)
{
	if (channel_forked)
		return 1; /* of an object that will not be */
	pthread_mutex_lock(&c->lock);
	if (++c->next_handle == 0)
		c->next_handle = 1;
	uint32_t h = c->next_handle;
	pthread_mutex_unlock(&c->lock);
	return h;
}

uint32_t channel_features(struct channel *c) { return c->features; }
