package manager

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// A part is resized while it runs: its binding stays, and the box changes the limits. A
// part grows at once if its GPU has the room. Memory and compute that it gives back count as held until the
// box reports the new limits: a guest may still use the memory. A deadline takes the part
// away then, and attaches it again with its new size, on this GPU or another one.

// resizePart changes the part of an active lease, or all of its parts: all fit, or none is
// changed.
func (t *tx) resizePart(l *leaseRecord, r *dxpuv1.ResizeLeaseRequest) error {
	parts := t.attachedParts(l)
	want := resizedPart(l.spec.Part, r.Part)
	shrinking := slices.ContainsFunc(parts, func(b *bindingRecord) bool { return b.Part.shrinks() })
	switch {
	case l.spec.Part == nil:
		return errorf(connect.CodeFailedPrecondition, "part: lease %s has whole GPUs; set count to resize it", l.ID)
	case proto.Equal(want, l.spec.Part) && (!shrinking || r.Deadline == nil):
		return nil
	case r.ResourceVersion != 0 && r.ResourceVersion != l.ResourceVersion:
		return conflict("lease", l.ID, l.ResourceVersion, r.ResourceVersion)
	case l.State != leaseActive:
		return errorf(connect.CodeFailedPrecondition, "lease_id: %s is %s; only a lease that is active can be resized", l.ID, leaseWord(l.State))
	case len(parts) < int(l.spec.Count):
		return errorf(connect.CodeFailedPrecondition, "lease_id: %s has %d of its %d parts; it can be resized when all are attached", l.ID, len(parts), l.spec.Count)
	case want.Share != l.spec.Part.Share:
		return errorf(connect.CodeFailedPrecondition, "part.share: the parts of a GPU share it in one mode; create a new lease for another one")
	}
	spec := proto.CloneOf(l.spec)
	spec.Part = want
	if err := checkPart(spec); err != nil {
		return err
	}
	if err := t.partsFit(l, spec, parts); err != nil {
		return err
	}
	t.setParts(l.ID, spec, parts, r.Deadline)
	return nil
}

// resizedPart returns a part with the fields of a request that are set.
func resizedPart(part, change *dxpuv1.Part) *dxpuv1.Part {
	if part == nil {
		return nil
	}
	out := proto.CloneOf(part)
	proto.Merge(out, change) // fields that are 0 stay as they are
	return out
}

// attachedParts returns the bindings of the parts that a lease uses.
func (t *tx) attachedParts(l *leaseRecord) (out []*bindingRecord) {
	for _, id := range t.bindingsOf(l.ID) {
		if b := t.bindings.get(id); b.State == attached && b.Part != nil {
			out = append(out, b)
		}
	}
	return out
}

// partsFit returns an error if the parts of a lease cannot have their new size: a GPU lacks
// the room, or the quota of the tenant does not allow it.
func (t *tx) partsFit(l *leaseRecord, spec *dxpuv1.LeaseSpec, parts []*bindingRecord) error {
	t.reindex()
	for _, b := range parts {
		if err := t.partFits(spec, b); err != nil {
			return err
		}
	}
	more := t.sizeAt(spec, t.servingSlots(l.ID)) - l.size()
	if more <= 0 {
		return nil
	}
	why := t.overQuota(spec.Tenant, more, anyModel)
	if why == "" {
		why = t.overQuota(spec.Tenant, more, l.Model)
	}
	if why == "" {
		why = t.overGuarantee(spec, more)
	}
	if why != "" {
		return connect.NewError(connect.CodeResourceExhausted, errors.New("part: "+why))
	}
	return nil
}

// partFits returns an error if the GPU of a part lacks the room for its new size.
func (t *tx) partFits(spec *dxpuv1.LeaseSpec, b *bindingRecord) error {
	box := t.indexedNodes[b.BoxID].placementBox
	memory, compute, _ := placement.Room(&box, b.Part.GPU)
	// A part that is shrinking holds more than its size.
	memory, compute = memory+b.Part.memory(), compute+b.Part.compute()
	if spec.Part.MemoryBytes > memory || spec.Part.Compute > compute {
		has := placement.Part{Memory: memory, Compute: compute}
		room, asks := has.String(), partText(spec.Part)
		if room == asks { // the texts are rounded
			room, asks = fmt.Sprintf("%s (%d bytes)", room, memory), fmt.Sprintf("%s (%d bytes)", asks, spec.Part.MemoryBytes)
		}
		return errorf(connect.CodeResourceExhausted, "part: GPU %s has room for %s for this part, and it asks for %s; its other parts must end or shrink first", b.gpu(), room, asks)
	}
	return nil
}

// setParts gives a lease and its bindings parts of a new size.
func (t *tx) setParts(id string, spec *dxpuv1.LeaseSpec, parts []*bindingRecord, deadline *durationpb.Duration) {
	l := t.editLease(id)
	was := l.spec.Part
	if l.AskedPart == nil {
		l.AskedPart = &partRecord{Memory: was.MemoryBytes, Compute: was.Compute, Class: was.Class, Share: was.Share}
	}
	l.setSpec(spec)
	t.setSize(id)
	var gpus []string
	for _, b := range parts {
		t.setPart(t.bindings.edit(b.ID), spec, deadline)
		gpus = append(gpus, b.gpu().String())
	}
	of := "GPU " + gpus[0]
	if len(gpus) > 1 {
		of = "each of GPUs " + strings.Join(gpus, ", ")
	}
	e := leaseEvent(l, dxpuv1.EventType_EVENT_TYPE_LEASE_RESIZED)
	e.Reason = dxpuv1.Reason_REASON_LEASE_RESIZED
	l.explain("It was resized to " + partText(spec.Part) + ".")
	t.event(e, "lease %s was resized from %s to %s of %s", id, partText(was), partText(spec.Part), of)
}

// setPart gives a binding, which is editable, the part of a spec.
func (t *tx) setPart(b *bindingRecord, spec *dxpuv1.LeaseSpec, deadline *durationpb.Duration) {
	p := *b.Part
	p.HeldMemory, p.HeldCompute, p.ShrinkBy = 0, 0, time.Time{}
	if held := b.Part.memory(); held > spec.Part.MemoryBytes {
		p.HeldMemory = held
	}
	if held := b.Part.compute(); held > spec.Part.Compute {
		p.HeldCompute = held
	}
	p.Memory, p.Compute, p.Class = spec.Part.MemoryBytes, spec.Part.Compute, spec.Part.Class
	if p.shrinks() && deadline != nil {
		p.ShrinkBy = t.now.Add(deadline.AsDuration())
	}
	p.Told = t.touch(b.BoxID)
	t.touch(b.HostID)
	b.Part = &p
}

// shrinks reports whether the box still holds more than the part's size.
func (p *partRecord) shrinks() bool { return p.HeldMemory > 0 || p.HeldCompute > 0 }

// followPart notes that the box has taken back what a part gives up, or takes the part
// away at its deadline. It reports whether it changed anything.
func (t *tx) followPart(b *bindingRecord) bool {
	if b.Part == nil || !b.Part.shrinks() {
		return false
	}
	o := t.observed(b.BoxID, b).GetPart()
	if o != nil && t.applied(b.BoxID, b.Part.Told) && o.MemoryBytes <= b.Part.Memory && o.Compute <= b.Part.Compute {
		p := *b.Part
		p.HeldMemory, p.HeldCompute, p.ShrinkBy = 0, 0, time.Time{}
		t.bindings.edit(b.ID).Part = &p
		return true
	}
	if b.Part.ShrinkBy.IsZero() || !t.dueOrSchedule(subject{bindingSubject, b.ID}, b.Part.ShrinkBy) {
		return false
	}
	t.event(b.event(dxpuv1.EventType_EVENT_TYPE_OVERDUE), "the guest of host %s did not give back the memory of part %s in time: the part is taken away and attached again",
		b.HostID, b.gpuID())
	t.release(b.ID, dxpuv1.Reason_REASON_LEASE_RESIZED, true)
	return true
}

// partText returns a part as in "16 GiB and 30 % of the compute".
func partText(p *dxpuv1.Part) string {
	return (&placement.Part{Memory: p.MemoryBytes, Compute: p.Compute}).String()
}
