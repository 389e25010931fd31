package network

import (
	"math"
	"time"
)

// stage is a station of a route: a wire, a proxy, or else a time that is the same for all
// packets. The times of packets that reach it do not go backwards, nor do those at which
// packets leave it. It is no interface, so that packets stay out of the heap.
type stage struct {
	wire  *wire
	proxy *proxy
	delay time.Duration
}

// pass returns when a packet that arrives now leaves, and false if it is dropped.
func (s *stage) pass(now time.Duration, p *packet) (time.Duration, bool) {
	switch {
	case s.wire != nil:
		return s.wire.pass(now, p)
	case s.proxy != nil:
		return s.proxy.pass(now), true
	}
	return now + s.delay, true
}

// proxy converts packets. Each context takes one at a time and the same time for each,
// so packets leave in the order in which they came.
type proxy struct {
	conversion time.Duration
	free       []time.Duration // when each context is free; nil: no bound
	next       int             // the context that is free first
}

func (x *proxy) pass(now time.Duration) time.Duration {
	if x.free == nil {
		return now + x.conversion
	}
	done := max(now, x.free[x.next]) + x.conversion
	x.free[x.next] = done
	if x.next++; x.next == len(x.free) {
		x.next = 0
	}
	return done
}

// wire is a link, with the buffer before it.
type wire struct {
	rate            float64 // bytes per ns; 0: no bound
	buffer, mark    float64 // bytes; 0: none
	busy            float64 // ns: when it has sent all that waits
	dropped, marked uint64
	// payload makes it count payloads only: PCIe's own headers are in its rate.
	payload bool
}

func (w *wire) pass(now time.Duration, p *packet) (time.Duration, bool) {
	if w.rate == 0 {
		return now, true
	}
	size := float64(p.bytes)
	if w.payload {
		size = float64(p.flow.payload)
	}
	if w.buffer > 0 || w.mark > 0 {
		waiting := max(w.busy-float64(now), 0) * w.rate
		if w.buffer > 0 && waiting+size > w.buffer {
			w.dropped++
			return 0, false
		}
		if w.mark > 0 && waiting >= w.mark {
			p.marked = true
			w.marked++
		}
	}
	w.busy = max(w.busy, float64(now)) + size/w.rate
	return time.Duration(math.Ceil(w.busy)), true
}
