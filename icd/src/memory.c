#include <stdlib.h>
#include <string.h>

#include "command.h"

static cl_mem fail(cl_int code, cl_int *error, cl_mem m)
{
	if (error)
		*error = code;
	free(m);
	return NULL;
}

static int one_at_most(cl_mem_flags flags) { return (flags & (flags - 1)) == 0; }

int flags_ok(cl_mem_flags flags)
{
	return one_at_most(flags & ACCESS) && one_at_most(flags & HOST_ACCESS) &&
	       !(flags & CL_MEM_USE_HOST_PTR && flags & (CL_MEM_ALLOC_HOST_PTR | CL_MEM_COPY_HOST_PTR)) &&
	       !(flags & ~(cl_mem_flags)(ACCESS | HOST_ACCESS | HOST_POINTER | CL_MEM_ALLOC_HOST_PTR));
}

/* Kinds of what the device may refuse, beside those of images. */
static uint64_t kind_of(uint16_t op, uint64_t detail) { return (uint64_t)op << 56 | detail; }

cl_mem CL_API_CALL dxpu_CreateBuffer(cl_context c, cl_mem_flags flags, size_t size, void *host, cl_int *error)
{
	struct packet p;
	cl_mem m;
	cl_int code;
	size_t offset;

	if (!object_is(c, KIND_CONTEXT))
		return fail(CL_INVALID_CONTEXT, error, NULL);
	if (!flags_ok(flags))
		return fail(CL_INVALID_VALUE, error, NULL);
	if (size == 0 || size > device_allocation(c->device))
		return fail(CL_INVALID_BUFFER_SIZE, error, NULL);
	if (!(flags & HOST_POINTER) != !host)
		return fail(CL_INVALID_HOST_PTR, error, NULL);
	cl_mem region = flags & CL_MEM_USE_HOST_PTR ? svm_find(c, host, &offset) : NULL;
	if (region && size > region->size - offset)
		return fail(CL_INVALID_BUFFER_SIZE, error, NULL);
	m = object_new(KIND_MEM, sizeof *m);
	if (!m)
		return fail(CL_OUT_OF_HOST_MEMORY, error, NULL);
	m->flags = flags ? flags : CL_MEM_READ_WRITE; /* as platforms report it */
	m->size = size;
	m->host = flags & CL_MEM_USE_HOST_PTR ? host : NULL;
	m->context = c;
	m->handle = channel_handle(c->device->channel);
	packet_start(&p, region ? PACKET_SVM_BUFFER : PACKET_BUFFER, 0);
	packet_u32(&p, m->handle);
	packet_u32(&p, region ? region->handle : 0);
	packet_u64(&p, m->flags & ACCESS); /* the driver itself refuses the host */
	if (region)
		packet_u64(&p, offset);
	packet_u64(&p, size);
	m->bytes = region ? 0 : size;
	/* The content of a region is in the device already. */
	struct command fill = {.kind = COMMAND_MOVE, .mem = m, .write = 1, .size = size, .host = region ? NULL : host};
	code = create_filled(c, &p, m->bytes, kind_of(p.op, 0), &fill);
	if (code)
		return fail(code, error, m);
	object_retain(c);
	m->shared = region;
	if (region)
		object_retain(region);
	if (error)
		*error = CL_SUCCESS;
	return m;
}

cl_mem CL_API_CALL dxpu_CreateBufferWithProperties(cl_context c, const cl_mem_properties *properties, cl_mem_flags flags,
							  size_t size, void *host, cl_int *error)
{
	if (properties && properties[0])
		return fail(CL_INVALID_PROPERTY, error, NULL);
	cl_mem m = dxpu_CreateBuffer(c, flags, size, host, error);
	if (m)
		m->listed = properties != NULL;
	return m;
}

int flags_within(cl_mem_flags whole, cl_mem_flags part)
{
	cl_mem_flags only = whole & (CL_MEM_READ_ONLY | CL_MEM_WRITE_ONLY), denied = whole & HOST_ACCESS;

	if (part & (HOST_POINTER | CL_MEM_ALLOC_HOST_PTR) || (only && part & ACCESS && (part & ACCESS) != only))
		return 0;
	return !denied || !(part & HOST_ACCESS) || (part & HOST_ACCESS) == denied || part & CL_MEM_HOST_NO_ACCESS;
}

cl_mem CL_API_CALL dxpu_CreateSubBuffer(cl_mem parent, cl_mem_flags flags, cl_buffer_create_type type, const void *info,
					       cl_int *error)
{
	const cl_buffer_region *r = info;
	struct packet p;
	cl_mem m;
	cl_int code;

	if (!object_is(parent, KIND_MEM) || parent->parent || parent->image)
		return fail(CL_INVALID_MEM_OBJECT, error, NULL);
	if (type != CL_BUFFER_CREATE_TYPE_REGION || !r || !flags_ok(flags) || !flags_within(parent->flags, flags))
		return fail(CL_INVALID_VALUE, error, NULL);
	if (r->size == 0)
		return fail(CL_INVALID_BUFFER_SIZE, error, NULL);
	if (r->size > parent->size || r->origin > parent->size - r->size)
		return fail(CL_INVALID_VALUE, error, NULL);
	m = object_new(KIND_MEM, sizeof *m);
	if (!m)
		return fail(CL_OUT_OF_HOST_MEMORY, error, NULL);
	m->flags = flags | (parent->flags & (HOST_POINTER | CL_MEM_ALLOC_HOST_PTR));
	if (!(flags & ACCESS))
		m->flags |= parent->flags & ACCESS;
	if (!(flags & HOST_ACCESS))
		m->flags |= parent->flags & HOST_ACCESS;
	m->size = r->size;
	m->origin = r->origin;
	m->host = parent->host ? (char *)parent->host + r->origin : NULL;
	m->context = parent->context;
	m->parent = parent;
	m->handle = channel_handle(m->context->device->channel);
	packet_start(&p, PACKET_SUB_BUFFER, 0);
	packet_u32(&p, m->handle);
	packet_u32(&p, parent->handle);
	packet_u64(&p, m->flags & ACCESS);
	packet_u64(&p, r->origin);
	packet_u64(&p, r->size);
	/* The device knows to what the origin is to be aligned. */
	code = create(m->context, &p, 0, kind_of(PACKET_SUB_BUFFER, r->origin & -r->origin));
	if (code)
		return fail(code, error, m);
	object_retain(m->context);
	object_retain(parent);
	if (error)
		*error = CL_SUCCESS;
	return m;
}

void mem_release(cl_mem m)
{
	if (!object_drop(m))
		return;
	if (m->region) /* before the device may give the addresses again */
		svm_unmap(m);
	create_release(m->context, m->handle, m->bytes);
	while (m->mappings) {
		struct mapping *next = m->mappings->next;
		mapping_release(m->mappings);
		m->mappings = next;
	}
	destructors_run(&m->destructors, m);
	if (m->parent)
		mem_release(m->parent);
	if (m->shared)
		mem_release(m->shared);
	context_release(m->context);
	free(m->image);
	free(m);
}

cl_int CL_API_CALL dxpu_RetainMemObject(cl_mem m)
{
	if (!object_is(m, KIND_MEM))
		return CL_INVALID_MEM_OBJECT;
	object_hold(m);
	return CL_SUCCESS;
}

cl_int CL_API_CALL dxpu_ReleaseMemObject(cl_mem m)
{
	if (!object_is(m, KIND_MEM) || object_let(m) < 0)
		return CL_INVALID_MEM_OBJECT;
	mem_release(m);
	return CL_SUCCESS;
}

cl_int CL_API_CALL dxpu_GetMemObjectInfo(cl_mem m, cl_mem_info param, size_t room, void *out, size_t *size)
{
	if (!object_is(m, KIND_MEM))
		return CL_INVALID_MEM_OBJECT;
	switch (param) {
	case CL_MEM_TYPE:
		return GIVE(cl_mem_object_type, m->image ? m->image->desc.image_type : CL_MEM_OBJECT_BUFFER);
	case CL_MEM_FLAGS:
		return GIVE(cl_mem_flags, m->flags);
	case CL_MEM_SIZE:
		return GIVE(size_t, m->size);
	case CL_MEM_HOST_PTR:
		return GIVE(void *, m->host);
	case CL_MEM_MAP_COUNT:
		return GIVE(cl_uint, mapping_count(m));
	case CL_MEM_REFERENCE_COUNT:
		return GIVE(cl_uint, object_held(m));
	case CL_MEM_CONTEXT:
		return GIVE(cl_context, m->context);
	case CL_MEM_ASSOCIATED_MEMOBJECT:
		return GIVE(cl_mem, m->parent);
	case CL_MEM_OFFSET:
		return GIVE(size_t, m->origin);
	case CL_MEM_USES_SVM_POINTER:
		return GIVE(cl_bool, mem_root(m)->shared != NULL);
	case CL_MEM_PROPERTIES:
		return give(room, out, size, &(cl_mem_properties){0}, m->listed ? sizeof(cl_mem_properties) : 0);
	}
	return CL_INVALID_VALUE;
}

cl_int CL_API_CALL dxpu_SetMemObjectDestructorCallback(cl_mem m, void(CL_CALLBACK *call)(cl_mem, void *), void *data)
{
	if (!object_is(m, KIND_MEM))
		return CL_INVALID_MEM_OBJECT;
	return call ? destructors_add(&m->destructors, (void *)call, data) : CL_INVALID_VALUE;
}
