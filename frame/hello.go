package frame

import "encoding/binary"

// Sizes in bytes.
const (
	helloSize1 = 44
	helloSize2 = 80
	// OfferSize is the size of the start of a hello packet of version 2 that is the
	// same in all hello packets of a sender.
	OfferSize = 56
	// KeySize is the size of an X25519 public key.
	KeySize = 32
	// ProofSize is the size of a confirm's proof.
	ProofSize = 16
)

// HelloSize returns the size of a hello packet.
func HelloSize(version uint8) int {
	if version == Version1 {
		return helloSize1
	}
	return helloSize2
}

// Hello is the only packet of a handshake datagram. That of version 1:
//
//	+---------------+---------------+-------------------------------+
//	|  kind = 0x20  |    cipher     |            reserved           |  0
//	+---------------+---------------+-------------------------------+
//	|                          source node                          |  4
//	+-------------------------------+-------------------------------+
//	|          source slot          |       destination slot        |  8
//	+-------------------------------+-------------------------------+
//	|                       destination node                        | 12
//	+---------------------------------------------------------------+
//	|               limit: the first credit of the peer             | 16
//	|                                                               | 20
//	+---------------------------------------------------------------+
//	|        echo: number of the datagram that this answers         | 24
//	|                                                               | 28
//	+---------------------------------------------------------------+
//	|                           reserved                            | 32
//	|                                                               | 36
//	+---------------------------------------------------------------+
//	|                          packet CRC                           | 40
//	+---------------------------------------------------------------+
//
// That of version 2 has no CRC, because it is always sealed:
//
//	+---------------+---------------+---------------+---------------+
//	|  kind = 0x20  |    cipher     |highest version|   reserved    |  0
//	+---------------+---------------+---------------+---------------+
//	|                 endpoints and limit, as above                 |  4 ...
//	+---------------------------------------------------------------+
//	|                       X25519 public key                       | 24 ...
//	+---------------------------------------------------------------+
//	|        echo: number of the datagram that this answers         | 56
//	|                                                               | 60
//	+---------------------------------------------------------------+
//	|              proof in a confirm, otherwise zero               | 64 ...
//	+---------------------------------------------------------------+
type Hello struct {
	Cipher              uint8 // 0 none, 1 AES-256-GCM
	Source, Destination Endpoint
	Limit               uint64 // see Ack.Limit
	Echo                uint64

	// From version 2 on.
	Highest uint8 // version that the sender speaks
	Public  [KeySize]byte
	Proof   [ProofSize]byte
}

// Append appends the packet of a version to b.
func (h *Hello) Append(b []byte, version uint8) []byte {
	start := len(b)
	b = append(b, byte(KindHello), h.Cipher, 0, 0)
	b = binary.BigEndian.AppendUint32(b, h.Source.Node)
	b = binary.BigEndian.AppendUint16(b, h.Source.Slot)
	b = binary.BigEndian.AppendUint16(b, h.Destination.Slot)
	b = binary.BigEndian.AppendUint32(b, h.Destination.Node)
	b = binary.BigEndian.AppendUint64(b, h.Limit)
	if version == Version1 {
		b = binary.BigEndian.AppendUint64(b, h.Echo)
		b = binary.BigEndian.AppendUint64(b, 0)
		return binary.BigEndian.AppendUint32(b, CRC(0, b[start:]))
	}
	b[start+2] = h.Highest
	b = append(b, h.Public[:]...)
	b = binary.BigEndian.AppendUint64(b, h.Echo)
	return append(b, h.Proof[:]...)
}

// ParseHello reads the packet of a version at the start of b and returns its size.
func ParseHello(b []byte, version uint8) (h Hello, n int, err error) {
	n = HelloSize(version)
	if len(b) < n {
		return Hello{}, 0, ErrShort
	}
	if Kind(b[0]) != KindHello || b[1] > 1 || b[3] != 0 {
		return Hello{}, 0, ErrField
	}
	h = Hello{
		Cipher:      b[1],
		Source:      Endpoint{Node: binary.BigEndian.Uint32(b[4:]), Slot: binary.BigEndian.Uint16(b[8:])},
		Destination: Endpoint{Node: binary.BigEndian.Uint32(b[12:]), Slot: binary.BigEndian.Uint16(b[10:])},
		Limit:       binary.BigEndian.Uint64(b[16:]),
	}
	if version == Version1 {
		if b[2] != 0 || binary.BigEndian.Uint64(b[32:]) != 0 {
			return Hello{}, 0, ErrField
		}
		if CRC(0, b[:n-CRCSize]) != binary.BigEndian.Uint32(b[n-CRCSize:]) {
			return Hello{}, 0, ErrCRC
		}
		h.Echo = binary.BigEndian.Uint64(b[24:])
		return h, n, nil
	}
	if b[2] < version {
		return Hello{}, 0, ErrField
	}
	h.Highest = b[2]
	copy(h.Public[:], b[24:])
	h.Echo = binary.BigEndian.Uint64(b[OfferSize:])
	copy(h.Proof[:], b[OfferSize+8:])
	return h, n, nil
}
