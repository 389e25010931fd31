package cfgspace

import (
	"cmp"
	"encoding/binary"
	"math/bits"
	"time"

	"github.com/dxpu-project/dxpu/pcie"
)

// ExpressOffset returns the offset of the PCI Express capability, or 0.
func (s *Space) ExpressOffset() int { return s.express }

// AEROffset returns the offset of Advanced Error Reporting, or 0.
func (s *Space) AEROffset() int { return s.aer }

// MSIXOffset returns the offset of the MSI-X capability, or 0.
func (s *Space) MSIXOffset() int { return s.msix }

// PMOffset returns the offset of the Power Management capability, or 0.
func (s *Space) PMOffset() int { return s.pm }

func (s *Space) expressReg(off int) uint16 {
	if s.express == 0 {
		return 0
	}
	return s.read16(s.express + off)
}

// MaxPayload returns Max_Payload_Size in bytes: the value that software chose, at
// most the value that the function supports. It is 128 without the capability.
func (s *Space) MaxPayload() pcie.PayloadSize {
	supported, ok := pcie.DecodePayloadSize(uint8(s.expressReg(OffDevCap) & 7))
	chosen, ok2 := pcie.DecodePayloadSize(uint8(s.expressReg(OffDevCtl) & DevCtlMPS >> 5))
	if !ok || !ok2 {
		return pcie.MinPayload
	}
	return min(supported, chosen)
}

// MaxReadRequest returns Max_Read_Request_Size in bytes. It is 128 for a reserved
// encoding and without the capability.
func (s *Space) MaxReadRequest() pcie.PayloadSize {
	if n, ok := pcie.DecodePayloadSize(uint8(s.expressReg(OffDevCtl) & DevCtlMRRS >> 12)); ok && s.express != 0 {
		return n
	}
	return pcie.MinPayload
}

// TagLimit returns the number of tags that the function may use as a requester:
// 32, 256 or 1024, as Device Control enables them (section 2.2.6.2).
func (s *Space) TagLimit() int {
	switch {
	case s.expressReg(OffDevCtl2)&DevCtl2TenBitTag != 0:
		return 1024
	case s.expressReg(OffDevCtl)&DevCtlExtTag != 0:
		return 256
	}
	return 32
}

// CompletionTimeout returns the upper end of the range that Device Control 2
// selects (section 7.5.3.16), or standard for the reset value 0000b and reserved
// values. enabled is false if software disabled the timeout.
func (s *Space) CompletionTimeout(standard time.Duration) (timeout time.Duration, enabled bool) {
	ctl := s.expressReg(OffDevCtl2)
	if ctl&DevCtl2TimeoutDisable != 0 {
		return 0, false
	}
	return cmp.Or(completionTimeouts[ctl&DevCtl2Timeout], standard), true
}

var completionTimeouts = [DevCtl2Timeout + 1]time.Duration{
	0x1: 100 * time.Microsecond, 0x2: 10 * time.Millisecond,
	0x5: 55 * time.Millisecond, 0x6: 210 * time.Millisecond,
	0x9: 900 * time.Millisecond, 0xa: 3500 * time.Millisecond,
	0xd: 13 * time.Second, 0xe: 64 * time.Second,
}

// MSIXControl returns the enable and function mask bits, false without the capability.
func (s *Space) MSIXControl() (enabled, masked bool) {
	if s.msix == 0 {
		return false, false
	}
	c := s.read16(s.msix + 2)
	return c&MSIXEnable != 0, c&MSIXMask != 0
}

// MSIConfig holds the values that software programmed into the MSI capability.
type MSIConfig struct {
	Enabled bool
	Vectors int // 1 to 32: the function may change the low log2(Vectors) bits of Data
	Addr    uint64
	Data    uint16
	Mask    uint32
}

// MSI returns the registers of the MSI capability, or the zero value without it.
func (s *Space) MSI() MSIConfig {
	if s.msi == 0 {
		return MSIConfig{}
	}
	c := s.read16(s.msi + 2)
	return MSIConfig{
		Enabled: c&MSIEnable != 0,
		Vectors: 1 << min(c>>4&7, c>>1&7),
		Addr:    le.Uint64(s.value[s.msi+4:]),
		Data:    s.read16(s.msi + 12),
		Mask:    le.Uint32(s.value[s.msi+16:]),
	}
}

// Buses returns the bus number registers of a bridge.
func (s *Space) Buses() (primary, secondary, subordinate uint8) {
	return s.value[OffPrimaryBus], s.value[OffSecondaryBus], s.value[OffSubordinateBus]
}

// Window is an address range, including both ends, that a bridge forwards
// downstream. A window with Base above Limit is closed.
type Window struct{ Base, Limit uint64 }

// Contains reports whether the window is open and contains all n bytes at addr.
// For n 0, a zero-length read, it checks addr alone.
func (w Window) Contains(addr, n uint64) bool {
	last := addr + max(n, 1) - 1
	return addr >= w.Base && last <= w.Limit && last >= addr
}

// MemoryWindow returns the non-prefetchable window of a bridge.
func (s *Space) MemoryWindow() Window {
	return Window{Base: uint64(s.read16(OffMemBase)&0xfff0) << 16, Limit: uint64(s.read16(OffMemLimit)&0xfff0)<<16 | 0xfffff}
}

// PrefetchableWindow returns the prefetchable window of a bridge.
func (s *Space) PrefetchableWindow() Window {
	return Window{
		Base:  uint64(s.Read(OffPrefBaseUpper, 4))<<32 | uint64(s.read16(OffPrefBase)&0xfff0)<<16,
		Limit: uint64(s.Read(OffPrefLimitUpper, 4))<<32 | uint64(s.read16(OffPrefLimit)&0xfff0)<<16 | 0xfffff,
	}
}

// SetLink sets the current link state: speed, width and, for a downstream port,
// Data Link Layer Link Active and the slot's presence, with their changed bits.
func (s *Space) SetLink(active bool, gen pcie.Generation, width int) {
	if s.express == 0 {
		return
	}
	at := s.express
	s.PokeBits(at+OffLinkSta, uint16(gen)&0xf|uint16(width)<<4&0x3f0, 0x3ff&^(uint16(gen)&0xf|uint16(width)<<4&0x3f0))
	if s.value[at+OffLinkCap+2]&(LinkCapActive>>16) == 0 {
		return
	}
	was := s.read16(at+OffLinkSta)&LinkStaActive != 0
	if was == active {
		return
	}
	link, slot := uint16(0), uint16(SlotStaPresence|SlotStaLinkChange)
	if active {
		link, slot = LinkStaActive, slot|SlotStaPresent
	}
	s.PokeBits(at+OffLinkSta, link, link^LinkStaActive)
	if s.read16(at+OffExpCaps)&ExpSlot != 0 {
		s.PokeBits(at+OffSlotSta, slot, ^slot&SlotStaPresent)
	}
}

// LogUncorrectable records an uncorrectable error (one of the AER constants)
// in AER and Device Status, with the header of the TLP if there is one. advisory
// marks an error that the requester learns of by a completion; it is reported as
// correctable (section 6.2.3.2.4). LogUncorrectable returns the error message that
// the function must send: 0x30 ERR_COR, 0x31 ERR_NONFATAL, 0x33 ERR_FATAL, or 0
// for none.
func (s *Space) LogUncorrectable(bit uint32, advisory bool, header []byte) (message uint8) {
	fatal := bit&aerFatal != 0
	if s.aer != 0 {
		fatal = s.Read(s.aer+OffAERSeverity, 4)&bit != 0
	}
	advisory = advisory && !fatal
	var status uint16
	switch {
	case fatal:
		status, message = DevStaFatal, 0x33
	case advisory:
		status, message = DevStaCorrectable, 0x30
	default:
		status, message = DevStaNonFatal, 0x31
	}
	if bit == AERUnsupported {
		status |= DevStaUnsupported
	}
	unmasked := s.logAER(bit, advisory, header)
	if s.express == 0 {
		return 0
	}
	s.PokeBits(s.express+OffDevSta, status, 0)
	if !unmasked || !s.reports(message, bit) {
		return 0
	}
	return message
}

// logAER records an error in AER and reports whether a message may tell it (figure 6-2). An
// advisory error has a status and a mask of its own: masked, as it is after a reset, it leaves
// no other trace (section 6.2.4.3).
func (s *Space) logAER(bit uint32, advisory bool, header []byte) (unmasked bool) {
	if s.aer == 0 {
		return !advisory // section 6.2.3.2.4: without AER it is not signalled
	}
	if advisory {
		at := s.aer + OffAERCorrectable
		s.Poke(at, 4, s.Read(at, 4)|AERAdvisory)
		if s.Read(s.aer+OffAERCorMask, 4)&AERAdvisory != 0 {
			return false
		}
	}
	status, masked := s.Read(s.aer+OffAERUncorrectable, 4), s.Read(s.aer+OffAERMask, 4)&bit != 0
	// First Error Pointer is valid while the status bit that it names is set. Until then the
	// log keeps the header of the first error, and masked errors leave none.
	if ctl := s.Read(s.aer+OffAERControl, 4); !masked && status>>(ctl&firstError)&1 == 0 {
		var log [16]byte
		copy(log[:], header)
		// The log holds double words with byte 0 of the header in their upper bits.
		for i := 0; i < 16; i += 4 {
			s.Poke(s.aer+OffAERHeader+i, 4, binary.BigEndian.Uint32(log[i:]))
		}
		s.Poke(s.aer+OffAERControl, 4, ctl&^firstError|uint32(max(0, bits.Len32(bit)-1)))
	}
	s.Poke(s.aer+OffAERUncorrectable, 4, status|bit)
	return advisory || !masked
}

// reports reports whether Device Control or SERR# permits the message (figure 6-2).
func (s *Space) reports(message uint8, bit uint32) bool {
	ctl, serr := s.read16(s.express+OffDevCtl), s.Command()&CmdSERR != 0
	if bit == AERUnsupported && ctl&DevCtlUnsupported == 0 {
		return false
	}
	switch message {
	case 0x33:
		return serr || ctl&DevCtlFatal != 0
	case 0x31:
		return serr || ctl&DevCtlNonFatal != 0
	}
	return ctl&DevCtlCorrectable != 0
}
