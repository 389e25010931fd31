/*
 * A device of libvfio-user's library for the tests: registers, a copy engine that
 * reaches memory by messages, and interrupts by MSI-X or, with -x, by INTx.
 *
 * BAR 0, 16 KiB:
 *   0x0000  identity, read-only
 *   0x0004  scratch
 *   0x0008  bus address of the source, 64 bits
 *   0x0010  bus address of the destination, 64 bits
 *   0x0018  length in bytes, at most 64 KiB
 *   0x001c  command: 1 copies and raises interrupt 0, 2 raises interrupt 0
 *   0x0020  number of copies
 *   0x0024  errno of the last copy
 *   0x2000  MSI-X table, 0x3000 pending bits
 */
#include <err.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "libvfio-user.h"

enum { BAR = 0x4000, TABLE = 0x2000, PENDING = 0x3000, PAGE = 4096, LONGEST = 1 << 16 };
enum { SCRATCH = 4, SOURCE = 8, TARGET = 16, LENGTH = 24, COMMAND = 28, COPIES = 32, FAILED = 36 };
static const uint32_t identity = 0x44585054;
static char registers[BAR];

static uint64_t get(int at, int size)
{
	uint64_t v = 0;
	memcpy(&v, registers + at, size);
	return v;
}

static void put(int at, uint32_t v) { memcpy(registers + at, &v, sizeof v); }

static void clear_registers(void)
{
	memset(registers, 0, sizeof registers);
	put(0, identity);
}

/* move reads or writes memory page by page: a transfer has one segment. */
static int move(vfu_ctx_t *ctx, uint64_t at, char *data, size_t n, int write)
{
	dma_sg_t *sg = malloc(dma_sg_size());
	int failed = 0;
	while (n > 0 && !failed) {
		size_t part = PAGE - at % PAGE;
		part = part < n ? part : n;
		if (vfu_addr_to_sgl(ctx, (vfu_dma_addr_t)at, part, sg, 1, write ? PROT_WRITE : PROT_READ) != 1 ||
		    (write ? vfu_sgl_write : vfu_sgl_read)(ctx, sg, 1, data, 0) != 0)
			failed = errno ? errno : EIO;
		at += part;
		data += part;
		n -= part;
	}
	free(sg);
	return failed;
}

static void copy(vfu_ctx_t *ctx)
{
	static char data[LONGEST];
	size_t n = get(LENGTH, 4);
	int failed = n > sizeof data ? EINVAL : move(ctx, get(SOURCE, 8), data, n, 0);
	if (!failed)
		failed = move(ctx, get(TARGET, 8), data, n, 1);
	put(FAILED, failed);
	put(COPIES, get(COPIES, 4) + 1);
}

static ssize_t on_access(vfu_ctx_t *ctx, char *const data, size_t n, loff_t at, const bool write)
{
	if (at < 0 || n > BAR || at > BAR - (loff_t)n) {
		errno = EINVAL;
		return -1;
	}
	if (!write) {
		memcpy(data, registers + at, n);
	} else if (at >= SCRATCH) {
		memcpy(registers + at, data, n);
		if (at == COMMAND && get(COMMAND, 4) == 1)
			copy(ctx);
		if (at == COMMAND && vfu_irq_trigger(ctx, 0) != 0)
			warn("interrupt");
	}
	return n;
}

static int on_reset(vfu_ctx_t *ctx, vfu_reset_type_t type)
{
	(void)ctx;
	if (type != VFU_RESET_LOST_CONN)
		clear_registers();
	return 0;
}

static void on_map(vfu_ctx_t *ctx, vfu_dma_info_t *info)
{
	(void)ctx;
	(void)info;
}

static void on_log(vfu_ctx_t *ctx, int level, const char *text)
{
	(void)ctx;
	(void)level;
	fprintf(stderr, "device: %s\n", text);
}

static void must(int result, const char *what)
{
	if (result < 0)
		err(EXIT_FAILURE, "%s", what);
}

static void add_capabilities(vfu_ctx_t *ctx, int msix)
{
	struct pmcap pm = {.hdr.id = PCI_CAP_ID_PM, .pmcs.nsfrst = 1};
	struct pxcap px = {.hdr.id = PCI_CAP_ID_EXP, .pxcaps.ver = 2, .pxdcap = {.rer = 1, .flrc = 1}};
	struct msixcap mx = {.hdr.id = PCI_CAP_ID_MSIX, .mxc.ts = 1, .mtab.to = TABLE >> 3, .mpba.pbao = PENDING >> 3};
	must(vfu_pci_add_capability(ctx, 0, 0, &pm), "power management");
	must(vfu_pci_add_capability(ctx, 0, 0, &px), "PCI Express");
	if (msix)
		must(vfu_pci_add_capability(ctx, 0, 0, &mx), "MSI-X");
}

int main(int argc, char **argv)
{
	int msix = argc == 2;
	if (argc != 2 && !(argc == 3 && strcmp(argv[1], "-x") == 0))
		errx(EXIT_FAILURE, "usage: device [-x] SOCKET");
	clear_registers();
	vfu_ctx_t *ctx = vfu_create_ctx(VFU_TRANS_SOCK, argv[argc - 1], 0, NULL, VFU_DEV_TYPE_PCI);
	if (ctx == NULL)
		err(EXIT_FAILURE, "context");
	must(vfu_setup_log(ctx, on_log, LOG_ERR), "log");
	must(vfu_pci_init(ctx, VFU_PCI_TYPE_EXPRESS, PCI_HEADER_TYPE_NORMAL, 0), "PCI");
	vfu_pci_set_id(ctx, 0x1234, 0xd9c0, 0x1234, 0xd9c0);
	vfu_pci_set_class(ctx, 0xff, 0, 0);
	add_capabilities(ctx, msix);
	must(vfu_setup_region(ctx, VFU_PCI_DEV_BAR0_REGION_IDX, BAR, on_access, VFU_REGION_FLAG_RW | VFU_REGION_FLAG_MEM, NULL, 0, -1, 0), "BAR");
	must(vfu_setup_device_nr_irqs(ctx, msix ? VFU_DEV_MSIX_IRQ : VFU_DEV_INTX_IRQ, msix ? 2 : 1), "interrupts");
	must(vfu_setup_device_reset_cb(ctx, on_reset), "reset");
	must(vfu_setup_device_dma(ctx, LIBVFIO_USER_MAX_DMA_REGIONS, on_map, on_map), "DMA");
	must(vfu_realize_ctx(ctx), "realize");
	for (;;) {
		must(vfu_attach_ctx(ctx), "attach");
		while (vfu_run_ctx(ctx) == 0 || errno == EINTR)
			;
		if (errno != ENOTCONN)
			err(EXIT_FAILURE, "run");
	}
}
