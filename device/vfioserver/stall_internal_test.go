package vfioserver

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// A server with a full backlog has to take minProgress in each stallTimeout in which it
// takes anything, as far as the owner ran, and may take nothing for silentTimeout.
func TestStall(t *testing.T) {
	const ms = time.Millisecond
	type look struct {
		after time.Duration
		full  bool
		took  uint64 // since the last look
	}
	begin := []look{{0, true, 9}}
	looks := func(n int, took uint64) []look { return slices.Repeat([]look{{lookEvery, true, took}}, n) }
	const enough = minProgress / uint64(stallLooks)
	for _, c := range []struct {
		name  string
		looks [][]look
		why   string        // it is given up at the last look; "": it is not
		at    time.Duration // of that look
	}{
		{"never full", [][]look{{{0, false, 0}, {5 * stallTimeout, false, 0}}}, "", 0},
		{"silent", [][]look{begin, looks(silentLooks, 0)}, "nothing for 3s", silentTimeout},
		{"slow", [][]look{begin, looks(stallLooks, enough-1)}, "less than 32 KiB of writes in 1s", stallTimeout},
		{"good", [][]look{begin, looks(3*stallLooks, enough)}, "", 0},
		{"good, then slow", [][]look{begin, looks(stallLooks, enough), looks(stallLooks, enough-1)}, "less than", 2 * stallTimeout},
		{"good, then silent", [][]look{begin, looks(stallLooks, enough), looks(silentLooks, 0)}, "nothing", stallTimeout + silentTimeout},
		{"silent for a second again and again", [][]look{
			begin, looks(stallLooks, 0), looks(stallLooks, enough), looks(stallLooks, 0), looks(stallLooks, enough), looks(stallLooks, 0), looks(stallLooks, enough),
			looks(stallLooks, 0), looks(stallLooks, enough),
		}, "", 0},
		{"stopped, and it continues right before a look", [][]look{begin, looks(stallLooks-1, 0), looks(1, 64), looks(stallLooks-1, 2*enough)}, "", 0},
		{"one write at each second look", [][]look{begin, slices.Concat(slices.Repeat([][]look{looks(1, 0), looks(1, 64)}, stallLooks)...)}, "less than", 2 * stallTimeout},
		{"room meanwhile", [][]look{begin, {{stallTimeout / 2, false, 1}, {stallTimeout / 2, true, 0}, {silentTimeout - ms, true, 0}}}, "", 0},
		{"many looks", [][]look{begin, slices.Repeat([]look{{ms, true, 0}}, silentLooks)}, "", 0},
		{"a suspension, then silent", [][]look{begin, {{time.Hour, true, 0}}, looks(silentLooks-1, 0)}, "nothing", time.Hour + silentTimeout - lookEvery},
	} {
		t.Run(c.name, func(t *testing.T) {
			var s stall
			var now time.Duration
			var done uint64
			all := slices.Concat(c.looks...)
			for i, l := range all {
				now, done = now+l.after, done+l.took
				s.note(now, l.full, done)
				why, want := s.tooSlow(now, done), ""
				if i == len(all)-1 {
					want = c.why
				}
				if (why == "") != (want == "") || !strings.Contains(why, want) {
					t.Errorf("at %v it %q, want %q", now, why, want)
				}
				if s.wake() <= now {
					t.Errorf("wakes at %v, at %v", s.wake(), now)
				}
			}
			if c.why != "" && now != c.at {
				t.Errorf("given up at %v, want %v", now, c.at)
			}
		})
	}
}
