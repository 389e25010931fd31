/*
 * cuGetProcAddress in both versions. The wrappers call the driver and replace its
 * answer only if that is the address of a wrapped form. If the driver does not
 * export the address, the list of versions determines the form.
 */
#include <stdio.h>
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

/* Returns the newest form of at most the version, or -1. */
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

/*
 * A newer driver may have calls and forms that the list has not. Programs in a share do not
 * get one that would pass by the share's limits: that takes memory, launches, or makes a context.
 */
static void *unlisted(const char *name, bool held, void *answer)
{
	if (!dxpu_config.share || !held)
		return answer;
	fprintf(stderr, "dxpu: the driver has a newer form of %s than this library; a program in a share does not get it\n", name);
	return NULL;
}

/* Whether the name of a call that the list has not says that the call does so. */
static bool sounds_held(const char *name)
{
	static const char *const words[] = {"Alloc", "ArrayCreate", "CtxCreate", "ImportFrom", "Instantiate", "Launch", "MemCreate", "PoolCreate"};

	for (unsigned i = 0; i < sizeof words / sizeof *words; i++) {
		if (strstr(name, words[i]))
			return !strstr(name, "Get"); /* a question */
	}
	return false;
}

void *dxpu_substitute(const char *name, void *answer, int version, uint64_t flags)
{
	const struct call *c = find_call(name);
	int thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD) != 0, listed, form = -1;

	if (!c)
		return unlisted(name, sounds_held(name), answer);
	listed = by_version(c, version, thread);
	if (listed < 0 && thread)
		listed = by_version(c, version, 0);
	/* If forms share an address, the list determines which one is meant. */
	for (int i = c->first; i < c->first + c->count; i++) {
		if (dxpu_real[i] == answer && (form < 0 || i == listed))
			form = i;
	}
	/* Above the newest known version the driver may have a form that is not listed. */
	if (form < 0 && listed >= 0 && version <= DXPU_NEWEST && dxpu_real[listed])
		form = listed;
	if (form < 0) {
		COUNT(unknown_forms);
		return unlisted(name, c->held, answer);
	}
	return dxpu_wrapper(form) ? dxpu_wrapper(form) : answer;
}

/*
 * In sharing mode the newest listed form under a later version must be known as that form,
 * also where the driver returns another address of it: its answer for that form is compared.
 */
static bool compares(int version) { return dxpu_config.share && version > DXPU_NEWEST; }

CUresult hook_cuGetProcAddress(const char *name, void **fn, int version, uint64_t flags);
CUresult hook_cuGetProcAddress_v2(const char *name, void **fn, int version, uint64_t flags, int *status);

CUresult hook_cuGetProcAddress(const char *name, void **fn, int version, uint64_t flags)
{
	CUresult (*driver)(const char *, void **, int, uint64_t) = REAL(CUresult(*)(const char *, void **, int, uint64_t), cuGetProcAddress);
	CUresult r = driver(name, fn, version, flags);
	void *listed = NULL;

	if (r != CUDA_SUCCESS || !name || !fn || !*fn)
		return r;
	if (compares(version) && driver(name, &listed, DXPU_NEWEST, flags) == CUDA_SUCCESS && listed == *fn)
		version = DXPU_NEWEST;
	*fn = dxpu_substitute(name, *fn, version, flags);
	return *fn ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult hook_cuGetProcAddress_v2(const char *name, void **fn, int version, uint64_t flags, int *status)
{
	CUresult (*driver)(const char *, void **, int, uint64_t, int *) =
		REAL(CUresult(*)(const char *, void **, int, uint64_t, int *), cuGetProcAddress_v2);
	CUresult r = driver(name, fn, version, flags, status);
	void *listed = NULL;

	if (r != CUDA_SUCCESS || !name || !fn || !*fn)
		return r;
	if (compares(version) && driver(name, &listed, DXPU_NEWEST, flags, NULL) == CUDA_SUCCESS && listed == *fn)
		version = DXPU_NEWEST;
	*fn = dxpu_substitute(name, *fn, version, flags);
	if (!*fn && status)
		*status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	return CUDA_SUCCESS;
}
