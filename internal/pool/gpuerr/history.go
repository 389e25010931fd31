package gpuerr

import (
	"slices"
	"time"
)

// Hit is errors of one class that were seen together.
type Hit struct {
	Code  uint32    `json:"code"`
	Count uint64    `json:"count"`
	Time  time.Time `json:"time"`
}

// maxHits bounds a history: more than any limit of few needs, and where the
// limit is high, hits come with counts.
const maxHits = 64

// Note adds a hit to a history, oldest first, and forgets what no window holds
// any longer. The history it is given is not changed.
func Note(history []Hit, h Hit) []Hit {
	out := slices.DeleteFunc(slices.Clone(history), func(o Hit) bool {
		w := Lookup(o.Code).Window
		return w == 0 || h.Time.Sub(o.Time) >= w
	})
	if over := len(out) + 1 - maxHits; over > 0 {
		out = out[over:]
	}
	return append(out, h)
}

// Judge returns what the errors of a class call for now, and whether that is
// graver than for a single one because of their number.
func Judge(history []Hit, code uint32, now time.Time) (a Action, escalated bool) {
	c := Lookup(code)
	if c.Limit == 0 {
		return c.Action, false
	}
	var n uint64
	for _, h := range history {
		if h.Code == code && now.Sub(h.Time) < c.Window {
			n += min(h.Count, c.Limit) // no overflow, whatever a box says
		}
	}
	if n >= c.Limit {
		return c.Then, true
	}
	return c.Action, false
}

// Backoff says how long something that failed again and again is kept away:
// Base after the first time, doubled after each further one, at most Max.
type Backoff struct {
	Base, Max time.Duration
}

// After returns how long after the failure of a number, from 1.
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
