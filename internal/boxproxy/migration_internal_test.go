package boxproxy

import (
	"errors"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
	"github.com/dxpu-project/dxpu/internal/dataplane/mapping"
	"github.com/dxpu-project/dxpu/internal/dataplane/migration"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/link/linktest"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// target is a device that takes the state of another one.
type target struct {
	device.Device
	device.Migratable
	refuse error
	busy   bool // it needs more time
	stored int
	thawed bool
	got    []tlp.Type
}

func (d *target) Restore(time.Duration, []byte) (bool, error) { return !d.busy, d.refuse }
func (d *target) Thaw(time.Duration)                          { d.thawed = true }
func (*target) Window() (pcie.BDF, [64]byte)                  { return 0, [64]byte{} }

func (d *target) StoreMemory(uint64, []byte) error {
	if d.busy {
		return device.ErrBusy
	}
	d.stored++
	return nil
}

func (d *target) Receive(_ time.Duration, p *tlp.Packet) bool {
	d.got = append(d.got, p.Type)
	return true
}

// newTarget makes a slot that waits for a state.
func newTarget(refuse error) (*slot, *target, *arrival) {
	d := &target{refuse: refuse}
	b := &Box{table: mapping.NewBoxTable(1)}
	s := &slot{box: b, domain: &domain{}, device: d, arriving: true}
	s.migratable = d
	return s, d, &arrival{transfer: transfer{slot: s, id: "next", epoch: 7}, device: d}
}

// commit sends the end of an empty state.
func commit(e engine.Entry, a *arrival) {
	p := migration.Message{Order: migration.Commit, Epoch: 7, Sum: migration.SumOf(nil)}.Packet()
	a.Receive(e, &p)
}

// A target that needs time says that it has the state when it has; a piece of memory for which it
// has no room is not lost.
func TestTargetTakesItsTime(t *testing.T) {
	e := engine.NewGroup(engine.Config{}).Enter(0)
	s, d, a := newTarget(nil)
	d.busy = true
	p := tlp.Packet{Type: tlp.MWr, Data: make([]byte, 8)}
	p.SetMemory(1<<40, 8)
	if a.Receive(e, &p) || !a.waits {
		t.Error("a busy target took memory")
	}
	d.busy = false
	if !a.Receive(e, &p) || a.waits || d.stored != 1 {
		t.Errorf("stored %d", d.stored)
	}
	d.busy = true
	commit(e, a)
	if s.order(e, start); d.thawed || s.installed != nil {
		t.Fatal("a target has started that has no state yet")
	}
	d.busy = false
	a.Transmit(e)
	if s.order(e, start); !d.thawed {
		t.Error("the target has not started")
	}
}

var start = migration.Message{Order: migration.Start, Epoch: 7}

// A target starts after START, and only with the state of the source. It does so too when
// the manager has ended the transfer before START arrives.
func TestTargetStarts(t *testing.T) {
	e := engine.NewGroup(engine.Config{}).Enter(0)
	s, d, a := newTarget(errors.New("no"))
	commit(e, a)
	if s.order(e, start); d.thawed {
		t.Error("a device that refused the state has started")
	}
	s, d, a = newTarget(nil)
	if s.order(e, start); d.thawed {
		t.Error("a device without state has started")
	}
	commit(e, a)
	if s.order(e, migration.Message{Order: migration.Start, Epoch: 8}); d.thawed {
		t.Error("START of another migration has started the device")
	}
	s.transfer = &a.transfer
	s.endTransfer()
	if s.order(e, start); !d.thawed || s.arriving {
		t.Error("the device has not started")
	}
}

// Before START the target takes what the host has kept.
func TestTargetTakesTheKept(t *testing.T) {
	e := engine.NewGroup(engine.Config{}).Enter(0)
	s, d, a := newTarget(nil)
	write := &tlp.Packet{Type: tlp.MWr}
	if !s.Receive(e, write) || len(d.got) > 0 {
		t.Error("a device without state took a write")
	}
	commit(e, a)
	if !s.Receive(e, write) || len(d.got) != 1 {
		t.Error("a TLP that the host had kept was not taken")
	}
}

// A device that came by a migration and those that were there before reach each other by way of
// the host, where what they sent each other before still may be. Later ones do so directly.
func TestNeighboursFromBefore(t *testing.T) {
	e := engine.NewGroup(engine.Config{}).Enter(0)
	first, _, a := newTarget(nil)
	commit(e, a)
	before, after := &slot{domain: first.domain}, &slot{domain: first.domain}
	both := func(a, b *slot) bool { return a.reaches(b) && b.reaches(a) }
	neither := func(a, b *slot) bool { return !a.reaches(b) && !b.reaches(a) }
	if before.reaches(first) {
		t.Error("a neighbour passes the host before START")
	}
	first.order(e, start)
	if !neither(before, first) {
		t.Error("a neighbour from before passes TLPs that are on their way by the host")
	}
	after.bound = first.domain.started
	if !both(after, first) || !both(after, before) {
		t.Error("a later neighbour is not reached")
	}
	second, _, a := newTarget(nil)
	second.domain, second.bound = first.domain, first.domain.started
	commit(e, a)
	second.order(e, start)
	if !neither(second, first) || !neither(second, after) || !neither(second, before) || !both(after, first) {
		t.Error("after a second migration")
	}
}

// A box hands TLPs of neighbours to a device that has stopped, in vain, until its link has ended.
// Then they go to the host.
func TestNeighboursOfADeviceThatIsNotTheHosts(t *testing.T) {
	write, answer := &tlp.Packet{Type: tlp.MWr}, &tlp.Packet{Type: tlp.CplD}
	for _, c := range []struct {
		name                        string
		set                         func(s *slot)
		takes, takesAnswer, reached bool
	}{
		{"at work", func(*slot) {}, true, true, true},
		{"coming to rest", func(s *slot) { s.stopping = true }, false, true, false},
		{"at rest", func(s *slot) { s.stopping, s.rested = true, true }, false, false, false},
	} {
		s, _, a := newTarget(nil)
		s.arriving = false
		c.set(s)
		s.box.log, s.kick = slog.New(slog.DiscardHandler), signal{}
		g := engine.NewGroup(engine.Config{Output: new(nowhere)})
		e := g.Enter(0)
		var err error
		if s.binding, err = g.Attach(e, engine.BindingConfig{
			Link: linktest.Ends(link.CipherNone, 9000)[linktest.Box], Peers: []netip.AddrPort{linktest.Address(linktest.Host, 0)}, Handler: a,
		}); err != nil {
			t.Fatal(err)
		}
		neighbour := &slot{domain: s.domain}
		if !neighbour.reaches(s) {
			t.Errorf("%s: a neighbour does not wait for it", c.name)
		}
		if s.ReceivePeer(e, write) != c.takes || s.ReceivePeer(e, answer) != c.takesAnswer {
			t.Errorf("%s: it does not take writes: %v, completions: %v", c.name, c.takes, c.takesAnswer)
		}
		s.LinkChanged(e, link.Down)
		if neighbour.reaches(s) != c.reached {
			t.Errorf("%s, without a link: reached: %v", c.name, !c.reached)
		}
	}
}
