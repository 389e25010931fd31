package share

import "time"

// Constants of the dynamic share of multiprocessors, all ours: MuxFlow's are not published.
const (
	// muxMargin stays free, in ppm: kernels that are larger than the mean one wait for blocks of
	// the offline clients. With it the service of the scenario stays within 20 % of alone.
	muxMargin     = 300_000
	muxQuiet      = 10 * time.Second // after which an online client that runs nothing needs no room
	muxLeast      = 100_000
	muxMost       = 900_000
	muxHysteresis = 100_000 // smaller changes are not worth a restart
	muxWindow     = 2       // offline launches in flight
)

// muxflow runs online and offline clients side by side with MPS. Offline clients get the
// complement of the online clients' activity of multiprocessors, less a margin. Ours: the
// activity is that while kernels of the online client run, because the mean with its pauses
// leaves its requests too little. MPS fixes a client's share while it runs, so a new share
// is applied between two jobs, or at the first launch after a resize.
// SysMonitor admits, holds or evicts the offline clients. An offline client that gets a
// signal to end starts nothing more, and ends when nothing of it runs, so that its end
// cannot fail the shared context. A fault of the context evicts the offline clients and
// asks for a reset.
type muxflow struct {
	core[muxClient]
	monitor SysMonitor
	reset   bool
}

type muxClient struct {
	told   PPM           // share
	active PPM           // moving average of the activity of multiprocessors while kernels run
	ran    time.Duration // when a reading saw kernels
	held   bool          // told
	resize bool          // the next launch tells the share again: a job may have no end
}

func newMuxFlow(d Device, _ Settings) Policy { return &muxflow{core: core[muxClient]{device: d}} }

// Receive implements Policy.
func (p *muxflow) Receive(now time.Duration, e Event) {
	if e.Client == 0 && e.Kind == Sampled {
		p.clock(now)
		p.monitor.Observe(p.now, e.Sample.clamp(p.device), p.device)
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
	case Resized:
		c.state.resize = true
	case Sampled:
		c.state.observe(p.now, e.Sample)
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

// observe takes a reading of the client's sensors.
func (s *muxClient) observe(now time.Duration, r Sample) {
	if r.Utilisation == 0 {
		return
	}
	active := Ratio(time.Duration(r.SMActivity), time.Duration(r.Utilisation))
	if s.active == 0 || now-s.ran >= muxQuiet {
		s.active = active
	}
	s.active += (active - s.active) / 4
	s.ran = now
}

// offline returns the share that each offline client gets. Online clients may all run at once.
func (p *muxflow) offline() PPM {
	n, left := PPM(0), Whole-muxMargin
	for _, c := range p.clients {
		switch {
		case c.spec.Class == Offline:
			n++
		case p.now-c.state.ran < muxQuiet:
			left -= c.state.active
		}
	}
	return min(max(left/max(n, 1), muxLeast), muxMost)
}

// Transmit implements Policy.
func (p *muxflow) Transmit(now time.Duration, out []Decision) []Decision {
	p.clock(now)
	state := p.monitor.State()
	if state == HealthUnhealthy || state == HealthDisabled {
		for _, c := range p.clients {
			if c.spec.Class == Offline && c.state.told > 0 { // it has run
				p.evictFor(c, ReasonHealth)
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
		change := max(offline-c.state.told, c.state.told-offline)
		if c.state.told == 0 || c.state.resize || change >= muxHysteresis && c.head.kernel.First && len(c.flights) == 0 {
			c.state.told, c.state.resize = offline, false
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
