package frame

import "encoding/binary"

// Type is the kind of a datagram: the lower four bits of its first byte.
type Type uint8

// Types of datagram. The zero value is invalid.
const (
	// TypeHello opens a session: initiator to responder.
	TypeHello Type = 1
	// TypeHelloAck answers a hello.
	TypeHelloAck Type = 2
	// TypeConfirm proves to the responder that the initiator is alive now.
	TypeConfirm Type = 3
	// TypeUnknown tells the initiator that the responder does not know its session.
	TypeUnknown Type = 4
	// TypeTraffic carries all other packets.
	TypeTraffic Type = 5
	// TypeCookie asks the sender of a handshake datagram to repeat it with the cookie
	// of this one. It has no body and no trailer. From version 2 on.
	TypeCookie Type = 6
)

// Handshake reports whether the header of the type has session IDs.
func (t Type) Handshake() bool { return t >= TypeHello && t <= TypeUnknown || t == TypeCookie }

// String returns the name in lower case.
func (t Type) String() string {
	if t > TypeCookie {
		t = 0
	}
	return [...]string{"invalid", "hello", "hello-ack", "confirm", "unknown-session", "traffic", "cookie"}[t]
}

// Header is the cleartext header of a datagram. It is the additional data of the
// seal.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-------+-------+---------------+---------------+---------------+
//	|version| type  |   key phase   |    path ID    |   reserved    |  0
//	+-------+-------+---------------+---------------+---------------+
//	|                          binding ID                           |  4
//	+---------------------------------------------------------------+
//	|                             epoch                             |  8
//	+---------------------------------------------------------------+
//	|                        datagram number                        | 12
//	|                                                               | 16
//	+---------------------------------------------------------------+
//
// A handshake datagram has 16 more bytes, also authenticated:
//
//	+---------------------------------------------------------------+
//	|                 session ID of the initiator                   | 20
//	|                                                               | 24
//	+---------------------------------------------------------------+
//	|           session ID of the responder, 0 if unknown           | 28
//	|                                                               | 32
//	+---------------------------------------------------------------+
//
// and of version 2, 16 more:
//
//	+---------------------------------------------------------------+
//	|                  cookie, 0 if there is none                   | 36 ...
//	+---------------------------------------------------------------+
type Header struct {
	Version  uint8
	Type     Type
	KeyPhase uint8  // modulo 256; 0 in handshake datagrams
	Path     uint8  // below MaxPaths
	Binding  uint32 // from the manager
	Epoch    uint32 // of the binding
	// Number is unique per key and path and never reused. With Path it forms the
	// nonce of the seal.
	Number uint64
	// Initiator and Responder are the session IDs of a handshake datagram.
	Initiator, Responder uint64
	// Cookie shows that the sender of a handshake datagram receives at its address.
	Cookie [CookieSize]byte
}

// Size returns the number of bytes that Append appends.
func (h *Header) Size() int {
	switch {
	case !h.Type.Handshake():
		return HeaderSize
	case h.Version == Version1:
		return HeaderSize + SessionsSize
	}
	return HeaderSize + SessionsSize + CookieSize
}

// Append appends the encoded header to b.
func (h *Header) Append(b []byte) []byte {
	b = append(b, h.Version<<4|byte(h.Type), h.KeyPhase, h.Path, 0)
	b = binary.BigEndian.AppendUint32(b, h.Binding)
	b = binary.BigEndian.AppendUint32(b, h.Epoch)
	b = binary.BigEndian.AppendUint64(b, h.Number)
	if h.Type.Handshake() {
		b = binary.BigEndian.AppendUint64(b, h.Initiator)
		b = binary.BigEndian.AppendUint64(b, h.Responder)
		if h.Version != Version1 {
			b = append(b, h.Cookie[:]...)
		}
	}
	return b
}

// ParseHeader reads the header at the start of a datagram and returns its size.
func ParseHeader(b []byte) (h Header, n int, err error) {
	if len(b) < HeaderSize {
		return Header{}, 0, ErrShort
	}
	if !known(b[0] >> 4) {
		return Header{}, 0, ErrVersion
	}
	h = Header{
		Version: b[0] >> 4, Type: Type(b[0] & 0xf), KeyPhase: b[1], Path: b[2],
		Binding: binary.BigEndian.Uint32(b[4:]), Epoch: binary.BigEndian.Uint32(b[8:]), Number: binary.BigEndian.Uint64(b[12:]),
	}
	if h.Path >= MaxPaths || b[3] != 0 {
		return Header{}, 0, ErrField
	}
	n = h.Size()
	switch {
	case h.Type == TypeTraffic:
		return h, n, nil
	case !h.Type.Handshake() || h.KeyPhase != 0 || h.Type == TypeCookie && h.Version == Version1:
		return Header{}, 0, ErrField
	case len(b) < n:
		return Header{}, 0, ErrShort
	}
	h.Initiator = binary.BigEndian.Uint64(b[20:])
	h.Responder = binary.BigEndian.Uint64(b[28:])
	if h.Version != Version1 {
		copy(h.Cookie[:], b[36:])
	}
	return h, n, nil
}
