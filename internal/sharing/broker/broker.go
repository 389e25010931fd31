// Package broker divides the GPUs of a machine between shares, as a machine: it keeps the
// account of the shares, their processes and their memory, answers the messages of package
// wire, and holds launches back by a gate for each GPU.
//
// Invariants, for each GPU: a process has at most what it was granted; the processes of a
// share use at most the room that is kept for it, which is its limit, or what it uses where
// that was above the limit when it shrank; the rooms of all shares are at most the memory of
// the GPU times the over-commitment.
package broker

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dxpu-project/dxpu/internal/sharing/gate"
	"github.com/dxpu-project/dxpu/internal/sharing/wire"
	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/share"
)

// GPU is a GPU of this machine.
type GPU struct {
	Name    string // its PCI address, or the name that a user gave it
	Model   string
	UUID    [16]byte // zero: not known
	Domain  uint32   // PCI domain
	Address uint16   // PCI bus << 8 | device << 3 | function
	Device  share.Device
}

// Config describes a broker.
type Config struct {
	GPUs       []GPU
	Policy     string        // of package share, for each GPU
	Closed     bool          // without an agent, launches wait
	OverCommit int           // memory that is given out, in percent of the GPU's; 0 means 100
	Silence    time.Duration // after which processes take the agent for gone
	Agent      uint64        // number of this start
}

// Spec describes a share.
type Spec struct {
	ID    string
	Class share.Class
	Parts []Part // one for each GPU
}

// ProcessID names a connection of a process. The caller chooses it, and does not use it again.
type ProcessID = gate.ProcessID

// Output is what the caller is to do, in the order of the fields.
type Output struct {
	Pages   []string    // shares whose page changed
	Sends   []Send      // messages
	Closes  []ProcessID // connections to close
	Kills   []ProcessID // processes to end by SIGKILL
	Removed []string    // shares that have ended
	Dropped []Dropped   // GPUs that shares have no more
}

// Reset empties the output.
func (o *Output) Reset() {
	o.Pages, o.Sends, o.Closes, o.Kills, o.Removed, o.Dropped = o.Pages[:0], o.Sends[:0], o.Closes[:0], o.Kills[:0], o.Removed[:0], o.Dropped[:0]
}

// Empty reports whether there is nothing to do.
func (o *Output) Empty() bool {
	return len(o.Pages)+len(o.Sends)+len(o.Closes)+len(o.Kills)+len(o.Removed)+len(o.Dropped) == 0
}

// Send is a message to a process.
type Send struct {
	Process ProcessID
	Message wire.Message
}

// Broker is the machine. Its methods take times that do not go backwards.
type Broker struct {
	config    Config
	gates     []*gate.Gate
	shares    []*room // in the order of their creation
	processes map[ProcessID]*process
	next      share.ClientID
	stopped   []string // why, by GPU; "": it is in service
	kills     []kill
	out       Output
	permits   []gate.Permit
}

// room is a share with its state.
type room struct {
	id       string
	class    share.Class
	client   share.ClientID
	parts    []part // in the order of the page
	members  []*process
	dirty    bool
	held     bool
	end      bool // its processes are to end
	grace    time.Duration
	killAt   time.Duration // machine.Never: not
	leaves   bool          // it ends with its last process
	waiting  []request     // for memory that absent processes may use
	lapsed   bool          // all processes are to come back
	restored bool          // there may be processes that are not members
	evicted  string        // why its processes were ended last
	counts   Counts
}

// New returns a broker without shares.
func New(c Config) (*Broker, error) {
	if len(c.GPUs) == 0 {
		return nil, errors.New("there is no GPU to share")
	}
	if c.OverCommit == 0 {
		c.OverCommit = 100
	}
	if c.OverCommit < 100 || c.OverCommit > maxOverCommit {
		return nil, fmt.Errorf("%d %% of the memory given out: want 100 to %d", c.OverCommit, maxOverCommit)
	}
	b := &Broker{config: c, processes: map[ProcessID]*process{}, stopped: make([]string, len(c.GPUs))}
	for i := range c.GPUs {
		g, err := gate.New(c.GPUs[i].Device, c.Policy)
		if err != nil {
			return nil, fmt.Errorf("GPU %s: %w", c.GPUs[i].Name, err)
		}
		b.gates = append(b.gates, g)
	}
	return b, nil
}

// AddGPU adds a GPU behind the others.
func (b *Broker) AddGPU(x GPU) error {
	g, err := gate.New(x.Device, b.config.Policy)
	if err != nil {
		return fmt.Errorf("GPU %s: %w", x.Name, err)
	}
	b.config.GPUs = append(slices.Clip(b.config.GPUs), x)
	b.gates, b.stopped = append(b.gates, g), append(b.stopped, "")
	return nil
}

// Replace says that a GPU which is out of service is back, perhaps elsewhere. It fails if the GPU is
// not as it was, or has too little memory for its shares.
func (b *Broker) Replace(gpu int, x GPU) error {
	old := &b.config.GPUs[gpu]
	memory, _ := b.Left(gpu)
	taken := old.Device.Memory*int64(b.config.OverCommit)/100 - memory
	switch {
	case x.Device.SMs != old.Device.SMs || x.Device.ThreadsPerSM != old.Device.ThreadsPerSM:
		return fmt.Errorf("GPU %s has %d multiprocessors, not %d", x.Name, x.Device.SMs, old.Device.SMs)
	case x.Device.Memory*int64(b.config.OverCommit)/100 < taken:
		return fmt.Errorf("GPU %s has %s of memory, and its shares were given %s", x.Name, bytesText(uint64(x.Device.Memory)), bytesText(uint64(taken)))
	}
	b.config.GPUs = slices.Clone(b.config.GPUs)
	b.config.GPUs[gpu] = x
	return nil
}

// Rename gives a GPU another name.
func (b *Broker) Rename(gpu int, name string) {
	b.config.GPUs = slices.Clone(b.config.GPUs)
	b.config.GPUs[gpu].Name = name
}

// Identify gives a GPU its UUID, which was not known before.
func (b *Broker) Identify(gpu int, uuid [16]byte) {
	b.config.GPUs = slices.Clone(b.config.GPUs)
	b.config.GPUs[gpu].UUID = uuid
	for _, r := range b.shares {
		r.dirty = r.dirty || r.has(gpu)
	}
}

// maxOverCommit bounds the memory that is given out, in percent of the GPU's.
const maxOverCommit = 1000

func (b *Broker) find(id string) *room {
	for _, r := range b.shares {
		if r.id == id {
			return r
		}
	}
	return nil
}

// missing is the error of a share that is not there.
func missing(id string) error { return fmt.Errorf("no share %q", id) }

// Hold stops the launches of a share, or resumes them.
func (b *Broker) Hold(now time.Duration, id string, held bool) error {
	r := b.find(id)
	if r == nil {
		return missing(id)
	}
	r.held = held
	for i := range r.parts {
		b.gates[r.parts[i].GPU].Hold(now, r.client, held)
	}
	b.refresh()
	return nil
}

// End ends a share: its processes are asked to end, and killed after the grace. It is
// removed with its last process.
func (b *Broker) End(now time.Duration, id string, grace time.Duration) error {
	r := b.find(id)
	if r == nil {
		return missing(id)
	}
	r.leaves = true
	b.ask(now, r, grace)
	b.sweep(now, r)
	return nil
}

// Abandon says that the owner of a share has ended: the share ends with its last process.
func (b *Broker) Abandon(now time.Duration, id string) {
	if r := b.find(id); r != nil {
		r.leaves = true
		b.sweep(now, r)
	}
}

// ask asks the processes of a share to end.
func (b *Broker) ask(now time.Duration, r *room, grace time.Duration) {
	grace = max(grace, 0)
	r.grace, r.dirty, r.end = grace, true, true
	r.killAt = min(r.killAt, machine.After(now, grace))
	for _, p := range r.members {
		if p.greeted && p.connected {
			b.send(p, wire.Message{Type: wire.End, Arg: [wire.Args]uint64{uint64(grace)}})
		}
	}
}

// sweep looks after a share that may have lost its last process.
func (b *Broker) sweep(now time.Duration, r *room) {
	b.depart(now, r)
	if len(r.members) > 0 || r.end && r.restored { // processes that come back are to end, too
		return
	}
	if r.end {
		r.end, r.killAt, r.dirty = false, machine.Never, true
	}
	if !r.leaves {
		return
	}
	for i := range r.parts {
		b.gates[r.parts[i].GPU].Leave(now, r.client)
	}
	b.shares = slices.DeleteFunc(b.shares, func(x *room) bool { return x == r })
	b.out.Removed = append(b.out.Removed, r.id)
	b.refresh()
}

// evictGrace is the time that the processes of a share have to end when its policy evicts
// it: MuxFlow's graceful exit, which waits for the kernels in flight.
const evictGrace = 10 * time.Second

// Transmit appends what is to be done to the output.
func (b *Broker) Transmit(now time.Duration, out *Output) {
	for i, g := range b.gates {
		if g.Reads(now) {
			b.tellMemory(i)
		}
		b.permits = g.Transmit(now, b.permits[:0])
		for _, x := range b.permits {
			if p := b.processes[x.Process]; p != nil && p.connected { // it may have left meanwhile
				p.share.counts.Permits++
				b.send(p, wire.Message{Type: wire.Permit, GPU: uint32(p.share.index(i)), ID: x.Launch})
			}
		}
		for _, e := range g.Evicted() {
			for _, r := range b.shares {
				if r.client == e.Client {
					b.evict(now, r, e.Reason.String(), evictGrace)
				}
			}
		}
	}
	b.credit()
	b.due(now)
	for _, r := range b.shares {
		if now >= r.killAt {
			r.killAt = machine.Never
			for _, p := range r.members {
				b.out.Kills = append(b.out.Kills, p.id)
			}
		}
		if r.dirty {
			r.dirty = false
			b.out.Pages = append(b.out.Pages, r.id)
		}
	}
	out.Pages = append(out.Pages, b.out.Pages...)
	out.Sends = append(out.Sends, b.out.Sends...)
	out.Closes = append(out.Closes, b.out.Closes...)
	out.Kills = append(out.Kills, b.out.Kills...)
	out.Removed = append(out.Removed, b.out.Removed...)
	out.Dropped = append(out.Dropped, b.out.Dropped...)
	b.out.Reset()
}

// tellMemory tells a gate what the shares use of the memory of its GPU.
func (b *Broker) tellMemory(gpu int) {
	for _, r := range b.shares {
		if i := r.index(gpu); i >= 0 && !r.parts[i].gone {
			b.gates[gpu].Use(r.client, int64(r.parts[i].used))
		}
	}
}

// Known reports whether a process has a connection or memory.
func (b *Broker) Known(id ProcessID) bool { return b.processes[id] != nil }

// Wake returns when Transmit is due without other calls, or machine.Never.
func (b *Broker) Wake() time.Duration {
	at := machine.Never
	for _, g := range b.gates {
		at = min(at, g.Wake())
	}
	for _, r := range b.shares {
		at = min(at, r.killAt)
	}
	for _, k := range b.kills {
		at = min(at, k.at)
	}
	return at
}

func (b *Broker) send(p *process, m wire.Message) {
	b.out.Sends = append(b.out.Sends, Send{p.id, m})
}

// refresh brings the states of all gates into the pages.
func (b *Broker) refresh() {
	for _, r := range b.shares {
		for i := range r.parts {
			p := &r.parts[i]
			if p.gone {
				continue
			}
			g := b.gates[p.GPU]
			state, window := wire.Asked, uint32(g.Window(r.client))
			switch {
			case g.Held(r.client):
				state = wire.Held
			case g.Open(r.client):
				state = wire.Open
			}
			if state != p.state || window != p.window {
				p.state, p.window, r.dirty = state, window, true
			}
		}
	}
}

// credit brings the credits that have changed into the pages.
func (b *Broker) credit() {
	for _, g := range b.gates {
		for _, id := range g.Changed() {
			if i := slices.IndexFunc(b.shares, func(r *room) bool { return r.client == id }); i >= 0 {
				b.shares[i].dirty = true
			}
		}
	}
}

// Page returns the page of a share.
func (b *Broker) Page(id string) (wire.Page, bool) {
	r := b.find(id)
	if r == nil {
		return wire.Page{}, false
	}
	page := wire.Page{Closed: b.config.Closed, End: r.end, Grace: r.grace, Silence: b.config.Silence, Agent: b.config.Agent, Processes: uint32(len(r.members))}
	for i := range r.parts {
		page.GPUs = append(page.GPUs, b.entry(r, &r.parts[i]))
	}
	return page, true
}
