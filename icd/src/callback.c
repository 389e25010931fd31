/* The thread of callbacks. Callbacks of the program run in a thread of their own, so that
 * one that enqueues commands, and waits for room, does not keep completions from being
 * handled. */
#include <signal.h>
#include <stdlib.h>

#include "command.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the fields below */
static pthread_cond_t more = PTHREAD_COND_INITIALIZER;
static struct callback *first, **last = &first;
static int running;

static void *run(void *arg)
{
	(void)arg;
	pthread_mutex_lock(&lock);
	for (;;) {
		while (!first)
			pthread_cond_wait(&more, &lock);
		struct callback *b = first;
		first = b->next;
		if (!first)
			last = &first;
		pthread_mutex_unlock(&lock);
		b->call(b->event, b->status, b->data);
		event_release(b->event);
		free(b);
		pthread_mutex_lock(&lock);
	}
	return NULL;
}

/* start starts the thread, which runs until the process ends. The caller holds the lock. */
static int start(void)
{
	pthread_t thread;
	sigset_t all, before;

	/* Signals of the program are for its own threads. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int bad = pthread_create(&thread, NULL, run, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (!bad)
		pthread_detach(thread);
	return !bad;
}

void callback_later(struct callback *b, cl_event e, cl_int status)
{
	b->next = NULL;
	b->event = e;
	b->status = status;
	pthread_mutex_lock(&lock);
	running = running || start();
	/* Without a thread, the callback comes when there is memory for one. */
	*last = b;
	last = &b->next;
	pthread_cond_signal(&more);
	pthread_mutex_unlock(&lock);
}
