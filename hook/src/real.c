/*
 * Finds the real driver library, which the dynamic linker would load in the absence
 * of this library, and fills the table of entries.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dxpu.h"

_Atomic(void *) dxpu_real[DXPU_SYMBOLS];

/* Distinguishes another copy of this library from the driver. */
__attribute__((visibility("default"))) const char dxpu_hook_version[] = "1";

/* Whether dxpu_real and dxpu_table are complete. */
static atomic_bool published;

/* A search for the driver. */
struct driver {
	struct stat self; /* this library */
	void *handle;     /* NULL: not found */
	bool named;       /* by DXPU_REAL_LIBCUDA */
	char path[4096];
};

static CUresult no_driver(void) { return CUDA_ERROR_NO_DEVICE; }
static CUresult no_symbol(void) { return CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER; }

/* Opens the file unless it is this library, or another copy of it. */
static bool try_file(struct driver *d, const char *path)
{
	struct stat st;
	void *h;

	if (stat(path, &st) != 0 || (st.st_dev == d->self.st_dev && st.st_ino == d->self.st_ino))
		return false;
	h = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!h) {
		if (dxpu_config.verbose)
			fprintf(stderr, "dxpu: %s\n", dlerror());
		return false;
	}
	if (dlsym(h, "dxpu_hook_version") || !dlsym(h, "cuInit")) {
		dlclose(h);
		return false;
	}
	d->handle = h;
	snprintf(d->path, sizeof d->path, "%s", path);
	return true;
}

/* Tries DIR/name for each DIR of a list separated by colons or semicolons. */
static bool try_dirs(struct driver *d, const char *dirs, const char *name)
{
	char path[4096];

	while (dirs && *dirs) {
		size_t n = strcspn(dirs, ":;");

		if (n > 0 && snprintf(path, sizeof path, "%.*s/%s", (int)n, dirs, name) < (int)sizeof path && try_file(d, path))
			return true;
		dirs += n;
		dirs += *dirs != '\0';
	}
	return false;
}

/*
 * The loader's cache, /etc/ld.so.cache, in the format of glibc 2.2 and later
 * (sysdeps/generic/dl-cache.h): a header of 48 bytes, entries of 24, strings at
 * offsets from the header. Older files have another table before it.
 */
static bool try_cache_at(struct driver *d, const char *m, size_t size)
{
	uint32_t count, at[2];

	if (size < 48 || memcmp(m, "glibc-ld.so.cache1.1", 20) != 0)
		return false;
	memcpy(&count, m + 20, 4);
	if (count > (size - 48) / 24)
		return false;
	for (uint32_t i = 0; i < count; i++) {
		const char *key, *value;

		memcpy(at, m + 48 + (size_t)24 * i + 4, 8);
		if (at[0] >= size || at[1] >= size)
			continue;
		key = m + at[0];
		value = m + at[1];
		if (!memchr(key, '\0', size - at[0]) || !memchr(value, '\0', size - at[1]))
			continue;
		if (strcmp(key, "libcuda.so.1") == 0 && try_file(d, value))
			return true;
	}
	return false;
}

static bool try_cache(struct driver *d)
{
	static const char old[] = "ld.so-1.7.0";
	int fd = open("/etc/ld.so.cache", O_RDONLY | O_CLOEXEC);
	struct stat st;
	char *m;
	bool found;
	uint32_t count;

	if (fd < 0)
		return false;
	if (fstat(fd, &st) != 0 || st.st_size < 48 ||
	    (m = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0)) == MAP_FAILED) {
		close(fd);
		return false;
	}
	close(fd);
	found = try_cache_at(d, m, (size_t)st.st_size);
	if (!found && memcmp(m, old, sizeof old - 1) == 0) {
		size_t skip;

		memcpy(&count, m + 12, 4);
		skip = (16 + (size_t)12 * count + 7) & ~(size_t)7;
		if (skip < (size_t)st.st_size)
			found = try_cache_at(d, m + skip, (size_t)st.st_size - skip);
	}
	munmap(m, (size_t)st.st_size);
	return found;
}

static const char standard[] = "/lib/x86_64-linux-gnu:/usr/lib/x86_64-linux-gnu:/lib64:/usr/lib64:/lib:/usr/lib:"
			    "/usr/local/nvidia/lib64:/usr/lib/wsl/lib:/run/opengl-driver/lib";

/* Tries the file with the version of the kernel's driver in its name. */
static bool try_version(struct driver *d)
{
	char line[512], version[64], name[96];
	FILE *f = fopen("/proc/driver/nvidia/version", "re");
	bool found = false;

	if (!f)
		return false;
	if (fgets(line, sizeof line, f)) {
		/* "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.163.01  ..." */
		for (char *save = NULL, *w = strtok_r(line, " \t\n", &save); w && !found; w = strtok_r(NULL, " \t\n", &save)) {
			if (sscanf(w, "%63[0-9.]", version) != 1 || strlen(version) != strlen(w) || !strchr(w, '.'))
				continue;
			snprintf(name, sizeof name, "libcuda.so.%s", version);
			found = try_dirs(d, secure_getenv("LD_LIBRARY_PATH"), name) || try_dirs(d, standard, name);
		}
	}
	fclose(f);
	return found;
}

static void open_driver(struct driver *d)
{
	const char *named = secure_getenv("DXPU_REAL_LIBCUDA");
	Dl_info self;

	if (dladdr(dxpu_hook_version, &self) == 0 || stat(self.dli_fname, &d->self) != 0)
		memset(&d->self, 0, sizeof d->self);
	d->named = named && *named;
	if (d->named) {
		if (!try_file(d, named))
			snprintf(d->path, sizeof d->path, "%s", named);
		return;
	}
	(void)(try_dirs(d, secure_getenv("LD_LIBRARY_PATH"), "libcuda.so.1") || try_cache(d) || try_version(d) ||
	       try_dirs(d, standard, "libcuda.so.1"));
}

/*
 * cuGetProcAddress_v2 by the older call, for a runtime that finds the entry here
 * although the driver (before CUDA 12.0) has none.
 */
static CUresult old_get_proc_address(const char *name, void **fn, int version, uint64_t flags, int *status)
{
	CUresult r = ((CUresult(*)(const char *, void **, int, uint64_t))dxpu_table[SYM_cuGetProcAddress])(name, fn, version, flags);

	if (r == CUDA_ERROR_NOT_FOUND) {
		if (fn)
			*fn = NULL;
		if (status)
			*status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
		return CUDA_SUCCESS;
	}
	if (r == CUDA_SUCCESS && status)
		*status = 0;
	return r;
}

/* Looks up the driver's functions. The loader holds its lock while it works. */
static void look_up(const struct driver *d, void *found[DXPU_SYMBOLS])
{
	for (int i = 0; i < DXPU_SYMBOLS; i++)
		found[i] = d->handle ? dlsym(d->handle, dxpu_names[i]) : NULL;
}

/* Returns the target of an entry. */
static void *target(const struct driver *d, void *const found[DXPU_SYMBOLS], int symbol)
{
	if (found[symbol])
		return dxpu_wrapper(symbol) ? dxpu_wrapper(symbol) : found[symbol];
	if (symbol == SYM_cuGetProcAddress_v2 && found[SYM_cuGetProcAddress])
		return (void *)old_get_proc_address;
	return d->handle ? (void *)no_symbol : (void *)no_driver;
}

/*
 * Publishes the functions unless another thread has done so. Wrappers use the
 * functions of other symbols, so dxpu_real is complete before the first entry of
 * dxpu_table is set. Nothing here takes the loader's lock.
 */
static void publish(const struct driver *d, void *const found[DXPU_SYMBOLS])
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

	pthread_mutex_lock(&lock);
	if (!atomic_load_explicit(&published, memory_order_relaxed)) {
		for (int i = 0; i < DXPU_SYMBOLS; i++)
			atomic_store_explicit(&dxpu_real[i], found[i], memory_order_relaxed);
		for (int i = 0; i < DXPU_SYMBOLS; i++)
			atomic_store_explicit(&dxpu_table[i], target(d, found, i), memory_order_release);
		atomic_store_explicit(&published, true, memory_order_release);
		if (d->named && !d->handle)
			fprintf(stderr, "dxpu: DXPU_REAL_LIBCUDA=%s is not a driver library\n", d->path);
		else if (d->handle && dxpu_config.verbose)
			fprintf(stderr, "dxpu: the driver is %s\n", d->path);
	}
	pthread_mutex_unlock(&lock);
}

/*
 * Each thread that calls an entry before the table is published looks for the
 * driver itself. It does not wait for another thread that does, because it may
 * hold the loader's lock, which that thread needs: constructors call the driver.
 */
void *dxpu_resolve(unsigned symbol)
{
	static pthread_once_t configured = PTHREAD_ONCE_INIT;
	static _Thread_local bool resolving;

	/* The driver's constructors call it while it is being opened. */
	if (resolving)
		return (void *)no_driver;
	if (!atomic_load_explicit(&published, memory_order_acquire)) {
		void *found[DXPU_SYMBOLS];
		struct driver d = {0};

		resolving = true;
		pthread_once(&configured, dxpu_configure);
		open_driver(&d);
		look_up(&d, found);
		publish(&d, found);
		resolving = false;
	}
	return atomic_load_explicit(&dxpu_table[symbol], memory_order_acquire);
}
