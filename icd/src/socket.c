/* The socket of a vfio-user client: messages out and in. */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "vfio_private.h"

void user_stop(struct vfio *v) { shutdown(v->fd, SHUT_RDWR); }

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

int user_send(struct vfio *v, struct iovec *iov, int n, int fd)
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
			vfio_mark_lost(v); /* a part of a message may have left */
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
		int bad = user_send(v, iov, interrupt ? 2 : 1, -1);
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
void user_receive(struct vfio *v, int ms)
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
	vfio_mark_lost(v);
}
