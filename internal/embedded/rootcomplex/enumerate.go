package rootcomplex

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/pcie"
)

// ConfigAccess accesses configuration space by Routing ID, as software does through a
// root complex: an absent function reads all ones and ignores writes. An error means
// that the access itself was not possible (the caller gave up, the host was closed).
// Offsets are multiples of 4 below 4096.
type ConfigAccess interface {
	ConfigRead32(id pcie.BDF, off uint16) (uint32, error)
	ConfigWrite32(id pcie.BDF, off uint16, v uint32) error
}

// Errors of enumeration.
var (
	// ErrNoBus means that the bus numbers up to EnumSpec.LastBus are used up.
	ErrNoBus = errors.New("bus numbers are used up")
	// ErrNoSpace means that a BAR or a bridge window does not fit.
	ErrNoSpace = errors.New("address space is used up")
	// ErrMalformed means that a function describes itself in a way that the
	// specification forbids.
	ErrMalformed = errors.New("malformed configuration space")
	// ErrGone means that a function vanished while it was being set up.
	ErrGone = errors.New("function is gone")
)

// maxCapabilities is the number of double words from 0x40 to 0xff: a longer list has a
// loop.
const maxCapabilities = 48

// EnumSpec describes the resources that enumeration assigns.
type EnumSpec struct {
	RootBus, LastBus uint8 // bus numbers, both included
	// Window32 lies below 4 GiB and takes all BARs that are not both 64-bit
	// and prefetchable; Window64 takes those.
	Window32, Window64 Range

	// Reserve behind a hot-plug capable slot for a GPU that appears later: bus
	// numbers besides the secondary bus, and sizes of the two windows (multiples
	// of 1 MiB).
	HotPlugBuses                     uint8
	HotPlugWindow32, HotPlugWindow64 uint64

	// MaxPayload is the largest payload of the root port; enumeration sets the
	// smallest of the path in every function. It sets MaxReadRequest unchanged. 0
	// keeps the defaults of the specification, 128 and 512.
	MaxPayload, MaxReadRequest pcie.PayloadSize
	// ExtendedTags and TenBitTags enable them in the functions that support them.
	ExtendedTags, TenBitTags bool
}

// DefaultEnumSpec leaves room for four slots with 16 GiB of VRAM each.
func DefaultEnumSpec() EnumSpec {
	return EnumSpec{
		RootBus: 1, LastBus: 255,
		Window32:        Range{0xC000_0000, 0x3000_0000},
		Window64:        Range{1 << 40, 1 << 40},
		HotPlugBuses:    1,
		HotPlugWindow32: 16 << 20, HotPlugWindow64: 32 << 30,
		MaxPayload: 256, MaxReadRequest: 512,
		ExtendedTags: true,
	}
}

// Validate reports the first inconsistency.
func (s *EnumSpec) Validate() error {
	switch {
	case s.LastBus < s.RootBus:
		return fmt.Errorf("rootcomplex: last bus %#x is below the root bus %#x", s.LastBus, s.RootBus)
	case s.Window32.End() > 1<<32 || s.Window32.End() < s.Window32.Base:
		return fmt.Errorf("rootcomplex: 32-bit window %v ends above 4 GiB", s.Window32)
	case s.Window64.End() < s.Window64.Base:
		return fmt.Errorf("rootcomplex: 64-bit window %v wraps", s.Window64)
	case s.HotPlugWindow32%bridgeGranule != 0 || s.HotPlugWindow64%bridgeGranule != 0:
		return errors.New("rootcomplex: a hot-plug window is not a multiple of 1 MiB")
	case s.MaxPayload != 0 && !s.MaxPayload.Valid() || s.MaxReadRequest != 0 && !s.MaxReadRequest.Valid():
		return fmt.Errorf("rootcomplex: payload sizes %d and %d are not powers of two from 128 to 4096", s.MaxPayload, s.MaxReadRequest)
	}
	return nil
}

// Enumerate works as firmware does at boot: it finds the functions, numbers the buses,
// sizes and places the BARs, programs the bridge windows and enables decoding and bus
// mastering. It returns a bridge function that represents the root port and has no
// configuration space.
func Enumerate(acc ConfigAccess, spec EnumSpec) (*Function, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	e := &enumerator{registers: registers{config: acc}, spec: spec, nextBus: int(spec.RootBus) + 1}
	root := &Function{
		Bridge: true, Secondary: spec.RootBus, Subordinate: spec.LastBus,
		Window32: spec.Window32, Window64: spec.Window64,
		ExpressType: cfgspace.RootPort, MPS: cmp.Or(spec.MaxPayload, pcie.MinPayload),
	}
	if err := e.run(root, "scan"); err != nil {
		return nil, err
	}
	return root, nil
}

// Rescan enumerates again behind one bridge of a tree that Enumerate built, as an OS does
// after a hot-plug event: it uses the bus numbers and windows of the bridge and replaces
// its children, of which an empty slot has none.
func Rescan(acc ConfigAccess, spec EnumSpec, bridge *Function) error {
	e := &enumerator{registers: registers{config: acc}, spec: spec, nextBus: int(bridge.Secondary) + 1, fixed: true}
	e.spec.LastBus = bridge.Subordinate
	bridge.Children = nil
	err := e.run(bridge, fmt.Sprintf("rescan behind %v", bridge.ID))
	if err != nil {
		bridge.Children = nil
	}
	return err
}

// registers accesses registers. After the first error it accesses nothing, and reads
// return all ones.
type registers struct {
	config ConfigAccess
	memory MemoryAccess
	err    error // the first
}

func (r *registers) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

func (r *registers) read(f *Function, off uint16) uint32 {
	if r.err != nil {
		return allOnes
	}
	v, err := r.config.ConfigRead32(f.ID, off)
	if r.err = err; err != nil {
		return allOnes
	}
	return v
}

func (r *registers) write(f *Function, off uint16, v uint32) {
	if r.err == nil {
		r.err = r.config.ConfigWrite32(f.ID, off, v)
	}
}

// enumerator is one run of enumeration.
type enumerator struct {
	registers
	spec    EnumSpec
	nextBus int
	fixed   bool             // below a bridge whose windows stay
	mps     pcie.PayloadSize // payload size of the path
}

// run enumerates behind the bridge.
func (e *enumerator) run(bridge *Function, scan string) error {
	for _, step := range []struct {
		name string
		do   func(*Function)
	}{{scan, e.scanBus}, {"place", e.place}, {"payload size", e.setPathMPS}, {"enable", e.enableBelow}} {
		if step.do(bridge); e.err != nil {
			return fmt.Errorf("rootcomplex: %s: %w", step.name, e.err)
		}
	}
	return nil
}

// scanBus finds the functions on the bridge's secondary bus and, depth first,
// behind them, and numbers the buses.
func (e *enumerator) scanBus(bridge *Function) {
	devices := uint8(32)
	switch bridge.ExpressType {
	case cfgspace.RootPort, cfgspace.DownstreamPort:
		devices = 1 // a link has one device on its other end (section 7.3.1)
	}
	for dev := range devices {
		for fn := range uint8(8) {
			f, multi := e.probe(pcie.NewBDF(bridge.Secondary, dev, fn))
			if f != nil {
				bridge.Children = append(bridge.Children, f)
			}
			if fn == 0 && !multi {
				break
			}
		}
	}
	for _, f := range bridge.Children {
		if f.Bridge && e.err == nil {
			e.scanBridge(f)
		}
	}
}

// scanBridge numbers the buses behind one bridge. Meanwhile the bridge forwards all
// requests up to the last bus, so that scanBridge reaches deeper bridges before their
// number is known.
func (e *enumerator) scanBridge(f *Function) {
	if e.nextBus > int(e.spec.LastBus) {
		e.fail(fmt.Errorf("%v: %w", f.ID, ErrNoBus))
		return
	}
	f.Secondary, f.Subordinate = uint8(e.nextBus), e.spec.LastBus
	e.nextBus++
	e.writeBuses(f)
	e.scanBus(f)
	if f.HotPlug {
		e.nextBus = min(e.nextBus+int(e.spec.HotPlugBuses), int(e.spec.LastBus)+1)
	}
	f.Subordinate = uint8(e.nextBus - 1)
	e.writeBuses(f)
}

func (e *enumerator) writeBuses(f *Function) {
	e.write(f, cfgspace.OffPrimaryBus, uint32(f.Subordinate)<<16|uint32(f.Secondary)<<8|uint32(f.ID.Bus()))
}

// probe reads the identity of one function; f is nil if it is absent.
func (e *enumerator) probe(id pcie.BDF) (f *Function, multi bool) {
	f = &Function{ID: id, MPS: pcie.MinPayload}
	ids := e.read(f, cfgspace.OffVendor)
	if ids&0xffff == 0xffff || ids == 0 {
		return nil, false
	}
	class, header := e.read(f, cfgspace.OffRevision), e.read(f, cfgspace.OffCacheLine)
	if header == allOnes {
		return nil, false // unplugged between two reads
	}
	f.Vendor, f.Device = uint16(ids), uint16(ids>>16)
	f.Class, f.Revision = class>>8, uint8(class)
	headerType := uint8(header >> 16)
	multi = headerType&0x80 != 0
	f.Bridge = headerType&0x7f == 1
	if headerType&0x7f > 1 {
		return nil, multi // CardBus and reserved layouts: leave them alone
	}
	e.probeCapabilities(f)
	return f, multi
}

// probeCapabilities walks the capability list at the pointer in 0x34.
func (e *enumerator) probeCapabilities(f *Function) {
	if e.read(f, cfgspace.OffCommand)>>16&cfgspace.StaCapabilities == 0 {
		return
	}
	next := e.read(f, cfgspace.OffCapPtr)
	for range maxCapabilities {
		off := uint16(next & 0xfc)
		if off < 0x40 {
			return
		}
		capability := e.read(f, off)
		if capability == allOnes {
			e.fail(fmt.Errorf("%v: %w", f.ID, ErrGone))
			return
		}
		switch uint8(capability) {
		case cfgspace.CapMSIX:
			f.MSIX = off
		case cfgspace.CapExpress:
			e.probeExpress(f, off, uint16(capability>>16))
		}
		next = capability >> 8
	}
	e.fail(fmt.Errorf("%v: capability list has a loop: %w", f.ID, ErrMalformed))
}

func (e *enumerator) probeExpress(f *Function, off, caps uint16) {
	f.PCIe = off
	f.ExpressType = cfgspace.PortType(caps >> 4 & 0xf)
	mps, ok := pcie.DecodePayloadSize(uint8(e.read(f, off+cfgspace.OffDevCap) & 7))
	if !ok {
		e.fail(fmt.Errorf("%v: Max_Payload_Size Supported has a reserved value: %w", f.ID, ErrMalformed))
	}
	f.MPS = mps
	if f.Bridge && caps&cfgspace.ExpSlot != 0 {
		f.HotPlug = e.read(f, off+cfgspace.OffSlotCap)&cfgspace.SlotCapHotPlug != 0
	}
}
