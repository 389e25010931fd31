/*
 * Looks up calls of the driver, one for each line "WAY NAME VERSION FLAGS": by dlsym (d) or
 * by a version of cuGetProcAddress (v1, v2). Prints whose function it is: "library" of
 * dxpu, "driver", or "none" with the result and status.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "cu.h"

typedef CUresult (*get_v1)(const char *, void **, int, uint64_t);
typedef CUresult (*get_v2)(const char *, void **, int, uint64_t, int *);

int main(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW), *fn;
	char way[8], name[64];
	int version, flags;
	Dl_info of, own;

	if (!library || dladdr(dlsym(library, "cuInit"), &own) == 0)
		return 1;
	while (scanf("%7s %63s %d %d", way, name, &version, &flags) == 4) {
		int r = 0, status = 0;

		fn = NULL;
		if (strcmp(way, "v1") == 0)
			r = ((get_v1)dlsym(library, "cuGetProcAddress"))(name, &fn, version, (uint64_t)flags);
		else if (strcmp(way, "v2") == 0)
			r = ((get_v2)dlsym(library, "cuGetProcAddress_v2"))(name, &fn, version, (uint64_t)flags, &status);
		else
			fn = dlsym(library, name);
		if (!fn)
			printf("none %d %d\n", r, status);
		else
			printf("%s\n", dladdr(fn, &of) && strcmp(of.dli_fname, own.dli_fname) == 0 ? "library" : "driver");
	}
	return 0;
}
