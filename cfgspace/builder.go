package cfgspace

import (
	"errors"
	"fmt"

	"github.com/dxpu-project/dxpu/pcie"
)

// Identity holds the fields that both types of header begin with.
type Identity struct {
	Vendor, Device uint16
	Class          uint32 // 24 bits: base class, sub-class, programming interface
	Revision       uint8
	// SubVendor and SubDevice are in a type 0 header, or in the Subsystem ID
	// capability of a bridge. A bridge has no such capability if both are zero.
	SubVendor, SubDevice uint16
	// InterruptPin is 0 for none or 1 to 4 for INTA to INTD.
	InterruptPin  uint8
	MultiFunction bool
}

// Builder builds a Space. Its methods add parts; Build returns their first error.
// Capabilities are placed in the order of the calls.
type Builder struct {
	s        *Space
	next     int // free offset for the next capability
	link     int // position of the pointer to the next capability
	nextExt  int
	linkExt  int // header of the last extended capability, 0 before the first
	buildErr error
}

// NewEndpoint starts a type 0 header with 4096 bytes of configuration space.
func NewEndpoint(id Identity) *Builder {
	b := newBuilder(id)
	b.set16(OffSubVendor, id.SubVendor)
	b.set16(OffSubDevice, id.SubDevice)
	return b
}

// NewBridge starts a type 1 header. Its windows are 32-bit memory, 64-bit
// prefetchable memory and no I/O.
func NewBridge(id Identity) *Builder {
	b := newBuilder(id)
	s := b.s
	s.bridge = true
	s.value[OffHeaderType] |= 1
	b.writable(OffPrimaryBus, 0xff, 0xff, 0xff)
	b.writable(OffMemBase, 0xf0, 0xff, 0xf0, 0xff)
	b.writable(OffPrefBase, 0xf0, 0xff, 0xf0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff)
	s.value[OffPrefBase], s.value[OffPrefLimit] = 1, 1                       // 64-bit
	b.writable(OffBridgeControl, 0x01|0x02|0x04|0x08|0x10|BridgeSecReset, 0) // parity, SERR, ISA, VGA, VGA16
	b.clearable(OffSecStatus, staClear)
	if id.SubVendor != 0 || id.SubDevice != 0 {
		at := b.capability(CapSubsystem, 8)
		b.set16(at+4, id.SubVendor)
		b.set16(at+6, id.SubDevice)
	}
	return b
}

func newBuilder(id Identity) *Builder {
	n := pcie.ConfigSize
	s := &Space{
		value: make([]byte, n), write: make([]byte, n), clear: make([]byte, n), sticky: make([]byte, n), reset: make([]byte, n),
	}
	b := &Builder{s: s, next: 0x40, link: OffCapPtr, nextExt: pcie.ConfigSizePCI}
	b.set16(OffVendor, id.Vendor)
	b.set16(OffDevice, id.Device)
	b.set16(OffStatus, StaCapabilities)
	s.value[OffRevision] = id.Revision
	b.set16(OffClass, uint16(id.Class))
	s.value[OffClass+2] = byte(id.Class >> 16)
	if id.MultiFunction {
		s.value[OffHeaderType] = 0x80
	}
	s.value[OffIntPin] = id.InterruptPin
	if id.InterruptPin > 4 {
		b.fail("interrupt pin %d: want 0 to 4", id.InterruptPin)
	}
	if id.Class>>24 != 0 {
		b.fail("class %#x has more than 24 bits", id.Class)
	}
	b.writable16(OffCommand, CmdIO|CmdMemory|CmdBusMaster|CmdParity|CmdSERR|CmdINTxDisable)
	b.clearable(OffStatus, staClear)
	b.writable(OffCacheLine, 0xff)
	b.writable(OffIntLine, 0xff)
	return b
}

func (b *Builder) fail(format string, args ...any) {
	if b.buildErr == nil {
		b.buildErr = fmt.Errorf("cfgspace: "+format, args...)
	}
}

func (b *Builder) set16(at int, v uint16)           { le.PutUint16(b.s.value[at:], v) }
func (b *Builder) set32(at int, v uint32)           { le.PutUint32(b.s.value[at:], v) }
func (b *Builder) writable(at int, masks ...byte)   { copy(b.s.write[at:], masks) }
func (b *Builder) writable16(at int, mask uint16)   { le.PutUint16(b.s.write[at:], mask) }
func (b *Builder) writable32(at int, mask uint32)   { le.PutUint32(b.s.write[at:], mask) }
func (b *Builder) clearable(at int, mask uint16)    { le.PutUint16(b.s.clear[at:], mask) }
func (b *Builder) clearable32(at int, mask uint32)  { le.PutUint32(b.s.clear[at:], mask) }
func (b *Builder) keepSticky16(at int, mask uint16) { le.PutUint16(b.s.sticky[at:], mask) }
func (b *Builder) keepSticky32(at int, mask uint32) { le.PutUint32(b.s.sticky[at:], mask) }

// BAR defines BAR i; a 64-bit BAR takes i and i+1. Software finds the size by the
// write mask: address bits below the size are read-only.
func (b *Builder) BAR(i int, bar BAR) *Builder {
	count := barCount(b.s.value)
	last := i
	if bar.Kind == Memory64 {
		last++
	}
	if i < 0 || last >= count {
		b.fail("BAR %d: the header has %d", i, count)
		return b
	}
	if err := bar.check(); err != nil {
		b.fail("BAR %d: %w", i, err)
		return b
	}
	for j := i; j <= last; j++ {
		upper := j > 0 && b.s.bars[j-1].Kind == Memory64
		if b.s.bars[j].Kind != NoBAR || upper {
			b.fail("BAR %d is in use", j)
			return b
		}
	}
	if bar.Kind == NoBAR {
		return b
	}
	bar.Addr = 0
	b.s.bars[i] = bar
	mask := -bar.Size
	b.set32(OffBAR0+4*i, bar.flags())
	b.writable32(OffBAR0+4*i, uint32(mask)&^bar.flagMask())
	if bar.Kind == Memory64 {
		b.writable32(OffBAR0+4*i+4, uint32(mask>>32))
	}
	return b
}

func (b BAR) flagMask() uint32 {
	if b.Kind == IO {
		return 3
	}
	return 0xf
}

// capability reserves n bytes for a capability and adds it to the list. After a
// failure it returns 0: Build then discards the contents.
func (b *Builder) capability(id uint8, n int) int {
	at := b.next
	if at+n > pcie.ConfigSizePCI {
		b.fail("no room for capability %#02x of %d bytes", id, n)
		return 0
	}
	b.s.value[b.link] = byte(at)
	b.s.value[at] = id
	b.link = at + 1
	b.next = (at + n + 3) &^ 3
	return at
}

// extended does the same for an extended capability; n includes its header.
func (b *Builder) extended(id uint16, version uint8, n int) int {
	at := b.nextExt
	if at+n > pcie.ConfigSize {
		b.fail("no room for extended capability %#04x of %d bytes", id, n)
		return 0
	}
	b.set32(at, uint32(id)|uint32(version)<<16)
	if b.linkExt != 0 {
		b.set16(b.linkExt+2, le.Uint16(b.s.value[b.linkExt+2:])|uint16(at)<<4)
	}
	b.linkExt = at
	b.nextExt = (at + n + 3) &^ 3
	return at
}

// Build returns the space with its reset values, or the first error.
func (b *Builder) Build() (*Space, error) {
	if b.buildErr != nil {
		return nil, b.buildErr
	}
	if b.s == nil {
		return nil, errors.New("cfgspace: Build called twice")
	}
	s := b.s
	b.s = nil
	copy(s.reset, s.value)
	return s, nil
}
