/*
 * The graceful exit: the agent asks the process to end, so that no kernel of it runs
 * when it is killed. An error of a killed client reaches the others under MPS.
 *
 *   END ---> hold launches, synchronise ---> SIGTERM, launches go on
 *                                                | 3/4 of the grace
 *                                                v
 *            (killed by the agent) <--- hold launches, synchronise, EXIT
 *
 * SIGTERM comes from the process itself, so its default action, or the program's own
 * handler, ends it. A handler may launch and copy, to save the program's state.
 */
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "share.h"

/* A launch that passed an open gate before the hold reaches the driver in this time. */
#define PASS_NS 1000000

/* Guarded by dxpu_share_lock. */
static enum { LIVING, ASKED, SIGNALLED, ENDED } step;
static uint64_t deadline;

void dxpu_share_end_asked(uint64_t grace)
{
	if (step != LIVING)
		return;
	step = ASKED;
	deadline = dxpu_now() + grace / 4 * 3;
}

static void hold_and_synchronize_locked(void)
{
	struct timespec pass = {.tv_nsec = PASS_NS};

	atomic_fetch_or(&dxpu_share_hold, HOLD_END);
	dxpu_share_unlock();
	nanosleep(&pass, NULL);
	dxpu_share_synchronize();
	dxpu_share_lock();
	(void)dxpu_share_poll_locked();
	dxpu_share_flights_flush_locked();
}

void dxpu_share_end_locked(void)
{
	struct share_message m = {.type = SHARE_EXIT};

	if (step == ASKED) {
		step = SIGNALLED;
		hold_and_synchronize_locked();
		kill(getpid(), SIGTERM);
		atomic_fetch_and(&dxpu_share_hold, ~(unsigned)HOLD_END);
		dxpu_share_changed_locked();
	} else if (step == SIGNALLED && dxpu_now() >= deadline) {
		step = ENDED;
		hold_and_synchronize_locked();
		(void)dxpu_share_tell_locked(&m);
	}
}

void dxpu_share_end_forget(void) { step = LIVING; }
