package gpuerr

import (
	"math"
	"slices"
	"time"
)

// Occurrence is a number of errors of one class that were reported together.
type Occurrence struct {
	Code  uint32    `json:"code"`
	Count uint64    `json:"count"`
	Time  time.Time `json:"time"`
}

// maxOccurrences bounds a history. More than these are joined, see shorten.
const maxOccurrences = 64

// Append returns the history, which is in order of time, with one more occurrence.
// It drops occurrences that have left their class's window. It does not change
// its argument.
func Append(history []Occurrence, next Occurrence) []Occurrence {
	out := slices.DeleteFunc(slices.Clone(history), func(o Occurrence) bool {
		w := Lookup(o.Code).Window
		return w == 0 || next.Time.Sub(o.Time) >= w
	})
	out = append(out, next)
	for len(out) > maxOccurrences {
		out = shorten(out)
	}
	return out
}

// Join returns the history with one occurrence of each code, at the latest time. It does not change
// its argument.
func Join(history []Occurrence) []Occurrence {
	codes := map[uint32]bool{}
	for _, h := range history {
		codes[h.Code] = true
	}
	out := slices.Clone(history)
	for len(out) > len(codes) {
		out = shorten(out)
	}
	return out
}

// shorten joins the two occurrences of one code that are nearest in time, at the later time, so
// that none is forgotten within its window. Without two of one code it drops the oldest.
func shorten(history []Occurrence) []Occurrence {
	last := map[uint32]int{} // by code
	drop, gap := 0, time.Duration(-1)
	for i := range history {
		h := &history[i]
		if before, ok := last[h.Code]; ok {
			// The clock may have gone back.
			if d := h.Time.Sub(history[before].Time).Abs(); gap < 0 || d < gap {
				drop, gap = before, d
			}
		}
		last[h.Code] = i
	}
	if gap >= 0 {
		from := history[drop]
		i := drop + 1 + slices.IndexFunc(history[drop+1:], func(o Occurrence) bool { return o.Code == from.Code })
		history[i].Count += min(from.Count, math.MaxUint64-history[i].Count)
		if from.Time.After(history[i].Time) {
			history[i].Time = from.Time
		}
	}
	return slices.Delete(history, drop, drop+1)
}

// Assess returns the action for a code's errors now, and whether it was escalated.
func Assess(history []Occurrence, code uint32, now time.Time) (a Action, escalated bool) {
	c := Lookup(code)
	if c.Limit == 0 {
		return c.Action, false
	}
	var n uint64
	for _, o := range history {
		if o.Code == code && now.Sub(o.Time) < c.Window {
			n += min(o.Count, c.Limit) // a box may report any count: prevent overflow
		}
	}
	if n >= c.Limit {
		return c.Escalated, true
	}
	return c.Action, false
}

// Backoff is the time for which a device stays out of service after a failure:
// Base after the first one, doubled after each further one, at most Max.
type Backoff struct {
	Base, Max time.Duration
}

// After returns the time after the nth failure; n starts at 1.
func (b Backoff) After(n int) time.Duration {
	d := b.Base
	for range n - 1 {
		if d >= b.Max/2 {
			return b.Max
		}
		d *= 2
	}
	return min(d, b.Max)
}
