package tlp_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestGoldenRoundTrip(t *testing.T) {
	for _, c := range golden {
		t.Run(c.name, func(t *testing.T) {
			b := unhex(t, c.hex)
			p, n, err := tlp.Parse(b)
			if err != nil {
				t.Fatal(err)
			}
			if n != len(b) || p.Size() != n {
				t.Errorf("Parse took %d bytes and Size is %d, want %d", n, p.Size(), len(b))
			}
			if err := p.Validate(); err != nil {
				t.Errorf("Validate: %v", err)
			}
			if got := p.Append(nil); !bytes.Equal(got, b) {
				t.Errorf("Append\n got %x\nwant %x", got, b)
			}
			if !p.CheckECRC() {
				t.Error("CheckECRC failed")
			}
			// Header, payload and digest appended separately make the same packet.
			h := p.AppendHeader(nil)
			q, hn, err := tlp.ParseHeader(h)
			if err != nil || hn != len(h) {
				t.Fatalf("ParseHeader = %d, %v; want %d", hn, err, len(h))
			}
			q.Data, q.Digest = p.Data, p.Digest
			if diff := cmp.Diff(p, q); diff != "" {
				t.Errorf("ParseHeader differs (-Parse +ParseHeader):\n%s", diff)
			}
		})
	}
}

func TestGoldenTruncated(t *testing.T) {
	for _, c := range golden {
		b := unhex(t, c.hex)
		for n := range b {
			p, took, err := tlp.Parse(b[:n])
			if !errors.Is(err, tlp.ErrTruncated) || took != 0 || !reflect.ValueOf(p).IsZero() {
				t.Errorf("%s: Parse of %d of %d bytes = %+v, %d, %v; want ErrTruncated", c.name, n, len(b), p, took, err)
			}
		}
		if _, n, err := tlp.Parse(append(b, 0xff)); err != nil || n != len(b) {
			t.Errorf("%s: with another byte after it, Parse = %d, %v; want %d", c.name, n, err, len(b))
		}
	}
}

func TestParseFields(t *testing.T) {
	for _, c := range []struct {
		name string
		want tlp.Packet
	}{
		{"MRd32, 4096 bytes", tlp.Packet{Type: tlp.MRd, Length: 1024, Requester: 0x100, Tag: 0x1f, FirstBE: 15, LastBE: 15, Addr: 0x80001000}},
		{"MRd64, relaxed ordering, 10-bit tag", tlp.Packet{Type: tlp.MRd, DW4: true, Attr: tlp.RelaxedOrdering, Length: 32, Requester: 0x100, Tag: 0x3a5, FirstBE: 15, LastBE: 15, Addr: 0x123456789abc0}},
		{"MRd64 below 4 GiB", tlp.Packet{Type: tlp.MRd, DW4: true, Length: 2, Requester: 0x100, Tag: 5, FirstBE: 15, LastBE: 15, Addr: 0xfebf0000}},
		{"MRd32, steering tag in the byte enables", tlp.Packet{Type: tlp.MRd, TH: true, PH: 2, ST: 0xad, Length: 16, Requester: 0x100, Tag: 0x99, FirstBE: 15, LastBE: 15, Addr: 0x2000}},
		{"MRd64, translation request, no write", tlp.Packet{Type: tlp.MRd, DW4: true, AT: tlp.ATTranslationRequest, PH: 1, Length: 2, Requester: 0x100, Tag: 0x44, FirstBE: 15, LastBE: 15, Addr: 0x7f0000001000}},
		{"MWr64, all attributes, TC 5, poisoned", tlp.Packet{Type: tlp.MWr, DW4: true, TC: 5, Attr: 7, EP: true, Length: 4, Requester: 0x100, FirstBE: 15, LastBE: 15, Addr: 0x4000000100}},
		{"MWr64, translated, steering tag in the tag", tlp.Packet{Type: tlp.MWr, DW4: true, TH: true, PH: 3, ST: 0xc3, AT: tlp.ATTranslated, Length: 1, Requester: 0x100, FirstBE: 15, Addr: 0x4000000100}},
		{"CfgWr0, extended register", tlp.Packet{Type: tlp.CfgWr0, Length: 1, Tag: 8, FirstBE: 3, Target: pcie.NewBDF(2, 3, 1), Register: 0xabc}},
		{"Msg, vendor defined by ID", tlp.Packet{Type: tlp.Msg, DW4: true, Requester: 0x100, Code: tlp.CodeVendorType0, Routing: tlp.RouteByID, Target: 0x200, MsgHeader: [8]byte{0, 0, 0x10, 0xde, 1, 2, 3, 4}}},
		{"Msg, by address", tlp.Packet{Type: tlp.Msg, DW4: true, Requester: 0x100, Code: tlp.CodeVendorType1, Routing: tlp.RouteByAddress, Addr: 0x1122334455667_8}},
		{"Msg, LTR", tlp.Packet{Type: tlp.Msg, DW4: true, Requester: 0x100, Code: tlp.CodeLTR, Routing: tlp.RouteLocal, MsgHeader: [8]byte{4: 0x88, 0x64, 0x88, 0x64}}},
		{"Cpl, unsupported request", tlp.Packet{Type: tlp.Cpl, Completer: 0xfb, Status: pcie.UnsupportedRequest, ByteCount: 4, Requester: 0x100, Tag: 0x17}},
		{"CplD, 4096 bytes left, ordered by ID", tlp.Packet{Type: tlp.CplD, Attr: tlp.IDOrdering, Length: 16, Completer: 0xfb, ByteCount: 4096, Requester: 0x100, Tag: 0x155}},
		{"CplD, byte count modified", tlp.Packet{Type: tlp.CplD, TC: 7, Length: 32, Completer: 0xfb, BCM: true, ByteCount: 128, Requester: 0x100, Tag: 1}},
		{"CAS, 128 bits", tlp.Packet{Type: tlp.CAS, DW4: true, Length: 8, Requester: 0x100, Tag: 0x13, Addr: 0x100001010}},
		{"CfgRd0, reserved bits set", tlp.Packet{Type: tlp.CfgRd0, Length: 1, Tag: 7, FirstBE: 15, Target: 0x200, Register: 0x10, Reserved: 0xa3}},
		{"Cpl, reserved bits and length set", tlp.Packet{Type: tlp.Cpl, Length: 5, Completer: 0xfb, ByteCount: 4, Requester: 0x100, Tag: 0x17, Reserved: 0x80}},
		{"end-to-end prefix (PASID)", tlp.Packet{Type: tlp.MRd, DW4: true, Length: 32, Requester: 0x100, Tag: 0x3a5, FirstBE: 15, LastBE: 15, Addr: 0x123456789abc0, Prefix: []byte{0x91, 0x01, 0x23, 0x45}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, _, err := tlp.Parse(unhex(t, goldenHex(t, c.name)))
			if err != nil {
				t.Fatal(err)
			}
			got.Data = nil
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("Parse (-want +got):\n%s", diff)
			}
		})
	}
}

func goldenHex(t testing.TB, name string) string {
	t.Helper()
	for _, g := range golden {
		if g.name == name {
			return g.hex
		}
	}
	t.Fatalf("no golden packet %q", name)
	return ""
}

func TestParseMalformed(t *testing.T) {
	for _, c := range []struct{ name, hex, field string }{
		{"reserved type 3", "03000001 0100000f 00001000", "type"},
		{"reserved Fmt 5", "a0000001 0100000f 00001000", "type"},
		{"IORd with 4 DW", "22000001 01000001 00000000 000003f8", "type"},
		{"CfgRd0 with 4 DW", "24000001 0100000f 00000000 00000000", "type"},
		{"Msg with 3 DW", "14000000 01000020 00000000", "type"},
		{"FetchAdd without data", "0c000001 01000000 00001000", "type"},
		{"across 4 KiB", "00000002 010000ff 00000ffc", "length"},
		{"4096 bytes not at a page", "00000000 010000ff 00001004", "length"},
		{"last_be with length 1", "00000001 0100001f 00001000", "last_be"},
		{"no last_be with length 2", "00000002 0100000f 00001000", "last_be"},
		{"no first_be with length 2", "00000002 010000f0 00001000", "first_be"},
		{"first_be with a gap, not at 8", "00000002 010000f5 00001004", "first_be"},
		{"first_be not up to bit 3", "00000003 010000f7 00001000", "first_be"},
		{"last_be with a gap", "00000003 010000af 00001000", "last_be"},
		{"last_be not from bit 0", "00000003 010000ef 00001000", "last_be"},
		{"IORd of 2 DW", "02000002 01000001 000003f8", "length"},
		{"CfgRd0 with last_be", "04000001 0100001f 02000000", "last_be"},
		{"CfgRd0 in TC 1", "04100001 0100000f 02000000", "tc"},
		{"CfgRd0 with no snoop", "04001001 0100000f 02000000", "attr"},
		{"FetchAdd of 3 DW", "4c000003 01000000 00001000 000000000000000000000000", "length"},
		{"CAS of 3 DW", "4e000003 01000000 00001000 000000000000000000000000", "length"},
		{"Swap of 8 bytes at 4", "4d000002 01000000 00001004 0000000000000000", "addr"},
		{"CAS of 8 bytes at 4", "4e000004 01000000 00001004 00000000000000000000000000000000", "addr"},
		{"Assert_INTA in TC 1", "34100000 01000020 00000000 00000000", "tc"},
		{"slot power limit of 2 DW", "74000002 01000050 00000000 00000000 0000000000000000", "length"},
		{"local prefix behind end-to-end", "91000000 80000000 00000001 0100000f 00001000", "prefixes"},
		{"5 end-to-end prefixes", "91000000 91000000 91000000 91000000 91000000 00000001 0100000f 00001000", "prefixes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, n, err := tlp.Parse(unhex(t, c.hex))
			var bad *tlp.MalformedError
			if !errors.As(err, &bad) || bad.Field != c.field {
				t.Errorf("error %v, want a malformed %s", err, c.field)
			}
			if n != 0 || !reflect.ValueOf(p).IsZero() {
				t.Errorf("Parse = %+v, %d with an error", p, n)
			}
		})
	}
}

func TestValidate(t *testing.T) {
	read := tlp.Packet{Type: tlp.MRd, Length: 1, FirstBE: 15, Addr: 0x1000}
	cpl := tlp.Packet{Type: tlp.Cpl, ByteCount: 4}
	for _, c := range []struct {
		name string
		base tlp.Packet
		edit func(*tlp.Packet)
		want string // in the error; "" for a valid packet
	}{
		{"a read", read, func(*tlp.Packet) {}, ""},
		{"no type", read, func(p *tlp.Packet) { p.Type = tlp.Invalid }, "type"},
		{"tc", read, func(p *tlp.Packet) { p.TC = 8 }, "tc"},
		{"tag 1023", read, func(p *tlp.Packet) { p.Tag = 1023 }, ""},
		{"tag 1024", read, func(p *tlp.Packet) { p.Tag = 1024 }, "tag"},
		{"length 0", read, func(p *tlp.Packet) { p.Length = 0 }, "length"},
		{"length 1025", read, func(p *tlp.Packet) { p.Length = 1025 }, "length"},
		{"unaligned", read, func(p *tlp.Packet) { p.Addr = 0x1002 }, "addr"},
		{"64-bit address in 3 DW", read, func(p *tlp.Packet) { p.Addr = 1 << 32 }, "addr"},
		{"64-bit address in 4 DW", read, func(p *tlp.Packet) { p.SetAddr(1 << 32) }, ""},
		{"data in a read", read, func(p *tlp.Packet) { p.Data = make([]byte, 4) }, "data"},
		{"write without data", read, func(p *tlp.Packet) { p.Type = tlp.MWr }, "data"},
		{"steering tag without th", read, func(p *tlp.Packet) { p.ST = 1 }, "st"},
		{"steering tag with half the bytes", read, func(p *tlp.Packet) { p.TH, p.ST, p.FirstBE = true, 1, 3 }, "first_be"},
		{"status of a request", read, func(p *tlp.Packet) { p.Status = 1 }, "status"},
		{"digest without has_digest", read, func(p *tlp.Packet) { p.Digest = 1 }, "digest"},
		{"prefix of 3 bytes", read, func(p *tlp.Packet) { p.Prefix = []byte{0x91, 0, 0} }, "prefixes"},
		{"header as prefix", read, func(p *tlp.Packet) { p.Prefix = []byte{0, 0, 0, 0} }, "prefixes"},
		{"prefix", read, func(p *tlp.Packet) { p.Prefix = []byte{0x91, 0, 0, 0} }, ""},
		{"completion", cpl, func(*tlp.Packet) {}, ""},
		{"byte count 0", cpl, func(p *tlp.Packet) { p.ByteCount = 0 }, "byte_count"},
		{"byte count 4096", cpl, func(p *tlp.Packet) { p.ByteCount = 4096 }, ""},
		{"byte count 4097", cpl, func(p *tlp.Packet) { p.ByteCount = 4097 }, "byte_count"},
		{"lower address 128", cpl, func(p *tlp.Packet) { p.LowerAddr = 128 }, "lower_addr"},
		{"4 DW completion", cpl, func(p *tlp.Packet) { p.DW4 = true }, "dw4"},
		{"address of a completion", cpl, func(p *tlp.Packet) { p.Addr = 4 }, "addr"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := c.base
			c.edit(&p)
			err := p.Validate()
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("Validate = %v, want %q", err, c.want)
			}
		})
	}
}

func TestHotPathDoesNotAllocate(t *testing.T) {
	b := unhex(t, goldenHex(t, "MWr64, all attributes, TC 5, poisoned"))
	buf := make([]byte, 0, tlp.MaxSize)
	bad := bytes.Repeat([]byte{0xff}, 16)
	var p tlp.Packet
	for name, f := range map[string]func(){
		"Decode":       func() { _, _ = p.Decode(b) },
		"DecodeHeader": func() { _, _ = p.DecodeHeader(b) },
		"Append":       func() { buf = p.Append(buf[:0]) },
		"AppendHeader": func() { buf = p.AppendHeader(buf[:0]) },
		"SetECRC":      func() { p.SetECRC() },
		"malformed":    func() { _, _ = p.Decode(bad) },
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, c := range golden {
		f.Add(unhex(f, c.hex))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p, n, err := tlp.Parse(b)
		if (err != nil) != reflect.ValueOf(p).IsZero() || (err != nil) != (n == 0) {
			t.Fatalf("Parse = %+v, %d, %v", p, n, err)
		}
		if err != nil {
			return
		}
		if err := p.Validate(); err != nil {
			t.Fatalf("parsed packet is not valid: %v: %+v", err, p)
		}
		if got := p.Append(nil); !bytes.Equal(got, b[:n]) {
			t.Fatalf("round trip\n got %x\nwant %x", got, b[:n])
		}
	})
}

func BenchmarkDecodeHeader(b *testing.B) {
	h := unhex(b, goldenHex(b, "MRd64, relaxed ordering, 10-bit tag"))
	var p tlp.Packet
	for b.Loop() {
		if _, err := p.DecodeHeader(h); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAppendHeader(b *testing.B) {
	p, _, err := tlp.Parse(unhex(b, goldenHex(b, "MRd64, relaxed ordering, 10-bit tag")))
	if err != nil {
		b.Fatal(err)
	}
	buf := make([]byte, 0, tlp.MaxHeader)
	for b.Loop() {
		buf = p.AppendHeader(buf[:0])
	}
}

func BenchmarkECRC256(b *testing.B) {
	p := tlp.Packet{Type: tlp.MWr, Length: 64, FirstBE: 15, LastBE: 15, Data: make([]byte, 256)}
	b.SetBytes(256)
	for b.Loop() {
		p.SetECRC()
	}
}
