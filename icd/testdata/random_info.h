/* Queries of a random program. */

enum { OF_CONTEXT, OF_QUEUE, OF_MEM, OF_IMAGE, OF_PROGRAM, OF_BUILD, OF_KERNEL, OF_GROUP, OF_ARG, OF_EVENT, OF_SAMPLER };

/* query is one of a kind of object. The value of a hidden one is a handle, a count of references, or
 * belongs to the platform. */
static const struct query {
	int kind;
	cl_uint param;
	int hidden;
} queries[] = {
	{OF_CONTEXT, CL_CONTEXT_REFERENCE_COUNT, 1}, {OF_CONTEXT, CL_CONTEXT_NUM_DEVICES, 0}, {OF_CONTEXT, CL_CONTEXT_DEVICES, 1}, {OF_CONTEXT, CL_CONTEXT_PROPERTIES, 1},
	{OF_CONTEXT, 0x1111, 0}, {OF_QUEUE, CL_QUEUE_CONTEXT, 1}, {OF_QUEUE, CL_QUEUE_DEVICE, 1}, {OF_QUEUE, CL_QUEUE_REFERENCE_COUNT, 1}, {OF_QUEUE, CL_QUEUE_PROPERTIES, 0},
	{OF_QUEUE, CL_QUEUE_PROPERTIES_ARRAY, 0}, {OF_QUEUE, CL_QUEUE_SIZE, 0}, {OF_QUEUE, CL_QUEUE_DEVICE_DEFAULT, 0}, {OF_QUEUE, 0x1111, 0},
	{OF_MEM, CL_MEM_TYPE, 0}, {OF_MEM, CL_MEM_FLAGS, 0}, {OF_MEM, CL_MEM_SIZE, 0}, {OF_MEM, CL_MEM_HOST_PTR, 1}, {OF_MEM, CL_MEM_MAP_COUNT, 1}, {OF_MEM, CL_MEM_REFERENCE_COUNT, 1},
	{OF_MEM, CL_MEM_CONTEXT, 1}, {OF_MEM, CL_MEM_ASSOCIATED_MEMOBJECT, 1}, {OF_MEM, CL_MEM_OFFSET, 0}, {OF_MEM, CL_MEM_USES_SVM_POINTER, 0}, {OF_MEM, CL_MEM_PROPERTIES, 0}, {OF_MEM, 0x1111, 0},
	{OF_IMAGE, CL_IMAGE_FORMAT, 0}, {OF_IMAGE, CL_IMAGE_ELEMENT_SIZE, 0}, {OF_IMAGE, CL_IMAGE_ROW_PITCH, 0}, {OF_IMAGE, CL_IMAGE_SLICE_PITCH, 0}, {OF_IMAGE, CL_IMAGE_WIDTH, 0}, {OF_IMAGE, CL_IMAGE_HEIGHT, 0},
	{OF_IMAGE, CL_IMAGE_DEPTH, 0}, {OF_IMAGE, CL_IMAGE_ARRAY_SIZE, 0}, {OF_IMAGE, CL_IMAGE_BUFFER, 0}, {OF_IMAGE, CL_IMAGE_NUM_MIP_LEVELS, 0}, {OF_IMAGE, CL_IMAGE_NUM_SAMPLES, 0}, {OF_IMAGE, 0x1234, 0},
	{OF_PROGRAM, CL_PROGRAM_REFERENCE_COUNT, 1}, {OF_PROGRAM, CL_PROGRAM_CONTEXT, 1}, {OF_PROGRAM, CL_PROGRAM_NUM_DEVICES, 0}, {OF_PROGRAM, CL_PROGRAM_DEVICES, 1}, {OF_PROGRAM, CL_PROGRAM_SOURCE, 0},
	{OF_PROGRAM, CL_PROGRAM_NUM_KERNELS, 0}, {OF_PROGRAM, CL_PROGRAM_KERNEL_NAMES, 0}, {OF_PROGRAM, CL_PROGRAM_IL, 0}, {OF_PROGRAM, 0x1234, 0},
	{OF_PROGRAM, CL_PROGRAM_SCOPE_GLOBAL_CTORS_PRESENT, 0}, {OF_PROGRAM, CL_PROGRAM_SCOPE_GLOBAL_DTORS_PRESENT, 0},
	{OF_BUILD, CL_PROGRAM_BUILD_STATUS, 0}, {OF_BUILD, CL_PROGRAM_BUILD_OPTIONS, 0}, {OF_BUILD, CL_PROGRAM_BUILD_LOG, 0}, {OF_BUILD, CL_PROGRAM_BINARY_TYPE, 0}, {OF_BUILD, CL_PROGRAM_BUILD_GLOBAL_VARIABLE_TOTAL_SIZE, 0}, {OF_BUILD, 0x1111, 0},
	{OF_KERNEL, CL_KERNEL_FUNCTION_NAME, 0}, {OF_KERNEL, CL_KERNEL_NUM_ARGS, 0}, {OF_KERNEL, CL_KERNEL_REFERENCE_COUNT, 1}, {OF_KERNEL, CL_KERNEL_CONTEXT, 1}, {OF_KERNEL, CL_KERNEL_PROGRAM, 1}, {OF_KERNEL, CL_KERNEL_ATTRIBUTES, 0}, {OF_KERNEL, 0x1111, 0},
	{OF_GROUP, CL_KERNEL_WORK_GROUP_SIZE, 0}, {OF_GROUP, CL_KERNEL_COMPILE_WORK_GROUP_SIZE, 0}, {OF_GROUP, CL_KERNEL_LOCAL_MEM_SIZE, 0}, {OF_GROUP, CL_KERNEL_PREFERRED_WORK_GROUP_SIZE_MULTIPLE, 0}, {OF_GROUP, CL_KERNEL_PRIVATE_MEM_SIZE, 0}, {OF_GROUP, CL_KERNEL_GLOBAL_WORK_SIZE, 0}, {OF_GROUP, 0x1111, 0},
	{OF_ARG, CL_KERNEL_ARG_ADDRESS_QUALIFIER, 0}, {OF_ARG, CL_KERNEL_ARG_ACCESS_QUALIFIER, 0}, {OF_ARG, CL_KERNEL_ARG_TYPE_NAME, 0}, {OF_ARG, CL_KERNEL_ARG_TYPE_QUALIFIER, 0}, {OF_ARG, CL_KERNEL_ARG_NAME, 0}, {OF_ARG, 0x1111, 0},
	{OF_EVENT, CL_EVENT_COMMAND_QUEUE, 1}, {OF_EVENT, CL_EVENT_CONTEXT, 1}, {OF_EVENT, CL_EVENT_COMMAND_TYPE, 0}, {OF_EVENT, CL_EVENT_COMMAND_EXECUTION_STATUS, 1}, {OF_EVENT, CL_EVENT_REFERENCE_COUNT, 1}, {OF_EVENT, 0x1111, 0},
	{OF_SAMPLER, CL_SAMPLER_REFERENCE_COUNT, 1}, {OF_SAMPLER, CL_SAMPLER_CONTEXT, 1}, {OF_SAMPLER, CL_SAMPLER_NORMALIZED_COORDS, 0}, {OF_SAMPLER, CL_SAMPLER_ADDRESSING_MODE, 0}, {OF_SAMPLER, CL_SAMPLER_FILTER_MODE, 0}, {OF_SAMPLER, CL_SAMPLER_PROPERTIES, 0}, {OF_SAMPLER, 0x1111, 0},
};

static cl_int ask(const struct query *q, struct mem *m, cl_kernel k, cl_uint arg, cl_event e, size_t room, void *out, size_t *size)
{
	switch (q->kind) {
	case OF_CONTEXT:
		return clGetContextInfo(r.c, q->param, room, out, size);
	case OF_QUEUE:
		return clGetCommandQueueInfo(r.queues[any(QUEUES)], q->param, room, out, size);
	case OF_MEM:
		return clGetMemObjectInfo(m->m, q->param, room, out, size);
	case OF_IMAGE:
		return clGetImageInfo(m->m, q->param, room, out, size);
	case OF_PROGRAM:
		return clGetProgramInfo(r.g, q->param, room, out, size);
	case OF_BUILD:
		return clGetProgramBuildInfo(r.g, r.d, q->param, room, out, size);
	case OF_KERNEL:
		return clGetKernelInfo(k, q->param, room, out, size);
	case OF_GROUP:
		return clGetKernelWorkGroupInfo(k, any(2) ? r.d : NULL, q->param, room, out, size);
	case OF_ARG:
		return clGetKernelArgInfo(k, arg, q->param, room, out, size);
	case OF_EVENT:
		return clGetEventInfo(e, q->param, room, out, size);
	}
	return clGetSamplerInfo(r.sampler, q->param, room, out, size);
}

static void info(void)
{
	const struct query *q = &queries[any(sizeof queries / sizeof *queries)];
	static const size_t rooms[] = {0, 1, 2, 4, 8, 16, 24, 64, 16384, 16384, 16384};
	size_t room = rooms[any(11)], size = 777, written = 0;
	static _Thread_local unsigned char out[16384];
	struct mem *m = &r.mems[any(MEMS)];
	int kind = (int)any(NAMES), null = any(4) == 0;
	cl_uint arg = (cl_uint)any(10);

	/* PoCL answers for a buffer as for an image. */
	if (((q->kind == OF_MEM || q->kind == OF_IMAGE) && !m->m) || (q->kind == OF_IMAGE && !m->image) || (q->kind == OF_EVENT && !r.event_count))
		return;
	memset(out, 0xa5, sizeof out);
	cl_event e = r.event_count ? r.events[any((size_t)r.event_count)] : NULL;
	cl_int code = ask(q, m, r.kernels[kind], arg, e, room, null ? NULL : out, &size);
	if (!code && !null && size <= sizeof out)
		written = size;
	for (size_t i = written; !null && i < sizeof out; i++)
		if (out[i] != 0xa5) {
			say("query %#x wrote byte %zu", q->param, i);
			break;
		}
	say("query %#x of %d, mem %d, kernel %d.%u, room %zu, null %d: %d, size %zu, %lx", q->param, q->kind, (int)(m - r.mems), kind, arg, room, null, code,
	    code ? 0 : size, q->hidden ? 0 : hash(out, written));
}

/* belongs reports whether the value of a device's property is the platform's own, or differs in the pool:
 * docs/opencl.md lists them. */
static int belongs(cl_device_info param)
{
	static const cl_device_info list[] = {
		CL_DEVICE_PLATFORM, CL_DEVICE_REFERENCE_COUNT, CL_DEVICE_GLOBAL_MEM_SIZE, CL_DEVICE_MAX_MEM_ALLOC_SIZE, CL_DEVICE_EXTENSIONS, CL_DEVICE_EXTENSIONS_WITH_VERSION,
		CL_DEVICE_PARTITION_MAX_SUB_DEVICES, CL_DEVICE_PARTITION_PROPERTIES, CL_DEVICE_PARTITION_TYPE, CL_DEVICE_SVM_CAPABILITIES,
		CL_DEVICE_EXECUTION_CAPABILITIES, CL_DEVICE_HOST_UNIFIED_MEMORY, CL_DEVICE_BUILT_IN_KERNELS, CL_DEVICE_BUILT_IN_KERNELS_WITH_VERSION,
		CL_DEVICE_LATEST_CONFORMANCE_VERSION_PASSED, CL_DEVICE_DEVICE_ENQUEUE_CAPABILITIES, /* 4 bytes of PoCL, not 8 */
	};

	for (size_t i = 0; i < sizeof list / sizeof *list; i++)
		if (list[i] == param)
			return 1;
	return 0;
}

/* device_info asks for a property of the device. */
static void device_info(void)
{
	static const size_t rooms[] = {0, 1, 4, 8, 4096, 4096};
	unsigned char out[4096] = {0};
	cl_device_info param = (cl_device_info)between(CL_DEVICE_TYPE, CL_DEVICE_LATEST_CONFORMANCE_VERSION_PASSED);
	size_t room = rooms[any(6)], size = 0;

	if (belongs(param))
		return;
	cl_int code = clGetDeviceInfo(r.d, param, room, any(4) ? out : NULL, &size);
	say("device %#x, room %zu: %d, size %zu, %lx", param, room, code, code ? 0 : size, hash(out, sizeof out));
}

/* profile asks for the times of a command, which are in order. */
static void profile(void)
{
	struct mem *m = pick(0, 1, 0);
	unsigned char pattern = (unsigned char)next();
	cl_event e = NULL;
	cl_ulong t[5] = {0};
	cl_int codes[5];
	int right = 1;

	if (!m || r.user)
		return;
	cl_command_queue q = start();
	needs(uses_of(m), 1);
	const cl_event *l = list();
	ended("timed fill", clEnqueueFillBuffer(q, m->m, &pattern, 1, 0, m->size, r.wait_count, l, &e), &e);
	say("wait: %d", clWaitForEvents(1, &e));
	for (cl_uint i = 0; i < 5; i++) {
		codes[i] = clGetEventProfilingInfo(e, CL_PROFILING_COMMAND_QUEUED + i, sizeof t[i], &t[i], NULL);
		right = right && (codes[i] || (t[i] && (i == 0 || t[i - 1] <= t[i])));
	}
	say("times: %d %d %d %d %d, in order %d, another: %d", codes[0], codes[1], codes[2], codes[3], codes[4], right, clGetEventProfilingInfo(e, 0x1111, sizeof t[0], &t[0], NULL));
}
