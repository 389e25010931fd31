package tlp

import "github.com/dxpu-project/dxpu/pcie"

// Attr holds the attribute bits in the order of the specification: ID-based
// ordering (bit 2), relaxed ordering (bit 1), no snoop (bit 0).
type Attr uint8

// Attribute bits (section 2.2.6.3).
const (
	NoSnoop         Attr = 1 << 0
	RelaxedOrdering Attr = 1 << 1
	IDOrdering      Attr = 1 << 2
)

// Routing is the r[2:0] field of a message (table 2-20). Values 6 and 7 are
// reserved and terminate at the receiver.
type Routing uint8

// Message routing mechanisms.
const (
	RouteToRootComplex Routing = 0
	RouteByAddress     Routing = 1
	RouteByID          Routing = 2
	RouteBroadcast     Routing = 3 // from the root complex
	RouteLocal         Routing = 4 // terminate at the receiver
	RouteGatherToRoot  Routing = 5
)

// Address types of Packet.AT (table 10-1).
const (
	ATUntranslated       = 0
	ATTranslationRequest = 1
	ATTranslated         = 2
)

// Sizes of the encoding in bytes.
const (
	Header3DW   = 12
	Header4DW   = 16
	PrefixSize  = 4
	DigestSize  = 4
	MaxLength   = 1024 // of the Length field in double words, encoded as 0
	MaxPrefixes = 8    // 4 local (one of each type) and 4 end-to-end (section 2.2.10)
	// MaxHeader is the maximum that AppendHeader appends.
	MaxHeader = MaxPrefixes*PrefixSize + Header4DW
	// MaxSize is the maximum that Append appends.
	MaxSize = MaxHeader + MaxLength*pcie.DW + DigestSize
)

// Packet is one Transaction Layer Packet, decoded. It is a value: copying it
// copies the header but neither Data nor Prefix, which alias the buffer it was
// parsed from. Fields that the type does not have are zero.
type Packet struct {
	Type Type
	// DW4 is set when the header has 4 double words: for a 64-bit address and
	// for a message. SetAddr sets it for a memory request.
	DW4 bool
	TC  uint8 // traffic class, 0 to 7
	// Attr, TH (TLP processing hints present), EP (poisoned) and AT (address
	// type: 0 untranslated, 1 translation request, 2 translated).
	Attr Attr
	TH   bool
	EP   bool
	AT   uint8
	// PH is bits 1:0 of the address field: the processing hint when TH is set,
	// reserved bits otherwise (No Write in a translation request). ST is the
	// 8-bit steering tag of a memory request or atomic with TH. It takes the
	// place of Tag[7:0] in MWr and of the byte enables in all other types, which
	// then have all bytes enabled (section 2.2.7.1).
	PH uint8
	ST uint8

	// Length is the Length field in double words, 1 to 1024 (1024 is encoded
	// as 0): the size of the payload or of a read. In a completion or a message
	// without data the field is reserved: 0.
	Length uint16

	// Requester and Tag form the Transaction ID. In posted requests Tag has no
	// meaning and is kept as received.
	Requester pcie.BDF
	Tag       pcie.Tag

	// FirstBE and LastBE are the byte enables of the first and last double
	// word of memory, I/O and configuration requests.
	FirstBE, LastBE uint8

	// Addr is the byte address of memory, I/O and atomic requests and of
	// messages routed by address; bits 1:0 are zero.
	Addr uint64

	// Target is the completer of a configuration request or the destination
	// of a message routed by ID; Register is the byte offset in
	// configuration space, a multiple of 4.
	Target   pcie.BDF
	Register uint16

	// Completer, Status, BCM, ByteCount (1 to 4096, 4096 encoded as 0) and
	// LowerAddr belong to completions.
	Completer pcie.BDF
	Status    pcie.CplStatus
	BCM       bool
	ByteCount uint16
	LowerAddr uint8

	// Code and Routing belong to messages; MsgHeader holds bytes 8 to 15 of
	// the header of a message that is routed neither by address nor by ID
	// (for one routed by ID, bytes 10 to 15 are in MsgHeader[2:]).
	Code      uint8
	Routing   Routing
	MsgHeader [8]byte

	// LN is bit 1 of byte 1, reserved since revision 6.0 (it was the
	// lightweight notification). Reserved holds the reserved bits of the last
	// double word: in a configuration request bits 7:4 of byte 10 as bits 7:4
	// and bits 1:0 of byte 11 as bits 1:0, in a completion bit 7 of byte 11
	// as bit 7. Receivers ignore all these and switches forward them
	// unmodified (section 2.2.1); in a new packet they are zero.
	LN       bool
	Reserved uint8

	// Data is the payload in the byte order of the wire: Length double words. It
	// aliases the buffer that the packet was parsed from.
	Data []byte

	// Prefix holds the TLP prefixes, 4 bytes each, local ones first, as they
	// precede the header (section 2.2.10). It is nil in nearly every packet and
	// aliases the buffer that the packet was parsed from.
	Prefix []byte

	// Digest is the ECRC. Its bit 31 is bit 7 of the first byte on the wire.
	// HasDigest is the TD bit.
	HasDigest bool
	Digest    uint32
}

// SetAddr sets the address and the header size that the specification requires
// for it: 3 DW below 4 GiB, 4 DW above (section 2.2.4.1).
func (p *Packet) SetAddr(addr uint64) {
	p.Addr = addr &^ 3
	p.DW4 = addr>>32 != 0
}

// HeaderLen returns the size of the header without prefixes in bytes: 12 or 16.
// It is 16 for messages even when DW4 is not set.
func (p *Packet) HeaderLen() int {
	if p.DW4 && p.Type.is(memory) || p.Type.is(message) {
		return Header4DW
	}
	return Header3DW
}

// PayloadLen returns the payload's size in bytes by the header, 0 without data.
func (p *Packet) PayloadLen() int {
	if p.Type.HasData() {
		return int(p.Length) * pcie.DW
	}
	return 0
}

// Size returns the number of bytes that Append appends for a valid packet:
// prefixes, header, payload and digest.
func (p *Packet) Size() int {
	n := len(p.Prefix) + p.HeaderLen() + p.PayloadLen()
	if p.HasDigest {
		n += DigestSize
	}
	return n
}
