/* A PCI function: behind a vfio-user socket, or in the hands of the kernel (VFIO). */
#ifndef DXPU_VFIO_H
#define DXPU_VFIO_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

/* Regions of the device. */
enum { REGION_BAR0 = 0, REGION_BAR2 = 2, REGION_BAR4 = 4, REGION_CONFIG = 7 };

/* write_part is one posted write. */
struct write_part {
	uint32_t region;
	uint32_t length;
	uint64_t offset;
	const void *data;
};

struct vfio;

/* vfio_open opens a device, the path of a vfio-user socket or the address of a function that is
 * bound to vfio-pci (0000:01:00.0), and sets it up. interrupt is called after each interrupt,
 * and once when the connection has ended, from a thread that waits for the device. It
 * returns NULL and sets errno. */
struct vfio *vfio_open(const char *device, void (*interrupt)(void *arg), void *arg);

/* vfio_close ends the connection and waits for its thread. */
void vfio_close(struct vfio *v);

/* vfio_after_fork closes the descriptors of a child of fork, so that it neither writes into the
 * connection of its parent nor holds it open. */
void vfio_after_fork(struct vfio *v);

/* vfio_mark_lost ends the connection. */
void vfio_mark_lost(struct vfio *v);

/* vfio_lost reports whether the connection has ended. */
int vfio_lost(struct vfio *v);

/* vfio_read reads up to 4096 bytes. It returns 0, or -1 when the device is lost. */
int vfio_read(struct vfio *v, uint32_t region, uint64_t offset, void *data, uint32_t length);

/* vfio_write posts writes, in order. It returns 0, or -1 when the device is lost. */
int vfio_write(struct vfio *v, const struct write_part *parts, int n);

/* vfio_await waits until ready(arg), which vfio_notify or the device may change, for at most
 * timeout_ms milliseconds; -1: for ever. It reads the descriptor itself if no other thread does.
 * It returns 0, or -1 when the time is over or the device is lost. */
int vfio_await(struct vfio *v, int (*ready)(void *arg), void *arg, int timeout_ms);

/* vfio_notify makes the threads in vfio_await look at their state again. */
void vfio_notify(struct vfio *v);

/* vfio_map gives the device access to size bytes of a memory file, which are mapped at memory, at
 * a bus address. */
int vfio_map(struct vfio *v, int fd, void *memory, uint64_t address, uint64_t size);

/* vfio_upload is up to how many bytes are written to the device more cheaply than it fetches
 * them. */
uint32_t vfio_upload(struct vfio *v);

#endif
