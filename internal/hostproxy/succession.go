package hostproxy

import (
	"cmp"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/agent"
	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
	"github.com/dxpu-project/dxpu/internal/dataplane/migration"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/tlp"
)

// succession is a live migration of the slot's device (docs/migration.md): the link to the
// box of the target, beside the slot's binding. It is that link's handler until the
// switch; then the slot is.
//
//	connecting ──link up──> linked ──switch──> stopping ──STOPPED, INSTALLED──> switched
//	    any of the first three, by the end of a link, REFUSED or the time limit ──> failed
//
// Invariant: the slot's requests are held exactly while it is stopping.
type succession struct {
	slot *slot
	id   string
	want *dxpuv1.DesiredBinding

	// Guarded by the group:
	binding   *engine.Binding // nil: the link could not be opened
	old       *engine.Binding // after the switch: the binding before
	phase     successionPhase
	why       string        // of failed
	began     time.Duration // when the requests were held
	deadline  time.Duration // of stopping
	stopped   bool
	installed bool
	pause     time.Duration // how long the requests were held
}

type successionPhase uint8

const (
	connecting successionPhase = iota
	linked
	stopping
	switched
	successionFailed
)

// wanted returns the desired binding of the slot. After the switch, it is the successor
// of the binding that the manager still wants.
func (s *slot) wanted() (*dxpuv1.DesiredBinding, *dxpuv1.DesiredState) {
	want, desired := s.host.Wanted(s.index)
	if next := want.GetSuccessor(); next != nil && s.control.Has(next) {
		want = next
	}
	return want, desired
}

// followSuccession begins, switches or ends the migration that the manager wants.
func (s *slot) followSuccession(want *dxpuv1.DesiredBinding, desired *dxpuv1.DesiredState) {
	if s.completeSuccession() {
		return // want is that of the binding before
	}
	next := want.GetSuccessor()
	if n := s.next; n != nil && (next == nil || next.BindingId != n.id || s.plugged == nil) {
		s.endSuccession()
	}
	if next == nil || s.plugged == nil {
		return
	}
	if s.next == nil {
		s.beginSuccession(next, desired.NodeNumber)
	}
	if want.Switch {
		s.stopSource()
	}
	s.completeSuccession() // both boxes may have answered at once
}

// beginSuccession opens the link to the box of the target.
func (s *slot) beginSuccession(next *dxpuv1.DesiredBinding, self uint32) {
	n := &succession{slot: s, id: next.BindingId, want: next}
	g := s.host.group
	e := g.Enter()
	defer g.Leave(e)
	s.next = n
	cfg, peers, err := agent.LinkConfig(next, self, dxpuv1.NodeKind_NODE_KIND_HOST)
	if err == nil {
		n.binding, err = g.Attach(e, engine.BindingConfig{Link: cfg, Peers: peers, Handler: n})
	}
	if err != nil {
		n.fail(e, err.Error())
		return
	}
	n.publish()
}

// endSuccession closes the link to the target.
func (s *slot) endSuccession() {
	n, g := s.next, s.host.group
	e := g.Enter()
	b := n.binding // that is of no use any more
	switch {
	case n.phase == switched:
		b = n.old
	case n.phase < switched:
		n.fail(e, "the migration was ended")
	}
	s.next = nil
	if b != nil {
		b.Shutdown(e, engine.CloseDetached)
	}
	g.Leave(e)
	if b != nil {
		g.Detach(b)
	}
	s.migration.Store(nil)
	s.host.Changed()
}

// stopSource holds the requests to the device and tells the source to stop, once.
func (s *slot) stopSource() {
	g := s.host.group
	e := g.Enter()
	defer g.Leave(e)
	n := s.next
	if n.phase != linked || s.gone || s.waiting() { // release wakes the controller
		return
	}
	n.phase, n.began = stopping, e.Now()
	n.deadline = n.began + s.host.cfg.CompletionTimeout/2
	s.say(e, migration.Stop, n.epoch())
}

func (n *succession) epoch() uint16 { return uint16(n.want.Epoch) }

// heard takes what the box of the source says, or that of the target. Each speaks for its
// own device only. The target may refuse before the source is to stop.
func (n *succession) heard(e engine.Entry, m migration.Message, source bool) {
	switch {
	case m.Epoch != n.epoch() || n.phase >= switched:
		return
	case m.Order == migration.Refused:
		box := "the box of the target: "
		if source {
			box = "the box of the source: "
		}
		n.fail(e, box+cmp.Or(m.Why, "the device cannot move"))
		return
	case n.phase != stopping:
		return
	case m.Order == migration.Stopped && source:
		n.stopped = true
	case m.Order == migration.Installed && !source:
		n.installed = true
	}
	if n.stopped && n.installed {
		n.commit(e)
	}
}

// commit makes the target the slot's device, in this entry.
func (n *succession) commit(e engine.Entry) {
	s := n.slot
	if s.port != nil && s.port.Owes(e) { // it would send the completions to the target
		n.fail(e, "the box of the source said that the device has stopped, but it has reads outstanding")
		return
	}
	n.old, s.binding = s.binding, n.binding
	n.old.SetHandler(e, silent{})
	n.old.Shutdown(e, engine.CloseDetached)
	s.binding.SetHandler(e, s)
	n.phase, n.pause = switched, e.Now()-n.began
	s.say(e, migration.Start, n.epoch())
	s.wake()
}

// fail ends the migration: the source goes on.
func (n *succession) fail(e engine.Entry, why string) {
	resume := n.phase == stopping
	n.phase, n.why = successionFailed, why
	if resume && !n.slot.gone {
		n.pause = e.Now() - n.began
		n.slot.say(e, migration.Resume, n.epoch())
	}
	if resume { // neighbours in the box of the target may wait for START
		n.binding.Shutdown(e, engine.CloseDetached)
	}
	n.publish()
	n.slot.wake()
}

// completeSuccession does what follows a switch and need not be in its entry. It reports
// whether there was one.
func (s *slot) completeSuccession() bool {
	g := s.host.group
	e := g.Enter()
	n := s.next
	if n == nil || n.phase != switched {
		g.Leave(e)
		return false
	}
	s.next = nil
	s.host.table.Retarget(s.index, target(n.want))
	g.Leave(e)
	g.Detach(n.old)
	s.control.Adopt(n.want)
	s.Status.Begin(n.want)
	s.Status.Advance(dxpuv1.BindingState_BINDING_STATE_ATTACHED, 0, "")
	n.publish()
	s.host.log.Info("binding", "slot", s.index, "binding", n.id, "state", "migrated", "pause", n.pause)
	return true
}

// publish reports how far the migration is.
func (n *succession) publish() {
	state := [...]dxpuv1.MigrationState{
		connecting: dxpuv1.MigrationState_MIGRATION_STATE_CONNECTING, linked: dxpuv1.MigrationState_MIGRATION_STATE_COPYING,
		stopping: dxpuv1.MigrationState_MIGRATION_STATE_COPYING, switched: dxpuv1.MigrationState_MIGRATION_STATE_DONE,
		successionFailed: dxpuv1.MigrationState_MIGRATION_STATE_FAILED,
	}[n.phase]
	n.slot.migration.Store(&dxpuv1.Migration{BindingId: n.id, State: state, Detail: n.why, Pause: durationpb.New(n.pause)})
	n.slot.host.Changed()
}

// Receive takes what the target says. It sends nothing else before START.
func (n *succession) Receive(e engine.Entry, p *tlp.Packet) bool {
	if m, ok := migration.Parse(p); ok {
		n.heard(e, m, false)
	}
	return true
}

// Transmit has nothing to send.
func (n *succession) Transmit(engine.Entry) {}

// Wake returns machine.Never: the slot watches the time limit.
func (n *succession) Wake(engine.Entry) time.Duration { return machine.Never }

// LinkChanged follows the link to the target.
func (n *succession) LinkChanged(e engine.Entry, state link.State) {
	switch {
	case state == link.Up && n.phase == connecting:
		n.phase = linked
		n.publish()
		n.slot.wake()
	case state == link.Down && n.phase < switched:
		n.fail(e, fmt.Sprintf("the link to the box of the target: %s", n.binding.Why(e)))
	}
}

// maxKept bounds what a slot keeps while its device moves, in bytes.
const maxKept = 256 << 10

// held reports whether requests to the device wait: while it moves, and until what was
// kept meanwhile is sent.
func (s *slot) held() bool { return s.moving() || s.waiting() }

// moving reports whether the host waits for both boxes.
func (s *slot) moving() bool { return s.next != nil && s.next.phase == stopping }

// waiting reports whether messages or TLPs for the device wait for room in its link.
func (s *slot) waiting() bool { return len(s.words) > 0 || len(s.kept) > 0 }

// mustKeep reports whether a TLP for the device must be kept. While the source comes to
// rest it needs its completions. Nothing shows that they were ahead of posted writes,
// because a device that stands still takes those before it goes on. Afterwards completions
// do not pass posted writes (section 2.4.1).
func (s *slot) mustKeep(completion bool) bool {
	if completion {
		return len(s.kept) > 0 && !s.moving()
	}
	return s.held()
}

// keep keeps a TLP for the device. It returns false if there is too much.
func (s *slot) keep(p *tlp.Packet) bool {
	cost := len(p.Data) + tlpCost
	if s.keptBytes+cost > maxKept {
		return false
	}
	kept := *p
	kept.Data, kept.Prefix = append([]byte(nil), p.Data...), append([]byte(nil), p.Prefix...)
	s.kept, s.keptBytes = append(s.kept, kept), s.keptBytes+cost
	return true
}

// tlpCost is the part of maxKept that a TLP without payload takes.
const tlpCost = 128

// release watches the time limit, and sends what waits when the device may have it.
func (s *slot) release(e engine.Entry) {
	if n := s.next; s.moving() && e.Now() >= n.deadline {
		n.fail(e, fmt.Sprintf("the device did not move within %v", n.deadline-n.began))
	}
	if !s.waiting() || s.binding == nil || s.gone {
		return
	}
	if !s.moving() { // the device goes on behind what was kept
		s.sendKept(e)
	}
	for len(s.words) > 0 && (s.moving() || len(s.kept) == 0) {
		p := s.words[0].Packet()
		if s.binding.Send(e, &p) != nil {
			return
		}
		s.words = s.words[1:]
	}
	if !s.waiting() && s.next != nil && s.next.phase == linked {
		s.wake() // the controller may have to stop the source
	}
}

// sendKept sends what was kept, as far as the link has room.
func (s *slot) sendKept(e engine.Entry) {
	for len(s.kept) > 0 {
		if s.binding.Room(e) < len(s.kept[0].Data) || s.send(e, &s.kept[0]) != nil {
			return
		}
		s.keptBytes -= len(s.kept[0].Data) + tlpCost
		s.kept[0] = tlp.Packet{}
		s.kept = s.kept[1:]
	}
	s.kept = nil
}

// forget drops what waits for a device that is gone.
func (s *slot) forget() { s.words, s.kept, s.keptBytes = nil, nil, 0 }

// say sends a message to the box: STOP at once, the others behind all that is kept.
func (s *slot) say(e engine.Entry, o migration.Order, epoch uint16) {
	s.words = append(s.words, migration.Message{Order: o, Epoch: epoch})
	s.binding.Touch(e)
	s.release(e)
}

// silent is the handler of a binding that another one has followed.
type silent struct{}

func (silent) Receive(engine.Entry, *tlp.Packet) bool { return true }
func (silent) Transmit(engine.Entry)                  {}
func (silent) Wake(engine.Entry) time.Duration        { return machine.Never }
func (silent) LinkChanged(engine.Entry, link.State)   {}
