package frame_test

import (
	"bytes"
	_ "embed"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dxpu-project/dxpu/frame"
)

// codec lets one table test every parser: parse returns the parsed packet, encoded
// again, and its size.
type codec struct {
	name   string
	encode []byte
	parse  parser
}

type parser func(b []byte) (again []byte, n int, err error)

func headerPacket(tlp string, digest bool, payload int) *frame.HeaderPacket {
	b, _ := hex.DecodeString(tlp)
	p := &frame.HeaderPacket{
		Source: frame.Endpoint{Node: 0x01020304, Slot: 0x0506}, Destination: frame.Endpoint{Node: 0x0708090a, Slot: 0x0b0c},
		Path: 1, Seq: 0x1122334455667788, PayloadLen: payload, TLP: b, Digest: digest,
	}
	p.HeaderCRC = frame.CRC(0, b)
	p.TLPCRC = frame.TLPCRC(p.HeaderCRC, 0xcafef00d, payload)
	return p
}

func parseHeader(b []byte) ([]byte, int, error) {
	h, n, err := frame.ParseHeader(b)
	return h.Append(nil), n, err
}

func parseHeaderPacket(form frame.Form) parser {
	return func(b []byte) ([]byte, int, error) {
		var p frame.HeaderPacket
		n, err := p.Parse(b, form)
		return p.Append(nil, form), n, err
	}
}

func parseData(form frame.Form) parser {
	return func(b []byte) ([]byte, int, error) {
		var p frame.DataPacket
		n, err := p.Parse(b, form)
		return p.Append(nil, form), n, err
	}
}

func parseRun(form frame.Form) parser {
	return func(b []byte) ([]byte, int, error) {
		var p frame.RunPacket
		n, err := p.Parse(b, form)
		return append(p.Append(nil, form), p.Payload...), n, err
	}
}

// runPacket returns a run of three TLPs with payloads of 64 bytes.
func runPacket(form frame.Form) []byte {
	header, _ := hex.DecodeString("6000001001002aff0000000100001000")
	p := frame.RunPacket{
		Source: frame.Endpoint{Node: 0x01020304, Slot: 0x0506}, Destination: frame.Endpoint{Node: 0x0708090a, Slot: 0x0b0c},
		Path: 1, Seq: 0x1122334455667788, Count: 3, PayloadLen: 64, TLP: header, HeaderCRC: frame.CRC(0, header),
	}
	var payloads []byte
	for k := range p.Count {
		one := chunk(64)
		for i := range one {
			one[i] += byte(7 * k)
		}
		payloads = append(payloads, one...)
		if form == frame.Checked {
			p.CRCs = binary.BigEndian.AppendUint32(p.CRCs, frame.CRC(0, one))
		}
	}
	return append(p.Append(nil, form), payloads...)
}

// readRun returns a run of two memory reads of a page.
func readRun(form frame.Form) []byte {
	header, _ := hex.DecodeString("2000000001002aff0000000100001000")
	p := frame.RunPacket{
		Source: frame.Endpoint{Node: 0x01020304, Slot: 0x0506}, Destination: frame.Endpoint{Node: 0x0708090a, Slot: 0x0b0c},
		Path: 1, Seq: 0x1122334455667798, Count: 2, TLP: header, HeaderCRC: frame.CRC(0, header),
	}
	return p.Append(nil, form)
}

func parseAck(form frame.Form) parser {
	return func(b []byte) ([]byte, int, error) {
		var a frame.Ack
		n, err := a.Parse(b, form)
		if err != nil {
			return nil, n, err
		}
		return a.Append(nil, form), n, nil
	}
}

func parsePing(form frame.Form) parser {
	return func(b []byte) ([]byte, int, error) {
		n, err := frame.ParsePing(b, form)
		return frame.AppendPing(nil, form), n, err
	}
}

func parseClose(form frame.Form) parser {
	return func(b []byte) ([]byte, int, error) {
		reason, n, err := frame.ParseClose(b, form)
		return frame.AppendClose(nil, reason, form), n, err
	}
}

func parseHello(b []byte) ([]byte, int, error) {
	h, n, err := frame.ParseHello(b, frame.Version1)
	return h.Append(nil, frame.Version1), n, err
}

func parseHello2(b []byte) ([]byte, int, error) {
	h, n, err := frame.ParseHello(b, frame.Version2)
	return h.Append(nil, frame.Version2), n, err
}

func chunk(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}

//go:embed testdata/golden.txt
var goldenText string

// golden returns the bytes of testdata/golden.txt by name. The test of the
// Wireshark dissector also reads them.
func golden() map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(goldenText) {
		if name, hex, ok := strings.Cut(strings.TrimSpace(line), ": "); ok && line[0] != '#' {
			out[name] = hex
		}
	}
	return out
}

func codecs() []codec {
	traffic := frame.Header{Version: frame.Version1, Type: frame.TypeTraffic, KeyPhase: 3, Path: 1, Binding: 0xa0b0c0d0, Epoch: 7, Number: 0x0102030405060708}
	hello := traffic
	hello.Type, hello.KeyPhase, hello.Initiator, hello.Responder = frame.TypeHelloAck, 0, 0x1111111111111111, 0x2222222222222222
	last := chunk(12)
	data := frame.DataPacket{Seq: 9, Offset: 64, PayloadLen: 76, Chunk: last, ChunkCRC: frame.CRC(0, last)}
	ack := frame.Ack{Path: 1, Delay: 1500, Limit: 1 << 22, Count: 3}
	ack.Ranges[0] = frame.Range{First: 95, Last: 100}
	ack.Ranges[1] = frame.Range{First: 90, Last: 93}
	ack.Ranges[2] = frame.Range{First: 0, Last: 5}
	marks := ack
	marks.Marked = 200
	greet := frame.Hello{
		Cipher: 1, Source: frame.Endpoint{Node: 1, Slot: 2}, Destination: frame.Endpoint{Node: 3, Slot: 4},
		Limit: 1 << 22, Echo: 5,
	}
	traffic2, hello2 := traffic, hello
	traffic2.Version, hello2.Version = frame.Version2, frame.Version2
	hello2.Cookie = [16]byte(chunk(16))
	cookie := hello2
	cookie.Type, cookie.Responder = frame.TypeCookie, 0
	greet2 := greet
	greet2.Highest, greet2.Public, greet2.Proof = frame.Version2, [32]byte(chunk(32)), [16]byte(chunk(16))
	out := []codec{
		{"datagram traffic", traffic.Append(nil), parseHeader},
		{"datagram handshake", hello.Append(nil), parseHeader},
		{"hello", greet.Append(nil, frame.Version1), parseHello},
		{"datagram traffic, version 2", traffic2.Append(nil), parseHeader},
		{"datagram handshake, version 2", hello2.Append(nil), parseHeader},
		{"datagram cookie, version 2", cookie.Append(nil), parseHeader},
		{"hello, version 2", greet2.Append(nil, frame.Version2), parseHello2},
	}
	for form, suffix := range []string{frame.Checked: "", frame.Bare: bareSuffix} {
		f := frame.Form(form)
		out = append(
			out,
			codec{"header packet, memory read" + suffix, headerPacket("000000010100070f00001000", false, 0).Append(nil, f), parseHeaderPacket(f)},
			codec{"header packet, write with digest" + suffix, headerPacket("60008001010000ff00000100000000001badcafe", true, 4).Append(nil, f), parseHeaderPacket(f)},
			codec{"data packet" + suffix, data.Append(nil, f), parseData(f)},
			codec{"run packet" + suffix, runPacket(f), parseRun(f)},
			codec{"run packet, memory reads" + suffix, readRun(f), parseRun(f)},
			codec{"acknowledgement" + suffix, ack.Append(nil, f), parseAck(f)},
			codec{"acknowledgement with marks" + suffix, marks.Append(nil, f), parseAck(f)},
			codec{"ping" + suffix, frame.AppendPing(nil, f), parsePing(f)},
			codec{"close" + suffix, frame.AppendClose(nil, 0x1234, f), parseClose(f)},
		)
	}
	return out
}

// bareSuffix ends the names of the packets of the form Bare.
const bareSuffix = ", sealed body of version 2"

func TestGolden(t *testing.T) {
	golden := golden()
	for _, c := range codecs() {
		t.Run(c.name, func(t *testing.T) {
			if got := hex.EncodeToString(c.encode); got != golden[c.name] {
				t.Errorf("encoded %s, want %s", got, golden[c.name])
			}
			again, n, err := c.parse(append(bytes.Clone(c.encode), 0xee))
			if err != nil || n != len(c.encode) || !bytes.Equal(again, c.encode) {
				t.Errorf("parsed %d of %d bytes to %x: %v", n, len(c.encode), again, err)
			}
		})
	}
}

func TestTruncatedAtEveryLength(t *testing.T) {
	for _, c := range codecs() {
		t.Run(c.name, func(t *testing.T) {
			for n := range c.encode {
				if _, _, err := c.parse(c.encode[:n:n]); !errors.Is(err, frame.ErrShort) {
					t.Errorf("%d of %d bytes: %v, want %v", n, len(c.encode), err, frame.ErrShort)
				}
			}
		})
	}
}

// The parsers refuse a packet with any single bit flipped.
func TestEveryBitIsProtected(t *testing.T) {
	for _, c := range codecs() {
		if strings.HasPrefix(c.name, "datagram") || strings.HasSuffix(c.name, "version 2") {
			continue // protected by the trailer
		}
		t.Run(c.name, func(t *testing.T) {
			for bit := range 8 * len(c.encode) {
				b := bytes.Clone(c.encode)
				b[bit/8] ^= 1 << (bit % 8)
				if _, _, err := c.parse(append(b, make([]byte, 4096)...)); err == nil {
					t.Errorf("bit %d flipped: accepted", bit)
				}
			}
		})
	}
}

func TestFieldsAreReadBack(t *testing.T) {
	want := headerPacket("60008001010000ff00000100000000001badcafe", true, 4)
	var got frame.HeaderPacket
	if _, err := got.Parse(want.Append(nil, frame.Checked), frame.Checked); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(*want, got); diff != "" {
		t.Error(diff)
	}
	data := frame.DataPacket{Seq: 9, Offset: 4032, PayloadLen: 4096, Chunk: chunk(64)}
	data.ChunkCRC = frame.CRC(0, data.Chunk)
	var gotData frame.DataPacket
	if _, err := gotData.Parse(data.Append(nil, frame.Checked), frame.Checked); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(data, gotData); diff != "" {
		t.Error(diff)
	}
	hello := frame.Hello{Cipher: 1, Source: frame.Endpoint{Node: 1, Slot: 2}, Destination: frame.Endpoint{Node: 3, Slot: 4}, Limit: 5, Echo: 6}
	if got, _, err := frame.ParseHello(hello.Append(nil, frame.Version1), frame.Version1); err != nil || got != hello {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestDataPacketBounds(t *testing.T) {
	for _, tc := range []struct {
		name                  string
		offset, size, payload int
		ok                    bool
	}{
		{"whole", 0, 4096, 4096, true},
		{"one double word", 0, 4, 4, true},
		{"middle", 64, 128, 4096, true},
		{"tail", 64, 12, 76, true},
		{"empty chunk", 0, 0, 64, false},
		{"offset not a unit", 4, 64, 4096, false},
		{"end not a unit", 64, 60, 4096, false},
		{"beyond the payload", 64, 64, 124, false},
		{"payload too long", 0, 64, 4100, false},
		{"payload not double words", 0, 63, 63, false},
		{"offset at the end", 64, 4, 64, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := frame.DataPacket{Offset: tc.offset, PayloadLen: tc.payload, Chunk: chunk(tc.size)}
			p.ChunkCRC = frame.CRC(0, p.Chunk)
			b := p.Append(nil, frame.Checked)
			if _, err := p.Parse(b, frame.Checked); (err == nil) != tc.ok {
				t.Errorf("error %v, want ok %v", err, tc.ok)
			}
		})
	}
}

// The sizes in a run packet are checked before anything is read by them.
func TestRunPacketBounds(t *testing.T) {
	for _, tc := range []struct {
		name                   string
		header, payload, count int
		flags                  byte
		want                   error
	}{
		{"least", 12, 64, 2, 0, nil},
		{"large", 16, 4096, 15, 0, nil},
		{"many", 16, 64, frame.MaxRun, 0, nil},
		{"one TLP", 16, 64, 1, 0, frame.ErrField},
		{"no TLP", 16, 64, 0, 0, frame.ErrField},
		{"too many", 16, 64, frame.MaxRun + 1, 0, frame.ErrField},
		{"no payload", 16, 0, 2, 0, nil},
		{"many without payload", 12, 0, frame.MaxRun, 0, nil},
		{"one without payload", 16, 0, 1, 0, frame.ErrField},
		{"too many without payload", 16, 0, frame.MaxRun + 1, 0, frame.ErrField},
		{"small payload", 16, 60, 2, 0, frame.ErrField},
		{"large payload", 16, 4100, 2, 0, frame.ErrField},
		{"payload not double words", 16, 66, 2, 0, frame.ErrField},
		{"short header", 8, 64, 2, 0, frame.ErrField},
		{"header with a prefix", 20, 64, 2, 0, frame.ErrField},
		{"reserved flag", 16, 64, 2, 1, frame.ErrField},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := frame.RunPacket{Count: tc.count, PayloadLen: tc.payload, TLP: make([]byte, tc.header)}
			b := p.Append(nil, frame.Bare)
			b[25] = tc.flags
			b = append(b, make([]byte, tc.count*tc.payload)...)
			n, err := p.Parse(b, frame.Bare)
			if !errors.Is(err, tc.want) || err == nil && n != len(b) {
				t.Errorf("%d of %d bytes, %v; want %v", n, len(b), err, tc.want)
			}
			if _, err := p.Parse(b[:len(b)-1], frame.Bare); err == nil {
				t.Error("accepted without its last byte")
			}
		})
	}
}

func TestAckRangesAtTheirLimits(t *testing.T) {
	full := frame.Ack{Count: frame.MaxAckRanges, Delay: time.Hour}
	for i := range full.Ranges {
		n := uint64(1000 - 10*i)
		full.Ranges[i] = frame.Range{First: n - 3, Last: n}
	}
	var got frame.Ack
	b := full.Append(nil, frame.Checked)
	if n, err := got.Parse(b, frame.Checked); err != nil || n != full.Size(frame.Checked) || len(b) != n {
		t.Fatalf("%d of %d bytes: %v", n, len(b), err)
	}
	if got.Ranges != full.Ranges || got.Delay != math.MaxUint32 {
		t.Errorf("got %v, delay %v", got.Ranges, got.Delay)
	}
	far := frame.Ack{Count: 2}
	far.Ranges[0] = frame.Range{First: math.MaxUint64, Last: math.MaxUint64}
	far.Ranges[1] = frame.Range{First: 0, Last: 1}
	if _, err := got.Parse(far.Append(nil, frame.Checked), frame.Checked); err != nil || got.Count != 1 {
		t.Errorf("a gap that does not fit: %d ranges, %v", got.Count, err)
	}
}

func TestPeekBinding(t *testing.T) {
	h := frame.Header{Version: frame.Version1, Type: frame.TypeTraffic, Binding: 77}
	b := h.Append(nil)
	if id, ok := frame.PeekBinding(b); !ok || id != 77 {
		t.Errorf("got %d, %v", id, ok)
	}
	if _, ok := frame.PeekBinding(b[:frame.HeaderSize-1]); ok {
		t.Error("a truncated header has a binding")
	}
	b[0] = 0x35
	if _, ok := frame.PeekBinding(b); ok {
		t.Error("another version has a binding")
	}
}

// CRC-32C of RFC 3720, appendix B.4.
func TestCRCVectors(t *testing.T) {
	for _, tc := range []struct {
		name string
		b    []byte
		want uint32
	}{
		{"32 zeros", make([]byte, 32), 0x8a9136aa},
		{"32 ones", bytes.Repeat([]byte{0xff}, 32), 0x62a8ab43},
		{"ascending", chunk(32), 0x46dd794e},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := frame.CRC(0, tc.b); got != tc.want {
				t.Errorf("got %#x, want %#x", got, tc.want)
			}
		})
	}
	if got, want := frame.TLPCRC(0x12345678, 0xa1b2c3d4, 4), frame.CRC(0x12345678, []byte{0xa1, 0xb2, 0xc3, 0xd4}); got != want {
		t.Errorf("TLP CRC %#x, want %#x", got, want)
	}
}

func FuzzParse(f *testing.F) {
	for _, c := range codecs() {
		f.Add(c.encode)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		parsers := []parser{parseHeader, parseHello, parseHello2}
		for _, form := range []frame.Form{frame.Checked, frame.Bare} {
			parsers = append(parsers, parseHeaderPacket(form), parseData(form), parseRun(form), parseAck(form), parsePing(form), parseClose(form))
		}
		for _, parse := range parsers {
			again, n, err := parse(b)
			if err != nil {
				if n != 0 {
					t.Fatalf("error %v with size %d", err, n)
				}
				continue
			}
			if n > len(b) || !bytes.Equal(again, b[:n]) {
				t.Fatalf("%x was read as %x", b[:n], again)
			}
		}
	})
}
