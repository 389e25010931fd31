package share

import (
	"time"

	"github.com/dxpu-project/dxpu/machine"
)

// Constants of Orion (Strati et al., "Orion: Interference-aware, Fine-grained GPU
// Sharing for ML Applications", EuroSys 2024) and of its artifact.
const (
	orionDuration = 160 * time.Microsecond // of the offline launches in flight, as for ResNet-50
	orionSearch   = 10                     // iterations for each step of the search
	orionWait     = 30 * time.Second       // for the iterations alone: training may stop; ours
	orionSlower   = 50_000                 // accepted slow-down of online training, ppm; ours: a parameter there
)

// orion runs the kernels of online clients at once, with high priority, and releases one
// of the offline clients, in turn, while the online ones have nothing in their request,
// or if it needs few multiprocessors and is bound by another resource. The sum of
// the offline durations in flight is bounded. Beside online training it searches for
// the threshold of multiprocessors, by halves; beside several it keeps to the lowest one.
//
// Ours: the iteration time alone is measured during the first ten iterations, while
// offline kernels are held; Orion takes it from a profile.
type orion struct {
	core[orionClient]
	sum   time.Duration // of the offline launches since all had ended
	long  time.Duration // the longest of them that was expected
	size  int32         // multiprocessors of the offline launches in flight
	hp    Bound         // the bound of the online kernel that was released last
	seen  int           // online launches in requests that are under way
	drain bool          // the sum is over the bound
	gap   time.Duration // until then no request is over without a word of it
}

type orionClient struct {
	seen     int // launches in the current request
	began    time.Duration
	first    time.Duration // launch of training
	training bool
	updating bool
	tune     orionTuner
}

// orionTuner searches for the threshold of multiprocessors beside online training.
type orionTuner struct {
	low, high, now int32
	iterations     int
	sum            time.Duration
	alone          time.Duration // mean iteration
}

func newOrion(d Device, _ Settings) Policy {
	return &orion{core: core[orionClient]{device: d}}
}

// Receive implements Policy.
func (p *orion) Receive(now time.Duration, e Event) {
	c := p.receive(now, &e)
	if c == nil {
		return
	}
	online := c.spec.Class == Online
	switch e.Kind {
	case Join:
		c.state.tune = orionTuner{high: p.device.SMs, now: p.device.SMs / 2}
	case Leave:
		if online {
			p.seen -= c.state.seen
		} else {
			p.recount()
		}
	case Launch:
		if online {
			if e.Kernel.Update && !c.state.training {
				c.state.training, c.state.first = true, p.now
			}
			c.state.updating = e.Kernel.Update
			if e.Kernel.First {
				c.state.began = p.now
			}
		}
	case Completed, Killed:
		if !online {
			p.recount()
		} else {
			p.gap = min(p.gap, c.gapEnds())
		}
	case Idle:
		if online {
			p.over(c)
			if c.state.training {
				c.state.tune.iteration(p.now - c.state.began)
			}
		}
	default:
	}
}

// over ends the request of an online client.
func (p *orion) over(c *client[orionClient]) {
	p.seen -= c.state.seen
	c.state.seen, c.state.updating = 0, false
}

// iteration learns from an iteration of online training.
func (t *orionTuner) iteration(d time.Duration) {
	t.sum += d
	if t.iterations++; t.iterations < orionSearch {
		return
	}
	mean := t.sum / time.Duration(t.iterations)
	t.sum, t.iterations = 0, 0
	if t.alone == 0 {
		t.alone = mean
		return
	}
	if mean > t.alone+PPM(orionSlower).Of(t.alone) {
		t.high = t.now
	} else {
		t.low = t.now
	}
	t.now = (t.low + t.high) / 2
}

// recount sums up the offline launches in flight.
func (p *orion) recount() {
	p.size = 0
	flights := 0
	for _, c := range p.clients {
		if c.spec.Class == Offline {
			flights += len(c.flights)
			for i := range c.flights {
				p.size += c.flights[i].kernel.SMs
			}
		}
	}
	if flights == 0 {
		p.sum, p.drain = 0, false
	}
}

// Transmit implements Policy.
func (p *orion) Transmit(now time.Duration, out []Decision) []Decision {
	out = p.begin(now, out)
	if p.now >= p.gap {
		p.closeGaps()
	}
	if p.heads == 0 {
		return out
	}
	for _, c := range p.clients {
		if c.spec.Class == Online && c.ready() {
			p.hp = c.head.kernel.Bound
			p.seen++
			c.state.seen++
			out = p.permit(c, out, true, 0)
		}
	}
	if p.heads == 0 || p.drain || p.now < p.measuring() {
		return out
	}
	var next *client[orionClient]
	updating, threshold := p.training()
	for _, c := range p.clients {
		if c.spec.Class == Offline && c.ready() && p.release(&c.head.kernel, updating, threshold) {
			next = first(next, c)
		}
	}
	if next == nil {
		return out
	}
	p.take(next)
	k := &next.head.kernel
	p.sum += k.Expected
	p.long = max(p.long, k.Expected)
	p.size += k.SMs
	p.drain = p.sum > orionDuration
	return p.permit(next, out, false, 0)
}

// closeGaps ends the requests that had no launch for some time.
func (p *orion) closeGaps() {
	p.gap = machine.Never
	for _, c := range p.clients {
		switch {
		case c.state.seen == 0:
		case p.now >= c.gapEnds():
			p.over(c)
		default:
			p.gap = min(p.gap, c.gapEnds())
		}
	}
}

// training reports whether online training updates its weights, and the threshold of
// multiprocessors beside it.
func (p *orion) training() (updating bool, threshold int32) {
	threshold = p.device.SMs
	for _, c := range p.clients {
		if c.state.training {
			updating = updating || c.state.updating
			threshold = min(threshold, c.state.tune.now)
		}
	}
	return updating, threshold
}

// release is the rule for an offline launch.
func (p *orion) release(k *Kernel, updating bool, threshold int32) bool {
	switch {
	case p.seen == 0:
		return true
	case p.size+k.SMs > threshold:
		return false
	case updating:
		return true
	}
	return k.Bound == BoundUnknown || p.hp == BoundUnknown || k.Bound != p.hp
}

// measuring returns until when offline launches wait at most, because training has not
// been measured alone.
func (p *orion) measuring() (until time.Duration) {
	for _, c := range p.clients {
		if c.state.training && c.state.tune.alone == 0 {
			until = max(until, machine.After(c.state.first, orionWait))
		}
	}
	return until
}

// orionAhead bounds the credit of an offline client. Ours.
const orionAhead = 16

// Credits implements Creditor. While the online clients have nothing in their requests, an
// offline client has as many of the longest launches as the bound lets pass. Beside a request
// of unknown bound it has one at a time: any launch fits then.
func (p *orion) Credits(out []Credit) []Credit {
	out = p.creditOnline(out)
	if p.now < p.measuring() {
		return out
	}
	flights, alone := 0, p.seen == 0
	training := false
	for _, c := range p.clients {
		if c.spec.Class == Offline {
			flights += len(c.flights)
		}
		training = training || c.state.training
	}
	more := 1
	if p.long > 0 {
		more = int(min((orionDuration-p.sum)/p.long+1, orionAhead))
	}
	for _, c := range p.clients {
		switch {
		case c.spec.Class == Online:
		case alone && !p.drain:
			out = c.credit(out, int32(min(len(c.flights)+more, MaxInFlight)))
		case flights <= 1 && flights == len(c.flights) && (alone || p.hp == BoundUnknown && !training):
			out = c.credit(out, 1)
		}
	}
	return out
}

// Wake implements Policy.
func (p *orion) Wake() time.Duration {
	at := p.wake()
	if until := p.measuring(); until > p.now {
		at = min(at, until)
	}
	for _, c := range p.clients {
		if c.state.seen > 0 {
			at = min(at, c.gapEnds())
		}
	}
	return at
}
