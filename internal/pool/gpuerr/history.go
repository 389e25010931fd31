package gpuerr

import (
	"slices"
	"time"
)

// Occurrence is a number of errors of one class that were reported together.
type Occurrence struct {
	Code  uint32    `json:"code"`
	Count uint64    `json:"count"`
	Time  time.Time `json:"time"`
}

// maxOccurrences bounds a history. It is above all low limits; classes with a
// high limit are reported with counts.
const maxOccurrences = 64

// Append returns the history, which is in order of time, with one more occurrence.
// It drops occurrences that have left their class's window. It does not change
// its argument.
func Append(history []Occurrence, next Occurrence) []Occurrence {
	out := slices.DeleteFunc(slices.Clone(history), func(o Occurrence) bool {
		w := Lookup(o.Code).Window
		return w == 0 || next.Time.Sub(o.Time) >= w
	})
	if over := len(out) + 1 - maxOccurrences; over > 0 {
		out = out[over:]
	}
	return append(out, next)
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
