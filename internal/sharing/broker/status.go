package broker

import (
	"time"

	"github.com/dxpu-project/dxpu/share"
)

// Status is the state of a share.
type Status struct {
	ID       string
	Class    share.Class
	Parts    []PartStatus
	Page     []int // the GPUs in the order of the page, also those that it has no more
	Used     int64 // memory that it uses on all its GPUs, in bytes
	Launches uint64
	GPUTime  time.Duration
	InFlight int
	Held     bool
	Ending   bool
	Evicted  string // why its processes were ended last; "": they were not
	Counts
	Processes []ProcessStatus
}

// Counts are what a share has had since the broker has it.
type Counts struct {
	Permits   uint64 // launches that waited for an answer of their own; the others went by credit, or need none
	Refusals  uint64 // of memory
	Evictions uint64 // by the policy, or for an error
	Failures  uint64 // errors of the GPU that its processes reported
}

// PartStatus is the state of what a share has of a GPU. Its Kept is the memory that is kept
// for the share.
type PartStatus struct {
	Part
	Used     int64 // bytes
	Leaving  bool  // the share has it no more when its programs have ended
	Launches uint64
	Users    int // processes that may have a context there
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
		s := Status{ID: r.id, Class: r.class, Held: r.held, Ending: r.end, Evicted: r.evicted, Counts: r.counts}
		for i := range r.parts {
			p := &r.parts[i]
			s.Page = append(s.Page, p.GPU)
			if p.gone {
				continue
			}
			g := b.gates[p.GPU]
			u := g.Usage(r.client)
			s.Parts = append(s.Parts, r.partStatus(i, u.Launches))
			s.Used += int64(p.used)
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

func (r *room) partStatus(i int, launches uint64) PartStatus {
	q := &r.parts[i]
	s := PartStatus{Part: q.Part, Used: int64(q.used), Leaving: q.leaving, Launches: launches}
	s.Kept = int64(q.reserved)
	for _, p := range r.members {
		if p.held[i].opened {
			s.Users++
		}
	}
	return s
}

func (b *Broker) processStatus(p *process) ProcessStatus {
	s := ProcessStatus{PID: p.pid, Inside: p.inside, Connected: p.connected, Wrong: p.wrong, Failures: p.failed}
	for i := range p.share.parts {
		g := b.gates[p.share.parts[i].GPU]
		u := g.ProcessUsage(p.id)
		s.Memory += int64(p.held[i].bytes)
		s.Launches += u.Launches
		s.GPUTime += u.Busy
		s.Waiting += g.Waiting(p.id)
	}
	return s
}

// Account is what a share has used of its limit on a GPU.
type Account struct {
	Share string
	GPU   int
	share.Account
}

// Accounts returns what shares with limits have used of them.
func (b *Broker) Accounts(now time.Duration) []Account {
	var out []Account
	for _, r := range b.shares {
		for i := range r.parts {
			q := &r.parts[i]
			if q.gone || q.Limit == 0 || q.Limit == share.Whole {
				continue
			}
			if a := b.gates[q.GPU].Account(now, r.client); !a.Zero() {
				out = append(out, Account{r.id, q.GPU, a})
			}
		}
	}
	return out
}

// Charge gives a restored share what it had used some time ago.
func (b *Broker) Charge(now time.Duration, a *Account, ago time.Duration) {
	if r := b.find(a.Share); r != nil && r.has(a.GPU) {
		b.gates[a.GPU].Charge(now, r.client, a.Account, ago)
	}
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
