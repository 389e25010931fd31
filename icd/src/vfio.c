/* A device behind a transport, and the threads that wait for it. */
#include "vfio.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "vfio_private.h"

int vfio_lost(struct vfio *v)
{
	pthread_mutex_lock(&v->lock);
	int lost = v->lost;
	pthread_mutex_unlock(&v->lock);
	return lost;
}

void vfio_notify(struct vfio *v)
{
	pthread_mutex_lock(&v->lock);
	v->moves++;
	if (v->sleepers)
		pthread_cond_broadcast(&v->moved);
	pthread_mutex_unlock(&v->lock);
}

void vfio_mark_lost(struct vfio *v)
{
	pthread_mutex_lock(&v->lock);
	v->lost = 1;
	pthread_cond_broadcast(&v->moved);
	pthread_mutex_unlock(&v->lock);
	v->transport->stop(v);
}

int vfio_read(struct vfio *v, uint32_t region, uint64_t offset, void *data, uint32_t length)
{
	return v->transport->read(v, region, offset, data, length);
}

int vfio_write(struct vfio *v, const struct write_part *parts, int n) { return v->transport->write(v, parts, n); }

int vfio_map(struct vfio *v, int fd, void *memory, uint64_t address, uint64_t size)
{
	return v->transport->map(v, fd, memory, address, size);
}

uint32_t vfio_upload(struct vfio *v) { return v->transport->upload; }

void vfio_after_fork(struct vfio *v) { v->transport->release(v); }

static void *read_device(void *arg)
{
	struct vfio *v = arg;
	const struct timespec grace = {0, GRACE_NS};

	while (!vfio_lost(v)) {
		unsigned before = __atomic_load_n(&v->waits, __ATOMIC_ACQUIRE);
		pthread_mutex_lock(&v->role);
		while (!vfio_lost(v) && before == __atomic_load_n(&v->waits, __ATOMIC_ACQUIRE)) {
			v->transport->receive(v, -1);
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
			v->transport->receive(v, ms);
		pthread_mutex_unlock(&v->role);
		vfio_notify(v);
	}
	__atomic_sub_fetch(&v->waiting, 1, __ATOMIC_ACQ_REL);
	return ready(arg) ? 0 : -1;
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

struct vfio *vfio_open(const char *device, void (*interrupt)(void *arg), void *arg)
{
	struct vfio *v = calloc(1, sizeof *v);

	if (!v)
		return NULL;
	/* The path of a socket has a slash, the address of a PCI function has none. */
	v->transport = strchr(device, '/') ? &user_transport : &pci_transport;
	v->interrupt = interrupt;
	v->arg = arg;
	pthread_mutex_init(&v->calls, NULL);
	pthread_mutex_init(&v->send, NULL);
	pthread_mutex_init(&v->role, NULL);
	pthread_mutex_init(&v->lock, NULL);
	cond_init(&v->moved);
	if (v->transport->connect(v, device)) {
		free(v);
		return NULL;
	}
	/* Signals of the program are for its own threads. */
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int bad = pthread_create(&v->reader, NULL, read_device, v);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (bad) {
		v->transport->release(v);
		free(v);
		errno = EAGAIN;
		return NULL;
	}
	errno = 0;
	if (v->transport->set_up(v)) {
		int why = errno == EBUSY ? EBUSY : ENODEV;
		vfio_close(v);
		errno = why;
		return NULL;
	}
	return v;
}

void vfio_close(struct vfio *v)
{
	vfio_mark_lost(v);
	pthread_join(v->reader, NULL);
	v->transport->release(v);
	pthread_mutex_destroy(&v->calls);
	pthread_mutex_destroy(&v->send);
	pthread_mutex_destroy(&v->role);
	pthread_mutex_destroy(&v->lock);
	pthread_cond_destroy(&v->moved);
	free(v);
}
