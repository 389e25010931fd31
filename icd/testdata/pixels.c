/* Random commands for images of every type and listed format: pixels FIRST COUNT [all]. Each seed makes images in the
 * device, in memory of the program and in buffers, moves boxes between them with random pitches, and compares all
 * pixels with a model. Memory of the program ends behind the last pixel. The program prints a digest of each seed,
 * the same on every platform that works, and what is wrong. all adds the calls that end the process of PoCL 3.1, or
 * that it takes although they are wrong. */
#define CL_TARGET_OPENCL_VERSION 300
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#include <CL/cl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "numbers.h"

enum { IMAGES = 6, BUFFER = 1 << 15, MOST_PIXEL = 16 };

struct image {
	cl_mem m, in; /* in: the buffer that it lies in */
	cl_mem_object_type type;
	cl_image_format format;
	size_t pixel, extent[3], host_row, host_slice;
	cl_mem_flags flags;
	unsigned char *host, *model;
};

static cl_context c;
static cl_device_id d;
static cl_command_queue q;
static struct image images[IMAGES];
static cl_mem buffer, part; /* part is the second half of buffer */
static unsigned char plain[BUFFER]; /* the model of buffer */
static cl_kernel reads[3][5];
static cl_program program;
static uint64_t state, digest;
static int all, show, wrong;
static unsigned long seed, at_step;

static const cl_mem_object_type types[] = {
	CL_MEM_OBJECT_IMAGE1D, CL_MEM_OBJECT_IMAGE2D, CL_MEM_OBJECT_IMAGE3D, CL_MEM_OBJECT_IMAGE1D_ARRAY, CL_MEM_OBJECT_IMAGE2D_ARRAY, CL_MEM_OBJECT_IMAGE1D_BUFFER,
};

static uint64_t next(void) { return next_number(&state); }

static size_t any(size_t n) { return (size_t)(next() >> 11) % n; }
static size_t between(size_t low, size_t high) { return low + any(high - low + 1); }

__attribute__((format(printf, 1, 2))) static void say(const char *format, ...)
{
	char line[256];
	va_list list;

	va_start(list, format);
	int n = vsnprintf(line, sizeof line, format, list);
	va_end(list);
	digest = (digest ^ hash(line, (size_t)n)) * 0x100000001b3u;
	if (show)
		printf("%lu.%lu %s\n", seed, at_step, line);
	fflush(stdout);
}

static void bad(const char *what, cl_int code)
{
	printf("%lu.%lu %s: wrong, %d\n", seed, at_step, what, code);
	wrong++;
}

/* sure checks a call that has to succeed. */
static void sure(const char *what, cl_int code)
{
	if (code)
		bad(what, code);
}

static void scribble(unsigned char *b, size_t n)
{
	for (size_t i = 0; i < n; i++)
		b[i] = (unsigned char)next();
}

static int is_line(const struct image *m) { return m->type == CL_MEM_OBJECT_IMAGE1D_ARRAY; }
static size_t layers(const struct image *m, const size_t *r) { return is_line(m) ? r[1] : r[2]; }
static size_t rows(const struct image *m, const size_t *r) { return is_line(m) ? 1 : r[1]; }
static size_t volume(const struct image *m) { return m->extent[0] * m->extent[1] * m->extent[2] * m->pixel; }

/* place returns the place of a pixel in memory with pitches. */
static size_t place(const struct image *m, size_t y, size_t z, size_t row, size_t slice) { return is_line(m) ? y * slice : z * slice + y * row; }

static unsigned char *in_model(const struct image *m, size_t x, size_t y, size_t z)
{
	return m->model + ((z * m->extent[1] + y) * m->extent[0] + x) * m->pixel;
}

/* pitches chooses those of memory of the program for a box, and returns its bytes up to the last pixel. */
static size_t pitches(const struct image *m, const size_t *r, size_t *row, size_t *slice)
{
	size_t least = r[0] * m->pixel;

	*row = least + any(3) * m->pixel;
	*slice = *row * (rows(m, r) + any(3));
	if (is_line(m) && !all) /* PoCL takes the pitch of rows for that of layers */
		*slice = *row;
	return (layers(m, r) - 1) * *slice + (rows(m, r) - 1) * *row + least;
}

/* passed returns a pitch as a call gets it: 0 may stand for the least one. */
static size_t passed(size_t pitch, size_t least) { return pitch == least && any(2) ? 0 : pitch; }

static void move(const struct image *m, const size_t *o, const size_t *r, unsigned char *host, size_t row, size_t slice, int write)
{
	for (size_t z = 0; z < r[2]; z++)
		for (size_t y = 0; y < r[1]; y++) {
			unsigned char *a = in_model(m, o[0], o[1] + y, o[2] + z), *b = host + place(m, y, z, row, slice);
			memcpy(write ? a : b, write ? b : a, r[0] * m->pixel);
		}
}

static int differs(const struct image *m, const size_t *o, const size_t *r, const unsigned char *host, size_t row, size_t slice)
{
	for (size_t z = 0; z < r[2]; z++)
		for (size_t y = 0; y < r[1]; y++)
			if (memcmp(in_model(m, o[0], o[1] + y, o[2] + z), host + place(m, y, z, row, slice), r[0] * m->pixel))
				return 1;
	return 0;
}

static void box(const struct image *m, size_t *o, size_t *r)
{
	for (int i = 0; i < 3; i++) {
		o[i] = any(m->extent[i]);
		r[i] = between(1, m->extent[i] - o[i]);
	}
}

static void drop(struct image *m)
{
	if (!m->m)
		return;
	sure("release", clReleaseMemObject(m->m));
	if (m->in)
		sure("release", clReleaseMemObject(m->in));
	sure("finish", clFinish(q));
	free(m->host);
	free(m->model);
	*m = (struct image){0};
}

static void create(struct image *m)
{
	cl_image_format list[128];
	cl_uint n = 0;
	cl_int code;

	drop(m);
	m->type = types[any(6)];
	sure("formats", clGetSupportedImageFormats(c, CL_MEM_READ_WRITE, m->type, 128, list, &n));
	m->format = list[any(n)];
	int flat = m->type == CL_MEM_OBJECT_IMAGE1D_BUFFER, deep = m->type == CL_MEM_OBJECT_IMAGE3D, layered = m->type == CL_MEM_OBJECT_IMAGE2D_ARRAY;
	m->extent[0] = between(1, 30);
	m->extent[1] = flat || m->type == CL_MEM_OBJECT_IMAGE1D ? 1 : between(1, 9);
	m->extent[2] = deep || layered ? between(1, 4) : 1;
	cl_image_desc desc = {.image_type = m->type, .image_width = m->extent[0], .image_height = is_line(m) ? 0 : m->extent[1], .image_depth = deep ? m->extent[2] : 0,
			      .image_array_size = layered ? m->extent[2] : is_line(m) ? m->extent[1] : 0};
	size_t way = any(3), size = 0;
	if (flat)
		desc.mem_object = m->in = clCreateBuffer(c, 0, 30 * MOST_PIXEL, NULL, &code);
	/* The size of a pixel is known from an image. */
	cl_mem probe = clCreateImage(c, 0, &m->format, &desc, NULL, &code);
	sure("image", code);
	clGetImageInfo(probe, CL_IMAGE_ELEMENT_SIZE, sizeof m->pixel, &m->pixel, NULL);
	clGetMemObjectInfo(probe, CL_MEM_SIZE, sizeof size, &size, NULL);
	m->model = malloc(volume(m));
	scribble(m->model, volume(m));
	if (flat || way == 0)
		m->m = probe;
	else {
		sure("release", clReleaseMemObject(probe));
		/* The standard wants whole rows and slices, of which PoCL reads more than there are. */
		size_t bytes = pitches(m, m->extent, &m->host_row, &m->host_slice) + (all ? 0 : 1 << 14);
		m->host = calloc(1, bytes);
		move(m, (size_t[3]){0}, m->extent, m->host, m->host_row, m->host_slice, 0);
		desc.image_row_pitch = m->host_row;
		desc.image_slice_pitch = deep || layered || is_line(m) ? m->host_slice : 0;
		m->flags = way == 1 ? CL_MEM_COPY_HOST_PTR : CL_MEM_USE_HOST_PTR;
		m->m = clCreateImage(c, m->flags, &m->format, &desc, m->host, &code);
		sure("image of memory", code);
	}
	if (m->m && !m->flags)
		sure("first write", clEnqueueWriteImage(q, m->m, CL_TRUE, (size_t[3]){0}, m->extent, 0, 0, m->model, 0, NULL, NULL));
	say("image %d: type %#x, %#x %#x, %zu %zu %zu, way %zu, %zu bytes", (int)(m - images), m->type, m->format.image_channel_order, m->format.image_channel_data_type,
	    m->extent[0], m->extent[1], m->extent[2], way, size);
}

static void transfer(struct image *m, int write)
{
	size_t o[3], r[3], row, slice;

	box(m, o, r);
	size_t n = pitches(m, r, &row, &slice);
	unsigned char *host = malloc(n);
	size_t p = passed(row, r[0] * m->pixel), s = layers(m, r) > 1 || (all && (is_line(m) || m->type == CL_MEM_OBJECT_IMAGE3D)) ? passed(slice, row * rows(m, r)) : 0;
	if (is_line(m) && s == 0)
		slice = row;
	n = (layers(m, r) - 1) * slice + (rows(m, r) - 1) * row + r[0] * m->pixel;
	free(host);
	host = malloc(n);
	scribble(host, n);
	cl_bool wait = any(2) ? CL_TRUE : CL_FALSE;
	cl_int code = write ? clEnqueueWriteImage(q, m->m, wait, o, r, p, s, host, 0, NULL, NULL) : clEnqueueReadImage(q, m->m, wait, o, r, p, s, host, 0, NULL, NULL);
	sure(write ? "write" : "read", code);
	if (!wait)
		sure("finish", clFinish(q));
	if (write)
		move(m, o, r, host, row, slice, 1);
	else if (differs(m, o, r, host, row, slice))
		bad("pixels that were read", 0);
	say("%s of %d: %d", write ? "write" : "read", (int)(m - images), code);
	free(host);
}

static int in_buffer(const struct image *m) { return m->in != NULL; }

static void copy(struct image *from, struct image *to)
{
	size_t a[3], b[3], r[3];

	if (in_buffer(from) || in_buffer(to)) /* the process of PoCL ends */
		return;
	for (int i = 0; i < 3; i++) {
		r[i] = between(1, from->extent[i] < to->extent[i] ? from->extent[i] : to->extent[i]);
		a[i] = any(from->extent[i] - r[i] + 1);
		b[i] = any(to->extent[i] - r[i] + 1);
	}
	int same = !memcmp(&from->format, &to->format, sizeof from->format), over = from == to;
	for (int i = 0; i < 3; i++)
		over = over && a[i] < b[i] + r[i] && b[i] < a[i] + r[i];
	cl_int code = clEnqueueCopyImage(q, from->m, to->m, a, b, r, 0, NULL, NULL);
	say("copy of %d to %d: %d", (int)(from - images), (int)(to - images), code);
	if (code != (!same ? CL_IMAGE_FORMAT_MISMATCH : over ? CL_MEM_COPY_OVERLAP : 0))
		bad("copy", code);
	for (size_t z = 0; !code && z < r[2]; z++)
		for (size_t y = 0; y < r[1]; y++)
			memcpy(in_model(to, b[0], b[1] + y, b[2] + z), in_model(from, a[0], a[1] + y, a[2] + z), r[0] * to->pixel);
}

static void with_buffer(struct image *m, int out)
{
	size_t o[3], r[3];
	int parted = all && any(2);

	if (in_buffer(m))
		return;
	box(m, o, r);
	size_t n = r[0] * r[1] * r[2] * m->pixel, base = parted ? BUFFER / 2 : 0, offset = any(BUFFER / 2 - n + 1);
	cl_int code = out ? clEnqueueCopyImageToBuffer(q, m->m, parted ? part : buffer, o, r, offset, 0, NULL, NULL)
			  : clEnqueueCopyBufferToImage(q, parted ? part : buffer, m->m, offset, o, r, 0, NULL, NULL);
	sure("copy of a buffer", code);
	size_t row = r[0] * m->pixel, slice = is_line(m) ? row : row * r[1];
	move(m, o, r, plain + base + offset, row, slice, !out);
	say("%s buffer of %d: %d", out ? "to" : "from", (int)(m - images), code);
}

static void fill(struct image *m)
{
	union {
		cl_float f[4];
		cl_uint u[4];
	} color;
	size_t o[3], r[3];
	unsigned char *got = malloc(volume(m));
	int floats = m->format.image_channel_data_type < CL_SIGNED_INT8 || m->format.image_channel_data_type > CL_UNSIGNED_INT32;

	box(m, o, r);
	for (int i = 0; i < 4; i++)
		if (floats)
			color.f[i] = (cl_float)((double)any(33) / 16 - 0.5);
		else
			color.u[i] = any(4) ? (cl_uint)any(100) : (cl_uint)next();
	if (!in_buffer(m)) { /* the process of PoCL ends */
		sure("fill", clEnqueueFillImage(q, m->m, &color, o, r, 0, NULL, NULL));
		sure("read", clEnqueueReadImage(q, m->m, CL_TRUE, (size_t[3]){0}, m->extent, 0, 0, got, 0, NULL, NULL));
		const unsigned char *first = got + (in_model(m, o[0], o[1], o[2]) - m->model);
		say("color %#x %#x: %lx", m->format.image_channel_order, m->format.image_channel_data_type, (long)hash(first, m->pixel));
		for (size_t z = 0; z < r[2]; z++)
			for (size_t y = 0; y < r[1]; y++)
				for (size_t x = 0; x < r[0]; x++)
					memcpy(in_model(m, o[0] + x, o[1] + y, o[2] + z), first, m->pixel);
		if (memcmp(m->model, got, volume(m)))
			bad("pixels after a fill", 0);
	}
	free(got);
}

static void map(struct image *m)
{
	static const cl_map_flags kinds[] = {CL_MAP_READ, CL_MAP_WRITE, CL_MAP_READ | CL_MAP_WRITE, CL_MAP_WRITE_INVALIDATE_REGION};
	cl_map_flags flags = kinds[any(4)];
	size_t o[3], r[3], row = 99, slice = 99;
	cl_int code;

	if (in_buffer(m))
		return;
	box(m, o, r);
	unsigned char *p = clEnqueueMapImage(q, m->m, CL_TRUE, flags, o, r, &row, &slice, 0, NULL, NULL, &code);
	sure("map", code);
	if (code)
		return;
	if (m->flags & CL_MEM_USE_HOST_PTR && (p != m->host + place(m, o[1], o[2], m->host_row, m->host_slice) + o[0] * m->pixel || (rows(m, r) > 1 && row != m->host_row)))
		bad("place of a map", 0);
	if (flags != CL_MAP_WRITE_INVALIDATE_REGION && differs(m, o, r, p, row, slice))
		bad("pixels of a map", 0);
	if (flags != CL_MAP_READ) {
		for (size_t z = 0; z < r[2]; z++)
			for (size_t y = 0; y < r[1]; y++)
				scribble(p + place(m, y, z, row, slice), r[0] * m->pixel);
		move(m, o, r, p, row, slice, 1);
	}
	sure("unmap", clEnqueueUnmapMemObject(q, m->m, p, 0, NULL, NULL));
	say("map of %d, flags %#lx, slices %d", (int)(m - images), (long)flags, slice != 0 && slice != 99);
}

#include "pixels_samples.h"
#include "pixels_wrong.h"

static void check(struct image *m)
{
	unsigned char *got = malloc(volume(m));

	sure("read", clEnqueueReadImage(q, m->m, CL_TRUE, (size_t[3]){0}, m->extent, 0, 0, got, 0, NULL, NULL));
	if (memcmp(m->model, got, volume(m)))
		bad("pixels", 0);
	say("pixels of %d: %lx", (int)(m - images), (long)hash(got, volume(m)));
	free(got);
}

static void step(void)
{
	struct image *m = &images[any(IMAGES)];

	switch (any(10)) {
	case 0:
		create(m);
		break;
	case 1:
		transfer(m, 0);
		break;
	case 2:
		transfer(m, 1);
		break;
	case 3:
		copy(m, &images[any(IMAGES)]);
		break;
	case 4:
	case 5:
		with_buffer(m, (int)any(2));
		break;
	case 6:
		fill(m);
		break;
	case 7:
		map(m);
		break;
	case 8:
		sample(m);
		break;
	default:
		wrong_call(m);
	}
}

static void one(void)
{
	static unsigned char got[BUFFER];
	cl_int code;

	state = seed * 0x2545f4914f6cdd1du + 1;
	digest = 0;
	scribble(plain, BUFFER);
	buffer = clCreateBuffer(c, CL_MEM_COPY_HOST_PTR, BUFFER, plain, &code);
	part = clCreateSubBuffer(buffer, 0, CL_BUFFER_CREATE_TYPE_REGION, &(cl_buffer_region){BUFFER / 2, BUFFER / 2}, &code);
	for (int i = 0; i < IMAGES; i++)
		create(&images[i]);
	for (at_step = 1; at_step <= 150; at_step++)
		step();
	for (int i = 0; i < IMAGES; i++) {
		check(&images[i]);
		drop(&images[i]);
	}
	sure("read", clEnqueueReadBuffer(q, buffer, CL_TRUE, 0, BUFFER, got, 0, NULL, NULL));
	if (memcmp(plain, got, BUFFER))
		bad("buffer", 0);
	clReleaseMemObject(part);
	clReleaseMemObject(buffer);
	printf("%lu %lx\n", seed, (unsigned long)digest);
}

int main(int argc, char **argv)
{
	unsigned long first = argc > 1 ? strtoul(argv[1], NULL, 10) : 1, count = argc > 2 ? strtoul(argv[2], NULL, 10) : 1;
	cl_platform_id p;
	cl_int code;

	all = argc > 3 && !strcmp(argv[3], "all");
	show = argc > 3 && !strcmp(argv[argc - 1], "show");
	if (clGetPlatformIDs(1, &p, NULL) || clGetDeviceIDs(p, CL_DEVICE_TYPE_ALL, 1, &d, NULL))
		return 1;
	c = clCreateContext(NULL, 1, &d, NULL, NULL, &code);
	q = clCreateCommandQueueWithProperties(c, d, NULL, &code);
	build();
	for (seed = first; seed < first + count; seed++)
		one();
	for (int v = 0; v < 3; v++)
		for (int k = 0; k < 5; k++)
			clReleaseKernel(reads[v][k]);
	clReleaseProgram(program);
	clReleaseCommandQueue(q);
	clReleaseContext(c);
	return wrong != 0;
}
