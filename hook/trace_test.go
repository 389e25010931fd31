package hook

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dxpu-project/dxpu/internal/model/perf"
)

// goldenTrace is a header and two records, in the layout of TRACE.md.
const goldenTrace = `
44585055545243 00 01000000 40000000
00ca9a3b00000000 0000c16ff2862300 39300000 00000000
901a000000000000 b004000000000000 0000000000000000
00ca9a3b00000000 e8cd9a3b00000000 0701000000000000 0046000000000000
2a000000 0300 0600 00000000 01000000 e015000000000000 0110000000000000
d0d19a3b00000000 d0d19a3b00000000 0100000000000000 efbeadde00000000
2a000000 0100 0000 90010000 06000000 0000000000000000 0110000000000000`

func golden(t testing.TB) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(goldenTrace), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestReadTrace(t *testing.T) {
	var got []Record
	h, err := ReadTrace(bytes.NewReader(golden(t)), func(r Record) error { got = append(got, r); return nil })
	if err != nil {
		t.Fatal(err)
	}
	wantHeader := Header{Start: time.Second, Wall: time.Unix(10_000_000, 0), Process: 12345, RTT: 6800, NativeRTT: 1200}
	if diff := cmp.Diff(wantHeader, h); diff != "" {
		t.Errorf("header:\n%s", diff)
	}
	want := []Record{
		{
			Start: time.Second, End: time.Second + time.Microsecond, Stream: 0x107, Arg: 17920, Thread: 42, Kind: KindHtoD,
			Flags: FlagBlocking | FlagThread, Count: 1, Injected: 5600, Context: 0x1001,
		},
		{
			Start: time.Second + 2*time.Microsecond, End: time.Second + 2*time.Microsecond, Stream: 1, Arg: 0xdeadbeef, Thread: 42,
			Kind: KindLaunch, Result: 400, Count: 6, Context: 0x1001,
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("records:\n%s", diff)
	}
	stop := errors.New("enough")
	if _, err := ReadTrace(bytes.NewReader(golden(t)), func(Record) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("the caller's error: %v", err)
	}
}

func TestReadTruncatedTrace(t *testing.T) {
	b := golden(t)
	for n := range len(b) {
		records := 0
		_, err := ReadTrace(bytes.NewReader(b[:n]), func(Record) error { records++; return nil })
		complete := n >= HeaderSize && (n-HeaderSize)%RecordSize == 0
		if (err == nil) != complete || n < HeaderSize && !errors.Is(err, ErrTrace) || n >= HeaderSize && !complete && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%d bytes: %v", n, err)
		}
		if want := max(0, n-HeaderSize) / RecordSize; records != want {
			t.Errorf("%d bytes: %d records, want %d", n, records, want)
		}
	}
}

func TestReadDamagedTrace(t *testing.T) {
	for _, tc := range []struct {
		name string
		at   int
		v    uint64
		n    int
	}{
		{"magic", 0, 0, 1},
		{"version", 8, 2, 4},
		{"record size", 12, 72, 4},
		{"kind 0", HeaderSize + 36, 0, 2},
		{"kind unknown", HeaderSize + 36, uint64(kindEnd), 2},
		{"ends before it starts", HeaderSize + 8, 0, 8},
		{"negative injection", HeaderSize + 48, 1 << 63, 8},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := golden(t)
			var v [8]byte
			binary.LittleEndian.PutUint64(v[:], tc.v)
			copy(b[tc.at:], v[:tc.n])
			if _, err := ReadTrace(bytes.NewReader(b), func(Record) error { return nil }); !errors.Is(err, ErrTrace) {
				t.Errorf("error %v", err)
			}
		})
	}
}

func FuzzReadTrace(f *testing.F) {
	b := golden(f)
	f.Add(b)
	f.Add(b[:HeaderSize])
	f.Add(b[:len(b)-1])
	f.Fuzz(func(t *testing.T, b []byte) {
		n := 0
		h, err := ReadTrace(bytes.NewReader(b), func(r Record) error {
			n++
			if r.End < r.Start || r.Kind == 0 || strings.HasPrefix(r.Kind.String(), "Kind(") {
				t.Errorf("record %+v", r)
			}
			return nil
		})
		if err == nil && len(b) != HeaderSize+n*RecordSize {
			t.Errorf("%d records from %d bytes", n, len(b))
		}
		if len(b) < HeaderSize && h != (Header{}) {
			t.Errorf("header from %d bytes", len(b))
		}
	})
}

func TestEnviron(t *testing.T) {
	base := []string{"PATH=/bin", "LD_LIBRARY_PATH=/opt/lib", "DXPU_RTT=1s", "DXPU_TRACE=x"}
	paper := Settings{Inject: true, RTT: 6800, NativeRTT: 1200, Requester: perf.V100}
	with := func(f func(*Settings)) Settings {
		s := paper
		f(&s)
		return s
	}
	for _, tc := range []struct {
		name string
		s    Settings
		want []string // nil: an error
	}{
		{"transparent", Settings{}, []string{"PATH=/bin", "LD_LIBRARY_PATH=/d:/opt/lib"}},
		{"paper", paper, []string{"PATH=/bin", "LD_LIBRARY_PATH=/d:/opt/lib", "DXPU_RTT=6800ns", "DXPU_NATIVE_RTT=1200ns", "DXPU_TAGS=140", "DXPU_MRRS=128"}},
		{
			"recorded only",
			Settings{Trace: "t", Stats: "s", Verbose: true, Driver: "/l"},
			[]string{"PATH=/bin", "LD_LIBRARY_PATH=/d:/opt/lib", "DXPU_TRACE=t", "DXPU_STATS=s", "DXPU_REAL_LIBCUDA=/l", "DXPU_VERBOSE=1"},
		},
		{"rate", with(func(s *Settings) { s.NativeRate, s.Syncs = perf.GBps(12.5), true }), []string{
			"PATH=/bin", "LD_LIBRARY_PATH=/d:/opt/lib",
			"DXPU_RTT=6800ns", "DXPU_NATIVE_RTT=1200ns", "DXPU_TAGS=140", "DXPU_MRRS=128", "DXPU_NATIVE_GBPS=12.5", "DXPU_SYNCS=1",
		}},
		{"below native", with(func(s *Settings) { s.RTT = 1199 }), nil},
		{"too long", with(func(s *Settings) { s.RTT = time.Second + 1 }), nil},
		{"no tags", with(func(s *Settings) { s.Requester.Tags = 0 }), nil},
		{"graphs", Settings{Graphs: "some"}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := slices.Clone(base)
			got, err := tc.s.Environ(base, "/d")
			if diff := cmp.Diff(tc.want, got); diff != "" || (err != nil) != (tc.want == nil) {
				t.Errorf("error %v, environment:\n%s", err, diff)
			}
			if !slices.Equal(before, base) {
				t.Errorf("Environ changed its argument to %v", base)
			}
		})
	}
	for _, dir := range []string{"", "relative", "/with:colon"} {
		if _, err := (Settings{}).Environ(base, dir); err == nil {
			t.Errorf("folder %q: no error", dir)
		}
	}
	if got, err := (Settings{}).Environ(nil, "/d"); err != nil || !slices.Equal(got, []string{"LD_LIBRARY_PATH=/d"}) {
		t.Errorf("empty environment: %v, %v", got, err)
	}
}

func TestFind(t *testing.T) {
	if _, err := Find(t.TempDir()); !errors.Is(err, ErrNoLibrary) {
		t.Errorf("an empty folder: %v", err)
	}
	if _, err := Find(""); !errors.Is(err, ErrNoLibrary) {
		t.Errorf("beside the test: %v", err)
	}
}
