package share

import (
	"slices"
	"time"
)

// window is a sliding window of time in buckets. It covers the window and at most one
// bucket more, so it never misses a part of the window, and the state is bounded.
type window struct {
	length  time.Duration // of a bucket
	buckets []time.Duration
	last    int64 // number of the newest bucket since time zero
}

func newWindow(of time.Duration, buckets int) window {
	return window{length: of / time.Duration(buckets), buckets: make([]time.Duration, buckets+1)}
}

// move forgets the buckets that have left the window, and returns their sum.
func (w *window) move(now time.Duration) (sum time.Duration) {
	n, size := int64(now/w.length), int64(len(w.buckets))
	for w.last = max(w.last, n-size); w.last < n; {
		w.last++
		b := &w.buckets[w.last%size]
		sum += *b
		*b = 0
	}
	return sum
}

// usage counts the time that a client used in a sliding window.
type usage struct {
	window
	total time.Duration
}

func newUsage(of time.Duration, buckets int) usage { return usage{window: newWindow(of, buckets)} }

// add counts the time between from and to, where to is now.
func (u *usage) add(from, to time.Duration) {
	u.total -= u.move(to)
	u.put(from, to)
}

// put counts a time of the window, which may end before the last one.
func (u *usage) put(from, to time.Duration) {
	oldest := time.Duration(u.last-int64(len(u.buckets))+1) * u.length
	for from = max(from, oldest); from < to; {
		n := int64(from / u.length)
		end := min(to, time.Duration(n+1)*u.length)
		u.buckets[n%int64(len(u.buckets))] += end - from
		u.total += end - from
		from = end
	}
}

// sum returns the time used in the window before now.
func (u *usage) sum(now time.Duration) time.Duration {
	u.total -= u.move(now)
	return u.total
}

// plus returns the sum of two windows of the same form and time.
func (u *usage) plus(o *usage) usage {
	sum := usage{window{length: u.length, buckets: slices.Clone(u.buckets), last: u.last}, u.total + o.total}
	for i, b := range o.buckets {
		sum.buckets[i] += b
	}
	return sum
}

// next returns when the sum falls next at the earliest.
func (u *usage) next(now time.Duration) time.Duration { return (now/u.length + 1) * u.length }

// peak is the greatest value of a sliding window.
type peak struct{ window }

func newPeak(of time.Duration, buckets int) peak { return peak{newWindow(of, buckets)} }

func (p *peak) add(now, v time.Duration) {
	p.move(now)
	b := &p.buckets[p.last%int64(len(p.buckets))]
	*b = max(*b, v)
}

func (p *peak) max(now time.Duration) time.Duration {
	p.move(now)
	var m time.Duration
	for _, b := range p.buckets {
		m = max(m, b)
	}
	return m
}
