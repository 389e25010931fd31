/* Shared virtual memory, coarse-grained. The device allocates a region, and the program gets memory
 * at the address at which kernels see it. Its content moves when the program maps and unmaps it,
 * as that of a buffer with CL_MEM_USE_HOST_PTR; a region is such a buffer. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "command.h"

/* PAGE is the unit of regions. TRIES bounds the addresses of the device that are tried: one may be
 * taken in the program. */
enum { PAGE = 4096, TRIES = 32, MAX_POINTERS = 1024 };

/* regions are those of all contexts, by their addresses; under the driver's lock. */
static cl_mem *regions;
static size_t count, room;

int device_shares(cl_device_id d)
{
	return channel_features(d->channel) & FEATURE_SVM && device_number(d, CL_DEVICE_SVM_CAPABILITIES) & CL_DEVICE_SVM_COARSE_GRAIN_BUFFER;
}

/* after returns the number of regions that begin at an address or below it. The caller holds the lock. */
static size_t after(const void *p)
{
	size_t low = 0, high = count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;
		if ((uintptr_t)regions[middle]->host <= (uintptr_t)p)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

cl_mem svm_find(cl_context c, const void *p, size_t *offset)
{
	cl_mem found = NULL;

	pthread_mutex_lock(&dxpu_lock);
	size_t n = after(p);
	if (n > 0) {
		cl_mem m = regions[n - 1];
		*offset = (size_t)((const char *)p - (const char *)m->host);
		found = m->context == c && *offset < m->size ? m : NULL;
	}
	pthread_mutex_unlock(&dxpu_lock);
	return found;
}

static int add(cl_mem m)
{
	pthread_mutex_lock(&dxpu_lock);
	if (count == room) {
		size_t more = room ? 2 * room : 16;
		cl_mem *larger = realloc(regions, more * sizeof *regions);
		if (larger) {
			regions = larger;
			room = more;
		}
	}
	int there = count < room;
	if (there) {
		size_t at = after(m->host);
		memmove(regions + at + 1, regions + at, (count - at) * sizeof *regions);
		regions[at] = m;
		count++;
	}
	pthread_mutex_unlock(&dxpu_lock);
	return there;
}

static cl_mem take(cl_context c, const void *p)
{
	cl_mem found = NULL;

	pthread_mutex_lock(&dxpu_lock);
	size_t n = after(p);
	if (n > 0 && regions[n - 1]->host == p && regions[n - 1]->context == c) {
		found = regions[n - 1];
		memmove(regions + n - 1, regions + n, (count - n) * sizeof *regions);
		count--;
	}
	pthread_mutex_unlock(&dxpu_lock);
	return found;
}

static size_t pages(size_t n) { return (n + PAGE - 1) / PAGE * PAGE; }

void svm_unmap(cl_mem m) { (void)munmap(m->host, pages(m->size)); }

/* reserve takes the addresses of a region in the program. */
static void *reserve(uint64_t address, size_t n)
{
	if (address == 0 || address % PAGE || address > UINTPTR_MAX - n)
		return NULL; /* of a hostile device */
	void *want = (void *)(uintptr_t)address;
	void *p = mmap(want, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
	if (p == want)
		return p;
	if (p != MAP_FAILED)
		(void)munmap(p, n); /* of a kernel that does not know the flag */
	return NULL;
}

/* ask has the device allocate a region. It returns its address, or 0. */
static uint64_t ask(cl_context c, cl_uint handle, cl_mem_flags flags, size_t n)
{
	struct channel *ch = c->device->channel;
	struct packet p;
	struct staging s;
	uint32_t length = 0;
	uint64_t address = 0;

	if (channel_reserve(ch, sizeof address, &s))
		return 0;
	packet_start(&p, PACKET_SVM, 0);
	packet_u32(&p, handle);
	packet_u32(&p, 0);
	packet_u64(&p, flags & ACCESS);
	packet_u64(&p, n);
	if (!channel_call(ch, &p, &s, &length) && length == sizeof address)
		memcpy(&address, s.mirror, sizeof address);
	channel_free(ch, &s);
	return address;
}

/* place finds a region whose addresses are free in the program. The others stay until one is found:
 * the device would give their addresses again. */
static void *place(cl_context c, cl_mem_flags flags, size_t n, cl_uint *handle)
{
	cl_uint taken[TRIES];
	void *p = NULL;
	int tries = 0;

	while (!p && tries < TRIES) {
		*handle = channel_handle(c->device->channel);
		uint64_t address = ask(c, *handle, flags, n);
		if (!address)
			break;
		p = reserve(address, pages(n));
		if (!p)
			taken[tries++] = *handle;
	}
	while (tries > 0)
		dxpu_release(c, taken[--tries]);
	return p;
}

void *CL_API_CALL dxpu_SVMAlloc(cl_context c, cl_svm_mem_flags flags, size_t n, cl_uint alignment)
{
	if (!object_is(c, KIND_CONTEXT) || !device_shares(c->device) || flags & ~(cl_svm_mem_flags)ACCESS || !flags_ok(flags) || n == 0 ||
	    n > device_allocation(c->device) || alignment > PAGE || alignment & (alignment - 1))
		return NULL;
	cl_mem m = object_new(KIND_MEM, sizeof *m);
	if (!m)
		return NULL;
	m->flags = flags | CL_MEM_USE_HOST_PTR;
	m->size = n;
	m->context = c;
	m->region = 1;
	m->host = place(c, flags, n, &m->handle);
	if (!m->host) {
		free(m);
		return NULL;
	}
	m->bytes = n;
	(void)create_count(c->device, n, 0);
	object_retain(c);
	void *p = m->host;
	if (!add(m)) {
		mem_release(m);
		return NULL;
	}
	return p;
}

void CL_API_CALL dxpu_SVMFree(cl_context c, void *p)
{
	cl_mem m = take(c, p);

	if (m)
		mem_release(m);
}

/* freeing is the work of clEnqueueSVMFree, in the thread of callbacks. */
struct freeing {
	void(CL_CALLBACK *call)(cl_command_queue, cl_uint, void **, void *);
	void *data;
	cl_uint count;
	void *pointers[];
};

static void CL_CALLBACK free_all(cl_event e, cl_int status, void *data)
{
	struct freeing *f = data;

	if (status == CL_COMPLETE && f->call)
		f->call(e->queue, f->count, f->pointers, f->data);
	for (cl_uint i = 0; status == CL_COMPLETE && !f->call && i < f->count; i++)
		dxpu_SVMFree(e->context, f->pointers[i]);
	free(f);
	part_end(e, CL_SUCCESS, NULL);
}

cl_int CL_API_CALL dxpu_EnqueueSVMFree(cl_command_queue q, cl_uint n, void *pointers[],
					      void(CL_CALLBACK *call)(cl_command_queue, cl_uint, void **, void *), void *data, cl_uint waits,
					      const cl_event *list, cl_event *event)
{
	struct command c = {.queue = q, .type = CL_COMMAND_SVM_FREE, .waits = waits, .list = list};
	struct packet p;

	if (!object_is(q, KIND_QUEUE))
		return CL_INVALID_COMMAND_QUEUE;
	if (!device_shares(q->context->device))
		return CL_INVALID_OPERATION;
	if ((n == 0) != !pointers || (n == 0 && call))
		return CL_INVALID_VALUE;
	for (cl_uint i = 0; i < n; i++)
		if (!pointers[i])
			return CL_INVALID_VALUE;
	struct freeing *f = malloc(sizeof *f + n * sizeof *pointers);
	struct callback *later = calloc(1, sizeof *later);
	cl_int code = f && later ? begin(&c) : CL_OUT_OF_HOST_MEMORY;
	if (code) {
		free(f);
		free(later);
		return code;
	}
	*f = (struct freeing){.call = call, .data = data, .count = n};
	if (n)
		memcpy(f->pointers, pointers, n * sizeof *pointers);
	later->call = free_all;
	later->data = f;
	c.later = later;
	packet_start(&p, PACKET_MARKER, q->handle);
	return simple(&c, &p, event);
}

/* in_region finds the region in which n bytes lie. A pointer that is in none is of the program's own
 * memory: then the region is NULL. */
static cl_int in_region(cl_command_queue q, const void *p, size_t n, cl_mem *m, size_t *offset)
{
	if (!object_is(q, KIND_QUEUE))
		return CL_INVALID_COMMAND_QUEUE;
	if (!device_shares(q->context->device))
		return CL_INVALID_OPERATION;
	*m = p ? svm_find(q->context, p, offset) : NULL;
	return !p || (*m && n > (*m)->size - *offset) ? CL_INVALID_VALUE : CL_SUCCESS;
}

cl_int CL_API_CALL dxpu_EnqueueSVMMap(cl_command_queue q, cl_bool blocking, cl_map_flags flags, void *p, size_t n, cl_uint waits,
					     const cl_event *list, cl_event *event)
{
	struct command c = {
		.queue = q, .type = CL_COMMAND_SVM_MAP, .waits = waits, .list = list, .kind = COMMAND_MOVE, .size = n,
	};
	cl_int code = in_region(q, p, n, &c.mem, &c.offset);

	return code || !c.mem ? code ? code : CL_INVALID_VALUE : map_buffer(&c, blocking, flags, event);
}

cl_int CL_API_CALL dxpu_EnqueueSVMUnmap(cl_command_queue q, void *p, cl_uint waits, const cl_event *list, cl_event *event)
{
	struct command c = {.queue = q, .type = CL_COMMAND_SVM_UNMAP, .waits = waits, .list = list, .kind = COMMAND_MOVE};
	cl_mem m;
	size_t offset;
	cl_int code = in_region(q, p, 1, &m, &offset);

	return code || !m ? code ? code : CL_INVALID_VALUE : unmap(&c, m, p, event);
}

/* copy_region sends a copy between two regions. */
static cl_int copy_region(struct command *c, cl_mem to, cl_mem from, size_t to_offset, size_t from_offset, int blocking, cl_event *event)
{
	struct packet p;

	packet_start(&p, PACKET_COPY, c->queue->handle);
	packet_u32(&p, from->handle);
	packet_u32(&p, to->handle);
	packet_u64(&p, from_offset);
	packet_u64(&p, to_offset);
	packet_u64(&p, c->size);
	c->kind = COMMAND_PACKET;
	c->packet = &p;
	return end(c, blocking, event);
}

cl_int CL_API_CALL dxpu_EnqueueSVMMemcpy(cl_command_queue q, cl_bool blocking, void *to, const void *from, size_t n, cl_uint waits,
						const cl_event *list, cl_event *event)
{
	struct command c = {.queue = q, .type = CL_COMMAND_SVM_MEMCPY, .waits = waits, .list = list, .size = n};
	cl_mem target = NULL, source = NULL;
	size_t target_offset = 0, source_offset = 0;
	struct packet p;
	cl_int code = in_region(q, to, n, &target, &target_offset);

	if (!code)
		code = in_region(q, from, n, &source, &source_offset);
	if (!code && (uintptr_t)to < (uintptr_t)from + n && (uintptr_t)from < (uintptr_t)to + n)
		code = CL_MEM_COPY_OVERLAP;
	if (!code)
		code = begin(&c);
	if (code)
		return code;
	if (n == 0)
		return end_empty(&c, (int)blocking, event);
	if (target && source)
		return copy_region(&c, target, source, target_offset, source_offset, (int)blocking, event);
	if (!target && !source) { /* once the marker is complete */
		packet_start(&p, PACKET_MARKER, q->handle);
		c.packet = &p;
		c.host = to;
		c.from = from;
		return end(&c, (int)blocking, event);
	}
	c.kind = COMMAND_MOVE;
	c.write = target != NULL;
	c.mem = target ? target : source;
	c.offset = target ? target_offset : source_offset;
	c.host = target ? (void *)(uintptr_t)from : to;
	return end(&c, (int)blocking, event);
}

cl_int CL_API_CALL dxpu_EnqueueSVMMemFill(cl_command_queue q, void *to, const void *pattern, size_t size, size_t n, cl_uint waits,
						 const cl_event *list, cl_event *event)
{
	cl_mem m;
	size_t offset;
	cl_int code = in_region(q, to, n, &m, &offset);

	if (code || !m)
		return code ? code : CL_INVALID_VALUE;
	return fill_buffer(q, CL_COMMAND_SVM_MEMFILL, m, pattern, size, offset, n, waits, list, event);
}

cl_int CL_API_CALL dxpu_EnqueueSVMMigrateMem(cl_command_queue q, cl_uint n, const void **pointers, const size_t *sizes,
						    cl_mem_migration_flags flags, cl_uint waits, const cl_event *list, cl_event *event)
{
	cl_mem m;
	size_t offset;

	if (!object_is(q, KIND_QUEUE))
		return CL_INVALID_COMMAND_QUEUE;
	if (!device_shares(q->context->device))
		return CL_INVALID_OPERATION;
	if (n == 0 || !pointers || flags & ~(cl_mem_migration_flags)(CL_MIGRATE_MEM_OBJECT_HOST | CL_MIGRATE_MEM_OBJECT_CONTENT_UNDEFINED))
		return CL_INVALID_VALUE;
	for (cl_uint i = 0; i < n; i++)
		if (in_region(q, pointers[i], sizes ? sizes[i] : 0, &m, &offset) || !m)
			return CL_INVALID_VALUE;
	return marker(q, CL_COMMAND_SVM_MIGRATE_MEM, waits, list, event);
}

/* set_pointers notes which regions a kernel uses beside its arguments. */
static cl_int set_pointers(cl_kernel k, size_t size, const void *value)
{
	void *const *pointers = value;
	size_t n = size / sizeof *pointers, offset;

	if (!value != !size || size % sizeof *pointers || n > MAX_POINTERS)
		return CL_INVALID_VALUE;
	cl_uint *handles = calloc(n + 1, sizeof *handles); /* an empty list takes back the last one */
	if (!handles)
		return CL_OUT_OF_HOST_MEMORY;
	for (size_t i = 0; i < n; i++) {
		cl_mem m = svm_find(k->program->context, pointers[i], &offset);
		if (!m) {
			free(handles);
			return CL_INVALID_VALUE;
		}
		handles[i] = m->handle;
	}
	pthread_mutex_lock(&dxpu_lock);
	free(k->shared);
	k->shared = handles;
	k->shared_count = (cl_uint)n;
	pthread_mutex_unlock(&dxpu_lock);
	return CL_SUCCESS;
}

cl_int CL_API_CALL dxpu_SetKernelExecInfo(cl_kernel k, cl_kernel_exec_info param, size_t size, const void *value)
{
	cl_bool fine;

	if (!object_is(k, KIND_KERNEL))
		return CL_INVALID_KERNEL;
	if (!device_shares(k->program->context->device))
		return CL_INVALID_OPERATION;
	switch (param) {
	case CL_KERNEL_EXEC_INFO_SVM_PTRS:
		return set_pointers(k, size, value);
	case CL_KERNEL_EXEC_INFO_SVM_FINE_GRAIN_SYSTEM:
		if (!value || size != sizeof fine)
			return CL_INVALID_VALUE;
		memcpy(&fine, value, sizeof fine);
		return fine ? CL_INVALID_OPERATION : CL_SUCCESS;
	}
	return CL_INVALID_VALUE;
}
