/*
 * The connection to the sharing agent, and the library's thread, which serves it: the
 * thread receives answers, finds completed launches, watches the heartbeat and connects
 * again. Threads of the program only send.
 */
#include "share.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { FIRST_ANSWER = 5000, EXIT_WAIT = 500, POLL_IDLE = 100, PAUSE_FIRST = 10, PAUSE_LAST = 1000 }; /* ms */
#define POLL_FLIGHTS 50000  /* ns between two looks at launches in flight */
#define POLL_CREDIT 100000  /* while nobody waits for their ends */
#define REPORT_AFTER 200000 /* ns that a report may wait for others */
#define TIMER_SLACK 1000ul  /* ns */
#define POLL_GATE 1000000   /* ns between two looks at the page while a launch waits */
#define POOLS_EVERY 50000000u  /* ns */

_Atomic(enum share_state) dxpu_share_state;
const struct share_page *dxpu_share_page;
atomic_uint dxpu_share_hold;
unsigned dxpu_share_connection;
bool dxpu_share_told_contexts;
bool dxpu_share_looks;

/* A thread of the program that waits for an answer. */
struct request {
	uint64_t id, bytes;
	uint32_t gpu, answer; /* answer 0: none yet */
	bool lost;
	pthread_cond_t cond;
	struct request *next;
};

static atomic_bool stopping;

/* All guarded by the lock. */
static enum { DOWN, GREETING, UP } connection;
static int fd = -1, waker = -1;
static uint64_t last_id, pools_seen, pause_ms, retry_at;
static struct request *requests;
static unsigned nrequests, nwaiting;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static pthread_t thread;
static struct share_message reports[SHARE_PACKET];
static unsigned nreports;
static uint64_t oldest_report; /* ns */

bool dxpu_share_up_locked(void) { return connection == UP; }

void dxpu_share_wake(void)
{
	uint64_t one = 1;

	(void)!write(waker, &one, sizeof one);
}

void dxpu_share_changed_locked(void) { pthread_cond_broadcast(&changed); }

void dxpu_share_wait_locked(void)
{
	if (nwaiting++ == 0)
		dxpu_share_wake();
	dxpu_share_await_locked(&changed);
	nwaiting--;
}

/* ---- sending ---- */

/* Wakes the threads that wait for answers, which do not come. */
static void forget_requests_locked(void)
{
	for (struct request *r = requests; r; r = r->next) {
		r->lost = true;
		pthread_cond_signal(&r->cond);
	}
}

static void lose_locked(void)
{
	if (fd >= 0)
		close(fd);
	fd = -1;
	nreports = 0; /* the next agent does not know these launches */
	if (connection == UP)
		dxpu_share_alone_locked();
	connection = DOWN;
	pause_ms = pause_ms ? pause_ms : PAUSE_FIRST;
	retry_at = dxpu_now() + pause_ms * 1000000;
	pause_ms = pause_ms * 2 > PAUSE_LAST ? PAUSE_LAST : pause_ms * 2;
	forget_requests_locked();
	if (atomic_load(&dxpu_share_page->flags) & SHARE_CLOSED)
		atomic_fetch_or(&dxpu_share_hold, HOLD_AGENT);
	dxpu_share_changed_locked();
}

/* Returns whether the packet was sent. A full socket is no error. */
static bool send_packet_locked(const struct share_message *m, unsigned n)
{
	size_t size = n * sizeof *m;

	if (fd < 0)
		return false;
	if (send(fd, m, size, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)size)
		return true;
	if (errno != EAGAIN && errno != EINTR && errno != ENOBUFS)
		lose_locked();
	return false;
}

void dxpu_share_send_reports_locked(void)
{
	if (nreports > 0 && send_packet_locked(reports, nreports))
		nreports = 0;
}

/* Returns whether the message was sent, after all reports before it. */
static bool send_locked(const struct share_message *m)
{
	dxpu_share_send_reports_locked();
	return nreports == 0 && send_packet_locked(m, 1);
}

bool dxpu_share_report_locked(const struct share_message *m)
{
	if (nreports == SHARE_PACKET)
		dxpu_share_send_reports_locked();
	if (connection != UP || nreports == SHARE_PACKET)
		return false;
	if (nreports == 0)
		oldest_report = dxpu_now();
	reports[nreports++] = *m;
	return true;
}

uint64_t dxpu_share_id_locked(void) { return ++last_id; }

bool dxpu_share_tell_locked(const struct share_message *m)
{
	return connection == UP && send_locked(m);
}

static void unlink_locked(struct request *r)
{
	for (struct request **at = &requests; *at; at = &(*at)->next) {
		if (*at == r) {
			*at = r->next;
			break;
		}
	}
	nrequests--;
	if (nrequests == SHARE_REQUESTS - 1)
		dxpu_share_changed_locked();
}

uint32_t dxpu_share_ask_locked(struct share_message *m)
{
	struct request r = {.cond = PTHREAD_COND_INITIALIZER, .gpu = m->gpu, .bytes = m->bytes};

	while (connection == UP && nrequests >= SHARE_REQUESTS)
		dxpu_share_wait_locked();
	r.id = m->id = dxpu_share_id_locked();
	r.next = requests;
	requests = &r;
	nrequests++;
	while (connection == UP && !r.lost && !send_locked(m))
		dxpu_share_wait_locked(); /* the socket is full: the library's thread looks at it each ms */
	if (connection != UP)
		r.lost = true;
	while (!r.answer && !r.lost)
		dxpu_share_await_locked(&r.cond);
	unlink_locked(&r);
	pthread_cond_destroy(&r.cond);
	return r.answer;
}

/* ---- receiving ---- */

static void welcome_locked(const struct share_message *m, int page_fd)
{
	if (connection != GREETING || page_fd < 0 || !dxpu_share_map_page(page_fd)) {
		fprintf(stderr, "dxpu: DXPU_SHARE=%s: the agent's page is not one of version %d\n", dxpu_config.share, SHARE_VERSION);
		lose_locked();
		return;
	}
	connection = UP;
	dxpu_share_told_contexts = m->arg[1] == SHARE_TELLS;
	dxpu_share_connection++;
	pause_ms = 0;
	dxpu_share_restate_locked();
	atomic_fetch_and(&dxpu_share_hold, ~(unsigned)HOLD_AGENT);
	dxpu_share_changed_locked();
}

static void answer_locked(const struct share_message *m)
{
	for (struct request *r = requests; r; r = r->next) {
		if (r->id == m->id && !r->answer) {
			r->answer = m->type;
			if (m->type == SHARE_GRANTED) /* now: HOLDS of a later connection has it */
				dxpu_share_charge_locked((int)r->gpu, r->bytes);
			pthread_cond_signal(&r->cond);
			return;
		}
	}
}

static void handle_locked(const struct share_message *m, int page_fd)
{
	switch (m->type) {
	case SHARE_WELCOME:
		welcome_locked(m, page_fd);
		break;
	case SHARE_GRANTED:
		if (dxpu_share_page_current())
			answer_locked(m);
		else
			lose_locked();
		break;
	case SHARE_REFUSED:
	case SHARE_PERMIT:
		answer_locked(m);
		break;
	case SHARE_END:
		dxpu_share_end_asked(m->arg[0]);
		break;
	case SHARE_REJECT:
		fprintf(stderr, "dxpu: DXPU_SHARE=%s: the agent rejects this process, reason %llu (hook/SHARE.md)\n", dxpu_config.share, (unsigned long long)m->arg[0]);
		lose_locked();
		break;
	default:
		lose_locked();
	}
}

static void receive_all_locked(void)
{
	struct share_message m;
	int page_fd, n;

	while (fd >= 0 && (n = dxpu_share_receive(fd, &m, &page_fd)) != 0) {
		if (n > 0)
			handle_locked(&m, page_fd);
		else
			lose_locked();
		if (page_fd >= 0)
			close(page_fd);
	}
}

/* ---- connecting ---- */

static bool connect_locked(void)
{
	struct share_message hello = {.type = SHARE_HELLO, .id = SHARE_VERSION, .arg = {(uint64_t)getpid(), SHARE_TELLS}};

	fd = dxpu_share_dial();
	if (fd < 0)
		return false;
	connection = GREETING;
	return send_locked(&hello);
}

static void reconnect_locked(void)
{
	uint64_t now = dxpu_now();

	if (connection == GREETING && now >= retry_at)
		lose_locked();
	if (connection != DOWN || now < retry_at)
		return;
	retry_at = now + (uint64_t)FIRST_ANSWER * 1000000;
	if (!connect_locked())
		lose_locked();
}

/* ---- the library's thread ---- */

static void watch_locked(void)
{
	const struct share_page *p = dxpu_share_page;
	uint64_t beat = atomic_load(&p->heartbeat), silence = atomic_load(&p->silence), now = dxpu_now();

	if (connection == UP && silence > 0 && now > beat && now - beat > silence)
		lose_locked();
	if (atomic_load(&p->flags) & SHARE_ENDS)
		dxpu_share_end_asked(atomic_load(&p->grace));
}

/* Sends the reports that waited long enough, or that the program or the agent waits for. */
static void reports_due_locked(void)
{
	if (nreports > 0 && (dxpu_share_urgent_locked() || dxpu_now() - oldest_report >= REPORT_AFTER))
		dxpu_share_send_reports_locked();
}

/* Returns whether the socket has something, or may have. */
static bool sleep_until_something(bool flights)
{
	struct pollfd p[2] = {{.fd = fd, .events = POLLIN}, {.fd = waker, .events = POLLIN}};
	long busy = nwaiting == 0 && !dxpu_share_urgent_locked() ? POLL_CREDIT : POLL_FLIGHTS;
	long ns = flights ? busy : nwaiting > 0 ? POLL_GATE : POLL_IDLE * 1000000L;
	struct timespec t = {.tv_nsec = ns};
	uint64_t count;
	int n;

	dxpu_share_looks = flights;
	dxpu_share_unlock();
	n = ppoll(p, 2, &t, NULL);
	if (n > 0 && p[1].revents)
		(void)!read(waker, &count, sizeof count);
	if (dxpu_now() - pools_seen >= POOLS_EVERY) {
		dxpu_share_pools_settle();
		dxpu_share_graphs_settle();
		pools_seen = dxpu_now();
	}
	dxpu_share_lock();
	return n < 0 || p[0].revents;
}

static void *serve(void *arg)
{
	int (*exchange)(int *) = REAL(CUresult(*)(int *), cuThreadExchangeStreamCaptureMode);
	struct share_message m = {.type = SHARE_EXIT};
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	bool readable = true;

	(void)arg;
	/* Queries of this thread must not invalidate the captures of others. */
	if (exchange)
		(void)exchange(&mode);
	(void)prctl(PR_SET_TIMERSLACK, TIMER_SLACK); /* of this thread: POLL_FLIGHTS is as long as the default */
	dxpu_depth++;
	dxpu_share_lock();
	while (!atomic_load(&stopping)) {
		bool flights = dxpu_share_poll_locked();

		reconnect_locked();
		if (readable)
			receive_all_locked();
		watch_locked();
		dxpu_share_flush_locked();
		dxpu_share_flights_flush_locked();
		reports_due_locked();
		dxpu_share_usage_locked();
		if (nwaiting > 0)
			dxpu_share_changed_locked();
		dxpu_share_end_locked();
		if (!atomic_load(&stopping))
			readable = sleep_until_something(flights);
	}
	(void)dxpu_share_tell_locked(&m);
	/* No answer is received any more, and a later handler of exit may join a thread that waits for one. */
	connection = DOWN;
	forget_requests_locked();
	dxpu_share_changed_locked();
	dxpu_share_unlock();
	return NULL;
}

/* Starts the thread with all signals blocked: signals are the program's. */
static bool start(void)
{
	sigset_t all, old;
	int e;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	e = pthread_create(&thread, NULL, serve, NULL);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return e == 0;
}

static void disconnect_locked(void)
{
	close(fd);
	fd = -1;
	connection = DOWN;
}

static CUresult first_connection_locked(void)
{
	uint64_t until = dxpu_now() + (uint64_t)FIRST_ANSWER * 1000000;

	if (!connect_locked()) {
		fprintf(stderr, "dxpu: DXPU_SHARE=%s: %s; without its agent the process has no part of a GPU\n", dxpu_config.share, strerror(errno));
		return CUDA_ERROR_SYSTEM_NOT_READY;
	}
	while (connection == GREETING) {
		struct pollfd p = {.fd = fd, .events = POLLIN};
		uint64_t now = dxpu_now();
		struct share_message m;
		int page_fd, n;

		if (now >= until || (poll(&p, 1, (int)((until - now) / 1000000) + 1) < 0 && errno != EINTR))
			break;
		if ((n = dxpu_share_receive(fd, &m, &page_fd)) == 0)
			continue;
		if (n > 0 && m.type == SHARE_WELCOME && page_fd >= 0 && dxpu_share_map_page(page_fd)) {
			connection = UP;
			dxpu_share_told_contexts = m.arg[1] == SHARE_TELLS;
		}
		if (page_fd >= 0)
			close(page_fd);
		if (connection != UP)
			break;
	}
	if (connection == UP)
		dxpu_share_restate_locked(); /* nothing: the driver has freed what the program before an exec had */
	if (connection == UP)
		return CUDA_SUCCESS;
	fprintf(stderr, "dxpu: DXPU_SHARE=%s: no answer of a sharing agent of version %d\n", dxpu_config.share, SHARE_VERSION);
	disconnect_locked();
	return CUDA_ERROR_SYSTEM_NOT_READY;
}

CUresult dxpu_share_activate(void)
{
	CUresult r = CUDA_SUCCESS;

	dxpu_share_lock();
	if (atomic_load(&dxpu_share_state) == SHARE_OFF) {
		r = first_connection_locked();
		if (r == CUDA_SUCCESS) {
			dxpu_share_devices();
			waker = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
			if (waker >= 0 && start()) {
				atomic_store(&dxpu_share_state, SHARE_ON);
			} else {
				disconnect_locked();
				r = CUDA_ERROR_SYSTEM_NOT_READY;
			}
		}
	}
	dxpu_share_unlock();
	return r;
}

/*
 * Stops the thread before the driver's own handlers of exit run. It takes no lock: a handler
 * of a signal that calls exit may have interrupted this thread while it has one. The library's
 * thread may wait for that lock for ever, so the wait for its end is bounded.
 */
void dxpu_share_exit(void)
{
	struct timespec until;

	if (atomic_load(&dxpu_share_state) != SHARE_ON)
		return;
	atomic_store(&dxpu_share_state, SHARE_OVER);
	atomic_store(&stopping, true);
	dxpu_share_wake();
	if (dxpu_share_has_lock()) /* false too for a few instructions around the lock */
		return;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_nsec += EXIT_WAIT * 1000000L;
	until.tv_sec += until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	(void)pthread_timedjoin_np(thread, NULL, &until);
}

/*
 * The child has neither the thread nor the driver's state, and must not keep the
 * parent's socket open. Its own cuInit connects again.
 */
void dxpu_share_in_child(void)
{
	dxpu_share_lock_forget();
	pthread_cond_init(&changed, NULL);
	if (fd >= 0)
		close(fd);
	if (waker >= 0)
		close(waker);
	fd = waker = -1;
	connection = DOWN;
	requests = NULL;
	nrequests = nwaiting = nreports = 0;
	dxpu_share_looks = false;
	atomic_store(&stopping, false);
	atomic_store(&dxpu_share_hold, 0);
	dxpu_share_usage_forget();
	atomic_store(&dxpu_share_state, SHARE_OFF);
	dxpu_share_ledger_forget();
	dxpu_share_flights_forget_locked(NULL);
	dxpu_share_contexts_forget();
	dxpu_share_pools_forget();
	dxpu_share_graphs_forget();
	dxpu_share_end_forget();
}
