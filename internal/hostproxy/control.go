package hostproxy

import (
	"context"
	"log/slog"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/agent"
	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
	"github.com/dxpu-project/dxpu/internal/dataplane/mapping"
	"github.com/dxpu-project/dxpu/internal/hostproxy/controller"
	"github.com/dxpu-project/dxpu/link"
)

// sampleInterval is the time between two copies of a link's counters for reports.
const sampleInterval = 500 * time.Millisecond

func newSlot(h *Proxy, index int) *slot {
	s := &slot{
		host: h, index: index, kick: h.fabric.NewSignal(),
		control: controller.Controller{UnplugTimeout: h.cfg.UnplugTimeout},
	}
	s.Status.Clock = h.fabric.WallTime
	s.root = newRequestPort(s, h.cfg)
	return s
}

// run carries out the decisions of the slot's controller until ctx ends; then it
// takes the device away. It alone changes the slot's binding.
func (s *slot) run(ctx context.Context) {
	if f, ok := s.host.cfg.Front.(*VM); ok {
		f.sweep(ctx, s.index)
	}
	clock := s.host.fabric.Now
	next := clock() + sampleInterval
	for ctx.Err() == nil {
		s.reconcile(ctx, false)
		s.kick.Wait(ctx, max(min(next, s.control.Wake())-clock(), 0))
		if now := clock(); now >= next {
			next = now + sampleInterval
			s.sample()
		}
	}
	s.reconcile(context.WithoutCancel(ctx), true)
}

// reconcile steps the controller until it has nothing to do. stop: the proxy
// goes down.
func (s *slot) reconcile(ctx context.Context, stop bool) {
	for {
		binding, desired := s.wanted()
		want := controller.Desired{Binding: binding, Stop: stop}
		actions := s.control.Step(s.host.fabric.Now(), want, s.look())
		s.seen.Err = nil
		for _, a := range actions {
			if s.seen.Err = s.do(ctx, a, desired); s.seen.Err != nil {
				s.seen.Fault = faultOf(s.seen.Err)
				break
			}
			s.noteApplied(want, desired)
		}
		if len(actions) == 0 && !stop && s.control.Has(binding) {
			s.followSuccession(binding, desired) // a revision counts as applied once its migration has begun
		}
		s.noteApplied(want, desired)
		if len(actions) == 0 {
			s.guest.replugs.Store(s.control.Replugs())
			return
		}
	}
}

// noteApplied reports the revision of the desired state once the slot follows it.
func (s *slot) noteApplied(want controller.Desired, desired *dxpuv1.DesiredState) {
	if rev := desired.GetRevision(); s.control.Follows(want) && s.Applied.Swap(rev) != rev {
		s.host.Changed()
	}
}

// look returns the state of the slot for the controller.
func (s *slot) look() controller.Seen {
	s.seen.Connected = true
	if p, ok := s.plugged.(*pluggedVM); ok && p.front.QMP != "" {
		s.seen.Connected = p.connected()
	}
	e := s.host.group.Enter() // a switch may change the binding at any time
	defer s.host.group.Leave(e)
	if s.binding == nil {
		return s.seen
	}
	s.seen.Link, s.seen.Why = s.binding.State(e), s.binding.Why(e)
	if s.gone {
		s.seen.Link = link.Down
	}
	return s.seen
}

// do carries out one action of the controller.
func (s *slot) do(ctx context.Context, a controller.Action, desired *dxpuv1.DesiredState) error {
	want := agent.Wanted(desired, s.index)
	switch a.Verb {
	case controller.Begin:
		s.Status.Begin(want)
	case controller.Report:
		s.report(a)
	case controller.Note:
		s.note(a.Detail, a.Waiting)
	case controller.End:
		s.end()
	case controller.Open:
		return s.open(want, desired.NodeNumber)
	case controller.Readdress:
		return s.readdress(want, desired.NodeNumber)
	case controller.Plug:
		return s.plug(ctx, want)
	case controller.Look:
		p := s.plugged.(*pluggedVM)
		s.seen.Guest, s.seen.Detail = p.look(ctx)
	case controller.Replug:
		return s.replug(ctx)
	case controller.Eject:
		s.eject()
	case controller.Return:
		s.returned("the device is plugged in again by hand")
	case controller.Unplug:
		s.unplug(ctx, a.Timeout)
	case controller.Close:
		s.close(a.Code)
	}
	return nil
}

// open starts to open the link.
func (s *slot) open(want *dxpuv1.DesiredBinding, self uint32) error {
	cfg, peers, err := agent.LinkConfig(want, self, dxpuv1.NodeKind_NODE_KIND_HOST)
	if err != nil {
		return err
	}
	g := s.host.group
	e := g.Enter()
	defer g.Leave(e)
	s.gone, s.serves = false, nil
	s.root = newRequestPort(s, s.host.cfg)
	s.binding, err = g.Attach(e, engine.BindingConfig{Link: cfg, Peers: peers, Handler: s})
	return err
}

// readdress takes the present addresses of the peer over into a link that is not up.
func (s *slot) readdress(want *dxpuv1.DesiredBinding, self uint32) error {
	_, peers, err := agent.LinkConfig(want, self, dxpuv1.NodeKind_NODE_KIND_HOST)
	if err != nil {
		return err
	}
	e := s.host.group.Enter()
	defer s.host.group.Leave(e)
	return s.host.group.Readdress(e, s.binding, peers)
}

// plug enters the binding into the mapping table and shows the device to the host. A
// plug that fails leaves nothing behind, so that it can be repeated.
func (s *slot) plug(ctx context.Context, want *dxpuv1.DesiredBinding) error {
	s.Status.StepOnce("link_up")
	e := s.host.group.Enter()
	err := s.host.table.Bind(s.index, target(want))
	s.host.group.Leave(e)
	if err != nil {
		return err
	}
	plugged, err := s.host.cfg.Front.plug(ctx, s)
	if err != nil {
		e := s.host.group.Enter()
		s.port = nil
		s.host.table.Unbind(s.index)
		s.host.group.Leave(e)
		return err
	}
	s.plugged = plugged
	s.guest.begin(s.Traffic.TLPs())
	return nil
}

// target returns the far end of a binding for the mapping table.
func target(want *dxpuv1.DesiredBinding) mapping.Target {
	return mapping.Target{Box: want.GetPeer().GetNodeNumber(), Slot: uint16(want.GetPeer().GetSlot()), Path: uint8(want.Path)}
}

// end forgets the binding.
func (s *slot) end() {
	s.LinkStats.Store(nil)
	s.guest.end()
	s.migration.Store(nil) // of the binding: one that has ended, too
	s.Status.End()
	s.host.Changed()
}

// close takes the device away from the host and ends the link.
func (s *slot) close(code engine.CloseCode) {
	if s.next != nil {
		s.endSuccession()
	}
	g := s.host.group
	if b := s.binding; b != nil {
		e := g.Enter()
		b.Shutdown(e, code)
		s.lose(e)
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
	s.Traffic.Publish()
	s.host.table.Unbind(s.index)
	g.Leave(e)
	if code == engine.CloseDeviceLost {
		s.Status.Step("removed")
		s.host.Changed()
	}
}

// sample copies the counters of the link for reports and metrics.
func (s *slot) sample() {
	e := s.host.group.Enter()
	if s.binding == nil {
		s.host.group.Leave(e)
		return
	}
	stats := s.binding.Stats(e)
	held := s.plugged != nil && s.plugged.held(e)
	s.host.group.Leave(e)
	s.LinkStats.Store(&stats)
	s.guest.sample(held, s.Traffic.TLPs())
}

// report passes a new state of the binding to the manager.
func (s *slot) report(a controller.Action) {
	if a.State == dxpuv1.BindingState_BINDING_STATE_ATTACHED {
		a.Detail = s.trouble()
	}
	s.Status.Advance(a.State, a.Reason, a.Detail)
	level := slog.LevelInfo
	if a.Detail != "" {
		level = slog.LevelWarn
	}
	s.host.log.Log(context.Background(), level, "binding", "slot", s.index, "binding", s.Status.Get().ID, "state", agent.StateName(a.State), "detail", a.Detail)
	s.host.Changed()
}

// note adds a detail to the reported state. waiting: the binding waits for a VM.
func (s *slot) note(detail string, waiting bool) {
	if !s.Status.Note(detail, waiting) {
		return
	}
	if detail != "" {
		s.host.log.Warn("binding", "slot", s.index, "binding", s.Status.Get().ID, "detail", detail)
	}
	s.host.Changed()
}
