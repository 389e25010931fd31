#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calls.h"

/* The devices are those of DXPU_SOCKETS: paths of vfio-user sockets, or of directories of
 * them, with colons between them. Without the variable, they are the functions of this machine that are bound to
 * vfio-pci and that this process may use. */
enum { MAX_DEVICES = 64, RESULT = 256 << 10 };

#define KNOWN_TYPES                                                                                                                  \
	(CL_DEVICE_TYPE_DEFAULT | CL_DEVICE_TYPE_CPU | CL_DEVICE_TYPE_GPU | CL_DEVICE_TYPE_ACCELERATOR | CL_DEVICE_TYPE_CUSTOM)

#define FUNCTIONS "/sys/bus/pci/drivers/vfio-pci"

/* Each device is a platform of its own: the devices of a platform may be in one context, whose
 * buffers all of them reach, and GPUs in different machines have no such memory. */
static struct _cl_platform_id platforms[MAX_DEVICES];
static cl_device_id devices[MAX_DEVICES];
static cl_uint device_count;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static volatile int forked;

/* The connections belong to the process that made them. The driver's lock is free in the
 * child, because the thread that forks holds it. */
static void before_fork(void) { pthread_mutex_lock(&dxpu_lock); }
static void in_parent(void) { pthread_mutex_unlock(&dxpu_lock); }

static void in_child(void)
{
	forked = 1;
	for (cl_uint i = 0; i < device_count; i++)
		channel_after_fork(devices[i]->channel);
	pthread_mutex_unlock(&dxpu_lock);
}

static cl_device_id device_open(const char *path)
{
	struct packet p;
	struct staging s;
	uint32_t n;
	cl_device_id d = object_new(KIND_DEVICE, sizeof *d);

	if (!d)
		return NULL;
	d->channel = channel_open(path);
	if (!d->channel) {
		/* ENODEV is a function without an engine, or one of which pci.c has told; EBUSY is one
		 * that another process has. */
		if (strchr(path, '/') || (errno != ENODEV && errno != EBUSY))
			fprintf(stderr, "dxpu: %s: %s\n", path, errno == EBUSY ? "another program has this GPU" : strerror(errno));
		free(d);
		return NULL;
	}
	packet_start(&p, PACKET_INFO, 0);
	if (!channel_reserve(d->channel, RESULT, &s)) {
		int32_t status = channel_call(d->channel, &p, &s, &n);
		int bad = status || properties_take(&d->properties, s.mirror, n);
		channel_free(d->channel, &s);
		if (!bad)
			return d;
	}
	channel_close(d->channel);
	free(d);
	return NULL;
}

static void add_device(const char *path)
{
	cl_device_id d = device_count < MAX_DEVICES ? device_open(path) : NULL;

	if (!d)
		return;
	d->platform = &platforms[device_count];
	d->platform->object = (struct object){&dxpu_dispatch, KIND_PLATFORM, 1, 1};
	devices[device_count++] = d;
}

/* is_gpu reports whether a function is a GPU of the pool. */
static int is_gpu(const struct dirent *entry)
{
	static const char *const files[] = {"vendor", "device"};
	unsigned id[2] = {0};

	for (int i = 0; i < 2; i++) {
		char path[sizeof FUNCTIONS + 32];
		if (strlen(entry->d_name) > 16)
			return 0;
		snprintf(path, sizeof path, FUNCTIONS "/%.16s/%s", entry->d_name, files[i]);
		FILE *f = fopen(path, "re");
		int n = f ? fscanf(f, "%x", &id[i]) : 0;
		if (f)
			fclose(f);
		if (n != 1)
			return 0;
	}
	return id[0] == 0x1234 && id[1] == 0xd9b0;
}

static int is_socket(const struct dirent *entry)
{
	size_t n = strlen(entry->d_name);

	return n > 5 && strcmp(entry->d_name + n - 5, ".sock") == 0;
}

/* add_sockets adds the device of a socket, or those of a directory, slot2 before slot10. */
static void add_sockets(const char *path)
{
	struct dirent **list;
	int n = scandir(path, &list, is_socket, versionsort);

	if (n < 0) {
		add_device(path);
		return;
	}
	for (int i = 0; i < n; i++) {
		char socket[256]; /* the address of a socket has room for 107 bytes */
		int length = snprintf(socket, sizeof socket, "%s/%s", path, list[i]->d_name);
		if (length < (int)sizeof socket)
			add_device(socket);
		free(list[i]);
	}
	free(list);
}

static void connect_functions(void)
{
	struct dirent **list;
	int n = scandir(FUNCTIONS, &list, is_gpu, alphasort);

	for (int i = 0; i < n; i++) {
		add_device(list[i]->d_name);
		free(list[i]);
	}
	if (n >= 0)
		free(list);
}

static void connect_all(void)
{
	const char *sockets = getenv("DXPU_SOCKETS");
	char *copy = sockets ? strdup(sockets) : NULL, *rest = NULL;

	for (char *path = copy ? strtok_r(copy, ":", &rest) : NULL; path; path = strtok_r(NULL, ":", &rest))
		add_sockets(path);
	free(copy);
	if (!sockets)
		connect_functions();
	pthread_atfork(before_fork, in_parent, in_child);
}

cl_uint device_list(const cl_device_id **list)
{
	pthread_once(&once, connect_all);
	*list = devices;
	return forked ? 0 : device_count;
}

static cl_int get_platforms(cl_uint room, cl_platform_id *out, cl_uint *n)
{
	const cl_device_id *list;
	cl_uint count;

	if ((room == 0 && out) || (!out && !n))
		return CL_INVALID_VALUE;
	count = device_list(&list);
	if (count == 0)
		return CL_PLATFORM_NOT_FOUND_KHR;
	for (cl_uint i = 0; out && i < count && i < room; i++)
		out[i] = list[i]->platform;
	if (n)
		*n = count;
	return CL_SUCCESS;
}

cl_int CL_API_CALL dxpu_GetPlatformIDs(cl_uint room, cl_platform_id *out, cl_uint *n) { return get_platforms(room, out, n); }

/* platform_timer returns the resolution of the host timer of a platform, of none: of the first one. */
static cl_ulong platform_timer(cl_platform_id p)
{
	const cl_device_id *list;
	cl_uint count = device_list(&list);

	for (cl_uint i = 0; i < count; i++)
		if (!p || list[i]->platform == p)
			return timer_resolution(list[i]);
	return 0;
}

cl_int CL_API_CALL dxpu_GetPlatformInfo(cl_platform_id p, cl_platform_info param, size_t room, void *out, size_t *size)
{
	static const char name[] = "DxPU", vendor[] = "DxPU project", version[] = "OpenCL 3.0 DxPU", profile[] = "FULL_PROFILE",
			  extensions[] = "cl_khr_icd", suffix[] = "DXPU";
	static const cl_name_version versions[] = {{CL_MAKE_VERSION(1, 0, 0), "cl_khr_icd"}};

	if (p && !object_is(p, KIND_PLATFORM))
		return CL_INVALID_PLATFORM;
	switch (param) {
	case CL_PLATFORM_NAME:
		return give(room, out, size, name, sizeof name);
	case CL_PLATFORM_VENDOR:
		return give(room, out, size, vendor, sizeof vendor);
	case CL_PLATFORM_VERSION:
		return give(room, out, size, version, sizeof version);
	case CL_PLATFORM_PROFILE:
		return give(room, out, size, profile, sizeof profile);
	case CL_PLATFORM_EXTENSIONS:
		return give(room, out, size, extensions, sizeof extensions);
	case CL_PLATFORM_ICD_SUFFIX_KHR:
		return give(room, out, size, suffix, sizeof suffix);
	case CL_PLATFORM_EXTENSIONS_WITH_VERSION:
		return give(room, out, size, versions, sizeof versions);
	case CL_PLATFORM_NUMERIC_VERSION:
		return GIVE(cl_version, CL_MAKE_VERSION(3, 0, 0));
	case CL_PLATFORM_HOST_TIMER_RESOLUTION:
		return GIVE(cl_ulong, platform_timer(p));
	}
	return CL_INVALID_VALUE;
}

static cl_device_type type_of(cl_device_id d)
{
	struct property p;
	cl_device_type type = 0;

	if (properties_find(&d->properties, CL_DEVICE_TYPE, NO_INDEX, &p) && p.size == sizeof type)
		memcpy(&type, p.value, sizeof type);
	return type;
}

uint64_t device_number(cl_device_id d, uint32_t param)
{
	struct property p;
	uint64_t v = 0;

	if (properties_find(&d->properties, param, NO_INDEX, &p) && p.size <= sizeof v)
		memcpy(&v, p.value, p.size);
	return v;
}

uint64_t device_allocation(cl_device_id d)
{
	uint64_t most = device_number(d, CL_DEVICE_MAX_MEM_ALLOC_SIZE), memory = channel_memory(d->channel);

	return most < memory ? most : memory;
}

cl_int CL_API_CALL dxpu_GetDeviceIDs(cl_platform_id p, cl_device_type type, cl_uint room, cl_device_id *out, cl_uint *n)
{
	const cl_device_id *list;
	cl_uint count = device_list(&list);
	cl_device_id d = count ? list[0] : NULL; /* of no platform: the first one */

	if (p && !object_is(p, KIND_PLATFORM))
		return CL_INVALID_PLATFORM;
	if ((room == 0 && out) || (!out && !n))
		return CL_INVALID_VALUE;
	if (type == 0 || (type != CL_DEVICE_TYPE_ALL && type & ~(cl_device_type)KNOWN_TYPES))
		return CL_INVALID_DEVICE_TYPE;
	for (cl_uint i = 0; p && i < count; i++)
		if (list[i]->platform == p)
			d = list[i];
	if (!d || (type != CL_DEVICE_TYPE_ALL && !(type & (type_of(d) | CL_DEVICE_TYPE_DEFAULT)))) {
		if (n)
			*n = 0;
		return CL_DEVICE_NOT_FOUND;
	}
	if (out)
		out[0] = d;
	if (n)
		*n = 1;
	return CL_SUCCESS;
}

/* at_most returns a size of the device, bounded by its memory. */
static cl_int at_most(const struct property *p, uint64_t bound, size_t room, void *out, size_t *size)
{
	cl_ulong v = 0;

	if (p->size == sizeof v)
		memcpy(&v, p->value, sizeof v);
	return give(room, out, size, v < bound ? &v : &bound, sizeof v);
}

/* no_images answers for a device whose channel has no packets for images. */
static int no_images(cl_device_info param, size_t room, void *out, size_t *size)
{
	switch (param) {
	case CL_DEVICE_IMAGE_SUPPORT:
	case CL_DEVICE_MAX_READ_IMAGE_ARGS:
	case CL_DEVICE_MAX_WRITE_IMAGE_ARGS:
	case CL_DEVICE_MAX_READ_WRITE_IMAGE_ARGS:
	case CL_DEVICE_MAX_SAMPLERS:
	case CL_DEVICE_IMAGE_PITCH_ALIGNMENT:
	case CL_DEVICE_IMAGE_BASE_ADDRESS_ALIGNMENT:
		return GIVE(cl_uint, 0) == CL_SUCCESS;
	case CL_DEVICE_IMAGE2D_MAX_WIDTH:
	case CL_DEVICE_IMAGE2D_MAX_HEIGHT:
	case CL_DEVICE_IMAGE3D_MAX_WIDTH:
	case CL_DEVICE_IMAGE3D_MAX_HEIGHT:
	case CL_DEVICE_IMAGE3D_MAX_DEPTH:
	case CL_DEVICE_IMAGE_MAX_BUFFER_SIZE:
	case CL_DEVICE_IMAGE_MAX_ARRAY_SIZE:
		return GIVE(size_t, 0) == CL_SUCCESS;
	}
	return 0;
}

/* no_groups answers for a device without sub-groups. */
static int no_groups(cl_device_info param, size_t room, void *out, size_t *size, cl_int *code)
{
	switch (param) {
	case CL_DEVICE_MAX_NUM_SUB_GROUPS:
	case CL_DEVICE_SUB_GROUP_INDEPENDENT_FORWARD_PROGRESS: /* a boolean has the same size */
		*code = GIVE(cl_uint, 0);
		return 1;
	case CL_DEVICE_SUB_GROUP_SIZES_INTEL:
		*code = CL_INVALID_VALUE;
		return 1;
	}
	return 0;
}

cl_int CL_API_CALL dxpu_GetDeviceInfo(cl_device_id d, cl_device_info param, size_t room, void *out, size_t *size)
{
	struct property p;
	cl_int code;

	if (!object_is(d, KIND_DEVICE))
		return CL_INVALID_DEVICE;
	/* What the driver decides. */
	switch (param) {
	case CL_DEVICE_PLATFORM:
		return GIVE(cl_platform_id, d->platform);
	case CL_DEVICE_PARENT_DEVICE:
		return GIVE(cl_device_id, NULL);
	case CL_DEVICE_REFERENCE_COUNT:
		return GIVE(cl_uint, 1);
	case CL_DEVICE_AVAILABLE:
		return GIVE(cl_bool, !channel_failed(d->channel));
	case CL_DEVICE_PIPE_SUPPORT:
	case CL_DEVICE_HOST_UNIFIED_MEMORY:
		return GIVE(cl_bool, CL_FALSE);
	case CL_DEVICE_EXECUTION_CAPABILITIES:
		return GIVE(cl_device_exec_capabilities, CL_EXEC_KERNEL);
	case CL_DEVICE_MAX_PIPE_ARGS:
	case CL_DEVICE_PIPE_MAX_ACTIVE_RESERVATIONS:
	case CL_DEVICE_PIPE_MAX_PACKET_SIZE:
	case CL_DEVICE_PARTITION_MAX_SUB_DEVICES:
	case CL_DEVICE_MAX_ON_DEVICE_QUEUES:
	case CL_DEVICE_MAX_ON_DEVICE_EVENTS:
	case CL_DEVICE_QUEUE_ON_DEVICE_MAX_SIZE:
	case CL_DEVICE_QUEUE_ON_DEVICE_PREFERRED_SIZE:
		return GIVE(cl_uint, 0);
	case CL_DEVICE_SVM_CAPABILITIES:
		return GIVE(cl_device_svm_capabilities, device_shares(d) ? CL_DEVICE_SVM_COARSE_GRAIN_BUFFER : 0);
	case CL_DEVICE_DEVICE_ENQUEUE_CAPABILITIES:
	case CL_DEVICE_QUEUE_ON_DEVICE_PROPERTIES:
	case CL_DEVICE_PARTITION_AFFINITY_DOMAIN:
		return GIVE(cl_bitfield, 0);
	case CL_DEVICE_QUEUE_ON_HOST_PROPERTIES:
		return GIVE(cl_command_queue_properties, CL_QUEUE_PROFILING_ENABLE | CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE);
	case CL_DEVICE_PARTITION_PROPERTIES:
	case CL_DEVICE_PARTITION_TYPE:
		return GIVE(cl_device_partition_property, 0);
	case CL_DEVICE_BUILT_IN_KERNELS:
		return give(room, out, size, "", 1);
	case CL_DEVICE_BUILT_IN_KERNELS_WITH_VERSION:
		return give(room, out, size, "", 0);
	}
	if (!(channel_features(d->channel) & FEATURE_IMAGES) && no_images(param, room, out, size))
		return CL_SUCCESS;
	if (!device_groups(d) && no_groups(param, room, out, size, &code))
		return code;
	/* The properties also have those of the platform behind. */
	if (param < CL_DEVICE_TYPE || !properties_find(&d->properties, param, NO_INDEX, &p))
		return CL_INVALID_VALUE;
	switch (param) {
	case CL_DEVICE_GLOBAL_MEM_SIZE:
	case CL_DEVICE_MAX_MEM_ALLOC_SIZE:
		return at_most(&p, channel_memory(d->channel), room, out, size);
	case CL_DEVICE_MAX_PARAMETER_SIZE:
		return at_most(&p, MAX_PARAMETERS, room, out, size);
	case CL_DEVICE_EXTENSIONS:
		return extensions_give(d, &p, room, out, size);
	case CL_DEVICE_EXTENSIONS_WITH_VERSION:
		return extension_versions_give(d, &p, room, out, size);
	case CL_DEVICE_OPENCL_C_FEATURES:
		return features_give(d, &p, room, out, size);
	}
	return give(room, out, size, p.value, (size_t)p.size);
}

/* Root devices are not counted. */
cl_int CL_API_CALL dxpu_RetainDevice(cl_device_id d) { return object_is(d, KIND_DEVICE) ? CL_SUCCESS : CL_INVALID_DEVICE; }
cl_int CL_API_CALL dxpu_ReleaseDevice(cl_device_id d) { return object_is(d, KIND_DEVICE) ? CL_SUCCESS : CL_INVALID_DEVICE; }
