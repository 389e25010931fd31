#include <stdlib.h>
#include <string.h>

#include "command.h"

#define QUEUE_PROPERTIES (CL_QUEUE_PROFILING_ENABLE | CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE)

static cl_int failure(cl_int code, cl_int *out)
{
	if (out)
		*out = code;
	return code;
}

static void released(void *arg, int32_t status, uint32_t length, const struct times *t)
{
	(void)arg;
	(void)status;
	(void)length;
	(void)t;
}

void release_post(struct channel *ch, cl_uint handle)
{
	struct packet p;

	packet_start(&p, PACKET_RELEASE, 0);
	packet_u32(&p, handle);
	packet_u32(&p, 0);
	/* Nothing waits for it: a later packet that reuses memory or a handle is behind it. */
	(void)channel_post(ch, &p, NULL, released, NULL);
}

void dxpu_release(cl_context c, cl_uint handle)
{
	if (!release_defer(c->device->channel, handle))
		release_post(c->device->channel, handle);
}

/* new_queue makes a queue of the engine. */
static cl_int new_queue(cl_context c, cl_command_queue_properties properties, cl_uint *handle)
{
	struct packet p;
	cl_uint flags = (properties & CL_QUEUE_PROFILING_ENABLE ? 0 : QUEUE_WITHOUT_TIMES) |
			(properties & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE ? QUEUE_OUT_OF_ORDER : 0);

	*handle = channel_handle(c->device->channel);
	packet_start(&p, PACKET_QUEUE, 0);
	packet_u32(&p, *handle);
	packet_u32(&p, channel_features(c->device->channel) & FEATURE_QUEUES ? flags : 0);
	return channel_call(c->device->channel, &p, NULL, NULL);
}

cl_context CL_API_CALL dxpu_CreateContext(const cl_context_properties *properties, cl_uint n, const cl_device_id *list,
						 void(CL_CALLBACK *notify)(const char *, const void *, size_t, void *), void *data,
						 cl_int *error)
{
	size_t count = 0;
	cl_context c;
	cl_int code;

	if (!list || n == 0 || (!notify && data)) {
		failure(CL_INVALID_VALUE, error);
		return NULL;
	}
	/* Each device has a platform of its own. One that is there twice counts once. */
	for (cl_uint i = 0; i < n; i++) {
		if (list[i] != list[0] || !object_is(list[i], KIND_DEVICE)) {
			failure(CL_INVALID_DEVICE, error);
			return NULL;
		}
	}
	for (; properties && properties[count]; count += 2) {
		size_t earlier = 0;
		while (properties[earlier] != properties[count])
			earlier += 2;
		if (earlier < count)
			code = CL_INVALID_PROPERTY;
		else if (properties[count] == CL_CONTEXT_PLATFORM)
			code = !object_is((void *)properties[count + 1], KIND_PLATFORM)		     ? CL_INVALID_PLATFORM
			       : list[0]->platform != (cl_platform_id)properties[count + 1] ? CL_INVALID_DEVICE
											     : CL_SUCCESS;
		else
			code = properties[count] == CL_CONTEXT_INTEROP_USER_SYNC && (cl_bool)properties[count + 1] <= CL_TRUE
				       ? CL_SUCCESS
				       : CL_INVALID_PROPERTY;
		if (code) {
			failure(code, error);
			return NULL;
		}
	}
	count += properties != NULL;
	c = object_new(KIND_CONTEXT, sizeof *c);
	if (!c || (count && !(c->properties = malloc(count * sizeof *properties)))) {
		free(c);
		failure(CL_OUT_OF_HOST_MEMORY, error);
		return NULL;
	}
	if (count)
		memcpy(c->properties, properties, count * sizeof *properties);
	c->property_count = count;
	c->device = list[0];
	c->own = (struct _cl_command_queue){.object = {&dxpu_dispatch, KIND_QUEUE, 1, 0}, .context = c};
	(void)create_refused(c, NULL);
	code = new_queue(c, 0, &c->own.handle);
	if (code) {
		free(c->properties);
		free(c);
		failure(code, error);
		return NULL;
	}
	failure(CL_SUCCESS, error);
	return c;
}

cl_context CL_API_CALL dxpu_CreateContextFromType(const cl_context_properties *properties, cl_device_type type,
							 void(CL_CALLBACK *notify)(const char *, const void *, size_t, void *),
							 void *data, cl_int *error)
{
	cl_platform_id p = NULL;
	cl_device_id d;

	for (size_t i = 0; properties && properties[i]; i += 2)
		if (properties[i] == CL_CONTEXT_PLATFORM)
			p = (cl_platform_id)properties[i + 1];
	cl_int code = dxpu_GetDeviceIDs(p, type, 1, &d, NULL);

	if (code) {
		failure(code, error);
		return NULL;
	}
	return dxpu_CreateContext(properties, 1, &d, notify, data, error);
}

void context_release(cl_context c)
{
	if (!object_drop(c))
		return;
	output_show(c);
	destructors_run(&c->destructors, c);
	dxpu_release(c, c->own.handle);
	free(c->properties);
	free(c);
}

cl_int CL_API_CALL dxpu_RetainContext(cl_context c)
{
	if (!object_is(c, KIND_CONTEXT))
		return CL_INVALID_CONTEXT;
	object_hold(c);
	return CL_SUCCESS;
}

cl_int CL_API_CALL dxpu_ReleaseContext(cl_context c)
{
	if (!object_is(c, KIND_CONTEXT))
		return CL_INVALID_CONTEXT;
	int left = object_let(c);
	if (left < 0)
		return CL_INVALID_CONTEXT;
	/* The events of what fills objects hold the context, which is to end with the program's objects. */
	if (left == 0) {
		channel_wait(c->device->channel, &c->own.pending);
		sweep();
	}
	context_release(c);
	return CL_SUCCESS;
}

cl_int CL_API_CALL dxpu_GetContextInfo(cl_context c, cl_context_info param, size_t room, void *out, size_t *size)
{
	if (!object_is(c, KIND_CONTEXT))
		return CL_INVALID_CONTEXT;
	switch (param) {
	case CL_CONTEXT_REFERENCE_COUNT:
		return GIVE(cl_uint, object_held(c));
	case CL_CONTEXT_NUM_DEVICES:
		return GIVE(cl_uint, 1);
	case CL_CONTEXT_DEVICES:
		return GIVE(cl_device_id, c->device);
	case CL_CONTEXT_PROPERTIES:
		return give(room, out, size, c->properties, c->property_count * sizeof *c->properties);
	}
	return CL_INVALID_VALUE;
}

cl_command_queue CL_API_CALL dxpu_CreateCommandQueue(cl_context c, cl_device_id d, cl_command_queue_properties properties,
							    cl_int *error)
{
	cl_command_queue q;
	cl_int code = CL_SUCCESS;

	if (!object_is(c, KIND_CONTEXT))
		code = CL_INVALID_CONTEXT;
	else if (d != c->device)
		code = CL_INVALID_DEVICE;
	else if (properties & ~(cl_command_queue_properties)(QUEUE_PROPERTIES | CL_QUEUE_ON_DEVICE | CL_QUEUE_ON_DEVICE_DEFAULT))
		code = CL_INVALID_VALUE;
	else if (properties & ~(cl_command_queue_properties)QUEUE_PROPERTIES)
		code = CL_INVALID_QUEUE_PROPERTIES;
	if (code) {
		failure(code, error);
		return NULL;
	}
	q = object_new(KIND_QUEUE, sizeof *q);
	code = q ? new_queue(c, properties, &q->handle) : CL_OUT_OF_HOST_MEMORY;
	if (code) {
		free(q);
		failure(code, error);
		return NULL;
	}
	q->context = c;
	q->properties = properties;
	object_retain(c);
	failure(CL_SUCCESS, error);
	return q;
}

cl_command_queue CL_API_CALL dxpu_CreateCommandQueueWithProperties(cl_context c, cl_device_id d,
									  const cl_queue_properties *properties, cl_int *error)
{
	cl_command_queue_properties flags = 0;
	cl_command_queue q;
	size_t n = 0;
	cl_int code = object_is(c, KIND_CONTEXT) ? CL_SUCCESS : CL_INVALID_CONTEXT;

	for (; !code && properties && properties[n]; n += 2) {
		/* Each property once; CL_QUEUE_SIZE is for queues of the device. */
		if (properties[n] != CL_QUEUE_PROPERTIES || n > 0)
			code = CL_INVALID_VALUE;
		flags = properties[n + 1];
	}
	if (code) {
		failure(code, error);
		return NULL;
	}
	q = dxpu_CreateCommandQueue(c, d, flags, error);
	if (q && properties) {
		q->array_size = (n + 1) * sizeof *properties;
		memcpy(q->array, properties, q->array_size);
	}
	return q;
}

void queue_release(cl_command_queue q)
{
	if (!object_drop(q))
		return;
	dxpu_release(q->context, q->handle);
	context_release(q->context);
	free(q);
}

cl_int CL_API_CALL dxpu_RetainCommandQueue(cl_command_queue q)
{
	if (!object_is(q, KIND_QUEUE))
		return CL_INVALID_COMMAND_QUEUE;
	object_hold(q);
	return CL_SUCCESS;
}

cl_int CL_API_CALL dxpu_Flush(cl_command_queue q)
{
	if (!object_is(q, KIND_QUEUE))
		return CL_INVALID_COMMAND_QUEUE;
	channel_flush(q->context->device->channel);
	return CL_SUCCESS;
}

cl_int CL_API_CALL dxpu_Finish(cl_command_queue q)
{
	if (!object_is(q, KIND_QUEUE))
		return CL_INVALID_COMMAND_QUEUE;
	channel_wait(q->context->device->channel, &q->pending);
	output_show(q->context);
	if (channel_failed(q->context->device->channel))
		return CL_DEVICE_NOT_AVAILABLE;
	return create_refused(q->context, q) ? CL_OUT_OF_RESOURCES : CL_SUCCESS;
}

cl_int CL_API_CALL dxpu_ReleaseCommandQueue(cl_command_queue q)
{
	if (!object_is(q, KIND_QUEUE))
		return CL_INVALID_COMMAND_QUEUE;
	channel_flush(q->context->device->channel);
	if (object_let(q) < 0)
		return CL_INVALID_COMMAND_QUEUE;
	queue_release(q);
	return CL_SUCCESS;
}

cl_int CL_API_CALL dxpu_GetCommandQueueInfo(cl_command_queue q, cl_command_queue_info param, size_t room, void *out,
						   size_t *size)
{
	if (!object_is(q, KIND_QUEUE))
		return CL_INVALID_COMMAND_QUEUE;
	switch (param) {
	case CL_QUEUE_CONTEXT:
		return GIVE(cl_context, q->context);
	case CL_QUEUE_DEVICE:
		return GIVE(cl_device_id, q->context->device);
	case CL_QUEUE_REFERENCE_COUNT:
		return GIVE(cl_uint, object_held(q));
	case CL_QUEUE_PROPERTIES:
		return GIVE(cl_command_queue_properties, q->properties);
	case CL_QUEUE_DEVICE_DEFAULT:
		return GIVE(cl_command_queue, NULL);
	case CL_QUEUE_SIZE:
		return CL_INVALID_COMMAND_QUEUE; /* of a queue of the device */
	case CL_QUEUE_PROPERTIES_ARRAY:
		return give(room, out, size, q->array, q->array_size);
	}
	return CL_INVALID_VALUE;
}

cl_int CL_API_CALL dxpu_SetContextDestructorCallback(cl_context c, void(CL_CALLBACK *call)(cl_context, void *), void *data)
{
	if (!object_is(c, KIND_CONTEXT))
		return CL_INVALID_CONTEXT;
	return call ? destructors_add(&c->destructors, (void *)call, data) : CL_INVALID_VALUE;
}
