// move READY STOP MIB: makes the file READY once it computes, computes until the file STOP exists,
// and checks every result: a chain of kernels over a small buffer, pieces of a buffer of MIB MiB,
// and an image. The device may move meanwhile.
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(call) check((call), __LINE__)
static void check(cl_int status, int line)
{
	if (status != CL_SUCCESS) {
		printf("line %d: %d\n", line, status);
		exit(1);
	}
}

static const char *source =
	"__kernel void advance(__global uint *a, uint k) { size_t i = get_global_id(0); a[i] = a[i] * 1664525u + k; }\n"
	"__kernel void paint(__write_only image2d_t m, uint k) {"
	" int2 p = (int2)(get_global_id(0), get_global_id(1)); write_imageui(m, p, (uint4)(p.x + k & 255, p.y, k & 255, 1)); }\n";

enum { N = 4096, CHAIN = 20, PIECE = 1 << 16, SIDE = 64 };

int main(int argc, char **argv)
{
	if (argc != 4)
		return 2;
	size_t big = (size_t)atoi(argv[3]) << 20;
	cl_platform_id platform;
	cl_device_id device;
	cl_int e;
	CHECK(clGetPlatformIDs(1, &platform, NULL));
	CHECK(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL));
	cl_context context = clCreateContext(NULL, 1, &device, NULL, NULL, &e);
	CHECK(e);
	cl_command_queue queue = clCreateCommandQueueWithProperties(context, device, NULL, &e);
	CHECK(e);
	cl_program program = clCreateProgramWithSource(context, 1, &source, NULL, &e);
	CHECK(e);
	CHECK(clBuildProgram(program, 1, &device, "", NULL, NULL));
	cl_kernel advance = clCreateKernel(program, "advance", &e), paint = clCreateKernel(program, "paint", &e);
	CHECK(e);
	CHECK(clReleaseProgram(program));
	cl_mem a = clCreateBuffer(context, CL_MEM_READ_WRITE, N * sizeof(cl_uint), NULL, &e);
	CHECK(e);
	cl_mem large = big ? clCreateBuffer(context, CL_MEM_READ_WRITE, big, NULL, &e) : NULL;
	CHECK(e);
	cl_image_format format = {CL_RGBA, CL_UNSIGNED_INT8};
	cl_image_desc desc = {.image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = SIDE, .image_height = SIDE};
	cl_mem image = clCreateImage(context, CL_MEM_READ_WRITE, &format, &desc, NULL, &e);
	CHECK(e);
	static cl_uint want[N], got[N];
	static unsigned char piece[PIECE], back[PIECE], pixels[SIDE * SIDE * 4];
	for (cl_uint i = 0; i < N; i++)
		want[i] = i;
	CHECK(clEnqueueWriteBuffer(queue, a, CL_TRUE, 0, sizeof(want), want, 0, NULL, NULL));
	cl_uint seven = 0x07070707;
	if (big)
		CHECK(clEnqueueFillBuffer(queue, large, &seven, sizeof(seven), 0, big, 0, NULL, NULL));
	memset(piece, 7, sizeof(piece));
	CHECK(clSetKernelArg(advance, 0, sizeof(a), &a));
	CHECK(clSetKernelArg(paint, 0, sizeof(image), &image));
	cl_uint k = 0, rounds = 0;
	for (; access(argv[2], F_OK) != 0; rounds++) {
		size_t n = N, sides[2] = {SIDE, SIDE}, origin[3] = {0}, region[3] = {SIDE, SIDE, 1};
		for (int i = 0; i < CHAIN; i++, k++) {
			CHECK(clSetKernelArg(advance, 1, sizeof(k), &k));
			CHECK(clEnqueueNDRangeKernel(queue, advance, 1, NULL, &n, NULL, 0, NULL, NULL));
			for (cl_uint j = 0; j < N; j++)
				want[j] = want[j] * 1664525u + k;
		}
		CHECK(clSetKernelArg(paint, 1, sizeof(k), &k));
		CHECK(clEnqueueNDRangeKernel(queue, paint, 2, NULL, sides, NULL, 0, NULL, NULL));
		CHECK(clEnqueueReadImage(queue, image, CL_FALSE, origin, region, 0, 0, pixels, 0, NULL, NULL));
		if (big) {
			size_t at = (size_t)rounds * PIECE * 7 % big / PIECE * PIECE;
			CHECK(clEnqueueReadBuffer(queue, large, CL_FALSE, at, PIECE, back, 0, NULL, NULL));
		}
		CHECK(clEnqueueReadBuffer(queue, a, CL_TRUE, 0, sizeof(got), got, 0, NULL, NULL));
		int good = memcmp(got, want, sizeof(got)) == 0 && (!big || memcmp(back, piece, PIECE) == 0);
		for (unsigned y = 0; y < SIDE; y++)
			for (unsigned x = 0; x < SIDE; x++) {
				unsigned char *p = pixels + 4 * (y * SIDE + x);
				good = good && p[0] == (unsigned char)(x + k) && p[1] == y && p[2] == (unsigned char)k && p[3] == 1;
			}
		if (!good) {
			printf("round %u is wrong\n", rounds);
			return 1;
		}
		if (rounds == 0)
			CHECK(fclose(fopen(argv[1], "w")));
	}
	printf("all rounds are right: %d\n", rounds > 0);
	fprintf(stderr, "%u rounds\n", rounds);
	return 0;
}
