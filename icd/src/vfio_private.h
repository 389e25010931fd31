/* The parts of the vfio-user client, for vfio.c and socket.c. */
#ifndef DXPU_VFIO_PRIVATE_H
#define DXPU_VFIO_PRIVATE_H

#include <pthread.h>

#include "vfio.h"

/* Messages (QEMU's documentation, interop/vfio-user): a header of 16 bytes, then the
 * payload; everything little-endian, as this machine is. */
enum {
	CMD_VERSION = 1,
	CMD_DMA_MAP = 2,
	CMD_REGION_INFO = 5,
	CMD_REGION_READ = 9,
	CMD_REGION_WRITE = 10,
	CMD_DMA_WRITE = 12,
};

enum { FLAG_TYPE = 0xf, FLAG_REPLY = 1, FLAG_NO_REPLY = 0x10, FLAG_ERROR = 0x20 };

struct header {
	uint16_t id, command;
	uint32_t size, flags, error;
};

struct access {
	uint64_t offset;
	uint32_t region, count;
};

struct region_info {
	uint32_t argsz, flags, index, cap_offset;
	uint64_t size, offset;
};

struct dma_map {
	uint32_t argsz, flags;
	uint64_t offset, address, size;
};

enum {
	MAX_MESSAGE = 64 << 10, /* of the proxy: it stays below */
	MAX_WRITE = 28 << 10,   /* bytes of one write: they arrive in one part */
	MAX_PARTS = 8,
	TIMEOUT_MS = 10000, /* of a request, and of a send without progress */
	GRACE_NS = 1000000, /* the thread of the socket stands aside as long after a waiter */
	LONGEST_MS = 1000,  /* of one sleep of a waiter */
};

struct vfio {
	int fd;
	pthread_t reader;
	void (*interrupt)(void *arg);
	void *arg;

	pthread_mutex_t calls; /* held during a request that has a reply */
	pthread_mutex_t send;  /* held while a message is sent */

	/* A thread that waits reads the socket itself, so that a message wakes the thread that
	 * it is for. The thread of the socket reads while no other waits. */
	pthread_mutex_t role; /* held by the thread that reads, guards in and filled */
	unsigned char in[MAX_MESSAGE];
	size_t filled;
	unsigned waits; /* calls of vfio_await that have begun */
	int waiting;    /* and not ended */

	pthread_mutex_t lock; /* guards the fields below */
	pthread_cond_t moved; /* something has happened that a sleeper may wait for */
	int sleepers;
	unsigned moves; /* calls of vfio_notify */
	int lost;
	uint16_t id;   /* of the request under way */
	int open;      /* a request is under way */
	int error;     /* of its reply */
	void *reply;   /* payload goes there */
	size_t room, got;
};

/* vfio_mark_lost ends the connection. */
void vfio_mark_lost(struct vfio *v);

/* vfio_send sends the parts whole, with a descriptor unless fd is -1. The caller holds
 * send. It returns 0, or -1 when the device is lost. */
int vfio_send(struct vfio *v, struct iovec *iov, int n, int fd);

/* vfio_read_socket is the thread of the socket. */
void *vfio_read_socket(void *arg);

#endif
