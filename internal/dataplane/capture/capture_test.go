package capture_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/dxpu-project/dxpu/frame"
	"github.com/dxpu-project/dxpu/internal/dataplane/capture"
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

// run streams a session into memory. It calls put when the stream has begun.
func run(t *testing.T, o capture.Options, put func(*capture.Session)) (records []record, stats pcapgo.NgInterfaceStatistics) {
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
	return parse(t, &out)
}

// parse reads a capture, which must be complete.
func parse(t *testing.T, stream io.Reader) (records []record, stats pcapgo.NgInterfaceStatistics) {
	t.Helper()
	statistics := 0
	r, err := pcapgo.NewNgReader(stream, pcapgo.NgReaderOptions{
		StatisticsCallback: func(_ int, s pcapgo.NgInterfaceStatistics) { stats, statistics = s, statistics+1 },
	})
	if err != nil {
		t.Fatal(err)
	}
	for {
		data, info, opts, err := r.ReadPacketDataWithOptions()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		h, n, err := capture.ParseHeader(data)
		if err != nil || h != header || opts.Flags.Direction != pcapgo.NgEpbFlagDirectionInbound {
			t.Fatalf("header %+v, direction %v, %v", h, opts.Flags.Direction, err)
		}
		got := record{Data: hex.EncodeToString(data[n:]), Length: info.Length - n, Time: uint64(info.Timestamp.UnixNano())}
		if opts.DropCount != nil {
			got.Dropped = *opts.DropCount
		}
		records = append(records, got)
	}
	if statistics != 1 {
		t.Errorf("%d blocks of statistics, want one at the end", statistics)
	}
	return records, stats
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
			capture.Options{Buffer: 140},
			func(s *capture.Session) {
				for i := range 5 {
					s.TLP(uint64(i), &header, read(uint16(i)))
				}
			},
			[]record{{"000000010000000f00001000", 12, 0, 0}, {"000000010000000f00001010", 12, 0, 1}},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, stats := run(t, tc.opts, tc.put)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
			if n := stats.PacketsReceived - stats.PacketsDropped; n != uint64(len(got)) {
				t.Errorf("statistics: %d records, want %d", n, len(got))
			}
		})
	}
}

// gate is a writer of which each Write waits for the test.
type gate struct {
	bytes.Buffer
	entered, proceed chan struct{}
}

func (g *gate) Write(b []byte) (int, error) {
	g.entered <- struct{}{}
	<-g.proceed
	return g.Buffer.Write(b)
}

// The first record after a full buffer has the number of dropped ones.
func TestDropsAreRecorded(t *testing.T) {
	s := capture.NewSession(capture.Options{Buffer: 100}) // room for one request
	g := &gate{entered: make(chan struct{}), proceed: make(chan struct{})}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Stream(ctx, g, func() {}) }()
	at := uint64(0)
	put := func() {
		s.TLP(at, &header, read(0))
		at++
	}
	during := func(f func()) {
		<-g.entered
		f()
		g.proceed <- struct{}{}
	}
	during(put) // the section and the interface are being written
	during(func() {
		for range 4 { // one of them fits
			put()
		}
	})
	during(put)
	during(stop)
	during(func() {})
	if err := <-ended; err != nil {
		t.Error(err)
	}
	put() // has no effect
	const request = "000000010000000f00001000"
	got, stats := parse(t, &g.Buffer)
	if diff := cmp.Diff([]record{{request, 12, 0, 0}, {request, 12, 0, 1}, {request, 12, 3, 5}}, got); diff != "" {
		t.Error(diff)
	}
	if stats.PacketsReceived != 6 || stats.PacketsDropped != 3 || stats.LastUpdate.UnixNano() != 5 {
		t.Errorf("statistics %+v", stats)
	}
}

// Wireshark's own tool reads the metadata of a capture.
func TestCapinfosReadsIt(t *testing.T) {
	tool, err := exec.LookPath("capinfos")
	if err != nil {
		t.Skip("capinfos (package wireshark-common) is not installed")
	}
	file := filepath.Join(t.TempDir(), "a.pcapng")
	out, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	s := capture.NewSession(capture.Options{SnapLen: 232, Program: "dxpu", Interface: "a", About: "bc"})
	s.TLP(5, &header, read(0))
	ctx, stop := context.WithCancel(t.Context())
	if err := errors.Join(s.Stream(ctx, out, stop), out.Close()); err != nil {
		t.Fatal(err)
	}
	text, err := exec.CommandContext(t.Context(), tool, "-M", file).Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Number of packets:   1", "Encapsulation = USER 0", "Name = a", "Description = bc", "Capture length = 256",
		"Time precision = nanoseconds", "Number of stat entries = 1", "Capture application: dxpu",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
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
