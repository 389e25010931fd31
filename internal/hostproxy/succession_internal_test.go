package hostproxy

import (
	"context"
	"net/netip"
	"testing"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
	"github.com/dxpu-project/dxpu/internal/dataplane/migration"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/tlp"
)

// noSignal wakes no controller.
type noSignal struct{}

func (noSignal) Set() {}

func (noSignal) Wait(context.Context, time.Duration) bool { return false }

// newSuccession makes a slot whose device may move, in a group that sends nothing.
func newSuccession(t *testing.T, cfg engine.Config) (engine.Entry, *slot, *succession) {
	t.Helper()
	g := engine.NewGroup(cfg)
	e := g.Enter(0)
	s := &slot{host: &Proxy{cfg: Config{CompletionTimeout: time.Second}}, kick: noSignal{}}
	s.root = newRequestPort(s, Config{CompletionTimeout: time.Second})
	n := &succession{slot: s, id: "next", want: &dxpuv1.DesiredBinding{Epoch: 7}, phase: linked}
	attach := func(id uint32, h engine.Handler) *engine.Binding {
		b, err := g.Attach(e, engine.BindingConfig{
			Link:  link.Config{Binding: id, Initiator: true, Session: 1, Ephemeral: [32]byte{1}, Paths: []link.PathConfig{{MTU: 1500}}},
			Peers: make([]netip.AddrPort, 1), Handler: h,
		})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	s.binding, n.binding, s.next = attach(1, s), attach(2, n), n
	return e, s, n
}

// said is a message of a box.
func said(o migration.Order) *tlp.Packet {
	p := migration.Message{Order: o, Epoch: 7}.Packet()
	return &p
}

// A box speaks for its own device only: neither can make the host switch alone.
func TestBoxesSpeakForThemselves(t *testing.T) {
	for _, source := range []bool{true, false} {
		e, s, n := newSuccession(t, engine.Config{})
		n.phase = stopping
		own, other := engine.Handler(n), engine.Handler(s)
		if source {
			own, other = s, n
		}
		for _, o := range []migration.Order{migration.Stopped, migration.Installed} {
			own.Receive(e, said(o))
		}
		if n.phase != stopping {
			t.Fatalf("source %v: one box alone leads to phase %d", source, n.phase)
		}
		for _, o := range []migration.Order{migration.Stopped, migration.Installed} {
			other.Receive(e, said(o))
		}
		if n.phase != switched || s.binding != n.binding {
			t.Errorf("source %v: both boxes lead to phase %d", source, n.phase)
		}
	}
}

// A target that refuses the memory ends the migration before the device stops.
func TestRefusalBeforeTheSwitch(t *testing.T) {
	for _, phase := range []successionPhase{connecting, linked} {
		e, s, n := newSuccession(t, engine.Config{})
		n.phase = phase
		n.Receive(e, said(migration.Refused))
		if n.phase != successionFailed || s.migration.Load().GetState() != dxpuv1.MigrationState_MIGRATION_STATE_FAILED {
			t.Errorf("a refusal in phase %d leads to phase %d", phase, n.phase)
		}
		if len(s.words) > 0 {
			t.Errorf("the source is told %v", s.words)
		}
	}
}

// A switch that fails closes the link to the target, whose neighbours would wait for START until
// the manager has released it.
func TestFailedSwitchLetsTheTargetGo(t *testing.T) {
	for _, c := range []struct {
		phase successionPhase
		goes  bool
	}{{linked, false}, {stopping, true}} {
		e, _, n := newSuccession(t, engine.Config{})
		n.phase = c.phase
		n.fail(e, "a test")
		if state := n.binding.State(e); (state == link.Closing || state == link.Down) != c.goes {
			t.Errorf("a failure in phase %d leaves the link to the target %v", c.phase, state)
		}
	}
}
