package boxproxy

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
	"github.com/dxpu-project/dxpu/share"
	"github.com/dxpu-project/dxpu/share/dispatch"
)

// Divisible is a GPU that the manager divides into parts, each of which is bound through a
// slot of its own. The GPU as a whole has a slot, too. All are clients of one dispatcher,
// whose account of the memory keeps the whole GPU and its parts from being bound at the
// same time.
type Divisible struct {
	Slot int // of the whole GPU
	Mode dxpuv1.ShareMode
	Step int64 // granularity of the memory of a part, in bytes
}

// Sized is a device whose owner decides how much memory it has.
type Sized interface {
	// SetMemory changes the size in bytes: at any time to more, and to less only after
	// Scrub.
	SetMemory(n int64) error
}

// ModeOf returns how a policy's clients share a GPU, in the API's terms.
func ModeOf(x share.Execution) dxpuv1.ShareMode {
	switch x {
	case share.Contexts:
		return dxpuv1.ShareMode_SHARE_MODE_TIME
	case share.Partitions:
		return dxpuv1.ShareMode_SHARE_MODE_PARTITION
	default:
		return dxpuv1.ShareMode_SHARE_MODE_SPACE
	}
}

// PartSlots returns the slots of a divisible GPU: whole in the first one, whose number is
// slot, and the parts behind it. Policy has made the dispatcher.
func PartSlots[D device.Device](slot int, whole device.Device, parts []D, step int64, d *dispatch.Dispatcher, policy share.Info) []Slot {
	of := &Divisible{Slot: slot, Mode: ModeOf(policy.Execution), Step: step}
	all := share.ClientSpec{Request: share.Whole, Memory: d.Device().Memory}
	out := []Slot{{Device: whole, Slice: &Slice{Dispatcher: d, Client: 1, Spec: all, Whole: of}}}
	for i, p := range parts {
		out = append(out, Slot{Device: p, Slice: &Slice{Dispatcher: d, Client: share.ClientID(i + 2), Of: of}})
	}
	return out
}

// isPart reports whether the manager decides the size of the slot's device.
func (s *slot) isPart() bool { return s.place.Slice != nil && s.place.Slice.Of != nil }

// sizePart gives the device of a part the size that a binding wants, before it is bound.
func (s *slot) sizePart(want *dxpuv1.Part) (share.ClientSpec, error) {
	of := s.place.Slice.Of
	spec, err := of.client(want)
	if err != nil {
		return spec, fmt.Errorf("slot %d: %w", s.index, err)
	}
	if err := s.device.(Sized).SetMemory(spec.Memory); err != nil {
		return spec, fmt.Errorf("slot %d: %w", s.index, err)
	}
	s.setPart(want, spec)
	return spec, nil
}

// client describes a part to the policy.
func (d *Divisible) client(p *dxpuv1.Part) (share.ClientSpec, error) {
	switch {
	case p == nil:
		return share.ClientSpec{}, fmt.Errorf("a part of the GPU in slot %d: the binding does not say how large it is", d.Slot)
	case p.Share != dxpuv1.ShareMode_SHARE_MODE_UNSPECIFIED && p.Share != d.Mode:
		return share.ClientSpec{}, fmt.Errorf("a part of the GPU in slot %d: the policy of the box shares it in another mode", d.Slot)
	case p.Compute < 1 || p.Compute > 1000 || p.MemoryBytes < uint64(d.Step) || p.MemoryBytes > 1<<50:
		return share.ClientSpec{}, fmt.Errorf("a part of %d bytes and %d thousandths: want at least %d bytes, and 1 to 1000", p.MemoryBytes, p.Compute, d.Step)
	}
	ppm := share.PPM(p.Compute) * (share.Whole / 1000)
	spec := share.ClientSpec{Request: ppm, Limit: ppm, Memory: int64(p.MemoryBytes) / d.Step * d.Step}
	if p.Class == dxpuv1.PartClass_PART_CLASS_OFFLINE {
		spec.Class = share.Offline
	}
	return spec, nil
}

// setPart notes the limits that are in force, and the wish that led to them.
func (s *slot) setPart(want *dxpuv1.Part, spec share.ClientSpec) {
	s.wish = proto.CloneOf(want)
	s.part.Store(&dxpuv1.Part{
		MemoryBytes: uint64(spec.Memory), Compute: uint32(spec.Limit / (share.Whole / 1000)), Class: want.Class, Share: s.place.Slice.Of.Mode,
	})
}

// resizePart follows a changed wish of a binding that goes on: the compute changes at once,
// the memory grows if there is room. It never shrinks under a guest.
func (s *slot) resizePart(want *dxpuv1.DesiredBinding) {
	if !s.isPart() || s.binding == nil || want == nil || want.BindingId != s.Status.Get().ID || proto.Equal(want.Part, s.wish) {
		return
	}
	spec, err := s.place.Slice.Of.client(want.Part)
	if err != nil {
		s.wish = proto.CloneOf(want.Part)
		s.box.log.Warn("a part keeps its limits", "slot", s.index, "err", err)
		return
	}
	has := int64(s.part.Load().MemoryBytes)
	spec.Memory = max(spec.Memory, has)
	ok := s.dispatcher.resize(s, spec)
	if !ok && spec.Memory > has {
		spec.Memory = has
		ok = s.dispatcher.resize(s, spec)
	}
	if !ok {
		s.wish = proto.CloneOf(want.Part)
		s.box.log.Warn("a part keeps its limits", "slot", s.index, "err", "the policy of the GPU has no room for others")
		return
	}
	if spec.Memory > has {
		s.withDevice(func(time.Duration, engine.Entry) { err = s.device.(Sized).SetMemory(spec.Memory) })
		if err != nil {
			s.box.log.Warn("the memory of a part does not grow", "slot", s.index, "err", err)
		}
	}
	s.setPart(want.Part, spec)
	s.box.Changed()
}

// endPart takes the memory of a part away, after Scrub.
func (s *slot) endPart() {
	if !s.isPart() {
		return
	}
	s.part.Store(nil)
	s.wish = nil
	if err := s.device.(Sized).SetMemory(s.place.Slice.Of.Step); err != nil {
		s.box.log.Error("the memory of a part is not released", "slot", s.index, "err", err)
	}
}

// resize changes the limits of a slice.
func (d *dispatcher) resize(s *slot, spec share.ClientSpec) bool {
	d.mu.Lock()
	ok := d.machine.Resize(d.driver.Now(), s.place.Slice.Client, spec)
	d.mu.Unlock()
	d.run()
	return ok
}

// describePart adds to the report of a slot what it has to do with parts.
func (s *slot) describePart(out *dxpuv1.ObservedSlot) {
	slice := s.place.Slice
	if slice == nil {
		return
	}
	if slice.Whole != nil {
		out.Device.Multiprocessors = uint32(slice.Dispatcher.Device().SMs)
		out.Device.ShareModes = []dxpuv1.ShareMode{slice.Whole.Mode}
	}
	if slice.Of == nil {
		return
	}
	of := uint32(slice.Of.Slot)
	out.PartOf = &of
	p := s.part.Load()
	out.Device.MemoryBytes = p.GetMemoryBytes()
	if out.Binding != nil {
		out.Binding.Part = p
	}
}
