package vhostusertest

import "encoding/binary"

// Packet is the header of a packet of a socket device (virtio, section 5.10.6), little-endian:
//
//	 0       8      16     20     24    28     30   32      36        40       44
//	+-------+-------+------+------+-----+------+----+-------+---------+--------+----
//	|src_cid|dst_cid|src   |dst   |len  |type  |op  |flags  |buf_alloc|fwd_cnt |data
//	|       |       |port  |port  |     |      |    |       |         |        |
//	+-------+-------+------+------+-----+------+----+-------+---------+--------+----
type Packet struct {
	From, To         uint64 // CIDs
	FromPort, ToPort uint32
	Len              uint32 // bytes of data behind the header
	Type             uint16
	Op               uint16
	Flags            uint32
	Room             uint32 // buf_alloc: bytes that the sender has room for in this connection
	Taken            uint32 // fwd_cnt: bytes that the program has taken, of all
}

// HeaderSize is the length of a Packet in bytes.
const HeaderSize = 44

// Operations of packets.
const (
	OpRequest       = 1
	OpResponse      = 2
	OpReset         = 3
	OpShutdown      = 4
	OpData          = 5
	OpCreditUpdate  = 6
	OpCreditRequest = 7
)

const (
	// HostCID is the address of the host.
	HostCID = 2
	// TypeStream is the type of packets of a stream socket.
	TypeStream = 1

	// Flags of OpShutdown: the sender receives, or sends, no more.
	noReceive = 1
	noSend    = 2
)

// Append appends the header.
func (p Packet) Append(b []byte) []byte {
	e := binary.LittleEndian
	b = e.AppendUint64(e.AppendUint64(b, p.From), p.To)
	b = e.AppendUint32(e.AppendUint32(e.AppendUint32(b, p.FromPort), p.ToPort), p.Len)
	b = e.AppendUint16(e.AppendUint16(b, p.Type), p.Op)
	return e.AppendUint32(e.AppendUint32(e.AppendUint32(b, p.Flags), p.Room), p.Taken)
}

// ParsePacket parses a header. ok is false if b is too short for it or for its data.
func ParsePacket(b []byte) (p Packet, ok bool) {
	if len(b) < HeaderSize {
		return Packet{}, false
	}
	e := binary.LittleEndian
	p = Packet{
		From: e.Uint64(b), To: e.Uint64(b[8:]), FromPort: e.Uint32(b[16:]), ToPort: e.Uint32(b[20:]), Len: e.Uint32(b[24:]),
		Type: e.Uint16(b[28:]), Op: e.Uint16(b[30:]), Flags: e.Uint32(b[32:]), Room: e.Uint32(b[36:]), Taken: e.Uint32(b[40:]),
	}
	if uint64(p.Len) > uint64(len(b)-HeaderSize) {
		return Packet{}, false
	}
	return p, true
}
