package cfgspace

// What is a set of the things that a write changed.
type What uint16

// Things that a function or its owner reacts to.
const (
	Command        What = 1 << iota // any bit of the Command register
	BARs                            // a BAR; Change.BARs says which
	FLR                             // Initiate Function Level Reset was written with one
	PowerState                      // the D-state is another one
	SoftReset                       // D3hot to D0 without No_Soft_Reset: the function resets (section 5.3.1.4)
	MSI                             // MSI control, address, data or mask
	MSIX                            // MSI-X enable or function mask
	DeviceControl                   // Device Control or Device Control 2: MPS, MRRS, tags, timeout
	SlotControl                     // Slot Control was written with another value
	BusNumbers                      // primary, secondary, subordinate
	Windows                         // I/O, memory or prefetchable base and limit
	SecondaryReset                  // the Secondary Bus Reset bit is another one
	LinkControl                     // Link Control: disable, ASPM
)

// Change is what a write to configuration space changed.
type Change struct {
	What What
	BARs uint8 // bit i: BAR i
}

// Has reports whether w changed.
func (c Change) Has(w What) bool { return c.What&w != 0 }

// snapshot is a copy of all that changes compares; small enough for the stack.
type snapshot struct {
	header  [0x40]byte
	express [expressLength]byte
	msi     [msiMaxLength]byte
	pm      byte
	msix    uint16
}

func (s *Space) snapshot() (n snapshot) {
	copy(n.header[:], s.value)
	if s.express != 0 {
		copy(n.express[:], s.value[s.express:])
	}
	if s.msi != 0 {
		copy(n.msi[:], s.value[s.msi:s.msi+msiLength(s.read16(s.msi+2))])
	}
	if s.pm != 0 {
		n.pm = s.value[s.pm+OffPMStatus]
	}
	if s.msix != 0 {
		n.msix = s.read16(s.msix + 2)
	}
	return n
}

// changes compares the space with a snapshot taken before a write, and clears
// the bits that clear themselves.
func (s *Space) changes(old snapshot) Change {
	now := s.snapshot()
	c := s.headerChanges(&old, &now)
	if s.express != 0 {
		c.What |= s.expressChanges(&old, &now)
	}
	if old.msi != now.msi {
		c.What |= MSI
	}
	if old.msix != now.msix {
		c.What |= MSIX
	}
	if was, is := old.pm&3, now.pm&3; was != is {
		c.What |= PowerState
		if was == 3 && is == 0 && now.pm&pmNoSoftReset == 0 {
			c.What |= SoftReset
		}
	}
	return c
}

func differs(a, b []byte, from, to int) bool { return string(a[from:to]) != string(b[from:to]) }

func (s *Space) headerChanges(old, now *snapshot) (c Change) {
	if old.header == now.header {
		return c
	}
	a, b := old.header[:], now.header[:]
	if differs(a, b, OffCommand, OffCommand+2) {
		c.What |= Command
	}
	for i := range s.bars {
		if s.bars[i].Kind == NoBAR {
			continue
		}
		if at := OffBAR0 + 4*i; differs(a, b, at, at+s.bars[i].registers()) {
			c.What |= BARs
			c.BARs |= 1 << i
		}
	}
	if !s.bridge {
		return c
	}
	if differs(a, b, OffPrimaryBus, OffSubordinateBus+1) {
		c.What |= BusNumbers
	}
	if differs(a, b, OffIOBase, OffIOLimit+1) || differs(a, b, OffMemBase, OffIOLimitUpper+2) {
		c.What |= Windows
	}
	if (a[OffBridgeControl]^b[OffBridgeControl])&BridgeSecReset != 0 {
		c.What |= SecondaryReset
	}
	return c
}

func (s *Space) expressChanges(old, now *snapshot) (w What) {
	const flrByte, flrBit = OffDevCtl + 1, DevCtlFLR >> 8
	if now.express[flrByte]&flrBit != 0 {
		if s.value[s.express+OffDevCap+3]&(DevCapFLR>>24) != 0 {
			w |= FLR
			now.express[flrByte] &^= flrBit
			s.value[s.express+flrByte] &^= flrBit
		}
	}
	if old.express == now.express {
		return w
	}
	a, b := old.express[:], now.express[:]
	if differs(a, b, OffDevCtl, OffDevCtl+2) || differs(a, b, OffDevCtl2, OffDevCtl2+2) {
		w |= DeviceControl
	}
	if differs(a, b, OffSlotCtl, OffSlotCtl+2) {
		w |= SlotControl
	}
	if differs(a, b, OffLinkCtl, OffLinkCtl+2) {
		w |= LinkControl
	}
	return w
}
