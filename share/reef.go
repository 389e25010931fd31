package share

import "time"

// reefWindow is the device queue of a best-effort client in REEF (Han et al.,
// "Microsecond-scale Preemption for Concurrent GPU-accelerated DNN Inferences", OSDI
// 2022). The time from a preemption to a free GPU is at most that of resetting two
// kernels.
const reefWindow = 2

// reef starts real-time kernels at once. When a real-time request begins, best-effort
// kernels on the GPU are killed; they run again later, which is correct only for
// kernels that may run twice. Beside a real-time kernel that leaves multiprocessors
// free, a best-effort kernel that is expected to end before it pads the GPU.
//
// Enforcement without a kill of running kernels (XSched's first level) ignores
// Preempt; the latency is then bounded by the window times the length of a kernel.
type reef struct {
	core[reefClient]
	requests int // real-time clients with a request under way
}

type reefClient struct {
	busy    bool // a request is under way
	preempt bool // is to be killed
}

func newREEF(d Device, _ Settings) Policy { return &reef{core: core[reefClient]{device: d}} }

// Receive implements Policy.
func (p *reef) Receive(now time.Duration, e Event) {
	c := p.receive(now, &e)
	if c == nil {
		return
	}
	online := c.spec.Class == Online
	switch e.Kind {
	case Launch:
		if online && !c.state.busy {
			c.state.busy = true
			p.requests++
			for _, o := range p.clients {
				o.state.preempt = o.spec.Class == Offline && len(o.flights) > 0
			}
		}
	case Idle, Leave:
		p.over(c)
	default:
	}
}

// over ends the request of a client.
func (p *reef) over(c *client[reefClient]) {
	if c.state.busy {
		c.state.busy = false
		p.requests--
	}
}

// Transmit implements Policy.
func (p *reef) Transmit(now time.Duration, out []Decision) []Decision {
	out = p.begin(now, out)
	for _, c := range p.clients {
		if p.now >= c.gapEnds() {
			p.over(c)
		}
		if c.state.preempt {
			c.state.preempt = false
			if len(c.flights) > 0 {
				out = append(out, Decision{Kind: Preempt, Client: c.id})
			}
		}
	}
	for _, c := range p.clients {
		if c.spec.Class == Online && c.ready() {
			out = p.permit(c, out, true, 0)
		}
	}
	var next *client[reefClient]
	for _, c := range p.clients {
		if c.spec.Class != Offline || !c.ready() || len(c.flights) >= reefWindow {
			continue
		}
		if _, ok := p.pad(c); ok {
			next = first(next, c)
		}
	}
	if next == nil {
		return out
	}
	p.take(next)
	sms, _ := p.pad(next)
	return p.permit(next, out, false, sms)
}

// pad returns on how many multiprocessors a best-effort launch may run now; 0 means all.
func (p *reef) pad(c *client[reefClient]) (sms int32, ok bool) {
	if p.requests == 0 {
		return 0, true
	}
	free, first := p.device.SMs, time.Duration(0)
	for _, o := range p.clients {
		if o.spec.Class == Offline {
			if len(o.flights) > 0 {
				return 0, false // one at a time pads
			}
			continue
		}
		if len(o.flights) > 0 {
			k := &o.flights[0].kernel
			free -= k.SMs
			first = max(first, k.Expected-(p.now-o.flights[0].since))
		}
	}
	k := &c.head.kernel
	if first <= 0 || free <= 0 || k.Expected <= 0 || k.SMs <= 0 {
		return 0, false
	}
	waves := (k.SMs + free - 1) / free // on fewer multiprocessors it takes longer
	return free, k.Expected*time.Duration(waves) <= first
}

// Credits implements Creditor. Beside a request the best-effort clients ask.
func (p *reef) Credits(out []Credit) []Credit {
	out = p.creditOnline(out)
	for _, c := range p.clients {
		if c.spec.Class == Offline && p.requests == 0 {
			out = c.credit(out, reefWindow)
		}
	}
	return out
}

// Wake implements Policy.
func (p *reef) Wake() time.Duration {
	at := p.wake()
	for _, c := range p.clients {
		if c.state.busy {
			at = min(at, c.gapEnds())
		}
	}
	return at
}
