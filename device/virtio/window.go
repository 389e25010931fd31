package virtio

import (
	"encoding/binary"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// The PCI configuration access capability (section 4.1.4.9) is a window onto the registers
// for a driver that reaches no BAR, such as firmware: the driver writes BAR, offset and
// length, and then reads or writes the data.

// Offsets in the capability.
const (
	windowBAR    = 4
	windowOffset = 8
	windowLength = 12
	windowData   = 16
)

// windowMasks are the bits of BAR, offset, length and data, behind the three bytes of the
// capability's header.
var windowMasks = []byte{
	windowBAR - 3:    0xff,
	windowOffset - 3: 0xff, 0xff, 0xff, 0xff,
	windowLength - 3: 0xff, 0xff, 0xff, 0xff,
	windowData - 3: 0xff, 0xff, 0xff, 0xff,
}

// findWindow returns the offset of the capability.
func findWindow(cfg *cfgspace.Space) int {
	dump := cfg.Bytes()
	for id, at := range cfgspace.Capabilities(dump) {
		if id == cfgspace.CapVendor && dump[at+3] == capPCI {
			return at
		}
	}
	return 0
}

// windowData reports whether a configuration request is for the data of the window.
func (d *Device) windowData(p *tlp.Packet) bool {
	return int(p.Register&^3) == d.window+windowData && p.FirstBE != 0
}

// shown returns what the window shows: n bytes of BAR 0, or none.
func (d *Device) shown() (off uint64, n int) {
	off = uint64(d.cfg.Read(d.window+windowOffset, pcie.DW))
	length := uint64(d.cfg.Read(d.window+windowLength, pcie.DW))
	bar := d.cfg.Read(d.window+windowBAR, 1)
	if bar != barRegisters || length != 1 && length != 2 && length != 4 || off%length != 0 || off+length > registersSize || d.cfg.PowerState() != 0 {
		return 0, 0
	}
	return off, int(length)
}

// readWindow returns the double word of the data; before is what it was.
func (d *Device) readWindow(before uint32) uint32 {
	off, n := d.shown()
	if n == 0 {
		return before
	}
	word := binary.LittleEndian.AppendUint32(nil, before)
	d.readBAR(barRegisters, off, word[:n], d.takeISR(barRegisters, off, n))
	return binary.LittleEndian.Uint32(word)
}

// writeWindow writes the data to the registers if the request had all of its bytes.
func (d *Device) writeWindow(be uint8) {
	off, n := d.shown()
	if all := uint8(1)<<n - 1; n == 0 || be&all != all {
		return
	}
	word := binary.LittleEndian.AppendUint32(nil, d.cfg.Read(d.window+windowData, pcie.DW))
	d.writeBAR(barRegisters, off, word[:n])
}
