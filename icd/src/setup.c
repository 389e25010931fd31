/* The set-up of the PCI function, as firmware and a kernel do it. */
#include "vfio_private.h"

/* Bus addresses, and where interrupts go. */
#define BAR32_BASE 0xc0000000u
#define BAR64_BASE 0x8000000000u

/* Offsets in configuration space. */
enum { CONFIG_COMMAND = 4, CONFIG_BAR0 = 0x10, CONFIG_CAPABILITIES = 0x34, CAPABILITY_MSIX = 0x11 };

static uint64_t align_up(uint64_t v, uint64_t size) { return (v + size - 1) & ~(size - 1); }

/* set_up assigns the BARs and enables decoding, bus mastering and one MSI-X vector. */
int user_set_up(struct vfio *v)
{
	unsigned char config[4096];
	uint32_t size = (uint32_t)user_region_size(v, REGION_CONFIG);
	uint64_t size0 = user_region_size(v, REGION_BAR0), size2 = user_region_size(v, REGION_BAR2), size4 = user_region_size(v, REGION_BAR4);
	uint64_t bar0 = align_up(BAR32_BASE, size0), bar4 = align_up(bar0 + size0, size4), bar2 = align_up(BAR64_BASE, size2);
	uint32_t word, entry[4] = {MSI_ADDRESS, 0, 0, 0};

	if (size > sizeof config || size < 256 || !size0 || !size2 || !size4)
		return -1;
	/* The first read is for a VMM: it may hide MSI-X. */
	if (vfio_read(v, REGION_CONFIG, 0, config, size))
		return -1;
	if (user_write_config(v, CONFIG_BAR0, (uint32_t)bar0) || user_write_config(v, CONFIG_BAR0 + 8, (uint32_t)bar2) ||
	    user_write_config(v, CONFIG_BAR0 + 12, (uint32_t)(bar2 >> 32)) || user_write_config(v, CONFIG_BAR0 + 16, (uint32_t)bar4) ||
	    user_write_config(v, CONFIG_COMMAND, 6))
		return -1;
	if (vfio_read(v, REGION_CONFIG, CONFIG_CAPABILITIES, &word, sizeof word))
		return -1;
	for (unsigned at = word & 0xfc, hops = 0; at && hops < 48; hops++, at = word >> 8 & 0xfc) {
		if (vfio_read(v, REGION_CONFIG, at, &word, sizeof word))
			return -1;
		if ((word & 0xff) != CAPABILITY_MSIX)
			continue;
		struct write_part table = {REGION_BAR4, sizeof entry, 0, entry};
		if (vfio_write(v, &table, 1))
			return -1;
		return user_write_config(v, at, (word & ~(1u << 30)) | 1u << 31);
	}
	return -1;
}
