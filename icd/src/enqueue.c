#include <stdlib.h>
#include <string.h>

#include "command.h"

cl_int check_range(cl_command_queue q, cl_mem m, size_t offset, size_t n)
{
	if (!object_is(q, KIND_QUEUE))
		return CL_INVALID_COMMAND_QUEUE;
	if (!object_is(m, KIND_MEM))
		return CL_INVALID_MEM_OBJECT;
	if (m->context != q->context)
		return CL_INVALID_CONTEXT;
	return n == 0 || n > m->size || offset > m->size - n ? CL_INVALID_VALUE : CL_SUCCESS;
}

/* move copies between host memory and a buffer, in parts as large as staging memory
 * takes well. */
static cl_int move(struct command *c, cl_uint queue, cl_mem m, int write, size_t offset, size_t n, void *host)
{
	struct channel *ch = c->event->context->device->channel;
	size_t most = (size_t)channel_block(ch) / 4, done = 0;
	cl_int code = CL_SUCCESS;

	while (done < n && !code) {
		struct packet p;
		struct part *part = part_new(c);
		if (!part)
			return CL_OUT_OF_HOST_MEMORY;
		part->size = n - done < most ? n - done : most;
		part->read = !write;
		part->host = (unsigned char *)host + done;
		if (channel_reserve(ch, part->size, &part->staging)) {
			free(part);
			return CL_DEVICE_NOT_AVAILABLE;
		}
		part->staged = 1;
		if (write)
			(void)channel_upload(ch, &part->staging, part->host, part->size);
		packet_start(&p, write ? PACKET_WRITE : PACKET_READ, queue);
		packet_u32(&p, m->handle);
		packet_u32(&p, 0);
		packet_u64(&p, offset + done);
		packet_u64(&p, part->size);
		packet_u64(&p, write ? part->staging.at : 0);
		add_waits(&p, c->waits, c->list);
		done += part->size;
		code = post(part, &p);
	}
	return code;
}

cl_int transfer_now(cl_context c, cl_mem m, int write, size_t offset, size_t n, void *host)
{
	/* The driver's own queue, as an object on the stack: its references stay. */
	struct _cl_command_queue q = {.object = {&dxpu_dispatch, KIND_QUEUE, 2}, .context = c, .handle = c->queue};
	struct command cmd = {.queue = &q};
	cl_int code = begin(&cmd);

	if (code)
		return code;
	code = move(&cmd, q.handle, m, write, offset, n, host);
	part_end(cmd.event, code, NULL);
	channel_wait(c->device->channel, &q.pending);
	if (!code && cmd.event->status < 0)
		code = cmd.event->status;
	event_release(cmd.event);
	return code;
}

static cl_int transfer(cl_command_queue q, cl_mem m, cl_bool blocking, int write, size_t offset, size_t n, void *host, cl_uint waits,
		       const cl_event *list, cl_event *event)
{
	struct command c = {q, write ? CL_COMMAND_WRITE_BUFFER : CL_COMMAND_READ_BUFFER, waits, list, NULL};
	cl_int code = check_range(q, m, offset, n);

	if (!code && !host)
		code = CL_INVALID_VALUE;
	if (!code && m->flags & (write ? CL_MEM_HOST_READ_ONLY | CL_MEM_HOST_NO_ACCESS : CL_MEM_HOST_WRITE_ONLY | CL_MEM_HOST_NO_ACCESS))
		code = CL_INVALID_OPERATION;
	if (!code)
		code = begin(&c);
	if (code)
		return code;
	return end(&c, move(&c, q->handle, m, write, offset, n, host), blocking, event);
}

cl_int CL_API_CALL dxpu_EnqueueReadBuffer(cl_command_queue q, cl_mem m, cl_bool blocking, size_t offset, size_t n, void *host,
						 cl_uint waits, const cl_event *list, cl_event *event)
{
	return transfer(q, m, blocking, 0, offset, n, host, waits, list, event);
}

cl_int CL_API_CALL dxpu_EnqueueWriteBuffer(cl_command_queue q, cl_mem m, cl_bool blocking, size_t offset, size_t n,
						  const void *host, cl_uint waits, const cl_event *list, cl_event *event)
{
	return transfer(q, m, blocking, 1, offset, n, (void *)(uintptr_t)host, waits, list, event);
}

cl_int simple(struct command *c, struct packet *p, cl_event *event)
{
	struct part *part = part_new(c);

	add_waits(p, c->waits, c->list);
	return end(c, part ? post(part, p) : CL_OUT_OF_HOST_MEMORY, 0, event);
}

cl_int CL_API_CALL dxpu_EnqueueCopyBuffer(cl_command_queue q, cl_mem from, cl_mem to, size_t a, size_t b, size_t n, cl_uint waits,
						 const cl_event *list, cl_event *event)
{
	struct command c = {q, CL_COMMAND_COPY_BUFFER, waits, list, NULL};
	struct packet p;
	cl_int code = check_range(q, from, a, n);

	if (!code)
		code = check_range(q, to, b, n);
	if (!code && from == to && a < b + n && b < a + n)
		code = CL_MEM_COPY_OVERLAP;
	if (!code)
		code = begin(&c);
	if (code)
		return code;
	packet_start(&p, PACKET_COPY, q->handle);
	packet_u32(&p, from->handle);
	packet_u32(&p, to->handle);
	packet_u64(&p, a);
	packet_u64(&p, b);
	packet_u64(&p, n);
	return simple(&c, &p, event);
}

cl_int CL_API_CALL dxpu_EnqueueFillBuffer(cl_command_queue q, cl_mem m, const void *pattern, size_t size, size_t offset, size_t n,
						 cl_uint waits, const cl_event *list, cl_event *event)
{
	struct command c = {q, CL_COMMAND_FILL_BUFFER, waits, list, NULL};
	struct packet p;
	cl_int code = check_range(q, m, offset, n);

	if (!code && (!pattern || size == 0 || size > 128 || size & (size - 1) || offset % size || n % size))
		code = CL_INVALID_VALUE;
	if (!code)
		code = begin(&c);
	if (code)
		return code;
	packet_start(&p, PACKET_FILL, q->handle);
	packet_u32(&p, m->handle);
	packet_u32(&p, (uint32_t)size);
	packet_u64(&p, offset);
	packet_u64(&p, n);
	packet_bytes(&p, pattern, size);
	return simple(&c, &p, event);
}

static cl_int add_arguments(struct packet *p, cl_kernel k)
{
	cl_int code = CL_SUCCESS;

	pthread_mutex_lock(&dxpu_lock);
	for (cl_uint i = 0; i < k->count; i++) {
		struct argument *a = &k->arguments[i];
		if (!a->set)
			code = CL_INVALID_KERNEL_ARGS;
		packet_u32(p, (uint32_t)a->kind);
		if (a->kind == 1) {
			packet_u32(p, 4);
			packet_u32(p, a->mem ? a->mem->handle : 0);
			packet_u32(p, 0);
		} else {
			packet_u32(p, (uint32_t)a->size);
			if (a->value)
				packet_bytes(p, a->value, a->size);
		}
	}
	pthread_mutex_unlock(&dxpu_lock);
	return code;
}

cl_int CL_API_CALL dxpu_EnqueueNDRangeKernel(cl_command_queue q, cl_kernel k, cl_uint dims, const size_t *offset,
						    const size_t *global, const size_t *local, cl_uint waits, const cl_event *list,
						    cl_event *event)
{
	struct command c = {q, CL_COMMAND_NDRANGE_KERNEL, waits, list, NULL};
	const size_t *const sizes[3] = {offset, global, local};
	struct packet p;
	cl_int code = CL_SUCCESS;

	if (!object_is(q, KIND_QUEUE))
		return CL_INVALID_COMMAND_QUEUE;
	if (!object_is(k, KIND_KERNEL))
		return CL_INVALID_KERNEL;
	if (k->program->context != q->context)
		return CL_INVALID_CONTEXT;
	if (dims < 1 || dims > 3)
		return CL_INVALID_WORK_DIMENSION;
	for (cl_uint i = 0; i < dims; i++) {
		if (local && local[i] == 0)
			return CL_INVALID_WORK_GROUP_SIZE;
		/* Since 2.1, a range of nothing is a marker. */
		if (!global || global[i] == 0)
			return dxpu_EnqueueMarkerWithWaitList(q, waits, list, event);
	}
	packet_start(&p, PACKET_NDRANGE, q->handle);
	p.flags = (uint16_t)((offset ? NDRANGE_OFFSET : 0) | (local ? NDRANGE_LOCAL : 0));
	packet_u32(&p, k->handle);
	packet_u32(&p, dims);
	packet_u32(&p, k->count);
	packet_u32(&p, 0);
	for (int s = 0; s < 3; s++)
		for (cl_uint i = 0; i < 3; i++)
			packet_u64(&p, sizes[s] && i < dims ? sizes[s][i] : 0);
	code = add_arguments(&p, k);
	if (!code)
		code = begin(&c);
	return code ? code : simple(&c, &p, event);
}

cl_int CL_API_CALL dxpu_EnqueueTask(cl_command_queue q, cl_kernel k, cl_uint waits, const cl_event *list, cl_event *event)
{
	const size_t one = 1;
	return dxpu_EnqueueNDRangeKernel(q, k, 1, NULL, &one, &one, waits, list, event);
}

static cl_int marker(cl_command_queue q, cl_command_type type, cl_uint waits, const cl_event *list, cl_event *event)
{
	struct command c = {q, type, waits, list, NULL};
	struct packet p;
	cl_int code = begin(&c);

	if (code)
		return code;
	packet_start(&p, PACKET_MARKER, q->handle);
	return simple(&c, &p, event);
}

cl_int CL_API_CALL dxpu_EnqueueMarkerWithWaitList(cl_command_queue q, cl_uint n, const cl_event *list, cl_event *event)
{
	return marker(q, CL_COMMAND_MARKER, n, list, event);
}

cl_int CL_API_CALL dxpu_EnqueueBarrierWithWaitList(cl_command_queue q, cl_uint n, const cl_event *list, cl_event *event)
{
	return marker(q, CL_COMMAND_BARRIER, n, list, event);
}

cl_int CL_API_CALL dxpu_EnqueueMarker(cl_command_queue q, cl_event *event) { return marker(q, CL_COMMAND_MARKER, 0, NULL, event); }
cl_int CL_API_CALL dxpu_EnqueueBarrier(cl_command_queue q) { return marker(q, CL_COMMAND_BARRIER, 0, NULL, NULL); }

cl_int CL_API_CALL dxpu_EnqueueWaitForEvents(cl_command_queue q, cl_uint n, const cl_event *list)
{
	return marker(q, CL_COMMAND_BARRIER, n, list, NULL);
}

cl_int CL_API_CALL dxpu_EnqueueMigrateMemObjects(cl_command_queue q, cl_uint n, const cl_mem *list, cl_mem_migration_flags flags,
							cl_uint waits, const cl_event *events, cl_event *event)
{
	if (n == 0 || !list || flags & ~(cl_mem_migration_flags)(CL_MIGRATE_MEM_OBJECT_HOST | CL_MIGRATE_MEM_OBJECT_CONTENT_UNDEFINED))
		return CL_INVALID_VALUE;
	return marker(q, CL_COMMAND_MIGRATE_MEM_OBJECTS, waits, events, event);
}

void *CL_API_CALL dxpu_EnqueueMapBuffer(cl_command_queue q, cl_mem m, cl_bool blocking, cl_map_flags flags, size_t offset, size_t n,
					       cl_uint waits, const cl_event *list, cl_event *event, cl_int *error)
{
	struct command c = {q, CL_COMMAND_MAP_BUFFER, waits, list, NULL};
	struct mapping *map = NULL;
	cl_int code = check_range(q, m, offset, n);

	if (!code && !(map = calloc(1, sizeof *map)))
		code = CL_OUT_OF_HOST_MEMORY;
	if (!code) {
		*map = (struct mapping){.offset = offset, .size = n, .flags = flags};
		map->owned = !m->host;
		if (m->host)
			map->pointer = (char *)m->host + offset;
		else if (posix_memalign(&map->pointer, 128, n))
			code = CL_OUT_OF_HOST_MEMORY;
	}
	if (!code)
		code = begin(&c);
	if (!code) {
		if (flags & CL_MAP_WRITE_INVALIDATE_REGION) {
			struct packet p;
			packet_start(&p, PACKET_MARKER, q->handle);
			code = simple(&c, &p, event);
		} else
			code = end(&c, move(&c, q->handle, m, 0, offset, n, map->pointer), blocking, event);
	}
	if (error)
		*error = code;
	if (code) {
		if (map && map->owned)
			free(map->pointer);
		free(map);
		return NULL;
	}
	pthread_mutex_lock(&dxpu_lock);
	map->next = m->mappings;
	m->mappings = map;
	m->maps++;
	pthread_mutex_unlock(&dxpu_lock);
	return map->pointer;
}

cl_int CL_API_CALL dxpu_EnqueueUnmapMemObject(cl_command_queue q, cl_mem m, void *pointer, cl_uint waits, const cl_event *list,
						     cl_event *event)
{
	struct command c = {q, CL_COMMAND_UNMAP_MEM_OBJECT, waits, list, NULL};
	struct mapping **at, *map;
	cl_int code = check_range(q, m, 0, 1);

	if (!code)
		code = begin(&c);
	if (code)
		return code;
	pthread_mutex_lock(&dxpu_lock);
	for (at = &m->mappings; *at && (*at)->pointer != pointer;)
		at = &(*at)->next;
	map = *at;
	if (map) {
		*at = map->next;
		m->maps--;
	}
	pthread_mutex_unlock(&dxpu_lock);
	if (!map)
		return end(&c, CL_INVALID_VALUE, 0, NULL);
	if (map->flags & (CL_MAP_WRITE | CL_MAP_WRITE_INVALIDATE_REGION))
		code = end(&c, move(&c, q->handle, m, 1, map->offset, map->size, map->pointer), 0, event);
	else {
		struct packet p;
		packet_start(&p, PACKET_MARKER, q->handle);
		code = simple(&c, &p, event);
	}
	/* The upload has copied the bytes. */
	if (map->owned)
		free(map->pointer);
	free(map);
	return code;
}
