/* The parts of a channel, for channel.c, ring.c and staging.c. */
#ifndef DXPU_CHANNEL_PRIVATE_H
#define DXPU_CHANNEL_PRIVATE_H

#include <pthread.h>

#include "channel.h"
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
	REG_FEATURES = 0x3058,
	REG_ARM = 0x305c,
};

enum {
	RING_SIZE = 1 << 20, /* at VRAM address 0; staging memory follows */
	EVENT_ENTRIES = 4096,
	EVENT_SIZE = 64,
	EVENT_BYTES = EVENT_ENTRIES * EVENT_SIZE,
	SLOTS = 4096, /* packets in flight */
	PAGE = 4096,
	/* Packets leave at once while fewer than EAGER are in flight, and else in batches
	 * of BATCH bytes, which is less than a payload of PCI Express. */
	EAGER = 4,
	BATCH = 3 << 10,
};

#define EVENTS_FAILED (1ull << 63)
#define DEVICE_NOT_AVAILABLE (-2)
#define OUT_OF_RESOURCES (-5)

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
	uint64_t end;  /* of the packet in the ring, in bytes since the start */
	uint32_t room; /* for its result */
	completion done;
	void *arg;
};

struct channel {
	struct vfio *vfio;
	unsigned char *memory; /* mirror of VRAM, then the event ring and its count */
	size_t memory_size;
	uint64_t vram, engine_memory;
	uint32_t features;
	volatile struct event *events;
	volatile uint64_t *count;

	pthread_mutex_t post; /* held while a packet goes into the ring, guards the two below */
	uint64_t sent;        /* bytes of the ring that the device has */
	unsigned char *ring;  /* a copy of the ring, from which bytes leave together */

	pthread_mutex_t handle; /* held while events are handled, so that they are in order */

	pthread_mutex_t lock; /* guards the fields below */
	int failed;
	int armed; /* an interrupt comes after the next event */
	int watchers;
	uint64_t tail, freed; /* bytes of the ring since the start: put, and taken by the device */
	uint64_t cookie;
	uint32_t next_handle, seen, told;
	uint32_t in_flight;
	struct slot slots[SLOTS];
	unsigned char *pages; /* 1: taken, for each page of staging memory */
	size_t page_count;
};

/* channel_until waits until ready(arg), which completions change, or the channel has
 * failed. */
void channel_until(struct channel *c, int (*ready)(void *arg), void *arg);

int channel_write32(struct channel *c, uint32_t offset, uint32_t value);

#endif
