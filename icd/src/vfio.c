#include "vfio.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
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

void vfio_notify(struct vfio *v)
{
	pthread_mutex_lock(&v->lock);
	v->moves++;
	if (v->sleepers)
		pthread_cond_broadcast(&v->moved);
	pthread_mutex_unlock(&v->lock);
}

static void mark_lost(struct vfio *v)
{
	pthread_mutex_lock(&v->lock);
	v->lost = 1;
	pthread_cond_broadcast(&v->moved);
	pthread_mutex_unlock(&v->lock);
	shutdown(v->fd, SHUT_RDWR);
}

/* writable waits until the socket takes more. The other side may have stopped reading. */
static int writable(struct vfio *v)
{
	struct pollfd p = {.fd = v->fd, .events = POLLOUT};
	int n;

	do
		n = poll(&p, 1, TIMEOUT_MS);
	while (n < 0 && errno == EINTR);
	return n > 0 && p.revents & POLLOUT ? 0 : -1;
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
		ssize_t sent = sendmsg(v->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (sent < 0 && (errno == EINTR || (errno == EAGAIN && !writable(v))))
			continue;
		if (sent <= 0) {
			mark_lost(v); /* a part of a message may have left */
			return -1;
		}
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
	if (v->open && h->id == v->id) {
		v->error = h->flags & FLAG_ERROR ? (int)h->error : 0;
		if (h->flags & FLAG_ERROR && !v->error)
			v->error = EIO;
		v->got = n < v->room ? n : v->room;
		if (v->got > 0)
			memcpy(v->reply, body, v->got);
		v->open = 0;
	}
	pthread_mutex_unlock(&v->lock);
}

/* take_messages handles the whole messages that have arrived. The caller has the role. */
static int take_messages(struct vfio *v)
{
	size_t at = 0;

	while (v->filled - at >= sizeof(struct header)) {
		struct header h;
		memcpy(&h, v->in + at, sizeof h);
		if (h.size < sizeof h || h.size > sizeof v->in)
			return -1;
		if (v->filled - at < h.size)
			break;
		const unsigned char *body = v->in + at + sizeof h;
		if ((h.flags & FLAG_TYPE) == FLAG_REPLY)
			take_reply(v, &h, body, h.size - sizeof h);
		else if (take_request(v, &h, body, h.size - sizeof h))
			return -1;
		at += h.size;
	}
	memmove(v->in, v->in + at, v->filled - at);
	v->filled -= at;
	return 0;
}

/* receive waits up to some milliseconds for bytes, -1 for ever, and handles them. The
 * caller has the role. */
static void receive(struct vfio *v, int ms)
{
	struct pollfd p = {.fd = v->fd, .events = POLLIN};

	if (poll(&p, 1, ms) == 0)
		return;
	ssize_t n = recv(v->fd, v->in + v->filled, sizeof v->in - v->filled, MSG_DONTWAIT);
	if (n < 0 && (errno == EINTR || errno == EAGAIN))
		return;
	if (n > 0) {
		v->filled += (size_t)n;
		if (!take_messages(v))
			return;
	}
	mark_lost(v);
}

/* read_socket is the thread of the socket. */
static void *read_socket(void *arg)
{
	struct vfio *v = arg;
	const struct timespec grace = {0, GRACE_NS};

	while (!vfio_lost(v)) {
		unsigned before = __atomic_load_n(&v->waits, __ATOMIC_ACQUIRE);
		pthread_mutex_lock(&v->role);
		while (!vfio_lost(v) && before == __atomic_load_n(&v->waits, __ATOMIC_ACQUIRE)) {
			receive(v, -1);
			vfio_notify(v);
		}
		pthread_mutex_unlock(&v->role);
		vfio_notify(v); /* a sleeper takes the role */
		do {
			before = __atomic_load_n(&v->waits, __ATOMIC_ACQUIRE);
			nanosleep(&grace, NULL);
		} while (!vfio_lost(v) && (before != __atomic_load_n(&v->waits, __ATOMIC_ACQUIRE) ||
					   __atomic_load_n(&v->waiting, __ATOMIC_ACQUIRE)));
	}
	v->interrupt(v->arg); /* ends what waits */
	return NULL;
}

static int64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* sleep_until_moved waits for vfio_notify, unless the wait has ended already. */
static void sleep_until_moved(struct vfio *v, int (*ready)(void *), void *arg, int ms)
{
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += (long)(ms % 1000) * 1000000;
	until.tv_sec += ms / 1000 + until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	pthread_mutex_lock(&v->lock);
	v->sleepers++;
	unsigned before = v->moves;
	pthread_mutex_unlock(&v->lock);
	/* Without the lock, because ready takes locks. */
	int done = ready(arg), late = 0;
	pthread_mutex_lock(&v->lock);
	while (!done && !v->lost && before == v->moves && !late)
		late = pthread_cond_timedwait(&v->moved, &v->lock, &until);
	v->sleepers--;
	pthread_mutex_unlock(&v->lock);
}

int vfio_await(struct vfio *v, int (*ready)(void *), void *arg, int timeout_ms)
{
	int64_t until = timeout_ms < 0 ? INT64_MAX : now_ms() + timeout_ms;

	__atomic_add_fetch(&v->waits, 1, __ATOMIC_ACQ_REL);
	__atomic_add_fetch(&v->waiting, 1, __ATOMIC_ACQ_REL);
	while (!ready(arg) && !vfio_lost(v)) {
		int64_t left = timeout_ms < 0 ? LONGEST_MS : until - now_ms();
		if (left <= 0)
			break;
		int ms = left < LONGEST_MS ? (int)left : LONGEST_MS;
		if (pthread_mutex_trylock(&v->role)) {
			sleep_until_moved(v, ready, arg, ms);
			continue;
		}
		if (!ready(arg))
			receive(v, ms);
		pthread_mutex_unlock(&v->role);
		vfio_notify(v);
	}
	__atomic_sub_fetch(&v->waiting, 1, __ATOMIC_ACQ_REL);
	return ready(arg) ? 0 : -1;
}

static int answered(void *arg)
{
	struct vfio *v = arg;

	pthread_mutex_lock(&v->lock);
	int open = v->open;
	pthread_mutex_unlock(&v->lock);
	return !open;
}

/* request sends a message of up to two parts and waits for the reply, of which up to
 * room bytes go to reply. It returns the bytes there, or -1. */
static ssize_t request(struct vfio *v, uint16_t command, struct iovec *parts, int n, int fd, void *reply, size_t room)
{
	struct header h = {0, command, sizeof h, 0, 0};
	struct iovec iov[3] = {{&h, sizeof h}};
	ssize_t got = -1;

	for (int i = 0; i < n; i++) {
		iov[i + 1] = parts[i];
		h.size += (uint32_t)parts[i].iov_len;
	}
	pthread_mutex_lock(&v->calls);
	pthread_mutex_lock(&v->lock);
	h.id = ++v->id;
	v->open = 1;
	v->reply = reply;
	v->room = room;
	pthread_mutex_unlock(&v->lock);

	pthread_mutex_lock(&v->send);
	int bad = send_all(v, iov, n + 1, fd);
	pthread_mutex_unlock(&v->send);

	if (!bad)
		bad = vfio_await(v, answered, v, TIMEOUT_MS);
	pthread_mutex_lock(&v->lock);
	if (bad || v->open)
		errno = ENODEV;
	else if (v->error)
		errno = v->error;
	else
		got = (ssize_t)v->got;
	v->open = 0;
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

int vfio_write_config(struct vfio *v, uint32_t offset, uint32_t value)
{
	struct access a = {offset, REGION_CONFIG, sizeof value};
	struct iovec parts[2] = {{&a, sizeof a}, {&value, sizeof value}};

	return request(v, CMD_REGION_WRITE, parts, 2, -1, NULL, 0) < 0 ? -1 : 0;
}

uint64_t vfio_region_size(struct vfio *v, uint32_t region)
{
	struct region_info info = {sizeof info, 0, region, 0, 0, 0}, reply = {0};
	struct iovec part = {&info, sizeof info};

	return request(v, CMD_REGION_INFO, &part, 1, -1, &reply, sizeof reply) < (ssize_t)sizeof reply ? 0 : reply.size;
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

/* cond_init makes a condition whose time limits do not follow changes of the clock. */
static void cond_init(pthread_cond_t *c)
{
	pthread_condattr_t a;

	pthread_condattr_init(&a);
	pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
	pthread_cond_init(c, &a);
	pthread_condattr_destroy(&a);
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
	pthread_mutex_init(&v->role, NULL);
	pthread_mutex_init(&v->lock, NULL);
	cond_init(&v->moved);
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
	if (negotiate(v) || vfio_set_up(v)) {
		vfio_close(v);
		errno = ENODEV;
		return NULL;
	}
	return v;
}

void vfio_close(struct vfio *v)
{
	mark_lost(v);
	pthread_join(v->reader, NULL);
	close(v->fd);
	pthread_mutex_destroy(&v->calls);
	pthread_mutex_destroy(&v->send);
	pthread_mutex_destroy(&v->role);
	pthread_mutex_destroy(&v->lock);
	pthread_cond_destroy(&v->moved);
	free(v);
}
