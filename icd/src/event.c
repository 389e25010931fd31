#include <stdlib.h>

#include "command.h"

static struct channel *event_channel(cl_event e) { return e->context->device->channel; }

/* Events. */

cl_int CL_API_CALL dxpu_WaitForEvents(cl_uint n, const cl_event *list)
{
	cl_int code = n == 0 || !list ? CL_INVALID_VALUE : CL_SUCCESS;

	for (cl_uint i = 0; i < n && !code; i++)
		if (!object_is(list[i], KIND_EVENT))
			code = CL_INVALID_EVENT;
		else if (list[i]->context != list[0]->context)
			code = CL_INVALID_CONTEXT;
	if (code)
		return code;
	for (cl_uint i = 0; i < n; i++)
		channel_flush(event_channel(list[i]));
	for (cl_uint i = 0; i < n; i++) {
		channel_wait(event_channel(list[i]), &list[i]->status);
		/* In a child of fork, the status stays. */
		if (list[i]->status > 0 || list[i]->status == CL_DEVICE_NOT_AVAILABLE)
			code = CL_DEVICE_NOT_AVAILABLE;
		else if (list[i]->status < 0)
			code = CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST;
	}
	output_show(list[0]->context);
	for (cl_uint i = 0; i < n && !code; i++)
		if (create_refused(list[i]->context, list[i]->queue))
			code = CL_OUT_OF_RESOURCES;
	sweep();
	return code;
}

cl_int CL_API_CALL dxpu_GetEventInfo(cl_event e, cl_event_info param, size_t room, void *out, size_t *size)
{
	cl_int status;

	if (!object_is(e, KIND_EVENT))
		return CL_INVALID_EVENT;
	switch (param) {
	case CL_EVENT_COMMAND_QUEUE:
		return GIVE(cl_command_queue, e->queue);
	case CL_EVENT_CONTEXT:
		return GIVE(cl_context, e->context);
	case CL_EVENT_COMMAND_TYPE:
		return GIVE(cl_command_type, e->type);
	case CL_EVENT_COMMAND_EXECUTION_STATUS:
		channel_flush(event_channel(e));
		channel_poll(event_channel(e));
		status = channel_load(event_channel(e), &e->status);
		/* For a program that looks at the event until it is complete, this is the wait. */
		if (status == CL_COMPLETE && create_refused(e->context, e->queue))
			return CL_OUT_OF_RESOURCES;
		return GIVE(cl_int, status);
	case CL_EVENT_REFERENCE_COUNT:
		return GIVE(cl_uint, object_held(e));
	}
	return CL_INVALID_VALUE;
}

cl_int CL_API_CALL dxpu_GetEventProfilingInfo(cl_event e, cl_profiling_info param, size_t room, void *out, size_t *size)
{
	if (!object_is(e, KIND_EVENT))
		return CL_INVALID_EVENT;
	if (!e->queue || !(e->queue->properties & CL_QUEUE_PROFILING_ENABLE) || channel_load(event_channel(e), &e->status) != CL_COMPLETE)
		return CL_PROFILING_INFO_NOT_AVAILABLE;
	switch (param) {
	case CL_PROFILING_COMMAND_QUEUED:
		return GIVE(cl_ulong, stamp_queued(e));
	case CL_PROFILING_COMMAND_SUBMIT:
	case CL_PROFILING_COMMAND_START:
	case CL_PROFILING_COMMAND_END:
		return GIVE(cl_ulong, e->times.at[param - CL_PROFILING_COMMAND_QUEUED]);
	case CL_PROFILING_COMMAND_COMPLETE:
		return GIVE(cl_ulong, e->times.at[3]);
	}
	return CL_INVALID_VALUE;
}

cl_int CL_API_CALL dxpu_RetainEvent(cl_event e)
{
	if (!object_is(e, KIND_EVENT))
		return CL_INVALID_EVENT;
	object_hold(e);
	return CL_SUCCESS;
}

cl_int CL_API_CALL dxpu_ReleaseEvent(cl_event e)
{
	if (!object_is(e, KIND_EVENT) || object_let(e) < 0)
		return CL_INVALID_EVENT;
	event_release(e);
	return CL_SUCCESS;
}

cl_int CL_API_CALL dxpu_SetEventCallback(cl_event e, cl_int type, void(CL_CALLBACK *call)(cl_event, cl_int, void *), void *data)
{
	if (!object_is(e, KIND_EVENT))
		return CL_INVALID_EVENT;
	if (!call || type < CL_COMPLETE || type > CL_SUBMITTED)
		return CL_INVALID_VALUE;
	if (channel_forked)
		return CL_DEVICE_NOT_AVAILABLE; /* the thread of callbacks is the parent's */
	struct callback *b = malloc(sizeof *b);
	if (!b)
		return CL_OUT_OF_HOST_MEMORY;
	*b = (struct callback){.type = type, .call = call, .data = data};
	pthread_mutex_lock(&dxpu_lock);
	/* A user event is submitted from the start. */
	int done = e->parts == 0 || (!e->queue && type == CL_SUBMITTED);
	int32_t code = e->error;
	e->object.references++;
	if (!done) { /* in the order of the states, and of the calls */
		struct callback **at = &e->callbacks;
		while (*at && (*at)->type >= type)
			at = &(*at)->next;
		b->next = *at;
		*at = b;
	}
	pthread_mutex_unlock(&dxpu_lock);
	if (done)
		callback_later(b, e, code < 0 ? code : type);
	else
		channel_watch(event_channel(e), 1);
	return CL_SUCCESS;
}
