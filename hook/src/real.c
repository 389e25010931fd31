/*
 * Finds the real driver library, as the dynamic linker would have found it had
 * this library not stood in its way, and fills the table of entries.
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

void *dxpu_real[DXPU_SYMBOLS];

/* How another copy of this library is told from the driver. */
__attribute__((visibility("default"))) const char dxpu_hook_version[] = "1";

static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Thread_local bool filling;
static struct stat self;

static CUresult no_driver(void) { return CUDA_ERROR_NO_DEVICE; }
static CUresult no_symbol(void) { return CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER; }

/* Opens the file unless it is this library, or another copy of it. */
static void *try_file(const char *path)
{
	struct stat st;
	void *h;

	if (stat(path, &st) != 0 || (st.st_dev == self.st_dev && st.st_ino == self.st_ino))
		return NULL;
	h = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!h) {
		if (dxpu_config.verbose)
			fprintf(stderr, "dxpu: %s\n", dlerror());
		return NULL;
	}
	if (dlsym(h, "dxpu_hook_version") || !dlsym(h, "cuInit")) {
		dlclose(h);
		return NULL;
	}
	if (dxpu_config.verbose)
		fprintf(stderr, "dxpu: the driver is %s\n", path);
	return h;
}

/* Tries DIR/name for each DIR of a list that colons or semicolons part. */
static void *try_dirs(const char *dirs, const char *name)
{
	char path[4096];
	void *h = NULL;

	while (dirs && *dirs && !h) {
		size_t n = strcspn(dirs, ":;");

		if (n > 0 && snprintf(path, sizeof path, "%.*s/%s", (int)n, dirs, name) < (int)sizeof path)
			h = try_file(path);
		dirs += n;
		dirs += *dirs != '\0';
	}
	return h;
}

/*
 * The loader's cache, /etc/ld.so.cache, in the format of glibc 2.2 and later
 * (sysdeps/generic/dl-cache.h): a header of 48 bytes, entries of 24, strings at
 * offsets from the header. Older files hold it behind another table.
 */
static void *try_cache_at(const char *m, size_t size)
{
	uint32_t count, at[2];

	if (size < 48 || memcmp(m, "glibc-ld.so.cache1.1", 20) != 0)
		return NULL;
	memcpy(&count, m + 20, 4);
	if (count > (size - 48) / 24)
		return NULL;
	for (uint32_t i = 0; i < count; i++) {
		const char *key, *value;
		void *h;

		memcpy(at, m + 48 + (size_t)24 * i + 4, 8);
		if (at[0] >= size || at[1] >= size)
			continue;
		key = m + at[0];
		value = m + at[1];
		if (!memchr(key, '\0', size - at[0]) || !memchr(value, '\0', size - at[1]))
			continue;
		if (strcmp(key, "libcuda.so.1") == 0 && (h = try_file(value)))
			return h;
	}
	return NULL;
}

static void *try_cache(void)
{
	static const char old[] = "ld.so-1.7.0";
	int fd = open("/etc/ld.so.cache", O_RDONLY | O_CLOEXEC);
	struct stat st;
	char *m;
	void *h = NULL;
	uint32_t count;

	if (fd < 0)
		return NULL;
	if (fstat(fd, &st) != 0 || st.st_size < 48 ||
	    (m = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0)) == MAP_FAILED) {
		close(fd);
		return NULL;
	}
	close(fd);
	h = try_cache_at(m, (size_t)st.st_size);
	if (!h && memcmp(m, old, sizeof old - 1) == 0) {
		size_t skip;

		memcpy(&count, m + 12, 4);
		skip = (16 + (size_t)12 * count + 7) & ~(size_t)7;
		if (skip < (size_t)st.st_size)
			h = try_cache_at(m + skip, (size_t)st.st_size - skip);
	}
	munmap(m, (size_t)st.st_size);
	return h;
}

static const char usual[] = "/lib/x86_64-linux-gnu:/usr/lib/x86_64-linux-gnu:/lib64:/usr/lib64:/lib:/usr/lib:"
			    "/usr/local/nvidia/lib64:/usr/lib/wsl/lib:/run/opengl-driver/lib";

/* The file that carries the version of the kernel's driver in its name. */
static void *try_version(void)
{
	char line[512], version[64], name[96];
	FILE *f = fopen("/proc/driver/nvidia/version", "re");
	void *h = NULL;

	if (!f)
		return NULL;
	if (fgets(line, sizeof line, f)) {
		/* "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.163.01  ..." */
		for (char *save = NULL, *w = strtok_r(line, " \t\n", &save); w && !h; w = strtok_r(NULL, " \t\n", &save)) {
			if (sscanf(w, "%63[0-9.]", version) != 1 || strlen(version) != strlen(w) || !strchr(w, '.'))
				continue;
			snprintf(name, sizeof name, "libcuda.so.%s", version);
			h = try_dirs(secure_getenv("LD_LIBRARY_PATH"), name);
			if (!h)
				h = try_dirs(usual, name);
		}
	}
	fclose(f);
	return h;
}

static void *open_driver(void)
{
	const char *named = secure_getenv("DXPU_REAL_LIBCUDA");
	void *h;

	if (named && *named) {
		h = try_file(named);
		if (!h)
			fprintf(stderr, "dxpu: DXPU_REAL_LIBCUDA=%s is not a driver library\n", named);
		return h;
	}
	if ((h = try_dirs(secure_getenv("LD_LIBRARY_PATH"), "libcuda.so.1")) || (h = try_cache()) ||
	    (h = try_version()) || (h = try_dirs(usual, "libcuda.so.1")))
		return h;
	return NULL;
}

/*
 * cuGetProcAddress_v2 over the older call, for a runtime that finds the entry
 * here although the driver (before CUDA 12.0) has none.
 */
static CUresult old_get_proc_address(const char *name, void **fn, int version, uint64_t flags, int *status)
{
	CUresult r = ((CUresult(*)(const char *, void **, int, uint64_t))dxpu_table[SYM_cuGetProcAddress])(name, fn, version, flags);

	if (r == CUDA_ERROR_NOT_FOUND) {
		if (fn)
			*fn = NULL;
		if (status)
			*status = 1; /* CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND */
		return CUDA_SUCCESS;
	}
	if (r == CUDA_SUCCESS && status)
		*status = 0;
	return r;
}

static void fill(void)
{
	Dl_info me;
	void *h;

	filling = true;
	dxpu_configure();
	if (dladdr(dxpu_hook_version, &me) == 0 || stat(me.dli_fname, &self) != 0)
		memset(&self, 0, sizeof self);
	h = open_driver();
	for (int i = 0; i < DXPU_SYMBOLS; i++) {
		void *target = h ? dlsym(h, dxpu_names[i]) : NULL;

		dxpu_real[i] = target;
		if (target && dxpu_config.on && dxpu_hooks[i])
			target = dxpu_hooks[i];
		if (!target)
			target = h ? (void *)no_symbol : (void *)no_driver;
		atomic_store_explicit(&dxpu_table[i], target, memory_order_release);
	}
	if (dxpu_real[SYM_cuGetProcAddress] && !dxpu_real[SYM_cuGetProcAddress_v2])
		atomic_store_explicit(&dxpu_table[SYM_cuGetProcAddress_v2], (void *)old_get_proc_address, memory_order_release);
	filling = false;
}

void *dxpu_resolve(unsigned symbol)
{
	/* A call from the driver's own constructors, while it is being opened. */
	if (filling)
		return (void *)no_driver;
	pthread_once(&once, fill);
	return atomic_load_explicit(&dxpu_table[symbol], memory_order_acquire);
}
