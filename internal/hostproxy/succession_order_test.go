package hostproxy

import (
	"slices"
	"sync"
	"testing"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
	"github.com/dxpu-project/dxpu/internal/dataplane/migration"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// sentTLPs notes what goes to the boxes.
type sentTLPs struct{ names []string }

func (*sentTLPs) Watching() bool { return true }

func (s *sentTLPs) TLP(_ *engine.Binding, received bool, p *tlp.Packet) {
	if received {
		return
	}
	name := p.Type.String()
	if m, ok := migration.Parse(p); ok {
		name = m.Order.String()
	}
	s.names = append(s.names, name)
}

// completion is one for the device.
func completion() *tlp.Packet {
	return &tlp.Packet{Type: tlp.CplD, Length: 1, ByteCount: 4, Data: make([]byte, 4)}
}

// posted is a write of a neighbour.
func posted() *tlp.Packet {
	p := &tlp.Packet{Type: tlp.MWr, Data: make([]byte, 4)}
	p.SetMemory(1<<20, 4)
	return p
}

// While the source comes to rest it gets its completions. Whichever device goes on, what
// was kept reaches it before it is told to.
func TestDeviceGoesOnBehindTheKept(t *testing.T) {
	for order, decide := range map[string]func(e engine.Entry, n *succession){
		"start":  func(e engine.Entry, n *succession) { n.commit(e) },
		"resume": func(e engine.Entry, n *succession) { n.fail(e, "test") },
	} {
		out := new(sentTLPs)
		e, s, n := newSuccession(t, engine.Config{Watcher: out})
		n.phase = stopping
		for _, p := range []*tlp.Packet{posted(), completion()} {
			if !s.forward(e, p) {
				t.Fatalf("%v is not taken", p.Type)
			}
		}
		decide(e, n)
		if want := []string{"CplD", "MWr", order}; !slices.Equal(out.names, want) {
			t.Errorf("the boxes got %v, want %v", out.names, want)
		}
	}
}

// A completion does not pass a posted write that is kept.
func TestCompletionsDoNotPassWrites(t *testing.T) {
	out := new(sentTLPs)
	e, s, n := newSuccession(t, engine.Config{Watcher: out})
	n.phase = successionFailed
	if !s.keep(posted()) {
		t.Fatal("the write is not kept")
	}
	if s.roomFor(e, 4) {
		t.Error("completions of the host's memory go ahead of a write")
	}
	s.refuse(e, &tlp.Packet{Type: tlp.MRd, Length: 1}, pcie.UnsupportedRequest)
	if !s.forward(e, completion()) {
		t.Fatal("a completion is not taken")
	}
	s.release(e)
	if want := []string{"MWr", "Cpl", "CplD"}; !slices.Equal(out.names, want) {
		t.Errorf("the box got %v, want %v", out.names, want)
	}
	if !s.roomFor(e, 4) {
		t.Error("completions still wait")
	}
}

// A switch that waits for the end of an earlier migration is made when it has come.
func TestSwitchWaitsForTheLastOne(t *testing.T) {
	e, s, n := newSuccession(t, engine.Config{})
	kick := new(countedSignal)
	s.kick, s.words = kick, []migration.Message{{Order: migration.Resume, Epoch: 6}}
	s.host.group = &sharedGroup{entry: e}
	if s.stopSource(); n.phase != linked {
		t.Fatalf("phase %d while a message waits", n.phase)
	}
	if s.release(e); kick.set != 1 {
		t.Errorf("the controller was woken %d times, want once", kick.set)
	}
	if s.stopSource(); n.phase != stopping {
		t.Errorf("phase %d, want that the source is to stop", n.phase)
	}
}

// A source that says STOPPED while reads of its device are outstanding does not lead to a
// switch: their completions would go to the target.
func TestSourceStopsWithReads(t *testing.T) {
	e, s, n := newSuccession(t, engine.Config{})
	n.phase = stopping
	v := &vm{slot: s}
	s.port = v
	v.reads.add(&tlp.Packet{Type: tlp.MRd, Length: 1, FirstBE: 0xf}, 128)
	n.Receive(e, said(migration.Installed))
	s.Receive(e, said(migration.Stopped))
	if n.phase != successionFailed || s.binding == n.binding {
		t.Errorf("phase %d with an outstanding read", n.phase)
	}
}

// The controller and its samples may look at the binding while a switch changes it. The
// race detector checks that.
func TestControllerLooksDuringSwitch(t *testing.T) {
	e, s, n := newSuccession(t, engine.Config{})
	g := &sharedGroup{entry: e}
	s.host.group, n.phase = g, stopping
	var wg sync.WaitGroup
	wg.Go(func() {
		for range 100 {
			s.look()
			s.sample()
		}
	})
	wg.Go(func() {
		e := g.Enter()
		defer g.Leave(e)
		n.commit(e)
	})
	wg.Wait()
	if s.binding != n.binding {
		t.Error("the host did not switch")
	}
}

// A migration is reported with its binding only, not with the next one of the slot.
func TestReportEndsWithTheBinding(t *testing.T) {
	e, s, n := newSuccession(t, engine.Config{})
	s.Status.Clock = time.Now
	s.Status.Begin(&dxpuv1.DesiredBinding{BindingId: "old"})
	if n.fail(e, "test"); s.Observe().GetBinding().GetMigration().GetBindingId() != "next" {
		t.Fatal("the migration is not reported")
	}
	s.end()
	s.Status.Begin(&dxpuv1.DesiredBinding{BindingId: "new"})
	if m := s.Observe().GetBinding().GetMigration(); m != nil {
		t.Errorf("the next binding is reported with %v", m)
	}
}

// countedSignal counts how often it was set.
type countedSignal struct {
	noSignal
	set int
}

func (c *countedSignal) Set() { c.set++ }

// sharedGroup has one entry for all, one at a time.
type sharedGroup struct {
	engine.GroupDriver
	mu    sync.Mutex
	entry engine.Entry
}

func (g *sharedGroup) Enter() engine.Entry {
	g.mu.Lock()
	return g.entry
}

func (g *sharedGroup) Leave(engine.Entry) { g.mu.Unlock() }

func (*sharedGroup) Detach(*engine.Binding) {}
