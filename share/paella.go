package share

import "time"

// paellaExtra is the number of kernels beyond those that fit on the GPU that Paella (Ng,
// Demoulin and Liu, "Paella: Low-latency Model Serving with Software-defined GPU
// Scheduling", SOSP 2023) keeps outstanding, so that the GPU does not wait.
const paellaExtra = 2

// paella keeps the queue in software: a launch is released only when it fits on the
// multiprocessors that are free, from the job with the shortest remaining time (SRPT).
// Each client has a deficit, which falls by one when a launch of it is released
// and rises by 1/n for each of the n others that wait; a client whose deficit reaches the
// threshold goes first, so a long job does not starve.
//
// Ours: Paella's deficit is that of a type of jobs, which the gate does not know; the
// threshold is Settings.Deficit, 2,000 launches, where Paella's default of 10⁶ never
// applies in practice; a launch counts, not a job; jobs with equal remaining times take
// turns; and completions come from events, where Paella's compiler reports each block.
// With Settings.FIFO the jobs go in the order of their arrival, for comparison.
type paella struct {
	core[paellaClient]
	fifo      bool
	threshold PPM
}

type paellaClient struct {
	deficit PPM // in millionths of a launch
	began   time.Duration
	inJob   bool
}

func newPaella(d Device, s Settings) Policy {
	return &paella{core: core[paellaClient]{device: d}, fifo: s.FIFO, threshold: PPM(s.Deficit) * Whole}
}

// Receive implements Policy.
func (p *paella) Receive(now time.Duration, e Event) {
	c := p.receive(now, &e)
	if c == nil {
		return
	}
	switch e.Kind {
	case Launch:
		if !c.state.inJob {
			c.state.inJob, c.state.began = true, p.now
		}
	case Idle:
		c.state.inJob, c.state.deficit = false, 0
	default:
	}
}

// Transmit implements Policy.
func (p *paella) Transmit(now time.Duration, out []Decision) []Decision {
	out = p.begin(now, out)
	c := p.choose()
	if c == nil || !p.fits(c.head.kernel.SMs) {
		return out
	}
	p.serve(c)
	p.take(c)
	return p.permit(c, out, false, 0)
}

// fits reports whether a launch fits beside those in flight.
func (p *paella) fits(sms int32) bool {
	free, outstanding := p.device.SMs, 0
	for _, c := range p.clients {
		for i := range c.flights {
			if i > 0 { // launches of one stream run one after another
				outstanding++
				continue
			}
			if n := c.flights[i].kernel.SMs; n <= free {
				free -= n
			} else {
				outstanding++
			}
		}
	}
	return sms <= free && outstanding == 0 || outstanding < paellaExtra
}

func (p *paella) choose() *client[paellaClient] {
	var best, starved *client[paellaClient]
	for _, c := range p.clients {
		if !c.ready() {
			continue
		}
		if best == nil || p.before(c, best) {
			best = c
		}
		if c.state.deficit >= p.threshold && (starved == nil || c.state.deficit > starved.state.deficit) {
			starved = c
		}
	}
	if starved != nil && !p.fifo {
		return starved
	}
	return best
}

func (p *paella) before(a, b *client[paellaClient]) bool {
	if p.fifo {
		return a.state.began < b.state.began
	}
	if x, y := a.head.kernel.Remaining, b.head.kernel.Remaining; x != y {
		return x < y
	}
	return a.turn < b.turn // as with all programs without a profile
}

// serve changes the deficits.
func (p *paella) serve(c *client[paellaClient]) {
	var waiting PPM
	for _, o := range p.clients {
		if o != c && o.ready() {
			waiting++
		}
	}
	for _, o := range p.clients {
		if o != c && o.ready() {
			o.state.deficit = min(o.state.deficit+Whole/waiting, 1<<50)
		}
	}
	c.state.deficit = max(c.state.deficit-Whole, -p.threshold)
}

// Credits implements Creditor. A client that alone has work has as many launches as Paella keeps
// on the GPU, and each may begin while none has work. Otherwise a launch asks, because the next
// one may be another client's.
func (p *paella) Credits(out []Credit) []Credit {
	var only *client[paellaClient]
	jobs := 0
	for _, c := range p.clients {
		if c.state.inJob {
			only = c
			jobs++
		}
	}
	switch jobs {
	case 0:
		for _, c := range p.clients {
			out = c.credit(out, 1)
		}
	case 1:
		out = only.credit(out, 1+paellaExtra)
	}
	return out
}

// Wake implements Policy.
func (p *paella) Wake() time.Duration { return p.wake() }
