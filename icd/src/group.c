/* Sub-groups, and specialization constants of SPIR-V. */
#include <string.h>

#include "calls.h"

/* VALUE is the size of the longest value of a query: that of a work-group. */
enum { VALUE = 3 * sizeof(size_t) };

/* ask makes a query about sub-groups. */
static cl_int ask(cl_kernel k, cl_uint param, size_t input_size, const void *input, unsigned char value[VALUE], uint32_t *length)
{
	struct channel *ch = k->program->context->device->channel;
	struct packet p;
	struct staging s;
	cl_int code;

	if (channel_reserve(ch, VALUE, &s))
		return CL_DEVICE_NOT_AVAILABLE;
	packet_start(&p, PACKET_SUB_GROUPS, 0);
	packet_u32(&p, k->handle);
	packet_u32(&p, param);
	packet_u32(&p, (uint32_t)input_size);
	packet_u32(&p, 0);
	packet_bytes(&p, input, input_size);
	code = channel_call(ch, &p, &s, length);
	if (!code && *length > VALUE)
		code = CL_OUT_OF_RESOURCES; /* of a hostile device */
	if (!code)
		memcpy(value, s.mirror, *length);
	channel_free(ch, &s);
	return code;
}

cl_int CL_API_CALL dxpu_GetKernelSubGroupInfo(cl_kernel k, cl_device_id d, cl_kernel_sub_group_info param, size_t input_size,
						     const void *input, size_t room, void *out, size_t *size)
{
	unsigned char value[VALUE] = {0};
	uint32_t length = 0;
	size_t needed = sizeof(size_t);

	if (!object_is(k, KIND_KERNEL))
		return CL_INVALID_KERNEL;
	if (d && d != k->program->context->device)
		return CL_INVALID_DEVICE;
	if (!device_groups(k->program->context->device))
		return CL_INVALID_OPERATION;
	switch (param) {
	case CL_KERNEL_MAX_SUB_GROUP_SIZE_FOR_NDRANGE:
	case CL_KERNEL_SUB_GROUP_COUNT_FOR_NDRANGE:
		if (!input || input_size == 0 || input_size > 3 * sizeof(size_t) || input_size % sizeof(size_t))
			return CL_INVALID_VALUE;
		break;
	case CL_KERNEL_LOCAL_SIZE_FOR_SUB_GROUP_COUNT:
		/* The program chooses the dimensions of the value by its room. */
		if (!input || input_size != sizeof(size_t) || (out && (room == 0 || room > 3 * needed || room % needed)))
			return CL_INVALID_VALUE;
		needed = out ? room : 3 * needed;
		break;
	default:
		input_size = 0; /* the platform knows the others, or refuses them */
		input = "";
	}
	cl_int code = ask(k, param, input_size, input, value, &length);
	if (!code && length < needed)
		code = CL_OUT_OF_RESOURCES;
	return code ? code : give(room, out, size, value, needed);
}

cl_int CL_API_CALL dxpu_SetProgramSpecializationConstant(cl_program g, cl_uint id, size_t n, const void *value)
{
	struct packet p;
	struct property version;

	if (!object_is(g, KIND_PROGRAM))
		return CL_INVALID_PROGRAM;
	cl_device_id d = g->context->device;
	if (!(channel_features(d->channel) & FEATURE_GROUPS) || !properties_find(&d->properties, CL_DEVICE_IL_VERSION, NO_INDEX, &version) ||
	    version.size <= 1)
		return CL_INVALID_OPERATION;
	if (!g->given || g->given_kind != PROGRAM_IL)
		return CL_INVALID_PROGRAM;
	if (!value || n == 0 || n > 8)
		return CL_INVALID_VALUE;
	packet_start(&p, PACKET_CONSTANT, 0);
	packet_u32(&p, g->handle);
	packet_u32(&p, id);
	packet_u32(&p, (uint32_t)n);
	packet_u32(&p, 0);
	packet_bytes(&p, value, n);
	return channel_call(d->channel, &p, NULL, NULL);
}
