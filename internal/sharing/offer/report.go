package offer

import (
	"fmt"
	"strings"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// recently is how long after a launch a share counts as busy.
const recently = 2 * time.Second

// Box returns the state of the box: its GPUs, and the slots for their parts.
func (o *Offer) Box() *dxpuv1.ObservedState {
	out := &dxpuv1.ObservedState{AppliedRevision: o.box.GetRevision(), BoxKind: dxpuv1.BoxKind_BOX_KIND_PCIE_SWITCH}
	for i := range o.gpus {
		g := &o.gpus[i]
		health, why := o.health(g)
		whole := o.boxSlot(uint32(g.Place), health, why)
		whole.Device = &dxpuv1.Device{
			Model: g.Device.Model, MemoryBytes: g.Device.MemoryBytes, Serial: g.Device.Serial, VendorId: g.Device.VendorId,
			Multiprocessors: g.Device.Multiprocessors, ShareModes: []dxpuv1.ShareMode{o.mode},
		}
		out.Slots = append(out.Slots, whole)
		of := uint32(g.Place)
		for p := range uint32(Parts) {
			s := o.boxSlot(MaxGPUs+of*Parts+p, health, why)
			s.Device = &dxpuv1.Device{Model: g.Device.Model, VendorId: g.Device.VendorId, MemoryBytes: s.GetBinding().GetPart().GetMemoryBytes()}
			s.PartOf = &of
			out.Slots = append(out.Slots, s)
		}
	}
	return out
}

// health returns the health of a GPU. Shares that no lease has take memory and compute that
// the manager believes to be free, so the GPU gets no new leases.
func (o *Offer) health(g *GPU) (dxpuv1.Health, string) {
	c := o.seen.Conditions[g.Name]
	switch {
	case c.Failed != "":
		return dxpuv1.Health_HEALTH_FAILED, c.Failed
	case len(c.Others) > 0:
		return dxpuv1.Health_HEALTH_DEGRADED, fmt.Sprintf("shares made on the machine use it: %s", strings.Join(c.Others, ", "))
	}
	return dxpuv1.Health_HEALTH_OK, ""
}

func (o *Offer) boxSlot(slot uint32, health dxpuv1.Health, why string) *dxpuv1.ObservedSlot {
	return &dxpuv1.ObservedSlot{
		Slot: slot, Health: health, HealthDetail: why, Binding: o.boxBinding(slot),
		Immovable: "the GPU is local to its host",
	}
}

// boxBinding returns the binding in a slot of the box: that of the share which is there, or
// the one that is wanted.
func (o *Offer) boxBinding(slot uint32) *dxpuv1.ObservedBinding {
	for i := range o.seen.Shares {
		if s := &o.seen.Shares[i]; s.BoxSlot == slot {
			out := s.observed(dxpuv1.BindingState_BINDING_STATE_READY)
			out.Part = s.part(o.mode)
			if find(o.box, s.Binding) == nil && o.box != nil {
				out.State = dxpuv1.BindingState_BINDING_STATE_RESETTING
			}
			return out
		}
	}
	for _, w := range o.box.GetBindings() {
		if w != nil && w.Slot == slot {
			return o.withoutShare(w)
		}
	}
	return nil
}

// withoutShare returns a binding that the box wants and that has no share.
func (o *Offer) withoutShare(w *dxpuv1.DesiredBinding) *dxpuv1.ObservedBinding {
	out := &dxpuv1.ObservedBinding{BindingId: w.BindingId, Epoch: w.Epoch, State: dxpuv1.BindingState_BINDING_STATE_PREPARING}
	n := o.notes[key(o.box, w)]
	switch {
	case n != nil && n.ended:
		out.State, out.Part = dxpuv1.BindingState_BINDING_STATE_READY, w.Part
	case n != nil && n.failed != "":
		out.State, out.Detail = dxpuv1.BindingState_BINDING_STATE_FAILED, n.failed
	case w.State > dxpuv1.BindingState_BINDING_STATE_PREPARING:
		out.State, out.Detail = dxpuv1.BindingState_BINDING_STATE_LOST, "the sharing agent has lost the share"
	}
	return out
}

// Host returns the state of the host, which has a slot for each part and each GPU.
func (o *Offer) Host(now time.Duration) *dxpuv1.ObservedState {
	out := &dxpuv1.ObservedState{AppliedRevision: o.host.GetRevision()}
	for slot := range o.hostSlots() {
		out.Slots = append(out.Slots, &dxpuv1.ObservedSlot{
			Slot: slot, Domain: Domain, Health: dxpuv1.Health_HEALTH_OK, Binding: o.hostBinding(now, slot),
		})
	}
	return out
}

// hostSlots returns the number of slots of the host. One with a binding stays, also when the GPU with
// the highest place is gone: any slot may have a part of any GPU.
func (o *Offer) hostSlots() (n uint32) {
	for i := range o.gpus {
		n = max(n, uint32(o.gpus[i].Place+1)*Parts)
	}
	use := func(slot uint32) {
		if slot < mostHostSlots {
			n = max(n, slot+1)
		}
	}
	for i := range o.seen.Shares {
		use(o.seen.Shares[i].HostSlot)
	}
	for _, w := range o.host.GetBindings() {
		use(w.GetSlot())
	}
	return n
}

// mostHostSlots is the number of slots of a host with all GPUs that there can be.
const mostHostSlots = MaxGPUs * Parts

// hostBinding returns the binding in a slot of the host.
func (o *Offer) hostBinding(now time.Duration, slot uint32) *dxpuv1.ObservedBinding {
	for i := range o.seen.Shares {
		s := &o.seen.Shares[i]
		if s.HostSlot != slot || !s.Attached {
			continue
		}
		out := s.observed(dxpuv1.BindingState_BINDING_STATE_ATTACHED)
		out.Use = o.use(now, s)
		if o.host != nil && find(o.host, s.Binding) == nil {
			out.State = dxpuv1.BindingState_BINDING_STATE_DETACHING
			out.Detail = fmt.Sprintf("%d programs are to end", s.Processes)
		}
		return out
	}
	for _, w := range o.host.GetBindings() {
		if w != nil && w.Slot == slot {
			return &dxpuv1.ObservedBinding{BindingId: w.BindingId, Epoch: w.Epoch, State: dxpuv1.BindingState_BINDING_STATE_PREPARING}
		}
	}
	return nil
}

func (o *Offer) use(now time.Duration, s *Share) dxpuv1.Use {
	n := o.notes[s.Binding]
	switch {
	case s.Processes == 0:
		return dxpuv1.Use_USE_IDLE
	case n != nil && n.active > 0 && now-n.active < recently:
		return dxpuv1.Use_USE_BUSY
	}
	return dxpuv1.Use_USE_HELD
}

func (s *Share) observed(state dxpuv1.BindingState) *dxpuv1.ObservedBinding {
	return &dxpuv1.ObservedBinding{BindingId: s.ID, Epoch: s.Epoch, State: state}
}

// part returns the limits of a share that are in force, nil for a whole GPU.
func (s *Share) part(mode dxpuv1.ShareMode) *dxpuv1.Part {
	if s.BoxSlot < MaxGPUs {
		return nil
	}
	out := &dxpuv1.Part{
		MemoryBytes: uint64(max(s.Memory, s.Kept, 0)), Compute: uint32(s.Compute / thousandth), Share: mode,
		Class: dxpuv1.PartClass_PART_CLASS_ONLINE,
	}
	if s.Offline {
		out.Class = dxpuv1.PartClass_PART_CLASS_OFFLINE
	}
	return out
}
