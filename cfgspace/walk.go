package cfgspace

import (
	"iter"

	"github.com/dxpu-project/dxpu/pcie"
)

// maxCapabilities and maxExtended bound a walk through any list: each capability
// takes at least 4 bytes of its region.
const (
	maxCapabilities = (pcie.ConfigSizePCI - 0x40) / 4
	maxExtended     = (pcie.ConfigSize - pcie.ConfigSizePCI) / 4
)

// Capabilities iterates over the capability list of a configuration space
// dump: ID and offset. It ends at a pointer that is out of range or leads to an
// earlier capability. The dump has at least two bytes at each offset; a caller
// that reads more must check the length.
func Capabilities(dump []byte) iter.Seq2[uint8, int] {
	return func(yield func(uint8, int) bool) {
		if len(dump) < 0x40 || le.Uint16(dump[OffStatus:])&StaCapabilities == 0 {
			return
		}
		var seen [pcie.ConfigSizePCI]bool
		at := int(dump[OffCapPtr] &^ 3)
		for range maxCapabilities {
			if at < 0x40 || at+2 > min(len(dump), pcie.ConfigSizePCI) || seen[at] {
				return
			}
			seen[at] = true
			if dump[at] == 0xff { // the read was not answered
				return
			}
			if !yield(dump[at], at) {
				return
			}
			at = int(dump[at+1] &^ 3)
		}
	}
}

// ExtendedCapability is one entry of the extended list.
type ExtendedCapability struct {
	ID      uint16
	Version uint8
	Offset  int
}

// ExtendedCapabilities iterates over the extended capability list, with the same
// bounds as Capabilities. The dump has at least four bytes at each offset.
func ExtendedCapabilities(dump []byte) iter.Seq[ExtendedCapability] {
	return func(yield func(ExtendedCapability) bool) {
		var seen [pcie.ConfigSize / 4]bool
		at := pcie.ConfigSizePCI
		for range maxExtended {
			if at < pcie.ConfigSizePCI || at+4 > min(len(dump), pcie.ConfigSize) || seen[at/4] {
				return
			}
			seen[at/4] = true
			h := le.Uint32(dump[at:])
			if h == 0 || h == 0xffffffff {
				return
			}
			if !yield(ExtendedCapability{ID: uint16(h), Version: uint8(h >> 16 & 0xf), Offset: at}) {
				return
			}
			at = int(h >> 20 &^ 3)
		}
	}
}

// Find returns the offset of the first capability with the ID, or 0.
func Find(dump []byte, id uint8) int {
	for have, at := range Capabilities(dump) {
		if have == id {
			return at
		}
	}
	return 0
}

// FindExtended returns the offset of the first extended capability with the ID, or 0.
func FindExtended(dump []byte, id uint16) int {
	for c := range ExtendedCapabilities(dump) {
		if c.ID == id {
			return c.Offset
		}
	}
	return 0
}

// MSIXInfo locates the MSI-X structures of a function.
type MSIXInfo struct {
	Cap         int // offset of the capability
	Vectors     int
	TableBAR    int
	TableOffset uint32
	PBABAR      int
	PBAOffset   uint32
}

// FindMSIX decodes the MSI-X capability of a dump. It returns false if there is
// none or if its BAR numbers are reserved.
func FindMSIX(dump []byte) (MSIXInfo, bool) {
	at := Find(dump, CapMSIX)
	if at == 0 || at+msixLength > len(dump) {
		return MSIXInfo{}, false
	}
	table, pba := le.Uint32(dump[at+4:]), le.Uint32(dump[at+8:])
	m := MSIXInfo{
		Cap: at, Vectors: int(le.Uint16(dump[at+2:])&msixSizeMask) + 1,
		TableBAR: int(table & 7), TableOffset: table &^ 7, PBABAR: int(pba & 7), PBAOffset: pba &^ 7,
	}
	if m.TableBAR >= pcie.MaxBARs || m.PBABAR >= pcie.MaxBARs {
		return MSIXInfo{}, false
	}
	return m, true
}
