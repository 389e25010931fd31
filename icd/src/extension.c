/* The extensions and features of the platform behind that the device offers. */
#include <string.h>

#include "calls.h"

/* The headers of Debian 12 have no name for the first query of cl_ext_float_atomics. */
enum { FLOAT_ATOMICS = 0x4231 };

/* Extensions that need no call of the host: of the kernel language, of intermediate languages, of what
 * the calls of the core take, or of queries. NEEDS is a property of the extension, which a box of an
 * earlier version does not send. */
static const struct extension {
	const char *name;
	uint32_t needs;
} extensions[] = {
	{"cl_khr_fp16", 0}, {"cl_khr_fp64", 0}, {"cl_khr_byte_addressable_store", 0}, {"cl_khr_global_int32_base_atomics", 0},
	{"cl_khr_global_int32_extended_atomics", 0}, {"cl_khr_local_int32_base_atomics", 0},
	{"cl_khr_local_int32_extended_atomics", 0}, {"cl_khr_int64_base_atomics", 0}, {"cl_khr_int64_extended_atomics", 0},
	{"cl_khr_3d_image_writes", 0}, {"cl_khr_depth_images", 0}, {"cl_khr_image2d_from_buffer", 0},
	{"cl_khr_expect_assume", 0}, {"cl_khr_extended_async_copies", 0}, {"cl_khr_extended_bit_ops", 0},
	{"cl_khr_work_group_uniform_arithmetic", 0}, {"cl_khr_integer_dot_product", CL_DEVICE_INTEGER_DOT_PRODUCT_CAPABILITIES_KHR},
	{"cl_khr_il_program", CL_DEVICE_IL_VERSION_KHR}, {"cl_khr_spirv_extended_debug_info", CL_DEVICE_IL_VERSION_KHR},
	{"cl_khr_spirv_linkonce_odr", CL_DEVICE_IL_VERSION_KHR},
	{"cl_khr_spirv_no_integer_wrap_decoration", CL_DEVICE_IL_VERSION_KHR},
	{"cl_ext_float_atomics", FLOAT_ATOMICS}, {"cl_nv_compiler_options", 0}, {"cl_nv_pragma_unroll", 0},
	{"cl_nv_device_attribute_query", CL_DEVICE_COMPUTE_CAPABILITY_MAJOR_NV},
	{"cl_intel_device_attribute_query", CL_DEVICE_IP_VERSION_INTEL},
};

/* Those of sub-groups, with the queries of the first and of the last one. */
static const struct extension groups[] = {
	{"cl_khr_subgroups", 0}, {"cl_khr_subgroup_ballot", 0}, {"cl_khr_subgroup_clustered_reduce", 0},
	{"cl_khr_subgroup_extended_types", 0}, {"cl_khr_subgroup_non_uniform_arithmetic", 0},
	{"cl_khr_subgroup_non_uniform_vote", 0}, {"cl_khr_subgroup_rotate", 0}, {"cl_khr_subgroup_shuffle", 0},
	{"cl_khr_subgroup_shuffle_relative", 0}, {"cl_intel_subgroups", 0}, {"cl_intel_subgroups_char", 0},
	{"cl_intel_subgroups_short", 0}, {"cl_intel_subgroups_long", 0}, {"cl_intel_required_subgroup_size", 0},
};

int device_groups(cl_device_id d)
{
	return channel_features(d->channel) & FEATURE_GROUPS && device_number(d, CL_DEVICE_MAX_NUM_SUB_GROUPS) > 0;
}

static int listed(cl_device_id d, const struct extension *list, size_t count, const char *name, size_t n)
{
	struct property p;

	for (size_t i = 0; i < count; i++)
		if (strlen(list[i].name) == n && !memcmp(list[i].name, name, n))
			return !list[i].needs || properties_find(&d->properties, list[i].needs, NO_INDEX, &p);
	return 0;
}

/* is_offered reports whether an extension of the platform behind is one of the device, too. */
static int is_offered(cl_device_id d, const char *name, size_t n)
{
	return listed(d, extensions, sizeof extensions / sizeof *extensions, name, n) ||
	       (device_groups(d) && listed(d, groups, sizeof groups / sizeof *groups, name, n));
}

cl_int extensions_give(cl_device_id d, const struct property *p, size_t room, void *out, size_t *size)
{
	char list[2048] = "";
	const char *text = p->value, *end = text + p->size;
	size_t at = 0;

	while (text < end && *text) {
		const char *next = text;
		while (next < end && *next && *next != ' ')
			next++;
		size_t n = (size_t)(next - text);
		if (is_offered(d, text, n) && at + n + 2 < sizeof list) {
			if (at)
				list[at++] = ' ';
			memcpy(list + at, text, n);
			at += n;
		}
		text = next;
		while (text < end && *text == ' ')
			text++;
	}
	list[at] = 0;
	return give(room, out, size, list, at + 1);
}

cl_int extension_versions_give(cl_device_id d, const struct property *p, size_t room, void *out, size_t *size)
{
	cl_name_version list[64];
	size_t n = 0;

	for (size_t at = 0; p->size - at >= sizeof *list && n < 64; at += sizeof *list) {
		cl_name_version v;
		memcpy(&v, (const char *)p->value + at, sizeof v);
		v.name[sizeof v.name - 1] = 0;
		if (is_offered(d, v.name, strlen(v.name)))
			list[n++] = v;
	}
	return give(room, out, size, list, n * sizeof *list);
}

/* Features of the kernel language that need calls of the host. */
static const char *const host_features[] = {"__opencl_c_pipes", "__opencl_c_device_enqueue", "__opencl_c_subgroups"};

cl_int features_give(cl_device_id d, const struct property *p, size_t room, void *out, size_t *size)
{
	cl_name_version list[64];
	size_t n = 0;

	for (size_t at = 0; p->size - at >= sizeof *list && n < 64; at += sizeof *list) {
		memcpy(&list[n], (const char *)p->value + at, sizeof *list);
		list[n].name[sizeof list[n].name - 1] = 0;
		int left_out = 0;
		for (size_t i = 0; i < sizeof host_features / sizeof *host_features - (device_groups(d) != 0); i++)
			left_out |= !strcmp(list[n].name, host_features[i]);
		n += !left_out;
	}
	return give(room, out, size, list, n * sizeof *list);
}
