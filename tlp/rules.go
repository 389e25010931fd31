package tlp

import (
	"fmt"

	"github.com/dxpu-project/dxpu/pcie"
)

// maxPerKind is the maximum number of local and of end-to-end prefixes each: the
// specification defines four types of local prefix, and Device Capabilities 2
// can announce up to four end-to-end ones.
const maxPerKind = MaxPrefixes / 2

var (
	errReservedType = &MalformedError{"type", "is reserved: no TLP has this combination of Fmt and Type", "2.2.1"}
	errPrefixOrder  = &MalformedError{"prefixes", "must have local ones before end-to-end ones", "2.2.10"}
	errPrefixCount  = &MalformedError{"prefixes", "must be at most 4 local and 4 end-to-end ones", "2.2.10"}
	errSingleLength = &MalformedError{"length", "must be 1 in I/O and configuration requests", "2.2.7"}
	errSingleLastBE = &MalformedError{"last_be", "must be 0 in I/O and configuration requests", "2.2.7"}
	errSingleTC     = &MalformedError{"tc", "must be 0 in I/O and configuration requests", "2.2.7"}
	errSingleAttr   = &MalformedError{"attr", "must have no_snoop and relaxed_ordering clear in I/O and configuration requests", "2.2.7"}
	errLastBEZero   = &MalformedError{"last_be", "must be 0 when length is 1", "2.2.5"}
	errLastBEUnset  = &MalformedError{"last_be", "must not be 0 when length is more than 1", "2.2.5"}
	errFirstBEUnset = &MalformedError{"first_be", "must not be 0 when length is more than 1", "2.2.5"}
	errFirstBEGap   = &MalformedError{"first_be", "must be contiguous up to bit 3 unless length is 1, or 2 at a multiple of 8", "2.2.5"}
	errLastBEGap    = &MalformedError{"last_be", "must be contiguous from bit 0 unless length is 2 at a multiple of 8", "2.2.5"}
	errCrosses4K    = &MalformedError{"length", "must not take the request across a 4 KiB boundary", "2.2.7"}
	errAtomicLength = &MalformedError{"length", "must be 1 or 2 for FetchAdd and Swap", "2.2.7"}
	errCASLength    = &MalformedError{"length", "must be 2, 4 or 8 for CAS", "2.2.7"}
	errAtomicAlign  = &MalformedError{"addr", "must be a multiple of the operand size in atomics", "2.2.7"}
	errMessageTC    = &MalformedError{"tc", "must be 0 in interrupt, power management, error, unlock and slot power limit messages", "2.2.8"}
	errSlotPower    = &MalformedError{"length", "must be 1 in a Set_Slot_Power_Limit message", "2.2.8.5"}
)

// check applies the rules for received packets, without those about reserved bits.
func (p *Packet) check() error {
	switch c := types[p.Type&31].class; {
	case c&atomic != 0:
		return p.checkAtomic()
	case c&memory != 0:
		return p.checkMemory()
	case c&message != 0:
		return p.checkMessage()
	case c&completion == 0:
		return p.checkSingle()
	}
	return nil
}

func (p *Packet) checkMemory() error {
	// The low address bits of a translation request are reserved (section
	// 10.2.2), so it cannot cross a boundary.
	if p.AT != ATTranslationRequest && p.Addr%pcie.PageSize+uint64(p.Length)*pcie.DW > pcie.PageSize {
		return errCrosses4K
	}
	if p.FirstBE == 0xf && p.LastBE == 0xf && p.Length > 1 {
		return nil
	}
	return p.checkByteEnables()
}

func (p *Packet) checkByteEnables() error {
	switch {
	case p.Length == 1:
		if p.LastBE != 0 {
			return errLastBEZero
		}
		return nil
	case p.FirstBE == 0:
		return errFirstBEUnset
	case p.LastBE == 0:
		return errLastBEUnset
	case p.Length == 2 && p.Addr%8 == 0:
		return nil
	case p.FirstBE|p.FirstBE<<1&0xf != p.FirstBE:
		return errFirstBEGap
	case p.LastBE&(p.LastBE+1) != 0:
		return errLastBEGap
	}
	return nil
}

func (p *Packet) checkAtomic() error {
	size := uint64(p.Length) * pcie.DW
	if p.Type == CAS {
		if p.Length != 2 && p.Length != 4 && p.Length != 8 {
			return errCASLength
		}
		size /= 2
	} else if p.Length != 1 && p.Length != 2 {
		return errAtomicLength
	}
	if p.Addr%size != 0 {
		return errAtomicAlign
	}
	return nil
}

// checkSingle checks I/O and configuration requests. TH, Attr[2] and AT are
// reserved or must not be checked.
func (p *Packet) checkSingle() error {
	switch {
	case p.Length != 1:
		return errSingleLength
	case p.LastBE != 0:
		return errSingleLastBE
	case p.TC != 0:
		return errSingleTC
	case p.Attr&(NoSnoop|RelaxedOrdering) != 0:
		return errSingleAttr
	}
	return nil
}

func (p *Packet) checkMessage() error {
	if p.TC != 0 && needsTC0(p.Code) {
		return errMessageTC
	}
	if p.Type == MsgD && p.Code == CodeSetSlotPowerLimit && p.Length != 1 {
		return errSlotPower
	}
	return nil
}

// Validate returns an error for a packet that cannot be sent: a field has too many
// bits, the type does not have a field, the payload is not Length double words, or
// a rule of the specification is broken. Parse decodes the encoding of a valid
// packet to the same value.
func (p *Packet) Validate() error {
	if p.ordinary() {
		return nil
	}
	return p.validate()
}

// ordinary reports whether a packet is a memory request of at least two whole double
// words or a completion with data, and has only the fields that these need. Most packets
// are, and such a packet is valid.
func (p *Packet) ordinary() bool {
	if p.TH || p.LN || p.HasDigest || p.AT|p.PH|p.ST|p.Code|uint8(p.Routing)|p.Reserved != 0 || p.Target != 0 || p.Register != 0 ||
		p.Digest != 0 || p.MsgHeader != noHeader || len(p.Prefix) != 0 || p.TC > 7 || p.Attr > 7 || p.Tag >= pcie.MaxTags {
		return false
	}
	if p.Length < 1 || p.Length > MaxLength || len(p.Data) != p.PayloadLen() {
		return false
	}
	switch p.Type {
	case MRd, MWr:
		return p.FirstBE&p.LastBE == 0xf && p.FirstBE|p.LastBE == 0xf && p.Length > 1 && p.Addr%pcie.DW == 0 && (p.DW4 || p.Addr>>32 == 0) &&
			p.Addr%pcie.PageSize+uint64(p.Length)*pcie.DW <= pcie.PageSize &&
			p.Completer == 0 && p.Status == 0 && !p.BCM && p.ByteCount == 0 && p.LowerAddr == 0
	case CplD:
		return p.FirstBE|p.LastBE == 0 && !p.DW4 && p.Addr == 0 &&
			p.Status <= 7 && p.ByteCount >= 1 && p.ByteCount <= maxByteCnt && p.LowerAddr <= 0x7f
	default:
		return false
	}
}

// validate is Validate for any packet.
func (p *Packet) validate() error {
	if p.Type == Invalid || p.Type >= numTypes {
		return errReservedType
	}
	if err := p.checkWidths(); err != nil {
		return err
	}
	if err := p.checkForeign(); err != nil {
		return err
	}
	if len(p.Data) != p.PayloadLen() {
		return fmt.Errorf("tlp: data: %s with length %d has %d bytes of payload, want %d", p.Type, p.Length, len(p.Data), p.PayloadLen())
	}
	if err := p.checkPrefix(); err != nil {
		return err
	}
	return p.check()
}

func (p *Packet) checkPrefix() error {
	if len(p.Prefix) > MaxPrefixes*PrefixSize {
		return errPrefixCount
	}
	var buf [(MaxPrefixes + 1) * PrefixSize]byte // ends with a byte that is not a prefix
	size := copy(buf[:], p.Prefix)
	if n, err := prefixLen(buf[:]); err != nil {
		return err
	} else if n != size {
		return fmt.Errorf("tlp: prefixes: %x is not a sequence of TLP prefixes: each has 4 bytes, the first from 0x80 to 0x9f", p.Prefix)
	}
	return nil
}

func (p *Packet) checkWidths() error {
	minLength := uint16(1)
	maxLength := uint16(MaxLength)
	if p.lengthReserved() {
		minLength, maxLength = 0, lengthMask
	}
	minBytes := uint16(0)
	if p.Type.Completion() {
		minBytes = 1
	}
	for _, f := range [...]struct {
		name         string
		v, low, high uint16
	}{
		{"tc", uint16(p.TC), 0, 7},
		{"attr", uint16(p.Attr), 0, 7},
		{"at", uint16(p.AT), 0, 3},
		{"ph", uint16(p.PH), 0, 3},
		{"length", p.Length, minLength, maxLength},
		{"tag", uint16(p.Tag), 0, pcie.MaxTags - 1},
		{"first_be", uint16(p.FirstBE), 0, 0xf},
		{"last_be", uint16(p.LastBE), 0, 0xf},
		{"register", p.Register, 0, pcie.ConfigSize - pcie.DW},
		{"status", uint16(p.Status), 0, 7},
		{"byte_count", p.ByteCount, minBytes, maxByteCnt},
		{"lower_addr", uint16(p.LowerAddr), 0, 0x7f},
		{"routing", uint16(p.Routing), 0, routingMask},
	} {
		if f.v < f.low || f.v > f.high {
			return fmt.Errorf("tlp: %s: %d does not fit: want %d to %d", f.name, f.v, f.low, f.high)
		}
	}
	if p.Addr%pcie.DW != 0 {
		return fmt.Errorf("tlp: addr: %#x must be a multiple of 4: byte enables select bytes", p.Addr)
	}
	if p.Register%pcie.DW != 0 {
		return fmt.Errorf("tlp: register: %#x must be a multiple of 4: byte enables select bytes", p.Register)
	}
	return nil
}

// checkForeign refuses values in fields that the type lacks: Append would drop them.
func (p *Packet) checkForeign() error {
	c := types[p.Type&31].class
	byAddr := c&withAddr != 0 || c&message != 0 && p.Routing == RouteByAddress
	byID := c&message != 0 && p.Routing == RouteByID
	steered := p.TH && c&memory != 0
	first, last := p.FirstBE, p.LastBE
	if steered && p.Type != MWr {
		wantFirst, wantLast := p.impliedBE()
		if first != wantFirst || last != wantLast {
			return fmt.Errorf("tlp: first_be, last_be: the steering tag stands in their place in %s with th: want %#x and %#x", p.Type, wantFirst, wantLast)
		}
	}
	var reserved uint8
	switch {
	case c&completion != 0:
		reserved = 0x80
	case c&config != 0:
		reserved = 0xf3
	}
	for _, f := range [...]struct {
		name    string
		foreign bool
	}{
		{"dw4", p.DW4 && c&(memory|message) == 0},
		{"addr", p.Addr != 0 && !byAddr},
		{"addr", p.Addr>>32 != 0 && byAddr && c&message == 0 && !p.DW4},
		{"ph", p.PH != 0 && !byAddr},
		{"st", p.ST != 0 && !steered},
		{"tag", p.Tag&0xff != 0 && steered && p.Type == MWr},
		{"first_be", first != 0 && c&(completion|message) != 0},
		{"last_be", last != 0 && c&(completion|message) != 0},
		{"target", p.Target != 0 && c&config == 0 && !byID},
		{"register", p.Register != 0 && c&config == 0},
		{"completer", p.Completer != 0 && c&completion == 0},
		{"status", p.Status != 0 && c&completion == 0},
		{"bcm", p.BCM && c&completion == 0},
		{"byte_count", p.ByteCount != 0 && c&completion == 0},
		{"lower_addr", p.LowerAddr != 0 && c&completion == 0},
		{"code", p.Code != 0 && c&message == 0},
		{"routing", p.Routing != 0 && c&message == 0},
		{"msg_header", p.MsgHeader != noHeader && (c&message == 0 || byAddr)},
		{"msg_header", byID && p.MsgHeader[0]|p.MsgHeader[1] != 0},
		{"reserved", p.Reserved&^reserved != 0},
		{"digest", p.Digest != 0 && !p.HasDigest},
	} {
		if f.foreign {
			return fmt.Errorf("tlp: %s: has no place in this %s: leave it zero", f.name, p.Type)
		}
	}
	return nil
}

// noHeader is the MsgHeader of a packet without one.
var noHeader [8]byte
