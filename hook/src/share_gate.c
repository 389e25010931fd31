/*
 * The gate of launches. An open gate costs one load for each GPU of the share. At any
 * other gate a launch waits for room in the window, then for the agent's permit. An
 * event before and one after it tell when it is done and how long it ran; the
 * library's thread asks the driver for them.
 */
#include "share.h"

#include <sched.h>
#include <string.h>

#include "wrap.h"

enum { FLIGHTS = 1024, SPARE = 256, BUSY_STREAMS = 8 };
#define LOOK 50000     /* ns for which a launch looks for room itself */
#define RECENT 1000000 /* ns after a launch in which others are likely */

/* Guarded by dxpu_share_lock. */
static struct share_launch flights[FLIGHTS];
static struct share_message untold[FLIGHTS]; /* DONE that did not fit into the socket */
static unsigned nflights, nuntold;
static unsigned in_flight[SHARE_GPUS]; /* with a permit and without a told DONE */
static struct spare {
	CUcontext context;
	CUevent event;
} spares[SPARE];
static unsigned nspares;
static atomic_uint bursts; /* GPUs with launches since the last IDLE: bits */
static atomic_bool burst; /* launches since a thread last waited, for whatever GPU: an event does not tell */
static uint64_t last_launch; /* ns */
static unsigned credited;    /* 1 + the connection to an agent that gave credit, and so reads packets */

/* ---- events ---- */

/* Returns a spare event of a context, or NULL. */
static CUevent spare_locked(CUcontext c)
{
	for (unsigned i = nspares; i-- > 0;) {
		if (spares[i].context == c) {
			CUevent e = spares[i].event;

			spares[i] = spares[--nspares];
			return e;
		}
	}
	return NULL;
}

/* Returns the spare event, or a new one of the current context; NULL: there is none. */
static CUevent event_or_new(CUevent spare)
{
	CUevent e = NULL;

	if (spare)
		return spare;
	return REAL(CUresult(*)(CUevent *, unsigned), cuEventCreate)(&e, 0) == CUDA_SUCCESS ? e : NULL;
}

static void keep_event_locked(CUcontext c, CUevent e)
{
	if (!e)
		return;
	if (nspares < SPARE)
		spares[nspares++] = (struct spare){c, e};
	else
		(void)REAL(CUresult(*)(CUevent), cuEventDestroy_v2)(e);
}

/* ---- flights ---- */

static void tell_done_locked(const struct share_launch *l, uint64_t ns)
{
	struct share_message m = {.type = SHARE_DONE, .gpu = (uint32_t)l->gpu, .id = l->id, .arg = {ns}};

	bool (*tell)(const struct share_message *) = credited == dxpu_share_connection + 1 ? dxpu_share_report_locked : dxpu_share_tell_locked;

	if (l->connection == dxpu_share_connection && dxpu_share_up_locked() && !tell(&m) && dxpu_share_up_locked()) {
		untold[nuntold++] = m;
		return;
	}
	in_flight[l->gpu]--;
	dxpu_share_changed_locked();
}

static void done_locked(const struct share_launch *l, uint64_t ns)
{
	keep_event_locked(l->context, l->start);
	keep_event_locked(l->context, l->end);
	tell_done_locked(l, ns);
}

void dxpu_share_flights_flush_locked(void)
{
	unsigned n = 0;

	/* Without an agent they are dropped: the next one does not know these launches. */
	while (n < nuntold && (dxpu_share_tell_locked(&untold[n]) || !dxpu_share_up_locked()))
		in_flight[untold[n++].gpu]--;
	if (n == 0)
		return;
	nuntold -= n;
	memmove(untold, &untold[n], nuntold * sizeof untold[0]);
	dxpu_share_changed_locked();
}

static void failed_locked(int gpu, CUresult r)
{
	struct share_message m = {.type = SHARE_FAILED, .gpu = (uint32_t)gpu, .arg = {(uint64_t)r}};

	(void)dxpu_share_tell_locked(&m);
}

static uint64_t elapsed(const struct share_launch *l)
{
	CUresult (*f)(float *, CUevent, CUevent) = REAL(CUresult(*)(float *, CUevent, CUevent), cuEventElapsedTime);
	float ms = 0;

	if (!f || !l->start || f(&ms, l->start, l->end) != CUDA_SUCCESS || !(ms > 0))
		return 0;
	return (uint64_t)((double)ms * 1e6);
}

/* Queries in the flight's context, which this thread makes current. */
static CUresult query(const struct share_launch *l)
{
	CUresult (*set)(CUcontext) = REAL(CUresult(*)(CUcontext), cuCtxSetCurrent);

	if (set && set(l->context) != CUDA_SUCCESS)
		return CUDA_ERROR_INVALID_CONTEXT;
	return REAL(CUresult(*)(CUevent), cuEventQuery)(l->end);
}

/* Streams of which a launch runs: the later ones of the same stream are not done either. */
struct busy {
	CUcontext context[BUSY_STREAMS];
	CUstream stream[BUSY_STREAMS];
	unsigned n;
};

static bool is_busy(const struct busy *b, const struct share_launch *l)
{
	for (unsigned i = 0; i < b->n; i++) {
		if (b->stream[i] == l->stream && b->context[i] == l->context)
			return true;
	}
	return false;
}

static void note_busy(struct busy *b, const struct share_launch *l)
{
	/* The default stream of each thread has the same handle. */
	if (b->n == BUSY_STREAMS || l->stream == CU_STREAM_PER_THREAD)
		return;
	b->context[b->n] = l->context;
	b->stream[b->n++] = l->stream;
}

bool dxpu_share_poll_locked(void)
{
	struct busy b = {.n = 0};

	for (unsigned i = 0; i < nflights;) {
		struct share_launch l = flights[i];
		CUresult r = is_busy(&b, &l) ? CUDA_ERROR_NOT_READY : query(&l);

		if (r == CUDA_ERROR_NOT_READY) {
			note_busy(&b, &l);
			i++;
			continue;
		}
		memmove(&flights[i], &flights[i + 1], (--nflights - i) * sizeof l);
		if (r != CUDA_SUCCESS)
			failed_locked(l.gpu, r);
		done_locked(&l, r == CUDA_SUCCESS ? elapsed(&l) : 0);
	}
	return nflights > 0 || dxpu_now() - last_launch < RECENT;
}

void dxpu_share_flights_forget_locked(CUcontext c)
{
	for (unsigned i = 0; i < nspares;) {
		if (!c || spares[i].context == c)
			spares[i] = spares[--nspares];
		else
			i++;
	}
	for (unsigned i = 0; i < nflights;) {
		struct share_launch l = flights[i];

		if (c && l.context != c) {
			i++;
			continue;
		}
		flights[i] = flights[--nflights];
		tell_done_locked(&l, 0); /* the driver destroys the events with the context */
	}
	if (!c) {
		nuntold = credited = 0;
		memset(in_flight, 0, sizeof in_flight);
	}
}

/* ---- launches ---- */

/* FNV-1a of the function's name, which CUDA 12.3 and later tell; else 0. */
static uint64_t name_hash(CUfunction f)
{
	CUresult (*name_of)(const char **, CUfunction) = REAL(CUresult(*)(const char **, CUfunction), cuFuncGetName);
	const char *name = NULL;
	uint64_t h = 0xcbf29ce484222325u;

	if (!f || !name_of || name_of(&name, f) != CUDA_SUCCESS || !name)
		return 0;
	for (; *name; name++)
		h = (h ^ (uint8_t)*name) * 0x100000001b3u;
	return h;
}

static unsigned gate_of(int gpu)
{
	return atomic_load_explicit(&dxpu_share_page->gpu[gpu].gate, memory_order_relaxed);
}

static bool has_room_locked(int gpu)
{
	uint32_t window = atomic_load(&dxpu_share_page->gpu[gpu].window);
	unsigned all = 0;

	for (int i = 0; i < SHARE_GPUS; i++)
		all += in_flight[i];
	return in_flight[gpu] < (window ? window : 1) && all < FLIGHTS;
}

/* Waits for the end of reasons to hold that are the library's own. */
static bool wait_hold_locked(void)
{
	while (atomic_load(&dxpu_share_hold) && atomic_load(&dxpu_share_state) == SHARE_ON)
		dxpu_share_wait_locked();
	return atomic_load(&dxpu_share_state) == SHARE_ON;
}

/* Launches of a GPU that may be in flight without a permit. */
static unsigned credit_of(int gpu)
{
	return gate_of(gpu) == SHARE_ASKED ? atomic_load_explicit(&dxpu_share_page->gpu[gpu].credit, memory_order_relaxed) : 0;
}

bool dxpu_share_urgent_locked(void)
{
	bool all = true;

	for (uint32_t i = 0; i < dxpu_share_page->gpus; i++)
		all = all && (gate_of((int)i) == SHARE_OPEN || credit_of((int)i) > 0 || dxpu_share_is_shut((int)i));
	return !all || !atomic_load_explicit(&burst, memory_order_relaxed);
}

/*
 * Reports a launch that goes without waiting for a permit. The first one of a burst is sent
 * at once, because a policy may have to hold others for it.
 */
static bool start_locked(struct share_message *m)
{
	m->id = dxpu_share_id_locked();
	m->arg[4] = SHARE_STARTED;
	if (!dxpu_share_report_locked(m)) {
		m->arg[4] = 0;
		return false;
	}
	in_flight[m->gpu]++;
	credited = dxpu_share_connection + 1;
	atomic_store_explicit(&burst, true, memory_order_relaxed);
	if (!(atomic_fetch_or_explicit(&bursts, 1u << m->gpu, memory_order_relaxed) & 1u << m->gpu))
		dxpu_share_send_reports_locked();
	return true;
}

/* Looks for completed launches in a thread of the program. */
static void poll_here_locked(void)
{
	CUresult (*set)(CUcontext) = REAL(CUresult(*)(CUcontext), cuCtxSetCurrent);
	int (*exchange)(int *) = REAL(CUresult(*)(int *), cuThreadExchangeStreamCaptureMode);
	CUcontext was = dxpu_share_context();
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;

	if (exchange)
		(void)exchange(&mode);
	dxpu_depth++;
	(void)dxpu_share_poll_locked();
	dxpu_depth--;
	if (exchange)
		(void)exchange(&mode);
	if (set)
		(void)set(was);
}

/*
 * Waits for a change: the end of a launch, or of the page. The library's thread is too slow
 * for kernels of microseconds, so the thread that launches looks itself first.
 */
static void wait_room_locked(uint64_t *until)
{
	uint64_t now = dxpu_now();

	if (*until == 0)
		*until = now + LOOK;
	if (nflights == 0 || now >= *until) {
		*until = 0;
		dxpu_share_wait_locked();
		return;
	}
	dxpu_share_unlock();
	sched_yield();
	dxpu_share_lock();
	poll_here_locked();
}

/*
 * Waits until the launch may go; true: with a permit, or by a credit. Without an agent, and
 * if the page is open then, launches go without one.
 */
static bool wait_permit_locked(struct share_message *m, unsigned *connection)
{
	int gpu = (int)m->gpu;
	uint64_t until = 0;

	while (wait_hold_locked() && gate_of(gpu) != SHARE_OPEN && dxpu_share_up_locked()) {
		unsigned credit = credit_of(gpu);

		if (!has_room_locked(gpu) || (credit > 0 && in_flight[gpu] >= credit)) {
			wait_room_locked(&until);
			continue;
		}
		if (credit > 0) {
			if (start_locked(m)) {
				*connection = dxpu_share_connection;
				return true;
			}
			dxpu_share_wait_locked(); /* the socket is full */
			continue;
		}
		in_flight[gpu]++;
		if (dxpu_share_ask_locked(m) == SHARE_PERMIT) {
			*connection = dxpu_share_connection;
			/* A hold that began while the launch waited applies to it too. */
			(void)wait_hold_locked();
			return true;
		}
		in_flight[gpu]--;
	}
	return false;
}

/* Asks for the launch in the context of its stream, which is current. */
static CUresult begin_in_context(struct share_launch *l, const struct share_work *w)
{
	struct share_message m = {.type = SHARE_LAUNCH, .arg = {w->blocks, w->threads, w->kernels, 0}};
	bool permit;

	l->gpu = dxpu_share_current();
	if (l->gpu < 0) {
		CUresult r = l->gpu == NO_CONTEXT ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_NOT_PERMITTED;

		l->gpu = NOT_IN_SHARE;
		return r;
	}
	m.gpu = (uint32_t)l->gpu;
	m.arg[3] = name_hash(w->function);
	l->context = dxpu_share_context();
	dxpu_share_lock();
	permit = wait_permit_locked(&m, &l->connection);
	l->id = m.id;
	if (permit) {
		l->start = spare_locked(l->context);
		l->end = spare_locked(l->context);
	}
	dxpu_share_unlock();
	if (!permit) {
		l->gpu = -1;
		return CUDA_SUCCESS;
	}
	atomic_store_explicit(&burst, true, memory_order_relaxed);
	atomic_fetch_or_explicit(&bursts, 1u << l->gpu, memory_order_relaxed);
	l->start = event_or_new(l->start);
	l->end = event_or_new(l->end);
	if (l->start)
		(void)REAL(CUresult(*)(CUevent, CUstream), cuEventRecord)(l->start, l->stream);
	return CUDA_SUCCESS;
}

CUresult dxpu_share_begin_slow(struct share_launch *l, CUstream s, int thread, const struct share_work *w)
{
	CUcontext was;
	CUresult r;

	l->stream = dxpu_stream(s, thread);
	/* A launch into a capture does not run; the launch of its graph will. */
	if (!dxpu_not_captured(l->stream))
		return CUDA_SUCCESS;
	was = dxpu_share_enter(l->stream);
	r = begin_in_context(l, w);
	dxpu_share_leave(was);
	return r;
}

void dxpu_share_follow(struct share_launch *l, CUresult result)
{
	bool recorded = result == CUDA_SUCCESS && l->end &&
			REAL(CUresult(*)(CUevent, CUstream), cuEventRecord)(l->end, l->stream) == CUDA_SUCCESS;

	dxpu_share_lock();
	if (recorded) {
		flights[nflights++] = *l;
		last_launch = dxpu_now();
		if (!dxpu_share_looks) {
			dxpu_share_looks = true;
			dxpu_share_wake();
		}
	} else {
		done_locked(l, 0);
	}
	dxpu_share_unlock();
}

/* ---- the gates of gate.h ---- */

static bool any_held(void)
{
	const struct share_page *p = dxpu_share_page;

	if (atomic_load_explicit(&dxpu_share_hold, memory_order_relaxed))
		return true;
	for (uint32_t i = 0; i < p->gpus; i++) {
		if (gate_of((int)i) >= SHARE_HELD)
			return true;
	}
	return false;
}

/* Copies and memsets need no permit. They wait while the share is held. */
void dxpu_share_before_copy(void)
{
	int gpu;

	if (!dxpu_share_is_on() || !any_held() || (gpu = dxpu_share_current()) < 0)
		return;
	dxpu_share_lock();
	while (wait_hold_locked() && gate_of(gpu) >= SHARE_HELD && dxpu_share_up_locked())
		dxpu_share_wait_locked();
	dxpu_share_unlock();
}

/* A burst of launches ends where the program waits for them. */
void dxpu_share_before_wait(void)
{
	struct share_message m = {.type = SHARE_IDLE};
	int gpu;

	if (!dxpu_share_is_on() || !atomic_load_explicit(&bursts, memory_order_relaxed))
		return;
	atomic_store_explicit(&burst, false, memory_order_relaxed);
	gpu = dxpu_share_current();
	if (gpu < 0 || !(atomic_fetch_and_explicit(&bursts, ~(1u << gpu), memory_order_relaxed) & 1u << gpu))
		return;
	m.gpu = (uint32_t)gpu;
	dxpu_share_lock();
	(void)dxpu_share_tell_locked(&m);
	dxpu_share_unlock();
}
