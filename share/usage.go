package share

import "time"

// usage counts the time that a client used in a sliding window, in buckets. The sum
// covers the window and at most one bucket more, so it never misses time of the
// window, and the state is bounded.
type usage struct {
	length  time.Duration // of a bucket
	buckets []time.Duration
	last    int64 // number of the newest bucket since time zero
}

func newUsage(window time.Duration, buckets int) usage {
	return usage{length: window / time.Duration(buckets), buckets: make([]time.Duration, buckets+1)}
}

// move forgets the buckets that have left the window.
func (u *usage) move(now time.Duration) {
	n := int64(now / u.length)
	if n-u.last >= int64(len(u.buckets)) {
		clear(u.buckets)
		u.last = n
	}
	for u.last < n {
		u.last++
		u.buckets[u.last%int64(len(u.buckets))] = 0
	}
}

// add counts the time between from and to, where to is now.
func (u *usage) add(from, to time.Duration) {
	u.move(to)
	oldest := time.Duration(u.last-int64(len(u.buckets))+1) * u.length
	for from = max(from, oldest); from < to; {
		n := int64(from / u.length)
		end := min(to, time.Duration(n+1)*u.length)
		u.buckets[n%int64(len(u.buckets))] += end - from
		from = end
	}
}

// sum returns the time used in the window before now.
func (u *usage) sum(now time.Duration) time.Duration {
	u.move(now)
	var s time.Duration
	for _, b := range u.buckets {
		s += b
	}
	return s
}

// next returns when the sum falls next at the earliest.
func (u *usage) next(now time.Duration) time.Duration { return (now/u.length + 1) * u.length }

// peak is the greatest value of a sliding window, in buckets.
type peak struct {
	length  time.Duration
	buckets []time.Duration
	last    int64
}

func newPeak(window time.Duration, buckets int) peak {
	return peak{length: window / time.Duration(buckets), buckets: make([]time.Duration, buckets+1)}
}

func (p *peak) move(now time.Duration) {
	n := int64(now / p.length)
	if n-p.last >= int64(len(p.buckets)) {
		clear(p.buckets)
		p.last = n
	}
	for p.last < n {
		p.last++
		p.buckets[p.last%int64(len(p.buckets))] = 0
	}
}

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
