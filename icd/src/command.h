/* Commands: their parts, and their events. */
#ifndef DXPU_COMMAND_H
#define DXPU_COMMAND_H

#include <stdint.h>

#include "calls.h"

struct callback {
	struct callback *next;
	cl_event event; /* in the list of calls to be made */
	cl_int status;
	cl_int type;
	void(CL_CALLBACK *call)(cl_event, cl_int, void *);
	void *data;
};

/* box is a three-dimensional part of host memory. */
struct box {
	size_t origin[3], region[3], row, slice;
};

/* piece is a part of a box that one packet moves: some rows of a slice, or some slices. The
 * first one is all zero. */
struct piece {
	size_t y, z, rows, slices;
};

/* piece_next finds the next piece of a region of bytes, rows and slices, of at most most bytes
 * unless a row is longer. It returns 0 at the end. */
int piece_next(struct piece *p, const size_t region[3], size_t most);

/* part is a packet of a command. */
struct part {
	cl_event event;
	struct staging staging;
	int staged, read;
	int stamp;           /* of the time of the call, see stamp_post */
	unsigned char *host; /* of a read */
	size_t size;
	int boxed;
	struct box box;
	const void *from;       /* of a copy in the program's own memory */
	struct callback *later; /* call at the end of the packet, which ends the command */
	struct part *next, **at; /* in the list of parts in flight that write memory of the program */
};

/* command is an enqueue call: a packet, or a copy between host memory and a buffer in as
 * many packets as it takes. */
struct command {
	cl_command_queue queue;
	cl_command_type type;
	cl_uint waits;
	const cl_event *list;
	cl_event *markers; /* that stand for a long list of events, and are the list; or NULL */
	cl_event event;
	enum { COMMAND_PACKET, COMMAND_MOVE, COMMAND_MOVE_BOX, COMMAND_MOVE_PIXELS } kind;
	int last;    /* waits for all that is before it in its queue: without a list */
	int barrier; /* what is behind it in its queue waits for it */
	struct packet *packet;
	cl_mem mem;
	int write;
	size_t offset, size;
	void *host;
	struct box in, out;  /* of the buffer, and of host memory */
	struct pixels pixels;
	const void *from;       /* of a copy in the program's own memory */
	struct callback *later; /* that ends the command */
	struct mapping *map; /* to be released when the command has left */
};

struct channel *channel_of(cl_command_queue q);

/* part_end ends a part of a command, and the command with the last one. */
void part_end(cl_event e, int32_t status, const struct times *t);

/* box_gather packs a box of host memory. */
void box_gather(const struct box *b, const unsigned char *host, unsigned char *packed);

/* begin checks the queue and the list of events, and makes the event of a command. end sends
 * the command, or defers it, and gives the event to the program. */
cl_int begin(struct command *c);
cl_int end(struct command *c, int blocking, cl_event *out);

/* end_empty ends a command that has nothing to do, in its order. */
cl_int end_empty(struct command *c, int blocking, cl_event *out);

/* abandon ends a command that is not sent. */
void abandon(struct command *c, cl_int code);

/* command_run sends the packets of a command. */
cl_int command_run(struct command *c);

/* command_defer keeps a command that has to wait for a user event, and takes over its
 * mapping. It returns 0 if the command is to be run now. */
int command_defer(struct command *c, cl_int *code);
int event_deferred(cl_event e);

/* stamp_post asks the device for the time at which a command is kept. stamp_end notes that it runs. stamp_queued
 * returns the time of the call of a command that is complete. */
void stamp_post(struct command *c);
void stamp_end(cl_event e);
cl_ulong stamp_queued(cl_event e);

/* commands_kept reports whether commands or releases are kept. */
int commands_kept(void);

/* callback_later calls a program's function in the thread of callbacks, and then releases
 * the event. */
void callback_later(struct callback *b, cl_event e, cl_int status);

/* post sends the packet of a part, which it takes over. */
struct part *part_new(struct command *c);
cl_int post(struct part *part, const struct packet *p);
void add_waits(struct packet *p, const struct command *c);

/* part_settle waits until no command in flight will write the memory of the program that a
 * part is to send: the program may have enqueued both without a wait. */
void part_settle(const struct part *p);

/* check_range checks that n bytes at an offset lie in a buffer of the queue's context. */
cl_int check_range(cl_command_queue q, cl_mem m, size_t offset, size_t n);

/* move and move_box send the packets of copies. */
cl_int move(struct command *c);
cl_int move_box(struct command *c);
cl_int move_pixels(struct command *c);

/* create sends the packet that makes an object in bytes of the device's memory. kind stands for what
 * the device may refuse beside memory; 0: it has to be asked. create_filled then sends the command
 * that fills the object, if it has host memory, for which later commands wait. */
cl_int create(cl_context c, const struct packet *p, uint64_t bytes, uint64_t kind);
cl_int create_filled(cl_context c, const struct packet *p, uint64_t bytes, uint64_t kind, struct command *fill);

/* create_count counts an object, and reports whether the device is sure to take it. create_release
 * releases a counted object, which counts until no command is in flight or kept. */
int create_count(cl_device_id d, uint64_t bytes, uint64_t kind);
void create_release(cl_context c, cl_uint handle, uint64_t bytes);

/* create_filling returns the cookie of a packet that still fills an object, for which a command of a
 * queue waits, or 0. */
uint64_t create_filling(cl_command_queue q);

/* create_missing returns the status of a command with a packet's status: an object that it names may
 * have been refused. create_refused returns an error if one was since the last call for the context,
 * or if a command of the queue has named one since the last call for it; the queue may be NULL. */
int32_t create_missing(cl_event e, int32_t status);
cl_int create_refused(cl_context c, cl_command_queue q);

/* part_boxed makes the part of a command that moves a box of host memory, packed in staging
 * memory, and starts its packet. It returns NULL, and a code, if it cannot. */
struct part *part_boxed(struct command *c, const struct box *b, uint16_t write, uint16_t read, struct packet *p, cl_int *code);

/* Mappings (map.c). map_run sends the command of a new mapping, which it takes over. */
struct mapping *mapping_new(cl_mem m, cl_map_flags flags, size_t offset, size_t n);
cl_int map_check(cl_mem m, cl_map_flags flags);
cl_int map_run(struct command *c, struct mapping *map, int blocking, cl_event *event);

/* map_buffer and unmap map and unmap a part of a buffer. */
cl_int map_buffer(struct command *c, cl_bool blocking, cl_map_flags flags, cl_event *event);
cl_int unmap(struct command *c, cl_mem m, void *pointer, cl_event *event);

/* fill_buffer and marker are the commands of their names, with a type. */
cl_int fill_buffer(cl_command_queue q, cl_command_type type, cl_mem m, const void *pattern, size_t size, size_t offset, size_t n,
		   cl_uint waits, const cl_event *list, cl_event *event);
cl_int marker(cl_command_queue q, cl_command_type type, cl_uint waits, const cl_event *list, cl_event *event);

/* simple ends a command of one packet without data. */
cl_int simple(struct command *c, struct packet *p, cl_event *event);

/* sweep releases the events that are complete. */
void sweep(void);

#endif
