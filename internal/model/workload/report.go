package workload

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Drop counts the events that were dropped for one reason.
type Drop struct {
	Reason  string `json:"reason"`
	Count   int64  `json:"count"`
	Example string `json:"first,omitempty"` // position of the first one: "byte 1234", "row 7 of TABLE"
}

// Report describes the quality of a trace. A trace with Dropped() > 0 is damaged,
// and figures from it cover the rest only.
type Report struct {
	Events  int64 // events or rows read
	Used    int64 // events that became calls, operations or steps
	Drops   []Drop
	Notes   []string // repairs and assumptions
	Doubts  []string // reasons why figures from this trace may be wrong
	Skewed  int64    // operations that start before their launch in the trace
	Orphans int64    // operations whose launch is not in the trace
	// Uncorrelated counts the orphans without a readable correlation number.
	Uncorrelated int64
	// Incomplete is set if a large or unknown part of the run is missing.
	Incomplete bool
}

// Drop counts one damaged event.
func (r *Report) Drop(reason, example string) { r.DropN(reason, example, 1) }

// DropN counts n damaged events.
func (r *Report) DropN(reason, example string, n int64) {
	for i := range r.Drops {
		if r.Drops[i].Reason == reason {
			r.Drops[i].Count += n
			return
		}
	}
	r.Drops = append(r.Drops, Drop{Reason: reason, Count: n, Example: example})
}

// Note adds a remark unless it is there.
func (r *Report) Note(format string, args ...any) {
	s := fmt.Sprintf(format, args...)
	if !slices.Contains(r.Notes, s) {
		r.Notes = append(r.Notes, s)
	}
}

// Doubt adds a reason why figures from this trace may be wrong.
func (r *Report) Doubt(format string, args ...any) {
	r.Doubts = append(r.Doubts, fmt.Sprintf(format, args...))
}

// Dropped returns the number of damaged events.
func (r *Report) Dropped() int64 {
	var n int64
	for _, d := range r.Drops {
		n += d.Count
	}
	return n
}

// Warning returns one line about damage and doubts, or "".
func (r *Report) Warning() string {
	parts := slices.Clone(r.Doubts)
	if d := r.damage(); d != "" {
		parts = slices.Insert(parts, 0, d)
	}
	return strings.Join(parts, "; ")
}

func (r *Report) damage() string {
	n := r.Dropped()
	if n == 0 {
		return ""
	}
	drops := slices.Clone(r.Drops)
	slices.SortStableFunc(drops, func(a, b Drop) int { return cmp.Compare(b.Count, a.Count) })
	var b strings.Builder
	fmt.Fprintf(&b, "%d of %d events are damaged and were dropped: ", n, max(r.Events, n))
	for i, d := range drops {
		if i > 0 {
			b.WriteString("; ")
		}
		fmt.Fprintf(&b, "%d %s", d.Count, d.Reason)
		if d.Example != "" {
			fmt.Fprintf(&b, " (first at %s)", d.Example)
		}
	}
	return b.String()
}
