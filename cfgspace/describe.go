package cfgspace

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/dxpu-project/dxpu/pcie"
)

// HexDump prints a configuration space in the format of lspci -xxxx, which
// lspci -F reads. name is a description for the first line.
func HexDump(bdf pcie.BDF, name string, dump []byte) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s\n", bdf, name)
	for at := 0; at < len(dump); at += 16 {
		fmt.Fprintf(&b, "%02x:", at)
		for _, v := range dump[at:min(at+16, len(dump))] {
			fmt.Fprintf(&b, " %02x", v)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

var capabilityNames = map[uint8]string{
	CapPM: "Power Management", 0x03: "Vital Product Data", CapMSI: "MSI", CapVendor: "Vendor Specific",
	CapSubsystem: "Subsystem", CapExpress: "PCI Express", CapMSIX: "MSI-X", 0x13: "Advanced Features",
}

var extendedNames = map[uint16]string{
	ExtAER: "Advanced Error Reporting", 0x0002: "Virtual Channel", ExtSerial: "Device Serial Number",
	0x0004: "Power Budgeting", ExtVendor: "Vendor Specific", ExtACS: "Access Control Services", 0x000e: "ARI",
	0x000f: "Address Translation", ExtSRIOV: "SR-IOV", ExtResizableBAR: "Resizable BAR", 0x0018: "Latency Tolerance",
	0x0019: "Secondary PCI Express", 0x001b: "Process Address Space ID", 0x001e: "L1 PM Substates",
}

var portNames = map[PortType]string{
	Endpoint: "endpoint", RootPort: "root port", UpstreamPort: "upstream switch port", DownstreamPort: "downstream switch port",
}

// Describe prints the header, BARs and capabilities of a configuration space, one
// line each. It accepts any bytes and prints unknown capabilities by number.
func Describe(dump []byte) string {
	if len(dump) < 0x40 {
		return fmt.Sprintf("configuration space truncated at %d bytes\n", len(dump))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "device %04x:%04x class %02x%04x rev %02x header %d\n", le.Uint16(dump), le.Uint16(dump[OffDevice:]),
		dump[OffClass+2], le.Uint16(dump[OffClass:]), dump[OffRevision], dump[OffHeaderType]&0x7f)
	for i, bar := range DecodeBARs(dump) {
		if bar.Kind == NoBAR {
			continue
		}
		pref := ""
		if bar.Prefetchable {
			pref = ", prefetchable"
		}
		fmt.Fprintf(&b, "BAR %d: %s%s at %#x\n", i, bar.Kind, pref, bar.Addr)
	}
	for id, at := range Capabilities(dump) {
		name := cmp.Or(capabilityNames[id], fmt.Sprintf("capability %#02x", id))
		fmt.Fprintf(&b, "[%02x] %s%s\n", at, name, describeCapability(id, dump[at:]))
	}
	for c := range ExtendedCapabilities(dump) {
		name := cmp.Or(extendedNames[c.ID], fmt.Sprintf("extended capability %#04x", c.ID))
		fmt.Fprintf(&b, "[%03x v%d] %s", c.Offset, c.Version, name)
		if c.ID == ExtSerial && c.Offset+12 <= len(dump) {
			fmt.Fprintf(&b, ": %016x", le.Uint64(dump[c.Offset+4:]))
		}
		if c.ID == ExtSRIOV {
			b.WriteString(describeSRIOV(dump[c.Offset:]))
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// describeCapability prints the main registers of the capability at the start of d.
func describeCapability(id uint8, d []byte) string {
	switch {
	case id == CapPM && len(d) >= pmLength:
		return fmt.Sprintf(": D%d", d[OffPMStatus]&3)
	case id == CapMSI && len(d) >= 4:
		c := le.Uint16(d[2:])
		return fmt.Sprintf(": enable %d, vectors %d", c&MSIEnable, 1<<(c>>1&7))
	case id == CapMSIX && len(d) >= msixLength:
		c, table, pba := le.Uint16(d[2:]), le.Uint32(d[4:]), le.Uint32(d[8:])
		return fmt.Sprintf(": enable %d, vectors %d, table BAR %d+%#x, PBA BAR %d+%#x",
			c>>15, c&msixSizeMask+1, table&7, table&^7, pba&7, pba&^7)
	case id == CapExpress && len(d) >= OffSlotCap:
		return fmt.Sprintf(": v%d %s, MPS %d of %d, MRRS %d, link gen %d x%d of gen %d x%d",
			d[OffExpCaps]&0xf, cmp.Or(portNames[PortType(d[OffExpCaps]>>4)], fmt.Sprintf("port type %d", d[OffExpCaps]>>4)), 128<<(le.Uint16(d[OffDevCtl:])&DevCtlMPS>>5), 128<<(d[OffDevCap]&7),
			128<<(le.Uint16(d[OffDevCtl:])&DevCtlMRRS>>12), d[OffLinkSta]&0xf, le.Uint16(d[OffLinkSta:])>>4&0x3f,
			d[OffLinkCap]&0xf, le.Uint16(d[OffLinkCap:])>>4&0x3f)
	}
	return ""
}
