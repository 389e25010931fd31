package broker

import (
	"time"
)

// Status is the state of a share.
type Status struct {
	Spec      Spec
	Kept      int64 // memory that is kept for it on the GPU where this is most, in bytes
	Used      int64 // memory that it uses on all its GPUs, in bytes
	Launches  uint64
	GPUTime   time.Duration
	InFlight  int
	Held      bool
	Ending    bool
	Evicted   string // why its processes were ended last; "": they were not
	Failures  uint64 // errors of the GPU that its processes reported
	Processes []ProcessStatus
}

// ProcessStatus is the state of a process.
type ProcessStatus struct {
	PID       int    // as the agent sees it; 0: not known
	Inside    uint64 // as the process sees itself
	Connected bool
	Memory    int64 // bytes, on all GPUs
	Launches  uint64
	GPUTime   time.Duration
	Waiting   int    // launches
	Wrong     uint64 // messages that did not fit
	Failures  uint64
}

// Status returns the state of all shares, in the order of their creation.
func (b *Broker) Status() []Status {
	var out []Status
	for _, r := range b.shares {
		s := Status{Spec: r.spec, Held: r.held, Ending: r.end, Evicted: r.evicted, Failures: r.failures}
		for _, p := range r.parts {
			g := b.gates[p.gpu]
			u := g.Usage(r.client)
			s.Used += int64(p.used)
			s.Kept = max(s.Kept, int64(p.reserved))
			s.Launches += u.Launches
			s.GPUTime += u.Busy
			s.InFlight += g.InFlight(r.client)
		}
		for _, p := range r.members {
			s.Processes = append(s.Processes, b.processStatus(p))
		}
		out = append(out, s)
	}
	return out
}

func (b *Broker) processStatus(p *process) ProcessStatus {
	s := ProcessStatus{PID: p.pid, Inside: p.inside, Connected: p.connected, Wrong: p.wrong, Failures: p.failed}
	for i, q := range p.share.parts {
		g := b.gates[q.gpu]
		u := g.ProcessUsage(p.id)
		s.Memory += int64(p.held[i].bytes)
		s.Launches += u.Launches
		s.GPUTime += u.Busy
		s.Waiting += g.Waiting(p.id)
	}
	return s
}

// Violations returns the number of events that the policies found wrong.
func (b *Broker) Violations() uint64 {
	var n uint64
	for _, g := range b.gates {
		n += g.Violations()
	}
	return n
}

// GPUs returns the GPUs, and the room that each one has.
func (b *Broker) GPUs() []GPU { return b.config.GPUs }
