/*
 * The ledger of the process: its memory on each GPU, and the owners of that memory. Each
 * charge was granted by the agent before the driver allocated, or, without an agent and if the
 * page allows it, fits into this process's part of what the last page had left.
 */
#include "share.h"

#include <stdlib.h>

enum { BUCKETS = 4096 };

/* Guarded by dxpu_share_lock. */
static struct account {
	uint64_t held;   /* by this process */
	uint64_t most;   /* without an agent: that this process may hold */
	uint64_t owed;   /* freed, but not yet told to the agent */
	bool opened;     /* the process has made a context there */
	bool untold;     /* of which the agent does not know yet */
} accounts[SHARE_GPUS];

/* ---- totals ---- */

/* The processes of a share cannot agree without an agent, so each has an equal part of what was left. */
void dxpu_share_alone_locked(void)
{
	uint32_t processes = atomic_load(&dxpu_share_page->processes);

	for (int i = 0; i < SHARE_GPUS; i++) {
		uint64_t used = atomic_load(&dxpu_share_page->gpu[i].used), limit = atomic_load(&dxpu_share_page->gpu[i].limit);

		accounts[i].most = accounts[i].held;
		if (limit <= SHARE_MOST && used < limit)
			accounts[i].most += (limit - used) / (processes ? processes : 1);
	}
}

static void send_owed_locked(int gpu)
{
	struct share_message m = {.type = SHARE_FREE, .gpu = (uint32_t)gpu, .bytes = accounts[gpu].owed};

	if (accounts[gpu].owed && dxpu_share_tell_locked(&m))
		accounts[gpu].owed = 0;
}

static void send_context_locked(int gpu)
{
	struct share_message m = {.type = SHARE_CONTEXT, .gpu = (uint32_t)gpu};

	if (accounts[gpu].untold && dxpu_share_told_contexts && dxpu_share_tell_locked(&m))
		accounts[gpu].untold = false;
}

void dxpu_share_opens(int gpu)
{
	dxpu_share_lock();
	if (!accounts[gpu].opened) {
		accounts[gpu].opened = accounts[gpu].untold = true;
		send_context_locked(gpu);
	}
	dxpu_share_unlock();
}

void dxpu_share_flush_locked(void)
{
	for (int i = 0; i < SHARE_GPUS; i++) {
		send_owed_locked(i);
		send_context_locked(i);
	}
}

void dxpu_share_restate_locked(void)
{
	for (uint32_t i = 0; i < dxpu_share_page->gpus; i++) {
		struct share_message m = {.type = SHARE_HOLDS, .gpu = i, .bytes = accounts[i].held, .arg = {accounts[i].most}};

		accounts[i].owed = 0; /* it is in no account of this agent */
		(void)dxpu_share_tell_locked(&m);
	}
	for (int i = 0; i < SHARE_GPUS; i++)
		accounts[i].untold = accounts[i].opened;
	dxpu_share_flush_locked();
}

/* Without an agent: whether the page allows the memory. */
static bool alone_locked(int gpu, uint64_t bytes)
{
	const struct account *a = &accounts[gpu];

	if (atomic_load(&dxpu_share_page->flags) & SHARE_CLOSED)
		return false;
	return a->held <= a->most && bytes <= a->most - a->held;
}

void dxpu_share_charge_locked(int gpu, uint64_t bytes) { accounts[gpu].held += bytes; }

CUresult dxpu_share_take(int gpu, uint64_t bytes)
{
	struct share_message m = {.type = SHARE_ALLOCATE, .gpu = (uint32_t)gpu, .bytes = bytes};
	bool granted = bytes == 0;

	if (gpu < 0 || bytes > SHARE_MOST)
		return CUDA_ERROR_OUT_OF_MEMORY;
	dxpu_share_lock();
	while (!granted) {
		uint32_t answer;

		if (atomic_load(&dxpu_share_state) != SHARE_ON)
			break;
		if (!dxpu_share_up_locked()) {
			granted = alone_locked(gpu, bytes);
			if (granted)
				dxpu_share_charge_locked(gpu, bytes);
			break;
		}
		send_owed_locked(gpu);
		answer = dxpu_share_ask_locked(&m);
		granted = answer == SHARE_GRANTED;
		if (answer == SHARE_REFUSED)
			break;
	}
	dxpu_share_unlock();
	return granted ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void dxpu_share_give(int gpu, uint64_t bytes)
{
	if (gpu < 0 || bytes == 0)
		return;
	dxpu_share_lock();
	bytes = bytes < accounts[gpu].held ? bytes : accounts[gpu].held;
	accounts[gpu].held -= bytes;
	accounts[gpu].owed += bytes;
	send_owed_locked(gpu);
	dxpu_share_unlock();
}

void dxpu_share_room(int gpu, uint64_t *total, uint64_t *left)
{
	const struct account *a = &accounts[gpu];
	uint64_t used;

	dxpu_share_lock();
	*total = atomic_load(&dxpu_share_page->gpu[gpu].limit);
	used = atomic_load(&dxpu_share_page->gpu[gpu].used);
	*left = used < *total ? *total - used : 0;
	if (!dxpu_share_up_locked())
		*left = a->held < a->most ? a->most - a->held : 0;
	dxpu_share_unlock();
}

/* ---- owners ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct owner *buckets[BUCKETS]; /* guarded by lock */

static struct owner **bucket(enum owned kind, uintptr_t key)
{
	return &buckets[(key >> 4 ^ key >> 9 ^ key >> 21 ^ (uintptr_t)kind) % BUCKETS];
}

static struct owner **find_locked(enum owned kind, uintptr_t key)
{
	struct owner **at = bucket(kind, key);

	while (*at && ((*at)->kind != kind || (*at)->key != key))
		at = &(*at)->next;
	return at;
}

void dxpu_share_add(const struct owner *o)
{
	struct owner *x = malloc(sizeof *x), **at;

	if (!x)
		return;
	*x = *o;
	pthread_mutex_lock(&lock);
	at = bucket(o->kind, o->key);
	x->next = *at;
	*at = x;
	pthread_mutex_unlock(&lock);
}

bool dxpu_share_remove(enum owned kind, uintptr_t key, struct owner *o)
{
	struct owner **at, *x;

	pthread_mutex_lock(&lock);
	at = find_locked(kind, key);
	x = *at;
	if (x) {
		*at = x->next;
		*o = *x;
	}
	pthread_mutex_unlock(&lock);
	free(x);
	return x != NULL;
}

bool dxpu_share_unreference(enum owned kind, uintptr_t key, struct owner *o)
{
	struct owner **at, *x;
	bool last;

	pthread_mutex_lock(&lock);
	at = find_locked(kind, key);
	x = *at;
	last = x && --x->references == 0;
	if (last) {
		*at = x->next;
		*o = *x;
	}
	pthread_mutex_unlock(&lock);
	if (last)
		free(x);
	return last;
}

bool dxpu_share_change(enum owned kind, uintptr_t key, void (*f)(struct owner *, void *), void *arg)
{
	struct owner *x;

	pthread_mutex_lock(&lock);
	x = *find_locked(kind, key);
	if (x)
		f(x, arg);
	pthread_mutex_unlock(&lock);
	return x != NULL;
}

struct owner *dxpu_share_detach(bool (*match)(const struct owner *, const void *), const void *arg)
{
	struct owner *list = NULL;

	pthread_mutex_lock(&lock);
	for (int i = 0; i < BUCKETS; i++) {
		for (struct owner **at = &buckets[i]; *at;) {
			struct owner *x = *at;

			if (!match(x, arg)) {
				at = &x->next;
				continue;
			}
			*at = x->next;
			x->next = list;
			list = x;
		}
	}
	pthread_mutex_unlock(&lock);
	return list;
}

void dxpu_share_settle(struct owner *list, bool gone)
{
	while (list) {
		struct owner *next = list->next;

		if (!gone)
			dxpu_share_add(list);
		else if (list->kind == OWNED_POINTER && list->other)
			dxpu_share_pool_freed(list);
		else
			dxpu_share_give(list->gpu, list->bytes);
		free(list);
		list = next;
	}
}

/* The entries are lost: another thread of the parent may have held the lock. */
void dxpu_share_ledger_forget(void)
{
	pthread_mutex_init(&lock, NULL);
	for (int i = 0; i < BUCKETS; i++)
		buckets[i] = NULL;
	for (int i = 0; i < SHARE_GPUS; i++)
		accounts[i] = (struct account){0};
}
