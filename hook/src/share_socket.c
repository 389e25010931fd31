/* The system calls of the connection to the agent: its socket and its page. */
#include "share.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

int dxpu_share_dial(void)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int fd;

	if (strlen(dxpu_config.share) >= sizeof a.sun_path) {
		errno = ENAMETOOLONG;
		return -1;
	}
	strcpy(a.sun_path, dxpu_config.share);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a) != 0) {
		close(fd);
		fd = -1;
	}
	return fd;
}

static uint64_t agent; /* that sent the page; guarded by dxpu_share_lock */

bool dxpu_share_map_page(int page_fd)
{
	struct stat st;
	const struct share_page *p;
	void *at = (void *)(uintptr_t)dxpu_share_page;

	if (fstat(page_fd, &st) != 0 || st.st_size != SHARE_PAGE)
		return false;
	/* Threads look at the page meanwhile. The kernel replaces it at once, which a sanitizer does not know. */
	p = (const struct share_page *)syscall(SYS_mmap, at, SHARE_PAGE, PROT_READ, MAP_SHARED | (at ? MAP_FIXED : 0), page_fd, 0L);
	if (p == MAP_FAILED)
		return false;
	if (!at) /* later pages are in its place: threads of the program look without a lock */
		dxpu_share_page = p;
	agent = atomic_load(&p->agent);
	return p->magic == SHARE_MAGIC && p->version == SHARE_VERSION && p->gpus <= SHARE_GPUS;
}

bool dxpu_share_page_current(void)
{
	const struct share_page *p = dxpu_share_page;
	/* The agent changes its number before it beats again, so the number is read last. */
	uint64_t beat = atomic_load(&p->heartbeat), silence = atomic_load(&p->silence), now = dxpu_now();

	return (silence == 0 || now <= beat || now - beat <= silence / 2) && atomic_load(&p->agent) == agent;
}

int dxpu_share_receive(int fd, struct share_message *m, int *page_fd)
{
	union {
		char space[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec v = {m, sizeof *m};
	struct msghdr h = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
	ssize_t n = recvmsg(fd, &h, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	struct cmsghdr *c;

	*page_fd = -1;
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	for (c = n > 0 ? CMSG_FIRSTHDR(&h) : NULL; c; c = CMSG_NXTHDR(&h, c)) {
		if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS && *page_fd < 0)
			memcpy(page_fd, CMSG_DATA(c), sizeof *page_fd);
	}
	return n == (ssize_t)sizeof *m ? 1 : -1;
}
