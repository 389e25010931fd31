package network

import (
	"math"
	"time"
)

// stage is a station of a route. The times of packets that reach it do not go backwards, nor
// do those at which packets leave it.
type stage interface {
	// pass returns when a packet that arrives now leaves, and false if it is dropped.
	pass(now time.Duration, p *packet) (time.Duration, bool)
}

// proxy converts packets. Each context takes one at a time and the same time for each,
// so packets leave in the order in which they came.
type proxy struct {
	conversion time.Duration
	free       []time.Duration // when each context is free; nil: no bound
	next       int             // the context that is free first
}

func (x *proxy) pass(now time.Duration, _ *packet) (time.Duration, bool) {
	if x.free == nil {
		return now + x.conversion, true
	}
	done := max(now, x.free[x.next]) + x.conversion
	x.free[x.next] = done
	if x.next++; x.next == len(x.free) {
		x.next = 0
	}
	return done, true
}

// wire is a link, with the buffer before it.
type wire struct {
	rate            float64 // bytes per ns; 0: no bound
	buffer, mark    float64 // bytes; 0: none
	busy            float64 // ns: when it has sent all that waits
	dropped, marked uint64
	line            line // packets on their way from here
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
	waiting := max(w.busy-float64(now), 0) * w.rate
	if w.buffer > 0 && waiting+size > w.buffer {
		w.dropped++
		return 0, false
	}
	if w.mark > 0 && waiting >= w.mark {
		p.marked = true
		w.marked++
	}
	w.busy = max(w.busy, float64(now)) + size/w.rate
	return time.Duration(math.Ceil(w.busy)), true
}

// delay takes a time that is the same for all packets.
type delay time.Duration

func (d delay) pass(now time.Duration, _ *packet) (time.Duration, bool) {
	return now + time.Duration(d), true
}
