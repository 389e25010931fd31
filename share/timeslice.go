package share

import (
	"time"

	"github.com/dxpu-project/dxpu/machine"
)

// timeslice gives the GPU to one client at a time, in turn. A turn lasts Quantum times
// the client's weight; it ends early at the end of a
// burst, or when the client has nothing to run for Linger.
// The next turn begins when the launches in flight have completed.
//
// A turn's holder has at most sliceWindow launches in flight, because the next turn waits
// for them: the hardware, which ends a turn in the middle of a kernel, needs no bound.
//
// The quantum is that of the driver's default time slice as commonly measured, some
// milliseconds; NVIDIA publishes no figure.
type timeslice struct {
	core[struct{}]
	quantum, linger time.Duration
	holder          *client[struct{}]
	from            time.Duration // when the turn began
	idle            time.Duration // since when the holder has nothing, or Never
	over            bool          // the turn is over: only drain
}

func newTimeslice(d Device, s Settings) Policy {
	return &timeslice{core: core[struct{}]{device: d}, quantum: s.Quantum, linger: s.Linger, idle: machine.Never}
}

// sliceWindow hides the time of a launch behind kernels of a few microseconds. Ours.
const sliceWindow = 4

// Receive implements Policy.
func (p *timeslice) Receive(now time.Duration, e Event) {
	c := p.receive(now, &e)
	if c == nil || c != p.holder {
		return
	}
	switch e.Kind {
	case Leave:
		p.pass()
	case Idle:
		p.over = true
	default:
	}
}

// pass ends the turn.
func (p *timeslice) pass() { p.holder, p.over, p.idle = nil, false, machine.Never }

// Transmit implements Policy.
func (p *timeslice) Transmit(now time.Duration, out []Decision) []Decision {
	out = p.begin(now, out)
	p.turn()
	if h := p.holder; h != nil && !p.over && h.ready() && len(h.flights) < sliceWindow {
		out = p.permit(h, out, false, 0)
	}
	return out
}

// turn ends a turn that is over and begins the next one.
func (p *timeslice) turn() {
	if h := p.holder; h != nil {
		switch {
		case h.busy():
			p.idle = machine.Never
		case p.idle == machine.Never:
			p.idle = p.now
		}
		if p.now >= p.end() || p.idle != machine.Never && p.now >= machine.After(p.idle, p.linger) {
			p.over = true
		}
		if p.over && len(h.flights) == 0 {
			p.pass()
		}
	}
	if p.holder != nil {
		return
	}
	for _, c := range p.clients {
		if c.ready() {
			p.holder = first(p.holder, c)
		}
	}
	if p.holder != nil {
		p.take(p.holder)
		p.from = p.now
	}
}

// Credits implements Creditor: the launches of a turn.
func (p *timeslice) Credits(out []Credit) []Credit {
	if p.holder == nil || p.over {
		return out
	}
	return p.holder.credit(out, sliceWindow)
}

func (p *timeslice) end() time.Duration {
	return machine.After(p.from, p.quantum*time.Duration(p.holder.spec.Weight))
}

// Wake implements Policy.
func (p *timeslice) Wake() time.Duration {
	at := p.wake()
	if p.holder != nil && !p.over {
		at = min(at, p.end())
		if p.idle != machine.Never {
			at = min(at, machine.After(p.idle, p.linger))
		}
	}
	return at
}
