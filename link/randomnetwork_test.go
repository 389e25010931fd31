package link

import (
	"slices"
	"time"

	"github.com/dxpu-project/dxpu/frame"
)

// weather is what happens to the datagrams of a path in one direction.
type weather struct {
	loss, twice, corrupt, late int // in a thousand
	delay, jitter              time.Duration
	mtu                        int
}

// change gives every path other faults.
func (w *world) change() {
	for i := range w.paths {
		for side := range 2 {
			n := &w.paths[i][side]
			*n = weather{delay: time.Duration(w.r.IntN(100_000)), mtu: frame.MaxDatagram}
			switch w.r.IntN(8) {
			case 0:
				n.loss = 1000
			case 1:
				n.mtu = 1300
			case 2, 3, 4:
				n.loss, n.twice, n.corrupt = w.r.IntN(200), w.r.IntN(200), w.r.IntN(50)
				n.late, n.jitter = w.r.IntN(300), time.Duration(w.r.IntN(3_000_000))
			}
		}
	}
}

// network carries a datagram.
func (w *world) network(f flying) {
	n := &w.paths[f.path][1-f.to]
	chance := func(share int) bool { return w.r.IntN(1000) < share }
	if len(w.recorded) < 300 {
		w.recorded = append(w.recorded, f)
	} else {
		w.recorded[w.r.IntN(len(w.recorded))] = f
	}
	copies := 1
	if chance(n.twice) {
		copies += w.r.IntN(3)
	}
	for range copies {
		if chance(n.loss) || len(f.data) > n.mtu {
			continue
		}
		c := flying{f.to, f.path, slices.Clone(f.data)}
		if chance(n.corrupt) {
			c.data[w.r.IntN(len(c.data))] ^= 1 << w.r.IntN(8)
		}
		at := w.now + n.delay
		if chance(n.late) {
			at += time.Duration(w.r.Int64N(int64(n.jitter) + 1))
		}
		w.flight.Push(at, c)
	}
}

// attack sends a recorded datagram, a part of one, or noise.
func (w *world) attack() {
	if len(w.recorded) == 0 {
		return
	}
	f := w.recorded[w.r.IntN(len(w.recorded))]
	f.data = slices.Clone(f.data)
	switch w.r.IntN(4) {
	case 0:
		f.data = f.data[:w.r.IntN(len(f.data)+1)]
	case 1:
		f.data[w.r.IntN(min(len(f.data), 60))] ^= byte(1 + w.r.IntN(255))
	case 2:
		f.to, f.path = w.r.IntN(2), uint8(w.r.IntN(len(w.paths)+1))
	}
	w.receive(f)
}
