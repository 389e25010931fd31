// Package fault describes what a bad network does to datagrams, and does it:
// loss, duplication, reordering, corruption, delay, partitions and a smaller
// MTU, from a seed, so that every run is repeatable.
package fault

import (
	"math/rand/v2"
	"slices"
	"time"
)

// Window is a span of time: From included, To excluded.
type Window struct{ From, To time.Duration }

// Plan is the description of a network direction. The zero value is a perfect
// network. [Parse] reads and String writes it as text:
//
//	loss=1%,dup=0.5%,reorder=2%,corrupt=0.1%,delay=10us,jitter=5us,mtu=1400,partition=2s-3s
type Plan struct {
	// Loss, Dup, Reorder and Corrupt are probabilities per datagram, 0 to 1.
	// A reordered datagram waits for ReorderBy more than the others; a corrupted
	// one has 1 to 4 bits flipped.
	Loss, Dup, Reorder, Corrupt float64
	// Delay is added to every datagram, and a uniform share of Jitter.
	Delay, Jitter time.Duration
	// MTU drops larger datagrams; 0 means none. With MTUAt it does so from then on.
	MTU   int
	MTUAt time.Duration
	// Partitions drop everything while they last.
	Partitions []Window
}

// Zero reports whether the plan changes nothing.
func (p *Plan) Zero() bool {
	return p.Loss == 0 && p.Dup == 0 && p.Reorder == 0 && p.Corrupt == 0 &&
		p.Delay == 0 && p.Jitter == 0 && p.MTU == 0 && len(p.Partitions) == 0
}

// Delivery is a datagram that arrives.
type Delivery struct {
	At   time.Duration
	Data []byte
}

// Stats counts what an Injector did.
type Stats struct {
	Datagrams, Lost, Duplicated, Reordered, Corrupted, TooLarge, Partitioned uint64
}

// Injector applies a plan to the datagrams of one direction.
type Injector struct {
	plan  Plan
	rand  *rand.Rand
	stats Stats
	out   []Delivery
}

// New makes an injector; equal seeds give equal behaviour.
func New(plan Plan, seed uint64) *Injector {
	plan.Partitions = slices.Clone(plan.Partitions)
	return &Injector{plan: plan, rand: rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15))}
}

// Stats returns the counters.
func (i *Injector) Stats() Stats { return i.stats }

// Apply passes one datagram and returns when and how it arrives: never, once,
// or twice. The slice is valid until the next call. Data aliases the datagram
// for the first delivery, unless it was corrupted, and is a copy otherwise.
func (i *Injector) Apply(now time.Duration, datagram []byte) []Delivery {
	p, s := &i.plan, &i.stats
	i.out = i.out[:0]
	s.Datagrams++
	for _, w := range p.Partitions {
		if now >= w.From && now < w.To {
			s.Partitioned++
			return nil
		}
	}
	if p.MTU > 0 && len(datagram) > p.MTU && now >= p.MTUAt {
		s.TooLarge++
		return nil
	}
	if i.hit(p.Loss) {
		s.Lost++
		return nil
	}
	i.deliver(now, datagram)
	if i.hit(p.Dup) {
		s.Duplicated++
		i.deliver(now, slices.Clone(datagram))
	}
	return i.out
}

func (i *Injector) hit(p float64) bool { return p > 0 && i.rand.Float64() < p }

func (i *Injector) deliver(now time.Duration, data []byte) {
	p := &i.plan
	at := now + p.Delay
	if p.Jitter > 0 {
		at += time.Duration(i.rand.Int64N(int64(p.Jitter) + 1))
	}
	if i.hit(p.Reorder) {
		i.stats.Reordered++
		at += time.Duration(1+i.rand.IntN(4)) * ReorderBy
	}
	if len(data) > 0 && i.hit(p.Corrupt) {
		i.stats.Corrupted++
		data = slices.Clone(data)
		for range 1 + i.rand.IntN(4) {
			bit := i.rand.IntN(8 * len(data))
			data[bit/8] ^= 1 << (bit % 8)
		}
	}
	i.out = append(i.out, Delivery{At: at, Data: data})
}

// ReorderBy is a step by which reordered datagrams come later, one to four of
// them: a few datagrams of 9000 bytes at 10 Gb/s.
const ReorderBy = 20 * time.Microsecond
