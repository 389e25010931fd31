package workload

import (
	"strings"
	"testing"
	"time"
)

// What no recording of one process on working clocks shows is said, with counts.
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
		}, "99 of 100 operations begin before the one before them on their stream has ended, by 1.98ms", "", "", 0},
		{"clocks differ", func(i int) (time.Duration, time.Duration, uint32) {
			return time.Duration(i)*20*us - 12*us, 15 * us, uint32(i + 1)
		}, "100 of 100 operations begin before the call", "", "", 0},
		{"one before its launch", func(i int) (time.Duration, time.Duration, uint32) {
			if i == 50 {
				return 50*20*us - 14*us, us, 51
			}
			return plain(i)
		}, "", "1 of 100 operations begin before the call", "", 0},
		{"no numbers", func(i int) (time.Duration, time.Duration, uint32) { return time.Duration(i) * 20 * us, 15 * us, 0 }, "", "100 of 100 operations have no correlation number", "", n},
		{"no launches", func(i int) (time.Duration, time.Duration, uint32) {
			return time.Duration(i) * 20 * us, 15 * us, uint32(i + 1000)
		}, "", "100 of 100 operations were launched before the recording began, or", "", n},
		{"a pause", func(i int) (time.Duration, time.Duration, uint32) {
			if i >= 50 {
				return time.Duration(i)*20*us + time.Second, 15 * us, uint32(i + 1)
			}
			return plain(i)
		}, "", "nothing is recorded for 999ms of 1.002s, from 2ms on", "", 0},
		{"no durations", func(i int) (time.Duration, time.Duration, uint32) {
			return time.Duration(i) * 20 * us, 0, uint32(i + 1)
		}, "", "", "none of the trace's 100 operations has a duration", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b, st, th := build()
			for i := range n {
				b.AddCall(Call{Start: time.Hour + time.Duration(i)*20*us - 10*us, Dur: 4 * us, Corr: uint32(i + 1), Thread: th, Kind: Launch}, nowhere)
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
