package frame

import "encoding/binary"

const (
	headerFixed = 28 // of a header packet, before the TLP CRC or the TLP header
	dataFixed   = 16 // of a data packet, before the packet CRC or the chunk

	// MaxTLPHeader is the largest TLP header with its prefixes (8 prefixes
	// and 4 double words), without digest.
	MaxTLPHeader = 48
	minTLPHeader = 12
	// DigestSize is the size of a TLP digest.
	DigestSize = 4

	flagDigest = 1 << 0
)

// HeaderPacket carries the contents of a header packet of the paper's section
// 3.3.2: the route, the TLP header, the CRC of the TLP and the CRC of the packet.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------+---------------+-------------------------------+
//	|  kind = 0x01  | TLP header DW |        payload length         |  0
//	+---------------+---------------+-------------------------------+
//	|                     TLP sequence number                       |  4
//	|                                                               |  8
//	+---------------------------------------------------------------+
//	|                          source node                          | 12
//	+-------------------------------+-------------------------------+
//	|          source slot          |       destination slot        | 16
//	+-------------------------------+-------------------------------+
//	|                       destination node                        | 20
//	+---------------+---------------+-------------------------------+
//	|    path ID    |  flags (D)    |           reserved            | 24
//	+---------------+---------------+-------------------------------+
//	|             TLP CRC, in packets of the form Checked           | 28
//	+---------------------------------------------------------------+
//	|        TLP prefixes and header, 12 to 48 bytes  ...           | 32
//	+---------------------------------------------------------------+
//	|                  TLP digest, if flag D is set                 |
//	+---------------------------------------------------------------+
//	|            packet CRC, in packets of the form Checked         |
//	+---------------------------------------------------------------+
//
// The packet CRC is CRC-32C over the bytes from 32 up to itself, continued over
// bytes 0 to 31. In this order the CRC of the TLP header is an intermediate value.
type HeaderPacket struct {
	Source, Destination Endpoint
	Path                uint8
	// Seq counts the TLPs of one direction of a session from 0.
	Seq uint64
	// PayloadLen is in bytes, a multiple of 4, at most MaxPayload.
	PayloadLen int
	// TLP holds prefixes, header and, with Digest, the 4 bytes of the digest.
	// It aliases the buffer given to Parse.
	TLP    []byte
	Digest bool
	// TLPCRC is the result of function TLPCRC. Only Checked packets have it.
	TLPCRC uint32
	// HeaderCRC is the CRC-32C of TLP. The caller of Append sets it, as it was
	// needed for TLPCRC; Parse sets it, if the packet is Checked.
	HeaderCRC uint32
}

// Size returns the number of bytes that Append appends.
func (p *HeaderPacket) Size(form Form) int { return HeaderPacketSize(len(p.TLP), form) }

// HeaderPacketSize returns the packet's size for n bytes of TLP header and digest.
func HeaderPacketSize(n int, form Form) int { return headerFixed + n + 2*form.crcSize() }

// Append appends the encoded packet to b. p.TLP, p.PayloadLen and p.HeaderCRC
// must be set as described at HeaderPacket.
func (p *HeaderPacket) Append(b []byte, form Form) []byte {
	start := len(b)
	hdr, flags := len(p.TLP), byte(0)
	if p.Digest {
		hdr, flags = hdr-DigestSize, flagDigest
	}
	b = append(b, byte(KindHeader), byte(hdr/4))
	b = binary.BigEndian.AppendUint16(b, uint16(p.PayloadLen))
	b = binary.BigEndian.AppendUint64(b, p.Seq)
	b = binary.BigEndian.AppendUint32(b, p.Source.Node)
	b = binary.BigEndian.AppendUint16(b, p.Source.Slot)
	b = binary.BigEndian.AppendUint16(b, p.Destination.Slot)
	b = binary.BigEndian.AppendUint32(b, p.Destination.Node)
	b = append(b, p.Path, flags, 0, 0)
	if form == Bare {
		return append(b, p.TLP...)
	}
	b = binary.BigEndian.AppendUint32(b, p.TLPCRC)
	crc := CRC(p.HeaderCRC, b[start:])
	b = append(b, p.TLP...)
	return binary.BigEndian.AppendUint32(b, crc)
}

// Parse reads the header packet at the start of b and returns its size. On
// error *p is the zero value.
func (p *HeaderPacket) Parse(b []byte, form Form) (n int, err error) {
	*p = HeaderPacket{}
	if len(b) < headerFixed {
		return 0, ErrShort
	}
	hdr, flags := int(b[1])*4, b[25]
	payload := int(binary.BigEndian.Uint16(b[2:]))
	if Kind(b[0]) != KindHeader || hdr < minTLPHeader || hdr > MaxTLPHeader ||
		payload > MaxPayload || payload%4 != 0 ||
		b[24] >= MaxPaths || flags&^flagDigest != 0 || b[26] != 0 || b[27] != 0 {
		return 0, ErrField
	}
	digest := flags&flagDigest != 0
	if digest {
		hdr += DigestSize
	}
	n = HeaderPacketSize(hdr, form)
	if len(b) < n {
		return 0, ErrShort
	}
	at := headerFixed + form.crcSize()
	tlp := b[at : at+hdr : at+hdr]
	if form == Checked {
		headerCRC := CRC(0, tlp)
		if CRC(headerCRC, b[:at]) != binary.BigEndian.Uint32(b[n-CRCSize:]) {
			return 0, ErrCRC
		}
		p.HeaderCRC, p.TLPCRC = headerCRC, binary.BigEndian.Uint32(b[headerFixed:])
	}
	p.Source = Endpoint{Node: binary.BigEndian.Uint32(b[12:]), Slot: binary.BigEndian.Uint16(b[16:])}
	p.Destination = Endpoint{Node: binary.BigEndian.Uint32(b[20:]), Slot: binary.BigEndian.Uint16(b[18:])}
	p.Path = b[24]
	p.Seq = binary.BigEndian.Uint64(b[4:])
	p.PayloadLen = payload
	p.TLP, p.Digest = tlp, digest
	return n, nil
}

// DataPacket carries a chunk of the payload of one TLP.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------+---------------+-------------------------------+
//	|  kind = 0x02  |   reserved    |         chunk length          |  0
//	+---------------+---------------+-------------------------------+
//	|                     TLP sequence number                       |  4
//	|                                                               |  8
//	+-------------------------------+-------------------------------+
//	|        chunk offset           |        payload length         | 12
//	+-------------------------------+-------------------------------+
//	|            packet CRC, in packets of the form Checked         | 16
//	+---------------------------------------------------------------+
//	|                           chunk ...                           |
//
// The packet CRC is CRC-32C over the chunk, continued over bytes 0 to 15.
type DataPacket struct {
	Seq uint64
	// Offset of the chunk in the payload is a multiple of Unit. The chunk
	// ends at a multiple of Unit or at PayloadLen.
	Offset     int
	PayloadLen int // of the whole TLP
	// Chunk aliases the buffer given to Parse.
	Chunk []byte
	// ChunkCRC is the CRC-32C of Chunk. Append needs it and Parse sets it, if the
	// packet is Checked.
	ChunkCRC uint32
}

// Size returns the number of bytes that Append appends.
func (p *DataPacket) Size(form Form) int { return DataPacketSize(len(p.Chunk), form) }

// DataPacketSize returns the size of a data packet with a chunk of n bytes.
func DataPacketSize(n int, form Form) int { return dataFixed + form.crcSize() + n }

// Append appends the encoded packet to b.
func (p *DataPacket) Append(b []byte, form Form) []byte {
	start := len(b)
	b = append(b, byte(KindData), 0)
	b = binary.BigEndian.AppendUint16(b, uint16(len(p.Chunk)))
	b = binary.BigEndian.AppendUint64(b, p.Seq)
	b = binary.BigEndian.AppendUint16(b, uint16(p.Offset))
	b = binary.BigEndian.AppendUint16(b, uint16(p.PayloadLen))
	if form == Checked {
		b = binary.BigEndian.AppendUint32(b, CRC(p.ChunkCRC, b[start:]))
	}
	return append(b, p.Chunk...)
}

// Parse reads the data packet at the start of b and returns its size. On
// error *p is the zero value.
func (p *DataPacket) Parse(b []byte, form Form) (n int, err error) {
	*p = DataPacket{}
	if len(b) < dataFixed {
		return 0, ErrShort
	}
	size := int(binary.BigEndian.Uint16(b[2:]))
	offset := int(binary.BigEndian.Uint16(b[12:]))
	payload := int(binary.BigEndian.Uint16(b[14:]))
	if Kind(b[0]) != KindData || b[1] != 0 || payload > MaxPayload || payload%4 != 0 ||
		size == 0 || offset%Unit != 0 || offset+size > payload ||
		size%Unit != 0 && offset+size != payload {
		return 0, ErrField
	}
	n = DataPacketSize(size, form)
	if len(b) < n {
		return 0, ErrShort
	}
	chunk := b[n-size : n : n]
	if form == Checked {
		crc := CRC(0, chunk)
		if CRC(crc, b[:dataFixed]) != binary.BigEndian.Uint32(b[dataFixed:]) {
			return 0, ErrCRC
		}
		p.ChunkCRC = crc
	}
	p.Seq = binary.BigEndian.Uint64(b[4:])
	p.Offset, p.PayloadLen = offset, payload
	p.Chunk = chunk
	return n, nil
}
