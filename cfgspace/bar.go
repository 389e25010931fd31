package cfgspace

import (
	"fmt"
	"math/bits"

	"github.com/dxpu-project/dxpu/pcie"
)

// BARKind is the type of a base address register.
type BARKind uint8

// Kinds of BAR (section 7.5.1.2.1).
const (
	NoBAR BARKind = iota
	Memory32
	Memory64
	IO
)

// String names the kind.
func (k BARKind) String() string {
	if k > IO {
		return fmt.Sprintf("BARKind(%d)", uint8(k))
	}
	return [...]string{NoBAR: "none", Memory32: "32-bit memory", Memory64: "64-bit memory", IO: "I/O"}[k]
}

// BAR describes a base address register and the address that software programmed.
type BAR struct {
	Kind         BARKind
	Prefetchable bool
	// Size in bytes, a power of two; 0 if DecodeBARs cannot know it.
	Size uint64
	// Addr is the programmed base address. A Builder ignores it.
	Addr uint64
}

// Minimum sizes: 16 bytes of memory, 4 of I/O.
const (
	minMemoryBAR = 16
	minIOBAR     = 4
	maxMemory32  = 1 << 31
	maxMemory64  = 1 << 62
	maxIO        = 256
)

// registers returns the number of bytes that the BAR takes in the header.
func (b BAR) registers() int { return [...]int{Memory32: 4, Memory64: 8, IO: 4}[b.Kind] }

// Contains reports whether the BAR, as programmed, contains addr to addr+n-1.
func (b BAR) Contains(addr, n uint64) bool {
	return b.Kind != NoBAR && addr >= b.Addr && addr-b.Addr < b.Size && n <= b.Size-(addr-b.Addr)
}

func (b BAR) check() error {
	low, high := uint64(minMemoryBAR), uint64(maxMemory32)
	switch b.Kind {
	case NoBAR:
		return nil
	case Memory32:
	case Memory64:
		high = maxMemory64
	case IO:
		low, high = minIOBAR, maxIO
		if b.Prefetchable {
			return fmt.Errorf("I/O cannot be prefetchable")
		}
	default:
		return fmt.Errorf("unknown kind %d", b.Kind)
	}
	if bits.OnesCount64(b.Size) != 1 || b.Size < low || b.Size > high {
		return fmt.Errorf("size %#x of %s: want a power of two from %#x to %#x", b.Size, b.Kind, low, high)
	}
	return nil
}

// flags returns the read-only low bits.
func (b BAR) flags() uint32 {
	f := [...]uint32{Memory64: 2 << 1, IO: 1}[b.Kind]
	if b.Prefetchable {
		f |= 1 << 3
	}
	return f
}

// BAR returns BAR i (0 to 5) with its programmed address. Kind is NoBAR for an
// absent BAR and for the upper half of a 64-bit one.
func (s *Space) BAR(i int) BAR {
	if i < 0 || i >= len(s.bars) || s.bars[i].Kind == NoBAR {
		return BAR{}
	}
	b := s.bars[i]
	b.Addr = decodeBAR(s.value[OffBAR0+4*i:], b.Kind)
	return b
}

// Decode finds the BAR that decodes memory requests for n bytes at addr. It finds
// none while Memory Space Enable is clear.
func (s *Space) Decode(addr, n uint64) (bar int, offset uint64, ok bool) {
	if !s.MemoryEnabled() {
		return 0, 0, false
	}
	for i := range s.bars {
		if k := s.bars[i].Kind; k != Memory32 && k != Memory64 {
			continue
		}
		if b := s.BAR(i); b.Contains(addr, n) {
			return i, addr - b.Addr, true
		}
	}
	return 0, 0, false
}

func decodeBAR(b []byte, k BARKind) uint64 {
	lo := le.Uint32(b)
	switch k {
	case Memory32:
		return uint64(lo &^ 0xf)
	case Memory64:
		return uint64(le.Uint32(b[4:]))<<32 | uint64(lo&^0xf)
	case IO:
		return uint64(lo &^ 3)
	case NoBAR:
	}
	return 0
}

// DecodeBARs decodes the BARs of a configuration space: kind and address. After a
// write of all ones, Addr is the size mask. Sizes are 0. The upper half of a
// 64-bit BAR and a register that reads zero are NoBAR.
func DecodeBARs(dump []byte) (out [pcie.MaxBARs]BAR) {
	n := barCount(dump)
	for i := 0; i < n; i++ {
		at := OffBAR0 + 4*i
		lo := le.Uint32(dump[at:])
		switch {
		case lo&1 != 0:
			out[i] = BAR{Kind: IO}
		case lo>>1&3 == 2 && i+1 < n:
			out[i] = BAR{Kind: Memory64}
		case lo == 0 || lo>>1&3 != 0:
			continue
		default:
			out[i] = BAR{Kind: Memory32}
		}
		b := &out[i]
		b.Prefetchable = b.Kind != IO && lo>>3&1 != 0
		b.Addr = decodeBAR(dump[at:], b.Kind)
		if b.Kind == Memory64 {
			i++
		}
	}
	return out
}

// barCount returns the number of BARs: 6, 2, or 0 for a truncated or unknown header.
func barCount(dump []byte) int {
	if len(dump) < 0x40 {
		return 0
	}
	switch dump[OffHeaderType] & 0x7f {
	case 0:
		return 6
	case 1:
		return 2
	}
	return 0
}

// SizeBAR computes the size of a BAR from the values that it reads after a write
// of all ones (section 7.5.1.2.1): lo and, for Memory64, hi. It returns 0 if no
// bit is writable.
func SizeBAR(k BARKind, lo, hi uint32) uint64 {
	var mask uint64
	switch k {
	case NoBAR:
		return 0
	case Memory32:
		mask = 0xffffffff00000000 | uint64(lo&^0xf)
		if lo&^0xf == 0 {
			return 0
		}
	case Memory64:
		mask = uint64(hi)<<32 | uint64(lo&^0xf)
	case IO:
		// The upper 16 bits may be hard-wired to zero.
		mask = 0xffffffffffff0000 | uint64(lo&^3)
		if lo&^3 == 0 {
			return 0
		}
	}
	return mask & -mask
}
