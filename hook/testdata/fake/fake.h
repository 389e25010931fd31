/* Declarations shared by the files of the fake driver. */
#ifndef FAKE_H
#define FAKE_H

#include <pthread.h>

#include "dxpu.h"

enum { CAPTURE_REFUSED = 900, CAPTURE_INVALIDATED = 901, NOT_PERMITTED = 800, NOT_SUPPORTED = 801, MAX = 256, NODES = 64 };

struct stream {
	double time;
	bool capturing, invalidated;
	unsigned graph;
	CUcontext context; /* NULL: of a default stream */
};

#pragma GCC visibility push(hidden)

extern pthread_mutex_t lock;
extern int capturing; /* number of streams */

/* Writes a formatted line to the log. */
void log_call(const char *format, ...) __attribute__((format(printf, 1, 2)));

unsigned long long id(const void *handle);
struct stream *stream_of(CUstream s, int thread);

/* Returns an error if the process or the thread cannot use the driver. */
int usable(void);

/* Adds an operation to a stream, or to the graph of its capture. */
int add(CUstream s, int thread, int type, double ns);

/* Adds a node to a graph and returns its number in the graph. */
unsigned add_node(unsigned graph, int type);

/* Returns the memory of a device pointer. */
void *at(CUdeviceptr p);

#pragma GCC visibility pop

#endif
