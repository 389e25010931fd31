package boxproxy

import (
	"context"
	"fmt"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/internal/agent"
	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
	"github.com/dxpu-project/dxpu/internal/dataplane/mapping"
	"github.com/dxpu-project/dxpu/internal/pool/revision"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/pcie"
)

// healthInterval is how often a device is asked how it is: often enough that a
// guest learns of a dead GPU within a second, seldom enough that a box full of
// idle ones leaves the processor alone.
const healthInterval = 250 * time.Millisecond

// run is the controller of a slot: it makes and unmakes the binding until the
// slot is as the manager wants it, and watches the device and the link. It is
// the only one that changes the slot's binding.
//
//	free -> bind -> PREPARING -> link up -> ATTACHED
//	                     \            \
//	                      FAILED       LOST       (stays so until no longer wanted)
//	any -> unbind -> RESETTING: reset, scrub -> free
func (s *slot) run(ctx context.Context) {
	defer s.unbind(engine.CloseShutdown)
	clock := s.box.fabric.Now
	next := clock() + healthInterval
	for ctx.Err() == nil {
		s.reconcile()
		s.kick.Wait(ctx, max(next-clock(), 0))
		s.calls.run(s.call)
		if now := clock(); now >= next {
			next = now + healthInterval
			s.sample()
		}
	}
}

// wake makes the controller look again.
func (s *slot) wake() { s.kick.Set() }

// reconcile takes one look at what is wanted and what is.
func (s *slot) reconcile() {
	want, desired := s.box.Wanted(s.index)
	have := s.status.Get()
	if have.ID != "" && !agent.Same(want, have) {
		s.unbind(engine.CloseDetached)
		have = agent.BindingStatus{}
	}
	if want != nil && have.ID == "" {
		s.status.Begin(want)
	}
	if rev := desired.GetRevision(); s.applied.Swap(rev) != rev {
		s.box.Changed()
	}
	switch {
	case want == nil:
		s.resetAsAsked(desired)
	case have.ID == "":
		s.bind(want, desired)
	default:
		s.watchLink(have)
	}
}

// bind dedicates the slot's device to a host and opens the link.
func (s *slot) bind(want *dxpuv1.DesiredBinding, desired *dxpuv1.DesiredState) {
	s.advance(dxpuv1.BindingState_BINDING_STATE_PREPARING, "")
	if err := s.open(want, desired); err != nil {
		s.box.log.Warn("binding refused", "slot", s.index, "binding", want.BindingId, "err", err)
		s.advance(dxpuv1.BindingState_BINDING_STATE_FAILED, err.Error())
		return
	}
	s.advance(dxpuv1.BindingState_BINDING_STATE_READY, "")
}

func (s *slot) open(want *dxpuv1.DesiredBinding, desired *dxpuv1.DesiredState) error {
	seen := s.look()
	if !seen.ok {
		return fmt.Errorf("slot %d: %s", s.index, seen.detail)
	}
	cfg, peers, err := agent.LinkConfig(want, desired.NodeNumber, dxpuv1.NodeKind_NODE_KIND_BOX)
	if err != nil {
		return err
	}
	if err := s.box.bindRow(s.index, seen.info.BARs, want, revision.Incarnation(desired.Revision)); err != nil {
		return err
	}
	d := s.box.enter(want.Domain)
	e := d.group.Enter()
	s.device.Reset(e.Now(), device.ConventionalReset)
	s.domain = d
	b, err := d.group.Attach(e, engine.BindingConfig{Link: cfg, Peers: peers, Handler: s})
	if err == nil {
		s.binding = b
		s.live.Store(&attachment{d.group, b})
	}
	d.group.Leave(e)
	if err != nil {
		s.release()
	}
	return err
}

// unbind takes the binding down, whatever is left of it, and cleans the device.
func (s *slot) unbind(code engine.CloseCode) {
	if s.status.Get().ID == "" {
		return
	}
	s.advance(dxpuv1.BindingState_BINDING_STATE_RESETTING, "")
	if d := s.domain; d != nil {
		if b := s.binding; b != nil {
			e := d.group.Enter()
			b.Shutdown(e, code)
			d.group.Leave(e)
			d.group.Detach(b)
		}
		s.release()
	}
	s.linkStats.Store(nil)
	s.status.End()
	s.box.Changed()
}

// release gives the device back to the box: reset, and without anything that
// the tenant left in it.
func (s *slot) release() {
	d := s.domain
	e := d.group.Enter()
	s.binding = nil
	s.live.Store(nil)
	s.device.Reset(e.Now(), device.ConventionalReset)
	d.group.Leave(e)
	for s.jobs.Load() > 0 { // they work on the device's memory
		s.idle.Wait(context.Background(), healthInterval)
	}
	s.scrub()
	s.domain = nil
	s.box.leave(d)
	s.box.unbindRow(s.index)
}

// resetAsAsked resets a device that has no binding, if the manager wants it, once
// for each sequence. How the device is afterwards is known before the reset is
// reported.
func (s *slot) resetAsAsked(desired *dxpuv1.DesiredState) {
	for _, r := range desired.GetResets() {
		if int(r.Slot) != s.index || r.Sequence == s.reset.Load() || s.device == nil {
			continue
		}
		// No other goroutine uses the device of a slot that is not bound.
		s.device.Reset(s.box.fabric.Now(), device.ConventionalReset)
		s.scrub()
		s.sample()
		s.box.log.Info("device reset", "slot", s.index, "sequence", r.Sequence)
		s.reset.Store(r.Sequence)
		s.box.Changed()
	}
}

// watchLink follows the link of a binding.
func (s *slot) watchLink(have agent.BindingStatus) {
	if s.binding == nil {
		return
	}
	e := s.domain.group.Enter()
	state, why := s.binding.State(e), s.binding.Why(e)
	s.domain.group.Leave(e)
	switch {
	case state == link.Up && have.State == dxpuv1.BindingState_BINDING_STATE_READY:
		s.advance(dxpuv1.BindingState_BINDING_STATE_ATTACHED, "")
	case state == link.Down && have.State != dxpuv1.BindingState_BINDING_STATE_LOST:
		s.advance(dxpuv1.BindingState_BINDING_STATE_LOST, why)
	}
}

// sample looks at the device and at the link. A device that has died ends its
// binding: the host must know at once, the manager soon.
func (s *slot) sample() {
	s.withDevice(func(e engine.Entry) {
		seen := s.look()
		if s.binding != nil {
			stats := s.binding.Stats(e)
			s.linkStats.Store(&stats)
			if !seen.ok && s.binding.State(e) != link.Down {
				s.box.log.Warn("device failed", "slot", s.index, "detail", seen.detail)
				s.binding.Shutdown(e, engine.CloseDeviceLost)
			}
		}
	})
}

// look asks the device for its condition, with the slot entered, and reports a
// change.
func (s *slot) look() *condition {
	if s.device == nil {
		return &condition{detail: "the slot is empty"}
	}
	seen := s.abilities.condition()
	if !s.seen.Swap(seen).equal(seen) {
		s.box.Changed()
	}
	return seen
}

// withDevice calls f while the controller has the device to itself. e is valid
// if the slot has a binding; a slot without a domain needs no group.
func (s *slot) withDevice(f func(e engine.Entry)) {
	if s.domain == nil {
		f(engine.Entry{})
		return
	}
	e := s.domain.group.Enter()
	f(e)
	s.domain.group.Leave(e)
}

func (s *slot) call(f func(device.Device)) {
	s.withDevice(func(e engine.Entry) {
		f(s.device)
		if s.binding != nil {
			s.binding.Touch(e)
		}
	})
	s.sample()
}

// advance reports a binding's next state.
func (s *slot) advance(state dxpuv1.BindingState, detail string) {
	s.status.Advance(state, detail)
	s.box.log.Info("binding", "slot", s.index, "binding", s.status.Get().ID, "state", agent.StateName(state), "detail", detail)
	s.box.Changed()
}

// bindRow enters a binding into the mapping table, which refuses an old epoch.
func (b *Box) bindRow(slot int, bars [pcie.MaxBARs]pcie.BAR, want *dxpuv1.DesiredBinding, incarnation uint64) error {
	b.tableMu.Lock()
	defer b.tableMu.Unlock()
	if err := b.table.Insert(slot, bars); err != nil {
		return err
	}
	return b.table.Bind(slot, mapping.Host{
		Node: want.GetPeer().GetNodeNumber(), Domain: want.Domain,
		Slot: uint16(want.GetPeer().GetSlot()), Path: uint8(want.Path), Epoch: want.Epoch, Incarnation: incarnation,
	})
}

func (b *Box) unbindRow(slot int) {
	b.tableMu.Lock()
	defer b.tableMu.Unlock()
	b.table.Unbind(slot)
}
