package tlp

import (
	"encoding/binary"
	"hash/crc32"
	"math/bits"
)

// Variant bits may change on the way and count as 1 in the ECRC (section 2.7.1).
const (
	variantType = 0x01 // Type[0] in byte 0 of the header
	variantEP   = 0x40 // EP in byte 2
)

// ECRC returns the digest of one packet: b holds its prefixes, header and
// payload without the digest itself. Local prefixes do not count. The result has
// the form of Packet.Digest: the wire carries it big-endian. ECRC returns 0 for
// bytes that are shorter than a header.
//
// Section 2.7.1 processes the bits of each byte from bit 0 on: that is the
// reflected CRC-32 of IEEE 802.3 with seed and complement of all ones. It maps
// result bit 31, the highest power, to bit 24 of the digest, and so on within each
// byte. The first byte on the wire is thus the low byte of the reflected register,
// hence the byte swap.
func ECRC(b []byte) uint32 {
	for len(b) >= PrefixSize && b[0]&(fmtMask|typeEndEnd) == fmtPrefix {
		b = b[PrefixSize:]
	}
	end := Header3DW
	for len(b) >= end && b[end-Header3DW]&fmtMask == fmtPrefix {
		end += PrefixSize
	}
	if len(b) < end {
		return 0
	}
	return bits.ReverseBytes32(crc32.Update(headerCRC(b[:end]), crc32.IEEETable, b[end:]))
}

// headerCRC returns the CRC of end-to-end prefixes and header with the variant
// bits set. It works byte by byte because a slice passed to hash/crc32 escapes to
// the heap.
func headerCRC(h []byte) uint32 {
	start := 0
	for start < len(h) && h[start]&fmtMask == fmtPrefix {
		start += PrefixSize
	}
	crc := ^uint32(0)
	for i, octet := range h {
		switch i - start {
		case 0:
			octet |= variantType
		case 2:
			octet |= variantEP
		}
		crc = crc32.IEEETable[uint8(crc)^octet] ^ crc>>8
	}
	return ^crc
}

// SetECRC sets HasDigest and computes Digest over the packet as Append would
// encode it. It does not allocate.
func (p *Packet) SetECRC() {
	p.HasDigest = true
	p.Digest = p.ecrc()
}

// CheckECRC reports whether the digest is correct; without one it returns true.
func (p *Packet) CheckECRC() bool { return !p.HasDigest || p.Digest == p.ecrc() }

func (p *Packet) ecrc() uint32 {
	var buf [MaxHeader]byte
	header := p.AppendHeader(buf[:0])
	for len(header) > PrefixSize && header[0]&(fmtMask|typeEndEnd) == fmtPrefix {
		header = header[PrefixSize:]
	}
	crc := headerCRC(header)
	if p.Type.HasData() {
		crc = crc32.Update(crc, crc32.IEEETable, p.Data)
	}
	return bits.ReverseBytes32(crc)
}

// AppendDigest appends the digest if HasDigest is set.
func (p *Packet) AppendDigest(b []byte) []byte {
	if !p.HasDigest {
		return b
	}
	return binary.BigEndian.AppendUint32(b, p.Digest)
}
