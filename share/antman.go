package share

import (
	"time"

	"github.com/dxpu-project/dxpu/machine"
)

// Constants around AntMan (Xiao et al., "AntMan: Dynamic Scaling on GPU Clusters for
// Deep Learning", OSDI 2020). Its published code has the law of the idle slots, and
// the wait of 50 µs; that of the controller (the local coordinator) is missing, so
// these are ours.
const (
	antmanSlack  = 50 * time.Microsecond
	antmanAlone  = 10               // jobs of production that are measured alone
	antmanWait   = 30 * time.Second // for these jobs: production may do nothing
	antmanSlower = 20_000           // ppm: accepted slow-down of production
	antmanFirst  = 20               // performance at the start, percent
	antmanMost   = 100
	antmanBatch  = time.Second // of a mini-batch without an end
)

// antman gives offline clients idle slots: after each mini-batch of duration run, the
// client sleeps for run·100/performance − run − 50 µs. A program that launches on without
// waiting for its kernels ends no mini-batch: after a second it counts as one. A controller sets the
// performance from the slow-down of the production clients' mini-batches: it falls to
// three quarters above the accepted slow-down, and rises by two points below it.
// Memory may be over-committed, as AntMan moves tensors to the host.
type antman struct {
	core[antmanClient]
	perf int64 // percent, at least 1
}

type antmanClient struct {
	began  time.Duration // of the mini-batch: its first launch passed the gate
	until  time.Duration // the idle slot ends
	joined time.Duration
	inJob  bool
	jobs   int
	alone  time.Duration // mean mini-batch of a production client alone
	mean   time.Duration // moving average
	told   int64
}

func newAntMan(d Device, _ Settings) Policy {
	return &antman{core: core[antmanClient]{device: d, overCommit: d.Memory}, perf: antmanFirst}
}

// Receive implements Policy.
func (p *antman) Receive(now time.Duration, e Event) {
	c := p.receive(now, &e)
	if c == nil {
		return
	}
	s := &c.state
	switch e.Kind {
	case Join, Leave:
		s.joined = p.now
		if c.spec.Class == Online {
			p.perf = antmanFirst
		}
	case Idle:
		if s.inJob && c.spec.Class == Online {
			s.inJob = false
			p.observe(s, p.now-s.began)
		}
		p.end(s)
	default:
	}
}

// end ends the mini-batch of an offline client, and begins its idle slot.
func (p *antman) end(s *antmanClient) {
	if !s.inJob {
		return
	}
	s.inJob = false
	run := p.now - s.began
	s.until = p.now + max(0, run*antmanMost/time.Duration(p.perf)-run-antmanSlack)
}

// long reports whether the mini-batch of an offline client does not end by itself.
func (p *antman) long(c *client[antmanClient]) bool {
	return c.spec.Class == Offline && c.state.inJob && p.now-c.state.began >= antmanBatch
}

// observe is the controller.
func (p *antman) observe(s *antmanClient, run time.Duration) {
	s.jobs++
	if s.jobs <= antmanAlone {
		s.alone += (run - s.alone) / time.Duration(s.jobs)
		s.mean = s.alone
		return
	}
	s.mean += (run - s.mean) / 4
	if s.mean > s.alone+PPM(antmanSlower).Of(s.alone) {
		p.perf = max(1, p.perf*3/4)
		return
	}
	p.perf = min(antmanMost, p.perf+2)
}

// measuring returns until when offline clients wait at most, because a production client
// has not been measured alone.
func (p *antman) measuring() (until time.Duration) {
	for _, c := range p.clients {
		if c.spec.Class == Online && c.state.jobs < antmanAlone {
			until = max(until, machine.After(c.state.joined, antmanWait))
		}
	}
	return until
}

// limited reports whether there is production to protect.
func (p *antman) limited() bool {
	for _, c := range p.clients {
		if c.spec.Class == Online {
			return true
		}
	}
	return false
}

// Transmit implements Policy.
func (p *antman) Transmit(now time.Duration, out []Decision) []Decision {
	out = p.begin(now, out)
	free := p.beside()
	measuring, limited := p.measuring(), p.limited()
	for _, c := range p.clients {
		online := c.spec.Class == Online
		if n := min(c.memory, free); !online {
			free -= n
			if n != c.state.told {
				c.state.told = n
				out = append(out, Decision{Kind: SetMemory, Client: c.id, Bytes: n})
			}
		}
		// Alone, it need not drain: all the time alone would be one mini-batch, with an idle slot of
		// several times that once production comes.
		if p.long(c) && (len(c.flights) == 0 || !limited) {
			p.end(&c.state)
		}
		if !c.ready() || !online && limited && (p.now < max(measuring, c.state.until) || p.long(c)) {
			continue
		}
		if !c.state.inJob {
			c.state.inJob, c.state.began = true, p.now
		}
		out = p.permit(c, out, online, 0)
	}
	return out
}

// Credits implements Creditor. Offline clients ask in their idle slots.
func (p *antman) Credits(out []Credit) []Credit {
	measuring, limited := p.measuring(), p.limited()
	for _, c := range p.clients {
		if c.spec.Class == Online || !limited || p.now >= max(measuring, c.state.until) && !p.long(c) {
			out = c.credit(out, MaxInFlight)
		}
	}
	return out
}

// Wake implements Policy.
func (p *antman) Wake() time.Duration {
	at := p.wake()
	measuring := p.measuring()
	for _, c := range p.clients {
		if until := max(measuring, c.state.until); c.waiting && c.spec.Class == Offline && until > p.now {
			at = min(at, until)
		}
		if c.state.inJob && c.spec.Class == Offline && !p.long(c) {
			at = min(at, machine.After(c.state.began, antmanBatch)) // of its credit
		}
	}
	return at
}
