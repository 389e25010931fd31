/* The compute channel of one GPU: packets to the engine, events back (device/gpu/README.md,
 * section 10). */
#ifndef DXPU_CHANNEL_H
#define DXPU_CHANNEL_H

#include <stddef.h>
#include <stdint.h>

/* Operations of packets. */
enum {
	PACKET_INFO = 1,
	PACKET_RELEASE = 2,
	PACKET_QUEUE = 3,
	PACKET_BUFFER = 4,
	PACKET_SUB_BUFFER = 5,
	PACKET_PROGRAM = 6,
	PACKET_BUILD = 7,
	PACKET_PROGRAM_INFO = 8,
	PACKET_KERNEL = 9,
	PACKET_IMAGE = 10,
	PACKET_SAMPLER = 11,
	PACKET_COMPILE = 12,
	PACKET_LINK = 13,
	PACKET_FORMATS = 14,
	PACKET_OUTPUT = 15,
	PACKET_WRITE = 16,
	PACKET_READ = 17,
	PACKET_COPY = 18,
	PACKET_FILL = 19,
	PACKET_WRITE_RECT = 20,
	PACKET_READ_RECT = 21,
	PACKET_COPY_RECT = 22,
	PACKET_NDRANGE = 23,
	PACKET_MARKER = 24,
	PACKET_WRITE_IMAGE = 25,
	PACKET_READ_IMAGE = 26,
	PACKET_COPY_IMAGE = 27,
	PACKET_FILL_IMAGE = 28,
	PACKET_IMAGE_BUFFER = 29,
	PACKET_BUFFER_IMAGE = 30,
	PACKET_CONSTANT = 64,
	PACKET_SUB_GROUPS = 65,
	PACKET_SVM = 66,
	PACKET_SVM_BUFFER = 67,
	PACKET_TIMER = 68,
};

enum { NDRANGE_OFFSET = 1, NDRANGE_LOCAL = 2, NDRANGE_SHARED = 4, MARKER_BARRIER = 1, PACKET_FETCH = 1 << 15, MAX_PACKET = 64 << 10 };

/* Flags of PACKET_QUEUE. */
enum { QUEUE_WITHOUT_TIMES = 1, QUEUE_OUT_OF_ORDER = 2 };

/* Features of a device. */
enum { FEATURE_ARM = 1, FEATURE_FETCH = 2, FEATURE_QUEUES = 4, FEATURE_IMAGES = 8, FEATURE_GROUPS = 16, FEATURE_SVM = 32, FEATURE_TIMER = 64 };

/* times are when a command was queued, submitted, started and ended, in nanoseconds. */
struct times {
	uint64_t at[4];
};

/* packet is a packet under construction. */
struct packet {
	uint16_t op, flags;
	uint32_t queue;
	uint32_t length; /* of body */
	int overflow;
	uint64_t fetch_at; /* VRAM address of the data that the device fetches */
	uint32_t fetch_size;
	unsigned char body[MAX_PACKET - 32];
};

void packet_start(struct packet *p, uint16_t op, uint32_t queue);
void packet_u32(struct packet *p, uint32_t v);
void packet_u64(struct packet *p, uint64_t v);
void packet_bytes(struct packet *p, const void *data, size_t n); /* padded to 8 */

/* staging is a block of VRAM and of the memory that mirrors it. */
struct staging {
	uint64_t at, size;
	unsigned char *mirror;
};

struct channel;

/* completion is told when a packet is complete: with its status, the bytes of its result, and its
 * times. It runs in a thread of the channel, without its lock. */
typedef void (*completion)(void *arg, int32_t status, uint32_t length, const struct times *t);

struct channel *channel_open(const char *path);
void channel_close(struct channel *c);

/* channel_after_fork ends the use of the channel in a child of fork, where its threads are
 * not: calls fail and waits return at once. The parent keeps the device. */
void channel_after_fork(struct channel *c);

/* channel_forked says that this process is a child of the one that has the connections. A lock of
 * the driver may be held there by a thread that only the parent has. */
extern volatile int channel_forked;

/* channel_failed reports whether the device is lost or its context has ended. */
int channel_failed(struct channel *c);

/* channel_idle reports whether no packet is in flight. */
int channel_idle(struct channel *c);

uint64_t channel_memory(struct channel *c);

/* channel_handle returns a new handle for an object. */
uint32_t channel_handle(struct channel *c);

/* channel_block is the largest block of staging memory. */
uint64_t channel_block(struct channel *c);

/* channel_reserve takes staging memory, and waits for it. It returns 0, or -1 when the
 * device is lost. */
int channel_reserve(struct channel *c, uint64_t size, struct staging *s);
void channel_free(struct channel *c, const struct staging *s);

/* channel_upload brings data to staging memory in the device before packet p, which is
 * posted after it, is executed. */
int channel_upload(struct channel *c, const struct staging *s, const void *data, size_t n, struct packet *p);

/* channel_post sends a packet whose result goes to out, which may be NULL. It returns the
 * packet's cookie, or 0 when the device is lost; then done is not called. */
uint64_t channel_post(struct channel *c, const struct packet *p, const struct staging *out, completion done, void *arg);

/* channel_flush sends the packets that were posted and have not left. */
void channel_flush(struct channel *c);

/* channel_watch adds n to the number of those who want to know of completions without
 * waiting. */
void channel_watch(struct channel *c, int n);

/* channel_poll looks for completions. */
void channel_poll(struct channel *c);

uint32_t channel_features(struct channel *c);

/* channel_call sends a packet and waits. It returns the status, or -2
 * (CL_DEVICE_NOT_AVAILABLE). The result is in out->mirror. */
int32_t channel_call(struct channel *c, const struct packet *p, const struct staging *out, uint32_t *length);

/* channel_wait waits until *word is not positive, which a completion changes. In a child of
 * fork it returns at once. */
void channel_wait(struct channel *c, volatile int32_t *word);

/* channel_settle is channel_wait for any condition that completions change. */
void channel_settle(struct channel *c, int (*ready)(void *arg), void *arg);

/* channel_load reads a word that channel_finish stores. When it is not positive,
 * channel_finish has ended. */
int32_t channel_load(struct channel *c, volatile int32_t *word);

/* channel_finish stores a status and takes one from pending, which may be NULL. It touches
 * neither afterwards. */
void channel_finish(struct channel *c, volatile int32_t *status, int32_t value, volatile int32_t *pending);

/* channel_set stores a word for which channel_wait waits. */
void channel_set(struct channel *c, volatile int32_t *word, int32_t value);

#endif
