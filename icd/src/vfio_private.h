/* What vfio.c and its transports share: messages.c, socket.c and setup.c for vfio-user, pci.c for
 * the kernel's VFIO. */
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
	GRACE_NS = 1000000, /* the thread of the device stands aside as long after a waiter */
	LONGEST_MS = 1000,  /* of one sleep of a waiter */
};

/* transport is a way to a device. All but release set errno and return -1 after an error. */
struct transport {
	/* connect opens what device names. After an error nothing is open. */
	int (*connect)(struct vfio *v, const char *device);
	/* set_up runs when the thread of the device does. */
	int (*set_up)(struct vfio *v);
	int (*read)(struct vfio *v, uint32_t region, uint64_t offset, void *data, uint32_t length);
	int (*write)(struct vfio *v, const struct write_part *parts, int n);
	int (*map)(struct vfio *v, int fd, void *memory, uint64_t address, uint64_t size);
	/* receive waits up to some milliseconds, -1 for ever, for the device, and handles what has
	 * come. The caller has the role. */
	void (*receive)(struct vfio *v, int ms);
	/* stop makes receive return, now and later. */
	void (*stop)(struct vfio *v);
	/* release closes all descriptors. */
	void (*release)(struct vfio *v);
	uint32_t upload; /* see vfio_upload */
};

extern const struct transport user_transport, pci_transport;

/* pci is a function of this machine. Its descriptors are -1 if they are not open. */
struct pci {
	int container, group, device;
	int interrupts, requests, stops; /* eventfds: of MSI-X, of the kernel that wants the device back, of pci_stop */
	uint64_t at[REGION_CONFIG + 1];  /* of the regions in the device file */
};

struct vfio {
	const struct transport *transport;
	struct pci pci; /* of pci_transport; send guards its device */
	int fd;	 /* of user_transport */
	pthread_t reader;
	void (*interrupt)(void *arg);
	void *arg;

	pthread_mutex_t calls; /* held during a request that has a reply */
	pthread_mutex_t send;  /* held while a message is sent, or the device is accessed */

	/* A thread that waits reads the descriptor itself, so that a message wakes the thread that
	 * it is for. The thread of the device reads while no other waits. */
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

/* user_send sends the parts whole, with a descriptor unless fd is -1. The caller holds
 * send. It returns 0, or -1 when the device is lost. */
int user_send(struct vfio *v, struct iovec *iov, int n, int fd);

void user_receive(struct vfio *v, int ms);
void user_stop(struct vfio *v);

/* user_region_size asks for the size of a region, 0 if there is none. */
uint64_t user_region_size(struct vfio *v, uint32_t region);

/* user_write_config writes a double word of configuration space and waits. */
int user_write_config(struct vfio *v, uint32_t offset, uint32_t value);

/* MSI_ADDRESS is where interrupts go. */
#define MSI_ADDRESS 0xfee00000u

/* user_set_up assigns the BARs and enables decoding, bus mastering and one MSI-X vector. */
int user_set_up(struct vfio *v);

#endif
