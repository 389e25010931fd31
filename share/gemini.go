package share

import (
	"time"

	"github.com/dxpu-project/dxpu/machine"
)

// Constants of Gemini (Chen et al., "Gemini: Enabling Multi-Tenant GPU Sharing Based on
// Kernel Burst Estimation", TCC 2021), and of its published code.
const (
	geminiBase    = 250 * time.Millisecond // quota without a measured burst
	geminiMin     = 100 * time.Millisecond // least quota
	geminiWindow  = 10 * time.Second       // of the usage
	geminiPredict = 3 * time.Second        // of the predicted burst
	geminiMerge   = 2 * time.Millisecond   // bursts with a shorter gap are one
)

// geminiBuckets is how finely the window moves: every 25 ms. A limit holds over one bucket more
// than the window, so a client with its limit all the time waits that long in each window. Ours.
const geminiBuckets = 400

// geminiMost is how long the length of a kernel bounds the credit. Ours.
const geminiMost = 30 * time.Second

// gemini gives the GPU to one client at a time, the holder of the token. A token is
// valid for a quota that follows the client's bursts of kernels. Clients below their
// request come first; a client at its limit over the window gets none.
//
// Ours: the limit is
// kept, not only charged afterwards: a launch is permitted only if the time that it
// is predicted to take fits the rest of the limit, where Gemini charges what was
// over. The prediction is the profile's, or else the longest kernel of the last
// three seconds, one at a time while there is none. A launch that alone takes longer than the
// limit of a window goes when the client has used nothing, and the limit holds over a window
// that is as much longer. A limit that changes counts in the window for as long as it held. The
// usage of a client is the time for which it holds the token, or what the sensors saw, if that
// is more.
type gemini struct {
	core[geminiClient]
	holder *client[geminiClient]
	from   time.Duration // the token was given
	quota  time.Duration
	count  time.Duration // until when the holder's usage is counted
	over   bool          // the quota is used up: only drain
	most   time.Duration // of its turn, without a debt
}

type geminiClient struct {
	used    usage
	past    usage // of others, before it joined
	bursts  peak
	longest peak          // kernels
	burst   time.Duration // when the burst began, less the waits for the token
	part    time.Duration // of the burst, in earlier turns
	end     time.Duration // when the last one ended
	inBurst bool
	fresh   bool          // the burst's first launch waits
	most    peak          // kernels, of a longer time
	quota   time.Duration // the last one
	joined  time.Duration
	allowed allowance
	debt    Debt // for a turn that was longer than allowed
}

func newGemini(d Device, _ Settings) Policy {
	return &gemini{core: core[geminiClient]{device: d}}
}

// Receive implements Policy.
func (p *gemini) Receive(now time.Duration, e Event) {
	if e.Kind == Resized {
		p.change(now, &e)
	}
	c := p.receive(now, &e)
	if c == nil {
		return
	}
	s := &c.state
	switch e.Kind {
	case Join:
		*s = geminiClient{
			used: newUsage(geminiWindow, geminiBuckets), bursts: newPeak(geminiPredict, 30), longest: newPeak(geminiPredict, 30),
			most: newPeak(geminiMost, 30), end: -geminiMerge, quota: geminiBase, joined: p.now, past: p.past(c),
			allowed: newAllowance(geminiWindow, geminiBuckets, p.now), debt: Debt{from: p.now},
		}
	case Leave:
		if c == p.holder {
			p.release()
		}
	case Launch:
		if !s.inBurst {
			if p.now-s.end >= geminiMerge {
				s.burst, s.part = p.now, 0
			}
			s.inBurst, s.fresh = true, true
		}
	case Completed:
		s.longest.add(p.now, e.Ran)
		s.most.add(p.now, e.Ran)
	case Idle:
		s.inBurst, s.end = false, p.now
		b := p.now - s.burst
		if b < geminiMerge {
			b *= 2
		}
		s.bursts.add(p.now, b)
	case Sampled:
		p.sampled(c, e.Sample)
	default:
	}
}

// change counts what a limit gave its client before another one holds.
func (p *gemini) change(now time.Duration, e *Event) {
	p.clock(now)
	if c := p.find(e.Client); c != nil && c.spec.Limit != e.Spec.clamp(p.device).Limit {
		c.state.allowed.change(p.now, c.spec.Limit)
		c.state.debt.Pay(p.now, c.spec.Limit)
	}
}

// sampled charges a client whose kernels ran without the token: one that reported
// completions too early.
func (p *gemini) sampled(c *client[geminiClient], s Sample) {
	if c == p.holder || len(p.clients) < 2 {
		return
	}
	const span = time.Second // that sensors average over
	seen, charged := s.Utilisation.Of(span), c.state.used.sum(p.now)
	if seen > charged {
		c.state.used.add(p.now-min(p.now, seen-charged), p.now)
	}
}

// charge counts the holder's time until now.
func (p *gemini) charge() {
	if p.holder != nil {
		p.holder.state.used.add(p.count, p.now)
		p.count = p.now
	}
}

// release takes the token back. A burst that goes on in a later turn is as long as its parts
// with the token: the wait for it does not count.
func (p *gemini) release() {
	p.charge()
	s := &p.holder.state
	if s.inBurst {
		s.part = p.now - s.burst
	}
	if used := p.now - p.from; used > p.most {
		s.debt.End(p.now, used, p.holder.spec.Limit, machine.Never)
	} else {
		s.debt.Begin(p.now) // the window has all of it
	}
	p.holder, p.over = nil, false
}

// Transmit implements Policy.
func (p *gemini) Transmit(now time.Duration, out []Decision) []Decision {
	out = p.begin(now, out)
	p.charge()
	p.token()
	if h := p.holder; h != nil && !p.over && h.ready() && len(h.flights) < sliceWindow && p.fits(h) {
		h.state.fresh = false
		out = p.permit(h, out, false, 0)
	}
	return out
}

// token takes the token from a holder that is through, and gives it to the next client.
func (p *gemini) token() {
	if h := p.holder; h != nil {
		elapsed := p.now - p.from
		switch {
		case elapsed >= p.quota, h.evict != NoReason:
			p.over = true
		case h.ready() && h.state.fresh && elapsed+h.state.bursts.max(p.now) >= p.quota:
			p.over = true // the burst would not end in time: it takes part in the next choice
		case h.ready() && len(h.flights) == 0 && !p.fits(h):
			p.over = true
		}
		if p.over && len(h.flights) == 0 {
			p.release()
		}
	}
	if p.holder == nil {
		p.give()
	}
}

// rest returns the time that the client may still use in the window.
func (p *gemini) rest(c *client[geminiClient]) time.Duration {
	return c.state.allowed.sum(p.now, c.spec.Limit) - c.state.used.sum(p.now)
}

// expects predicts how long a launch takes. One that came before the first launch of its client
// ended has no time by its profile, also when all have ended long ago.
func (p *gemini) expects(c *client[geminiClient], f *flight, longest time.Duration) time.Duration {
	if longest == 0 && f.kernel.Expected == 0 {
		return c.state.most.max(p.now)
	}
	return max(f.kernel.Expected, longest)
}

// unlimited reports whether a client has had no limit for a whole window, and owes nothing.
func (p *gemini) unlimited(c *client[geminiClient]) bool {
	return c.spec.Limit == Whole && c.state.allowed.steady(p.now) && p.paid(c)
}

// paid reports whether a client owes nothing for a long turn.
func (p *gemini) paid(c *client[geminiClient]) bool { return p.now >= c.state.debt.Due(c.spec.Limit) }

// fits reports whether the client's waiting launch, behind those in flight, is
// predicted to end within the limit.
func (p *gemini) fits(c *client[geminiClient]) bool {
	if p.unlimited(c) {
		return true
	}
	if !p.paid(c) {
		return false
	}
	longest := c.state.longest.max(p.now)
	need := p.expects(c, &c.head, longest)
	for i := range c.flights {
		need += p.expects(c, &c.flights[i], longest)
	}
	if longest == 0 && c.head.kernel.Expected == 0 && len(c.flights) > 0 {
		return false
	}
	return need <= p.rest(c) || len(c.flights) == 0 && c.state.used.sum(p.now) == 0
}

// Credits implements Creditor: the launches of a turn, as long as those that the client
// launches without a permit fit its limit twice.
func (p *gemini) Credits(out []Credit) []Credit {
	h := p.holder
	if h == nil || p.over || p.now >= p.freshEnd() {
		return out
	}
	if !p.unlimited(h) {
		most := h.state.most.max(p.now)
		if most == 0 || 2*(sliceWindow+time.Duration(len(h.flights)))*most > p.rest(h) {
			return out
		}
	}
	return h.credit(out, sliceWindow)
}

// freshEnd returns until when a new burst of the holder would end in its quota, or Never
// within a burst.
func (p *gemini) freshEnd() time.Duration {
	s := &p.holder.state
	if s.inBurst && !s.fresh {
		return machine.Never
	}
	return machine.After(p.from, max(p.quota-s.bursts.max(p.now), 0))
}

// past returns what the client that has used the most has used, as the past of one that joins:
// otherwise clients that come and go would always have used the least.
func (p *gemini) past(c *client[geminiClient]) usage {
	past, most := newUsage(geminiWindow, geminiBuckets), time.Duration(0)
	for _, o := range p.clients {
		if o == c {
			continue
		}
		if n := o.state.used.sum(p.now) + o.state.past.sum(p.now); n > most {
			past, most = o.state.used.plus(&o.state.past), n
		}
	}
	return past
}

// give chooses the next holder: the client that misses the largest part of its request,
// then the one that used the least.
func (p *gemini) give() {
	var best *client[geminiClient]
	var missing PPM
	var used time.Duration
	for _, c := range p.clients {
		if !c.ready() || !p.fits(c) {
			continue
		}
		u := c.state.used.sum(p.now)
		// A client misses nothing of the time before it joined: otherwise clients that come and
		// go would always come first.
		m := Ratio(c.spec.Request.Of(min(geminiWindow, p.now-c.state.joined))-u, c.spec.Request.Of(geminiWindow))
		u += c.state.past.sum(p.now)
		if best == nil || m > missing || m == missing && u < used {
			best, missing, used = c, m, u
		}
	}
	if best == nil {
		return
	}
	s := &best.state
	if b := s.bursts.max(p.now); b > 0 {
		s.quota = b/2 + s.quota/2
	}
	s.quota = min(max(s.quota, geminiMin), best.spec.Limit.Of(geminiWindow))
	if s.inBurst {
		s.burst, s.part = p.now-s.part, 0
	}
	s.debt.Begin(p.now)
	p.most = s.allowed.sum(p.now, best.spec.Limit)
	p.holder, p.from, p.count, p.quota, p.over = best, p.now, p.now, s.quota, false
}

// Wake implements Policy.
func (p *gemini) Wake() time.Duration {
	at := p.wake()
	if h := p.holder; h != nil {
		if !p.over {
			at = min(at, machine.After(p.from, p.quota))
			if end := p.freshEnd(); end > p.now {
				at = min(at, end) // of its credit
			}
		}
		return at
	}
	for _, c := range p.clients {
		if c.ready() {
			at = min(at, c.state.used.next(p.now))
		}
	}
	return at
}
