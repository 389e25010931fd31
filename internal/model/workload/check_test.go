package workload

import (
	"strings"
	"testing"
	"time"
)

// check reports contradictions in a trace, with counts.
func TestCheck(t *testing.T) {
	const n = 100
	// at is where the i-th of n operations starts and how long it takes; its
	// launch is 10 us before i x 20 us.
	type at func(i int) (start, dur time.Duration, corr uint32)
	plain := func(i int) (time.Duration, time.Duration, uint32) {
		return time.Duration(i) * 20 * us, 15 * us, uint32(i + 1)
	}
	for _, tc := range []struct {
		name     string
		op       at
		doubt    string // "" for none
		note     string
		fails    string
		orphaned int64
	}{
		{"plain", plain, "", "", "", 0},
		{"rounded to whole microseconds", func(i int) (time.Duration, time.Duration, uint32) {
			return time.Duration(i) * 20 * us, 21 * us, uint32(i + 1)
		}, "", "", "", 0},
		{"overlap", func(i int) (time.Duration, time.Duration, uint32) {
			return time.Duration(i) * 20 * us, 40 * us, uint32(i + 1)
		}, "99 of 100 operations begin before the previous one on their stream has ended, by 1.98ms", "", "", 0},
		{"one duration of an hour", func(i int) (time.Duration, time.Duration, uint32) {
			if i == 10 {
				return 10 * 20 * us, time.Hour, 11
			}
			return plain(i)
		}, "89 of 100 operations begin before the previous one on their stream has ended", "", "", 0},
		{"clocks differ", func(i int) (time.Duration, time.Duration, uint32) {
			return time.Duration(i)*20*us - 12*us, 15 * us, uint32(i + 1)
		}, "", "the clock of GPU 0 is about 8µs early", "", 0},
		{"one before its launch", func(i int) (time.Duration, time.Duration, uint32) {
			if i == 50 {
				return 50*20*us - 14*us, us, 51
			}
			return plain(i)
		}, "", "1 of 100 operations begin before the call", "", 0},
		{"no numbers", func(i int) (time.Duration, time.Duration, uint32) { return time.Duration(i) * 20 * us, 15 * us, 0 }, "100 of 100 operations have no correlation number", "", "", n},
		{"no launches", func(i int) (time.Duration, time.Duration, uint32) {
			return time.Duration(i) * 20 * us, 15 * us, uint32(i + 1000)
		}, "100 of 100 operations were launched before the recording began, or", "", "", n},
		{"few launches lost", func(i int) (time.Duration, time.Duration, uint32) {
			if i < 10 {
				return time.Duration(i) * 20 * us, 15 * us, uint32(i + 1000)
			}
			return plain(i)
		}, "", "10 of 100 operations were launched before the recording began, or", "", 10},
		{"more launches lost", func(i int) (time.Duration, time.Duration, uint32) {
			if i < 11 {
				return time.Duration(i) * 20 * us, 15 * us, uint32(i + 1000)
			}
			return plain(i)
		}, "11 of 100 operations were launched before the recording began, or", "", "", 11},
		{"kernels of no length", func(i int) (time.Duration, time.Duration, uint32) {
			if i < 11 {
				return time.Duration(i) * 20 * us, 0, uint32(i + 1)
			}
			return plain(i)
		}, "11 of 100 kernels have no duration", "", "", 0},
		{"a pause", func(i int) (time.Duration, time.Duration, uint32) {
			if i >= 50 {
				return time.Duration(i)*20*us + time.Second, 15 * us, uint32(i + 1)
			}
			return plain(i)
		}, "nothing is recorded for 999ms of 1.002s, from 2ms on", "", "", 0},
		{"no durations", func(i int) (time.Duration, time.Duration, uint32) {
			return time.Duration(i) * 20 * us, 0, uint32(i + 1)
		}, "", "", "none of the trace's 100 operations has a duration", 0},
		{"half of the operations", func(i int) (time.Duration, time.Duration, uint32) {
			return time.Duration(i/2) * 20 * us, 5 * us, uint32(i/2 + 1)
		}, "50 of 100 launches have no operation", "", "", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b, st, th := build()
			launch := b.Name([]byte("cudaLaunchKernel"))
			for i := range n {
				b.AddCall(Call{Start: time.Hour + time.Duration(i)*20*us - 10*us, Dur: 4 * us, Corr: uint32(i + 1), Name: launch, Thread: th, Kind: Launch}, nowhere)
				start, dur, corr := tc.op(i)
				b.AddOp(Op{Start: time.Hour + start, Dur: dur, Corr: corr, Stream: st}, nowhere)
			}
			w, err := b.Build()
			if tc.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tc.fails) {
					t.Errorf("error %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if doubts := w.Report.Warning(); (doubts == "") != (tc.doubt == "") || !strings.Contains(doubts, tc.doubt) {
				t.Errorf("doubts %q", doubts)
			}
			if notes := strings.Join(w.Report.Notes, "; "); (notes == "") != (tc.note == "") || !strings.Contains(notes, tc.note) {
				t.Errorf("notes %q", notes)
			}
			if w.Report.Orphans != tc.orphaned {
				t.Errorf("%d orphans", w.Report.Orphans)
			}
		})
	}
}

// A call with a wrong duration would absorb all calls after it.
func TestCallOverAllOthers(t *testing.T) {
	b, st, th := build()
	b.AddCall(Call{Start: 0, Dur: time.Hour, Corr: 1, Thread: th, Kind: Launch}, nowhere)
	for i := range 2000 {
		b.AddCall(Call{Start: time.Duration(i+1) * 10 * us, Dur: 5 * us, Corr: uint32(i + 2), Thread: th, Kind: Launch}, nowhere)
	}
	b.AddOp(Op{Start: 20 * us, Dur: us, Corr: 2, Stream: st}, nowhere)
	w, err := b.Build()
	if err != nil || !strings.Contains(w.Report.Warning(), "one call contains 2000 others") {
		t.Errorf("%v, %q", err, w.Report.Warning())
	}
}

func TestUselessCalls(t *testing.T) {
	for _, tc := range []struct {
		name, want string
		calls      int
	}{
		{"none", "no calls of the host", 0},
		{"nameless", "1 of 1 calls of the host have no name", 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b, st, th := build()
			for range tc.calls {
				b.AddCall(Call{Dur: us, Corr: 1, Thread: th}, nowhere)
			}
			b.AddOp(Op{Start: 20 * us, Dur: us, Corr: 1, Stream: st}, nowhere)
			if w, err := b.Build(); err != nil || !strings.Contains(w.Report.Warning(), tc.want) {
				t.Errorf("%v, %q", err, w.Report.Warning())
			}
		})
	}
}

func TestCopyBeyondAnyLink(t *testing.T) {
	b, st, _ := build()
	for _, op := range []Op{
		{Dur: us, Bytes: 990_000, Kind: CopyHtoD}, // took up to 2 us before rounding
		{Dur: us, Bytes: 1_010_000, Kind: CopyHtoD},
		{Dur: us, Bytes: 1_010_000, Kind: CopyDtoH},
		{Dur: us, Bytes: 1_010_000, Kind: CopyDtoD},
	} {
		op.Stream = st
		b.AddOp(op, nowhere)
	}
	if w, err := b.Build(); err != nil || !strings.Contains(w.Report.Warning(), "2 copies between host and GPU exceed 500 GB/s") {
		t.Errorf("%v, %q", err, w.Report.Warning())
	}
}
