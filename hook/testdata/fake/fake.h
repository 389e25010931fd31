/* What the files of the fake driver share. */
#ifndef FAKE_H
#define FAKE_H

#include <pthread.h>

#include "dxpu.h"

enum { CAPTURE_REFUSED = 900, CAPTURE_INVALIDATED = 901, NOT_PERMITTED = 800, NOT_SUPPORTED = 801, MAX = 256, NODES = 64 };

struct stream {
	double time;
	bool capturing, invalidated;
	unsigned graph;
};

#pragma GCC visibility push(hidden)

extern pthread_mutex_t lock;
extern int capturing; /* streams */

/* Writes a line to the log. */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

unsigned long long id(const void *handle);
struct stream *stream_of(CUstream s, int thread);

/* Whether the process and the thread may use the driver. */
int ready(void);

/* Puts an operation into a stream, or into what it is captured to. */
int add(CUstream s, int thread, int type, double ns);

/* Puts a node into a graph and returns its number in it. */
unsigned add_node(unsigned graph, int type);

/* The memory behind a device pointer. */
void *at(CUdeviceptr p);

#pragma GCC visibility pop

#endif
