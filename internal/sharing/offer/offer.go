// Package offer offers the GPUs of a machine to the manager of a pool, as a machine: it
// compares the desired states of two nodes, a box with the GPUs and a host for the programs,
// with the shares that the sharing agent has, and returns what the agent is to do and what
// the nodes report.
//
// A binding is a part of one GPU, and the parts of a lease are one share: a program in the
// lease has all of its GPUs. The box side makes the part and takes it away, and the host side
// lets programs in and asks them to end:
//
//	PREPARING   the box wants it:            Open    -> READY
//	READY       the host wants it, too, and
//	            all others of the lease:     Attach  -> ATTACHED
//	ATTACHED    the box wants another part:  Resize
//	DETACHING   the host has dropped it:     End, with the time that the manager gives
//	RESETTING   the box has dropped it, too: End, at once
//
// A part that is gone leaves both slots clean. Nothing is done for a node before its
// desired state is known, so an agent that starts while the manager is away leaves the
// programs alone.
package offer

import (
	"slices"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/share"
)

// The slots of the box: one for each GPU, and behind them those for parts of each. GPUs
// keep their place, and so all slots keep their numbers, when others come and go.
const (
	MaxGPUs = 16 // places
	Parts   = 15 // of each GPU
	slots   = MaxGPUs * (1 + Parts)
)

// Domain is the name of the only domain of the host.
const Domain = "local"

// abrupt is the time that programs have to end when the manager gives none.
const abrupt = 2 * time.Second

// unknownGrace is the time for a binding that the manager took away while no agent ran: its
// desired state does not have the time any more.
const unknownGrace = 10 * time.Second

// maxBindings bounds the bindings of one snapshot.
const maxBindings = 2 * slots

// GPU is a GPU that is offered.
type GPU struct {
	Name   string // that of the sharing agent
	Place  int    // from 0, below MaxGPUs
	Device *dxpuv1.Device
}

// Binding names a binding.
type Binding struct {
	Pool  string `json:"pool"` // the ID of the cluster
	ID    string `json:"binding"`
	Epoch uint64 `json:"epoch"`
}

// Lease is what a part knows of its lease. The sharing agent keeps it with the share.
type Lease struct {
	Binding
	Lease    string `json:"lease"`
	BoxSlot  uint32 `json:"box_slot"`
	HostSlot uint32 `json:"host_slot"`
	Attached bool   `json:"attached,omitempty"` // programs may come
	Leaving  bool   `json:"-"`                  // it ends with the last program that uses its GPU
}

// Share is what a lease has of one GPU, as the sharing agent has it.
type Share struct {
	Lease
	Memory    int64 // limit in bytes
	Kept      int64 // room that it has: its limit, or what it uses where that is more
	Compute   share.PPM
	Offline   bool
	Processes int
	Launches  uint64
}

// Condition is the state of a GPU.
type Condition struct {
	Failed string   // why it is out of service; "": it is in service
	Others []string // the shares that no lease of the pool has
}

// Seen is what the sharing agent has.
type Seen struct {
	Shares     []Share
	Conditions map[string]Condition // by the name of the GPU
}

func (s *Seen) share(b Binding) *Share {
	for i := range s.Shares {
		if s.Shares[i].Binding == b {
			return &s.Shares[i]
		}
	}
	return nil
}

// Kind is what an action does.
type Kind uint8

// Actions.
const (
	Open Kind = iota + 1
	Attach
	Resize
	End
)

// String returns the kind as a word.
func (k Kind) String() string {
	return [...]string{"", "open", "attach", "resize", "end"}[min(k, End)]
}

// Action is something that the sharing agent is to do. Its box slot says with which GPU: the name of
// a GPU may become that of another one before the agent does it.
type Action struct {
	Kind
	Lease
	Memory  int64
	Compute share.PPM
	Offline bool
	Grace   time.Duration
}

// Offer is the machine.
type Offer struct {
	gpus []GPU
	// Mode is how the agent's policy divides a GPU.
	mode      dxpuv1.ShareMode
	box, host *dxpuv1.DesiredState // nil: not known
	seen      Seen
	notes     map[Binding]*note
}

// note is what the machine remembers of a binding while the box wants it, or has its share.
type note struct {
	failed  string // why there is no share
	ended   bool   // the host has dropped it
	hurried bool   // its programs were told to end at once
	// tried is the size that the agent refused.
	tried    *dxpuv1.Part
	grace    time.Duration // from the host's desired state
	launches uint64
	active   time.Duration // of the last launch seen
}

// New returns an offer of some GPUs.
func New(gpus []GPU, mode dxpuv1.ShareMode) *Offer {
	return &Offer{gpus: gpus, mode: mode, notes: map[Binding]*note{}}
}

// SetGPUs says which GPUs are offered now.
func (o *Offer) SetGPUs(gpus []GPU) { o.gpus = gpus }

// WantBox takes the desired state of the box, which belongs to the machine then.
func (o *Offer) WantBox(d *dxpuv1.DesiredState) { o.box = bounded(d) }

// WantHost takes the desired state of the host.
func (o *Offer) WantHost(d *dxpuv1.DesiredState) { o.host = bounded(d) }

func bounded(d *dxpuv1.DesiredState) *dxpuv1.DesiredState {
	d.Bindings = d.Bindings[:min(len(d.Bindings), maxBindings)]
	return d
}

func key(d *dxpuv1.DesiredState, b *dxpuv1.DesiredBinding) Binding {
	return Binding{d.GetClusterId(), b.GetBindingId(), b.GetEpoch()}
}

// find returns a binding of a desired state, nil if it does not have it.
func find(d *dxpuv1.DesiredState, b Binding) *dxpuv1.DesiredBinding {
	for _, w := range d.GetBindings() {
		if w != nil && key(d, w) == b {
			return w
		}
	}
	return nil
}

func (o *Offer) note(b Binding) *note {
	n := o.notes[b]
	if n == nil {
		n = &note{grace: unknownGrace}
		o.notes[b] = n
	}
	return n
}

// Failed says that an action of a binding was refused.
func (o *Offer) Failed(a *Action, why error) {
	n := o.note(a.Binding)
	switch a.Kind {
	case Open:
		n.failed = why.Error()
	case End:
		n.hurried = false // it is tried again
	case Resize:
		if w := find(o.box, a.Binding); w != nil {
			n.tried = w.Part
		}
	}
}

// Step compares what is wanted with what the sharing agent has, and returns what it is to
// do. The machine keeps what was seen for the reports.
func (o *Offer) Step(now time.Duration, seen Seen) []Action {
	o.seen = seen
	var out []Action
	for i := range seen.Shares {
		out = o.follow(now, &seen.Shares[i], out)
	}
	for _, w := range o.box.GetBindings() {
		if w == nil || seen.share(key(o.box, w)) != nil || o.taken(w) {
			continue
		}
		twice := func(a Action) bool { return a.Kind == Open && (a.BoxSlot == w.Slot || a.Binding == key(o.box, w)) }
		if a, ok := o.open(w); ok && !slices.ContainsFunc(out, twice) {
			out = append(out, a)
		}
	}
	o.forget()
	return out
}

// follow does what is due for a share.
func (o *Offer) follow(now time.Duration, s *Share, out []Action) []Action {
	n := o.note(s.Binding)
	if s.Launches != n.launches {
		n.launches, n.active = s.Launches, now
	}
	if o.box == nil || o.host == nil {
		return out
	}
	box, host := find(o.box, s.Binding), find(o.host, s.Binding)
	if host != nil {
		n.grace = min(max(host.UnplugTimeout.AsDuration(), 0), maxGrace)
	}
	end := func(grace time.Duration) []Action {
		return append(out, Action{Kind: End, Lease: s.Lease, Grace: grace})
	}
	switch {
	case box == nil && !n.hurried:
		n.hurried = true
		return end(abrupt)
	case box == nil:
	case host == nil && s.Attached && !s.Leaving:
		n.ended = true
		return end(n.grace)
	case host != nil && !s.Attached && !s.Leaving:
		if o.awaited(s) {
			return out
		}
		return append(out, Action{Kind: Attach, Lease: s.Lease})
	case !s.Leaving:
		if a, ok := o.resize(s, box, n); ok {
			return append(out, a)
		}
	}
	return out
}

// maxGrace bounds the time that programs have to end.
const maxGrace = time.Hour

// awaited reports whether another GPU of the lease of a share is still to come. Programs have
// the GPUs of their start, so none starts before.
func (o *Offer) awaited(s *Share) bool {
	for _, w := range o.box.GetBindings() {
		if w == nil || w.LeaseId != s.Lease.Lease || key(o.box, w) == s.Binding {
			continue
		}
		other, n := o.seen.share(key(o.box, w)), o.notes[key(o.box, w)]
		switch {
		case n != nil && (n.ended || n.failed != ""): // it does not come
		case other != nil && other.Leaving:
		case other == nil && w.State > dxpuv1.BindingState_BINDING_STATE_PREPARING: // it is lost
		case other == nil, find(o.host, other.Binding) == nil:
			return true
		}
	}
	return false
}

// taken reports whether a share that is not wanted any more is in the slot of a binding, or
// its lease still has a part of the same GPU.
func (o *Offer) taken(w *dxpuv1.DesiredBinding) bool {
	place, _ := Place(w.Slot)
	return slices.ContainsFunc(o.seen.Shares, func(s Share) bool {
		at, _ := Place(s.BoxSlot)
		return s.BoxSlot == w.Slot || at == place && s.Lease.Lease == w.LeaseId
	})
}

// open returns the action that makes the share of a binding. The desired state of a binding
// that had one says so: its share is lost, and with it what programs knew of it.
func (o *Offer) open(w *dxpuv1.DesiredBinding) (Action, bool) {
	n := o.note(key(o.box, w))
	n.hurried = false
	if n.ended || n.failed != "" || w.State > dxpuv1.BindingState_BINDING_STATE_PREPARING {
		return Action{}, false
	}
	a := Action{Kind: Open, Lease: Lease{Binding: key(o.box, w), Lease: w.LeaseId, BoxSlot: w.Slot, HostSlot: w.GetPeer().GetSlot()}}
	g, part := o.at(w.Slot)
	switch {
	case g == nil:
		n.failed = "the machine has no GPU in this slot"
	case part && w.Part == nil:
		n.failed = "the binding does not say how large the part is"
	default:
		a.Offline = w.Part.GetClass() == dxpuv1.PartClass_PART_CLASS_OFFLINE
		n.failed = a.size(g, w.Part)
	}
	return a, n.failed == ""
}

// size sets the size of a share, and returns what is wrong with it.
func (a *Action) size(g *GPU, p *dxpuv1.Part) string {
	if p == nil {
		a.Memory, a.Compute = int64(g.Device.MemoryBytes), share.Whole
		return ""
	}
	if p.MemoryBytes == 0 || p.MemoryBytes > g.Device.MemoryBytes || p.Compute < 1 || p.Compute > 1000 {
		return "the part is not one of this GPU"
	}
	a.Memory, a.Compute = int64(p.MemoryBytes), share.PPM(p.Compute)*thousandth
	return ""
}

const thousandth = share.Whole / 1000

// resize returns the action that gives a share the size that the box wants.
func (o *Offer) resize(s *Share, w *dxpuv1.DesiredBinding, n *note) (Action, bool) {
	g, _ := o.at(s.BoxSlot)
	if g == nil || w.Part == nil || n.tried != nil && samePart(n.tried, w.Part) {
		return Action{}, false
	}
	a := Action{Kind: Resize, Lease: s.Lease}
	if a.size(g, w.Part) != "" || a.Memory == s.Memory && a.Compute == s.Compute {
		return a, false
	}
	return a, true
}

func samePart(a, b *dxpuv1.Part) bool {
	return a.GetMemoryBytes() == b.GetMemoryBytes() && a.GetCompute() == b.GetCompute()
}

// forget drops the notes of bindings that are neither wanted nor there.
func (o *Offer) forget() {
	for b := range o.notes {
		if find(o.box, b) == nil && o.seen.share(b) == nil {
			delete(o.notes, b)
		}
	}
}

// Place returns the place of the GPU of a slot of the box, and whether the slot is for a part of it.
func Place(slot uint32) (place int, part bool) {
	if slot < MaxGPUs {
		return int(slot), false
	}
	return int(slot-MaxGPUs) / Parts, true
}

// at returns the GPU of a slot of the box, and whether the slot is for a part of it.
func (o *Offer) at(slot uint32) (*GPU, bool) {
	place, part := Place(slot)
	i := slices.IndexFunc(o.gpus, func(g GPU) bool { return g.Place == place })
	if i < 0 {
		return nil, false
	}
	return &o.gpus[i], part
}
