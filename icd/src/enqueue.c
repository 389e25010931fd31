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
	if (m->image)
		return CL_INVALID_MEM_OBJECT;
	return n > m->size || offset > m->size - n ? CL_INVALID_VALUE : CL_SUCCESS;
}

cl_int move(struct command *c)
{
	struct channel *ch = channel_of(c->queue);
	size_t most = (size_t)channel_block(ch) / 4, done = 0;
	cl_int code = CL_SUCCESS;

	while (done < c->size && !code) {
		struct packet p;
		struct part *part = part_new(c);
		if (!part)
			return CL_OUT_OF_HOST_MEMORY;
		part->size = c->size - done < most ? c->size - done : most;
		part->read = !c->write;
		part->host = (unsigned char *)c->host + done;
		if (c->write)
			part_settle(part);
		if (channel_reserve(ch, part->size, &part->staging)) {
			free(part);
			return CL_DEVICE_NOT_AVAILABLE;
		}
		part->staged = 1;
		packet_start(&p, c->write ? PACKET_WRITE : PACKET_READ, c->queue->handle);
		if (c->write)
			(void)channel_upload(ch, &part->staging, part->host, part->size, &p);
		packet_u32(&p, c->mem->handle);
		packet_u32(&p, 0);
		packet_u64(&p, c->offset + done);
		packet_u64(&p, part->size);
		packet_u64(&p, c->write ? part->staging.at : 0);
		add_waits(&p, c);
		done += part->size;
		code = post(part, &p);
	}
	return code;
}

static cl_int transfer(cl_command_queue q, cl_mem m, cl_bool blocking, int write, size_t offset, size_t n, void *host, cl_uint waits,
		       const cl_event *list, cl_event *event)
{
	struct command c = {
		.queue = q, .type = write ? CL_COMMAND_WRITE_BUFFER : CL_COMMAND_READ_BUFFER, .waits = waits, .list = list,
		.kind = COMMAND_MOVE, .mem = m, .write = write, .offset = offset, .size = n, .host = host,
	};
	cl_int code = check_range(q, m, offset, n);

	if (!code && !host)
		code = CL_INVALID_VALUE;
	if (!code && m->flags & (write ? CL_MEM_HOST_READ_ONLY | CL_MEM_HOST_NO_ACCESS : CL_MEM_HOST_WRITE_ONLY | CL_MEM_HOST_NO_ACCESS))
		code = CL_INVALID_OPERATION;
	if (!code)
		code = begin(&c);
	if (code)
		return code;
	return n ? end(&c, blocking, event) : end_empty(&c, blocking, event);
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
	c->kind = COMMAND_PACKET;
	c->packet = p;
	return end(c, 0, event);
}

cl_int CL_API_CALL dxpu_EnqueueCopyBuffer(cl_command_queue q, cl_mem from, cl_mem to, size_t a, size_t b, size_t n, cl_uint waits,
						 const cl_event *list, cl_event *event)
{
	struct command c = {.queue = q, .type = CL_COMMAND_COPY_BUFFER, .waits = waits, .list = list};
	struct packet p;
	cl_int code = check_range(q, from, a, n);

	if (!code)
		code = check_range(q, to, b, n);
	if (!code && mem_root(from) == mem_root(to) && from->origin + a < to->origin + b + n && to->origin + b < from->origin + a + n)
		code = CL_MEM_COPY_OVERLAP;
	if (!code)
		code = begin(&c);
	if (code)
		return code;
	if (n == 0)
		return end_empty(&c, 0, event);
	packet_start(&p, PACKET_COPY, q->handle);
	packet_u32(&p, from->handle);
	packet_u32(&p, to->handle);
	packet_u64(&p, a);
	packet_u64(&p, b);
	packet_u64(&p, n);
	return simple(&c, &p, event);
}

cl_int fill_buffer(cl_command_queue q, cl_command_type type, cl_mem m, const void *pattern, size_t size, size_t offset, size_t n,
		   cl_uint waits, const cl_event *list, cl_event *event)
{
	struct command c = {.queue = q, .type = type, .waits = waits, .list = list};
	struct packet p;
	cl_int code = check_range(q, m, offset, n);

	if (!code && (!pattern || size == 0 || size > 128 || size & (size - 1) || offset % size || n % size))
		code = CL_INVALID_VALUE;
	if (!code)
		code = begin(&c);
	if (code)
		return code;
	if (n == 0)
		return end_empty(&c, 0, event);
	packet_start(&p, PACKET_FILL, q->handle);
	packet_u32(&p, m->handle);
	packet_u32(&p, (uint32_t)size);
	packet_u64(&p, offset);
	packet_u64(&p, n);
	packet_bytes(&p, pattern, size);
	return simple(&c, &p, event);
}

cl_int CL_API_CALL dxpu_EnqueueFillBuffer(cl_command_queue q, cl_mem m, const void *pattern, size_t size, size_t offset, size_t n,
						 cl_uint waits, const cl_event *list, cl_event *event)
{
	return fill_buffer(q, CL_COMMAND_FILL_BUFFER, m, pattern, size, offset, n, waits, list, event);
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
		if (a->kind == ARGUMENT_BUFFER || a->kind == ARGUMENT_IMAGE || a->kind == ARGUMENT_SAMPLER) {
			packet_u32(p, 4);
			packet_u32(p, a->handle);
			packet_u32(p, 0);
		} else if (a->kind == ARGUMENT_SHARED) {
			packet_u32(p, 16);
			packet_u32(p, a->handle);
			packet_u32(p, 0);
			packet_u64(p, a->offset);
		} else {
			packet_u32(p, (uint32_t)a->size);
			if (a->value)
				packet_bytes(p, a->value, a->size);
		}
	}
	for (cl_uint i = 0; i < k->shared_count; i++)
		packet_u32(p, k->shared[i]);
	if (k->shared_count % 2)
		packet_u32(p, 0);
	pthread_mutex_unlock(&dxpu_lock);
	return code;
}

/* check_local checks the size of work-groups. The device would end the command with the same
 * error; programs want it from the call. */
static cl_int check_local(cl_kernel k, cl_uint dims, const size_t *global, const size_t *local)
{
	cl_device_id d = k->program->context->device;
	struct property p;
	size_t most[3], items = 1;
	int bounded = properties_find(&d->properties, CL_DEVICE_MAX_WORK_ITEM_SIZES, NO_INDEX, &p) && p.size == sizeof most;

	if (bounded)
		memcpy(most, p.value, sizeof most);
	for (cl_uint i = 0; i < dims; i++) {
		if (local[i] == 0 || __builtin_mul_overflow(items, local[i], &items))
			return CL_INVALID_WORK_GROUP_SIZE;
		if (global[i] % local[i] && !device_number(d, CL_DEVICE_NON_UNIFORM_WORK_GROUP_SUPPORT))
			return CL_INVALID_WORK_GROUP_SIZE;
	}
	if (device_number(d, CL_DEVICE_MAX_WORK_GROUP_SIZE) && items > device_number(d, CL_DEVICE_MAX_WORK_GROUP_SIZE))
		return CL_INVALID_WORK_GROUP_SIZE;
	for (cl_uint i = 0; bounded && i < dims; i++)
		if (local[i] > most[i])
			return CL_INVALID_WORK_ITEM_SIZE;
	return CL_SUCCESS;
}

/* required_size finds the size of work-groups that a kernel requires. */
static int required_size(cl_kernel k, size_t size[3])
{
	struct property p;

	if (!properties_find(&k->properties, CL_KERNEL_COMPILE_WORK_GROUP_SIZE, NO_INDEX, &p) || p.size != 3 * sizeof *size)
		return 0;
	memcpy(size, p.value, (size_t)p.size);
	return size[0] != 0;
}

/* doubtful reports whether a kernel's properties forbid a size of work-groups. NVIDIA's platform
 * takes larger ones than those that it names, so it is asked. */
static int doubtful(cl_kernel k, const size_t size[3])
{
	size_t required[3], group;
	struct property p;
	int doubt = required_size(k, required) && memcmp(size, required, sizeof required);

	if (properties_find(&k->properties, CL_KERNEL_WORK_GROUP_SIZE, NO_INDEX, &p) && p.size == sizeof group) {
		memcpy(&group, p.value, sizeof group);
		doubt = doubt || size[0] * size[1] * size[2] > group;
	}
	pthread_mutex_lock(&dxpu_lock);
	doubt = doubt && memcmp(size, k->accepted, sizeof k->accepted);
	pthread_mutex_unlock(&dxpu_lock);
	return doubt;
}

/* end_asked ends a call with the device's answer to the size of work-groups, unless the command
 * waits for a user event: then its event has the answer. */
static cl_int end_asked(struct command *c, struct packet *p, cl_kernel k, const size_t size[3], cl_event *event)
{
	cl_event e = c->event;
	cl_int code;

	object_retain(e);
	code = simple(c, p, event);
	if (!code && !event_deferred(e)) {
		channel_wait(channel_of(c->queue), &e->status);
		code = e->status < 0 ? e->status : CL_SUCCESS;
		if (code && event) {
			event_release(*event);
			*event = NULL;
		}
		if (!code) {
			pthread_mutex_lock(&dxpu_lock);
			memcpy(k->accepted, size, sizeof k->accepted);
			pthread_mutex_unlock(&dxpu_lock);
		}
	}
	event_release(e);
	return code;
}

cl_int CL_API_CALL dxpu_EnqueueNDRangeKernel(cl_command_queue q, cl_kernel k, cl_uint dims, const size_t *offset,
						    const size_t *global, const size_t *local, cl_uint waits, const cl_event *list,
						    cl_event *event)
{
	struct command c = {.queue = q, .type = CL_COMMAND_NDRANGE_KERNEL, .waits = waits, .list = list};
	const size_t *sizes[3] = {offset, global, local};
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
	int empty = !global;
	for (cl_uint i = 0; i < dims; i++) {
		empty = empty || global[i] == 0;
		if (!empty && offset && offset[i] > SIZE_MAX - global[i])
			return CL_INVALID_GLOBAL_OFFSET;
	}
	size_t required[3];
	if (!local && required_size(k, required)) /* older platforms do not choose what the kernel requires */
		local = sizes[2] = required;
	code = local && !empty ? check_local(k, dims, global, local) : CL_SUCCESS;
	if (code)
		return code;
	size_t size[3] = {1, 1, 1};
	if (local)
		memcpy(size, local, dims * sizeof *local);
	int ask = local && !empty && doubtful(k, size);
	packet_start(&p, PACKET_NDRANGE, q->handle);
	p.flags = (uint16_t)((offset ? NDRANGE_OFFSET : 0) | (local ? NDRANGE_LOCAL : 0) | (k->shared_count ? NDRANGE_SHARED : 0));
	packet_u32(&p, k->handle);
	packet_u32(&p, dims);
	packet_u32(&p, k->count);
	packet_u32(&p, k->shared_count);
	for (int s = 0; s < 3; s++)
		for (cl_uint i = 0; i < 3; i++)
			packet_u64(&p, sizes[s] && i < dims ? sizes[s][i] : 0);
	code = add_arguments(&p, k);
	if (!code)
		code = begin(&c);
	if (k->program->prints)
		__atomic_store_n(&q->context->prints, 1, __ATOMIC_RELAXED);
	if (code)
		return code;
	if (empty) /* since 2.1, a range of nothing is like a marker */
		return end_empty(&c, 0, event);
	return ask ? end_asked(&c, &p, k, size, event) : simple(&c, &p, event);
}

cl_int CL_API_CALL dxpu_EnqueueTask(cl_command_queue q, cl_kernel k, cl_uint waits, const cl_event *list, cl_event *event)
{
	const size_t one = 1;
	return dxpu_EnqueueNDRangeKernel(q, k, 1, NULL, &one, &one, waits, list, event);
}

cl_int marker(cl_command_queue q, cl_command_type type, cl_uint waits, const cl_event *list, cl_event *event)
{
	struct command c = {.queue = q, .type = type, .waits = waits, .list = list};
	struct packet p;
	cl_int code = begin(&c);

	if (code)
		return code;
	c.barrier = type == CL_COMMAND_BARRIER;
	c.last = waits == 0 && (c.barrier || type == CL_COMMAND_MARKER);
	packet_start(&p, PACKET_MARKER, q->handle);
	if (type == CL_COMMAND_BARRIER && channel_features(channel_of(q)) & FEATURE_QUEUES)
		p.flags = MARKER_BARRIER;
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

cl_int CL_API_CALL dxpu_EnqueueMarker(cl_command_queue q, cl_event *event)
{
	if (!object_is(q, KIND_QUEUE))
		return CL_INVALID_COMMAND_QUEUE;
	return event ? marker(q, CL_COMMAND_MARKER, 0, NULL, event) : CL_INVALID_VALUE;
}

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
	if (!object_is(q, KIND_QUEUE))
		return CL_INVALID_COMMAND_QUEUE;
	for (cl_uint i = 0; i < n; i++)
		if (!object_is(list[i], KIND_MEM))
			return CL_INVALID_MEM_OBJECT;
		else if (list[i]->context != q->context)
			return CL_INVALID_CONTEXT;
	return marker(q, CL_COMMAND_MIGRATE_MEM_OBJECTS, waits, events, event);
}
