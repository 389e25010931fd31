package hook

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// record runs the program and returns its trace.
func record(t *testing.T, r builds, x run) (Header, []Record) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "trace")
	x.env = append(slices.Clone(x.env), "DXPU_TRACE="+file)
	r.do(t, x)
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var records []Record
	h, err := ReadTrace(f, func(r Record) error { records = append(records, r); return nil })
	if err != nil {
		t.Fatal(err)
	}
	return h, records
}

// The trace has every call of the scenario with its size and injected latency.
func TestRecords(t *testing.T) {
	r := needBuilds(t)
	for _, env := range [][]string{nil, inject()} {
		h, records := record(t, r, run{scenario: "every", env: env})
		got := map[Kind]int{}
		var bytes, failed uint64
		var injected time.Duration
		for _, r := range records {
			got[r.Kind]++
			if r.Kind == KindHtoD {
				bytes += r.Arg
			}
			if r.Result != 0 {
				failed++
			}
			injected += r.Injected
		}
		want := map[Kind]int{
			KindLaunch: 4, KindMemset: 2, KindHtoD: 8, KindDtoH: 3, KindDtoD: 1,
			KindStreamSync: 1, KindCtxSync: 1,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("records:\n%s", diff)
		}
		if want := uint64(1000 + 1<<20 + 17920 + 1<<20 + 1000 + 256 + 1024 + 10); bytes != want {
			t.Errorf("%d bytes to the device, want %d", bytes, want)
		}
		if failed != 2 || h.Process == 0 || time.Since(h.Wall) > time.Hour {
			t.Errorf("%d failed, header %+v", failed, h)
		}
		if (injected > 0) != (env != nil) {
			t.Errorf("%v injected", injected)
		}
	}
}

// The trace has bytes, parts and directions of prefetches and of copies in batches, of
// several dimensions and with arrays.
func TestRecentRecords(t *testing.T) {
	r := needBuilds(t)
	type call struct {
		Kind     Kind
		Bytes    uint64
		Count    uint32
		Flags    Flags
		Injected time.Duration
	}
	const in, out = 5600, 2800 // ns
	want := []call{
		{KindHtoD, 512, 1, FlagBlocking, in},
		{KindHtoD, 512, 1, 0, in},
		{KindDtoH, 256, 1, 0, out},
		{KindDtoD, 1, 1, 0, 0},
		{KindHtoD, 512, 1, 0, in},
		{KindHtoD, 80000, 1, 0, 23690},
		{KindHtoD, 40000, 1, 0, 11845},
		{KindCopy, 80000, 1, 0, 0},
		{KindCopy, 0, 1, 0, 0},
		{KindCopy, 512 + 800 + 2*80000, 4, 0, 23842 + out},
		{KindDtoH, 800, 1, 0, out},
		{KindCopy, 800 + 2*80000, 3, 0, 23690 + out},
		{KindCopy, 40512, 2, 0, 11845 + out},
		{KindDtoD, 100, 1, FlagBlocking, 0},
		{KindDtoD, 100, 1, FlagBlocking, 0},
		{KindDtoD, 100, 1, FlagBlocking, 0},
		{KindCaptureBegin, 0, 0, 0, 0},
		{KindHtoD, 512, 1, FlagCaptured, 0},
		{KindHtoD, 512, 1, FlagCaptured, 0},
		{KindCaptureEnd, 0, 0, FlagCaptured, 0},
		{KindPrefetch, 1000, 1, 0, in},
		{KindPrefetch, 1000, 0, 0, out},
		{KindPrefetch, 1 << 20, 1, 0, 310515},
		{KindPrefetch, 1000, 0, 0, out},
		{KindPrefetch, 41700, 2, 0, 12141 + out},
		{KindPrefetch, 1000, 1, 0, in},
		{KindPrefetch, 41700, 2, FlagDiscard, in + out},
		{KindPrefetch, 41700, 0, FlagDiscard, out},
		{KindCaptureBegin, 0, 0, 0, 0},
		{KindPrefetch, 41700, 2, FlagCaptured, 0},
		{KindCaptureEnd, 0, 0, FlagCaptured, 0},
	}
	for _, way := range ways {
		for _, thread := range []string{"", "t"} {
			t.Run(way.name+thread, func(t *testing.T) {
				_, records := record(t, r, run{program: way.program, way: way.arg + thread, scenario: "recent", env: inject()})
				var got []call
				for _, r := range records {
					if r.Result != 0 {
						t.Errorf("failed: %+v", r)
					}
					if thread != "" && r.Kind != KindCaptureBegin && r.Kind != KindCaptureEnd {
						if r.Flags&FlagThread == 0 {
							t.Errorf("not the per-thread form: %+v", r)
						}
						r.Flags &^= FlagThread
					}
					got = append(got, call{r.Kind, r.Arg, r.Count, r.Flags, r.Injected})
				}
				// The length of an inserted copy is a number of bytes of 0.1 ns
				// each; the rest is added to the debt.
				near := cmp.Comparer(func(a, b time.Duration) bool { return (a - b).Abs() <= 2 })
				if diff := cmp.Diff(want, got, near); diff != "" {
					t.Errorf("records:\n%s", diff)
				}
			})
		}
	}
}
