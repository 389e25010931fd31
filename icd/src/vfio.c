#include "vfio.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

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
	TIMEOUT_S = 10,
};

/* Bus addresses, and where interrupts go. */
#define BAR32_BASE 0xc0000000u
#define BAR64_BASE 0x8000000000u
#define MSI_ADDRESS 0xfee00000u

struct vfio {
	int fd;
	pthread_t reader;
	void (*interrupt)(void *arg);
	void *arg;
	uint64_t sizes[8];

	pthread_mutex_t calls; /* held during a request that has a reply */
	pthread_mutex_t send;  /* held while a message is sent */

	pthread_mutex_t lock; /* guards the fields below */
	pthread_cond_t answered;
	int lost;
	uint16_t id;   /* of the request under way */
	int waiting;   /* a request is under way */
	int error;     /* of its reply */
	void *reply;   /* payload goes there */
	size_t room, got;
};

static void mark_lost(struct vfio *v)
{
	pthread_mutex_lock(&v->lock);
	v->lost = 1;
	pthread_cond_broadcast(&v->answered);
	pthread_mutex_unlock(&v->lock);
	shutdown(v->fd, SHUT_RDWR);
}

/* send_all sends the parts whole. */
static int send_all(struct vfio *v, struct iovec *iov, int n, int fd)
{
	char control[CMSG_SPACE(sizeof(int))];
	struct msghdr m = {.msg_iov = iov, .msg_iovlen = (size_t)n};

	if (fd >= 0) {
		memset(control, 0, sizeof control);
		m.msg_control = control;
		m.msg_controllen = sizeof control;
		struct cmsghdr *c = CMSG_FIRSTHDR(&m);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(c), &fd, sizeof fd);
	}
	while (m.msg_iovlen > 0) {
		ssize_t sent = sendmsg(v->fd, &m, MSG_NOSIGNAL);
		if (sent < 0 && errno == EINTR)
			continue;
		if (sent <= 0)
			return -1;
		m.msg_control = NULL;
		m.msg_controllen = 0;
		while (m.msg_iovlen > 0 && (size_t)sent >= m.msg_iov->iov_len) {
			sent -= (ssize_t)m.msg_iov->iov_len;
			m.msg_iov++;
			m.msg_iovlen--;
		}
		if (m.msg_iovlen > 0) {
			m.msg_iov->iov_base = (char *)m.msg_iov->iov_base + sent;
			m.msg_iov->iov_len -= (size_t)sent;
		}
	}
	return 0;
}

/* receive_all fills p. */
static int receive_all(int fd, void *p, size_t n)
{
	for (size_t at = 0; at < n;) {
		ssize_t got = recv(fd, (char *)p + at, n - at, 0);
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return -1;
		at += (size_t)got;
	}
	return 0;
}

/* take_request answers a request of the server: an interrupt, or anything else, which
 * is refused. */
static int take_request(struct vfio *v, struct header *h, const unsigned char *body, size_t n)
{
	uint64_t range[2];
	int interrupt = 0;
	struct header answer = {h->id, h->command, sizeof answer, FLAG_REPLY, 0};

	if (h->command == CMD_DMA_WRITE && n >= sizeof range) {
		memcpy(range, body, sizeof range);
		interrupt = range[0] == MSI_ADDRESS;
	}
	if (!interrupt) {
		answer.flags |= FLAG_ERROR;
		answer.error = ENODEV;
	}
	if (!(h->flags & FLAG_NO_REPLY)) {
		/* The reply repeats the address and the count. */
		struct iovec iov[2] = {{&answer, sizeof answer}, {range, interrupt ? sizeof range : 0}};
		answer.size += (uint32_t)iov[1].iov_len;
		pthread_mutex_lock(&v->send);
		int bad = send_all(v, iov, interrupt ? 2 : 1, -1);
		pthread_mutex_unlock(&v->send);
		if (bad)
			return -1;
	}
	if (interrupt)
		v->interrupt(v->arg);
	return 0;
}

static void take_reply(struct vfio *v, struct header *h, const unsigned char *body, size_t n)
{
	pthread_mutex_lock(&v->lock);
	if (v->waiting && h->id == v->id) {
		v->error = h->flags & FLAG_ERROR ? (int)h->error : 0;
		if (h->flags & FLAG_ERROR && !v->error)
			v->error = EIO;
		v->got = n < v->room ? n : v->room;
		if (v->got > 0)
			memcpy(v->reply, body, v->got);
		v->waiting = 0;
		pthread_cond_broadcast(&v->answered);
	}
	pthread_mutex_unlock(&v->lock);
}

static void *read_socket(void *arg)
{
	struct vfio *v = arg;
	unsigned char *body = malloc(MAX_MESSAGE);

	while (body) {
		struct header h;
		if (receive_all(v->fd, &h, sizeof h))
			break;
		if (h.size < sizeof h || h.size - sizeof h > MAX_MESSAGE)
			break;
		size_t n = h.size - sizeof h;
		if (receive_all(v->fd, body, n))
			break;
		if ((h.flags & FLAG_TYPE) == FLAG_REPLY)
			take_reply(v, &h, body, n);
		else if (take_request(v, &h, body, n))
			break;
	}
	free(body);
	mark_lost(v);
	v->interrupt(v->arg);
	return NULL;
}

/* request sends a message of up to two parts and waits for the reply, of which up to
 * room bytes go to reply. It returns the bytes there, or -1. */
static ssize_t request(struct vfio *v, uint16_t command, struct iovec *parts, int n, int fd, void *reply, size_t room)
{
	struct header h = {0, command, sizeof h, 0, 0};
	struct iovec iov[3] = {{&h, sizeof h}};
	struct timespec until;
	ssize_t got = -1;

	for (int i = 0; i < n; i++) {
		iov[i + 1] = parts[i];
		h.size += (uint32_t)parts[i].iov_len;
	}
	pthread_mutex_lock(&v->calls);
	pthread_mutex_lock(&v->lock);
	h.id = ++v->id;
	v->waiting = 1;
	v->reply = reply;
	v->room = room;
	pthread_mutex_unlock(&v->lock);

	pthread_mutex_lock(&v->send);
	int bad = send_all(v, iov, n + 1, fd);
	pthread_mutex_unlock(&v->send);

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += TIMEOUT_S;
	pthread_mutex_lock(&v->lock);
	while (!bad && v->waiting && !v->lost)
		bad = pthread_cond_timedwait(&v->answered, &v->lock, &until);
	if (bad || v->waiting)
		errno = ENODEV;
	else if (v->error)
		errno = v->error;
	else
		got = (ssize_t)v->got;
	v->waiting = 0;
	pthread_mutex_unlock(&v->lock);
	pthread_mutex_unlock(&v->calls);
	return got;
}

int vfio_read(struct vfio *v, uint32_t region, uint64_t offset, void *data, uint32_t length)
{
	unsigned char reply[sizeof(struct access) + 4096];
	struct access a = {offset, region, length};
	struct iovec part = {&a, sizeof a};

	if (length > 4096)
		return -1;
	if (request(v, CMD_REGION_READ, &part, 1, -1, reply, sizeof a + length) != (ssize_t)(sizeof a + length))
		return -1;
	memcpy(data, reply + sizeof a, length);
	return 0;
}

/* write_config writes a double word of configuration space and waits for the reply. */
static int write_config(struct vfio *v, uint32_t offset, uint32_t value)
{
	struct access a = {offset, REGION_CONFIG, sizeof value};
	struct iovec parts[2] = {{&a, sizeof a}, {&value, sizeof value}};

	return request(v, CMD_REGION_WRITE, parts, 2, -1, NULL, 0) < 0 ? -1 : 0;
}

int vfio_write(struct vfio *v, const struct write_part *parts, int n)
{
	struct {
		struct header h;
		struct access a;
	} messages[MAX_PARTS];
	struct iovec iov[2 * MAX_PARTS];
	int filled = 0, bad = 0;

	pthread_mutex_lock(&v->send);
	for (int i = 0; i < n && !bad; i++) {
		for (uint32_t done = 0; done < parts[i].length && !bad;) {
			uint32_t count = parts[i].length - done;
			if (count > MAX_WRITE)
				count = MAX_WRITE;
			messages[filled].h = (struct header){
				0, CMD_REGION_WRITE, (uint32_t)(sizeof messages[0] + count), FLAG_NO_REPLY, 0};
			messages[filled].a = (struct access){parts[i].offset + done, parts[i].region, count};
			iov[2 * filled] = (struct iovec){&messages[filled], sizeof messages[0]};
			iov[2 * filled + 1] = (struct iovec){(char *)(uintptr_t)parts[i].data + done, count};
			done += count;
			if (++filled == MAX_PARTS) {
				bad = send_all(v, iov, 2 * filled, -1);
				filled = 0;
			}
		}
	}
	if (!bad && filled > 0)
		bad = send_all(v, iov, 2 * filled, -1);
	pthread_mutex_unlock(&v->send);
	return bad;
}

int vfio_map(struct vfio *v, int fd, uint64_t address, uint64_t size)
{
	struct dma_map m = {sizeof m, 3, 0, address, size};
	struct iovec part = {&m, sizeof m};

	return request(v, CMD_DMA_MAP, &part, 1, fd, NULL, 0) < 0 ? -1 : 0;
}

void vfio_after_fork(struct vfio *v)
{
	close(v->fd);
	v->fd = -1;
}

int vfio_lost(struct vfio *v)
{
	pthread_mutex_lock(&v->lock);
	int lost = v->lost;
	pthread_mutex_unlock(&v->lock);
	return lost;
}

uint64_t vfio_region_size(struct vfio *v, uint32_t region)
{
	return region < 8 ? v->sizes[region] : 0;
}

static int find_sizes(struct vfio *v)
{
	for (uint32_t i = 0; i < 8; i++) {
		struct region_info info = {sizeof info, 0, i, 0, 0, 0};
		struct iovec part = {&info, sizeof info};
		struct region_info reply = {0};
		if (request(v, CMD_REGION_INFO, &part, 1, -1, &reply, sizeof reply) < (ssize_t)sizeof reply)
			return -1;
		v->sizes[i] = reply.size;
	}
	return v->sizes[0] && v->sizes[2] && v->sizes[4] && v->sizes[7] ? 0 : -1;
}

/* Offsets in configuration space. */
enum { CONFIG_COMMAND = 4, CONFIG_BAR0 = 0x10, CONFIG_CAPABILITIES = 0x34, CAPABILITY_MSIX = 0x11 };

static uint64_t align_up(uint64_t v, uint64_t size) { return (v + size - 1) & ~(size - 1); }

/* set_up assigns the BARs and enables decoding, bus mastering and one MSI-X vector. */
static int set_up(struct vfio *v)
{
	unsigned char config[4096];
	uint32_t size = (uint32_t)v->sizes[REGION_CONFIG];
	uint64_t bar0 = align_up(BAR32_BASE, v->sizes[0]), bar4 = align_up(bar0 + v->sizes[0], v->sizes[4]);
	uint64_t bar2 = align_up(BAR64_BASE, v->sizes[2]);
	uint32_t word, entry[4] = {MSI_ADDRESS, 0, 0, 0};

	if (size > sizeof config || size < 256)
		return -1;
	/* The first read is for a VMM: it may hide MSI-X. */
	if (vfio_read(v, REGION_CONFIG, 0, config, size))
		return -1;
	if (write_config(v, CONFIG_BAR0, (uint32_t)bar0) || write_config(v, CONFIG_BAR0 + 8, (uint32_t)bar2) ||
	    write_config(v, CONFIG_BAR0 + 12, (uint32_t)(bar2 >> 32)) || write_config(v, CONFIG_BAR0 + 16, (uint32_t)bar4) ||
	    write_config(v, CONFIG_COMMAND, 6))
		return -1;
	if (vfio_read(v, REGION_CONFIG, CONFIG_CAPABILITIES, &word, sizeof word))
		return -1;
	for (unsigned at = word & 0xfc, hops = 0; at && hops < 48; hops++, at = word >> 8 & 0xfc) {
		if (vfio_read(v, REGION_CONFIG, at, &word, sizeof word))
			return -1;
		if ((word & 0xff) != CAPABILITY_MSIX)
			continue;
		struct write_part table = {REGION_BAR4, sizeof entry, 0, entry};
		if (vfio_write(v, &table, 1))
			return -1;
		return write_config(v, at, (word & ~(1u << 30)) | 1u << 31);
	}
	return -1;
}

static int negotiate(struct vfio *v)
{
	static const char version[] =
		"\0\0\0\0{\"capabilities\":{\"max_msg_fds\":1,\"max_data_xfer_size\":16384}}";
	struct iovec part = {(char *)(uintptr_t)version, sizeof version};
	uint16_t reply[2] = {0};

	if (request(v, CMD_VERSION, &part, 1, -1, reply, sizeof reply) < (ssize_t)sizeof reply)
		return -1;
	return reply[0] == 0 ? 0 : -1;
}

struct vfio *vfio_open(const char *path, void (*interrupt)(void *arg), void *arg)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	struct vfio *v;

	if (strlen(path) >= sizeof a.sun_path) {
		errno = ENAMETOOLONG;
		return NULL;
	}
	memcpy(a.sun_path, path, strlen(path));
	v = calloc(1, sizeof *v);
	if (!v)
		return NULL;
	v->interrupt = interrupt;
	v->arg = arg;
	v->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (v->fd < 0) {
		free(v);
		return NULL;
	}
	pthread_mutex_init(&v->calls, NULL);
	pthread_mutex_init(&v->send, NULL);
	pthread_mutex_init(&v->lock, NULL);
	pthread_cond_init(&v->answered, NULL);
	/* Signals of the program are for its own threads. */
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int bad = connect(v->fd, (struct sockaddr *)&a, sizeof a) || pthread_create(&v->reader, NULL, read_socket, v);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (bad) {
		close(v->fd);
		free(v);
		return NULL;
	}
	if (negotiate(v) || find_sizes(v) || set_up(v)) {
		vfio_close(v);
		errno = ENODEV;
		return NULL;
	}
	return v;
}

void vfio_close(struct vfio *v)
{
	shutdown(v->fd, SHUT_RDWR);
	pthread_join(v->reader, NULL);
	close(v->fd);
	pthread_mutex_destroy(&v->calls);
	pthread_mutex_destroy(&v->send);
	pthread_mutex_destroy(&v->lock);
	pthread_cond_destroy(&v->answered);
	free(v);
}
