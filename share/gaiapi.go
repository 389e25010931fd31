package share

import (
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
)

// gaiapi is a better controller for the limits of gaia. Buckets hold time, not blocks:
// a launch costs the time per block that earlier launches of its size took, so the
// limit holds before the sensor has seen anything. The sensor, which lags, only corrects
// the rate, by a bounded integral that rests while the client does not use its limit.
type gaiapi struct {
	core[piClient]
	refill time.Duration
}

type piClient struct {
	bucket     time.Duration
	correction PPM
	starved    bool                   // launches waited since the last reading
	perBlock   [piSizes]time.Duration // ×1024, moving average, by size of the grid
	longest    peak                   // launches
}

// piSizes is the number of classes of grids: by powers of two.
const piSizes = 41

func newGaiaPI(d Device, _ Settings) Policy {
	return &gaiapi{core: core[piClient]{device: d}, refill: piTick}
}

// piSize returns the class of a grid.
func piSize(blocks int64) (n int) {
	for ; blocks > 1 && n < piSizes-1; n++ {
		blocks >>= 1
	}
	return n
}

// Receive implements Policy.
func (p *gaiapi) Receive(now time.Duration, e Event) {
	c := p.receive(now, &e)
	if c == nil {
		return
	}
	s := &c.state
	switch e.Kind {
	case Join:
		s.longest = newPeak(piLongest, 30)
	case Completed:
		s.longest.add(p.now, e.Ran)
		avg := &s.perBlock[piSize(e.Kernel.Blocks)]
		ran := min(e.Ran, time.Minute) * 1024 / time.Duration(e.Kernel.Blocks)
		if *avg == 0 {
			*avg = ran
		}
		*avg += (ran - *avg) / 4
	case Sampled:
		if s.starved { // otherwise the client does not want more
			s.correction += (c.spec.Limit - e.Sample.Utilisation) / piGain
			s.correction = min(max(s.correction, -piMost), piMost)
		}
		s.starved = false
	default:
	}
}

// cost returns what the client's waiting launch is predicted to take.
func (p *gaiapi) cost(c *client[piClient]) time.Duration {
	k := &c.head.kernel
	if avg := c.state.perBlock[piSize(k.Blocks)]; avg > 0 {
		return min(avg, time.Hour/time.Duration(k.Blocks)*1024) * time.Duration(k.Blocks) / 1024
	}
	return k.Expected
}

// Transmit implements Policy.
func (p *gaiapi) Transmit(now time.Duration, out []Decision) []Decision {
	out = p.begin(now, out)
	if p.now >= p.refill {
		ticks := min((p.now-p.refill)/piTick+1, 100)
		p.refill = (p.now/piTick + 1) * piTick
		for _, c := range p.clients {
			rate := min(max(c.spec.Limit+c.state.correction, 0), Whole)
			c.state.bucket = min(c.state.bucket+rate.Of(piTick*ticks), piBurst)
		}
	}
	for _, c := range p.clients {
		switch {
		case !c.ready():
		case c.spec.Limit == Whole || c.state.bucket >= 0:
			if c.spec.Limit < Whole {
				c.state.bucket -= p.cost(c)
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
		if c.spec.Limit == Whole {
			out = c.credit(out, MaxInFlight)
		} else {
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
