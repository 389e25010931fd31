/* The messages of a vfio-user client: the device behind a socket. */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "vfio_private.h"

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
	int bad = user_send(v, iov, n + 1, fd);
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

static int read_region(struct vfio *v, uint32_t region, uint64_t offset, void *data, uint32_t length)
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

int user_write_config(struct vfio *v, uint32_t offset, uint32_t value)
{
	struct access a = {offset, REGION_CONFIG, sizeof value};
	struct iovec parts[2] = {{&a, sizeof a}, {&value, sizeof value}};

	return request(v, CMD_REGION_WRITE, parts, 2, -1, NULL, 0) < 0 ? -1 : 0;
}

uint64_t user_region_size(struct vfio *v, uint32_t region)
{
	struct region_info info = {sizeof info, 0, region, 0, 0, 0}, reply = {0};
	struct iovec part = {&info, sizeof info};

	return request(v, CMD_REGION_INFO, &part, 1, -1, &reply, sizeof reply) < (ssize_t)sizeof reply ? 0 : reply.size;
}

static int write_regions(struct vfio *v, const struct write_part *parts, int n)
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
				bad = user_send(v, iov, 2 * filled, -1);
				filled = 0;
			}
		}
	}
	if (!bad && filled > 0)
		bad = user_send(v, iov, 2 * filled, -1);
	pthread_mutex_unlock(&v->send);
	return bad;
}

static int map(struct vfio *v, int fd, void *memory, uint64_t address, uint64_t size)
{
	(void)memory;
	struct dma_map m = {sizeof m, 3, 0, address, size};
	struct iovec part = {&m, sizeof m};

	return request(v, CMD_DMA_MAP, &part, 1, fd, NULL, 0) < 0 ? -1 : 0;
}

static void close_socket(struct vfio *v)
{
	close(v->fd);
	v->fd = -1;
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

static int connect_socket(struct vfio *v, const char *path)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};

	if (strlen(path) >= sizeof a.sun_path) {
		errno = ENAMETOOLONG;
		return -1;
	}
	memcpy(a.sun_path, path, strlen(path));
	v->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (v->fd < 0)
		return -1;
	if (connect(v->fd, (struct sockaddr *)&a, sizeof a)) {
		close(v->fd);
		return -1;
	}
	return 0;
}

static int set_up(struct vfio *v) { return negotiate(v) || user_set_up(v) ? -1 : 0; }

const struct transport user_transport = {
	.connect = connect_socket,
	.set_up = set_up,
	.read = read_region,
	.write = write_regions,
	.map = map,
	.receive = user_receive,
	.stop = user_stop,
	.release = close_socket,
	.upload = 4 << 10,
};
