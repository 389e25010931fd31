package manager

import (
	"cmp"
	"regexp"
	"slices"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// A part of a GPU is bound through a box slot of its own (slotRecord.PartOf), so its
// binding has keys, an epoch and states like that of a whole GPU. Rules that concern the
// device, such as health, cordons, drains and repairs, hold for its GPU, too. The parts
// of a GPU never have more than its memory and its compute: placement chooses the GPU by
// what the bindings hold (partSlots), those that are released or awaited included. A lease
// of several parts has a binding for each, on different GPUs.

// partRecord is the part of a GPU that a binding has. It is not changed once stored.
type partRecord struct {
	GPU     uint32           `json:"gpu"` // the slot of the GPU
	Memory  uint64           `json:"memory"`
	Compute uint32           `json:"compute"` // thousandths
	Class   dxpuv1.PartClass `json:"class"`
	Share   dxpuv1.ShareMode `json:"share"`
	// HeldMemory and HeldCompute are what the box still holds while the part shrinks; 0: it
	// does not shrink.
	HeldMemory  uint64 `json:"held_memory,omitempty"`
	HeldCompute uint32 `json:"held_compute,omitempty"`
	// ShrinkBy is when the part is taken away if it has not shrunk; zero: never.
	ShrinkBy time.Time `json:"shrink_by,omitzero"`
	// Told is the revision of the desired state that first had the present size.
	Told uint64 `json:"told,omitempty"`
}

// memory returns the bytes that the part holds.
func (p *partRecord) memory() uint64 { return max(p.Memory, p.HeldMemory) }

// compute returns the thousandths of the compute that the part holds.
func (p *partRecord) compute() uint32 { return max(p.Compute, p.HeldCompute) }

// placementShares translates the API's modes; others mean any.
var placementShares = map[dxpuv1.ShareMode]placement.ShareMode{
	dxpuv1.ShareMode_SHARE_MODE_SPACE:     placement.Space,
	dxpuv1.ShareMode_SHARE_MODE_TIME:      placement.Time,
	dxpuv1.ShareMode_SHARE_MODE_PARTITION: placement.Partition,
}

func shareMode(m placement.ShareMode) dxpuv1.ShareMode {
	for api, p := range placementShares {
		if p == m {
			return api
		}
	}
	return dxpuv1.ShareMode_SHARE_MODE_UNSPECIFIED
}

func placementRules(s *dxpuv1.LeaseSpec) placement.PartRules {
	r := s.GetPartRules()
	return placement.PartRules{
		Tenant: s.GetTenant(), Affinity: r.GetAffinity(), AntiAffinity: r.GetAntiAffinity(), Exclusion: r.GetExclusion(), Workload: r.GetWorkload(),
	}
}

// placementPart returns the part that a lease asks for, nil for whole GPUs.
func placementPart(s *dxpuv1.LeaseSpec) *placement.Part {
	if s.Part == nil {
		return nil
	}
	return &placement.Part{Memory: s.Part.MemoryBytes, Compute: s.Part.Compute, Share: placementShares[s.Part.Share], PartRules: placementRules(s)}
}

// gpu returns the GPU of a binding: that of its part, or its box slot.
func (b *bindingRecord) gpu() placement.Ref {
	if b.Part != nil {
		return placement.Ref{Box: b.BoxID, Slot: b.Part.GPU}
	}
	return b.ref()
}

// occupies reports whether a binding takes room of its GPU: it has some, or awaits it.
func (b *bindingRecord) occupies() bool {
	return b.holdsGPU() || b.serving() && b.AwaitsGPUOf != ""
}

// awaited reports whether a binding waits for others to release its GPU.
func (b *bindingRecord) awaited() bool { return b.serving() && b.AwaitsGPUOf != "" && !b.holdsGPU() }

// leaving reports whether the room of a binding is promised to one that awaits it.
func (t *tx) leaving(b *bindingRecord) bool {
	h := t.bindings.get(b.GPUPromisedTo)
	return b.GPUPromisedTo != "" && h != nil && h.awaited()
}

// promise returns the binding that awaits the room of b, or b if it is the one; "" for none.
func (t *tx) promise(b *bindingRecord) string {
	switch {
	case b.awaited():
		return b.ID
	case t.leaving(b):
		return b.GPUPromisedTo
	}
	return ""
}

// occupants are bindings that occupy GPUs of a box or parts of them, by epoch.
type occupants struct {
	all []*bindingRecord
	// bySlot has those in each slot and on each GPU; nil: there are few.
	bySlot map[uint32][]*bindingRecord
}

// fewOccupants is the number up to which a scan of all is as fast as a map.
const fewOccupants = 16

// occupantsOf returns the bindings that occupy GPUs of a box or parts of them. It is for use
// while the index is being updated, too.
func (t *tx) occupantsOf(box string) (out []*bindingRecord) {
	for id := range t.bindingsByNode[box] {
		if b := t.bindings.get(id); b != nil && b.BoxID == box && b.occupies() {
			out = append(out, b)
		}
	}
	slices.SortFunc(out, func(a, b *bindingRecord) int { return cmp.Compare(a.Epoch, b.Epoch) })
	return out
}

// newOccupants finds bindings by their slots and GPUs.
func newOccupants(all []*bindingRecord) occupants {
	o := occupants{all: all}
	if len(all) <= fewOccupants {
		return o
	}
	o.bySlot = make(map[uint32][]*bindingRecord, len(all))
	for _, b := range all {
		o.bySlot[b.BoxSlot] = append(o.bySlot[b.BoxSlot], b)
		if gpu := b.gpu().Slot; gpu != b.BoxSlot {
			o.bySlot[gpu] = append(o.bySlot[gpu], b)
		}
	}
	return o
}

// at returns the bindings in a slot and on its GPU, and maybe others, by epoch.
func (o occupants) at(slot uint32) []*bindingRecord {
	if o.bySlot == nil {
		return o.all
	}
	return o.bySlot[slot]
}

// bindingsOn returns the bindings that occupy a GPU, or parts of it.
func (t *tx) bindingsOn(gpu placement.Ref) (ids []string) {
	for _, b := range t.occupantsOf(gpu.Box) {
		if b.BoxSlot == gpu.Slot || b.gpu() == gpu {
			ids = append(ids, b.ID)
		}
	}
	return ids
}

// partsOn returns the bindings of parts of a GPU, by epoch.
func (o occupants) partsOn(gpu uint32) (out []*bindingRecord) {
	for _, b := range o.at(gpu) {
		if b.Part != nil && b.Part.GPU == gpu {
			out = append(out, b)
		}
	}
	return out
}

// wholeOn reports whether a binding occupies a GPU as a whole.
func (o occupants) wholeOn(gpu uint32) bool {
	return slices.ContainsFunc(o.at(gpu), func(b *bindingRecord) bool { return b.Part == nil && b.BoxSlot == gpu })
}

// occupied reports whether a binding occupies a GPU, a part of it, or its slot: a slot that
// has a whole GPU now may have been for a part before its box was divided in another way.
func (o occupants) occupied(gpu uint32) bool {
	return slices.ContainsFunc(o.at(gpu), func(b *bindingRecord) bool { return b.BoxSlot == gpu || b.gpu().Slot == gpu })
}

// addParts adds the slots for parts, and the parts in them, to a box.
func (t *tx) addParts(box *placement.Box, n *nodeRecord, here bool, occupants occupants) {
	divisible := map[uint32]bool{} // GPUs with a slot that can take a part
	for i := range n.Slots {
		s := &n.Slots[i]
		if s.PartOf == nil || s.Device == nil {
			continue
		}
		slot := placement.PartSlot{Slot: s.Slot, GPU: *s.PartOf, Usable: here && s.takesBindings() && !occupants.takenOtherwise(s)}
		box.Parts = append(box.Parts, slot)
		divisible[slot.GPU] = divisible[slot.GPU] || slot.Usable
	}
	t.addOccupants(box, occupants.all)
	for i := range box.GPUs {
		g := &box.GPUs[i]
		if !divisible[g.Slot] {
			g.Modes = 0
		}
	}
}

// takenOtherwise reports whether a binding of a whole GPU, or of a part of another GPU, is in a
// slot for parts: its box was divided in another way then.
func (o occupants) takenOtherwise(s *slotRecord) bool {
	return slices.ContainsFunc(o.at(s.Slot), func(b *bindingRecord) bool {
		return b.BoxSlot == s.Slot && (b.Part == nil || b.Part.GPU != *s.PartOf)
	})
}

// addOccupants adds the parts of bindings to a box.
func (t *tx) addOccupants(box *placement.Box, occupants []*bindingRecord) {
	for _, b := range occupants {
		if b.Part == nil {
			continue
		}
		p := placement.Part{Memory: b.Part.memory(), Compute: b.Part.compute(), Share: placementShares[b.Part.Share]}
		if l := t.leases.get(b.LeaseID); l != nil {
			p.PartRules = placementRules(l.spec)
		}
		if !b.serving() {
			p.Affinity = "" // it leaves, and its lease may be elsewhere already
		}
		box.Parts = append(box.Parts, placement.PartSlot{
			Slot: b.BoxSlot, GPU: b.Part.GPU, Taken: true, Awaited: b.awaited(), Leaving: t.leaving(b), Promise: t.promise(b), Part: p,
		})
	}
}

// typicalRequests returns the kinds of requests of the leases that have not ended.
func (x *index) typicalRequests() []placement.Typical {
	return slices.Collect(func(yield func(placement.Typical) bool) {
		for k, n := range x.requests {
			k.Count = n
			if !yield(k) {
				return
			}
		}
	})
}

// countRequest adds n leases with a spec to the kinds of requests. Memory counts in steps
// of 256 MiB, so that sizes that hardly differ are one kind.
func (x *index) countRequest(s *dxpuv1.LeaseSpec, n int) {
	const step = 256 << 20
	k := placement.Typical{Model: s.Model, Compute: placement.Whole}
	if s.Part != nil {
		k.Compute, k.Memory = s.Part.Compute, (s.Part.MemoryBytes+step-1)/step*step
	}
	if x.requests[k] += n; x.requests[k] <= 0 {
		delete(x.requests, k)
	}
	x.requestsCounted += n
	x.requestsChanged++
}

// typicalPart is the divisor of the part of the requests that may change before placement is
// told.
const typicalPart = 256

// tellTypical tells placement the kinds of requests, if they have changed. With many requests
// a few do not change what is typical, and to sort all kinds for each lease would take long.
func (t *tx) tellTypical() {
	if t.requestsChanged > t.requestsCounted/typicalPart {
		t.gpuPool.SetTypical(t.typicalRequests())
		t.requestsChanged = 0
	}
}

// newPart returns the part of a binding of a lease in a slot for parts, nil for a lease of
// whole GPUs.
func (t *tx) newPart(l *leaseRecord, at placement.Ref) *partRecord {
	if l.spec.Part == nil {
		return nil
	}
	s := l.spec.Part
	p := &partRecord{Memory: s.MemoryBytes, Compute: s.Compute, Class: s.Class, Share: cmp.Or(s.Share, l.Share)}
	if slot := t.boxSlot(at); slot != nil && slot.PartOf != nil {
		p.GPU = *slot.PartOf
	}
	return p
}

// partMessage returns the part of a binding, nil for a whole GPU.
func (p *partRecord) message() *dxpuv1.Part {
	if p == nil {
		return nil
	}
	return &dxpuv1.Part{MemoryBytes: p.Memory, Compute: p.Compute, Class: p.Class, Share: p.Share}
}

// boxParts is what the messages of the GPUs of a box tell of their parts.
type boxParts struct {
	on   occupants
	room func(gpu uint32) placement.Left
}

// partsOfAll returns the parts for the messages of all GPUs of a box.
func (t *tx) partsOfAll(n *nodeRecord) boxParts {
	t.reindex()
	box := t.indexedNodes[n.ID].placementBox
	rooms := placement.Rooms(&box)
	return boxParts{newOccupants(t.occupantsOf(n.ID)), func(gpu uint32) placement.Left { return rooms[gpu] }}
}

// partsOfOne returns the parts for the message of one GPU of a box.
func (t *tx) partsOfOne(n *nodeRecord) boxParts {
	t.reindex()
	return boxParts{occupants{all: t.occupantsOf(n.ID)}, func(gpu uint32) placement.Left {
		box := t.indexedNodes[n.ID].placementBox
		memory, compute, slots := placement.Room(&box, gpu)
		return placement.Left{Memory: memory, Compute: compute, Slots: slots}
	}}
}

// partsMessage fills in the parts of a GPU and what they leave.
func (t *tx) partsMessage(g *dxpuv1.GPU, parts boxParts) {
	on, serving := parts.on, false
	for _, b := range on.partsOn(g.Slot) {
		m := &dxpuv1.GPUPart{
			Id: b.gpuID(), Slot: b.BoxSlot, Part: b.Part.message(), BindingId: b.ID, LeaseId: b.LeaseID, HostId: b.HostID, Serving: b.serving(),
		}
		if l := t.leases.get(b.LeaseID); l != nil {
			m.Tenant = l.spec.Tenant
		}
		serving = serving || m.Serving
		g.Parts = append(g.Parts, m)
	}
	switch {
	case serving:
		g.State = dxpuv1.GPUState_GPU_STATE_SHARED
	case len(g.Parts) > 0:
		g.State = dxpuv1.GPUState_GPU_STATE_RELEASING
	}
	if on.wholeOn(g.Slot) {
		return
	}
	left := parts.room(g.Slot)
	g.FreeMemoryBytes, g.FreeCompute, g.FreeParts = left.Memory, left.Compute, uint32(left.Slots)
}

// partOf returns the GPU of which a reported slot is for a part, nil for none. Hosts have
// no such slots, and a slot is no part of itself.
func partOf(n *nodeRecord, s *dxpuv1.ObservedSlot) *uint32 {
	if n.Kind != dxpuv1.NodeKind_NODE_KIND_BOX || s.PartOf == nil || *s.PartOf == s.Slot {
		return nil
	}
	gpu := *s.PartOf
	return &gpu
}

func samePartOf(a, b *uint32) bool { return a == b || a != nil && b != nil && *a == *b }

func shareModesOf(modes []dxpuv1.ShareMode) placement.ShareModes {
	var out []placement.ShareMode
	for _, m := range modes[:min(len(modes), len(placementShares))] {
		out = append(out, placementShares[m])
	}
	return placement.NewShareModes(out...)
}

func shareModes(modes placement.ShareModes) (out []dxpuv1.ShareMode) {
	for _, m := range modes.List() {
		out = append(out, shareMode(m))
	}
	return out
}

// gpuAt returns the GPU of a box slot: the one that the slot is for a part of, or that in it.
func (t *tx) gpuAt(r placement.Ref) placement.Ref {
	if s := t.boxSlot(r); s != nil && s.PartOf != nil {
		return placement.Ref{Box: r.Box, Slot: *s.PartOf}
	}
	return r
}

// labelPattern is the form of the labels of part_rules.
var labelPattern = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_./-]{0,61}[A-Za-z0-9])?$`)

// admitParts returns an error if a lease would have parts of several GPUs beside a manager of
// another version: an older leader might replace one by another part of the same GPU.
func (t *tx) admitParts(s *dxpuv1.LeaseSpec) error {
	if s.Part == nil || s.Count < 2 || t.alike {
		return nil
	}
	return errorf(connect.CodeFailedPrecondition, "spec.count: managers of several versions run, and the older ones do not know leases of several parts; upgrade them first")
}

// checkPart checks the part that a spec asks for, and sets its defaults.
func checkPart(s *dxpuv1.LeaseSpec) error {
	p, r := s.Part, s.PartRules
	switch {
	case p == nil && r != nil:
		return invalid("spec.part_rules: the lease asks for whole GPUs, which it never shares; set spec.part too")
	case p == nil:
		return nil
	case s.Gang != nil:
		return invalid("spec.gang: the leases of a gang have whole GPUs; leave spec.part out")
	case s.Nvlink != 0:
		return invalid("spec.nvlink: parts are not joined by NVLink; leave it out")
	case s.SameBox != 0 && s.Count == 1:
		return invalid("spec.same_box: the lease has a part of one GPU, which has no others beside it")
	case s.Count > 1 && r.GetAffinity() != "":
		return invalid("spec.part_rules.affinity: it puts parts on one GPU, and the %d parts of a lease are on different ones; leave it out", s.Count)
	case p.MemoryBytes == 0:
		return invalid("spec.part.memory_bytes: must be set")
	case p.Compute < 1 || p.Compute > placement.Whole:
		return invalid("spec.part.compute: %d is not 1 to %d thousandths", p.Compute, placement.Whole)
	case p.Class < 0 || p.Class > dxpuv1.PartClass_PART_CLASS_OFFLINE:
		return invalid("spec.part.class: %d is unknown", p.Class)
	case p.Share < 0 || p.Share > dxpuv1.ShareMode_SHARE_MODE_PARTITION:
		return invalid("spec.part.share: %d is unknown", p.Share)
	}
	if p.Class == dxpuv1.PartClass_PART_CLASS_UNSPECIFIED {
		p.Class = dxpuv1.PartClass_PART_CLASS_ONLINE
	}
	for _, l := range []struct{ field, value string }{
		{"affinity", r.GetAffinity()}, {"anti_affinity", r.GetAntiAffinity()}, {"exclusion", r.GetExclusion()}, {"workload", r.GetWorkload()},
	} {
		if l.value != "" && !labelPattern.MatchString(l.value) {
			return invalid("spec.part_rules.%s: %q is not 1 to 63 of letters, digits, '.', '_', '/' and '-'", l.field, l.value)
		}
	}
	return nil
}
