package boxproxy

import (
	"errors"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/agent"
	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
	"github.com/dxpu-project/dxpu/internal/dataplane/migration"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/tlp"
)

// transfer is what both sides of a transfer have in common.
type transfer struct {
	slot    *slot
	id      string // of the successor
	epoch   uint16 // the lower half of its epoch
	binding *engine.Binding
}

// followTransfer begins the transfer that the manager wants, or ends one that it does not
// want any more.
func (s *slot) followTransfer(want *dxpuv1.DesiredBinding, desired *dxpuv1.DesiredState) {
	t := want.GetTransfer()
	if s.transfer != nil && (t == nil || t.GetLink().GetBindingId() != s.transfer.id) {
		s.endTransfer()
	}
	if t == nil || s.transfer != nil || s.binding == nil || s.Status.Get().ID != want.GetBindingId() {
		return
	}
	s.transfer = &transfer{slot: s, id: t.GetLink().GetBindingId(), epoch: uint16(t.GetLink().GetEpoch())}
	if err := s.beginTransfer(t, desired.NodeNumber); err != nil {
		s.publish(&dxpuv1.Migration{BindingId: s.transfer.id, State: dxpuv1.MigrationState_MIGRATION_STATE_FAILED, Detail: err.Error()})
	}
}

// beginTransfer opens the link to the other box.
func (s *slot) beginTransfer(t *dxpuv1.Transfer, self uint32) error {
	cfg, peers, err := agent.TransferConfig(t, self)
	if err != nil {
		return err
	}
	if err := s.movable(); err != nil {
		return err
	}
	g := s.domain.group
	e := g.Enter()
	defer g.Leave(e)
	if t.GetReceive() {
		a := &arrival{transfer: *s.transfer, device: s.migratable}
		if a.binding, err = g.Attach(e, engine.BindingConfig{Link: cfg, Peers: peers, Handler: a}); err != nil {
			return err
		}
		s.transfer.binding, s.arrival = a.binding, a
		a.publish(dxpuv1.MigrationState_MIGRATION_STATE_CONNECTING, "")
		return nil
	}
	if err := s.migratable.Movable(); err != nil {
		return err
	}
	d := &departure{transfer: *s.transfer, device: s.migratable}
	if d.binding, err = g.Attach(e, engine.BindingConfig{Link: cfg, Peers: peers, Handler: d}); err != nil {
		return err
	}
	s.migratable.Track(true)
	s.transfer.binding, s.departure = d.binding, d
	d.publish(dxpuv1.MigrationState_MIGRATION_STATE_CONNECTING, "")
	return nil
}

// endTransfer closes the link to the other box. A device that is stopped stays so: its
// host decides.
func (s *slot) endTransfer() {
	if s.transfer == nil {
		return
	}
	if b := s.transfer.binding; b != nil {
		g := s.domain.group
		e := g.Enter()
		b.SetHandler(e, silent{})
		b.Shutdown(e, engine.CloseDetached)
		g.Leave(e)
		g.Detach(b)
		e = g.Enter()
		if s.departure != nil {
			s.migratable.Track(false)
		}
		s.departure, s.arrival = nil, nil
		g.Leave(e)
	}
	s.transfer = nil
	s.migration.Store(nil)
	s.box.Changed()
}

// follow lets a transfer go on for which the device may have news.
func (s *slot) follow(e engine.Entry) {
	if d := s.departure; d != nil && d.later {
		d.binding.Touch(e)
	}
	if a := s.arrival; a != nil && (a.waits || a.asked || a.commit != nil) {
		a.binding.Touch(e)
	}
}

// order carries out what the host says about a migration.
func (s *slot) order(e engine.Entry, m migration.Message) {
	d := s.departure
	switch {
	case m.Order == migration.Stop && d != nil && d.epoch == m.Epoch && d.phase <= readyToStop && !s.stopping:
		s.stopping = true
		s.migratable.Freeze()
	case m.Order == migration.Stop:
		s.say(e, migration.Message{Order: migration.Refused, Epoch: m.Epoch, Why: "it is not copying the device to another box, or has stopped already"})
	case m.Order == migration.Resume && s.stopping:
		s.stopping, s.rested = false, false
		s.migratable.Thaw(e.Now())
		if d != nil && d.phase != departureFailed {
			d.fail(e, "the host went on with this device")
		}
	case m.Order == migration.Start && s.arriving && s.installed != nil && s.installed.epoch == m.Epoch:
		s.domain.started++
		s.arriving, s.started, s.installed = false, s.domain.started, nil
		s.migratable.Thaw(e.Now())
	}
}

// snapshot passes the state of a device that has come to rest to its departure.
func (s *slot) snapshot(e engine.Entry) {
	d := s.departure
	if d == nil || d.phase > readyToStop {
		return
	}
	if state, ok := s.migratable.Snapshot(e.Now()); ok {
		s.rested = true
		d.stopped(e, state)
		s.say(e, migration.Message{Order: migration.Stopped, Epoch: d.epoch})
	}
}

// say sends a message to the host, behind all TLPs of the device so far. When the link
// has no room it is sent later, because nothing follows it.
func (s *slot) say(e engine.Entry, m migration.Message) {
	s.word = &m
	s.sayOn(e)
}

func (s *slot) sayOn(e engine.Entry) {
	for s.word != nil && s.binding != nil {
		p := s.word.Packet()
		if s.binding.Send(e, &p) != nil {
			return
		}
		s.word = s.word.Next()
	}
}

// movable returns why the state of the slot's device cannot move; nil: it may.
func (s *slot) movable() error {
	switch {
	case s.migratable == nil:
		return errors.New("a device of this kind cannot move")
	case s.dispatcher != nil:
		return errors.New("a slice or a part of a GPU cannot move: it shares the processor of the GPU")
	}
	return nil
}

// publish reports how far the migration is.
func (s *slot) publish(m *dxpuv1.Migration) {
	s.migration.Store(m)
	s.box.Changed()
}

// silent is the handler of a link that is over.
type silent struct{}

func (silent) Receive(engine.Entry, *tlp.Packet) bool { return true }
func (silent) Transmit(engine.Entry)                  {}
func (silent) Wake(engine.Entry) time.Duration        { return machine.Never }
func (silent) LinkChanged(engine.Entry, link.State)   {}
