/* The trace of calls: records in memory, written in blocks. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "wrap.h"

/* 256 KiB: one write in about 20 ms at 200 000 calls per second. */
#define BLOCK 4096

struct header {
	char magic[8];
	uint32_t version, record_size;
	uint64_t monotonic, realtime; /* ns, the same instant on both clocks */
	uint32_t process, zero;
	uint64_t rtt, native; /* ns */
	uint64_t reserved;
};

_Static_assert(sizeof(struct header) == 64, "hook/TRACE.md gives 64 bytes");

bool dxpu_recording;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct record block[BLOCK];
static unsigned filled;
static int fd = -1;

static bool write_all(const void *data, size_t n)
{
	const char *p = data;

	while (n > 0) {
		ssize_t k = write(fd, p, n);

		if (k < 0 && errno == EINTR)
			continue;
		if (k <= 0)
			return false;
		p += k;
		n -= (size_t)k;
	}
	return true;
}

bool dxpu_record_open(void)
{
	struct header h = {.magic = "DXPUTRC", .version = 1, .record_size = sizeof(struct record)};
	struct timespec real;
	char path[4096];

	if (!dxpu_config.trace)
		return false;
	if (!dxpu_expand(dxpu_config.trace, path, sizeof path) ||
	    (fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) < 0) {
		fprintf(stderr, "dxpu: DXPU_TRACE=%s: %s; no trace is written\n", dxpu_config.trace, strerror(errno));
		return false;
	}
	clock_gettime(CLOCK_REALTIME, &real);
	h.monotonic = dxpu_now();
	h.realtime = (uint64_t)real.tv_sec * 1000000000u + (uint64_t)real.tv_nsec;
	h.process = (uint32_t)getpid();
	h.rtt = (uint64_t)dxpu_config.rtt;
	h.native = (uint64_t)dxpu_config.native;
	return write_all(&h, sizeof h);
}

/* A write error ends the trace but not the program. */
static void flush_locked(void)
{
	if (filled > 0 && fd >= 0 && !write_all(block, filled * sizeof block[0])) {
		fprintf(stderr, "dxpu: the trace ends here: %s\n", strerror(errno));
		COUNT_BY(lost, filled);
		close(fd);
		fd = -1;
	}
	filled = 0;
}

void dxpu_record(const struct record *r)
{
	pthread_mutex_lock(&lock);
	if (fd < 0) {
		COUNT(lost);
	} else {
		block[filled++] = *r;
		COUNT(records);
		if (filled == BLOCK)
			flush_locked();
	}
	pthread_mutex_unlock(&lock);
}

void dxpu_record_close(void)
{
	pthread_mutex_lock(&lock);
	flush_locked();
	if (fd >= 0)
		close(fd);
	fd = -1;
	pthread_mutex_unlock(&lock);
}
