/* Programs are built, compiled and linked. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "calls.h"

/* check_devices checks the devices and the callback of a build. */
static cl_int check_devices(cl_context c, cl_uint n, const cl_device_id *list, int notified, const void *data)
{
	if ((n == 0) != (list == NULL) || (!notified && data))
		return CL_INVALID_VALUE;
	for (cl_uint i = 0; i < n; i++) /* one that is there twice counts once */
		if (list[i] != c->device)
			return CL_INVALID_DEVICE;
	return CL_SUCCESS;
}

/* send_source gives the device another source of a program. */
static cl_int send_source(cl_program g, const char *text)
{
	cl_uint handle = channel_handle(g->context->device->channel);
	cl_int code = program_send(g->context, PACKET_PROGRAM, handle, PROGRAM_SOURCE, text, strlen(text), NULL);

	if (!code) {
		dxpu_release(g->context, g->handle);
		g->handle = handle;
		g->loaded = 0;
	}
	return code;
}

/* send_headers gives the device the text of headers that include files of this machine. It sets
 * their handles. */
static cl_int send_headers(cl_program g, const char *options, const struct inputs *in, cl_uint *handles)
{
	cl_int code = CL_SUCCESS;

	for (cl_uint i = 0; i < in->count && !code; i++) {
		char *text = in->programs[i]->source ? include_files(in->programs[i]->source, options, in) : NULL;
		if (!text)
			continue;
		g->prints |= strstr(text, "printf") != NULL;
		handles[i] = channel_handle(g->context->device->channel);
		code = program_send(g->context, PACKET_PROGRAM, handles[i], PROGRAM_SOURCE, text, strlen(text), NULL);
		if (code)
			handles[i] = 0;
		free(text);
	}
	return code;
}

/* send_build sends the packet of a build, with the headers that belong to it. */
static cl_int send_build(cl_program g, uint16_t op, const char *options, const struct inputs *in)
{
	if (!in || !in->names)
		return program_send(g->context, op, g->handle, in ? in->count : 0, options, strlen(options), in);
	cl_uint *handles = calloc(in->count + 1, sizeof *handles);
	const struct inputs sent = {in->count, in->programs, in->names, handles};
	cl_int code = handles ? send_headers(g, options, in, handles) : CL_OUT_OF_HOST_MEMORY;

	if (!code)
		code = program_send(g->context, op, g->handle, in->count, options, strlen(options), &sent);
	for (cl_uint i = 0; handles && i < in->count; i++)
		if (handles[i])
			dxpu_release(g->context, handles[i]);
	free(handles);
	return code;
}

/* check_options refuses options that end with one that wants a name behind it. PoCL's process ends with them. */
static cl_int check_options(uint16_t op, const char *options)
{
	size_t n = strlen(options);

	while (n > 0 && isspace((unsigned char)options[n - 1]))
		n--;
	if (n < 2 || options[n - 2] != '-' || (options[n - 1] != 'D' && options[n - 1] != 'I') || (n > 2 && !isspace((unsigned char)options[n - 3])))
		return CL_SUCCESS;
	return op == PACKET_BUILD ? CL_INVALID_BUILD_OPTIONS : op == PACKET_COMPILE ? CL_INVALID_COMPILER_OPTIONS : CL_INVALID_LINKER_OPTIONS;
}

/* compile sends the packet of a build, and keeps its options and outcome. */
static cl_int compile(cl_program g, uint16_t op, const char *options, const struct inputs *in, cl_program_binary_type type)
{
	char *copy = strdup(options ? options : "");

	if (!copy)
		return CL_OUT_OF_HOST_MEMORY;
	cl_int code = check_options(op, copy);
	free(g->options);
	g->options = copy;
	g->status = CL_BUILD_IN_PROGRESS;
	g->type = type;
	char *files = g->source ? include_files(g->source, copy, in) : NULL;
	const char *source = files ? files : g->source;
	cache_forget(g);
	if (files)
		g->prints |= strstr(files, "printf") != NULL;
	if (!code && (op != PACKET_BUILD || !source || !cache_load(g, source))) {
		if (files || g->loaded)
			code = send_source(g, source);
		if (!code)
			code = send_build(g, op, copy, in);
	}
	free(files);
	g->status = code ? CL_BUILD_ERROR : CL_BUILD_SUCCESS;
	for (cl_uint i = 0; in && i < in->count; i++)
		g->prints |= in->programs[i]->prints;
	return code;
}

cl_int CL_API_CALL dxpu_BuildProgram(cl_program g, cl_uint n, const cl_device_id *list, const char *options,
					    void(CL_CALLBACK *notify)(cl_program, void *), void *data)
{
	cl_int code;

	if (!object_is(g, KIND_PROGRAM))
		return CL_INVALID_PROGRAM;
	code = check_devices(g->context, n, list, notify != NULL, data);
	if (!code && (g->kernels > 0 || (!g->source && !g->given))) /* it was linked */
		code = CL_INVALID_OPERATION;
	if (code)
		return code;
	code = compile(g, PACKET_BUILD, options, NULL, CL_PROGRAM_BINARY_TYPE_EXECUTABLE);
	if (notify) {
		notify(g, data);
		return CL_SUCCESS;
	}
	return code;
}

cl_int CL_API_CALL dxpu_CompileProgram(cl_program g, cl_uint n, const cl_device_id *list, const char *options, cl_uint headers,
				       const cl_program *programs, const char **names, void(CL_CALLBACK *notify)(cl_program, void *),
				       void *data)
{
	const struct inputs in = {headers, programs, names, NULL};
	cl_int code;

	if (!object_is(g, KIND_PROGRAM))
		return CL_INVALID_PROGRAM;
	code = check_devices(g->context, n, list, notify != NULL, data);
	if (!code && (headers == 0) != (!programs && !names))
		code = CL_INVALID_VALUE;
	if (!code && headers && (!programs || !names))
		code = CL_INVALID_VALUE;
	if (!code && ((!g->source && g->given_kind != PROGRAM_IL) || g->kernels > 0))
		code = CL_INVALID_OPERATION;
	for (cl_uint i = 0; i < headers && !code; i++)
		code = !object_is(programs[i], KIND_PROGRAM) ? CL_INVALID_PROGRAM : !names[i] ? CL_INVALID_VALUE : CL_SUCCESS;
	if (code)
		return code;
	code = compile(g, PACKET_COMPILE, options, &in, CL_PROGRAM_BINARY_TYPE_COMPILED_OBJECT);
	if (notify) {
		notify(g, data);
		return CL_SUCCESS;
	}
	return code;
}

cl_program CL_API_CALL dxpu_LinkProgram(cl_context c, cl_uint n, const cl_device_id *list, const char *options, cl_uint count,
					const cl_program *programs, void(CL_CALLBACK *notify)(cl_program, void *), void *data,
					cl_int *error)
{
	const struct inputs in = {count, programs, NULL, NULL};
	int library = options && strstr(options, "-create-library");
	cl_program g;
	cl_int code;

	if (!object_is(c, KIND_CONTEXT))
		return no_program(CL_INVALID_CONTEXT, error);
	code = check_devices(c, n, list, notify != NULL, data);
	if (!code && (count == 0 || !programs))
		code = CL_INVALID_VALUE;
	for (cl_uint i = 0; i < count && !code; i++)
		if (!object_is(programs[i], KIND_PROGRAM))
			code = CL_INVALID_PROGRAM;
		else if (programs[i]->context != c || programs[i]->status == CL_BUILD_ERROR || (programs[i]->source && programs[i]->status))
			code = CL_INVALID_OPERATION; /* not compiled */
	if (code)
		return no_program(code, error);
	g = object_new(KIND_PROGRAM, sizeof *g);
	if (!g)
		return no_program(CL_OUT_OF_HOST_MEMORY, error);
	g->context = c;
	g->handle = channel_handle(c->device->channel);
	object_retain(c);
	code = compile(g, PACKET_LINK, options, &in, library ? CL_PROGRAM_BINARY_TYPE_LIBRARY : CL_PROGRAM_BINARY_TYPE_EXECUTABLE);
	/* After an error of the linker, the program has its messages. */
	if (code && code != CL_LINK_PROGRAM_FAILURE) {
		program_release(g);
		return no_program(code, error);
	}
	if (notify)
		notify(g, data);
	if (error)
		*error = notify ? CL_SUCCESS : code;
	return g;
}

cl_int CL_API_CALL dxpu_UnloadPlatformCompiler(cl_platform_id p) { return object_is(p, KIND_PLATFORM) ? CL_SUCCESS : CL_INVALID_PLATFORM; }
cl_int CL_API_CALL dxpu_UnloadCompiler(void) { return CL_SUCCESS; }
