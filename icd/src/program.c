#include <stdlib.h>
#include <string.h>

#include "calls.h"

cl_program no_program(cl_int code, cl_int *error)
{
	if (error)
		*error = code;
	return NULL;
}

cl_int program_send(cl_context c, uint16_t op, cl_uint a, cl_uint b, const void *text, size_t n, const struct inputs *in)
{
	struct channel *ch = c->device->channel;
	struct packet p;
	struct staging s;
	cl_int code;

	/* An engine takes no empty text. */
	if (op == PACKET_PROGRAM && n == 0)
		text = "\n", n = 1;
	if (n > channel_block(ch))
		return CL_OUT_OF_RESOURCES;
	if (channel_reserve(ch, n, &s))
		return CL_DEVICE_NOT_AVAILABLE;
	packet_start(&p, op, 0);
	packet_u32(&p, a);
	packet_u32(&p, b);
	packet_u64(&p, s.at);
	packet_u64(&p, n);
	for (cl_uint i = 0; in && i < in->count; i++) {
		packet_u32(&p, in->handles && in->handles[i] ? in->handles[i] : in->programs[i]->handle);
		if (!in->names)
			continue;
		packet_u32(&p, (uint32_t)strlen(in->names[i]));
		packet_bytes(&p, in->names[i], strlen(in->names[i]));
	}
	if (in && !in->names && in->count % 2)
		packet_u32(&p, 0);
	code = channel_upload(ch, &s, text, n, &p) ? CL_DEVICE_NOT_AVAILABLE : channel_call(ch, &p, NULL, NULL);
	channel_free(ch, &s);
	return code;
}

/* keep_given keeps a copy of the binary or IL that a program was made of. */
static int keep_given(cl_program g, cl_uint kind, const void *bytes, size_t n)
{
	if (kind == PROGRAM_SOURCE)
		return 1;
	g->given = malloc(n);
	if (!g->given)
		return 0;
	memcpy(g->given, bytes, n);
	g->given_size = n;
	g->given_kind = kind;
	return 1;
}

static cl_program new_program(cl_context c, cl_uint kind, const void *text, size_t n, cl_int *error)
{
	cl_program g = object_new(KIND_PROGRAM, sizeof *g);
	cl_int code = CL_OUT_OF_HOST_MEMORY;

	if (g && keep_given(g, kind, text, n)) {
		g->handle = channel_handle(c->device->channel);
		g->status = CL_BUILD_NONE;
		code = program_send(c, PACKET_PROGRAM, g->handle, kind, text, n, NULL);
		g->prints = memmem(text, n, "printf", 6) != NULL;
	}
	if (code) {
		if (g)
			free(g->given);
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
	text = malloc(size + 1);
	if (!text)
		return no_program(CL_OUT_OF_HOST_MEMORY, error);
	for (cl_uint i = 0; i < count; i++) {
		size_t n = lengths && lengths[i] ? lengths[i] : strlen(strings[i]);
		memcpy(text + at, strings[i], n);
		at += n;
	}
	text[at] = 0;
	g = new_program(c, PROGRAM_SOURCE, text, at, error);
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
	struct property version;
	if (!properties_find(&c->device->properties, CL_DEVICE_IL_VERSION, NO_INDEX, &version) || version.size <= 1)
		return no_program(CL_INVALID_OPERATION, error);
	return new_program(c, PROGRAM_IL, il, n, error);
}

cl_program CL_API_CALL dxpu_CreateProgramWithBinary(cl_context c, cl_uint n, const cl_device_id *list, const size_t *lengths,
							   const unsigned char **binaries, cl_int *status, cl_int *error)
{
	if (!object_is(c, KIND_CONTEXT))
		return no_program(CL_INVALID_CONTEXT, error);
	if (n == 0 || !list)
		return no_program(CL_INVALID_VALUE, error);
	if (n != 1 || list[0] != c->device) /* the context has one device, and a list has none twice */
		return no_program(CL_INVALID_DEVICE, error);
	if (!lengths || !binaries)
		return no_program(CL_INVALID_VALUE, error);
	if (!binaries[0] || lengths[0] == 0) {
		if (status)
			status[0] = CL_INVALID_VALUE;
		return no_program(CL_INVALID_VALUE, error);
	}
	cl_int code;
	cl_program g = new_program(c, PROGRAM_BINARY, binaries[0], lengths[0], &code);
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
	cache_keep(g);
	cache_forget(g);
	dxpu_release(g->context, g->handle);
	context_release(g->context);
	free(g->source);
	free(g->given);
	free(g->options);
	free(g);
}

cl_int CL_API_CALL dxpu_RetainProgram(cl_program g)
{
	if (!object_is(g, KIND_PROGRAM))
		return CL_INVALID_PROGRAM;
	object_hold(g);
	return CL_SUCCESS;
}

cl_int CL_API_CALL dxpu_ReleaseProgram(cl_program g)
{
	if (!object_is(g, KIND_PROGRAM) || object_let(g) < 0)
		return CL_INVALID_PROGRAM;
	program_release(g);
	return CL_SUCCESS;
}

int program_executable(cl_program g) { return g->status == CL_BUILD_SUCCESS && g->type == CL_PROGRAM_BINARY_TYPE_EXECUTABLE; }

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
	if (what != INFO_BINARY && what != INFO_TYPE && (n == 0 || ((char *)text)[n - 1]))
		n++;
	code = give(room, out, size, text, n);
	free(text);
	return code;
}

/* give_log gives the log of a build. Of a link that fails, a platform may make no program (PoCL): its
 * log is empty. */
static cl_int give_log(cl_program g, size_t room, void *out, size_t *size)
{
	if (g->loaded && g->log) /* there is none after a build that failed before it replaced the binary */
		return give(room, out, size, g->log, strlen(g->log) + 1);
	cl_int code = give_text(g, INFO_LOG, room, out, size);
	return code == CL_INVALID_PROGRAM && g->status == CL_BUILD_ERROR ? give(room, out, size, "", 1) : code;
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
		return give_log(g, room, out, size);
	case CL_PROGRAM_BINARY_TYPE:
		if (g->status == CL_BUILD_NONE && !g->source)
			return give_text(g, INFO_TYPE, room, out, size);
		return GIVE(cl_program_binary_type, g->status == CL_BUILD_SUCCESS ? g->type : CL_PROGRAM_BINARY_TYPE_NONE);
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

/* program_binary returns the binary of a program, which the caller frees. One that was made of a binary
 * has that before it is built, and one without has none. */
static cl_int program_binary(cl_program g, void **text, size_t *n)
{
	if (g->status == CL_BUILD_SUCCESS)
		return program_text(g, INFO_BINARY, text, n);
	*n = g->given_kind == PROGRAM_BINARY ? g->given_size : 0;
	*text = malloc(*n + 1);
	if (!*text)
		return CL_OUT_OF_HOST_MEMORY;
	if (*n)
		memcpy(*text, g->given, *n);
	return CL_SUCCESS;
}

static cl_int give_binary(cl_program g, cl_program_info param, size_t room, void *out, size_t *size)
{
	unsigned char *to = NULL;
	void *text;
	size_t n;

	if (param == CL_PROGRAM_BINARIES && out && room < sizeof to)
		return CL_INVALID_VALUE;
	cl_int code = program_binary(g, &text, &n);
	if (code)
		return code;
	if (param == CL_PROGRAM_BINARY_SIZES)
		code = GIVE(size_t, n);
	else {
		if (out)
			memcpy(&to, out, sizeof to);
		if (to)
			memcpy(to, text, n);
		if (size)
			*size = sizeof to;
	}
	free(text);
	return code;
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
		return GIVE(cl_uint, object_held(g));
	case CL_PROGRAM_CONTEXT:
		return GIVE(cl_context, g->context);
	case CL_PROGRAM_NUM_DEVICES:
		return GIVE(cl_uint, 1);
	case CL_PROGRAM_DEVICES:
		return GIVE(cl_device_id, g->context->device);
	case CL_PROGRAM_SOURCE:
		return give(room, out, size, g->source ? g->source : "", g->source ? strlen(g->source) + 1 : 1);
	case CL_PROGRAM_IL:
		return give(room, out, size, g->given, g->given_kind == PROGRAM_IL ? g->given_size : 0);
	case CL_PROGRAM_SCOPE_GLOBAL_CTORS_PRESENT:
	case CL_PROGRAM_SCOPE_GLOBAL_DTORS_PRESENT:
		return GIVE(cl_bool, CL_FALSE);
	case CL_PROGRAM_KERNEL_NAMES:
	case CL_PROGRAM_NUM_KERNELS:
		if (!program_executable(g))
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
		return give_binary(g, param, room, out, size);
	}
	return CL_INVALID_VALUE;
}
