package manager

import (
	"math"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// rates computes rates from the counters of successive reports of one node. It
// holds the last counters of each binding.
type rates map[string]rateSample

type rateSample struct {
	at             time.Time
	epoch          uint64
	sent, received uint64 // bytes
	sendRate       uint64 // bytes per second, of the interval that ended at time at
	receiveRate    uint64
}

// update sets the rates in a report that arrived at now, and forgets bindings
// that are not in it. It keeps the previous rate if two reports have the same
// time, and starts again if a counter has decreased.
func (r *rates) update(o *dxpuv1.ObservedState, now time.Time) {
	next := rates{}
	for _, s := range o.Slots {
		b := s.GetBinding()
		if b == nil {
			continue
		}
		old, known := (*r)[b.BindingId]
		known = known && old.epoch == b.Epoch
		c := b.Counters
		if c == nil {
			if known {
				next[b.BindingId] = old
			}
			continue
		}
		sample := rateSample{at: now, epoch: b.Epoch, sent: c.BytesSent, received: c.BytesReceived}
		switch elapsed := now.Sub(old.at); {
		case !known:
		case elapsed <= 0:
			sample = old
		default:
			sample.sendRate = perSecond(old.sent, c.BytesSent, elapsed)
			sample.receiveRate = perSecond(old.received, c.BytesReceived, elapsed)
		}
		c.SendRate, c.ReceiveRate = sample.sendRate, sample.receiveRate
		next[b.BindingId] = sample
	}
	*r = next
}

// perSecond returns the mean rate of a counter, 0 if the counter has decreased.
func perSecond(from, to uint64, elapsed time.Duration) uint64 {
	if to < from {
		return 0
	}
	v := float64(to-from) / elapsed.Seconds()
	if v >= math.MaxUint64 { // the node may report any value
		return math.MaxUint64
	}
	return uint64(v + 0.5)
}
