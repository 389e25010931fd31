/* Programs that the device has compiled, in a directory of the program's user (DXPU_CL_CACHE). The
 * box keeps none: a tenant must not learn from the time of a build that another one has built the
 * same. A file has the name of a hash; its content has the whole key. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "calls.h"

enum { MAX_FILES = 256, MAX_PATH = 4096, MAX_ENTRY = 64 << 20, MAX_NAME = 250 };

#define DRAFT "dxpu-draft-"

static const char magic[8] = "DXPUCL1";

/* entry is the beginning of a file. The key, the log and the binary follow. */
struct entry {
	char magic[8];
	uint64_t key, log, binary; /* bytes of each */
	uint64_t sum;		   /* of the three */
};

/* hash is FNV-1a. It finds files and faults of the disk; it is no protection. */
static uint64_t hash(uint64_t h, const void *bytes, size_t n)
{
	const unsigned char *b = bytes;

	for (size_t i = 0; i < n; i++)
		h = (h ^ b[i]) * 0x100000001b3u;
	return h;
}

static const uint64_t hash_start = 0xcbf29ce484222325u;

static const char *directory(void)
{
	const char *d = secure_getenv("DXPU_CL_CACHE");

	return d && *d ? d : NULL;
}

void cache_forget(cl_program g)
{
	free(g->key);
	free(g->log);
	g->key = g->log = NULL;
	g->key_size = 0;
}

/* make_key joins what decides on a binary: the device and its driver, the options and the source. */
static int make_key(cl_program g, const char *source)
{
	static const cl_uint of_device[] = {CL_DEVICE_NAME, CL_DEVICE_VENDOR, CL_DEVICE_VERSION, CL_DRIVER_VERSION};
	size_t n = strlen(g->options) + 1 + strlen(source);
	struct property p[4];

	for (int i = 0; i < 4; i++) {
		if (!properties_find(&g->context->device->properties, of_device[i], NO_INDEX, &p[i]))
			p[i].size = 0;
		n += sizeof p[i].size + p[i].size;
	}
	char *at = g->key = malloc(n);
	if (!at)
		return -1;
	for (int i = 0; i < 4; i++) {
		memcpy(at, &p[i].size, sizeof p[i].size);
		at += sizeof p[i].size;
		memcpy(at, p[i].value, p[i].size);
		at += p[i].size;
	}
	memcpy(at, g->options, strlen(g->options) + 1);
	at += strlen(g->options) + 1;
	memcpy(at, source, strlen(source));
	g->key_size = n;
	return 0;
}

static int file_name(cl_program g, char *out)
{
	int n = snprintf(out, MAX_PATH, "%s/%016llx.clbin", directory(), (unsigned long long)hash(hash_start, g->key, g->key_size));

	return n < MAX_PATH ? 0 : -1;
}

static int read_all(int fd, char *to, size_t n)
{
	for (size_t done = 0; done < n;) {
		ssize_t got = read(fd, to + done, n - done);
		if (got <= 0)
			return -1;
		done += (size_t)got;
	}
	return 0;
}

/* is_own reports whether only the program's user writes a file: in a directory that others may write
 * to, they could put a binary of theirs there. */
static int is_own(const struct stat *st)
{
	return S_ISREG(st->st_mode) && st->st_uid == geteuid() && !(st->st_mode & (S_IWGRP | S_IWOTH));
}

/* read_entry returns what follows the beginning of a file that has the program's key, or NULL. */
static char *read_entry(cl_program g, struct entry *e)
{
	char path[MAX_PATH], *rest = NULL;
	struct stat st;
	int fd = file_name(g, path) ? -1 : open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);

	if (fd < 0)
		return NULL;
	if (!fstat(fd, &st) && is_own(&st) && st.st_size > (off_t)sizeof *e && st.st_size <= MAX_ENTRY && !read_all(fd, (char *)e, sizeof *e)) {
		size_t n = (size_t)st.st_size - sizeof *e;
		rest = malloc(n);
		int same = rest && !memcmp(e->magic, magic, sizeof magic) && e->key == g->key_size && e->log <= n && e->binary <= n &&
			   e->key <= n && e->key + e->log + e->binary == n && !read_all(fd, rest, n) && e->sum == hash(hash_start, rest, n) &&
			   !memcmp(rest, g->key, g->key_size);
		if (!same) {
			free(rest);
			rest = NULL;
		}
	}
	if (rest)
		(void)futimens(fd, NULL); /* the oldest ones are removed */
	close(fd);
	return rest;
}

int cache_load(cl_program g, const char *source)
{
	struct entry e;
	cl_uint handle;

	cache_forget(g);
	if (!directory() || make_key(g, source))
		return 0;
	char *rest = read_entry(g, &e);
	if (!rest)
		return 0;
	g->log = strndup(rest + e.key, e.log);
	handle = channel_handle(g->context->device->channel);
	int bad = !g->log || program_send(g->context, PACKET_PROGRAM, handle, PROGRAM_BINARY, rest + e.key + e.log, e.binary, NULL);
	free(rest);
	if (bad)
		return 0;
	if (program_send(g->context, PACKET_BUILD, handle, 0, g->options, strlen(g->options), NULL)) {
		dxpu_release(g->context, handle);
		return 0;
	}
	dxpu_release(g->context, g->handle);
	g->handle = handle;
	g->loaded = 1;
	return 1;
}

/* A draft is left behind when its program is killed. */
static int is_entry(const struct dirent *d)
{
	size_t n = strlen(d->d_name);

	return (n > 6 && !strcmp(d->d_name + n - 6, ".clbin")) || !strncmp(d->d_name, DRAFT, strlen(DRAFT));
}

/* trim removes the entry that was not used for the longest time, if there are too many. */
static void trim(void)
{
	struct dirent **list;
	struct timespec oldest = {0, 0};
	char path[MAX_PATH], victim[MAX_PATH] = "";
	int n = scandir(directory(), &list, is_entry, NULL);

	for (int i = 0; i < n; i++) {
		struct stat st;
		if (snprintf(path, sizeof path, "%s/%s", directory(), list[i]->d_name) < MAX_PATH && !stat(path, &st) &&
		    (!*victim || st.st_mtim.tv_sec < oldest.tv_sec)) {
			oldest = st.st_mtim;
			memcpy(victim, path, sizeof path);
		}
		free(list[i]);
	}
	if (n >= 0)
		free(list);
	if (n > MAX_FILES)
		unlink(victim);
}

/* write_entry writes a file whole, or none. */
static void write_entry(cl_program g, const struct entry *e, const void *log, const void *binary)
{
	char path[MAX_PATH], draft[MAX_PATH];

	(void)mkdir(directory(), 0700);
	if (file_name(g, path) || snprintf(draft, sizeof draft, "%s/" DRAFT "XXXXXX", directory()) >= MAX_PATH)
		return;
	int fd = mkstemp(draft);
	FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
	if (!f) {
		if (fd >= 0)
			close(fd);
		return;
	}
	int ok = fwrite(e, sizeof *e, 1, f) == 1 && fwrite(g->key, 1, e->key, f) == e->key && fwrite(log, 1, e->log, f) == e->log &&
		 fwrite(binary, 1, e->binary, f) == e->binary;
	ok &= fclose(f) == 0;
	if (!ok || rename(draft, path))
		unlink(draft);
	else
		trim();
}

/* has_long_name reports whether a kernel's name is no name of a file. PoCL ends its process when it makes
 * the binary of one, and the program has not asked for it. */
static int has_long_name(cl_program g)
{
	void *names;
	size_t n;
	int found = 0;

	if (program_text(g, INFO_KERNELS, &names, &n))
		return 1;
	for (const char *at = names; *at && !found; at += strspn(at, ";")) {
		size_t length = strcspn(at, ";");
		found = length > MAX_NAME;
		at += length;
	}
	free(names);
	return found;
}

void cache_keep(cl_program g)
{
	void *log = NULL, *binary = NULL;
	struct entry e = {.key = g->key_size};

	if (!g->key || g->loaded || !directory() || !program_executable(g) || has_long_name(g) || program_text(g, INFO_LOG, &log, &e.log))
		return;
	if (!program_text(g, INFO_BINARY, &binary, &e.binary) && e.binary && sizeof e + e.key + e.log + e.binary <= MAX_ENTRY) {
		memcpy(e.magic, magic, sizeof magic);
		e.sum = hash(hash(hash(hash_start, g->key, e.key), log, e.log), binary, e.binary);
		write_entry(g, &e, log, binary);
	}
	free(log);
	free(binary);
}
