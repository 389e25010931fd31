/* The lock of sharing mode. */
#include "share.h"

/* Held for microseconds: a thread that launches spins before it sleeps. */
static pthread_mutex_t mu = PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP;

static _Thread_local bool has;
static _Thread_local int cancel_state; /* without the lock */

void dxpu_share_lock(void)
{
	int was;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &was);
	pthread_mutex_lock(&mu);
	has = true;
	cancel_state = was;
}

void dxpu_share_unlock(void)
{
	int was = cancel_state;

	has = false;
	pthread_mutex_unlock(&mu);
	pthread_setcancelstate(was, NULL);
}

void dxpu_share_await_locked(pthread_cond_t *c)
{
	has = false;
	pthread_cond_wait(c, &mu);
	has = true;
}

bool dxpu_share_has_lock(void) { return has; }

void dxpu_share_lock_forget(void) { pthread_mutex_init(&mu, NULL); }
