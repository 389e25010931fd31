// Package frame encodes and decodes the network packets of DxPU: datagrams
// that carry header packets, data packets, run packets and control packets of one
// binding.
//
// PROTOCOL.md specifies the format. All functions are pure: parsers check lengths
// before they read, never panic, never allocate, and return slices that alias
// their input. Integers are big-endian.
package frame

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// Versions of the protocol, in the upper four bits of every datagram.
const (
	Version1 = 1
	// Version2 adds an X25519 exchange and cookies to the handshake.
	Version2 = 2
	// Version3 adds run packets. Its handshake and datagrams are those of version 2
	// and carry that number, so that ends of both understand each other; the hello
	// packets tell which version an end speaks.
	Version3 = 3
	// Version4 adds runs of completions and of read requests, in the same way.
	Version4 = 4
	// Version5 adds the count of marked datagrams to acknowledgements, in the same way.
	Version5 = 5
	// Newest is the highest version of this package.
	Newest = Version5

	newestNumber = Version2 // in datagrams
)

// SpeaksVersion2 is set in the number of a handshake datagram of version 1 whose
// sender also speaks version 2. The number is authenticated, so two such ends
// notice an attacker who holds the datagrams of version 2 back.
const SpeaksVersion2 uint64 = 1 << 63

// Sizes in bytes.
const (
	// HeaderSize is the size of the cleartext header of a datagram.
	HeaderSize = 20
	// SessionsSize is the size of the session IDs after the header of a handshake.
	SessionsSize = 16
	// CookieSize is the size of the cookie after the session IDs, from version 2 on.
	CookieSize = 16
	// TagSize is the size of the AES-256-GCM tag at the end of a sealed datagram.
	TagSize = 16
	// CheckSize is the size of the [Check] (CRC-32C) at the end of a clear datagram.
	CheckSize = 4
	// CRCSize is the size of the packet CRC. It ends every packet except
	// padding, which has none, and data packets, which have it in their header.
	// Packets of the form Bare have none.
	CRCSize = 4
	// MaxDatagram is the largest payload of UDP over IPv4.
	MaxDatagram = 65535 - 20 - 8
	// MinMTU is the smallest path MTU, as UDP payload: that of IPv6, 1280 - 40 - 8.
	MinMTU = 1232
	// MaxPayload is the largest payload of a TLP.
	MaxPayload = 4096
	// Unit is the granularity of chunks: a chunk starts at a multiple of Unit
	// and ends at a multiple or at the end of the payload. The largest payload
	// has 64 units, so a 64-bit word represents a set of units.
	Unit = 64
	// TLPCost is the credit that a TLP takes in addition to its payload (see
	// Ack.Limit): the memory that a receiver needs to describe it.
	TLPCost = 128
	// MaxPaths is the number of paths a binding may have.
	MaxPaths = 8
)

// Form is the form of the packets in the body of a datagram.
type Form uint8

// Forms.
const (
	// Checked packets have CRCs: all of version 1, and those of clear datagrams.
	Checked Form = iota
	// Bare packets have none, because the seal protects them: those of sealed
	// traffic of version 2.
	Bare
)

// crcSize returns the size of the CRC of a packet.
func (f Form) crcSize() int {
	if f == Bare {
		return 0
	}
	return CRCSize
}

// Kind is the first byte of a packet inside a datagram.
type Kind uint8

// Kinds of packet.
const (
	KindPadding Kind = 0x00 // the rest of the datagram is zero
	KindHeader  Kind = 0x01
	KindData    Kind = 0x02
	KindRun     Kind = 0x03
	KindAck     Kind = 0x10
	KindPing    Kind = 0x11
	KindClose   Kind = 0x12
	KindHello   Kind = 0x20
)

var kindNames = map[Kind]string{
	KindPadding: "padding", KindHeader: "header", KindData: "data", KindRun: "run", KindAck: "ack", KindPing: "ping", KindClose: "close", KindHello: "hello",
}

// String returns the name in lower case.
func (k Kind) String() string { return cmp.Or(kindNames[k], fmt.Sprintf("Kind(0x%02x)", uint8(k))) }

// Errors of the parsers. The network causes a bad CRC, a peer the others.
var (
	ErrShort   = errors.New("frame: truncated")
	ErrVersion = errors.New("frame: unknown version")
	ErrField   = errors.New("frame: field out of range")
	ErrCRC     = errors.New("frame: CRC-32C mismatch")
)

// Endpoint is a place for one device: a slot of a node. In the paper the slot of a
// host is 0; here a host's virtual switch may have several.
type Endpoint struct {
	Node uint32
	Slot uint16
}

// String returns "node/slot".
func (e Endpoint) String() string { return fmt.Sprintf("%d/%d", e.Node, e.Slot) }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// CRC continues a CRC-32C (Castagnoli) over b; start with 0.
func CRC(crc uint32, b []byte) uint32 { return crc32.Update(crc, castagnoli, b) }

// extend continues crc over the four bytes of v. It does not use hash/crc32, whose
// function pointer would move a local array to the heap.
func extend(crc, v uint32) uint32 {
	crc = ^crc
	crc = castagnoli[byte(crc)^byte(v>>24)] ^ crc>>8
	crc = castagnoli[byte(crc)^byte(v>>16)] ^ crc>>8
	crc = castagnoli[byte(crc)^byte(v>>8)] ^ crc>>8
	crc = castagnoli[byte(crc)^byte(v)] ^ crc>>8
	return ^crc
}

// TLPCRC returns the CRC of a whole TLP from the CRC of its header (prefixes,
// header and digest, in this order) and the CRC of its payload. It is
// CRC-32C(header bytes || payload CRC): when a payload travels in one chunk, both
// sender and receiver read it only once. A TLP without payload has the CRC of its
// header.
func TLPCRC(header, payload uint32, payloadLen int) uint32 {
	if payloadLen == 0 {
		return header
	}
	return extend(header, payload)
}

// Check returns the trailer of a clear datagram: CRC-32C over the header,
// continued over the length of the body. It starts from seed, which both peers
// derive from their session; a datagram of another session thus fails the check.
// The packets of the body have CRCs of their own.
func Check(seed uint32, header []byte, bodyLen int) uint32 {
	return extend(CRC(seed, header), uint32(bodyLen))
}

func known(version uint8) bool { return version >= Version1 && version <= newestNumber }

// PeekHandshake reports whether a datagram is of a handshake, by its type. b must
// have passed PeekBinding.
func PeekHandshake(b []byte) bool { return Type(b[0]&0xf) != TypeTraffic }

// PeekBinding returns the binding ID of a datagram, for a socket that several
// bindings share. ok is false if b is not a datagram of a known version. The ID is
// unauthenticated until the binding's link has opened the datagram.
func PeekBinding(b []byte) (binding uint32, ok bool) {
	if len(b) < HeaderSize || !known(b[0]>>4) {
		return 0, false
	}
	return binary.BigEndian.Uint32(b[4:]), true
}
