#include <stdlib.h>
#include <string.h>

#include "calls.h"

/* Sources of the packets. */
enum { SOURCE = 0, IL = 1, BINARY = 2 };

static cl_program no_program(cl_int code, cl_int *error)
{
	if (error)
		*error = code;
	return NULL;
}

/* with_text sends a packet that names a text in VRAM, behind two words. */
static cl_int with_text(cl_context c, uint16_t op, cl_uint a, cl_uint b, const void *text, size_t n)
{
	struct channel *ch = c->device->channel;
	struct packet p;
	struct staging s;
	cl_int code;

	if (n > channel_block(ch))
		return CL_OUT_OF_RESOURCES;
	if (channel_reserve(ch, n, &s))
		return CL_DEVICE_NOT_AVAILABLE;
	packet_start(&p, op, 0);
	packet_u32(&p, a);
	packet_u32(&p, b);
	packet_u64(&p, s.at);
	packet_u64(&p, n);
	code = channel_upload(ch, &s, text, n, &p) ? CL_DEVICE_NOT_AVAILABLE : channel_call(ch, &p, NULL, NULL);
	channel_free(ch, &s);
	return code;
}

static cl_program new_program(cl_context c, cl_uint kind, const void *text, size_t n, cl_int *error)
{
	cl_program g = object_new(KIND_PROGRAM, sizeof *g);
	cl_int code = CL_OUT_OF_HOST_MEMORY;

	if (g) {
		g->handle = channel_handle(c->device->channel);
		g->status = CL_BUILD_NONE;
		code = with_text(c, PACKET_PROGRAM, g->handle, kind, text, n);
	}
	if (code) {
		free(g);
		return no_program(code, error);
	}
	g->context = c;
	object_retain(c);
	if (error)
		*error = CL_SUCCESS;
	return g;
}

cl_program CL_API_CALL dxpu_CreateProgramWithSource(cl_context c, cl_uint count, const char **strings, const size_t *lengths,
							   cl_int *error)
{
	size_t size = 0, at = 0;
	char *text;
	cl_program g;

	if (!object_is(c, KIND_CONTEXT))
		return no_program(CL_INVALID_CONTEXT, error);
	if (count == 0 || !strings)
		return no_program(CL_INVALID_VALUE, error);
	for (cl_uint i = 0; i < count; i++) {
		if (!strings[i])
			return no_program(CL_INVALID_VALUE, error);
		size += lengths && lengths[i] ? lengths[i] : strlen(strings[i]);
	}
	text = malloc(size + 2);
	if (!text)
		return no_program(CL_OUT_OF_HOST_MEMORY, error);
	for (cl_uint i = 0; i < count; i++) {
		size_t n = lengths && lengths[i] ? lengths[i] : strlen(strings[i]);
		memcpy(text + at, strings[i], n);
		at += n;
	}
	/* An engine takes no empty text. */
	if (at == 0)
		text[at++] = '\n';
	text[at] = 0;
	g = new_program(c, SOURCE, text, at, error);
	if (g)
		g->source = text;
	else
		free(text);
	return g;
}

cl_program CL_API_CALL dxpu_CreateProgramWithIL(cl_context c, const void *il, size_t n, cl_int *error)
{
	if (!object_is(c, KIND_CONTEXT))
		return no_program(CL_INVALID_CONTEXT, error);
	if (!il || n == 0)
		return no_program(CL_INVALID_VALUE, error);
	return new_program(c, IL, il, n, error);
}

cl_program CL_API_CALL dxpu_CreateProgramWithBinary(cl_context c, cl_uint n, const cl_device_id *list, const size_t *lengths,
							   const unsigned char **binaries, cl_int *status, cl_int *error)
{
	if (!object_is(c, KIND_CONTEXT))
		return no_program(CL_INVALID_CONTEXT, error);
	if (n != 1 || !list || !lengths || !binaries || !binaries[0] || lengths[0] == 0)
		return no_program(CL_INVALID_VALUE, error);
	if (list[0] != c->device)
		return no_program(CL_INVALID_DEVICE, error);
	cl_int code;
	cl_program g = new_program(c, BINARY, binaries[0], lengths[0], &code);
	if (status)
		status[0] = code ? CL_INVALID_BINARY : CL_SUCCESS;
	if (error)
		*error = code;
	return g;
}

void program_release(cl_program g)
{
	if (!object_drop(g))
		return;
	dxpu_release(g->context, g->handle);
	context_release(g->context);
	free(g->source);
	free(g->options);
	free(g);
}

cl_int CL_API_CALL dxpu_RetainProgram(cl_program g)
{
	if (!object_is(g, KIND_PROGRAM))
		return CL_INVALID_PROGRAM;
	object_retain(g);
	return CL_SUCCESS;
}

cl_int CL_API_CALL dxpu_ReleaseProgram(cl_program g)
{
	if (!object_is(g, KIND_PROGRAM))
		return CL_INVALID_PROGRAM;
	program_release(g);
	return CL_SUCCESS;
}

cl_int CL_API_CALL dxpu_BuildProgram(cl_program g, cl_uint n, const cl_device_id *list, const char *options,
					    void(CL_CALLBACK *notify)(cl_program, void *), void *data)
{
	char *copy;
	cl_int code;

	if (!object_is(g, KIND_PROGRAM))
		return CL_INVALID_PROGRAM;
	if ((n == 0) != (list == NULL) || (!notify && data))
		return CL_INVALID_VALUE;
	if (list && (n != 1 || list[0] != g->context->device))
		return CL_INVALID_DEVICE;
	if (g->kernels > 0)
		return CL_INVALID_OPERATION;
	copy = strdup(options ? options : "");
	if (!copy)
		return CL_OUT_OF_HOST_MEMORY;
	free(g->options);
	g->options = copy;
	g->status = CL_BUILD_IN_PROGRESS;
	code = with_text(g->context, PACKET_BUILD, g->handle, 0, copy, strlen(copy));
	g->status = code ? CL_BUILD_ERROR : CL_BUILD_SUCCESS;
	if (notify) {
		notify(g, data);
		return CL_SUCCESS;
	}
	return code;
}

cl_int program_text(cl_program g, cl_uint what, void **text, size_t *n)
{
	struct channel *ch = g->context->device->channel;

	for (uint64_t room = 64 << 10;;) {
		struct packet p;
		struct staging s;
		uint32_t length;
		uint64_t size;

		if (channel_reserve(ch, room, &s))
			return CL_DEVICE_NOT_AVAILABLE;
		packet_start(&p, PACKET_PROGRAM_INFO, 0);
		packet_u32(&p, g->handle);
		packet_u32(&p, what);
		cl_int code = channel_call(ch, &p, &s, &length);
		if (!code && length < sizeof size)
			code = CL_OUT_OF_RESOURCES;
		if (code) {
			channel_free(ch, &s);
			return code;
		}
		memcpy(&size, s.mirror, sizeof size);
		if (size <= length - sizeof size) {
			*text = malloc(size + 1);
			if (*text) {
				memcpy(*text, s.mirror + sizeof size, size);
				((char *)*text)[size] = 0;
			}
			*n = size;
			channel_free(ch, &s);
			return *text ? CL_SUCCESS : CL_OUT_OF_HOST_MEMORY;
		}
		channel_free(ch, &s);
		if (size + sizeof size > channel_block(ch) || room >= size + sizeof size)
			return CL_OUT_OF_RESOURCES;
		room = size + sizeof size;
	}
}

static cl_int give_text(cl_program g, cl_uint what, size_t room, void *out, size_t *size)
{
	void *text;
	size_t n;
	cl_int code = program_text(g, what, &text, &n);

	if (code)
		return code;
	/* Texts have a zero at the end. */
	if (what != INFO_BINARY && (n == 0 || ((char *)text)[n - 1]))
		n++;
	code = give(room, out, size, text, n);
	free(text);
	return code;
}

cl_int CL_API_CALL dxpu_GetProgramBuildInfo(cl_program g, cl_device_id d, cl_program_build_info param, size_t room, void *out,
						   size_t *size)
{
	if (!object_is(g, KIND_PROGRAM))
		return CL_INVALID_PROGRAM;
	if (d != g->context->device)
		return CL_INVALID_DEVICE;
	switch (param) {
	case CL_PROGRAM_BUILD_STATUS:
		return GIVE(cl_build_status, g->status);
	case CL_PROGRAM_BUILD_OPTIONS:
		return give(room, out, size, g->options ? g->options : "", g->options ? strlen(g->options) + 1 : 1);
	case CL_PROGRAM_BUILD_LOG:
		return give_text(g, INFO_LOG, room, out, size);
	case CL_PROGRAM_BINARY_TYPE:
		return GIVE(cl_program_binary_type, g->status == CL_BUILD_SUCCESS ? CL_PROGRAM_BINARY_TYPE_EXECUTABLE
										   : CL_PROGRAM_BINARY_TYPE_NONE);
	case CL_PROGRAM_BUILD_GLOBAL_VARIABLE_TOTAL_SIZE:
		return GIVE(size_t, 0);
	}
	return CL_INVALID_VALUE;
}

size_t count_names(const char *names)
{
	size_t n = *names != 0;

	for (; *names; names++)
		n += *names == ';';
	return n;
}

cl_int CL_API_CALL dxpu_GetProgramInfo(cl_program g, cl_program_info param, size_t room, void *out, size_t *size)
{
	void *text;
	size_t n;
	cl_int code;

	if (!object_is(g, KIND_PROGRAM))
		return CL_INVALID_PROGRAM;
	switch (param) {
	case CL_PROGRAM_REFERENCE_COUNT:
		return GIVE(cl_uint, (cl_uint)g->object.references);
	case CL_PROGRAM_CONTEXT:
		return GIVE(cl_context, g->context);
	case CL_PROGRAM_NUM_DEVICES:
		return GIVE(cl_uint, 1);
	case CL_PROGRAM_DEVICES:
		return GIVE(cl_device_id, g->context->device);
	case CL_PROGRAM_SOURCE:
		return give(room, out, size, g->source ? g->source : "", g->source ? strlen(g->source) + 1 : 1);
	case CL_PROGRAM_IL:
		return give(room, out, size, NULL, 0);
	case CL_PROGRAM_SCOPE_GLOBAL_CTORS_PRESENT:
	case CL_PROGRAM_SCOPE_GLOBAL_DTORS_PRESENT:
		return GIVE(cl_bool, CL_FALSE);
	case CL_PROGRAM_KERNEL_NAMES:
	case CL_PROGRAM_NUM_KERNELS:
		if (g->status != CL_BUILD_SUCCESS)
			return CL_INVALID_PROGRAM_EXECUTABLE;
		if (param == CL_PROGRAM_KERNEL_NAMES)
			return give_text(g, INFO_KERNELS, room, out, size);
		code = program_text(g, INFO_KERNELS, &text, &n);
		if (code)
			return code;
		n = count_names(text);
		free(text);
		return GIVE(size_t, n);
	case CL_PROGRAM_BINARY_SIZES:
	case CL_PROGRAM_BINARIES:
		if (g->status != CL_BUILD_SUCCESS)
			return param == CL_PROGRAM_BINARIES ? CL_INVALID_PROGRAM_EXECUTABLE : GIVE(size_t, 0);
		code = program_text(g, INFO_BINARY, &text, &n);
		if (code)
			return code;
		if (param == CL_PROGRAM_BINARY_SIZES)
			code = GIVE(size_t, n);
		else {
			unsigned char *to = NULL;
			if (out && room < sizeof to)
				code = CL_INVALID_VALUE;
			else if (out)
				memcpy(&to, out, sizeof to);
			if (to)
				memcpy(to, text, n);
			if (size)
				*size = sizeof to;
		}
		free(text);
		return code;
	}
	return CL_INVALID_VALUE;
}

cl_int CL_API_CALL dxpu_UnloadPlatformCompiler(cl_platform_id p) { return object_is(p, KIND_PLATFORM) ? CL_SUCCESS : CL_INVALID_PLATFORM; }
cl_int CL_API_CALL dxpu_UnloadCompiler(void) { return CL_SUCCESS; }
