/* A PCI function of this machine that is bound to vfio-pci, as in a guest: the kernel's user
 * interface, linux/vfio.h. The function is accessed by reads and writes of its file, which fail
 * when it is unplugged; an access to mapped memory would end the program. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/vfio.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "vfio_private.h"

enum { COMMAND = 4, COMMAND_MEMORY_MASTER = 6 };

static void close_one(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

static void release(struct vfio *v)
{
	struct pci *p = &v->pci;

	close_one(&p->device);
	close_one(&p->group);
	close_one(&p->container);
	close_one(&p->interrupts);
	close_one(&p->requests);
	close_one(&p->stops);
}

/* refuse says why a function cannot be used, and what helps. */
static int refuse(const char *what, const char *why)
{
	fprintf(stderr, "dxpu: %s: %s\n", what, why);
	errno = ENODEV;
	return -1;
}

/* open_group opens the group of a function and gives it an IOMMU. */
static int open_group(struct pci *p, const char *address)
{
	char path[PATH_MAX], target[PATH_MAX];
	struct vfio_group_status status = {.argsz = sizeof status};

	snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/iommu_group", address);
	ssize_t n = readlink(path, target, sizeof target - 1);
	if (n < 0)
		return refuse(address, "it has no IOMMU group: give the machine an IOMMU");
	target[n] = 0;
	const char *name = strrchr(target, '/');
	snprintf(path, sizeof path, "/dev/vfio/%.20s", name ? name + 1 : target);
	p->group = open(path, O_RDWR | O_CLOEXEC);
	if (p->group < 0 && errno == EACCES)
		return refuse(path, "permission denied: make this user the owner of the file");
	if (p->group < 0)
		return -1;
	p->container = open("/dev/vfio/vfio", O_RDWR | O_CLOEXEC);
	if (p->container < 0 || ioctl(p->group, VFIO_GROUP_GET_STATUS, &status))
		return -1;
	if (!(status.flags & VFIO_GROUP_FLAGS_VIABLE))
		return refuse(address, "other functions of its IOMMU group have other drivers: bind them to vfio-pci");
	if (ioctl(p->container, VFIO_GET_API_VERSION) != VFIO_API_VERSION)
		return refuse(address, "the kernel has another version of VFIO");
	return ioctl(p->group, VFIO_GROUP_SET_CONTAINER, &p->container) || ioctl(p->container, VFIO_SET_IOMMU, VFIO_TYPE1v2_IOMMU) ? -1 : 0;
}

/* trigger makes an interrupt of the function count in an eventfd. */
static int trigger(struct pci *p, uint32_t index, int *fd)
{
	struct {
		struct vfio_irq_set set;
		int32_t fd;
	} s = {{sizeof s, VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER, index, 0, 1}, -1};

	*fd = s.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	return *fd < 0 || ioctl(p->device, VFIO_DEVICE_SET_IRQS, &s) ? -1 : 0;
}

static int connect_function(struct vfio *v, const char *address)
{
	struct pci *p = &v->pci;

	*p = (struct pci){-1, -1, -1, -1, -1, -1, {0}};
	p->stops = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (p->stops < 0 || open_group(p, address))
		goto failed;
	p->device = ioctl(p->group, VFIO_GROUP_GET_DEVICE_FD, address);
	if (p->device < 0 || fcntl(p->device, F_SETFD, FD_CLOEXEC))
		goto failed;
	for (uint32_t i = 0; i <= REGION_CONFIG; i++) {
		struct vfio_region_info info = {.argsz = sizeof info, .index = i};
		if (ioctl(p->device, VFIO_DEVICE_GET_REGION_INFO, &info))
			goto failed;
		p->at[i] = info.offset;
	}
	/* Without the second one, unplugging waits for the end of the program. */
	if (trigger(p, VFIO_PCI_MSIX_IRQ_INDEX, &p->interrupts) || trigger(p, VFIO_PCI_REQ_IRQ_INDEX, &p->requests))
		goto failed;
	return 0;
failed:;
	int error = errno;
	release(v);
	errno = error;
	return -1;
}

/* transfer reads or writes a part of a region. */
static int transfer(struct vfio *v, uint32_t region, uint64_t offset, void *data, uint32_t length, int writes)
{
	struct pci *p = &v->pci;

	for (uint32_t done = 0; done < length;) {
		off_t at = (off_t)(p->at[region] + offset + done);
		char *part = (char *)data + done;
		ssize_t n = writes ? pwrite(p->device, part, length - done, at) : pread(p->device, part, length - done, at);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return -1;
		done += (uint32_t)n;
	}
	return 0;
}

static int read_region(struct vfio *v, uint32_t region, uint64_t offset, void *data, uint32_t length)
{
	pthread_mutex_lock(&v->send);
	int bad = transfer(v, region, offset, data, length, 0);
	pthread_mutex_unlock(&v->send);
	return bad;
}

static int write_regions(struct vfio *v, const struct write_part *parts, int n)
{
	int bad = 0;

	pthread_mutex_lock(&v->send);
	for (int i = 0; i < n && !bad; i++)
		bad = transfer(v, parts[i].region, parts[i].offset, (void *)(uintptr_t)parts[i].data, parts[i].length, 1);
	pthread_mutex_unlock(&v->send);
	if (bad)
		vfio_mark_lost(v);
	return bad;
}

static int set_up(struct vfio *v)
{
	uint16_t command;

	if (read_region(v, REGION_CONFIG, COMMAND, &command, sizeof command))
		return -1;
	command |= COMMAND_MEMORY_MASTER;
	struct write_part w = {REGION_CONFIG, sizeof command, COMMAND, &command};
	return write_regions(v, &w, 1);
}

static int map(struct vfio *v, int fd, void *memory, uint64_t address, uint64_t size)
{
	struct vfio_iommu_type1_dma_map m = {sizeof m, VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE, (uintptr_t)memory, address, size};

	(void)fd;
	return ioctl(v->pci.container, VFIO_IOMMU_MAP_DMA, &m);
}

/* give_back closes the function, which the kernel waits for when it is unplugged. */
static void give_back(struct vfio *v)
{
	vfio_mark_lost(v);
	pthread_mutex_lock(&v->send);
	close_one(&v->pci.device);
	pthread_mutex_unlock(&v->send);
}

static int taken(int fd)
{
	uint64_t count;

	return read(fd, &count, sizeof count) == sizeof count;
}

static void receive(struct vfio *v, int ms)
{
	struct pci *p = &v->pci;
	struct pollfd fds[] = {{.fd = p->interrupts, .events = POLLIN}, {.fd = p->requests, .events = POLLIN}, {.fd = p->stops, .events = POLLIN}};

	if (poll(fds, 3, ms) <= 0)
		return;
	if (fds[1].revents && taken(p->requests))
		give_back(v);
	if (fds[0].revents && taken(p->interrupts))
		v->interrupt(v->arg);
}

static void stop(struct vfio *v)
{
	uint64_t one = 1;

	/* The count is full only when receive returns anyway. */
	if (write(v->pci.stops, &one, sizeof one) < 0)
		return;
}

/* An access of the processor to a BAR takes longer than one to memory, above all in a VM whose
 * hypervisor emulates it, and the kernel makes one for each word. */
const struct transport pci_transport = {
	.connect = connect_function,
	.set_up = set_up,
	.read = read_region,
	.write = write_regions,
	.map = map,
	.receive = receive,
	.stop = stop,
	.release = release,
	.upload = 256,
};
