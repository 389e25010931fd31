package boxproxy

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/internal/agent"
	"github.com/dxpu-project/dxpu/internal/boxproxy/controller"
	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
	"github.com/dxpu-project/dxpu/internal/dataplane/mapping"
	"github.com/dxpu-project/dxpu/internal/pool/revision"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/machine"
)

// run carries out the actions of the slot's controller until ctx has ended and
// the slot is free. Only run changes the binding of the slot.
func (s *slot) run(ctx context.Context) {
	for wait := ctx; ; {
		stop := ctx.Err() != nil
		if s.settle(stop) && stop {
			return
		}
		if stop {
			wait = context.WithoutCancel(ctx)
		}
		s.kick.Wait(wait, max(s.wakeAt()-s.box.fabric.Now(), 0))
		s.makeCalls()
	}
}

// wake makes the controller look again.
func (s *slot) wake() { s.kick.Set() }

// settle carries out actions until the controller has none. It reports whether
// the slot takes account of the wanted state.
func (s *slot) settle(stop bool) bool {
	var failed error
	for {
		binding, state := s.box.Wanted(s.index)
		want := controller.Desired{Binding: binding, Stop: stop}
		for _, r := range state.GetResets() {
			if int(r.Slot) == s.index {
				want.Reset = r.Sequence
			}
		}
		actions := s.control.Step(s.box.fabric.Now(), want, s.look(failed))
		if len(actions) > 0 {
			failed = s.do(actions, binding, state)
			continue
		}
		s.resizePart(binding)
		if s.control.Follows(want) && !stop {
			s.followTransfer(binding, state)
		}
		follows := s.control.Follows(want)
		if rev := state.GetRevision(); follows && s.Applied.Swap(rev) != rev {
			s.box.Changed()
		}
		return follows
	}
}

// wakeAt returns when settle is due without news.
func (s *slot) wakeAt() time.Duration {
	if s.device == nil {
		return machine.Never
	}
	return s.control.Wake()
}

// look returns the state of the slot for the controller.
func (s *slot) look(failed error) controller.Seen {
	out := controller.Seen{Empty: s.device == nil, Claimed: s.domain != nil, Jobs: int(s.jobs.Load()), Err: failed}
	if out.Empty {
		out.Detail = fmt.Sprintf("slot %d: the slot is empty", s.index)
		return out
	}
	if c := s.seen.Load(); c.ok {
		out.Works = true
	} else {
		out.Detail = fmt.Sprintf("slot %d: %s", s.index, c.detail)
	}
	if s.binding != nil {
		e := s.domain.group.Enter()
		out.Linked, out.Link = true, s.binding.State(e)
		if out.Link != link.Up {
			out.Why = s.binding.Why(e)
		}
		s.domain.group.Leave(e)
	}
	return out
}

// do carries out actions in order, up to the first that fails.
func (s *slot) do(actions []controller.Action, want *dxpuv1.DesiredBinding, desired *dxpuv1.DesiredState) error {
	for _, a := range actions {
		var err error
		switch a.Verb {
		case controller.Look:
			s.sample()
		case controller.Begin:
			s.Status.Begin(want)
		case controller.Report:
			s.report(a)
		case controller.Claim:
			err = s.claim(want, desired)
		case controller.Reset:
			s.evicted.Store(nil)
			s.withDevice(func(now time.Duration, _ engine.Entry) { s.device.Reset(now, device.ConventionalReset) })
		case controller.Attach:
			err = s.attach(want.GetTransfer().GetReceive())
		case controller.Close:
			s.withDevice(func(_ time.Duration, e engine.Entry) { s.binding.Shutdown(e, a.Code) })
		case controller.Detach:
			s.endTransfer()
			s.detach()
			s.leaveGPU()
		case controller.Scrub:
			s.scrub()
		case controller.Release:
			s.leaveGPU()
			s.endPart()
			s.box.leave(s.domain)
			s.domain = nil
			s.box.unbindRow(s.index)
		case controller.End:
			s.LinkStats.Store(nil)
			s.Status.End()
			s.box.Changed()
		case controller.Readdress:
			err = s.readdress(want, desired)
		case controller.Confirm:
			s.box.log.Info("device reset", "slot", s.index, "sequence", a.Reset)
			s.reset.Store(a.Reset)
			s.box.Changed()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// report reports the next state of the binding.
func (s *slot) report(a controller.Action) {
	s.Status.Advance(a.State, 0, a.Detail)
	s.logReport(a)
	s.box.Changed()
}

// releasedByHost is the reason of a link that the host has closed because the binding ends.
var releasedByHost = fmt.Sprintf("%v: %v", link.PeerClosed, engine.CloseDetached)

func (s *slot) logReport(a controller.Action) {
	const failed, lost = dxpuv1.BindingState_BINDING_STATE_FAILED, dxpuv1.BindingState_BINDING_STATE_LOST
	level, state, detail := slog.LevelInfo, agent.StateName(a.State), a.Detail
	switch {
	case a.State == lost && detail == releasedByHost: // the first half of each ordinary release
		state, detail = "released by the host", ""
	case a.State == failed || a.State == lost:
		level = slog.LevelWarn
	}
	s.box.log.Log(context.Background(), level, "binding", "slot", s.index, "binding", s.Status.Get().ID, "state", state, "detail", detail)
}

// claim enters the binding into the mapping table, which refuses an old epoch,
// and into the domain.
func (s *slot) claim(want *dxpuv1.DesiredBinding, desired *dxpuv1.DesiredState) error {
	cfg, peers, err := agent.LinkConfig(want, desired.NodeNumber, dxpuv1.NodeKind_NODE_KIND_BOX)
	if err != nil {
		return err
	}
	if err := s.joinGPU(want.Part); err != nil {
		return err
	}
	err = s.box.bindRow(s.index, s.seen.Load().info.BARs, mapping.Owner{
		Node: want.GetPeer().GetNodeNumber(), Domain: want.Domain, Slot: uint16(want.GetPeer().GetSlot()),
		Path: uint8(want.Path), Epoch: want.Epoch, Incarnation: revision.Incarnation(desired.Revision),
	})
	if err != nil {
		s.leaveGPU()
		s.endPart()
		return err
	}
	s.domain = s.box.join(want.Domain)
	s.config = engine.BindingConfig{Link: cfg, Peers: peers, Handler: s}
	return nil
}

// attach opens the link of the claimed binding. arriving: the device waits for the state
// of another one.
func (s *slot) attach(arriving bool) error {
	g := s.domain.group
	e := g.Enter()
	defer g.Leave(e)
	cfg := s.config
	s.config = engine.BindingConfig{} // the ephemeral key is the link's alone
	b, err := g.Attach(e, cfg)
	if err != nil {
		return err
	}
	s.binding, s.arriving, s.bound = b, arriving, s.domain.started
	s.live.Store(&attachment{g, b})
	return nil
}

// readdress takes the present addresses of the host over into a link that is not up.
func (s *slot) readdress(want *dxpuv1.DesiredBinding, desired *dxpuv1.DesiredState) error {
	_, peers, err := agent.LinkConfig(want, desired.NodeNumber, dxpuv1.NodeKind_NODE_KIND_BOX)
	if err != nil {
		return err
	}
	e := s.domain.group.Enter()
	defer s.domain.group.Leave(e)
	return s.domain.group.Readdress(e, s.binding, peers)
}

// detach removes the link.
func (s *slot) detach() {
	g := s.domain.group
	e := g.Enter()
	s.left(e)
	g.Leave(e)
	g.Detach(s.binding)
	e = g.Enter()
	s.binding = nil
	s.stopping, s.rested, s.moved, s.arriving, s.started, s.installed, s.word = false, false, false, false, 0, nil, nil
	s.live.Store(nil)
	s.Traffic.Publish()
	g.Leave(e)
}

// sample asks the device for its condition and the link for its counters.
func (s *slot) sample() {
	s.withDevice(func(_ time.Duration, e engine.Entry) {
		if seen := s.condition(); !s.seen.Swap(seen).equal(seen) {
			s.box.Changed()
		}
		if s.binding != nil {
			stats := s.binding.Stats(e)
			s.LinkStats.Store(&stats)
		}
	})
}

// withDevice calls f while the controller has the device to itself. e is valid
// while the slot has a binding. No other goroutine uses the device of a slot
// without a domain.
func (s *slot) withDevice(f func(now time.Duration, e engine.Entry)) {
	if s.domain == nil {
		f(s.box.fabric.Now(), engine.Entry{})
		return
	}
	e := s.domain.group.Enter()
	f(e.Now(), e)
	s.domain.group.Leave(e)
}

// call runs a function of With.
func (s *slot) call(f func(device.Device)) {
	s.withDevice(func(_ time.Duration, e engine.Entry) {
		f(s.device)
		if s.binding != nil {
			s.binding.Touch(e)
		}
	})
	s.sample()
}
