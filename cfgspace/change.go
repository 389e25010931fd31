package cfgspace

// Effects is a set of effects of a write.
type Effects uint16

// Effects that a function or its owner handles.
const (
	Command        Effects = 1 << iota // any bit of the Command register
	BARs                               // a BAR; see Change.BARs
	FLR                                // Initiate Function Level Reset was written with one
	PowerState                         // the D-state
	SoftReset                          // D3hot to D0 without No_Soft_Reset: the function resets (section 5.3.1.4)
	MSI                                // MSI control, address, data or mask
	MSIX                               // MSI-X enable or function mask
	DeviceControl                      // Device Control or Device Control 2: MPS, MRRS, tags, timeout
	SlotControl                        // Slot Control
	BusNumbers                         // primary, secondary, subordinate
	Windows                            // I/O, memory or prefetchable base and limit
	SecondaryReset                     // the Secondary Bus Reset bit
	LinkControl                        // Link Control: disable, ASPM
)

// Change describes the effect of a write to configuration space.
type Change struct {
	Effects Effects
	BARs    uint8 // bit i: BAR i
}

// Has reports whether the write had the effect w.
func (c Change) Has(w Effects) bool { return c.Effects&w != 0 }

// snapshot is a copy of the registers that changes compares, and fits on the stack.
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

// changes compares the space with an earlier snapshot, and clears self-clearing bits.
func (s *Space) changes(old snapshot) Change {
	s.keepPower(old.pm)
	now := s.snapshot()
	c := s.headerChanges(&old, &now)
	if s.express != 0 {
		c.Effects |= s.expressChanges(&old, &now)
	}
	if old.msi != now.msi {
		c.Effects |= MSI
	}
	if old.msix != now.msix {
		c.Effects |= MSIX
	}
	if was, is := old.pm&3, now.pm&3; was != is {
		c.Effects |= PowerState
		if was == 3 && is == 0 && now.pm&pmNoSoftReset == 0 {
			c.Effects |= SoftReset
		}
	}
	return c
}

// keepPower discards a write of D1 or D2, which no function here supports: the state stays
// what it was (section 7.5.2.2). old is the first byte of PMCSR before the write.
func (s *Space) keepPower(old byte) {
	if state := s.PowerState(); state == 1 || state == 2 {
		at := s.pm + OffPMStatus
		s.value[at] = s.value[at]&^3 | old&3
	}
}

func differs(a, b []byte, from, to int) bool { return string(a[from:to]) != string(b[from:to]) }

func (s *Space) headerChanges(old, now *snapshot) (c Change) {
	if old.header == now.header {
		return c
	}
	a, b := old.header[:], now.header[:]
	if differs(a, b, OffCommand, OffCommand+2) {
		c.Effects |= Command
	}
	for i := range s.bars {
		if s.bars[i].Kind == NoBAR {
			continue
		}
		if at := OffBAR0 + 4*i; differs(a, b, at, at+s.bars[i].registers()) {
			c.Effects |= BARs
			c.BARs |= 1 << i
		}
	}
	if !s.bridge {
		return c
	}
	if differs(a, b, OffPrimaryBus, OffSubordinateBus+1) {
		c.Effects |= BusNumbers
	}
	if differs(a, b, OffIOBase, OffIOLimit+1) || differs(a, b, OffMemBase, OffIOLimitUpper+2) {
		c.Effects |= Windows
	}
	if (a[OffBridgeControl]^b[OffBridgeControl])&BridgeSecReset != 0 {
		c.Effects |= SecondaryReset
	}
	return c
}

// Initiate Function Level Reset always reads as zero.
const flrByte, flrBit = OffDevCtl + 1, DevCtlFLR >> 8

func (s *Space) expressChanges(old, now *snapshot) (w Effects) {
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
