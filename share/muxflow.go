package share

import "time"

// Constants of the dynamic share of multiprocessors, all ours: MuxFlow's are not published.
const (
	muxMargin     = 100_000 // ppm that stay free for the online clients' peaks
	muxLeast      = 100_000
	muxMost       = 900_000
	muxHysteresis = 100_000 // smaller changes are not worth a restart
	muxWindow     = 2       // offline launches in flight
)

// muxflow runs online and offline clients side by side with MPS. Offline clients get the
// complement of the online clients' activity of multiprocessors, less a margin. MPS
// fixes a client's share while it runs, so a new share is applied between two jobs.
// SysMonitor admits, holds or evicts the offline clients. An offline client that gets a
// signal to end starts nothing more, and ends when nothing of it runs, so that its end
// cannot fail the shared context. A fault of the context evicts the offline clients and
// asks for a reset.
type muxflow struct {
	core[muxClient]
	monitor SysMonitor
	active  PPM // moving average of the online clients' activity of multiprocessors
	reset   bool
}

type muxClient struct {
	told   PPM // share
	sample PPM
	held   bool // told
}

func newMuxFlow(d Device, _ Settings) Policy { return &muxflow{core: core[muxClient]{device: d}} }

// Receive implements Policy.
func (p *muxflow) Receive(now time.Duration, e Event) {
	if e.Client == 0 && e.Kind == Sampled {
		p.clock(now)
		p.monitor.Observe(p.now, e.Sample.clamp(p.device), p.device)
		p.law()
		return
	}
	if e.Kind == Failed && e.Client == 0 {
		p.clock(now)
		p.fail(e.Fault)
		return
	}
	c := p.receive(now, &e)
	if c == nil {
		return
	}
	switch e.Kind {
	case Sampled:
		if c.spec.Class == Online {
			c.state.sample = e.Sample.SMActivity
		}
	case Failed:
		if e.Fault != FaultCleared { // only the GPU itself reports that it was reset
			p.fail(e.Fault)
		}
	default:
	}
}

func (p *muxflow) fail(f Fault) {
	before := p.monitor.State()
	p.monitor.Fail(f)
	p.reset = p.reset || before != HealthDisabled && p.monitor.State() == HealthDisabled
}

// law updates the moving average of the online activity.
func (p *muxflow) law() {
	var sum PPM
	for _, c := range p.clients {
		if c.spec.Class == Online {
			sum += c.state.sample
		}
	}
	p.active += (min(sum, Whole) - p.active) / 4
}

// offline returns the share that each offline client gets.
func (p *muxflow) offline() PPM {
	n := PPM(0)
	for _, c := range p.clients {
		if c.spec.Class == Offline {
			n++
		}
	}
	return min(max((Whole-p.active-muxMargin)/max(n, 1), muxLeast), muxMost)
}

// Transmit implements Policy.
func (p *muxflow) Transmit(now time.Duration, out []Decision) []Decision {
	p.clock(now)
	state := p.monitor.State()
	if state == HealthUnhealthy || state == HealthDisabled {
		for _, c := range p.clients {
			if c.spec.Class == Offline && c.state.told > 0 { // it has run
				c.evictFor(ReasonHealth)
			}
		}
	}
	out = p.begin(now, out)
	if p.reset {
		p.reset = false
		out = append(out, Decision{Kind: Reset})
	}
	out = p.hold(out, state)
	offline := p.offline()
	for _, c := range p.clients {
		if c.spec.Class == Online {
			if c.ready() && state != HealthDisabled {
				out = p.permit(c, out, true, 0)
			}
			continue
		}
		if state != Healthy || !c.ready() || len(c.flights) >= muxWindow {
			continue
		}
		if change := max(offline-c.state.told, c.state.told-offline); c.state.told == 0 || change >= muxHysteresis && c.head.kernel.First && len(c.flights) == 0 {
			c.state.told = offline
			out = append(out, Decision{Kind: SetShare, Client: c.id, Share: min(offline, c.spec.Limit)})
		}
		out = p.permit(c, out, false, 0)
	}
	return out
}

// Credits implements Creditor.
func (p *muxflow) Credits(out []Credit) []Credit {
	state := p.monitor.State()
	if state != HealthDisabled {
		out = p.creditOnline(out)
	}
	for _, c := range p.clients {
		if c.spec.Class == Offline && state == Healthy {
			out = c.credit(out, muxWindow)
		}
	}
	return out
}

// hold tells the offline clients whether they are held.
func (p *muxflow) hold(out []Decision, state Health) []Decision {
	held := state != Healthy
	kind := Resume
	if held {
		kind = Hold
	}
	for _, c := range p.clients {
		if c.spec.Class == Offline && c.state.held != held {
			c.state.held = held
			out = append(out, Decision{Kind: kind, Client: c.id})
		}
	}
	return out
}

// Wake implements Policy.
func (p *muxflow) Wake() time.Duration { return p.wake() }
