package vfiouser

import "encoding/binary"

// Offsets in the configuration space (PCI Express Base Specification, section 7.5.1).
const (
	cfgStatus       = 0x06
	cfgStatusCaps   = 1 << 4
	cfgCapPointer   = 0x34
	cfgFirstCap     = 0x40
	cfgSize         = 256
	capIDVendor     = 0x09
	capIDMSIX       = 0x11
	capPointerAlign = 0xfc
)

// hideMSIX turns the MSI-X capability in an image of the configuration space
// into a vendor-specific one; see Config.HideMSIXAtRealize.
func hideMSIX(cfg []byte) {
	if len(cfg) < cfgSize || binary.LittleEndian.Uint16(cfg[cfgStatus:])&cfgStatusCaps == 0 {
		return
	}
	at := cfg[cfgCapPointer] & capPointerAlign
	// A list without loops has at most this many members.
	for range (cfgSize - cfgFirstCap) / 4 {
		if at < cfgFirstCap {
			return
		}
		if cfg[at] == capIDMSIX {
			cfg[at] = capIDVendor
			return
		}
		at = cfg[at+1] & capPointerAlign
	}
}
