// Package cfgspace models the configuration space of a PCI Express function:
// an array of registers with an array of write masks, builders for headers and
// capabilities, and a walker for the configuration space of any other device.
//
// Section numbers refer to the PCI Express Base Specification, revision 6.0.
package cfgspace

import (
	"encoding/binary"

	"github.com/dxpu-project/dxpu/pcie"
)

// Space is the configuration space of one function. Use a Builder to make one.
// It is not safe for concurrent use.
//
// Invariant: no bit is in both write and clear.
type Space struct {
	value  []byte // as a read returns it
	write  []byte // bits that a write stores
	clear  []byte // bits that a write of one clears
	sticky []byte // bits that survive a Function Level Reset
	reset  []byte // value after a conventional reset

	bridge bool
	bars   [pcie.MaxBARs]BAR

	// Offsets of capabilities, 0 for absent ones.
	pm, express, msi, msix, aer, sriov int
}

// Size returns the size in bytes: pcie.ConfigSize or pcie.ConfigSizePCI.
func (s *Space) Size() int { return len(s.value) }

// Bytes returns a copy of the registers as a read returns them.
func (s *Space) Bytes() []byte { return append([]byte(nil), s.value...) }

// Read returns width (1, 2 or 4) bytes at off, little-endian. Any offset is safe:
// bytes beyond the space, and any other width, read as ones, like a bus without
// an answer.
func (s *Space) Read(off, width int) uint32 {
	if !validWidth(width) {
		return 0xffffffff
	}
	if off >= 0 && off <= len(s.value)-4 && width == 4 {
		return le.Uint32(s.value[off:])
	}
	var v uint32
	for i := range width {
		b := byte(0xff)
		if at := off + i; at >= 0 && at < len(s.value) {
			b = s.value[at]
		}
		v |= uint32(b) << (8 * i)
	}
	return v
}

// Write stores width (1, 2 or 4) bytes at off like software: through the write
// masks. It ignores bytes out of bounds. The Change lists the events to handle.
func (s *Space) Write(off, width int, v uint32) Change {
	if !validWidth(width) || off < 0 || off >= len(s.value) {
		return Change{}
	}
	before := s.snapshot()
	for i := range width {
		if at := off + i; at < len(s.value) {
			s.writeByte(at, byte(v>>(8*i)))
		}
	}
	return s.changes(before)
}

// WriteBE stores the bytes of the double word v that be enables (bit i for byte i)
// at register reg, a multiple of 4. It is the write of a CfgWr request.
func (s *Space) WriteBE(reg uint16, be uint8, v uint32) Change {
	off := int(reg &^ 3)
	if off >= len(s.value) {
		return Change{}
	}
	before := s.snapshot()
	for i := range 4 {
		if be>>i&1 != 0 {
			s.writeByte(off+i, byte(v>>(8*i)))
		}
	}
	return s.changes(before)
}

func (s *Space) writeByte(at int, b byte) {
	w, c := s.write[at], s.clear[at]
	s.value[at] = s.value[at]&^w&^(b&c) | b&w
}

// Poke stores width (1, 2 or 4) bytes at off like hardware, regardless of the
// masks: status bits, link state. It ignores bytes out of bounds.
func (s *Space) Poke(off, width int, v uint32) {
	for i := range width {
		if at := off + i; at >= 0 && at < len(s.value) && i < 4 {
			s.value[at] = byte(v >> (8 * i))
		}
	}
}

// PokeBits sets and then clears bits of a 16-bit register.
func (s *Space) PokeBits(off int, set, clear uint16) {
	s.Poke(off, 2, uint32((uint16(s.Read(off, 2))|set)&^clear))
}

// Reset restores the reset values. With keepSticky (a Function Level Reset,
// section 6.6.2) it leaves the sticky bits: error logs, Max_Payload_Size, link
// control.
func (s *Space) Reset(keepSticky bool) {
	if !keepSticky {
		copy(s.value, s.reset)
		return
	}
	for i := 0; i < len(s.value); i += 8 { // a driver may reset the function as often as it writes a register
		keep := le.Uint64(s.sticky[i:])
		le.PutUint64(s.value[i:], le.Uint64(s.reset[i:])&^keep|le.Uint64(s.value[i:])&keep)
	}
}

// le is the byte order of all registers.
var le = binary.LittleEndian

func validWidth(w int) bool { return w == 1 || w == 2 || w == 4 }

func (s *Space) read16(off int) uint16 { return le.Uint16(s.value[off:]) }

// Command returns the Command register.
func (s *Space) Command() uint16 { return s.read16(OffCommand) }

// BusMaster reports whether the function may send memory requests.
func (s *Space) BusMaster() bool { return s.Command()&CmdBusMaster != 0 }

// MemoryEnabled reports whether the function answers memory requests.
func (s *Space) MemoryEnabled() bool { return s.Command()&CmdMemory != 0 }

// IsBridge reports whether the header is of type 1.
func (s *Space) IsBridge() bool { return s.bridge }

// PowerState returns the D-state, 0 to 3, or 0 without Power Management.
func (s *Space) PowerState() int {
	if s.pm == 0 {
		return 0
	}
	return int(s.value[s.pm+OffPMStatus] & 3)
}
