package share

import (
	"slices"
	"time"

	"github.com/dxpu-project/dxpu/machine"
)

// Constants of gaiapi, all ours.
const (
	piTick  = 10 * time.Millisecond
	piBurst = 20 * time.Millisecond // of the GPU's time, most that a bucket holds
	piGain  = 8                     // the correction moves by 1/8 of the error for each reading
	piMost  = Whole / 4             // of the correction: bounds the integral (anti-windup)
	// piLongest is how long the time of a launch bounds the credit.
	piLongest = 30 * time.Second
	// piSwing is the length of launches with which the readings swing, and say little.
	piSwing = 100 * time.Millisecond
	// piDebt is the most that a client owes: no launch takes longer without being stuck.
	piDebt = StuckAfter
)

// gaiapi is a better controller for the limits of gaia. Buckets hold time, not blocks:
// a launch costs the time per block that earlier launches of its size took, so the
// limit holds before the sensor has seen anything. At its end it costs what it took. The
// sensor, which lags, only corrects the rate, by a bounded integral that rests while the
// client does not use its limit, and while launches are long. A limit of all lets a client
// launch freely when its bucket owes nothing. Launches that are in flight when such a client
// gets a lower limit cost the time that passes until they have ended, and others wait for them.
type gaiapi struct {
	core[piClient]
	refill time.Duration
}

type piClient struct {
	bucket     time.Duration
	filled     time.Duration // until then
	free       bool          // nothing is charged
	drained    time.Duration // until when launches that were free are charged
	correction PPM
	starved    bool                   // launches waited since the last reading
	perSize    [piSizes]time.Duration // moving average, by size of the grid: for 1, 2, 4 blocks and so on
	longest    peak                   // launches
	charged    []piCharge             // launches in flight, or killed
}

// piCharge is what a launch was predicted to take.
type piCharge struct {
	launch LaunchID
	cost   time.Duration
	free   bool // it was permitted without a charge
}

// drains reports whether launches are in flight that were free.
func (s *piClient) drains() bool {
	return slices.ContainsFunc(s.charged, func(c piCharge) bool { return c.free })
}

// settle replaces the predicted cost of a launch that ended by what it took.
func (s *piClient) settle(now time.Duration, id LaunchID, ran time.Duration) {
	if i := slices.IndexFunc(s.charged, func(c piCharge) bool { return c.launch == id }); i >= 0 {
		c := &s.charged[i]
		switch {
		case !c.free:
			s.bucket = min(max(s.bucket+c.cost-ran, min(s.bucket, -piDebt)), piBurst)
		case now > s.drained: // the GPU did nothing for it for some of the time
			s.bucket = min(s.bucket+max(now-s.drained-ran, 0), piBurst)
			s.drained = now
		}
		s.charged = slices.Delete(s.charged, i, i+1)
	}
}

// swings reports whether the readings say little.
func (s *piClient) swings(now time.Duration) bool {
	return s.longest.max(now) >= piSwing || s.bucket < -piSwing
}

// piSizes is the number of classes of grids: by powers of two.
const piSizes = 41

func newGaiaPI(d Device, _ Settings) Policy {
	return &gaiapi{core: core[piClient]{device: d}, refill: piTick}
}

// piSize returns the class of a grid, and how much larger than the smallest one of the class it is.
func piSize(blocks int64) (n int, times float64) {
	times = float64(max(blocks, 1))
	for ; times >= 2 && n < piSizes-1; n++ {
		times /= 2
	}
	return n, times
}

// Receive implements Policy.
func (p *gaiapi) Receive(now time.Duration, e Event) {
	p.clock(now)
	if c := p.find(e.Client); c != nil && (e.Kind == Resized || c.state.drains()) {
		p.fill(c)
	}
	c := p.receive(now, &e)
	if c == nil {
		return
	}
	s := &c.state
	switch e.Kind {
	case Join:
		s.longest, s.filled, s.free = newPeak(piLongest, 30), p.now, c.spec.Limit == Whole
	case Resized:
		p.charge(c)
	case Killed:
		s.settle(p.now, e.Launch, e.Ran)
	case Completed:
		s.settle(p.now, e.Launch, e.Ran)
		s.longest.add(p.now, e.Ran)
		n, times := piSize(e.Kernel.Blocks)
		avg := &s.perSize[n]
		ran := time.Duration(float64(e.Ran) / times)
		if *avg == 0 {
			*avg = ran
		}
		*avg += (ran - *avg) / 4
	case Sampled:
		switch {
		case s.swings(p.now):
			s.correction = 0
		case s.starved: // otherwise the client does not want more
			s.correction += (c.spec.Limit - e.Sample.Utilisation) / piGain
			s.correction = min(max(s.correction, -piMost), piMost)
		case e.Sample.Utilisation > c.spec.Limit: // a higher rate than the limit is not needed
			s.correction = min(s.correction, max(s.correction+(c.spec.Limit-e.Sample.Utilisation)/piGain, 0))
		}
		s.starved = false
	default:
	}
}

// fill fills the bucket of a client by the limit that it has had.
func (p *gaiapi) fill(c *client[piClient]) {
	s := &c.state
	rate := min(max(c.spec.Limit+s.correction, 0), Whole)
	passed := p.now - s.filled
	s.bucket += rate.Of(passed)
	if s.drains() {
		s.bucket -= passed
	}
	s.bucket, s.filled = min(max(s.bucket, -maxExpected), piBurst), p.now
	s.free = c.spec.Limit == Whole && (s.free || s.bucket >= 0)
}

// charge lets launches in flight cost something from now on, if their client was free.
func (p *gaiapi) charge(c *client[piClient]) {
	s := &c.state
	if !s.free || c.spec.Limit == Whole {
		return
	}
	s.free = false
	for i := range c.flights {
		f := &c.flights[i]
		if !slices.ContainsFunc(s.charged, func(x piCharge) bool { return x.launch == f.id }) {
			s.charged, s.drained = append(s.charged, piCharge{launch: f.id, free: true}), p.now
		}
	}
}

// cost returns what the client's waiting launch is predicted to take: 0 if no launch has ended.
func (p *gaiapi) cost(c *client[piClient]) time.Duration {
	k := &c.head.kernel
	n, times := piSize(k.Blocks)
	if avg := c.state.perSize[n]; avg > 0 {
		return min(time.Duration(float64(avg)*times), StuckAfter)
	}
	if k.Expected > 0 {
		return min(k.Expected, StuckAfter)
	}
	return c.state.longest.max(p.now)
}

// fits reports whether the waiting launch of a client may start. The first of all goes alone:
// nothing is known of it.
func (p *gaiapi) fits(c *client[piClient]) bool {
	s := &c.state
	if s.free {
		return true
	}
	return s.bucket >= 0 && (len(c.flights) == 0 || p.cost(c) > 0) && !s.drains()
}

// Transmit implements Policy.
func (p *gaiapi) Transmit(now time.Duration, out []Decision) []Decision {
	out = p.begin(now, out)
	if p.now >= p.refill {
		p.refill = (p.now/piTick + 1) * piTick
		for _, c := range p.clients {
			p.fill(c)
		}
	}
	for _, c := range p.clients {
		switch {
		case !c.ready():
		case p.fits(c):
			if !c.state.free {
				cost := p.cost(c)
				c.state.bucket -= cost
				c.state.charged = append(c.state.charged, piCharge{launch: c.head.id, cost: cost})
			}
			out = p.permit(c, out, false, 0)
		default:
			c.state.starved = true
		}
	}
	return out
}

// Credits implements Creditor: clients without a limit, and those with some launches in their
// buckets.
func (p *gaiapi) Credits(out []Credit) []Credit {
	for _, c := range p.clients {
		switch {
		case c.state.free:
			out = c.credit(out, MaxInFlight)
		case !c.state.drains():
			out = c.credit(out, within(int64(c.state.bucket), int64(c.state.longest.max(p.now))))
		}
	}
	return out
}

// Wake implements Policy.
func (p *gaiapi) Wake() time.Duration {
	at := p.wake()
	for _, c := range p.clients {
		if c.waiting {
			at = min(at, p.refill)
		}
	}
	return min(at, machine.Never)
}
