/* A client of the vfio-user protocol: the device behind a socket. */
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

/* vfio_open connects to a socket and sets the device up as firmware does. interrupt is
 * called after each interrupt, and once when the connection has ended, from a thread
 * that reads the socket. It returns NULL and sets errno. */
struct vfio *vfio_open(const char *path, void (*interrupt)(void *arg), void *arg);

/* vfio_close ends the connection and waits for its thread. */
void vfio_close(struct vfio *v);

/* vfio_after_fork closes the socket of a child of fork, so that it neither writes into the
 * connection of its parent nor holds it open. */
void vfio_after_fork(struct vfio *v);

/* vfio_lost reports whether the connection has ended. */
int vfio_lost(struct vfio *v);

/* vfio_region_size asks for the size of a region, 0 if there is none. */
uint64_t vfio_region_size(struct vfio *v, uint32_t region);

/* vfio_write_config writes a double word of configuration space and waits. */
int vfio_write_config(struct vfio *v, uint32_t offset, uint32_t value);

/* MSI_ADDRESS is where interrupts go. */
#define MSI_ADDRESS 0xfee00000u

/* vfio_set_up assigns the BARs and enables decoding, bus mastering and one MSI-X vector. */
int vfio_set_up(struct vfio *v);

/* vfio_read reads up to 4096 bytes. It returns 0, or -1 when the device is lost. */
int vfio_read(struct vfio *v, uint32_t region, uint64_t offset, void *data, uint32_t length);

/* vfio_write posts writes, in order. It returns 0, or -1 when the device is lost. */
int vfio_write(struct vfio *v, const struct write_part *parts, int n);

/* vfio_await waits until ready(arg), which vfio_notify or a message may change, for at most
 * timeout_ms milliseconds; -1: for ever. It reads the socket itself if no other thread does.
 * It returns 0, or -1 when the time is over or the device is lost. */
int vfio_await(struct vfio *v, int (*ready)(void *arg), void *arg, int timeout_ms);

/* vfio_notify makes the threads in vfio_await look at their state again. */
void vfio_notify(struct vfio *v);

/* vfio_map gives the device access to size bytes of a memory file at a bus address. */
int vfio_map(struct vfio *v, int fd, uint64_t address, uint64_t size);

#endif
