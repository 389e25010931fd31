#include <stdlib.h>
#include <string.h>

#include "command.h"

static cl_sampler fail(cl_int code, cl_int *error, cl_sampler s)
{
	if (error)
		*error = code;
	free(s);
	return NULL;
}

static cl_int make(cl_context c, cl_sampler s)
{
	struct packet p;

	if (!object_is(c, KIND_CONTEXT))
		return CL_INVALID_CONTEXT;
	if (!(channel_features(c->device->channel) & FEATURE_IMAGES))
		return CL_INVALID_OPERATION;
	if (s->normalized > 1 || s->addressing < CL_ADDRESS_NONE || s->addressing > CL_ADDRESS_MIRRORED_REPEAT ||
	    (s->filter != CL_FILTER_NEAREST && s->filter != CL_FILTER_LINEAR))
		return CL_INVALID_VALUE;
	s->handle = channel_handle(c->device->channel);
	packet_start(&p, PACKET_SAMPLER, 0);
	packet_u32(&p, s->handle);
	packet_u32(&p, s->normalized);
	packet_u32(&p, s->addressing);
	packet_u32(&p, s->filter);
	return create(c, &p, 0, (uint64_t)PACKET_SAMPLER << 56 | (uint64_t)s->normalized << 40 | s->addressing << 16 | s->filter);
}

/* finish makes the sampler in the device and gives it to the program. */
static cl_sampler finish(cl_context c, cl_sampler s, cl_int *error)
{
	cl_int code = make(c, s);

	if (code)
		return fail(code, error, s);
	s->context = c;
	object_retain(c);
	if (error)
		*error = CL_SUCCESS;
	return s;
}

cl_sampler CL_API_CALL dxpu_CreateSampler(cl_context c, cl_bool normalized, cl_addressing_mode addressing, cl_filter_mode filter,
					  cl_int *error)
{
	cl_sampler s = object_new(KIND_SAMPLER, sizeof *s);

	if (!s)
		return fail(CL_OUT_OF_HOST_MEMORY, error, NULL);
	s->normalized = normalized;
	s->addressing = addressing;
	s->filter = filter;
	return finish(c, s, error);
}

cl_sampler CL_API_CALL dxpu_CreateSamplerWithProperties(cl_context c, const cl_sampler_properties *properties, cl_int *error)
{
	cl_sampler s = object_new(KIND_SAMPLER, sizeof *s);
	unsigned seen = 0;
	size_t n = 0;

	if (!s)
		return fail(CL_OUT_OF_HOST_MEMORY, error, NULL);
	s->normalized = CL_TRUE;
	s->addressing = CL_ADDRESS_CLAMP;
	s->filter = CL_FILTER_NEAREST;
	for (; properties && properties[n]; n += 2) {
		unsigned bit = 1u << (properties[n] & 7);
		cl_sampler_properties v = properties[n + 1];
		if (properties[n] == CL_SAMPLER_NORMALIZED_COORDS)
			s->normalized = (cl_bool)v;
		else if (properties[n] == CL_SAMPLER_ADDRESSING_MODE)
			s->addressing = (cl_addressing_mode)v;
		else if (properties[n] == CL_SAMPLER_FILTER_MODE)
			s->filter = (cl_filter_mode)v;
		else
			return fail(CL_INVALID_VALUE, error, s);
		if (seen & bit)
			return fail(CL_INVALID_VALUE, error, s);
		seen |= bit;
	}
	if (properties) {
		s->property_count = n + 1;
		memcpy(s->properties, properties, s->property_count * sizeof *properties);
	}
	return finish(c, s, error);
}

cl_int CL_API_CALL dxpu_RetainSampler(cl_sampler s)
{
	if (!object_is(s, KIND_SAMPLER))
		return CL_INVALID_SAMPLER;
	object_hold(s);
	return CL_SUCCESS;
}

cl_int CL_API_CALL dxpu_ReleaseSampler(cl_sampler s)
{
	if (!object_is(s, KIND_SAMPLER) || object_let(s) < 0)
		return CL_INVALID_SAMPLER;
	if (!object_drop(s))
		return CL_SUCCESS;
	create_release(s->context, s->handle, 0);
	context_release(s->context);
	free(s);
	return CL_SUCCESS;
}

cl_int CL_API_CALL dxpu_GetSamplerInfo(cl_sampler s, cl_sampler_info param, size_t room, void *out, size_t *size)
{
	if (!object_is(s, KIND_SAMPLER))
		return CL_INVALID_SAMPLER;
	switch (param) {
	case CL_SAMPLER_REFERENCE_COUNT:
		return GIVE(cl_uint, object_held(s));
	case CL_SAMPLER_CONTEXT:
		return GIVE(cl_context, s->context);
	case CL_SAMPLER_NORMALIZED_COORDS:
		return GIVE(cl_bool, s->normalized);
	case CL_SAMPLER_ADDRESSING_MODE:
		return GIVE(cl_addressing_mode, s->addressing);
	case CL_SAMPLER_FILTER_MODE:
		return GIVE(cl_filter_mode, s->filter);
	case CL_SAMPLER_PROPERTIES:
		return give(room, out, size, s->properties, s->property_count * sizeof *s->properties);
	}
	return CL_INVALID_VALUE;
}
