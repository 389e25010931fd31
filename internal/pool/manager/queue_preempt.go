package manager

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/plural"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// preempt decides on leases that do not fit with the GPUs of preemptible leases of lower
// priority, if those make enough room. The caller creates the bindings at once, so that no
// other lease gets the GPUs first; each waits for the binding that holds its GPU, which
// held returns. why names the leases that are preempted.
func (t *tx) preempt(leases []*leaseRecord) (d placement.GangDecision, held map[placement.Ref][]string, why string) {
	gone, may := t.preemptionVictims(leases)
	if len(gone) == 0 {
		return d, nil, ""
	}
	bindings := t.heldBy(gone)
	d = t.decideWithout(leases, bindings, may.most)
	var names []string
	for _, v := range gone {
		t.preemptLease(v.ID, leases)
		names = append(names, v.ID)
	}
	held = map[placement.Ref][]string{}
	for _, id := range slices.Sorted(maps.Keys(bindings)) {
		if b := t.bindings.get(id); b.holdsGPU() {
			held[b.gpu()] = append(held[b.gpu()], id)
		}
	}
	why = fmt.Sprintf("lease %s is preempted", names[0])
	if len(names) > 1 {
		why = fmt.Sprintf("leases %s are preempted", strings.Join(names, ", "))
	}
	return d, held, why
}

// noteVictims adds the leases that were preempted to the explanation of one that has their GPUs.
func (t *tx) noteVictims(id, why string) {
	l := t.editLease(id)
	l.explain(strings.ToUpper(why[:1]) + why[1:] + ".")
	l.StateReason = truncate(why, maxReason)
}

// maxPreemptPlacements bounds the placements of leases by which the victims for a gang are
// chosen: the manager's lock is held meanwhile. It is more than a single lease needs.
const maxPreemptPlacements = 1024

// preemptionVictims chooses the leases to preempt for some leases, none if that makes no room,
// and returns by what it may. Of borrowed GPUs it takes those of the youngest leases first, and
// if these make no room, those on the hosts, or with the GPUs, that the first lease asks for.
func (t *tx) preemptionVictims(leases []*leaseRecord) ([]placement.Victim, *preemptible) {
	may := t.preemptibleFor(leases)
	for may != nil {
		if victims := t.victimsAmong(leases, t.preemptionCandidates(leases, may), may); len(victims) > 0 {
			return victims, may
		}
		may = may.next(leases[0].spec)
	}
	return nil, nil
}

func (t *tx) victimsAmong(leases []*leaseRecord, candidates []placement.Victim, may *preemptible) []placement.Victim {
	blocked := false // by borrowsForOwn, so that less may be better
	fits := func(gone []placement.Victim) bool {
		d := t.decideWithout(leases, t.heldBy(gone), may.most)
		if !d.OK() {
			return false
		}
		size := t.sizeOfMembers(leases, &d)
		own := t.borrowsForOwn(may.tenant, size, gone)
		blocked = blocked || own
		return !own
	}
	victims := t.cheapest(leases, candidates, fits)
	if blocked {
		ofOthers := func(of []placement.Victim) []placement.Victim {
			return slices.DeleteFunc(slices.Clone(of), func(v placement.Victim) bool { return t.leases.get(v.ID).spec.Tenant == may.tenant })
		}
		if rest := ofOthers(victims); len(rest) > 0 && len(rest) < len(victims) && fits(rest) {
			victims = rest
		}
		if others := t.cheapest(leases, ofOthers(candidates), fits); others != nil && (victims == nil || placement.Cheaper(others, victims)) {
			victims = others
		}
	}
	if victims == nil {
		return nil
	}
	return t.onlyUsed(leases, victims, may, fits)
}

// cheapest chooses among candidates the leases whose end makes room, nil if that of all does not.
func (t *tx) cheapest(leases []*leaseRecord, candidates []placement.Victim, fits func([]placement.Victim) bool) []placement.Victim {
	victims := placement.Preempt(candidates, maxPreemptPlacements/len(leases), fits)
	if parts := t.smallestParts(leases, candidates, fits); parts != nil && (victims == nil || placement.Cheaper(parts, victims)) {
		return parts
	}
	return victims
}

// onlyUsed leaves out the victims for a gang whose GPUs no lease of it gets or, if the gang
// needs their slots of hosts, those whose GPUs and slots it does not get. With few tries
// Preempt may choose many that are not needed.
func (t *tx) onlyUsed(leases []*leaseRecord, victims []placement.Victim, may *preemptible, fits func([]placement.Victim) bool) []placement.Victim {
	if len(leases) == 1 {
		return victims
	}
	gpus, slots := map[placement.Ref]bool{}, map[hostSlotRef]bool{}
	d := t.decideWithout(leases, t.heldBy(victims), may.most)
	for _, m := range d.Members {
		for i, pick := range m.Picks {
			gpus[t.gpuAt(pick)], slots[hostSlotRef{m.Host.Host, m.Host.Slots[i]}] = true, true
		}
	}
	for _, uses := range []func(*bindingRecord) bool{
		func(b *bindingRecord) bool { return b.holdsGPU() && gpus[b.gpu()] },
		func(b *bindingRecord) bool {
			return b.holdsGPU() && gpus[b.gpu()] || slots[hostSlotRef{b.HostID, b.HostSlot}]
		},
	} {
		used := slices.DeleteFunc(slices.Clone(victims), func(v placement.Victim) bool {
			for id := range t.heldBy([]placement.Victim{v}) {
				if uses(t.bindings.get(id)) {
					return false
				}
			}
			return true
		})
		if len(used) > 0 && len(used) < len(victims) && fits(used) {
			return used
		}
	}
	return victims
}

// preemptionCandidates returns the leases that some leases may preempt. A lease that
// itself waits for a GPU of another lease has nothing to give yet. The first lease of a
// gang stands for all of them. Those that give only slots of hosts never take the places of
// the others.
func (t *tx) preemptionCandidates(leases []*leaseRecord, may *preemptible) []placement.Victim {
	t.reindex()
	var out, slots []placement.Victim
	full := map[string]bool{}
	for id := range t.preemptibleLeases {
		gang, l := t.gangOf(id), t.leases.get(id)
		if gang[0] != id || !may.allows(t, l) {
			continue
		}
		v := placement.Victim{ID: id, Priority: l.spec.Priority, Share: t.excessShare(l.spec.Tenant)}
		useful, frees, waits := false, false, false
		for _, o := range t.membersOf(gang) {
			v.Size += int(o.size())
			useful = useful || slices.ContainsFunc(leases, func(l *leaseRecord) bool { return t.helps(o, l.spec) })
			frees = frees || !useful && t.freesSlots(o, leases, full)
			waits = waits || slices.ContainsFunc(t.bindingsByLease[o.ID], func(b string) bool { return t.bindings.get(b).AwaitsGPUOf != "" })
		}
		digits, _ := leaseNumber(id)
		v.Order, _ = strconv.ParseUint(digits, 10, 64)
		switch {
		case waits:
		case useful:
			out = append(out, v)
		case frees:
			slots = append(slots, v)
		}
	}
	slices.SortFunc(slots, func(a, b placement.Victim) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(b.Order, a.Order))
	})
	return append(out, slots[:min(len(slots), max(0, placement.MaxVictims-len(out)))]...)
}

// helps reports whether the GPUs of a lease, or the slots of the host that is requested, may
// serve a request. Those of a machine with GPUs of its own serve requests for its host alone,
// and these are served by no others: they would only take the places of better victims.
func (t *tx) helps(l *leaseRecord, s *dxpuv1.LeaseSpec) bool {
	if t.localBox(s.HostId) != "" || t.localBox(l.HostID) != "" {
		return l.HostID == s.HostId
	}
	return s.Model == anyModel || l.Model == s.Model || l.HostID == s.HostId
}

// freesSlots reports whether a lease is on a host that lacks slots for some leases, of which one
// at least names no host. full caches the hosts that do.
func (t *tx) freesSlots(l *leaseRecord, leases []*leaseRecord, full map[string]bool) bool {
	if t.localBox(l.HostID) != "" || !slices.ContainsFunc(leases, func(l *leaseRecord) bool { return l.spec.HostId == "" }) {
		return false
	}
	lacks, known := full[l.HostID]
	if !known {
		h := t.hostPool.Place(placement.HostRequest{Host: l.HostID, Count: int(requestedGPUs(leases)), Brief: true})
		lacks = !h.OK()
		full[l.HostID] = lacks
	}
	return lacks
}

// heldBy returns the bindings that end with some leases: also those that only keep a slot of a
// host for another GPU.
func (t *tx) heldBy(gone []placement.Victim) map[string]bool {
	out := map[string]bool{}
	for _, v := range gone {
		for _, lease := range t.gangOf(v.ID) {
			for _, id := range t.bindingsOf(lease) {
				if b := t.bindings.get(id); b.serving() || b.needsReplacement() && !b.holdsGPU() {
					out[id] = true
				}
			}
		}
	}
	return out
}

// decideWithout returns where leases that belong together would be placed, within the quotas
// of their tenant and with at most some GPUs in all, if certain bindings were gone.
func (t *tx) decideWithout(leases []*leaseRecord, gone map[string]bool, most milliGPU) (d placement.GangDecision) {
	t.briefly(func() {
		t.tryWithout(gone, time.Time{}, func() { d = t.decideUpTo(leases, most) })
	})
	return d
}

// sizeOfMembers returns the size that leases have where a decision places them.
func (t *tx) sizeOfMembers(leases []*leaseRecord, d *placement.GangDecision) (n milliGPU) {
	for i := range d.Members {
		n += t.sizeAt(leases[i].spec, d.Members[i].Picks)
	}
	return n
}

func (t *tx) preemptLease(id string, leases []*leaseRecord) {
	v, l := t.leases.get(id), leases[0]
	reclaimed := v.spec.Priority >= l.spec.Priority
	for _, o := range t.membersOf(t.gangOf(id)) {
		e := leaseEvent(o, dxpuv1.EventType_EVENT_TYPE_LEASE_PREEMPTED)
		e.Reason = dxpuv1.Reason_REASON_PREEMPTED
		if reclaimed {
			t.event(e, "lease %s is preempted: it gives %s, which it borrowed, to lease %s, to whose tenant they are guaranteed", o.ID, t.gives(o), l.ID)
			continue
		}
		t.event(e, "lease %s (priority %d) is preempted: it gives %s to lease %s (priority %d)",
			o.ID, o.spec.Priority, t.gives(o), l.ID, l.spec.Priority)
	}
	why := fmt.Sprintf("preempted by lease %s, whose priority is %d", l.ID, l.spec.Priority)
	if reclaimed {
		why = fmt.Sprintf("preempted by lease %s, to whose tenant the borrowed GPUs are guaranteed", l.ID)
	}
	if v.spec.Wait {
		t.requeue(id, dxpuv1.Reason_REASON_PREEMPTED, why, true)
		return
	}
	t.endLease(id, dxpuv1.Reason_REASON_PREEMPTED, why, true)
}

// gives returns what a lease leaves to others when it ends: its GPUs, or the host slots that it
// keeps while it has none.
func (t *tx) gives(l *leaseRecord) string {
	gpus := 0
	for _, id := range t.bindingsOf(l.ID) {
		if t.bindings.get(id).serving() {
			gpus++
		}
	}
	if gpus == 0 {
		return plural.Count(l.spec.Count, "host slot", "host slots")
	}
	return plural.Count(gpus, "GPU", "GPUs")
}

// requeue takes the GPUs of a lease and of those of its gang and returns them to the queue.
// They keep their creation times, so they are the first of their tenant and priority again.
// Without grace the host of the lease is not asked to release the devices.
func (t *tx) requeue(id string, reason dxpuv1.Reason, why string, grace bool) {
	t.requeueOne(id, reason, why, grace)
	for _, o := range t.gangOf(id) {
		if o != id && t.leases.get(o).holds() {
			t.requeueOne(o, reason, t.leases.get(id).withGang(why), true)
		}
	}
}

func (t *tx) requeueOne(id string, reason dxpuv1.Reason, why string, grace bool) {
	for _, bid := range t.bindingsOf(id) {
		t.release(bid, reason, grace)
		if b := t.bindings.get(bid); b.Successor == "" && !b.Dropped {
			t.bindings.edit(bid).Dropped = true
		}
	}
	l := t.editLease(id)
	l.HostID, l.Model, l.Share, l.Size, l.QueueTime, l.Running, l.Avoid = "", "", 0, 0, t.now, time.Time{}, nil
	t.setLeaseState(id, leasePending, why)
}

// whyNotPreempt returns why pending leases preempt no other lease.
func (t *tx) whyNotPreempt(leases []*leaseRecord) string {
	may := t.preemptibleFor(leases)
	candidates := t.preemptionCandidates(leases, may)
	which := "of lower priority"
	if may.reclaims {
		which += " or with borrowed GPUs"
	}
	if len(candidates) == 0 {
		return t.whyNoCandidate(leases, may, which)
	}
	all := fmt.Sprintf("all %d leases", len(candidates))
	if len(candidates) == 1 {
		all = "the one lease"
	}
	which = fmt.Sprintf("Preempting %s %s that it may preempt would", all, which)
	_, guarantee := t.guaranteeOf(may.tenant)
	own := slices.ContainsFunc(candidates, func(v placement.Victim) bool { return t.leases.get(v.ID).spec.Tenant == may.tenant })
	if !guarantee || !own && leases[0].spec.Part == nil {
		return which + " not make room."
	}
	switch d := t.decideWithout(leases, t.heldBy(candidates), anySize); {
	case !d.OK():
		return which + " not make room."
	case t.borrowsForOwn(may.tenant, t.sizeOfMembers(leases, &d), candidates):
		return fmt.Sprintf("%s make room, but let tenant %s borrow more in place of its own leases.", which, may.tenant)
	}
	return fmt.Sprintf("%s make room, but the guarantee of tenant %s does not cover what the request takes there.", which, may.tenant)
}

// whyNoCandidate returns why there is no lease to preempt: none that is preemptible has a low
// enough priority, or those that have are of no use or protected.
func (t *tx) whyNoCandidate(leases []*leaseRecord, may *preemptible, which string) string {
	useless, guarded := 0, 0
	for id := range t.preemptibleLeases {
		l := t.leases.get(id)
		switch {
		case t.firstOfGang(id) != id:
		case may.allows(t, l):
			useless++
		case l.spec.Priority < may.priority:
			guarded++
		}
	}
	var has []string
	if useless > 0 {
		has = append(has, plural.Count(useless, "has", "have")+" nothing that it can use now")
	}
	if guarded > 0 {
		has = append(has, plural.Count(guarded, "has", "have")+" GPUs within the guarantee of another tenant")
	}
	if len(has) > 0 {
		return fmt.Sprintf("Of the preemptible leases %s, %s.", which, strings.Join(has, ", and "))
	}
	none := fmt.Sprintf("No preemptible lease has a priority below %d", leases[0].spec.Priority)
	if may.reclaims {
		none += " or borrowed GPUs"
	}
	return none + "."
}

// bindAfter binds a GPU, or a part of one, to a host. The binding waits until the holders
// have released the GPU or their parts of it.
func (t *tx) bindAfter(l *leaseRecord, host string, hostSlot uint32, gpu placement.Ref, holders []string) {
	if len(holders) == 0 {
		t.bind(l, host, hostSlot, gpu, nil)
		return
	}
	b := t.newBinding(l, host, hostSlot, gpu)
	b.AwaitsGPUOf, b.BoxClear = holders[0], true
	t.bindings.put(b.ID, b)
	for _, id := range holders {
		t.bindings.edit(id).GPUPromisedTo = b.ID
	}
	t.setBindingState(b, preparing)
}

// boxWithout returns a box as placement would see it without some bindings.
func (t *tx) boxWithout(id string, box placement.Box, gone map[string]bool) placement.Box {
	left := newOccupants(slices.DeleteFunc(t.occupantsOf(id), func(b *bindingRecord) bool { return gone[b.ID] }))
	box.GPUs = slices.Clone(box.GPUs)
	for i := range box.GPUs {
		g := &box.GPUs[i]
		g.Whole = left.wholeOn(g.Slot)
		g.Free = !left.occupied(g.Slot)
	}
	box.Parts = slices.DeleteFunc(slices.Clone(box.Parts), func(s placement.PartSlot) bool { return s.Taken })
	t.addOccupants(&box, left.all)
	return box
}

// passGPUOn starts the binding that has waited for the GPU of b.
func (t *tx) passGPUOn(b *bindingRecord) {
	h := t.bindings.get(b.GPUPromisedTo)
	if b.GPUPromisedTo == "" || h == nil || !h.serving() || h.AwaitsGPUOf != b.ID {
		return
	}
	h = t.bindings.edit(h.ID)
	if next := t.otherHolder(h, b); next != "" {
		h.AwaitsGPUOf = next
		return
	}
	h.AwaitsGPUOf, h.BoxClear = "", false
	if t.preemptibleLeases[h.LeaseID] && len(t.pendingByShape) > 0 {
		t.capacityGrew = true // the lease has something to give now
	}
	h.BoxTold = t.touch(h.BoxID)
	t.setBindingState(h, preparing)
}

// otherHolder returns a binding, other than the one that is clear now, which still holds
// the GPU that is promised to h, or a part of it; "" for none.
func (t *tx) otherHolder(h, clear *bindingRecord) string {
	for _, id := range t.bindingsAt(h.BoxID) {
		if b := t.bindings.get(id); id != clear.ID && b.GPUPromisedTo == h.ID && b.holdsGPU() {
			return id
		}
	}
	return ""
}

// advanceWaiting fails a binding that waits for its GPU too long or in vain.
func (t *tx) advanceWaiting(b *bindingRecord) bool {
	limit := t.cfg.UnplugTimeout + unplugSlack + t.cfg.AttachTimeout
	switch {
	case t.gpuHealth(b) == dxpuv1.Health_HEALTH_FAILED:
		t.failBinding(b.ID, failed, dxpuv1.Reason_REASON_GPU_FAILED, "")
	case t.overdueOrSchedule(b, limit):
		t.failBinding(b.ID, failed, dxpuv1.Reason_REASON_ATTACH_FAILED, "binding "+b.AwaitsGPUOf+" did not release the GPU in time")
	default:
		return false
	}
	return true
}
