package tlp_test

import (
	"encoding/binary"
	"testing"

	"pgregory.net/rapid"

	"github.com/dxpu-project/dxpu/tlp"
)

// crcBits is a literal implementation of the CRC of section 2.7.1 (the same as
// that of 3.6.3): a register of 32 bits whose bit 31 is the highest power.
//
// "The polynomial used has coefficients expressed as 04C1 1DB7h. The seed value
// (initial value for ECRC storage registers) is FFFF FFFFh. ECRC calculation
// starts with bit 0 of byte 0 and proceeds from bit 0 to bit 7 of each byte of
// the TLP. The result of the ECRC calculation is complemented, and the
// complemented result bits are mapped into the 32-bit TLP Digest field":
// result bit 0 to digest bit 7, 1 to 6, and so on, 7 to 0, 8 to 15, ...
func crcBits(b []byte) uint32 {
	register := uint32(0xffffffff)
	for _, octet := range b {
		for i := range 8 {
			feedback := register>>31 ^ uint32(octet>>i)&1
			register <<= 1
			if feedback != 0 {
				register ^= 0x04c11db7
			}
		}
	}
	var digest uint32
	for i := range 32 {
		position := i/8*8 + 7 - i%8
		digest |= (^register >> i & 1) << position
	}
	return digest
}

// ecrcBits sets the variant bits first: "Bit 0 of the Type field in a TLP
// header is variant. The EP bit is variant. All bits in variant fields must be
// set to 1b for ECRC calculations."
func ecrcBits(headerAndData []byte) uint32 {
	b := append([]byte(nil), headerAndData...)
	b[0] |= 1 << 0
	b[2] |= 1 << 6
	return crcBits(b)
}

// The LCRC is computed and mapped in the same way, so a published LCRC verifies
// bit and byte order: Antmicro's warp-pipe has C7 79 BB D1 for
// sequence number 0 and a header of zeros.
func TestReferenceAgainstPublishedLCRC(t *testing.T) {
	got := binary.BigEndian.AppendUint32(nil, crcBits(make([]byte, 14)))
	if want := []byte{0xc7, 0x79, 0xbb, 0xd1}; string(got) != string(want) {
		t.Errorf("CRC of 14 zero bytes is % x on the wire, want % x", got, want)
	}
}

func TestECRCMatchesTheSpecification(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		data := rapid.SliceOfN(rapid.Byte(), 0, 64).Draw(t, "data")
		data = data[:len(data)&^3]
		p := tlp.Packet{Type: tlp.MRd, Length: 16, FirstBE: 15, LastBE: 15}
		if len(data) > 0 {
			p = tlp.Packet{Type: tlp.CplD, Length: uint16(len(data) / 4), ByteCount: 64, Data: data}
		}
		p.EP = rapid.Bool().Draw(t, "poisoned")
		p.Requester = 0x1234
		p.HasDigest = true
		covered := p.Append(nil)
		covered = covered[:len(covered)-tlp.DigestSize]
		want := ecrcBits(covered)
		p.SetECRC()
		if p.Digest != want || tlp.ECRC(covered) != want {
			t.Fatalf("SetECRC %08x, ECRC %08x, want %08x", p.Digest, tlp.ECRC(covered), want)
		}
	})
}

func TestECRCCoverage(t *testing.T) {
	base := func() tlp.Packet {
		p := tlp.Packet{Type: tlp.CfgRd1, Length: 1, FirstBE: 15, Target: 0x300}
		p.SetECRC()
		return p
	}
	for _, c := range []struct {
		name string
		edit func(*tlp.Packet)
		ok   bool
	}{
		{"unchanged", func(*tlp.Packet) {}, true},
		{"type 1 turned into type 0 by the last switch", func(p *tlp.Packet) { p.Type = tlp.CfgRd0 }, true},
		{"poisoned on the way", func(p *tlp.Packet) { p.EP = true }, true},
		{"local prefix added on the way", func(p *tlp.Packet) { p.Prefix = []byte{0x8e, 0, 0, 0} }, true},
		{"end-to-end prefix added on the way", func(p *tlp.Packet) { p.Prefix = []byte{0x91, 0, 0, 0} }, false},
		{"target changed", func(p *tlp.Packet) { p.Target++ }, false},
		{"reserved bit changed", func(p *tlp.Packet) { p.Reserved = 1 }, false},
		{"digest changed", func(p *tlp.Packet) { p.Digest ^= 1 << 31 }, false},
		{"without digest", func(p *tlp.Packet) { p.HasDigest, p.Digest = false, 0 }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := base()
			c.edit(&p)
			if got := p.CheckECRC(); got != c.ok {
				t.Errorf("CheckECRC = %v, want %v", got, c.ok)
			}
		})
	}
	for n := range tlp.Header3DW {
		if got := tlp.ECRC(make([]byte, n)); got != 0 {
			t.Errorf("ECRC of %d bytes = %#x, want 0", n, got)
		}
	}
}
