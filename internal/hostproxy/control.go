package hostproxy

import (
	"context"
	"errors"
	"fmt"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/agent"
	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
	"github.com/dxpu-project/dxpu/internal/dataplane/mapping"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/pcie"
)

// linkTimeout is how long the box may take to open the link of a binding that
// the manager says is ready.
const linkTimeout = 10 * time.Second

// sampleInterval is how often the counters of a link are copied for reports.
const sampleInterval = 500 * time.Millisecond

func newSlot(h *Host, index int) *slot {
	s := &slot{host: h, index: index, kick: h.fabric.NewSignal(), mps: pcie.MinPayload}
	s.root = newRequestPort(s, h.cfg.CompletionTimeout)
	return s
}

// run is the controller of a slot: it attaches and detaches until the slot is
// as the manager wants it. It is the only one that changes the slot's binding.
//
//	empty -> attach: link up, probe, plug -> ATTACHED
//	             \                               \
//	              FAILED                          link down: unplug -> LOST
//	any -> detach: unplug, close the link -> empty
func (s *slot) run(ctx context.Context) {
	defer s.shutDown()
	if f, ok := s.host.cfg.Front.(*VM); ok {
		f.sweep(ctx, s.index)
	}
	clock := s.host.fabric.Now
	next := clock() + sampleInterval
	for ctx.Err() == nil {
		s.reconcile(ctx)
		s.kick.Wait(ctx, max(next-clock(), 0))
		if now := clock(); now >= next {
			next = now + sampleInterval
			s.sample()
		}
	}
}

// shutdownGrace is how long the host may take to let go of a device when the
// proxy ends: what a guest needs that is not busy. A device that stays plugged
// in answers nothing; Linux waits a minute for such a one to come back.
const shutdownGrace = time.Second

// shutDown takes the device away because the process is going down.
func (s *slot) shutDown() {
	s.unplug(context.Background(), shutdownGrace)
	s.detach(engine.CloseShutdown)
}

// reconcile takes one look at what is wanted and what is.
func (s *slot) reconcile(ctx context.Context) {
	want, desired := s.host.Wanted(s.index)
	have := s.observed()
	if have.ID != "" && !agent.Same(want, have) {
		s.detachWithin(ctx, s.unplugTimeout)
		have = agent.BindingStatus{}
	}
	if want != nil && have.ID == "" {
		s.status.Begin(want)
	}
	if rev := desired.GetRevision(); s.applied.Swap(rev) != rev {
		s.host.Changed()
	}
	switch {
	case want == nil:
	case have.ID == "":
		s.attach(ctx, want, desired.NodeNumber)
	case have.State != dxpuv1.BindingState_BINDING_STATE_ATTACHED:
	case s.linkDown():
		s.lose(ctx)
	default:
		s.followGuest(ctx, want)
	}
}

// attach makes the binding and shows the device to the host.
func (s *slot) attach(ctx context.Context, want *dxpuv1.DesiredBinding, self uint32) {
	s.unplugTimeout = s.host.cfg.UnplugTimeout
	if want.UnplugTimeout != nil {
		s.unplugTimeout = want.UnplugTimeout.AsDuration()
	}
	s.report("attaching", dxpuv1.BindingState_BINDING_STATE_PREPARING, "")
	err := s.open(ctx, want, self)
	if err != nil {
		s.close(engine.CloseDetached)
		s.host.log.Warn("cannot attach", "slot", s.index, "binding", want.BindingId, "err", err)
		s.report("attach failed", dxpuv1.BindingState_BINDING_STATE_FAILED, err.Error())
		return
	}
	s.guest.begin(want.Replugs, s.counters.traffic())
	s.report("attached", dxpuv1.BindingState_BINDING_STATE_ATTACHED, "")
	s.wake() // the link may have gone down meanwhile
}

func (s *slot) open(ctx context.Context, want *dxpuv1.DesiredBinding, self uint32) error {
	cfg, peers, err := agent.LinkConfig(want, self, dxpuv1.NodeKind_NODE_KIND_HOST)
	if err != nil {
		return err
	}
	g := s.host.group
	e := g.Enter()
	s.gone, s.mps = false, pcie.MinPayload
	s.root = newRequestPort(s, s.host.cfg.CompletionTimeout)
	s.binding, err = g.Attach(e, engine.BindingConfig{Link: cfg, Peers: peers, Handler: s})
	g.Leave(e)
	if err != nil {
		return err
	}
	if err := s.awaitLink(ctx); err != nil {
		return err
	}
	s.status.Step("link_up")
	if err := s.bindRow(want); err != nil {
		return err
	}
	s.plugged, err = s.host.cfg.Front.plug(ctx, s)
	return err
}

// awaitLink waits until the link is up.
func (s *slot) awaitLink(ctx context.Context) error {
	deadline := s.host.fabric.Now() + linkTimeout
	for {
		e := s.host.group.Enter()
		state, why := s.binding.State(e), s.binding.Why(e)
		s.host.group.Leave(e)
		switch state {
		case link.Up:
			return nil
		case link.Down:
			return fmt.Errorf("link: %s", why)
		}
		if !s.kick.Wait(ctx, deadline-s.host.fabric.Now()) {
			return fmt.Errorf("the box did not open the link within %v", linkTimeout)
		}
		if want, _ := s.host.Wanted(s.index); !agent.Same(want, s.observed()) {
			return errors.New("no longer wanted")
		}
	}
}

// bindRow enters the binding into the mapping table.
func (s *slot) bindRow(want *dxpuv1.DesiredBinding) error {
	e := s.host.group.Enter()
	defer s.host.group.Leave(e)
	return s.host.table.Bind(s.index, mapping.Target{
		Box: want.GetPeer().GetNodeNumber(), Slot: uint16(want.GetPeer().GetSlot()), Path: uint8(want.Path),
	})
}

// lose takes away a device whose link is down, as a surprise to the host: it
// has been answered in the device's stead since, and is now told.
func (s *slot) lose(ctx context.Context) {
	e := s.host.group.Enter()
	why := s.binding.Why(e)
	s.host.group.Leave(e)
	s.host.log.Warn("device lost", "slot", s.index, "why", why)
	s.report("lost", dxpuv1.BindingState_BINDING_STATE_LOST, why)
	s.unplug(ctx, s.unplugTimeout)
	s.close(engine.CloseDeviceLost)
	s.status.Step("removed")
	s.host.Changed()
}

// detachWithin takes a device away that is no longer wanted, with the host's
// consent if it comes in time.
func (s *slot) detachWithin(ctx context.Context, timeout time.Duration) {
	s.report("detaching", dxpuv1.BindingState_BINDING_STATE_DETACHING, "")
	s.unplug(ctx, timeout)
	s.detach(engine.CloseDetached)
}

// detach ends what is left of the binding and forgets it.
func (s *slot) detach(code engine.CloseCode) {
	if s.observed().ID == "" {
		return
	}
	s.close(code)
	s.linkStats.Store(nil)
	s.guest.end()
	s.status.End()
	s.host.Changed()
}

// close takes the device away from the host and ends the link.
func (s *slot) close(code engine.CloseCode) {
	g := s.host.group
	if b := s.binding; b != nil {
		e := g.Enter()
		b.Shutdown(e, code)
		if !s.gone {
			s.gone = true
			s.root.cancel(e)
			if s.port != nil {
				s.port.DeviceLost(e)
			}
		}
		s.noteRoom(e)
		g.Leave(e)
	}
	if s.plugged != nil {
		s.plugged.close()
		s.plugged = nil
	}
	if b := s.binding; b != nil {
		g.Detach(b)
	}
	e := g.Enter()
	s.binding, s.port = nil, nil
	s.host.table.Unbind(s.index)
	g.Leave(e)
}

func (s *slot) linkDown() bool {
	e := s.host.group.Enter()
	defer s.host.group.Leave(e)
	return s.gone
}

// sample copies the counters of the link for reports and metrics.
func (s *slot) sample() {
	if s.binding == nil {
		return
	}
	e := s.host.group.Enter()
	stats := s.binding.Stats(e)
	held := s.plugged != nil && s.plugged.held()
	s.host.group.Leave(e)
	s.linkStats.Store(&stats)
	s.guest.sample(held, s.counters.traffic())
}

// report notes a state and tells the manager.
func (s *slot) report(what string, state dxpuv1.BindingState, detail string) {
	s.status.Advance(state, detail)
	s.host.log.Info(what, "slot", s.index, "binding", s.observed().ID, "detail", detail)
	s.host.Changed()
}

func (s *slot) observed() agent.BindingStatus { return s.status.Get() }
