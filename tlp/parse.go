package tlp

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/dxpu-project/dxpu/pcie"
)

// The header of a request, byte by byte and bit 7 first (figures 2-4 to 2-31).
// Bytes 8 and after hold the address of a memory, I/O or atomic request, the
// target and register of a configuration request, or fields that depend on the
// message:
//
//	       +0              +1              +2              +3
//	 |7 6 5 4 3 2 1 0|7 6 5 4 3 2 1 0|7 6 5 4 3 2 1 0|7 6 5 4 3 2 1 0|
//	0| Fmt |  Type   |T| TC  |T|A|L|T|T|E|Att|AT |      Length       |
//	 |     |         |9|     |8|2|N|H|D|P|1 0|   |                   |
//	4|         Requester ID          |   Tag[7:0]    |LastBE |FirstBE|
//	 |                               |               |  message code |
//	8|         Address[63:32] with 4 DW, Address[31:2] and PH        |
//	12         Address[31:2] and PH with 4 DW                        |
//
// and of a completion, whose first double word is the same:
//
//	4|         Completer ID          |Status |B|    Byte Count       |
//	8|         Requester ID          |   Tag[7:0]    |R| Lower Addr  |

// ErrTruncated is the error for bytes that end before the packet does.
var ErrTruncated = errors.New("tlp: truncated")

// MalformedError names the rule of the specification that a packet breaks.
type MalformedError struct {
	Field   string // name in the JSON form
	Rule    string
	Section string // of the PCI Express Base Specification
}

// Error names the field, the rule and the section.
func (e *MalformedError) Error() string {
	return "tlp: malformed packet: " + e.Field + " " + e.Rule + " (section " + e.Section + ")"
}

// Bits of the first double word.
const (
	bitT9    = 1 << 23
	bitT8    = 1 << 19
	bitAttr2 = 1 << 18
	bitLN    = 1 << 17
	bitTH    = 1 << 16
	bitTD    = 1 << 15
	bitEP    = 1 << 14

	shiftTC     = 20
	shiftAttr   = 12
	shiftAT     = 10
	lengthMask  = 0x3ff
	maxByteCnt  = 4096
	byteCntMask = 0xfff
	addrLow     = 3 // bits 1:0 of an address, which hold PH
)

// Parse decodes one packet with its payload and digest and returns its size. It
// ignores the bytes after the packet. The packet's Data and Prefix alias b. The
// error is [ErrTruncated], wrapped, or a *[MalformedError]; the packet is then
// zero.
func Parse(b []byte) (Packet, int, error) {
	var p Packet
	n, err := p.Decode(b)
	return p, n, err
}

// ParseHeader decodes prefixes and header only: 12 to [MaxHeader] bytes. Data is
// nil for any type (see [Packet.PayloadLen]). Digest, which follows the payload,
// is 0 even when HasDigest is set.
func ParseHeader(b []byte) (Packet, int, error) {
	var p Packet
	n, err := p.DecodeHeader(b)
	return p, n, err
}

// Decode is [Parse] into p, which it overwrites.
func (p *Packet) Decode(b []byte) (int, error) {
	n, err := p.DecodeHeader(b)
	if err != nil {
		return 0, err
	}
	size := p.Size()
	if len(b) < size {
		err := fmt.Errorf("%w: %s needs %d bytes with payload and digest, got %d", ErrTruncated, p.Type, size, len(b))
		*p = Packet{}
		return 0, err
	}
	if data := p.PayloadLen(); data > 0 {
		p.Data = b[n : n+data : n+data]
	}
	if p.HasDigest {
		p.Digest = binary.BigEndian.Uint32(b[size-DigestSize:])
	}
	return size, nil
}

// DecodeHeader is [ParseHeader] into p, which it overwrites.
func (p *Packet) DecodeHeader(b []byte) (int, error) {
	*p = Packet{}
	n, err := p.decodeHeader(b)
	if err != nil {
		*p = Packet{}
		return 0, err
	}
	return n, nil
}

func (p *Packet) decodeHeader(b []byte) (int, error) {
	prefix := 0
	if len(b) > 0 && b[0]&fmtMask == fmtPrefix {
		var err error
		if prefix, err = prefixLen(b); err != nil {
			return 0, err
		}
		p.Prefix = b[:prefix:prefix]
	}
	h := b[prefix:]
	if len(h) < Header3DW {
		return 0, fmt.Errorf("%w: a header has at least %d bytes, got %d", ErrTruncated, Header3DW, len(h))
	}
	p.Type = byByte0[h[0]]
	if p.Type == Invalid {
		return 0, errReservedType
	}
	p.decodeCommon(binary.BigEndian.Uint32(h))
	n := p.HeaderLen()
	if len(h) < n {
		return 0, fmt.Errorf("%w: the header of this %s has %d bytes, got %d", ErrTruncated, p.Type, n, len(h))
	}
	class := types[p.Type&31].class
	switch {
	case class&completion != 0:
		p.decodeCompletion(h)
	case class&message != 0:
		p.decodeMessage(h)
	default:
		p.decodeRequest(h, class)
	}
	return prefix + n, p.check()
}

// decodeCommon decodes the first double word; p.Type is set.
func (p *Packet) decodeCommon(w uint32) {
	p.DW4 = w>>24&fmt4DW != 0
	p.TC = uint8(w>>shiftTC) & 7
	p.Attr = Attr(w>>shiftAttr)&3 | Attr(w>>16)&IDOrdering
	p.LN = w&bitLN != 0
	p.TH = w&bitTH != 0
	p.HasDigest = w&bitTD != 0
	p.EP = w&bitEP != 0
	p.AT = uint8(w>>shiftAT) & 3
	p.Length = uint16(w & lengthMask)
	if p.Length == 0 && !p.lengthReserved() {
		p.Length = MaxLength
	}
	p.Tag = pcie.Tag(w&bitT9>>14 | w&bitT8>>11)
}

// lengthReserved reports whether the Length field is reserved: in completions and
// messages without data (sections 2.2.8 and 2.2.9).
func (p *Packet) lengthReserved() bool {
	c := types[p.Type&31].class
	return c&(completion|message) != 0 && c&withData == 0
}

func (p *Packet) decodeRequest(h []byte, class class) {
	w1 := binary.BigEndian.Uint32(h[4:])
	p.Requester = pcie.BDF(w1 >> 16)
	p.Tag |= pcie.Tag(w1 >> 8 & 0xff)
	p.LastBE = uint8(w1) >> 4
	p.FirstBE = uint8(w1) & 0xf
	w2 := binary.BigEndian.Uint32(h[8:])
	if class&config != 0 {
		p.Target = pcie.BDF(w2 >> 16)
		p.Register = uint16(w2) & 0xffc
		p.Reserved = uint8(w2>>8)&0xf0 | uint8(w2)&3
		return
	}
	addr := uint64(w2)
	if p.DW4 {
		addr = addr<<32 | uint64(binary.BigEndian.Uint32(h[12:]))
	}
	p.Addr = addr &^ addrLow
	p.PH = uint8(addr & addrLow)
	if p.TH && class&memory != 0 {
		p.takeSteeringTag(w1)
	}
}

// takeSteeringTag moves the steering tag from the field that holds it to ST
// (section 2.2.7.1.1). A request without byte enables enables all bytes.
func (p *Packet) takeSteeringTag(w1 uint32) {
	if p.Type == MWr {
		p.ST = uint8(w1 >> 8)
		p.Tag &^= 0xff
		return
	}
	p.ST = uint8(w1)
	p.FirstBE, p.LastBE = p.impliedBE()
}

// impliedBE returns the byte enables of a request that has ST in their place.
func (p *Packet) impliedBE() (first, last uint8) {
	switch {
	case p.Type.Atomic():
		return 0, 0 // reserved in atomics
	case p.Length > 1:
		return 0xf, 0xf
	}
	return 0xf, 0
}

func (p *Packet) decodeMessage(h []byte) {
	p.Routing = Routing(h[0] & routingMask)
	p.Requester = pcie.BDF(binary.BigEndian.Uint16(h[4:]))
	p.Tag |= pcie.Tag(h[6])
	p.Code = h[7]
	if p.Routing == RouteByAddress {
		addr := binary.BigEndian.Uint64(h[8:])
		p.Addr = addr &^ addrLow
		p.PH = uint8(addr & addrLow)
		return
	}
	copy(p.MsgHeader[:], h[8:Header4DW])
	if p.Routing == RouteByID {
		p.Target = pcie.BDF(binary.BigEndian.Uint16(h[8:]))
		p.MsgHeader[0], p.MsgHeader[1] = 0, 0
	}
}

func (p *Packet) decodeCompletion(h []byte) {
	w1 := binary.BigEndian.Uint32(h[4:])
	p.Completer = pcie.BDF(w1 >> 16)
	p.Status = pcie.CplStatus(w1>>13) & 7
	p.BCM = w1>>12&1 != 0
	p.ByteCount = uint16(w1 & byteCntMask)
	if p.ByteCount == 0 {
		p.ByteCount = maxByteCnt
	}
	w2 := binary.BigEndian.Uint32(h[8:])
	p.Requester = pcie.BDF(w2 >> 16)
	p.Tag |= pcie.Tag(w2 >> 8 & 0xff)
	p.LowerAddr = uint8(w2) & 0x7f
	p.Reserved = uint8(w2) & 0x80
}

// prefixLen returns the size of the prefixes at the start of b in bytes. Local
// prefixes precede at most four end-to-end ones (section 2.2.10).
func prefixLen(b []byte) (int, error) {
	local, endEnd := 0, 0
	for n := 0; ; n += PrefixSize {
		if len(b) < n+PrefixSize {
			return 0, fmt.Errorf("%w: a TLP prefix has %d bytes, got %d", ErrTruncated, PrefixSize, len(b)-n)
		}
		if b[n]&fmtMask != fmtPrefix {
			return n, nil
		}
		switch {
		case b[n]&typeEndEnd != 0:
			endEnd++
		case endEnd > 0:
			return 0, errPrefixOrder
		default:
			local++
		}
		if local > maxPerKind || endEnd > maxPerKind {
			return 0, errPrefixCount
		}
	}
}
