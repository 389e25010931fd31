package manager

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/revision"
)

// clock is a manual clock.
type clock struct {
	mu sync.Mutex // streams read the clock concurrently
	t  time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) pass(d time.Duration) { c.set(c.now().Add(d)) }

func (c *clock) set(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = t
}

// fakeNode is a proxy that applies its desired state in one step.
type fakeNode struct {
	id         string
	kind       dxpuv1.NodeKind
	boxKind    dxpuv1.BoxKind
	slots      int
	divided    int  // slots for parts of each GPU, above those of the GPUs; 0: they cannot be divided
	keeps      bool // parts keep their memory when they should shrink
	model      string
	models     map[uint32]string // of single slots, instead of model; empty: no device
	serials    map[uint32]string
	unlisted   map[uint32]bool // slots that are missing from reports
	memory     uint64          // bytes of each GPU; 0: 1 GiB
	proxy      uint32          // GPUs that use up a box proxy's bandwidth
	rack       string
	peer       string   // the node of the other kind on the same machine; empty: none
	several    bool     // a lease may have several of its GPUs
	paths      []uint32 // IDs of the networks on which it has an address; nil: 0
	labels     map[string]string
	domain     func(slot uint32) string
	down       bool                         // neither receives its desired state nor reports
	deaf       bool                         // reports, but does not receive its desired state
	dead       map[uint32]bool              // failed devices
	linkDown   bool                         // a host reports every binding as lost
	refuses    bool                         // reports every new binding as FAILED
	refusal    string                       // of a host: why it cannot attach devices; "": it can
	waits      string                       // of a host: what attaches wait for; "": nothing
	errors     map[uint32]map[uint32]uint64 // of a device by code, since the proxy started
	resets     map[uint32]uint64            // the sequence carried out last
	resetCount int
	noResets   bool            // of a version without resets
	pathHealth []dxpuv1.Health // of every binding
	ejects     bool            // the guest ejects attached devices
	plugged    uint32          // replugs carried out
	holds      string          // why the guest keeps the device; "": it releases it
	forces     string          // why devices are removed by force; "": they are not
	removals   map[uint32]*dxpuv1.Removal

	moves    move // its part in a live migration
	wants    map[uint32]*dxpuv1.DesiredBinding
	instance int
	sequence uint64
	applied  uint64
	has      map[uint32]*dxpuv1.ObservedBinding
}

func (n *fakeNode) box() bool { return n.kind == dxpuv1.NodeKind_NODE_KIND_BOX }

// apply applies a desired state: it removes and adds bindings at once.
func (n *fakeNode) apply(d *dxpuv1.DesiredState) {
	if n.down || n.deaf || !revision.Replaces(d.Revision, n.applied) {
		return
	}
	n.applied = d.Revision
	have := n.has
	n.has, n.wants = map[uint32]*dxpuv1.ObservedBinding{}, map[uint32]*dxpuv1.DesiredBinding{}
	for _, r := range d.Resets {
		if !n.noResets {
			if n.resets[r.Slot] != r.Sequence {
				n.resetCount++
			}
			n.resets[r.Slot] = r.Sequence
		}
	}
	for slot, b := range have {
		if !slices.ContainsFunc(d.Bindings, func(w *dxpuv1.DesiredBinding) bool { return w.BindingId == b.BindingId || n.hasSwitched(b, w) }) {
			n.unbind(slot, b)
		}
	}
	for _, b := range d.Bindings {
		n.wants[b.Slot] = b
		if b.Replugs > n.plugged {
			n.plugged, n.ejects = b.Replugs, false
		}
		old := have[b.Slot]
		if n.hasSwitched(old, b) {
			n.has[b.Slot] = old
			continue
		}
		if old != nil && old.BindingId == b.BindingId && old.Epoch == b.Epoch {
			n.resize(old, b.Part)
			n.has[b.Slot] = old
			continue
		}
		state := attached
		if n.box() {
			state = ready
		}
		if n.refuses || n.refusal != "" {
			state = failed
		}
		if b.State == attached || n.box() && b.State != preparing {
			state = lost // the node had it before it forgot
		}
		n.has[b.Slot] = &dxpuv1.ObservedBinding{BindingId: b.BindingId, Epoch: b.Epoch, State: state, Part: proto.CloneOf(b.Part)}
	}
}

// resize changes the part of a binding, as far as its guest lets it.
func (n *fakeNode) resize(b *dxpuv1.ObservedBinding, want *dxpuv1.Part) {
	if want == nil {
		return
	}
	was := b.Part
	b.Part = proto.CloneOf(want)
	if n.keeps && was != nil {
		b.Part.MemoryBytes = max(want.MemoryBytes, was.MemoryBytes)
	}
}

// gpuOf returns the slot of the GPU of a box slot for parts.
func (n *fakeNode) gpuOf(slot uint32) (gpu uint32, part bool) {
	if !n.box() || slot < uint32(n.slots) {
		return 0, false
	}
	return (slot - uint32(n.slots)) / uint32(n.divided), true
}

// unbind takes down a binding that is no longer desired, if the guest releases
// it.
func (n *fakeNode) unbind(slot uint32, b *dxpuv1.ObservedBinding) {
	switch {
	case n.box():
	case n.holds != "":
		n.applied-- // it applies the desired state again
		b.State, b.Detail = dxpuv1.BindingState_BINDING_STATE_DETACHING, n.holds
		n.has[slot] = b
	default:
		n.removals[slot] = &dxpuv1.Removal{BindingId: b.BindingId, Forced: n.forces != "", Detail: n.forces}
	}
}

func (n *fakeNode) observe() *dxpuv1.ObservedState {
	n.sequence++
	n.followMoves()
	o := &dxpuv1.ObservedState{
		NodeId: n.id, InstanceId: fmt.Sprint(n.instance), Sequence: n.sequence, AppliedRevision: n.applied,
		BoxKind: n.boxKind, ProxyGpus: n.proxy, Labels: n.labels, Rack: n.rack, LocalPeer: n.peer, SeveralGpus: n.several,
	}
	paths := n.paths
	if paths == nil {
		paths = []uint32{0}
	}
	for _, p := range paths {
		o.Addresses = append(o.Addresses, &dxpuv1.PathAddress{Path: p, Address: "127.0.0.1:1"})
	}
	for i := range uint32(n.slots * (1 + n.divided)) {
		if n.unlisted[i] {
			continue
		}
		s := &dxpuv1.ObservedSlot{Slot: i, Health: dxpuv1.Health_HEALTH_OK, Movable: !n.moves.never, Immovable: n.moves.why}
		model, own := n.models[i]
		if !own {
			model = n.model
		}
		if n.box() && model != "" {
			s.Device = &dxpuv1.Device{Model: model, MemoryBytes: cmp.Or(n.memory, 1<<30), Serial: n.serials[i]}
			if n.boxKind == dxpuv1.BoxKind_BOX_KIND_NVLINK {
				s.Device.NvlinkDomain = "nv0"
			}
		}
		if gpu, part := n.gpuOf(i); part {
			s.PartOf, s.Device.MemoryBytes, s.Device.Serial = &gpu, 0, ""
		} else if n.divided > 0 && s.Device != nil {
			s.Device.ShareModes = []dxpuv1.ShareMode{dxpuv1.ShareMode_SHARE_MODE_SPACE, dxpuv1.ShareMode_SHARE_MODE_TIME}
		}
		if n.domain != nil {
			s.Domain = n.domain(i)
		}
		if n.dead[i] {
			s.Health = dxpuv1.Health_HEALTH_FAILED
		}
		s.ResetSequence = n.resets[i]
		for code, count := range n.errors[i] {
			s.Errors = append(s.Errors, &dxpuv1.DeviceError{Code: code, Count: count})
		}
		slices.SortFunc(s.Errors, func(a, b *dxpuv1.DeviceError) int { return int(a.Code) - int(b.Code) })
		s.Removal = n.removals[i]
		if b := n.has[i]; b != nil {
			s.Binding = proto.CloneOf(b)
			switch {
			case n.refusal != "" && b.State == failed:
				s.Binding.Reason, s.Binding.Detail = dxpuv1.Reason_REASON_HOST_FAILED, n.refusal
			case n.waits != "" && b.State == attached:
				s.Binding.State, s.Binding.Waiting, s.Binding.Detail = preparing, true, n.waits
			}
			if !n.box() && b.State == attached {
				s.Binding.Ejected, s.Binding.Replugs, s.Binding.Use = n.ejects, n.plugged, dxpuv1.Use_USE_BUSY
			}
			for p, h := range n.pathHealth {
				s.Binding.Paths = append(s.Binding.Paths, &dxpuv1.PathStatus{Path: uint32(p), Health: h})
			}
			if n.linkDown && s.Binding.State == attached {
				s.Binding.State = lost
			}
		}
		o.Slots = append(o.Slots, s)
	}
	return o
}

// restart loses everything but the desired state on disk.
func (n *fakeNode) restart() {
	n.instance++
	n.sequence = 0
	clear(n.errors)
	clear(n.resets)
}

// addError makes a device report one more error.
func (n *fakeNode) addError(slot, code uint32) {
	if n.errors[slot] == nil {
		n.errors[slot] = map[uint32]uint64{}
	}
	n.errors[slot][code]++
}

// forget is a restart without a disk.
func (n *fakeNode) forget() {
	n.restart()
	n.applied = 0
	clear(n.has)
}

// world is a manager with fake nodes.
type world struct {
	t     fatalTester
	m     *Manager
	clock *clock
	nodes map[string]*fakeNode
	order []string
}

type fatalTester interface {
	Helper()
	Fatalf(format string, args ...any)
}

func newWorld(t fatalTester, cfg Config, nodes ...*fakeNode) *world {
	t.Helper()
	c := &clock{t: time.Unix(1_700_000_000, 0)}
	cfg.JoinToken, cfg.Now = "token-for-tests", c.now
	m, err := New(context.Background(), cfg)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	if err := m.update(context.Background(), func(tx *tx) error {
		tx.meta.Incarnation = 0 // plain IDs: the first binding is b-1
		return nil
	}); err != nil {
		t.Fatalf("plain IDs: %v", err)
	}
	w := &world{t: t, m: m, clock: c, nodes: map[string]*fakeNode{}}
	for _, n := range nodes {
		w.join(n)
	}
	w.settle()
	return w
}

// join adds a node to the pool.
func (w *world) join(n *fakeNode) {
	n.has = map[uint32]*dxpuv1.ObservedBinding{}
	n.dead = map[uint32]bool{}
	if n.serials == nil {
		n.serials = map[uint32]string{}
	}
	n.unlisted = map[uint32]bool{}
	n.removals = map[uint32]*dxpuv1.Removal{}
	n.errors, n.resets = map[uint32]map[uint32]uint64{}, map[uint32]uint64{}
	w.nodes[n.id] = n
	w.order = append(w.order, n.id)
	w.enrol(n.id)
}

// enrol adds the record of a node.
func (w *world) enrol(id string) {
	if err := w.m.update(context.Background(), func(tx *tx) error {
		tx.meta.NodeNumber++
		tx.nodes.put(id, &nodeRecord{ID: id, Kind: w.nodes[id].kind, Number: tx.meta.NodeNumber})
		tx.touch(id)
		return nil
	}); err != nil {
		w.t.Fatalf("enrol: %v", err)
	}
}

// known reports whether a node has a record, and whether it is not being
// deleted.
func (w *world) known(id string) (known, home bool) {
	_ = w.m.view(func(t *tx) error {
		n := t.nodes.get(id)
		known, home = n != nil, n != nil && !n.Deleting
		return nil
	})
	return known, home
}

// deleteAndForget deletes a node. It comes back with an empty state directory
// once it may: its proxy was stopped, so that it has no bindings.
func (w *world) deleteAndForget(id string) {
	if _, home := w.known(id); !home {
		return
	}
	if _, err := w.api().DeleteNode(context.Background(), connect.NewRequest(&dxpuv1.DeleteNodeRequest{NodeId: id, Force: true})); err != nil {
		w.t.Fatalf("delete node: %v", err)
	}
	w.nodes[id].forget()
}

// allowedIn reports whether the manager admits a node, which enrols again if it
// may.
func (w *world) allowedIn(id string) bool {
	known, home := w.known(id)
	if !known {
		w.enrol(id)
		home = true
	}
	return home
}

func hostNode(id string, slots int) *fakeNode {
	return &fakeNode{id: id, kind: dxpuv1.NodeKind_NODE_KIND_HOST, slots: slots}
}

func boxNode(id string, slots int) *fakeNode {
	return &fakeNode{
		id: id, kind: dxpuv1.NodeKind_NODE_KIND_BOX, boxKind: dxpuv1.BoxKind_BOX_KIND_PCIE_SWITCH,
		slots: slots, model: "DX100",
	}
}

// deliver gives a node its desired state.
func (w *world) deliver(id string) {
	if !w.allowedIn(id) {
		return
	}
	var d *dxpuv1.DesiredState
	_ = w.m.view(func(t *tx) error {
		d = t.desired(t.nodes.get(id))
		return nil
	})
	w.nodes[id].apply(d)
}

// report makes a node report.
func (w *world) report(id string) {
	n := w.nodes[id]
	if n.down || !w.allowedIn(id) {
		return
	}
	if _, _, err := w.m.report(context.Background(), n.observe(), func(*tx) error { return nil }); err != nil {
		w.t.Fatalf("report of %s: %v", id, err)
	}
}

// pass advances the clock.
func (w *world) pass(d time.Duration) {
	w.clock.pass(d)
	if err := w.m.Tick(context.Background()); err != nil {
		w.t.Fatalf("tick: %v", err)
	}
}

// settle lets all nodes receive their desired state and report, a few times.
func (w *world) settle() { w.rounds(12) }

func (w *world) rounds(n int) {
	for range n {
		for _, id := range w.order {
			w.deliver(id)
			w.report(id)
		}
		w.pass(50 * time.Millisecond)
	}
}

// passReporting lets time pass in steps in which the nodes report. A step is shorter than the
// time after which a node is lost.
func (w *world) passReporting(d time.Duration) {
	for end := w.clock.now().Add(d); w.clock.now().Before(end); {
		w.rounds(1)
		w.pass(min(900*time.Millisecond, end.Sub(w.clock.now())))
	}
}

func (w *world) create(spec *dxpuv1.LeaseSpec) string {
	w.t.Helper()
	id, err := w.tryCreate(spec)
	if err != nil {
		w.t.Fatalf("create: %v", err)
	}
	return id
}

func (w *world) tryCreate(spec *dxpuv1.LeaseSpec) (string, error) {
	var id string
	err := w.m.update(context.Background(), func(t *tx) error {
		if err := checkSpec(spec); err != nil {
			return err
		}
		l, err := t.createLease("", spec)
		if err == nil {
			id = l.ID
		}
		return err
	})
	return id, err
}

func (w *world) delete(id string, grace bool) {
	_ = w.m.update(context.Background(), func(t *tx) error {
		if l := t.leases.get(id); l != nil && !l.ended() {
			t.endLease(id, dxpuv1.Reason_REASON_LEASE_DELETED, "deleted", grace)
		}
		return nil
	})
}

func (w *world) lease(id string) (out *dxpuv1.Lease) {
	_ = w.m.view(func(t *tx) error {
		out = t.leaseMessage(t.leases.get(id))
		return nil
	})
	return out
}

func (w *world) wantLease(id string, s dxpuv1.LeaseState) *dxpuv1.Lease {
	w.t.Helper()
	l := w.lease(id)
	if l.State != s {
		w.t.Fatalf("lease %s is %s (%s), want %s\n%s", id, leaseWord(l.State), l.StateReason, leaseWord(s), w.events())
	}
	return l
}

func (w *world) events() (s string) {
	events, _, _, _ := w.m.events.after(0)
	for _, e := range events {
		s += e.Message + "\n"
	}
	return s
}

// totals returns the totals of the pool.
func (m *Manager) totals() *dxpuv1.Pool {
	p := &dxpuv1.Pool{}
	_ = m.view(func(t *tx) error {
		t.addTotals(p)
		return nil
	})
	return p
}
