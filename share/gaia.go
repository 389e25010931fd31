package share

import (
	"time"

	"github.com/dxpu-project/dxpu/machine"
)

// Constants of GaiaGPU (Gu et al., "GaiaGPU: Sharing GPUs in Container Clouds", ISPA
// 2018), as in the code of its controller.
const (
	gaiaPeriod   = 120 * time.Millisecond // between two readings of the utilisation
	gaiaFactor   = 32                     // buckets hold that many times the GPU's threads
	gaiaDivisor  = 2560
	gaiaLeast    = 5  // percent: smallest error that counts
	gaiaElastic  = 30 // readings between two changes of the elastic limit
	gaiaFreeOver = 10 // percent: mean idle share that lets elastic limits grow; ours
)

// gaia limits each client's utilisation with a bucket of thread blocks. A launch waits
// while the bucket is below zero and then takes its blocks out; every reading of the
// utilisation, which the driver averages over the last second, changes what each
// period adds. In elastic mode the limit of clients grows from their request to their
// Limit while the GPU has idle time.
//
// Its weaknesses are kept, as they are what the comparison shows: the control is
// integral only, its sensor lags by a second, and a block costs the same whatever it
// runs. See gaiapi for a better one.
type gaia struct {
	core[gaiaClient]
	refill time.Duration
	rounds int
	idle   PPM // sum of the idle readings since the last elastic change
}

type gaiaClient struct {
	bucket, share int64
	util          int64 // percent
	soft          int64 // the limit now, percent
	largest       int64 // blocks of a launch
}

func newGaia(d Device, _ Settings) Policy {
	return &gaia{core: core[gaiaClient]{device: d}, refill: gaiaPeriod}
}

func (p *gaia) total() int64 {
	return int64(p.device.SMs) * int64(p.device.ThreadsPerSM) * gaiaFactor
}

// Receive implements Policy.
func (p *gaia) Receive(now time.Duration, e Event) {
	if e.Kind == Sampled && e.Client == 0 {
		p.clock(now)
		p.elastic(e.Sample.clamp(p.device))
		return
	}
	c := p.receive(now, &e)
	if c == nil {
		return
	}
	switch e.Kind {
	case Join:
		for _, o := range p.clients { // a new process resets the elastic limits
			p.reset(o)
		}
		p.rounds, p.idle = 0, 0
	case Resized:
		p.reset(c)
	case Sampled:
		c.state.util = int64(e.Sample.Utilisation * 100 / Whole)
		p.delta(c)
	default:
	}
}

// reset sets the limit of a client to what it has before the elastic limits grow: its Limit if
// it is alone, or has no request.
func (p *gaia) reset(c *client[gaiaClient]) {
	limit := c.spec.Limit
	if c.spec.Request > 0 && len(p.clients) > 1 {
		limit = c.spec.Request
	}
	c.state.soft = int64(limit * 100 / Whole)
}

// delta is the controller.
func (p *gaia) delta(c *client[gaiaClient]) {
	s := &c.state
	d := s.soft - s.util
	if d < 0 {
		d = -d
	}
	d = max(d, gaiaLeast)
	inc := int64(p.device.SMs) * int64(p.device.SMs) * int64(p.device.ThreadsPerSM) * d / gaiaDivisor
	if d > s.soft/2 {
		inc = inc * 2 * d / (s.soft + 1)
	}
	if s.util <= s.soft {
		s.share += inc
	} else {
		s.share -= inc
	}
	s.share = min(max(s.share, 0), p.total())
}

// elastic raises the limits toward Limit while the GPU has idle time.
func (p *gaia) elastic(s Sample) {
	p.idle += Whole - s.Utilisation
	if p.rounds++; p.rounds < gaiaElastic {
		return
	}
	free := int64(p.idle*100/Whole) / gaiaElastic
	p.rounds, p.idle = 0, 0
	if free <= gaiaFreeOver {
		return
	}
	for _, c := range p.clients {
		c.state.soft = min(c.state.soft+free/2, int64(c.spec.Limit*100/Whole))
	}
}

// Transmit implements Policy.
func (p *gaia) Transmit(now time.Duration, out []Decision) []Decision {
	out = p.begin(now, out)
	if p.now >= p.refill {
		periods := (p.now-p.refill)/gaiaPeriod + 1
		p.refill += periods * gaiaPeriod
		n := int64(min(periods, 1<<20))
		for _, c := range p.clients {
			c.state.bucket = min(c.state.bucket+n*c.state.share, p.total())
		}
	}
	for _, c := range p.clients {
		switch {
		case !c.ready():
		case c.state.soft >= 100:
			out = p.permit(c, out, false, 0)
		case c.state.bucket >= 0:
			c.state.bucket -= c.head.kernel.Blocks
			c.state.largest = max(c.state.largest, c.head.kernel.Blocks)
			out = p.permit(c, out, false, 0)
		}
	}
	return out
}

// Credits implements Creditor: clients without a limit, and those with some launches in their
// buckets.
func (p *gaia) Credits(out []Credit) []Credit {
	for _, c := range p.clients {
		if c.state.soft >= 100 {
			out = c.credit(out, MaxInFlight)
		} else {
			out = c.credit(out, within(c.state.bucket, c.state.largest))
		}
	}
	return out
}

// Wake implements Policy.
func (p *gaia) Wake() time.Duration {
	at := p.wake()
	for _, c := range p.clients {
		if c.waiting {
			at = min(at, p.refill)
		}
	}
	return min(at, machine.Never)
}
