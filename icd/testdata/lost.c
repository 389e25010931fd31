/* A program that uses its GPU until the GPU is taken away. It makes a file when the GPU is in use. */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	cl_platform_id p;
	cl_device_id d;
	cl_int code = clGetPlatformIDs(1, &p, NULL), one = 1, later;

	if (!code)
		code = clGetDeviceIDs(p, CL_DEVICE_TYPE_ALL, 1, &d, NULL);
	cl_context c = code ? NULL : clCreateContext(NULL, 1, &d, NULL, NULL, &code);
	cl_command_queue q = code ? NULL : clCreateCommandQueue(c, d, 0, &code);
	cl_mem m = code ? NULL : clCreateBuffer(c, CL_MEM_READ_WRITE, 4096, NULL, &code);
	if (code) {
		printf("no GPU: %d\n", code);
		return 1;
	}
	for (unsigned long rounds = 0; !code; rounds++) {
		code = clEnqueueFillBuffer(q, m, &one, sizeof one, 0, 4096, 0, NULL, NULL);
		if (!code)
			code = clFinish(q);
		if (!code && rounds == 0) {
			FILE *f = argc > 1 ? fopen(argv[1], "w") : NULL;
			if (f)
				fclose(f);
			puts("in use");
			fflush(stdout);
		}
	}
	clCreateBuffer(c, CL_MEM_READ_WRITE, 4096, NULL, &later);
	printf("lost %d, then %d\n", code, later);
	return 0;
}
