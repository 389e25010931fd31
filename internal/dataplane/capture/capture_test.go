package capture_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dxpu-project/dxpu/frame"
	"github.com/dxpu-project/dxpu/internal/dataplane/capture"
	"github.com/dxpu-project/dxpu/internal/dataplane/capture/pcapng"
	"github.com/dxpu-project/dxpu/tlp"
)

var header = capture.Header{
	Received: true, Binding: 0xa0b0c0d0, Epoch: 7,
	Source: frame.Endpoint{Node: 0x01020304, Slot: 0x0506}, Destination: frame.Endpoint{Node: 0x0708090a, Slot: 0x0b0c},
}

func TestHeaderGolden(t *testing.T) {
	const want = "01010000a0b0c0d0000000070102030405060b0c0708090a"
	b := header.Append(nil)
	if got := hex.EncodeToString(b); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if h, n, err := capture.ParseHeader(b); err != nil || n != capture.HeaderSize || h != header {
		t.Errorf("%+v, %d, %v", h, n, err)
	}
	for n := range b {
		if _, _, err := capture.ParseHeader(b[:n]); !errors.Is(err, capture.ErrShort) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	b[0] = 2
	if _, _, err := capture.ParseHeader(b); !errors.Is(err, capture.ErrVersion) {
		t.Errorf("another version: %v", err)
	}
}

// record is a packet of a capture, without the header of a record.
type record struct {
	Data          string
	Length        int
	Dropped, Time uint64
}

// run streams a session into memory, with what put puts in before its end.
func run(t *testing.T, o capture.Options, put func(*capture.Session)) (types []pcapng.BlockType, records []record) {
	t.Helper()
	s := capture.NewSession(o)
	ctx, stop := context.WithCancel(t.Context())
	var out bytes.Buffer
	flushed := 0
	err := s.Stream(ctx, &out, func() {
		if flushed++; flushed == 1 {
			put(s)
			stop()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	for {
		typ, block, err := pcapng.ReadBlock(&out, nil)
		if errors.Is(err, io.EOF) {
			return types, records
		}
		if err != nil {
			t.Fatal(err)
		}
		types = append(types, typ)
		if typ != pcapng.BlockPacket {
			continue
		}
		var p pcapng.Packet
		if err := p.Parse(block); err != nil {
			t.Fatal(err)
		}
		records = append(records, record{
			hex.EncodeToString(p.Data[capture.HeaderSize:]), p.Length - capture.HeaderSize, p.Dropped, p.Time,
		})
	}
}

func read(tag uint16) *tlp.Packet {
	return &tlp.Packet{Type: tlp.MRd, Length: 1, FirstBE: 0xf, Addr: 0x1000 + uint64(tag)<<4}
}

func TestStream(t *testing.T) {
	slot, other, binding := uint16(0x0b0c), uint16(1), uint32(9)
	whole := &tlp.Packet{Type: tlp.MWr, Length: 2, FirstBE: 0xf, LastBE: 0xf, Addr: 0x20, Data: []byte{1, 2, 3, 4, 5, 6, 7, 8}, HasDigest: true}
	one := func(p *tlp.Packet) func(*capture.Session) {
		return func(s *capture.Session) { s.TLP(5, &header, p) }
	}
	const wholeHex = "40008002000000ff00000020010203040506070800000000"
	for _, tc := range []struct {
		name string
		opts capture.Options
		put  func(*capture.Session)
		want []record
	}{
		{"a request", capture.Options{}, one(read(0)), []record{{"000000010000000f00001000", 12, 0, 5}}},
		{"with payload and digest", capture.Options{}, one(whole), []record{{wholeHex, 24, 0, 5}}},
		{"cut in the header", capture.Options{SnapLen: 4}, one(whole), []record{{wholeHex[:8], 24, 0, 5}}},
		{"cut in the payload", capture.Options{SnapLen: 14}, one(whole), []record{{wholeHex[:28], 24, 0, 5}}},
		{"cut before the digest", capture.Options{SnapLen: 20}, one(whole), []record{{wholeHex[:40], 24, 0, 5}}},
		{"of the slot", capture.Options{Slot: &slot}, one(read(0)), []record{{"000000010000000f00001000", 12, 0, 5}}},
		{"of another slot", capture.Options{Slot: &other}, one(read(0)), nil},
		{"of another binding", capture.Options{Binding: &binding}, one(read(0)), nil},
		{
			"too much",
			capture.Options{Buffer: 250},
			func(s *capture.Session) {
				for i := range 5 {
					s.TLP(uint64(i), &header, read(uint16(i)))
				}
			},
			[]record{{"000000010000000f00001000", 12, 0, 0}, {"000000010000000f00001010", 12, 0, 1}},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			types, got := run(t, tc.opts, tc.put)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
			want := []pcapng.BlockType{pcapng.BlockSection, pcapng.BlockInterface}
			for range tc.want {
				want = append(want, pcapng.BlockPacket)
			}
			if diff := cmp.Diff(append(want, pcapng.BlockStatistics), types); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Once there is room again, the next record tells how many are missing.
func TestDropsAreTold(t *testing.T) {
	s := capture.NewSession(capture.Options{Buffer: 140})
	r, w := io.Pipe()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- s.Stream(ctx, w, func() {})
		_ = w.Close()
	}()
	// begin waits until a block is being written, so that the buffer is empty.
	begin := func() io.Reader {
		var first [1]byte
		if _, err := io.ReadFull(r, first[:]); err != nil {
			t.Fatal(err)
		}
		return io.MultiReader(bytes.NewReader(first[:]), r)
	}
	next := func(r io.Reader, dropped uint64) {
		t.Helper()
		_, block, err := pcapng.ReadBlock(r, nil)
		var p pcapng.Packet
		if err == nil {
			err = p.Parse(block)
		}
		if err != nil || p.Dropped != dropped {
			t.Errorf("%d dropped, want %d: %v", p.Dropped, dropped, err)
		}
	}
	for range 2 { // section, interface
		if _, _, err := pcapng.ReadBlock(r, nil); err != nil {
			t.Fatal(err)
		}
	}
	put := func() { s.TLP(1, &header, read(0)) }
	put()
	block := begin()
	for range 4 { // one of them fits
		put()
	}
	next(block, 0)
	block = begin()
	put()
	next(block, 0)
	next(r, 3)
	stop()
	if typ, _, err := pcapng.ReadBlock(r, nil); typ != pcapng.BlockStatistics {
		t.Errorf("the stream ends with %#x, %v", typ, err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	put() // harmless
}

func FuzzParseHeader(f *testing.F) {
	f.Add(header.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, n, err := capture.ParseHeader(b)
		if err != nil {
			if n != 0 || h != (capture.Header{}) {
				t.Fatalf("error %v with %+v", err, h)
			}
			return
		}
		if again, _, err := capture.ParseHeader(h.Append(nil)); err != nil || again != h {
			t.Fatalf("%+v was read as %+v: %v", h, again, err)
		}
	})
}
