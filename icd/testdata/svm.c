/* Shared virtual memory, coarse-grained. The argument "refusals" makes wrong calls. */
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { NODES = 1000, BYTES = 1 << 20 };

struct node {
	struct node *next;
	long value;
};

static const char *source =
	"struct node { __global struct node *next; long value; };\n"
	"__kernel void walk(__global struct node *n) { for (; n; n = n->next) n->value = n->value * 2 + 1; }\n"
	"__kernel void link(__global struct node *n, __global struct node *end) {\n"
	"	size_t i = get_global_id(0), count = get_global_size(0);\n"
	"	n[i].next = i + 1 < count ? n + i + 1 : end; n[i].value = i; }\n"
	"__kernel void head(__global ulong *out, __global struct node *n) { out[0] = (ulong)n->next; out[1] = (ulong)out; }\n"
	"__kernel void add(__global int *a, int k) { a[get_global_id(0)] += k; }\n";

static cl_context c;
static cl_device_id d;
static cl_command_queue q;
static cl_program g;

static void check(cl_int code, const char *what)
{
	if (code) {
		printf("%s: %d\n", what, code);
		exit(1);
	}
}

static void *allocate(size_t n)
{
	void *p = clSVMAlloc(c, CL_MEM_READ_WRITE, n, 0);

	if (!p) {
		printf("no memory\n");
		exit(1);
	}
	return p;
}

static void run(cl_kernel k, size_t n) { check(clEnqueueNDRangeKernel(q, k, 1, NULL, &n, NULL, 0, NULL, NULL), "kernel"); }

static void map(void *p, size_t n, cl_map_flags flags) { check(clEnqueueSVMMap(q, CL_TRUE, flags, p, n, 0, NULL, NULL), "map"); }
static void unmap(void *p) { check(clEnqueueSVMUnmap(q, p, 0, NULL, NULL), "unmap"); }

static cl_kernel kernel(const char *name)
{
	cl_int code;
	cl_kernel k = clCreateKernel(g, name, &code);

	check(code, name);
	return k;
}

/* A list whose nodes lie in two regions is made by the program, and then by a kernel. */
static void lists(void)
{
	struct node *a = allocate(NODES * sizeof *a), *b = allocate(NODES * sizeof *b);
	void *used[] = {b};
	cl_kernel walk = kernel("walk"), link = kernel("link");
	long sum = 0, count = 0;

	map(a, NODES * sizeof *a, CL_MAP_WRITE_INVALIDATE_REGION);
	map(b, NODES * sizeof *b, CL_MAP_WRITE);
	for (int i = 0; i < NODES; i++) {
		a[i] = (struct node){&b[NODES - 1 - i], i};
		b[NODES - 1 - i] = (struct node){i + 1 < NODES ? &a[i + 1] : NULL, -i};
	}
	unmap(a);
	unmap(b);
	check(clSetKernelArgSVMPointer(walk, 0, a), "argument");
	check(clSetKernelExecInfo(walk, CL_KERNEL_EXEC_INFO_SVM_PTRS, sizeof used, used), "other regions");
	run(walk, 1);
	check(clSetKernelExecInfo(walk, CL_KERNEL_EXEC_INFO_SVM_PTRS, 0, NULL), "no other regions");
	check(clSetKernelArgSVMPointer(walk, 0, NULL), "no argument");
	run(walk, 1);
	check(clSetKernelArgSVMPointer(walk, 0, a), "argument");
	check(clSetKernelExecInfo(walk, CL_KERNEL_EXEC_INFO_SVM_PTRS, sizeof used, used), "other regions");
	cl_kernel twin = clCloneKernel(walk, NULL);
	if (twin) {
		run(twin, 1);
		clReleaseKernel(twin);
	} else
		run(walk, 1);
	map(a, NODES * sizeof *a, CL_MAP_READ);
	map(b, NODES * sizeof *b, CL_MAP_READ);
	for (struct node *n = a; n; n = n->next, count++)
		sum += n->value;
	printf("a list of the program: %ld nodes, sum %ld\n", count, sum);
	unmap(b);
	unmap(a);
	check(clSetKernelArgSVMPointer(link, 0, b + 1), "an address in the middle");
	check(clSetKernelArgSVMPointer(link, 1, a + 5), "argument");
	run(link, NODES - 1);
	map(b, NODES * sizeof *b, CL_MAP_READ);
	sum = count = 0;
	for (struct node *n = b + 1; n != a + 5; n = n->next, count++)
		sum += n->value;
	printf("a list of a kernel: %ld nodes, sum %ld\n", count, sum);
	unmap(b);
	clReleaseKernel(walk);
	clReleaseKernel(link);
	check(clFinish(q), "finish");
	clSVMFree(c, a);
	clSVMFree(c, b);
}

static void addresses(void)
{
	struct node *n = allocate(sizeof *n);
	cl_ulong *out = allocate(2 * sizeof *out);
	cl_kernel head = kernel("head");

	check(clEnqueueSVMMemFill(q, n, &n, sizeof n, sizeof *n, 0, NULL, NULL), "fill");
	check(clSetKernelArgSVMPointer(head, 0, out), "argument");
	check(clSetKernelArgSVMPointer(head, 1, n), "argument");
	run(head, 1);
	map(out, 2 * sizeof *out, CL_MAP_READ);
	printf("addresses in the kernel: %d %d\n", out[0] == (cl_ulong)n, out[1] == (cl_ulong)out);
	unmap(out);
	check(clFinish(q), "finish");
	clReleaseKernel(head);
	clSVMFree(c, n);
	clSVMFree(c, out);
}

static void copies(void)
{
	unsigned char *a = allocate(BYTES), *b = allocate(BYTES), *host = malloc(BYTES), *other = malloc(BYTES);
	int right = 1;

	for (int i = 0; i < BYTES; i++)
		host[i] = (unsigned char)(i * 7 + i / 256);
	check(clEnqueueSVMMemcpy(q, CL_TRUE, a, host, BYTES, 0, NULL, NULL), "from the program");
	check(clEnqueueSVMMemcpy(q, CL_FALSE, b + 1, a, BYTES - 1, 0, NULL, NULL), "between regions");
	check(clEnqueueSVMMemFill(q, b + 64, "abcd", 4, 1024, 0, NULL, NULL), "fill");
	check(clEnqueueSVMMemcpy(q, CL_TRUE, other + 1, b + 1, BYTES - 1, 0, NULL, NULL), "to the program");
	for (int i = 1; i < BYTES; i++)
		right &= other[i] == (i >= 64 && i < 64 + 1024 ? "abcd"[i % 4] : host[i - 1]);
	check(clEnqueueSVMMemcpy(q, CL_TRUE, other, host, BYTES, 0, NULL, NULL), "in the program");
	printf("copies: %d %d\n", right, !memcmp(other, host, BYTES));
	map(a + 100, 50, CL_MAP_READ | CL_MAP_WRITE);
	right = !memcmp(a + 100, host + 100, 50);
	memset(a + 100, 9, 50);
	unmap(a + 100);
	check(clEnqueueSVMMemcpy(q, CL_TRUE, other, a, BYTES, 0, NULL, NULL), "to the program");
	memset(host + 100, 9, 50);
	printf("a part: %d %d\n", right, !memcmp(other, host, BYTES));
	printf("overlapping: %d\n", clEnqueueSVMMemcpy(q, CL_TRUE, a, a + 10, 20, 0, NULL, NULL));
	clSVMFree(c, a);
	clSVMFree(c, b);
	free(host);
	free(other);
}

static void buffers(void)
{
	enum { N = 4096 };
	int *a = allocate(N * sizeof *a), three = 3, right = 0, values[8];
	cl_buffer_region part = {1024, 1024};
	cl_kernel add = kernel("add");
	cl_bool uses = CL_FALSE;
	cl_int code;

	map(a, N * sizeof *a, CL_MAP_WRITE_INVALIDATE_REGION);
	for (int i = 0; i < N; i++)
		a[i] = i;
	unmap(a);
	cl_mem m = clCreateBuffer(c, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, N * sizeof *a, a, &code);
	check(code, "buffer");
	check(clGetMemObjectInfo(m, CL_MEM_USES_SVM_POINTER, sizeof uses, &uses, NULL), "query");
	check(clSetKernelArg(add, 0, sizeof m, &m), "argument");
	check(clSetKernelArg(add, 1, sizeof three, &three), "argument");
	run(add, N);
	cl_mem s = clCreateSubBuffer(m, 0, CL_BUFFER_CREATE_TYPE_REGION, &part, &code);
	check(code, "sub-buffer");
	check(clSetKernelArg(add, 0, sizeof s, &s), "argument");
	run(add, 256);
	check(clSetKernelArgSVMPointer(add, 0, a + 256), "argument");
	run(add, 256);
	check(clEnqueueReadBuffer(q, m, CL_TRUE, 1024, sizeof values, values, 0, NULL, NULL), "read");
	map(a, N * sizeof *a, CL_MAP_READ);
	for (int i = 0; i < N; i++)
		right += a[i] == i + (i >= 256 && i < 512 ? 9 : 3);
	printf("a buffer in a region: %d, %d of %d right, read %d\n", uses == CL_TRUE, right, N, values[0]);
	unmap(a);
	check(clFinish(q), "finish");
	clReleaseMemObject(s);
	clReleaseMemObject(m);
	clReleaseKernel(add);
	clSVMFree(c, a);
}

static int freed;

static void CL_CALLBACK free_them(cl_command_queue queue, cl_uint n, void *list[], void *data)
{
	for (cl_uint i = 0; i < n; i++)
		clSVMFree(data, list[i]);
	freed = (int)n + (queue == q);
}

static void commands(void)
{
	void *list[] = {allocate(100), allocate(200)}, *own[] = {allocate(300)};
	const void *moved[] = {list[0], own[0]};
	cl_event user = clCreateUserEvent(c, NULL), late, end;
	int *a = allocate(sizeof *a), seven = 7, got = 0;
	cl_command_type type = 0;
	cl_kernel add = kernel("add");

	check(clEnqueueSVMMigrateMem(q, 2, moved, NULL, 0, 0, NULL, NULL), "migrate");
	check(clEnqueueSVMFree(q, 1, own, NULL, NULL, 0, NULL, NULL), "free");
	check(clEnqueueSVMFree(q, 2, list, free_them, c, 0, NULL, &end), "free");
	check(clWaitForEvents(1, &end), "wait");
	check(clGetEventInfo(end, CL_EVENT_COMMAND_TYPE, sizeof type, &type, NULL), "type");
	printf("freed: %d, type %d\n", freed, type == CL_COMMAND_SVM_FREE);
	clReleaseEvent(end);
	/* All wait for the user event. */
	check(clEnqueueSVMMemcpy(q, CL_FALSE, a, &seven, sizeof seven, 1, &user, NULL), "copy");
	check(clSetKernelArgSVMPointer(add, 0, a), "argument");
	check(clSetKernelArg(add, 1, sizeof seven, &seven), "argument");
	run(add, 1);
	check(clEnqueueSVMMemcpy(q, CL_FALSE, &got, a, sizeof got, 0, NULL, &late), "copy");
	own[0] = a;
	check(clEnqueueSVMFree(q, 1, own, free_them, c, 0, NULL, &end), "free");
	freed = 0;
	check(clSetUserEventStatus(user, CL_COMPLETE), "event");
	check(clWaitForEvents(1, &late), "wait");
	check(clWaitForEvents(1, &end), "wait");
	printf("behind a user event: %d, freed %d\n", got, freed);
	clReleaseEvent(user);
	clReleaseEvent(late);
	clReleaseEvent(end);
	clReleaseKernel(add);
}

/* The addresses of the device may be taken in the program. */
static void taken(void)
{
	enum { ROUNDS = 20 };
	void *walls[ROUNDS];
	int right = 0;

	for (int i = 0; i < ROUNDS; i++) {
		char *p = allocate(64 << 10), value = 0;
		check(clEnqueueSVMMemFill(q, p, "x", 1, 64 << 10, 0, NULL, NULL), "fill");
		check(clEnqueueSVMMemcpy(q, CL_TRUE, &value, p + 999, 1, 0, NULL, NULL), "copy");
		right += value == 'x';
		clSVMFree(c, p);
		walls[i] = mmap((void *)((unsigned long)p & ~4095ul), 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	}
	for (int i = 0; i < ROUNDS; i++)
		munmap(walls[i], 4096);
	printf("addresses that are taken: %d of %d\n", right, ROUNDS);
}

static void refusals(void)
{
	char own[64], *a = allocate(4096);
	const void *pointers[] = {own}, *none[] = {NULL};
	cl_kernel add = kernel("add");
	cl_bool yes = CL_TRUE;
	cl_int code;

	printf("allocations: %d %d %d %d %d\n", !clSVMAlloc(c, CL_MEM_READ_WRITE | CL_MEM_SVM_FINE_GRAIN_BUFFER, 64, 0),
	       !clSVMAlloc(c, CL_MEM_READ_WRITE | CL_MEM_WRITE_ONLY, 64, 0), !clSVMAlloc(c, 0, 0, 0), !clSVMAlloc(c, 0, 64, 3),
	       !clSVMAlloc(c, 0, (size_t)1 << 60, 0));
	printf("maps: %d", clEnqueueSVMMap(q, CL_TRUE, CL_MAP_READ, own, 64, 0, NULL, NULL));
	printf(" %d", clEnqueueSVMMap(q, CL_TRUE, CL_MAP_READ, a, 4097, 0, NULL, NULL));
	printf(" %d", clEnqueueSVMMap(q, CL_TRUE, CL_MAP_READ, a, 0, 0, NULL, NULL));
	printf(" %d", clEnqueueSVMMap(q, CL_TRUE, CL_MAP_READ, NULL, 4, 0, NULL, NULL));
	printf(" %d\n", clEnqueueSVMUnmap(q, a, 0, NULL, NULL));
	printf("copies: %d", clEnqueueSVMMemcpy(q, CL_TRUE, a + 4000, own, 97, 0, NULL, NULL));
	printf(" %d", clEnqueueSVMMemcpy(q, CL_TRUE, NULL, own, 8, 0, NULL, NULL));
	printf(" %d\n", clEnqueueSVMMemcpy(NULL, CL_TRUE, a, own, 8, 0, NULL, NULL));
	printf("fills: %d", clEnqueueSVMMemFill(q, own, "ab", 2, 8, 0, NULL, NULL));
	printf(" %d", clEnqueueSVMMemFill(q, a + 1, "ab", 2, 8, 0, NULL, NULL));
	printf(" %d\n", clEnqueueSVMMemFill(q, a, "abc", 3, 9, 0, NULL, NULL));
	printf("arguments: %d", clSetKernelArgSVMPointer(add, 0, own));
	printf(" %d", clSetKernelArgSVMPointer(add, 1, a));
	printf(" %d\n", clSetKernelArgSVMPointer(add, 2, a));
	printf("uses: %d", clSetKernelExecInfo(add, CL_KERNEL_EXEC_INFO_SVM_PTRS, sizeof pointers, pointers));
	printf(" %d", clSetKernelExecInfo(add, CL_KERNEL_EXEC_INFO_SVM_PTRS, 3, pointers));
	printf(" %d\n", clSetKernelExecInfo(add, CL_KERNEL_EXEC_INFO_SVM_FINE_GRAIN_SYSTEM, sizeof yes, &yes));
	printf("frees: %d", clEnqueueSVMFree(q, 1, (void **)none, NULL, NULL, 0, NULL, NULL));
	printf(" %d\n", clEnqueueSVMMigrateMem(q, 1, pointers, NULL, 0, 0, NULL, NULL));
	cl_mem m = clCreateBuffer(c, CL_MEM_USE_HOST_PTR, 4097, a, &code);
	printf("buffer: %d %d\n", m == NULL, code);
	/* A kernel whose region is gone is refused, and the context goes on. */
	int k = 1;
	size_t one = 1;
	cl_event e;
	check(clSetKernelArgSVMPointer(add, 0, a), "argument");
	check(clSetKernelArg(add, 1, sizeof k, &k), "argument");
	clSVMFree(c, a);
	code = clEnqueueNDRangeKernel(q, add, 1, NULL, &one, NULL, 0, NULL, &e);
	if (!code)
		code = clWaitForEvents(1, &e);
	printf("a region that is gone: %d\n", code);
	clReleaseKernel(add);
}

int main(int argc, char **argv)
{
	cl_device_svm_capabilities svm = 0;
	cl_platform_id p;
	cl_int code;

	check(clGetPlatformIDs(1, &p, NULL), "platform");
	check(clGetDeviceIDs(p, CL_DEVICE_TYPE_ALL, 1, &d, NULL), "device");
	c = clCreateContext(NULL, 1, &d, NULL, NULL, &code);
	check(code, "context");
	check(clGetDeviceInfo(d, CL_DEVICE_SVM_CAPABILITIES, sizeof svm, &svm, NULL), "query");
	printf("coarse-grained: %d\n", (svm & CL_DEVICE_SVM_COARSE_GRAIN_BUFFER) != 0);
	q = clCreateCommandQueueWithProperties(c, d, NULL, &code);
	check(code, "queue");
	g = clCreateProgramWithSource(c, 1, &source, NULL, &code);
	check(clBuildProgram(g, 1, &d, "-cl-std=CL1.2", NULL, NULL), "build");
	lists();
	addresses();
	copies();
	buffers();
	commands();
	taken();
	if (argc > 1 && !strcmp(argv[1], "refusals"))
		refusals();
	clReleaseProgram(g);
	clReleaseCommandQueue(q);
	clReleaseContext(c);
	return 0;
}
