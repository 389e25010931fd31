/* Images, samplers, programs in parts, clones of kernels and printf: it prints the same on every
 * platform that works. */
#define CL_TARGET_OPENCL_VERSION 210
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#include <CL/cl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(cl_int code, const char *what)
{
	if (code) {
		printf("%s: %d\n", what, code);
		exit(1);
	}
}

static cl_context c;
static cl_device_id d;
static cl_command_queue q;

enum { W = 37, H = 19, D = 5 };

static const char source[] =
	"#include \"scale.h\"\n"
	"int scale(int v);\n"
	"__constant sampler_t nearest = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP | CLK_FILTER_NEAREST;\n"
	"typedef struct { int white[6]; } image_pair_t;\n" /* named like an image, and none */
	"__kernel void invert(read_only image2d_t a, write_only image2d_t b, sampler_t s, image_pair_t p) {\n"
	"	int2 at = (int2)(get_global_id(0), get_global_id(1));\n"
	"	uint4 v = read_imageui(a, s, at), w = read_imageui(a, nearest, at);\n"
	"	write_imageui(b, at, (uint4)(scale(v.x), p.white[5] - w.y, w.z, v.w));\n"
	"}\n"
	"__kernel void say(int n) { printf(\"kernel %d says %d\\n\", n, FACTOR); }\n";

static cl_program program(void)
{
	const char *text = source, *header = "#define FACTOR 3\n", *part = "#include \"scale.h\"\nint scale(int v) { return v / FACTOR; }\n";
	const char *name = "scale.h", *broken = "int scale(int v) { return missing(v); }\n";
	cl_int code, type;
	size_t n;
	char log[4096] = "";
	cl_program h = clCreateProgramWithSource(c, 1, &header, NULL, &code), parts[2], g;

	check(code, "header");
	parts[0] = clCreateProgramWithSource(c, 1, &text, NULL, &code);
	parts[1] = clCreateProgramWithSource(c, 1, &part, NULL, &code);
	check(clCompileProgram(parts[0], 1, &d, "", 1, &h, &name, NULL, NULL), "compile");
	check(clCompileProgram(parts[1], 0, NULL, NULL, 1, &h, &name, NULL, NULL), "compile the part");
	check(clGetProgramBuildInfo(parts[1], d, CL_PROGRAM_BINARY_TYPE, sizeof type, &type, NULL), "type");
	printf("compiled: type %d\n", type);
	g = clLinkProgram(c, 1, &d, "", 2, parts, NULL, NULL, &code);
	check(code, "link");
	check(clGetProgramBuildInfo(g, d, CL_PROGRAM_BINARY_TYPE, sizeof type, &type, NULL), "type");
	check(clGetProgramInfo(g, CL_PROGRAM_NUM_KERNELS, sizeof n, &n, NULL), "kernels");
	printf("linked: type %d, %zu kernels\n", type, n);
	cl_program bad = clCreateProgramWithSource(c, 1, &broken, NULL, &code);
	code = clCompileProgram(bad, 1, &d, "", 0, NULL, NULL, NULL, NULL);
	check(clGetProgramBuildInfo(bad, d, CL_PROGRAM_BUILD_LOG, sizeof log, log, NULL), "log");
	printf("broken: %d, log %d\n", code, strstr(log, "missing") != NULL);
	clReleaseProgram(bad);
	clReleaseProgram(h);
	clReleaseProgram(parts[0]);
	clReleaseProgram(parts[1]);
	return g;
}

static unsigned char pixels[H][W][4], result[H][W][4];

static unsigned sum(const void *bytes, size_t n)
{
	unsigned v = 1;

	for (size_t i = 0; i < n; i++)
		v = v * 31 + ((const unsigned char *)bytes)[i];
	return v;
}

static cl_mem image(cl_mem_flags flags, cl_mem_object_type type, size_t h, size_t depth, size_t layers, void *host)
{
	const cl_image_format f = {CL_RGBA, CL_UNSIGNED_INT8};
	const cl_image_desc desc = {.image_type = type, .image_width = W, .image_height = h, .image_depth = depth, .image_array_size = layers};
	cl_int code;
	cl_mem m = clCreateImage(c, flags, &f, &desc, host, &code);

	check(code, "image");
	return m;
}

static const size_t zero[3], whole[3] = {W, H, 1};

static void kernels(cl_program g)
{
	cl_int code;
	cl_mem a = image(CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR, CL_MEM_OBJECT_IMAGE2D, H, 0, 0, pixels);
	cl_mem b = image(CL_MEM_WRITE_ONLY, CL_MEM_OBJECT_IMAGE2D, H, 0, 0, NULL);
	cl_sampler s = clCreateSampler(c, CL_FALSE, CL_ADDRESS_CLAMP_TO_EDGE, CL_FILTER_NEAREST, &code);
	const cl_int white[6] = {0, 0, 0, 0, 0, 255};
	cl_kernel k, copy, say;

	check(code, "sampler");
	k = clCreateKernel(g, "invert", &code);
	check(code, "kernel");
	check(clSetKernelArg(k, 0, sizeof a, &a), "argument");
	check(clSetKernelArg(k, 1, sizeof b, &b), "argument");
	check(clSetKernelArg(k, 2, sizeof s, &s), "argument");
	check(clSetKernelArg(k, 3, sizeof white, white), "argument");
	copy = clCloneKernel(k, &code);
	check(code, "clone");
	clReleaseKernel(k);
	check(clEnqueueNDRangeKernel(q, copy, 2, NULL, whole, NULL, 0, NULL, NULL), "run");
	check(clEnqueueReadImage(q, b, CL_TRUE, zero, whole, 0, 0, result, 0, NULL, NULL), "read");
	int bad = 0;
	for (int y = 0; y < H; y++)
		for (int x = 0; x < W; x++)
			bad += result[y][x][0] != pixels[y][x][0] / 3 || result[y][x][1] != 255 - pixels[y][x][1];
	printf("kernel: %d wrong, sum %u\n", bad, sum(result, sizeof result));
	say = clCreateKernel(g, "say", &code);
	check(code, "kernel");
	fflush(stdout);
	for (cl_int i = 0; i < 3; i++) {
		const size_t one = 1;
		check(clSetKernelArg(say, 0, sizeof i, &i), "argument");
		check(clEnqueueNDRangeKernel(q, say, 1, NULL, &one, NULL, 0, NULL, NULL), "say");
	}
	check(clFinish(q), "finish");
	clReleaseKernel(copy);
	clReleaseKernel(say);
	clReleaseSampler(s);
	clReleaseMemObject(a);
	clReleaseMemObject(b);
}

/* copies moves boxes between images of several types, a buffer and mapped memory. */
static void copies(void)
{
	static unsigned char back[D][H][W][4], host[H * 2][W + 3][4];
	const size_t at[3] = {3, 4, 2}, box[3] = {11, 9, 1}, volume[3] = {W, H, D}, lines[3] = {W, D, 1};
	const cl_uint color[4] = {7, 8, 9, 10};
	cl_mem solid = image(CL_MEM_READ_WRITE, CL_MEM_OBJECT_IMAGE3D, H, D, 0, NULL);
	cl_mem flat = image(CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, CL_MEM_OBJECT_IMAGE2D, H, 0, 0, pixels);
	cl_mem array = image(CL_MEM_READ_WRITE, CL_MEM_OBJECT_IMAGE2D_ARRAY, H, 0, D, NULL);
	cl_mem line = image(CL_MEM_READ_WRITE, CL_MEM_OBJECT_IMAGE1D_ARRAY, 0, 0, D, NULL);
	cl_int code;
	cl_mem b = clCreateBuffer(c, CL_MEM_READ_WRITE, sizeof pixels, NULL, &code);
	size_t row = 0, slice = 0, pitch;

	check(code, "buffer");
	check(clEnqueueFillImage(q, solid, color, zero, volume, 0, NULL, NULL), "fill");
	check(clEnqueueFillImage(q, array, color, zero, volume, 0, NULL, NULL), "fill");
	check(clEnqueueFillImage(q, line, color, zero, lines, 0, NULL, NULL), "fill");
	check(clEnqueueCopyImage(q, flat, solid, zero, at, box, 0, NULL, NULL), "copy");
	check(clEnqueueCopyImage(q, flat, array, zero, at, box, 0, NULL, NULL), "copy");
	check(clEnqueueReadImage(q, solid, CL_TRUE, zero, volume, 0, 0, back, 0, NULL, NULL), "read");
	printf("3D: %u\n", sum(back, sizeof back));
	check(clEnqueueReadImage(q, array, CL_TRUE, zero, volume, 0, 0, back, 0, NULL, NULL), "read");
	printf("array: %u\n", sum(back, sizeof back));
	check(clEnqueueReadImage(q, line, CL_TRUE, zero, lines, 0, 0, back, 0, NULL, NULL), "read");
	printf("lines: %u\n", sum(back, sizeof(back[0][0]) * D));
	check(clEnqueueCopyImageToBuffer(q, flat, b, at, (size_t[]){5, 5, 1}, 16, 0, NULL, NULL) == CL_INVALID_VALUE ? 0 : 1, "outside");
	check(clEnqueueCopyImageToBuffer(q, flat, b, (size_t[]){1, 2, 0}, box, 16, 0, NULL, NULL), "to the buffer");
	check(clEnqueueCopyBufferToImage(q, b, flat, 16, (size_t[]){20, 5, 0}, box, 0, NULL, NULL), "from the buffer");
	check(clEnqueueReadImage(q, flat, CL_TRUE, zero, whole, sizeof host[0], 0, host, 0, NULL, NULL), "read with a pitch");
	printf("buffer: %u\n", sum(host, sizeof host));
	unsigned char *p = clEnqueueMapImage(q, flat, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, (size_t[]){2, 3, 0}, box, &row, &slice, 0, NULL, NULL, &code);
	check(code, "map");
	for (size_t y = 0; y < box[1]; y++)
		memset(p + y * row, (int)y, box[0] * 4);
	check(clEnqueueUnmapMemObject(q, flat, p, 0, NULL, NULL), "unmap");
	check(clEnqueueReadImage(q, flat, CL_TRUE, zero, whole, 0, 0, result, 0, NULL, NULL), "read");
	check(clGetImageInfo(flat, CL_IMAGE_ROW_PITCH, sizeof pitch, &pitch, NULL), "pitch");
	printf("map: slice %zu, sum %u, pitch %zu\n", slice, sum(result, sizeof result), pitch);
	printf("wrong object: %d\n", clEnqueueReadImage(q, b, CL_TRUE, zero, whole, 0, 0, result, 0, NULL, NULL));
	clReleaseMemObject(solid);
	clReleaseMemObject(flat);
	clReleaseMemObject(array);
	clReleaseMemObject(line);
	clReleaseMemObject(b);
}

/* in_buffers makes images in the memory of buffers, and of the program. */
static void in_buffers(void)
{
	const cl_image_format f = {CL_RGBA, CL_UNSIGNED_INT8};
	const cl_uint color[4] = {1, 2, 3, 4};
	cl_int code;
	cl_mem b = clCreateBuffer(c, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, sizeof pixels, pixels, &code);
	cl_image_desc desc = {.image_type = CL_MEM_OBJECT_IMAGE1D_BUFFER, .image_width = W * H, .buffer = b};
	cl_mem m = clCreateImage(c, CL_MEM_READ_WRITE, &f, &desc, NULL, &code), own;

	check(code, "image in a buffer");
	check(clEnqueueWriteImage(q, m, CL_FALSE, (size_t[]){W, 0, 0}, (size_t[]){W, 1, 1}, 0, 0, pixels, 0, NULL, NULL), "write");
	check(clEnqueueReadBuffer(q, b, CL_TRUE, 0, sizeof result, result, 0, NULL, NULL), "read");
	printf("in a buffer: %u\n", sum(result, sizeof result));
	clReleaseMemObject(b);
	clReleaseMemObject(m);
	memcpy(result, pixels, sizeof result);
	own = image(CL_MEM_USE_HOST_PTR, CL_MEM_OBJECT_IMAGE2D, H, 0, 0, result);
	check(clEnqueueFillImage(q, own, color, (size_t[]){1, 1, 0}, (size_t[]){4, 4, 1}, 0, NULL, NULL), "fill");
	size_t row;
	void *p = clEnqueueMapImage(q, own, CL_TRUE, CL_MAP_READ, (size_t[]){1, 1, 0}, (size_t[]){4, 4, 1}, &row, NULL, 0, NULL, NULL, &code);
	check(code, "map");
	printf("of the program: %d, row %zu, sum %u\n", p == result[1][1], row, sum(result, sizeof result));
	check(clEnqueueUnmapMemObject(q, own, p, 0, NULL, NULL), "unmap");
	check(clFinish(q), "finish");
	clReleaseMemObject(own);
}

/* rows have pitches that are no multiple of a pixel. */
static void pitches(void)
{
	enum { ROW = W * 4 + 3 };
	static unsigned char from[H][ROW], to[H][ROW];
	cl_mem m = image(0, CL_MEM_OBJECT_IMAGE2D, H, 0, 0, NULL);
	int equal = 1;

	for (int y = 0; y < H; y++)
		memcpy(from[y], pixels[y], sizeof pixels[y]);
	check(clEnqueueWriteImage(q, m, CL_TRUE, zero, whole, ROW, 0, from, 0, NULL, NULL), "write");
	check(clEnqueueReadImage(q, m, CL_TRUE, zero, whole, ROW, 0, to, 0, NULL, NULL), "read");
	for (int y = 0; y < H; y++)
		equal &= !memcmp(to[y], pixels[y], sizeof pixels[y]);
	printf("rows of %d bytes: %s\n", ROW, equal ? "equal" : "different");
	clReleaseMemObject(m);
}

int main(void)
{
	cl_platform_id p;
	cl_int code;

	check(clGetPlatformIDs(1, &p, NULL), "platform");
	check(clGetDeviceIDs(p, CL_DEVICE_TYPE_ALL, 1, &d, NULL), "device");
	c = clCreateContext(NULL, 1, &d, NULL, NULL, &code);
	check(code, "context");
	q = clCreateCommandQueue(c, d, 0, &code);
	check(code, "queue");
	for (int y = 0; y < H; y++)
		for (int x = 0; x < W; x++)
			for (int i = 0; i < 4; i++)
				pixels[y][x][i] = (unsigned char)(x * 5 + y * 3 + i);
	cl_program g = program();
	kernels(g);
	copies();
	in_buffers();
	pitches();
	clReleaseProgram(g);
	clReleaseCommandQueue(q);
	clReleaseContext(c);
	return 0;
}
