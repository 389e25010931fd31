#include <stdlib.h>
#include <string.h>

#include "calls.h"

static int take_kernel(cl_kernel k, const unsigned char *result, uint32_t length)
{
	uint64_t count;

	if (length < sizeof count)
		return -1;
	memcpy(&count, result, sizeof count);
	if (count > 1024 || properties_take(&k->properties, result + sizeof count, length - sizeof count))
		return -1;
	k->count = (cl_uint)count;
	k->arguments = calloc(count ? count : 1, sizeof *k->arguments);
	return k->arguments ? 0 : -1;
}

static void kernel_free(cl_kernel k)
{
	for (cl_uint i = 0; k->arguments && i < k->count; i++)
		free(k->arguments[i].value);
	free(k->arguments);
	free(k->shared);
	free(k->properties.bytes);
	free(k->name);
	free(k);
}

static cl_int new_kernel(cl_program g, const char *name, cl_kernel *out)
{
	struct channel *ch = g->context->device->channel;
	struct packet p;
	struct staging s;
	uint32_t length;
	cl_kernel k = object_new(KIND_KERNEL, sizeof *k);

	if (!k || !(k->name = strdup(name))) {
		free(k);
		return CL_OUT_OF_HOST_MEMORY;
	}
	k->handle = channel_handle(ch);
	packet_start(&p, PACKET_KERNEL, 0);
	packet_u32(&p, k->handle);
	packet_u32(&p, g->handle);
	packet_u32(&p, (uint32_t)strlen(name));
	packet_u32(&p, 0);
	packet_bytes(&p, name, strlen(name));
	cl_int code = CL_DEVICE_NOT_AVAILABLE;
	if (p.overflow)
		code = CL_INVALID_KERNEL_NAME;
	else if (!channel_reserve(ch, 256 << 10, &s)) {
		code = channel_call(ch, &p, &s, &length);
		if (!code && take_kernel(k, s.mirror, length)) {
			code = CL_OUT_OF_RESOURCES;
			dxpu_release(g->context, k->handle);
		}
		channel_free(ch, &s);
	}
	if (code) {
		kernel_free(k);
		return code;
	}
	k->program = g;
	pthread_mutex_lock(&dxpu_lock);
	g->kernels++;
	g->object.references++;
	pthread_mutex_unlock(&dxpu_lock);
	*out = k;
	return CL_SUCCESS;
}

cl_kernel CL_API_CALL dxpu_CreateKernel(cl_program g, const char *name, cl_int *error)
{
	cl_kernel k = NULL;
	cl_int code;

	if (!object_is(g, KIND_PROGRAM))
		code = CL_INVALID_PROGRAM;
	else if (!name)
		code = CL_INVALID_VALUE;
	else if (!program_executable(g))
		code = CL_INVALID_PROGRAM_EXECUTABLE;
	else
		code = new_kernel(g, name, &k);
	if (error)
		*error = code;
	return k;
}

cl_int CL_API_CALL dxpu_CreateKernelsInProgram(cl_program g, cl_uint room, cl_kernel *out, cl_uint *n)
{
	void *names;
	size_t length, count;
	char *rest = NULL;
	cl_uint made = 0;
	cl_int code;

	if (!object_is(g, KIND_PROGRAM))
		return CL_INVALID_PROGRAM;
	if (!program_executable(g))
		return CL_INVALID_PROGRAM_EXECUTABLE;
	code = program_text(g, INFO_KERNELS, &names, &length);
	if (code)
		return code;
	count = count_names(names);
	if (out && room < count)
		code = CL_INVALID_VALUE;
	for (char *name = out && !code ? strtok_r(names, ";", &rest) : NULL; name && !code; name = strtok_r(NULL, ";", &rest)) {
		code = new_kernel(g, name, &out[made]);
		made += !code;
	}
	while (code && made > 0)
		dxpu_ReleaseKernel(out[--made]);
	if (!code && n)
		*n = (cl_uint)count;
	free(names);
	return code;
}

cl_int CL_API_CALL dxpu_RetainKernel(cl_kernel k)
{
	if (!object_is(k, KIND_KERNEL))
		return CL_INVALID_KERNEL;
	object_hold(k);
	return CL_SUCCESS;
}

cl_int CL_API_CALL dxpu_ReleaseKernel(cl_kernel k)
{
	if (!object_is(k, KIND_KERNEL) || object_let(k) < 0)
		return CL_INVALID_KERNEL;
	if (!object_drop(k))
		return CL_SUCCESS;
	dxpu_release(k->program->context, k->handle);
	pthread_mutex_lock(&dxpu_lock);
	k->program->kernels--;
	pthread_mutex_unlock(&dxpu_lock);
	program_release(k->program);
	kernel_free(k);
	return CL_SUCCESS;
}

/* kind_of returns the kind of an argument. An image has an access qualifier, whatever its type is
 * called; a sampler has only its name. */
static int kind_of(cl_kernel k, cl_uint i)
{
	struct property p;
	cl_kernel_arg_address_qualifier space = CL_KERNEL_ARG_ADDRESS_PRIVATE;
	cl_kernel_arg_access_qualifier access = CL_KERNEL_ARG_ACCESS_NONE;

	if (properties_find(&k->properties, CL_KERNEL_ARG_TYPE_NAME, i, &p)) {
		const char *name = p.value;
		size_t n = strnlen(name, (size_t)p.size);
		if (n == 9 && !memcmp(name, "sampler_t", n))
			return ARGUMENT_SAMPLER;
	}
	if (properties_find(&k->properties, CL_KERNEL_ARG_ACCESS_QUALIFIER, i, &p) && p.size == sizeof access)
		memcpy(&access, p.value, sizeof access);
	if (access != CL_KERNEL_ARG_ACCESS_NONE)
		return ARGUMENT_IMAGE;
	if (properties_find(&k->properties, CL_KERNEL_ARG_ADDRESS_QUALIFIER, i, &p) && p.size == sizeof space)
		memcpy(&space, p.value, sizeof space);
	if (space == CL_KERNEL_ARG_ADDRESS_LOCAL)
		return ARGUMENT_LOCAL;
	return space == CL_KERNEL_ARG_ADDRESS_GLOBAL || space == CL_KERNEL_ARG_ADDRESS_CONSTANT ? ARGUMENT_BUFFER : ARGUMENT_VALUE;
}

/* value_size returns the size of a type of OpenCL C that a value may have, or 0 if its name does not say it. */
static size_t value_size(const char *name, size_t n)
{
	static const struct {
		const char *name;
		size_t size;
	} scalars[] = {
		{"char", 1}, {"uchar", 1}, {"short", 2}, {"ushort", 2}, {"half", 2}, {"int", 4}, {"uint", 4}, {"float", 4},
		{"long", 8}, {"ulong", 8}, {"double", 8},
	};

	for (size_t i = 0; i < sizeof scalars / sizeof *scalars; i++) {
		size_t length = strlen(scalars[i].name);
		if (n < length || memcmp(name, scalars[i].name, length))
			continue;
		if (n == length)
			return scalars[i].size;
		/* Platforms differ on vectors of 3. */
		static const char *const widths[] = {"2", "4", "8", "16"};
		static const size_t counts[] = {2, 4, 8, 16};
		for (size_t w = 0; w < sizeof counts / sizeof *counts; w++)
			if (n - length == strlen(widths[w]) && !memcmp(name + length, widths[w], n - length))
				return scalars[i].size * counts[w];
	}
	return 0;
}

/* size_wrong reports whether an argument is a value of another size. The device would end each launch with
 * this error; programs want it from the call. */
static int size_wrong(cl_kernel k, cl_uint i, size_t size)
{
	struct property p;

	if (!properties_find(&k->properties, CL_KERNEL_ARG_TYPE_NAME, i, &p))
		return 0;
	size_t right = value_size(p.value, strnlen(p.value, (size_t)p.size));
	return right && right != size;
}

/* image_argument takes an image that kernels may use as this argument does. */
static cl_int image_argument(cl_kernel k, cl_uint i, struct argument *a, cl_mem m)
{
	struct property p;
	cl_kernel_arg_access_qualifier access = CL_KERNEL_ARG_ACCESS_NONE;

	if (!object_is(m, KIND_MEM) || !m->image)
		return CL_INVALID_MEM_OBJECT;
	if (properties_find(&k->properties, CL_KERNEL_ARG_ACCESS_QUALIFIER, i, &p) && p.size == sizeof access)
		memcpy(&access, p.value, sizeof access);
	if ((m->flags & CL_MEM_READ_ONLY && access != CL_KERNEL_ARG_ACCESS_READ_ONLY) ||
	    (m->flags & CL_MEM_WRITE_ONLY && access != CL_KERNEL_ARG_ACCESS_WRITE_ONLY))
		return CL_INVALID_ARG_VALUE;
	a->handle = m->handle;
	return CL_SUCCESS;
}

/* object_argument takes the handle of a buffer, an image or a sampler. */
static cl_int object_argument(cl_kernel k, cl_uint i, struct argument *a, size_t size, const void *value)
{
	void *object = NULL;

	if (size != sizeof object)
		return CL_INVALID_ARG_SIZE;
	if (value)
		memcpy(&object, value, sizeof object);
	if (a->kind == ARGUMENT_SAMPLER) {
		if (!object_is(object, KIND_SAMPLER))
			return CL_INVALID_SAMPLER;
		a->handle = ((cl_sampler)object)->handle;
		return CL_SUCCESS;
	}
	if (a->kind == ARGUMENT_IMAGE)
		return image_argument(k, i, a, object);
	if (!object)
		return CL_SUCCESS;
	if (!object_is(object, KIND_MEM) || ((cl_mem)object)->image)
		return CL_INVALID_MEM_OBJECT;
	a->handle = ((cl_mem)object)->handle;
	return CL_SUCCESS;
}

cl_int CL_API_CALL dxpu_SetKernelArg(cl_kernel k, cl_uint i, size_t size, const void *value)
{
	struct argument a = {.set = 1, .size = size};
	cl_int code = CL_SUCCESS;

	if (!object_is(k, KIND_KERNEL))
		return CL_INVALID_KERNEL;
	if (i >= k->count)
		return CL_INVALID_ARG_INDEX;
	a.kind = kind_of(k, i);
	switch (a.kind) {
	case ARGUMENT_VALUE:
		if (!value)
			return CL_INVALID_ARG_VALUE;
		if (size == 0 || size > MAX_PARAMETERS || size_wrong(k, i, size))
			return CL_INVALID_ARG_SIZE;
		a.value = malloc(size);
		if (!a.value)
			return CL_OUT_OF_HOST_MEMORY;
		memcpy(a.value, value, size);
		break;
	case ARGUMENT_LOCAL:
		if (value)
			return CL_INVALID_ARG_VALUE;
		if (size == 0)
			return CL_INVALID_ARG_SIZE;
		break;
	default:
		code = object_argument(k, i, &a, size, value);
	}
	if (code)
		return code;
	pthread_mutex_lock(&dxpu_lock);
	free(k->arguments[i].value);
	k->arguments[i] = a;
	pthread_mutex_unlock(&dxpu_lock);
	return CL_SUCCESS;
}

cl_int CL_API_CALL dxpu_SetKernelArgSVMPointer(cl_kernel k, cl_uint i, const void *value)
{
	struct argument a = {.set = 1, .kind = ARGUMENT_BUFFER, .size = sizeof value};

	if (!object_is(k, KIND_KERNEL))
		return CL_INVALID_KERNEL;
	if (!device_shares(k->program->context->device))
		return CL_INVALID_OPERATION;
	if (i >= k->count)
		return CL_INVALID_ARG_INDEX;
	cl_mem m = value ? svm_find(k->program->context, value, &a.offset) : NULL;
	if (kind_of(k, i) != ARGUMENT_BUFFER || (value && !m))
		return CL_INVALID_ARG_VALUE;
	if (m) {
		a.kind = ARGUMENT_SHARED;
		a.handle = m->handle;
	}
	pthread_mutex_lock(&dxpu_lock);
	free(k->arguments[i].value);
	k->arguments[i] = a;
	pthread_mutex_unlock(&dxpu_lock);
	return CL_SUCCESS;
}

/* copy_shared copies the regions that a kernel uses beside its arguments. The caller holds the lock. */
static cl_int copy_shared(cl_kernel to, cl_kernel from)
{
	if (!from->shared_count)
		return CL_SUCCESS;
	to->shared = malloc(from->shared_count * sizeof *to->shared);
	if (!to->shared)
		return CL_OUT_OF_HOST_MEMORY;
	memcpy(to->shared, from->shared, from->shared_count * sizeof *to->shared);
	to->shared_count = from->shared_count;
	return CL_SUCCESS;
}

/* A clone is another kernel with the same arguments. */
cl_kernel CL_API_CALL dxpu_CloneKernel(cl_kernel k, cl_int *error)
{
	cl_kernel copy = NULL;
	cl_int code = object_is(k, KIND_KERNEL) ? new_kernel(k->program, k->name, &copy) : CL_INVALID_KERNEL;

	if (!code) {
		pthread_mutex_lock(&dxpu_lock);
		for (cl_uint i = 0; i < k->count && i < copy->count && !code; i++) {
			struct argument a = k->arguments[i];
			if (a.value && (a.value = malloc(a.size)))
				memcpy(a.value, k->arguments[i].value, a.size);
			else if (k->arguments[i].value)
				code = CL_OUT_OF_HOST_MEMORY;
			copy->arguments[i] = a;
		}
		code = code ? code : copy_shared(copy, k);
		pthread_mutex_unlock(&dxpu_lock);
		if (code) {
			dxpu_ReleaseKernel(copy);
			copy = NULL;
		}
	}
	if (error)
		*error = code;
	return copy;
}

static cl_int give_property(cl_kernel k, uint32_t param, uint32_t index, size_t room, void *out, size_t *size, cl_int missing)
{
	struct property p;

	if (!properties_find(&k->properties, param, index, &p))
		return missing;
	return give(room, out, size, p.value, (size_t)p.size);
}

cl_int CL_API_CALL dxpu_GetKernelInfo(cl_kernel k, cl_kernel_info param, size_t room, void *out, size_t *size)
{
	if (!object_is(k, KIND_KERNEL))
		return CL_INVALID_KERNEL;
	switch (param) {
	case CL_KERNEL_FUNCTION_NAME:
		return give(room, out, size, k->name, strlen(k->name) + 1);
	case CL_KERNEL_NUM_ARGS:
		return GIVE(cl_uint, k->count);
	case CL_KERNEL_REFERENCE_COUNT:
		return GIVE(cl_uint, object_held(k));
	case CL_KERNEL_CONTEXT:
		return GIVE(cl_context, k->program->context);
	case CL_KERNEL_PROGRAM:
		return GIVE(cl_program, k->program);
	}
	/* The properties also have those of work-groups. */
	return param == CL_KERNEL_ATTRIBUTES ? give_property(k, param, NO_INDEX, room, out, size, CL_INVALID_VALUE) : CL_INVALID_VALUE;
}

/* local_arguments is the local memory of the arguments that are set. */
static cl_ulong local_arguments(cl_kernel k)
{
	cl_ulong n = 0;

	pthread_mutex_lock(&dxpu_lock);
	for (cl_uint i = 0; i < k->count; i++)
		if (k->arguments[i].set && k->arguments[i].kind == ARGUMENT_LOCAL)
			n += k->arguments[i].size;
	pthread_mutex_unlock(&dxpu_lock);
	return n;
}

cl_int CL_API_CALL dxpu_GetKernelWorkGroupInfo(cl_kernel k, cl_device_id d, cl_kernel_work_group_info param, size_t room,
						      void *out, size_t *size)
{
	if (!object_is(k, KIND_KERNEL))
		return CL_INVALID_KERNEL;
	if (d && d != k->program->context->device)
		return CL_INVALID_DEVICE;
	if (param < CL_KERNEL_WORK_GROUP_SIZE || param > CL_KERNEL_GLOBAL_WORK_SIZE)
		return CL_INVALID_VALUE;
	struct property p;
	cl_ulong own;
	/* The engine was asked when the kernel was made. */
	if (param == CL_KERNEL_LOCAL_MEM_SIZE && properties_find(&k->properties, param, NO_INDEX, &p) && p.size == sizeof own) {
		memcpy(&own, p.value, sizeof own);
		return GIVE(cl_ulong, own + local_arguments(k));
	}
	return give_property(k, param, NO_INDEX, room, out, size, CL_INVALID_VALUE);
}

cl_int CL_API_CALL dxpu_GetKernelArgInfo(cl_kernel k, cl_uint i, cl_kernel_arg_info param, size_t room, void *out, size_t *size)
{
	if (!object_is(k, KIND_KERNEL))
		return CL_INVALID_KERNEL;
	if (i >= k->count)
		return CL_INVALID_ARG_INDEX;
	if (param < CL_KERNEL_ARG_ADDRESS_QUALIFIER || param > CL_KERNEL_ARG_NAME)
		return CL_INVALID_VALUE;
	/* The engine's compiler may know it anyway; OpenCL wants the option for it. */
	const cl_program g = k->program;
	if (g->source && (!g->options || !strstr(g->options, "-cl-kernel-arg-info")))
		return CL_KERNEL_ARG_INFO_NOT_AVAILABLE;
	return give_property(k, param, i, room, out, size, CL_KERNEL_ARG_INFO_NOT_AVAILABLE);
}
