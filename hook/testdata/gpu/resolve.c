/*
 * cuGetProcAddress of the fake GPU, as in driver 550. From version 99000 each call has one
 * more form, and there are calls of all names.
 */
#include "gpu.h"

#include <dlfcn.h>
#include <string.h>

CUresult cuMemAlloc_v2(CUdeviceptr *p, size_t n);

static CUresult future(void) { return CUDA_SUCCESS; }

/* The same function behind another address, as a driver may return it. */
static CUresult alias(CUdeviceptr *p, size_t n) { return cuMemAlloc_v2(p, n); }

static void *this_library(void)
{
	Dl_info me;

	return dladdr((void *)future, &me) ? dlopen(me.dli_fname, RTLD_NOW | RTLD_NOLOAD) : NULL;
}

static void *form_of(const struct call *c, int version, int thread)
{
	void *self = this_library(), *found = NULL;
	int best = 0;

	for (int k = c->first; k < c->first + c->count; k++) {
		void *f = dxpu_forms[k].thread == thread && dxpu_forms[k].version <= version ? dlsym(self, dxpu_names[k]) : NULL;

		if (f && dxpu_forms[k].version >= best)
			best = dxpu_forms[k].version, found = f;
	}
	return found;
}

static void *resolve(const char *name, int version, uint64_t flags)
{
	void *found = NULL;

	if (strcmp(name, "cuMemAlloc") == 0 && version < 99000)
		return (void *)alias;
	if (version >= 99000)
		return (void *)future;
	for (int i = 0; i < DXPU_CALLS && !found; i++) {
		if (strcmp(dxpu_calls[i].name, name) != 0)
			continue;
		for (int thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD) != 0; thread >= 0 && !found; thread--)
			found = form_of(&dxpu_calls[i], version, thread);
	}
	return found;
}

CUresult cuGetProcAddress_v2(const char *name, void **fn, int version, uint64_t flags, int *status)
{
	*fn = resolve(name, version, flags);
	if (status)
		*status = *fn ? 0 : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	return CUDA_SUCCESS;
}

CUresult cuGetProcAddress(const char *name, void **fn, int version, uint64_t flags)
{
	*fn = resolve(name, version, flags);
	return *fn ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
