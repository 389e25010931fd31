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

// Spec describes a share. It has the same memory and compute on each of its GPUs.
type Spec struct {
	ID      string
	Class   share.Class
	Compute share.PPM // that it is to get
	Limit   share.PPM // highest; 0 means all
	Memory  int64     // bytes
	GPUs    []int     // indexes in Config.GPUs
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
}

// Reset empties the output.
func (o *Output) Reset() {
	o.Pages, o.Sends, o.Closes, o.Kills, o.Removed = o.Pages[:0], o.Sends[:0], o.Closes[:0], o.Kills[:0], o.Removed[:0]
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
	spec     Spec
	client   share.ClientID
	parts    []part // for each GPU of the spec
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
	failures uint64
}

// part is the part of one GPU.
type part struct {
	gpu      int
	used     uint64 // ≤ reserved
	reserved uint64 // ≥ limit
	kept     uint64 // least of reserved, until Settle
	absent   uint64 // that processes which have not come back may use
	state    wire.Gate
	window   uint32
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

// maxOverCommit bounds the memory that is given out, in percent of the GPU's.
const maxOverCommit = 1000

func (b *Broker) find(id string) *room {
	for _, r := range b.shares {
		if r.spec.ID == id {
			return r
		}
	}
	return nil
}

// missing is the error of a share that is not there.
func missing(id string) error { return fmt.Errorf("no share %q", id) }

// check checks what the agent's users gave.
func (s *Spec) check(gpus int) error {
	switch {
	case s.ID == "" || len(s.ID) > 63:
		return fmt.Errorf("name of %d bytes: want 1 to 63", len(s.ID))
	case len(s.GPUs) == 0 || len(s.GPUs) > wire.MaxGPUs:
		return fmt.Errorf("%d GPUs: want 1 to %d", len(s.GPUs), wire.MaxGPUs)
	case s.Memory <= 0 || s.Memory > wire.MaxBytes:
		return fmt.Errorf("%d bytes of memory: want 1 byte to 1 PiB", s.Memory)
	case s.Compute < 0 || s.Compute > share.Whole || s.Limit < 0 || s.Limit > share.Whole:
		return errors.New("compute: want 0 to 100 %")
	case s.Limit > 0 && s.Compute > s.Limit:
		return errors.New("the compute is above its limit")
	}
	for i := range len(s.ID) {
		if c := s.ID[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && (c != '-' || i == 0) {
			return fmt.Errorf("name %q: want small letters, digits and dashes", s.ID)
		}
	}
	for i, g := range s.GPUs {
		if g < 0 || g >= gpus || slices.Contains(s.GPUs[:i], g) {
			return fmt.Errorf("GPU %d is not there, or twice", g)
		}
	}
	return nil
}

func (s *Spec) client() share.ClientSpec {
	return share.ClientSpec{Class: s.Class, Request: s.Compute, Limit: s.Limit, Memory: s.Memory}
}

// room checks that a GPU has room for a share, beside the others.
func (b *Broker) room(gpu int, s *Spec, self *room, reserve uint64) error {
	g := &b.config.GPUs[gpu]
	memory, compute := b.left(gpu, self)
	switch {
	case reserve > memory:
		return fmt.Errorf("GPU %s has %d bytes of memory left, not %d", g.Name, memory, reserve)
	case s.Compute > compute:
		return fmt.Errorf("GPU %s has %.1f %% of its compute left, not %.1f %%", g.Name, percent(compute), percent(s.Compute))
	}
	return nil
}

// Left returns the memory in bytes and the compute of a GPU that no share has.
func (b *Broker) Left(gpu int) (memory int64, compute share.PPM) {
	m, c := b.left(gpu, nil)
	return int64(m), c
}

func (b *Broker) left(gpu int, without *room) (memory uint64, compute share.PPM) {
	memory = uint64(b.config.GPUs[gpu].Device.Memory) * uint64(b.config.OverCommit) / 100 // below 2^60
	compute = share.Whole
	for _, r := range b.shares {
		for i := range r.parts {
			if r != without && r.parts[i].gpu == gpu {
				memory -= r.parts[i].reserved
				compute -= r.spec.Compute
			}
		}
	}
	return memory, compute
}

func percent(p share.PPM) float64 { return float64(p) * 100 / float64(share.Whole) }

// Create adds a share. It fails if a GPU or its policy has no room for it. Kept is the
// memory that a former agent kept for it, if that is more than its limit.
func (b *Broker) Create(now time.Duration, s Spec, kept int64) error {
	if err := s.check(len(b.config.GPUs)); err != nil {
		return err
	}
	if b.find(s.ID) != nil {
		return fmt.Errorf("there is a share %q already", s.ID)
	}
	s.GPUs = slices.Clone(s.GPUs)
	b.next++
	r := &room{spec: s, client: b.next, dirty: true, killAt: machine.Never}
	for _, g := range s.GPUs {
		p := part{gpu: g, kept: uint64(min(max(kept, 0), wire.MaxBytes)), window: 1}
		p.reserved = max(uint64(s.Memory), p.kept)
		err := b.inService(g)
		if err == nil {
			err = b.room(g, &s, nil, p.reserved)
		}
		if err == nil {
			err = b.gates[g].Join(now, r.client, s.client())
		}
		if err != nil {
			for _, p := range r.parts {
				b.gates[p.gpu].Leave(now, r.client)
			}
			return err
		}
		r.parts = append(r.parts, p)
	}
	b.shares = append(b.shares, r)
	b.refresh()
	return nil
}

// Resize changes memory, compute and limit of a share. More than there is room for is
// refused, and less than the share uses takes effect as it frees memory.
func (b *Broker) Resize(now time.Duration, s Spec) error {
	r := b.find(s.ID)
	if r == nil {
		return missing(s.ID)
	}
	s.Class, s.GPUs = r.spec.Class, r.spec.GPUs
	if err := s.check(len(b.config.GPUs)); err != nil {
		return err
	}
	for i := range r.parts {
		if err := b.room(r.parts[i].gpu, &s, r, max(uint64(s.Memory), r.parts[i].used)); err != nil {
			return err
		}
	}
	for i := range r.parts {
		if b.gates[r.parts[i].gpu].Resize(now, r.client, s.client()) {
			continue
		}
		for _, p := range r.parts[:i] {
			b.gates[p.gpu].Resize(now, r.client, r.spec.client())
		}
		return fmt.Errorf("the policy of GPU %s has no room for this size", b.config.GPUs[r.parts[i].gpu].Name)
	}
	r.spec = s
	for i := range r.parts {
		r.release(i, 0)
	}
	r.dirty = true
	b.refresh()
	return nil
}

// Hold stops the launches of a share, or resumes them.
func (b *Broker) Hold(now time.Duration, id string, held bool) error {
	r := b.find(id)
	if r == nil {
		return missing(id)
	}
	r.held = held
	for _, p := range r.parts {
		b.gates[p.gpu].Hold(now, r.client, held)
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
	if len(r.members) > 0 {
		return
	}
	if r.end {
		r.end, r.killAt, r.dirty = false, machine.Never, true
	}
	if !r.leaves {
		return
	}
	for _, p := range r.parts {
		b.gates[p.gpu].Leave(now, r.client)
	}
	b.shares = slices.DeleteFunc(b.shares, func(x *room) bool { return x == r })
	b.out.Removed = append(b.out.Removed, r.spec.ID)
	b.refresh()
}

// evictGrace is the time that the processes of a share have to end when its policy evicts
// it: MuxFlow's graceful exit, which waits for the kernels in flight.
const evictGrace = 10 * time.Second

// Transmit appends what is to be done to the output.
func (b *Broker) Transmit(now time.Duration, out *Output) {
	for i, g := range b.gates {
		b.permits = g.Transmit(now, b.permits[:0])
		for _, x := range b.permits {
			if p := b.processes[x.Process]; p != nil && p.connected { // it may have left meanwhile
				b.send(p, wire.Message{Type: wire.Permit, GPU: p.share.index(i), ID: x.Launch})
			}
		}
		for _, e := range g.Evicted() {
			for _, r := range b.shares {
				if r.client == e.Client {
					r.evicted = e.Reason.String()
					b.ask(now, r, evictGrace)
					b.sweep(now, r)
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
			b.out.Pages = append(b.out.Pages, r.spec.ID)
		}
	}
	out.Pages = append(out.Pages, b.out.Pages...)
	out.Sends = append(out.Sends, b.out.Sends...)
	out.Closes = append(out.Closes, b.out.Closes...)
	out.Kills = append(out.Kills, b.out.Kills...)
	out.Removed = append(out.Removed, b.out.Removed...)
	b.out.Reset()
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

// index returns the place of a GPU in the page of a share.
func (r *room) index(gpu int) uint32 {
	return uint32(slices.IndexFunc(r.parts, func(p part) bool { return p.gpu == gpu }))
}

func (b *Broker) send(p *process, m wire.Message) {
	b.out.Sends = append(b.out.Sends, Send{p.id, m})
}

// refresh brings the states of all gates into the pages.
func (b *Broker) refresh() {
	for _, r := range b.shares {
		for i := range r.parts {
			p := &r.parts[i]
			g := b.gates[p.gpu]
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
	limit := r.spec.Limit
	if limit == 0 {
		limit = share.Whole
	}
	for i := range r.parts {
		p := &r.parts[i]
		g := &b.config.GPUs[p.gpu]
		page.GPUs = append(page.GPUs, wire.GPU{
			UUID: g.UUID, Domain: g.Domain, Address: g.Address, Gate: p.state, Window: p.window,
			Limit: uint64(r.spec.Memory), Used: p.used + p.absent, Compute: uint32(limit), Credit: uint32(b.gates[p.gpu].Credit(r.client)),
		})
	}
	return page, true
}
