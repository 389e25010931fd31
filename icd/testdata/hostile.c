/* Events of a hostile device: the channel bounds what they say. */
#include "../src/channel.c"
#include "../src/ring.c"

#include <stdio.h>

struct vfio *vfio_open(const char *path, void (*f)(void *arg), void *arg) { (void)path; (void)f; (void)arg; return NULL; }
void vfio_close(struct vfio *v) { (void)v; }
void vfio_after_fork(struct vfio *v) { (void)v; }
void vfio_mark_lost(struct vfio *v) { (void)v; }
int vfio_lost(struct vfio *v) { (void)v; return 0; }
int vfio_read(struct vfio *v, uint32_t r, uint64_t o, void *d, uint32_t n) { (void)v; (void)r; (void)o; (void)d; (void)n; return -1; }
int vfio_write(struct vfio *v, const struct write_part *p, int n) { (void)v; (void)p; (void)n; return 0; }
int vfio_await(struct vfio *v, int (*f)(void *arg), void *arg, int ms) { (void)v; (void)ms; return f(arg) ? 0 : -1; }
void vfio_notify(struct vfio *v) { (void)v; }
int vfio_map(struct vfio *v, int fd, void *m, uint64_t a, uint64_t n) { (void)v; (void)fd; (void)m; (void)a; (void)n; return -1; }

static int calls;
static int32_t status;
static uint32_t length;

static void done(void *arg, int32_t s, uint32_t n, const struct times *t)
{
	(void)arg;
	(void)t;
	calls++;
	status = s;
	length = n;
}

int main(void)
{
	static struct event events[EVENT_ENTRIES];
	static uint64_t count;
	static struct packet p;
	struct channel *c = calloc(1, sizeof *c);
	struct staging out = {RING_SIZE, PAGE, NULL};

	pthread_mutex_init(&c->post, NULL);
	pthread_mutex_init(&c->handle, NULL);
	pthread_mutex_init(&c->lock, NULL);
	c->ring = malloc(RING_SIZE);
	c->events = events;
	c->count = &count;
	for (int i = 0; i < 3; i++)
		if (!channel_post(c, &p, &out, done, NULL))
			return 1;
	events[0] = (struct event){.cookie = 1, .length = PAGE};
	count = 1;
	handle_events(c);
	printf("result %d, %u bytes\n", status, length);
	events[1] = (struct event){.cookie = 2, .length = PAGE + 1};
	count = 2;
	handle_events(c);
	printf("too long %d, %u bytes\n", status, length);
	count = 3u + EVENT_ENTRIES;
	handle_events(c);
	printf("too many %d, failed %d, calls %d\n", status, channel_failed(c), calls);
	free(c->ring);
	free(c);
	return 0;
}
