// Package fault describes and injects the faults of a network: loss, duplication,
// reordering, corruption, delay, partitions, a smaller MTU and a bottleneck. It
// is seeded, so every run is repeatable. A plan also lists faults of the sending
// process, which its owner injects: restarts and clock jumps.
package fault

import (
	"math/rand/v2"
	"slices"
	"time"
)

// Window is a half-open span of time: From is included, To excluded.
type Window struct{ From, To time.Duration }

// Jump advances the clock of the sending process, as after a suspension.
type Jump struct{ At, By time.Duration }

// Plan describes the faults of one direction of a network. The zero value is a
// perfect network. [Parse] reads and String writes its text form:
//
//	loss=1%,dup=0.5%,reorder=2%,corrupt=0.1%,delay=10us,jitter=5us,mtu=1400,partition=2s-3s
//	rate=12.5MB/s,queue=256KiB,restart=5s,jump=2s+300ms
type Plan struct {
	// Loss, Dup, Reorder and Corrupt are probabilities per datagram, 0 to 1.
	// A reordered datagram is delayed by 1 to 4 times ReorderBy. A corrupted one
	// has 1 to 4 bits flipped.
	Loss, Dup, Reorder, Corrupt float64
	// Delay is added to every datagram, and a uniform random part of Jitter.
	Delay, Jitter time.Duration
	// MTU is the size above which datagrams are dropped from MTUAt on; 0: none.
	MTU   int
	MTUAt time.Duration
	// Partitions are the times during which all datagrams are dropped.
	Partitions []Window
	// Rate is the bandwidth of a bottleneck in bytes per second, 0 for none.
	// Queue is the number of bytes that may wait for it before datagrams are
	// dropped, 0 for no limit.
	Rate  float64
	Queue int
	// Restarts and Jumps are faults of the sending process, which its owner injects.
	Restarts []time.Duration
	Jumps    []Jump
}

// Zero reports whether the plan has no faults.
func (p *Plan) Zero() bool {
	return p.Loss == 0 && p.Dup == 0 && p.Reorder == 0 && p.Corrupt == 0 &&
		p.Delay == 0 && p.Jitter == 0 && p.MTU == 0 && len(p.Partitions) == 0 && p.Rate == 0 &&
		len(p.Restarts) == 0 && len(p.Jumps) == 0
}

// Delivery is a datagram that arrives.
type Delivery struct {
	At   time.Duration
	Data []byte
}

// Stats counts the faults that an Injector has injected.
type Stats struct {
	Datagrams, Lost, Duplicated, Reordered, Corrupted, TooLarge, Partitioned uint64
	Overflowed                                                               uint64 // dropped at the full queue of the bottleneck
}

// Injector applies a plan to the datagrams of one direction.
type Injector struct {
	plan  Plan
	rand  *rand.Rand
	stats Stats
	busy  time.Duration // when the bottleneck has passed all earlier datagrams
	out   []Delivery
}

// New returns an injector. Equal plans and seeds give equal behaviour.
func New(plan Plan, seed uint64) *Injector {
	plan.Partitions, plan.Restarts, plan.Jumps = slices.Clone(plan.Partitions), nil, nil
	return &Injector{plan: plan, rand: rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15))}
}

// Stats returns the counters.
func (i *Injector) Stats() Stats { return i.stats }

// Apply injects faults into one datagram and returns its deliveries: none, one or
// two. The slice is valid until the next call. The Data of the first delivery
// aliases the datagram unless it was corrupted; other Data are copies.
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
	if p.Rate > 0 {
		waiting := max(i.busy-now, 0).Seconds() * p.Rate
		if p.Queue > 0 && int(waiting)+len(datagram) > p.Queue {
			s.Overflowed++
			return nil
		}
		i.busy = max(i.busy, now) + time.Duration(float64(len(datagram))/p.Rate*float64(time.Second))
		now = i.busy
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

// ReorderBy is the unit of the delay of reordered datagrams, which is 1 to 4
// units: the time of a few datagrams of 9000 bytes at 10 Gb/s.
const ReorderBy = 20 * time.Microsecond
