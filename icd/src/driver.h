/* Objects of the OpenCL API. */
#ifndef DXPU_DRIVER_H
#define DXPU_DRIVER_H

#define CL_TARGET_OPENCL_VERSION 300
#define CL_USE_DEPRECATED_OPENCL_1_0_APIS
#define CL_USE_DEPRECATED_OPENCL_1_1_APIS
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#define CL_USE_DEPRECATED_OPENCL_2_0_APIS
#define CL_USE_DEPRECATED_OPENCL_2_1_APIS
#define CL_USE_DEPRECATED_OPENCL_2_2_APIS
#include <CL/cl.h>
#include <CL/cl_ext.h>
#include <CL/cl_icd.h>
#include <pthread.h>

#include "channel.h"

extern struct _cl_icd_dispatch dxpu_dispatch;

/* kind tells the objects apart, so that a handle of another kind is refused. */
enum kind { KIND_PLATFORM = 0x4450, KIND_DEVICE, KIND_CONTEXT, KIND_QUEUE, KIND_MEM, KIND_PROGRAM, KIND_KERNEL, KIND_EVENT, KIND_SAMPLER };

/* object begins every object: the ICD loader reads the dispatch table. */
struct object {
	struct _cl_icd_dispatch *dispatch;
	enum kind kind;
	int references; /* of the program, and of the driver itself */
	int held;       /* of the program alone: what its queries tell */
};

/* property is a value that the engine returned. */
struct property {
	uint32_t param, index;
	uint64_t size;
	const void *value;
};

#define NO_INDEX 0xffffffffu

/* properties are results of packets, as they arrived. */
struct properties {
	unsigned char *bytes;
	size_t size;
};

struct _cl_platform_id {
	struct object object;
};

struct _cl_device_id {
	struct object object;
	cl_platform_id platform;
	struct channel *channel;
	struct properties properties;
	/* Of create.c, under the driver's lock: */
	uint64_t bytes, released; /* of objects, and of those that commands may still use */
	uint64_t kinds[256];      /* that the device has taken */
	uint64_t objects, gone;   /* that are there, and that are released and may still be in the device */
	unsigned refusals; /* of posted objects; atomic */
};

struct _cl_command_queue {
	struct object object;
	cl_context context;
	cl_command_queue_properties properties;
	cl_queue_properties array[5]; /* as the program gave them */
	size_t array_size;
	cl_uint handle;
	volatile int32_t pending; /* commands that are not complete */
	int missing; /* a command has named an object that was refused, and the program does not know; atomic */
};

struct _cl_context {
	struct object object;
	cl_device_id device;
	cl_context_properties *properties;
	size_t property_count;
	struct _cl_command_queue own; /* for content that objects are made with */
	struct destructor *destructors;
	int prints; /* a kernel that may call printf was enqueued; atomic */
	/* Of create.c, atomic: */
	uint64_t filled;   /* cookie of the last packet in own */
	unsigned refusals; /* those of the device that the program knows of */
};

/* pixels is a box of an image and its place in host memory: the strides are the bytes from one
 * row, and from one slice, to the next. A layer of a 1D array is a row. */
struct pixels {
	size_t origin[3], region[3], stride[2];
};

/* mapping is a part of a memory object that the program sees. */
struct mapping {
	struct mapping *next;
	void *pointer;
	size_t offset, size;  /* of a buffer */
	struct pixels pixels; /* of an image */
	cl_map_flags flags;
	int owned; /* pointer was allocated for it */
	int references; /* that of the buffer, and those of commands; under the driver's lock */
};

/* image describes a memory object that is an image. */
struct image {
	cl_image_format format;
	cl_image_desc desc;
	size_t pixel;     /* bytes */
	size_t extent[3]; /* pixels; the layers of an array come last */
	size_t stride[2]; /* of host memory */
};

struct _cl_mem {
	struct object object;
	cl_context context;
	cl_mem parent;
	cl_mem_flags flags;
	size_t size, origin;
	uint64_t bytes;      /* of the device's memory, that are not those of another object */
	struct image *image; /* NULL: a buffer */
	void *host; /* of CL_MEM_USE_HOST_PTR */
	cl_mem shared;   /* the region of shared virtual memory in which it lies, or NULL */
	int region;      /* it is one */
	int listed; /* made with a list of properties, which is empty */
	cl_uint handle, maps;
	struct mapping *mappings; /* under the driver's lock */
	struct destructor *destructors;
};

/* mem_root returns the buffer that a sub-buffer is a part of, or a buffer itself. */
static inline cl_mem mem_root(cl_mem m) { return m->parent ? m->parent : m; }

/* destructor is a callback at the end of an object. */
struct destructor {
	struct destructor *next;
	void(CL_CALLBACK *call)(void *object, void *data);
	void *data;
};

struct _cl_sampler {
	struct object object;
	cl_context context;
	cl_uint handle;
	cl_bool normalized;
	cl_addressing_mode addressing;
	cl_filter_mode filter;
	cl_sampler_properties properties[7];
	size_t property_count;
};

struct _cl_program {
	struct object object;
	cl_context context;
	cl_uint handle;
	char *source;
	unsigned char *given; /* the binary or IL that the program was made of, or NULL */
	size_t given_size;
	cl_uint given_kind;
	char *options;
	cl_build_status status;
	cl_program_binary_type type; /* once the status is CL_BUILD_SUCCESS */
	int prints;                  /* kernels may call printf */
	int kernels; /* that exist */
	/* Of cache.c: */
	char *key, *log; /* NULL: none; log is that of the first build */
	size_t key_size;
	int loaded; /* handle is a binary's */
};

struct argument {
	int set, kind; /* ARGUMENT_VALUE and others */
	size_t size;
	void *value;
	cl_uint handle; /* of a buffer, an image or a sampler */
	size_t offset;  /* in shared virtual memory */
};

/* MAX_PARAMETERS bounds the arguments of a kernel in bytes: a packet takes 1024 of 8 bytes. */
enum { MAX_PARAMETERS = 8 << 10 };

/* Kinds of arguments. */
enum { ARGUMENT_VALUE = 0, ARGUMENT_BUFFER = 1, ARGUMENT_LOCAL = 2, ARGUMENT_IMAGE = 3, ARGUMENT_SAMPLER = 4, ARGUMENT_SHARED = 5 };

struct _cl_kernel {
	struct object object;
	cl_program program;
	char *name;
	cl_uint handle, count;
	struct argument *arguments;
	cl_uint *shared, shared_count; /* regions that it uses beside the arguments */
	struct properties properties;
	size_t accepted[3]; /* size of work-groups that the device has taken against the properties */
};

struct _cl_event {
	struct object object;
	cl_context context;
	cl_command_queue queue; /* NULL: a user event */
	cl_command_type type;
	cl_mem mem;          /* that the command uses after the call, or NULL */
	struct mapping *map; /* that the command fills, or NULL */
	int deferred;        /* the command waits for a user event; under the lock of defer.c */
	volatile int32_t status; /* CL_QUEUED, or CL_COMPLETE, or an error */
	volatile int32_t parts;  /* packets that are not complete */
	int32_t error;
	uint64_t cookie; /* of the last packet */
	cl_ulong queued;      /* device time at the call of a command that was kept (defer.c), 0 without a timer */
	cl_ulong kept;        /* how long a command was kept, in ns; until it runs, since when */
	struct times times;
	struct callback *callbacks; /* under the driver's lock */
};

/* The driver's lock, for references and lists. */
extern pthread_mutex_t dxpu_lock;

/* object_new allocates an object with one reference, that of the program. */
void *object_new(enum kind kind, size_t size);
int object_is(const void *o, enum kind kind);
void object_retain(void *o);
/* object_hold adds a reference of the program, and object_held returns their number, which other threads may
 * change. object_let takes one back, and returns how many are left, or -1 if there was none; its caller then
 * drops the reference. */
void object_hold(void *o);
cl_uint object_held(void *o);
int object_let(void *o);
/* object_drop returns 1 when the last reference is gone. */
int object_drop(void *o);

/* give returns a value to a query. */
cl_int give(size_t room, void *out, size_t *size, const void *value, size_t n);
#define GIVE(type, v) give(room, out, size, &(type){v}, sizeof(type))

/* properties_find finds a property, or returns 0. */
int properties_find(const struct properties *p, uint32_t param, uint32_t index, struct property *out);
/* properties_take copies a result. */
int properties_take(struct properties *p, const void *bytes, size_t n);

/* device_number returns a property that is a number, or 0. */
uint64_t device_number(cl_device_id d, uint32_t param);
/* device_allocation returns the size of the largest buffer. */
uint64_t device_allocation(cl_device_id d);

/* device_groups reports whether a device has sub-groups, for which there is a packet. */
int device_groups(cl_device_id d);
/* These give what the device offers of a list of the platform behind, as queries do. */
cl_int extensions_give(cl_device_id d, const struct property *p, size_t room, void *out, size_t *size);
cl_int extension_versions_give(cl_device_id d, const struct property *p, size_t room, void *out, size_t *size);
cl_int features_give(cl_device_id d, const struct property *p, size_t room, void *out, size_t *size);

/* device_shares reports whether a device has shared virtual memory. */
int device_shares(cl_device_id d);

/* svm_find returns the region of a context in which an address lies, or NULL. svm_unmap frees the
 * program's part of a region. */
cl_mem svm_find(cl_context c, const void *p, size_t *offset);
void svm_unmap(cl_mem m);

/* timer_resolution returns the resolution of the host timer in nanoseconds, 0 if the device has no timer. */
cl_ulong timer_resolution(cl_device_id d);

/* device_list returns the devices, connected. */
cl_uint device_list(const cl_device_id **list);

void context_release(cl_context c);
void queue_release(cl_command_queue q);
void mem_release(cl_mem m);
void program_release(cl_program p);
void event_release(cl_event e);
void mapping_release(struct mapping *m);

/* mapping_count returns the number of mappings of a memory object. */
cl_uint mapping_count(cl_mem m);

/* destructors_add adds a callback; destructors_run runs them, the last one first. */
cl_int destructors_add(struct destructor **list, void *call, void *data);
void destructors_run(struct destructor **list, void *object);

/* release_defer keeps the release of an object behind the commands that are kept. It returns 0
 * if none is. */
int release_defer(struct channel *ch, cl_uint handle);

/* release_post sends the release of an object. */
void release_post(struct channel *ch, cl_uint handle);

/* dxpu_release releases an object of the engine, after the commands before it. */
void dxpu_release(cl_context c, cl_uint handle);

/* Flags of which a memory object has one at most. */
#define ACCESS (CL_MEM_READ_WRITE | CL_MEM_WRITE_ONLY | CL_MEM_READ_ONLY)
#define HOST_ACCESS (CL_MEM_HOST_WRITE_ONLY | CL_MEM_HOST_READ_ONLY | CL_MEM_HOST_NO_ACCESS)
#define HOST_POINTER (CL_MEM_USE_HOST_PTR | CL_MEM_COPY_HOST_PTR)
int flags_ok(cl_mem_flags flags);

/* flags_within reports whether an object in the memory of another one may have these flags: neither
 * kernels nor the host reach it in a way in which they may not reach the whole, and the memory is there. */
int flags_within(cl_mem_flags whole, cl_mem_flags part);

/* output_show writes what kernels have printed to the standard output, after a wait. */
void output_show(cl_context c);

/* Command queues. */
cl_int wait_list(cl_context c, cl_uint n, const cl_event *list);
cl_event event_new(cl_context c, cl_command_queue q, cl_command_type type);

/* no_program returns no program, and a code. */
cl_program no_program(cl_int code, cl_int *error);

/* Kinds of texts of PACKET_PROGRAM. */
enum { PROGRAM_SOURCE = 0, PROGRAM_IL = 1, PROGRAM_BINARY = 2 };

/* inputs are programs that a packet names, as headers by their names in #include. */
struct inputs {
	cl_uint count;
	const cl_program *programs;
	const char **names;
	const cl_uint *handles; /* instead of those of the programs, where they are not 0; or NULL */
};

/* program_send sends a packet that names a text in VRAM, behind two words, and other programs. */
cl_int program_send(cl_context c, uint16_t op, cl_uint a, cl_uint b, const void *text, size_t n, const struct inputs *in);

/* cache_load builds a program of the cache, with the program's options and a source, and returns 1;
 * or 0. cache_keep keeps a program that is released, and cache_forget frees what belongs to it. */
int cache_load(cl_program g, const char *source);
void cache_keep(cl_program g);
void cache_forget(cl_program g);

/* Selectors of program_text. */
enum { INFO_LOG = 0, INFO_BINARY = 1, INFO_KERNELS = 2, INFO_TYPE = 3 };

/* program_executable reports whether kernels can be made of a program. */
int program_executable(cl_program g);

/* program_text returns a log, a binary or names, which the caller frees. */
cl_int program_text(cl_program g, cl_uint what, void **text, size_t *n);

/* include_files returns a source with the text of the files that it includes from the working
 * directory and the directories of the options, or NULL if it includes none of them. Embedded headers
 * stay the compiler's. The caller frees it. */
char *include_files(const char *source, const char *options, const struct inputs *embedded);

/* count_names counts names with semicolons between them. */
size_t count_names(const char *names);

#define DXPU_EXPORT __attribute__((visibility("default")))

#endif
