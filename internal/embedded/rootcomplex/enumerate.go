package rootcomplex

import (
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
	e := &enumerator{acc: acc, spec: spec, nextBus: int(spec.RootBus) + 1}
	root := &Function{
		Bridge: true, Secondary: spec.RootBus, Subordinate: spec.LastBus,
		Window32: spec.Window32, Window64: spec.Window64,
		ExpressType: cfgspace.RootPort, MPS: spec.MaxPayload,
	}
	if root.MPS == 0 {
		root.MPS = pcie.MinPayload
	}
	if err := e.scanBus(root); err != nil {
		return nil, fmt.Errorf("rootcomplex: scan: %w", err)
	}
	if err := e.configure(root); err != nil {
		return nil, err
	}
	return root, nil
}

// Rescan enumerates again behind one bridge of a tree that Enumerate built, as an OS does
// after a hot-plug event: it uses the bus numbers and windows of the bridge and replaces
// its children, of which an empty slot has none.
func Rescan(acc ConfigAccess, spec EnumSpec, bridge *Function) error {
	e := &enumerator{acc: acc, spec: spec, nextBus: int(bridge.Secondary) + 1, fixed: true}
	e.spec.LastBus = bridge.Subordinate
	bridge.Children = nil
	if err := e.scanBus(bridge); err != nil {
		bridge.Children = nil
		return fmt.Errorf("rootcomplex: rescan behind %v: %w", bridge.ID, err)
	}
	if err := e.configure(bridge); err != nil {
		bridge.Children = nil
		return err
	}
	return nil
}

// enumerator is one run of enumeration.
type enumerator struct {
	acc     ConfigAccess
	spec    EnumSpec
	nextBus int
	fixed   bool // below a bridge whose windows stay
}

func (e *enumerator) configure(root *Function) error {
	if err := e.place(root); err != nil {
		return fmt.Errorf("rootcomplex: place: %w", err)
	}
	mps, err := e.pathMPS(root)
	if err != nil {
		return fmt.Errorf("rootcomplex: payload size: %w", err)
	}
	root.payload = mps
	if err := e.enableBelow(root, mps); err != nil {
		return fmt.Errorf("rootcomplex: enable: %w", err)
	}
	return nil
}

// scanBus finds the functions on the bridge's secondary bus and, depth first,
// behind them, and numbers the buses.
func (e *enumerator) scanBus(bridge *Function) error {
	devices := uint8(32)
	switch bridge.ExpressType {
	case cfgspace.RootPort, cfgspace.DownstreamPort:
		devices = 1 // a link has one device on its other end (section 7.3.1)
	}
	for dev := range devices {
		for fn := range uint8(8) {
			f, multi, err := e.probe(pcie.NewBDF(bridge.Secondary, dev, fn))
			if err != nil {
				return err
			}
			if f != nil {
				bridge.Children = append(bridge.Children, f)
			}
			if fn == 0 && !multi {
				break
			}
		}
	}
	for _, f := range bridge.Children {
		if !f.Bridge {
			continue
		}
		if err := e.scanBridge(f); err != nil {
			return err
		}
	}
	return nil
}

// scanBridge numbers the buses behind one bridge. Meanwhile the bridge forwards all
// requests up to the last bus, so that scanBridge reaches deeper bridges before their
// number is known.
func (e *enumerator) scanBridge(f *Function) error {
	if e.nextBus > int(e.spec.LastBus) {
		return fmt.Errorf("%v: %w", f.ID, ErrNoBus)
	}
	f.Secondary, f.Subordinate = uint8(e.nextBus), e.spec.LastBus
	e.nextBus++
	if err := e.writeBuses(f); err != nil {
		return err
	}
	if err := e.scanBus(f); err != nil {
		return err
	}
	if f.HotPlug {
		e.nextBus = min(e.nextBus+int(e.spec.HotPlugBuses), int(e.spec.LastBus)+1)
	}
	f.Subordinate = uint8(e.nextBus - 1)
	return e.writeBuses(f)
}

func (e *enumerator) writeBuses(f *Function) error {
	return e.acc.ConfigWrite32(f.ID, cfgspace.OffPrimaryBus,
		uint32(f.Subordinate)<<16|uint32(f.Secondary)<<8|uint32(f.ID.Bus()))
}

// probe reads the identity of one function; f is nil if it is absent.
func (e *enumerator) probe(id pcie.BDF) (f *Function, multi bool, err error) {
	ids, err := e.acc.ConfigRead32(id, cfgspace.OffVendor)
	if err != nil || ids&0xffff == 0xffff || ids == 0 {
		return nil, false, err
	}
	class, err := e.acc.ConfigRead32(id, cfgspace.OffRevision)
	if err != nil {
		return nil, false, err
	}
	header, err := e.acc.ConfigRead32(id, cfgspace.OffCacheLine)
	if err != nil {
		return nil, false, err
	}
	if header == allOnes {
		return nil, false, nil // unplugged between two reads
	}
	headerType := uint8(header >> 16)
	f = &Function{
		ID: id, Vendor: uint16(ids), Device: uint16(ids >> 16),
		Class: class >> 8, Revision: uint8(class), MPS: pcie.MinPayload,
	}
	switch headerType & 0x7f {
	case 0:
	case 1:
		f.Bridge = true
	default:
		return nil, headerType&0x80 != 0, nil // CardBus and reserved layouts: leave them alone
	}
	return f, headerType&0x80 != 0, e.probeCapabilities(f)
}

// capabilityList walks the list at the pointer in 0x34; it calls visit with
// the offset and the first double word of each capability.
func (e *enumerator) capabilityList(f *Function, visit func(off uint16, dw uint32) error) error {
	status, err := e.acc.ConfigRead32(f.ID, cfgspace.OffCommand)
	if err != nil || status>>16&cfgspace.StaCapabilities == 0 {
		return err
	}
	ptr, err := e.acc.ConfigRead32(f.ID, cfgspace.OffCapPtr)
	if err != nil {
		return err
	}
	for range maxCapabilities {
		off := uint16(ptr & 0xfc)
		if off < 0x40 {
			return nil
		}
		dw, err := e.acc.ConfigRead32(f.ID, off)
		if err != nil {
			return err
		}
		if dw == allOnes {
			return fmt.Errorf("%v: %w", f.ID, ErrGone)
		}
		if err := visit(off, dw); err != nil {
			return err
		}
		ptr = dw >> 8
	}
	return fmt.Errorf("%v: capability list has a loop: %w", f.ID, ErrMalformed)
}

func (e *enumerator) probeCapabilities(f *Function) error {
	return e.capabilityList(f, func(off uint16, dw uint32) error {
		switch uint8(dw) {
		case cfgspace.CapMSIX:
			f.MSIX = off
		case cfgspace.CapExpress:
			return e.probeExpress(f, off, uint16(dw>>16))
		}
		return nil
	})
}

func (e *enumerator) probeExpress(f *Function, off, caps uint16) error {
	f.PCIe = off
	f.ExpressType = cfgspace.PortType(caps >> 4 & 0xf)
	devCap, err := e.acc.ConfigRead32(f.ID, off+cfgspace.OffDevCap)
	if err != nil {
		return err
	}
	mps, ok := pcie.DecodePayloadSize(uint8(devCap & 7))
	if !ok {
		return fmt.Errorf("%v: Max_Payload_Size Supported has a reserved value: %w", f.ID, ErrMalformed)
	}
	f.MPS = mps
	if !f.Bridge || caps&cfgspace.ExpSlot == 0 {
		return nil
	}
	slotCap, err := e.acc.ConfigRead32(f.ID, off+cfgspace.OffSlotCap)
	if err != nil {
		return err
	}
	f.HotPlug = slotCap&cfgspace.SlotCapHotPlug != 0
	return nil
}
