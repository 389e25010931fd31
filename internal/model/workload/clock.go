package workload

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// clock holds by how much the times of a GPU have to move at least and at most, at the times
// at which the trace tells it.
type clock struct{ least, most bounds }

// bounds are limits of a shift, thinned out where they are many: then each of all is the
// tightest one of several in a row.
type bounds struct {
	most   bool // the shift is at most, not at least, so much
	all    []bound
	stride int
	open   int // limits that the last one of all stands for
}

type bound struct{ at, shift float64 } // ns

// maxBounds is as many limits as a correction looks at.
const maxBounds = 1 << 14

// add adds a limit, unless it asks for more than a clock can be wrong.
func (b *bounds) add(at, shift time.Duration) {
	if b.most && shift < -mostShift || !b.most && shift > mostShift {
		return
	}
	n, l := len(b.all), bound{float64(at), float64(shift)}
	if n > 0 && b.open < b.stride {
		b.all[n-1] = b.tighter(b.all[n-1], l)
		b.open++
		return
	}
	if n == maxBounds {
		for i := range n / 2 {
			b.all[i] = b.tighter(b.all[2*i], b.all[2*i+1])
		}
		b.all = b.all[:n/2]
		b.stride *= 2
	}
	b.stride = max(b.stride, 1)
	b.all, b.open = append(b.all, l), 1
}

func (b *bounds) tighter(x, y bound) bound {
	if x.shift < y.shift == b.most {
		return x
	}
	return y
}

// withoutOutliers returns the limits without the few tightest, which may be damage, and none
// where so few are that all may be.
func (b *bounds) withoutOutliers() []bound {
	few, enough := 1+len(b.all)/100, 8
	if b.most {
		enough = 3 // synchronisations are rarer than launches
	}
	if len(b.all) < enough {
		return nil
	}
	slices.SortFunc(b.all, func(x, y bound) int { return cmp.Or(cmp.Compare(x.shift, y.shift), cmp.Compare(x.at, y.at)) })
	if b.most {
		return b.all[few:]
	}
	return b.all[:len(b.all)-few]
}

// clockLine is a correction that grows with time.
type clockLine struct{ offset, drift float64 }

func (l clockLine) at(t time.Duration) time.Duration {
	return time.Duration(math.Round(l.offset + l.drift*float64(t)))
}

// correction returns the least correction within all limits: none, or a constant one, or one
// that grows with time. ok is false if there is none.
func (c *clock) correction() (line clockLine, ok bool) {
	least, most := c.least.withoutOutliers(), c.most.withoutOutliers()
	if line, ok = within(least, most, 0); ok {
		return line, true
	}
	// The room between the limits is a concave function of the drift.
	low, high := -mostDrift, mostDrift
	for range 100 {
		a, b := low+(high-low)/3, high-(high-low)/3
		if room(least, most, a) < room(least, most, b) {
			low = a
		} else {
			high = b
		}
	}
	possible, impossible := (low+high)/2, 0.0
	if _, ok := within(least, most, possible); !ok {
		return clockLine{}, false
	}
	for range 60 {
		drift := (possible + impossible) / 2
		if _, ok := within(least, most, drift); ok {
			possible = drift
		} else {
			impossible = drift
		}
	}
	return within(least, most, possible)
}

// usualLaunch is the time from a call to the start of its operation on an idle stream.
const usualLaunch = 6 * time.Microsecond

// within returns the correction of a drift that is nearest to none. A clock that is early by
// more than a launch takes is corrected by the time of a launch, too, as far as the limits
// allow.
func within(least, most []bound, drift float64) (line clockLine, ok bool) {
	from, to := limits(least, most, drift)
	offset := max(from, min(to, 0))
	if from > 0 {
		offset = min(from+float64(usualLaunch), max(from, to))
	}
	return clockLine{offset, drift}, from <= to
}

func room(least, most []bound, drift float64) float64 {
	from, to := limits(least, most, drift)
	return to - from
}

// limits returns the least and the most offset of a correction of a drift.
func limits(least, most []bound, drift float64) (from, to float64) {
	from, to = math.Inf(-1), math.Inf(1)
	for _, b := range least {
		from = max(from, b.shift-drift*b.at)
	}
	for _, b := range most {
		to = min(to, b.shift-drift*b.at)
	}
	return from, to
}
