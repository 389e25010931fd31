package share

import (
	"time"

	"github.com/dxpu-project/dxpu/machine"
)

// Constants of TGS (Wu et al., "Transparent GPU Sharing in Container Clouds for Deep
// Learning Workloads", NSDI 2023) and of its published code.
const (
	tgsWindow   = 50 * time.Millisecond // of the counter of thread blocks
	tgsSamples  = 5                     // readings that a rate is averaged over
	tgsStart    = 20_000                // blocks per window at the start
	tgsTheta    = 30_000                // ppm: a drop of the production rate that counts as none
	tgsRestart  = 3 * tgsTheta
	tgsLower    = 120_000 // ppm: a drop that lasts lowers the known rate
	tgsLowerFor = 20
	tgsNearZero = 1000
	tgsStep     = 1000
	tgsProfile  = 50_000 // ppm: readings that differ less are steady
	tgsForget   = 200_000
	tgsCap      = 1 << 40
	tgsMost     = 1 << 56 // blocks of a reading: their sums do not overflow
)

// tgs limits the thread blocks that opportunistic clients start, so that the rate of the
// production clients' thread blocks stays what it was alone. It knows no kernels: it
// profiles the production rate while the others wait, then raises the limit quickly
// (slow start) and, after the first drop of the rate, in small steps (avoid).
// Memory may be over-committed: the production clients' stays on the GPU.
//
// Ours: the rate is read every Settings.Sample, a second; a rate above the profiled
// one is no drop, and moves it up; profiling ends after 30 readings at the latest.
type tgs struct {
	core[tgsClient]
	sample  time.Duration
	window  time.Duration // end of the counters' window
	reading time.Duration // next reading
	state   tgsState
	limit   int64 // blocks per window of each opportunistic client
	max     int64 // production rate alone, blocks per reading
	blocks  int64 // of production, since the last reading
	history [tgsSamples]int64
	count   int // readings
	dropped int // readings in a row with a drop above tgsLower
}

type tgsState uint8

// States of the control. Profile → SlowStart → Avoid; a large drop leads back to
// SlowStart, a change of the rate alone to Profile, and production that ends or does
// nothing to Unlimited.
const (
	tgsUnlimited tgsState = iota
	tgsProfiling
	tgsSlowStart
	tgsAvoid
)

type tgsClient struct {
	counter  int64 // blocks in this window
	largest  int64 // blocks of a launch
	resident int64 // memory on the GPU that was told last
}

func newTGS(d Device, s Settings) Policy {
	return &tgs{core: core[tgsClient]{device: d, overCommit: d.Memory}, sample: s.Sample, window: tgsWindow, reading: s.Sample}
}

func (p *tgs) online() (n int) {
	for _, c := range p.clients {
		if c.spec.Class == Online {
			n++
		}
	}
	return n
}

// Receive implements Policy.
func (p *tgs) Receive(now time.Duration, e Event) {
	p.clock(now)
	p.pass()
	c := p.receive(now, &e)
	if c == nil || c.spec.Class != Online {
		return
	}
	switch e.Kind {
	case Join:
		p.profile()
	case Leave:
		if p.online() == 0 {
			p.state = tgsUnlimited
		} else {
			p.profile()
		}
	default:
	}
}

func (p *tgs) profile() {
	p.state, p.count, p.max, p.dropped, p.blocks = tgsProfiling, 0, 0, 0, 0
	p.reading = p.now + p.sample
}

// pass lets the windows and readings pass that ended before now.
func (p *tgs) pass() {
	if p.now >= p.window {
		p.window = (p.now/tgsWindow + 1) * tgsWindow
		for _, c := range p.clients {
			c.state.counter = 0
		}
	}
	if p.now >= p.reading {
		p.reading = p.now + p.sample
		p.read()
	}
}

// read takes a reading of the production rate and applies the law.
func (p *tgs) read() {
	p.history[p.count%tgsSamples] = p.blocks
	p.blocks = 0
	p.count++
	rate, zeros, n := int64(0), 0, min(p.count, tgsSamples)
	for _, b := range p.history[:n] {
		rate += b
		if b < tgsNearZero {
			zeros++
		}
	}
	rate /= int64(n)
	switch {
	case p.online() == 0:
		p.state = tgsUnlimited
	case p.state == tgsUnlimited:
		if rate >= tgsNearZero { // production works again
			p.profile()
		}
	case p.state == tgsProfiling:
		p.profiled(rate)
	case p.count > 15 && zeros > 2:
		p.state, p.count = tgsUnlimited, 0
	case zeros == 2:
		p.limit, p.state = tgsStart, tgsSlowStart
	default:
		p.control(rate)
	}
}

// profiled ends the profiling when the readings are steady.
func (p *tgs) profiled(rate int64) {
	if p.count < tgsSamples {
		return
	}
	low, high := p.history[0], p.history[0]
	for _, b := range p.history {
		low, high = min(low, b), max(high, b)
	}
	if drop(high, low) <= tgsProfile || p.count >= 30 {
		p.max, p.limit, p.state, p.dropped = max(rate, 1), tgsStart, tgsSlowStart, 0
	}
}

// drop returns how far b is below a, in ppm of a.
func drop(a, b int64) int64 {
	if a <= 0 || b >= a {
		return 0
	}
	for a > int64(maxFactor) {
		a, b = a>>1, b>>1
	}
	return (a - b) * int64(Whole) / a
}

// control is TGS' law.
func (p *tgs) control(rate int64) {
	if rate > p.max {
		if drop(rate, p.max) > tgsForget {
			p.profile()
			return
		}
		p.max += (rate - p.max) / 40 // by 2.5 %
	}
	delta := drop(p.max, rate)
	p.dropped++
	if delta < tgsLower {
		p.dropped = 0
	}
	switch {
	case p.dropped >= tgsLowerFor:
		p.max, p.limit, p.state, p.dropped = max(1, p.max/5*4), p.limit/2, tgsSlowStart, 0
	case p.state == tgsSlowStart && delta <= tgsTheta:
		p.limit += p.limit/2 + 1
	case p.state == tgsSlowStart:
		p.limit, p.state = p.limit/3*2, tgsAvoid
	case delta <= tgsTheta:
		p.limit += max(p.max/4000, tgsStep)
	case delta >= tgsRestart:
		p.limit, p.state = p.limit/10, tgsSlowStart
	default:
		p.limit -= max(p.limit/100*8, tgsStep)
	}
	p.limit = min(max(p.limit, 0), tgsCap)
}

// Transmit implements Policy.
func (p *tgs) Transmit(now time.Duration, out []Decision) []Decision {
	out = p.begin(now, out)
	p.pass()
	out = p.place(out)
	for _, c := range p.clients {
		switch {
		case !c.ready():
		case c.spec.Class == Online:
			p.blocks = min(p.blocks+c.head.kernel.Blocks, tgsMost)
			out = p.permit(c, out, true, 0)
		case p.state == tgsUnlimited, p.state != tgsProfiling && c.state.counter <= p.limit:
			c.state.counter += c.head.kernel.Blocks
			c.state.largest = max(c.state.largest, c.head.kernel.Blocks)
			out = p.permit(c, out, false, 0)
		}
	}
	return out
}

// place tells how much of the opportunistic memory stays on the GPU: what production
// leaves, in the order in which the clients joined.
func (p *tgs) place(out []Decision) []Decision {
	free := p.beside()
	for _, c := range p.clients {
		if c.spec.Class == Online {
			continue
		}
		n := min(c.memory, free)
		free -= n
		if n != c.state.resident {
			c.state.resident = n
			out = append(out, Decision{Kind: SetMemory, Client: c.id, Bytes: n})
		}
	}
	return out
}

// Credits implements Creditor. An opportunistic client has one while its largest launches
// would fit the limit.
func (p *tgs) Credits(out []Credit) []Credit {
	out = p.creditOnline(out)
	for _, c := range p.clients {
		switch {
		case c.spec.Class == Online:
		case p.state == tgsUnlimited:
			out = c.credit(out, MaxInFlight)
		case p.state != tgsProfiling:
			out = c.credit(out, within(p.limit-c.state.counter, c.state.largest))
		}
	}
	return out
}

// Wake implements Policy.
func (p *tgs) Wake() time.Duration {
	at := p.wake()
	for _, c := range p.clients {
		if c.waiting {
			at = min(at, p.window)
		}
	}
	if len(p.clients) > 0 {
		at = min(at, p.reading)
	}
	return max(at, min(p.now+1, machine.Never))
}
