/*
 * cuGetProcAddress in both versions. The driver is asked first. Its answer is
 * replaced only where it is the address of a form that is wrapped, or, where it
 * is none that the driver exports, where the list says which form it must be.
 */
#include <string.h>

#include "dxpu.h"

static const struct call *find_call(const char *name)
{
	int low = 0, high = DXPU_CALLS;

	while (low < high) {
		int mid = (low + high) / 2, d = strcmp(name, dxpu_calls[mid].name);

		if (d == 0)
			return &dxpu_calls[mid];
		if (d < 0)
			high = mid;
		else
			low = mid + 1;
	}
	return NULL;
}

/* The newest form not above the version; -1 if there is none. */
static int by_version(const struct call *c, int version, int thread)
{
	int best = -1;

	for (int i = c->first; i < c->first + c->count; i++) {
		const struct form *f = &dxpu_forms[i];

		if (f->thread == thread && f->version > 0 && f->version <= version &&
		    (best < 0 || f->version > dxpu_forms[best].version))
			best = i;
	}
	return best;
}

void *dxpu_substitute(const char *name, void *answer, int version, uint64_t flags)
{
	const struct call *c = find_call(name);
	int thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD) != 0, listed, is = -1;

	if (!c)
		return answer;
	listed = by_version(c, version, thread);
	if (listed < 0 && thread)
		listed = by_version(c, version, 0);
	/* Forms may share an address; then the list tells which one was meant. */
	for (int i = c->first; i < c->first + c->count; i++) {
		if (dxpu_real[i] == answer && (is < 0 || i == listed))
			is = i;
	}
	/* Above the newest version known there may be a form that is not listed. */
	if (is < 0 && listed >= 0 && version <= DXPU_NEWEST && dxpu_real[listed])
		is = listed;
	if (is < 0)
		COUNT(unknown_forms);
	return is >= 0 && dxpu_hooks[is] ? dxpu_hooks[is] : answer;
}

CUresult hook_cuGetProcAddress(const char *name, void **fn, int version, uint64_t flags);
CUresult hook_cuGetProcAddress_v2(const char *name, void **fn, int version, uint64_t flags, int *status);

CUresult hook_cuGetProcAddress(const char *name, void **fn, int version, uint64_t flags)
{
	CUresult r = REAL(CUresult(*)(const char *, void **, int, uint64_t), cuGetProcAddress)(name, fn, version, flags);

	if (r == CUDA_SUCCESS && name && fn && *fn)
		*fn = dxpu_substitute(name, *fn, version, flags);
	return r;
}

CUresult hook_cuGetProcAddress_v2(const char *name, void **fn, int version, uint64_t flags, int *status)
{
	CUresult r = REAL(CUresult(*)(const char *, void **, int, uint64_t, int *), cuGetProcAddress_v2)(name, fn, version, flags, status);

	if (r == CUDA_SUCCESS && name && fn && *fn)
		*fn = dxpu_substitute(name, *fn, version, flags);
	return r;
}
