package tlp

import "github.com/dxpu-project/dxpu/pcie"

// Type is the kind of a Transaction Layer Packet: the combination of the Fmt
// and Type fields (table 2-3) without the header size, which follows from
// Packet.DW4.
type Type uint8

// Kinds of TLP. The zero value is invalid.
const (
	Invalid Type = iota
	MRd          // memory read request
	MRdLk        // memory read request, locked
	MWr          // memory write request
	IORd
	IOWr
	CfgRd0
	CfgWr0
	CfgRd1
	CfgWr1
	Msg
	MsgD
	Cpl
	CplD
	CplLk
	CplDLk
	FetchAdd
	Swap
	CAS
)

// Attr holds the attribute bits in the order of the specification: ID-based
// ordering (bit 2), relaxed ordering (bit 1), no snoop (bit 0).
type Attr uint8

// Attribute bits (section 2.2.6.3).
const (
	NoSnoop         Attr = 1 << 0
	RelaxedOrdering Attr = 1 << 1
	IDOrdering      Attr = 1 << 2
)

// Routing is the r[2:0] field of a message (table 2-20).
type Routing uint8

// Message routing mechanisms.
const (
	RouteToRootComplex     Routing = 0
	RouteByAddress         Routing = 1
	RouteByID              Routing = 2
	RouteBroadcast         Routing = 3 // from the root complex
	RouteLocal             Routing = 4 // terminate at the receiver
	RouteGatherToRoot      Routing = 5
	routeReservedTerminate Routing = 6 // 6 and 7: reserved, terminate at the receiver
)

// Packet is one Transaction Layer Packet, decoded. It is a value: copying it
// copies the header but not Data, which aliases whoever's buffer it was parsed
// from. Fields that the type does not have are zero.
type Packet struct {
	Type Type
	// DW4 says that the header has 4 double words: 64-bit address, or a
	// message. Set it with SetAddr for a memory request.
	DW4 bool
	TC  uint8 // traffic class, 0 to 7
	// Attr, TH (TLP processing hints present), EP (poisoned) and AT (address
	// type: 0 untranslated, 1 translation request, 2 translated).
	Attr Attr
	TH   bool
	EP   bool
	AT   uint8
	// PH and ST are the processing hint and the 8-bit steering tag; they have
	// a place on the wire only when TH is set on a memory request or atomic.
	PH uint8
	ST uint8

	// Length is the Length field in double words, 1 to 1024 (1024 is encoded
	// as 0): of the payload, or of what a read asks for.
	Length uint16

	// Requester and Tag form the Transaction ID.
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
	// (for one routed by ID, bytes 12 to 15 are in MsgHeader[4:]).
	Code      uint8
	Routing   Routing
	MsgHeader [8]byte

	// Data is the payload in the byte order of the wire, Length double words
	// long. It aliases the buffer that the packet came from.
	Data []byte

	// Digest is the ECRC; HasDigest is the TD bit.
	HasDigest bool
	Digest    uint32
}

// SetAddr sets the address and chooses the header size that the specification
// requires for it: 3 DW below 4 GiB, 4 DW above (section 2.2.4.1).
func (p *Packet) SetAddr(addr uint64) {
	p.Addr = addr &^ 3
	p.DW4 = addr>>32 != 0
}
