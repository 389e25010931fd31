package manager

import (
	"regexp"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// checkRound checks what must be true at any time.
func (w *poolWalk) checkRound() {
	_ = w.m.view(func(tx *tx) error {
		p := walkPoolOf(tx)
		w.checkRoom(p)
		w.checkNew(tx, p)
		w.checkQuotas(tx, p)
		w.checkGangs(tx)
		return nil
	})
}

// checkRoom checks that no GPU has more than it can have.
func (w *poolWalk) checkRoom(p *walkPool) {
	for _, g := range p.gpus {
		if g.held.Memory > g.slot.Device.MemoryBytes || g.held.Compute > 1000 {
			w.Errorf("parts of %s have %d bytes and %d thousandths", g.ref, g.held.Memory, g.held.Compute)
		}
	}
	type place struct {
		node string
		slot uint32
	}
	has := map[place]string{}
	for _, id := range p.tx.bindings.ids() {
		b := p.tx.bindings.get(id)
		if !b.serving() {
			continue
		}
		for _, at := range []place{{b.BoxID, b.BoxSlot}, {b.HostID, b.HostSlot}} {
			if o := has[at]; o != "" {
				w.Errorf("%v has bindings %s and %s", at, o, id)
			}
			has[at] = id
		}
		if b.Part == nil && b.AwaitsGPUOf == "" {
			if g := p.gpu(b.gpu()); g != nil && g.compute > 0 && !slices.ContainsFunc(p.tx.bindings.ids(), func(o string) bool { return p.tx.bindings.get(o).GPUPromisedTo == id }) {
				w.Errorf("GPU %s has binding %s and parts", g.ref, id)
			}
		}
	}
}

// checkNew checks that new bindings are where their leases may be.
func (w *poolWalk) checkNew(tx *tx, p *walkPool) {
	last := w.epoch
	for _, id := range tx.bindings.ids() {
		b := tx.bindings.get(id)
		l := tx.leases.get(b.LeaseID)
		if b.Epoch <= w.epoch || !l.holds() || !b.serving() {
			last = max(last, b.Epoch)
			continue
		}
		last = max(last, b.Epoch)
		w.n.bound++
		if b.Replaces != "" {
			w.n.moved++
		}
		m := &member{id: l.ID, spec: l.spec, from: tx.now, until: tx.until(l)}
		g, h := p.gpu(b.gpu()), p.host(b.HostID)
		if !p.allowed(m, g) {
			w.Errorf("lease %s gets GPU %s, which it may not have: %s", l.ID, g.ref, l.Explanation)
		}
		if b.Replaces == "" && !p.hostAllowed(m, h) {
			w.Errorf("lease %s gets slots of host %s, which it may not have", l.ID, h.node.ID)
		}
		if !reachesNode(h.node, g.node) {
			w.Errorf("lease %s gets GPU %s, which host %s does not reach", l.ID, g.ref, h.node.ID)
		}
		for _, o := range tx.bindingsOf(l.ID) {
			switch o := tx.bindings.get(o); {
			case o.ID == id || !o.serving():
			case o.HostID != b.HostID, tx.modelAt(o.ref()) != tx.modelAt(b.ref()), o.gpu() == b.gpu():
				w.Errorf("lease %s has %s on %s and %s on %s", l.ID, o.ref(), o.HostID, b.ref(), b.HostID)
			case l.spec.SameBox == dxpuv1.Preference_PREFERENCE_REQUIRED && o.BoxID != b.BoxID:
				w.Errorf("lease %s has GPUs in %s and %s", l.ID, o.BoxID, b.BoxID)
			}
		}
	}
	w.epoch = last
}

// checkQuotas checks that no tenant gets more than its quota allows.
func (w *poolWalk) checkQuotas(tx *tx, p *walkPool) {
	for id, u := range p.used {
		q, was := tx.quota(id), w.used[id]
		if was.byModel == nil {
			continue // its quota has just changed
		}
		if q.MaxGPUs > 0 && u.all > max(was.all, wholeGPUs(q.MaxGPUs)) {
			w.Errorf("tenant %s has %v GPUs, and had %v; its quota is %d", id, u.all, was.all, q.MaxGPUs)
		}
		for model, limit := range q.MaxGPUsByModel {
			if u.byModel[model] > max(was.byModel[model], wholeGPUs(limit)) {
				w.Errorf("tenant %s has %v GPUs of model %s, and had %v; its quota is %d", id, u.byModel[model], model, was.byModel[model], limit)
			}
		}
		if g := q.GuaranteedGPUs; g != nil && u.firm > max(was.firm, wholeGPUs(*g)) {
			w.Errorf("tenant %s has %v GPUs that are not preemptible, and had %v; its guarantee is %d", id, u.firm, was.firm, *g)
		}
		if has := tx.usageOf(id); has.gpus != u.all || has.holding != u.holding || has.firm != u.firm {
			w.Errorf("tenant %s has %+v, by the index %v, %v holding, %v firm", id, u, has.gpus, has.holding, has.firm)
		}
	}
	for _, id := range tx.tenants.ids() {
		if u := p.used[id]; u.byModel == nil {
			p.used[id] = usages{byModel: map[string]milliGPU{}}
		}
	}
	w.used = p.used
}

// checkGangs checks that the leases of a gang have GPUs together.
func (w *poolWalk) checkGangs(tx *tx) {
	holds, waits := map[gangKey]string{}, map[gangKey]string{}
	for _, id := range tx.leases.ids() {
		l := tx.leases.get(id)
		switch k := l.gang(); {
		case k == gangKey{}:
		case l.holds():
			holds[k] = id
		case l.State == leasePending:
			waits[k] = id
		}
	}
	for k, id := range holds {
		if waits[k] != "" {
			w.Errorf("of gang %s lease %s has GPUs, and %s waits", k.name, id, waits[k])
		}
	}
}

// check checks a pool at rest.
func (w *poolWalk) check() {
	_ = w.m.view(func(tx *tx) error {
		p := walkPoolOf(tx)
		for _, id := range tx.leases.ids() {
			l := tx.leases.get(id)
			switch {
			case l.State == leasePending && !l.sleeps() && tx.firstOfGang(id) == id:
				w.checkWaits(tx, p, l)
			case l.State == leaseActive:
				w.n.preempted += strings.Count(strings.Join(l.Explanation, " "), "preempted.")
				if l.gang() != (gangKey{}) {
					w.n.gangs++
				}
			case l.State == leaseDegraded:
				w.checkDegraded(tx, p, l)
			}
		}
		for _, n := range tx.nodes.ids() {
			w.checkLeaves(tx, p, tx.nodes.get(n))
		}
		return nil
	})
	w.checkBegun()
}

// checkBegun checks that reservations that nothing has disturbed begin in time.
func (w *poolWalk) checkBegun() {
	for id, at := range w.starts {
		l := w.lease(id)
		if l.EndTime != nil || at.After(w.clock.now().Add(-5*time.Second)) {
			continue
		}
		delete(w.starts, id)
		over := false
		_ = w.m.view(func(tx *tx) error {
			o := tx.leases.get(id)
			over = o.Promise == nil || tx.quotaReached([]*leaseRecord{o})+tx.overQuota(o.spec.Tenant, o.size(), tx.modelAt(o.Promise.GPUs[0])) != ""
			return nil
		})
		if w.n.begun++; l.State == leasePending && !over {
			w.Errorf("reservation %s has begun, and waits: %s", id, w.explain(id))
		}
	}
}

// membersFor returns what the leases of a gang need.
func (w *poolWalk) membersFor(tx *tx, leases []*leaseRecord, without []placement.Ref) (out []*member) {
	for _, l := range leases {
		m := &member{id: l.ID, spec: l.spec, from: tx.now, without: without}
		switch {
		case l.spec.StartTime != nil:
			m.until = l.spec.StartTime.AsTime().Add(l.spec.ExpiresAfter.AsDuration())
		case l.spec.ExpiresAfter != nil:
			m.until = tx.now.Add(l.spec.ExpiresAfter.AsDuration())
		}
		out = append(out, m)
	}
	return out
}

// checkWaits checks that a lease, or a gang, that waits has no place.
func (w *poolWalk) checkWaits(tx *tx, p *walkPool, l *leaseRecord) {
	w.n.waits++
	leases := tx.membersOf(tx.gangOf(l.ID))
	tx.explained = 0 // each is as in a call of its own
	why := strings.Join(tx.whyPending(l), " ")
	if l.lacksMembers() {
		if !strings.Contains(why, "waits for the others") {
			w.Errorf("lease %s waits for its gang, and says: %s", l.ID, why)
		}
		return
	}
	if tx.decideTogether(leases).Members != nil && tx.quotaReached(leases) == "" {
		w.Errorf("lease %s waits, and would get GPUs: %s", l.ID, why)
	}
	if gone, _ := tx.preemptionVictims(leases); len(gone) > 0 && tx.quotaReached(leases) == "" {
		w.Errorf("lease %s waits, and would preempt %v: %s", l.ID, gone, why)
	}
	w.checkReasons(tx, p, leases, why)
	ms := w.membersFor(tx, leases, nil)
	if !p.fits(ms) {
		return
	}
	r := tx.reservedFrom(l.ID, l.spec, requestedSize(leases))
	if r == nil {
		w.Errorf("lease %s waits, and fits: %s", l.ID, why)
	} else if p.fits(w.membersFor(tx, leases, r.places())) {
		w.Errorf("lease %s waits, and fits beside what is held for %s, %v: %s", l.ID, r.lease, r.places(), why)
	}
}

// lacksSlots is in the reason of a lease that waits for slots of a host.
var lacksSlots = regexp.MustCompile(`(does not have|No host [^.]*has) \d+ free slots?`)

// checkReasons checks what a lease is told about hosts, and about its quota.
func (w *poolWalk) checkReasons(tx *tx, p *walkPool, leases []*leaseRecord, why string) {
	if len(leases) > 1 {
		return
	}
	var held []placement.Ref
	if r := tx.reservedFrom(leases[0].ID, leases[0].spec, leases[0].size()); r != nil {
		held = r.places()
	}
	m := w.membersFor(tx, leases, held)[0]
	none, some := true, false
	for _, h := range p.hosts {
		some = some || p.hostAllowed(m, h)
		none = none && !(p.hostAllowed(m, h) && len(p.freeSlots(m, h)) >= int(m.spec.Count))
	}
	full := lacksSlots.MatchString(why)
	closed := strings.Contains(why, "No host that has the label") || strings.Contains(why, "No host is ") ||
		strings.Contains(why, "Host "+m.spec.HostId+" does not have the label") || strings.Contains(why, "is unreachable, cordoned") ||
		strings.HasPrefix(why[strings.Index(why, ". ")+2:], "Host "+m.spec.HostId+" has taints that") || strings.Contains(why, "Host "+m.spec.HostId+" has planned maintenance") || strings.Contains(why, "Host "+m.spec.HostId+" is ")
	quota := tx.quotaReached(leases) != ""
	switch {
	case quota:
	case full && !none, none && some && !full:
		w.Errorf("lease %s: a host may be had %t, all of them lack slots %t; it is told: %s", m.id, some, none, why)
	case !some && !closed:
		w.Errorf("lease %s: no host may be had; it is told: %s", m.id, why)
	}
	may := false
	for _, model := range []string{"T4", "A100"} {
		may = may || (m.spec.Model == "" || m.spec.Model == model) && p.mayHave(m.spec, map[string]milliGPU{model: sizeOf(m.spec)})
	}
	if says := strings.Contains(why, "that its quota allows") || strings.Contains(why, "guaranteed GPUs in leases"); !may && !says {
		w.Errorf("lease %s: its quota does not admit it; it is told: %s", m.id, why)
	}
}

// checkDegraded checks that no GPU can replace one that a lease lacks.
func (w *poolWalk) checkDegraded(tx *tx, p *walkPool, l *leaseRecord) {
	w.n.degraded++
	h := p.host(l.HostID)
	var serving []*bindingRecord
	lacks := 0
	for _, id := range tx.bindingsOf(l.ID) {
		switch b := tx.bindings.get(id); {
		case b.serving():
			serving = append(serving, b)
		case b.needsReplacement() && tx.replacementPaused(l, b):
			return
		case b.needsReplacement():
			lacks++
		}
	}
	if lacks == 0 || h == nil || !tx.connected(l.HostID) {
		return
	}
	m := w.replacing(tx, l, serving)
	if mustBeTogether(l.spec) {
		m.spec.Count = uint32(lacks) // all of them or none
	}
	for _, set := range p.setsFor(m, h.node) {
		if set[0].slot.Device.Model == l.Model && !slices.Contains(l.Avoid, set[0].ref) {
			w.Errorf("lease %s lacks a GPU, and could have %s: %s", l.ID, set[0].ref, l.StateReason)
			return
		}
	}
}

// replacing returns the need for one more GPU of a lease that has some.
func (w *poolWalk) replacing(tx *tx, l *leaseRecord, has []*bindingRecord) *member {
	m := &member{id: l.ID, spec: proto.CloneOf(l.spec), from: tx.now, until: tx.until(l)}
	m.spec.Count, m.spec.Model = 1, l.Model
	for _, b := range has {
		m.boxes, m.has = append(m.boxes, b.BoxID), append(m.has, b.gpu())
	}
	return m
}

// checkLeaves checks that nothing stays where it must leave.
func (w *poolWalk) checkLeaves(tx *tx, p *walkPool, n *nodeRecord) {
	for _, id := range tx.bindingsAt(n.ID) {
		b := tx.bindings.get(id)
		l := tx.leases.get(b.LeaseID)
		if !b.serving() {
			continue
		}
		box := n.ID == b.BoxID
		must, should := false, false // it must leave in any case, or if there is another place
		taints := slices.Clone(n.Taints)
		if s := n.slot(b.gpu().Slot); box && s != nil {
			taints = append(taints, s.Taints...)
			should = should || s.Cordon != nil && s.Cordon.Drain != nil
			must = must || s.Cordon.late(tx.now)
		}
		must = must || !tolerates(l.spec, taints, true) || n.Cordon.late(tx.now)
		should = should || n.Cordon != nil && n.Cordon.Drain != nil
		for _, m := range p.plans(n) {
			must = must || !m.KeepLeases && !m.Start.After(tx.now.Add(-3*time.Second)) && tx.now.Sub(w.calm) > 3*time.Second
			should = should || !m.Start.Add(-m.DrainBefore).After(tx.now.Add(-3*time.Second))
		}
		switch {
		case must:
			w.Errorf("binding %s of lease %s (%s, %v) is still at %s, where it must leave", id, l.ID, leaseWord(l.State), l.spec, n.ID)
		case should && box && l.State == leaseActive && w.hasOther(tx, p, l, b):
			w.Errorf("binding %s of lease %s is still at %s, and has another place", id, l.ID, n.ID)
		}
	}
}

func (c *cordon) late(now time.Time) bool {
	return c != nil && c.Drain != nil && !c.Drain.Deadline.IsZero() && c.Drain.Deadline.Before(now.Add(-3*time.Second))
}

// hasOther reports whether a binding could move to another GPU.
func (w *poolWalk) hasOther(tx *tx, p *walkPool, l *leaseRecord, b *bindingRecord) bool {
	if mustBeTogether(l.spec) && l.spec.Count > 1 {
		return false // all of them move or none
	}
	var others []*bindingRecord
	for _, id := range tx.bindingsOf(l.ID) {
		if o := tx.bindings.get(id); o.serving() && o.ID != b.ID {
			others = append(others, o)
		}
	}
	m := w.replacing(tx, l, others)
	h := p.host(l.HostID)
	return h != nil && slices.ContainsFunc(p.setsFor(m, h.node), func(set []*walkGPU) bool {
		return set[0].ref != b.gpu() && set[0].slot.Device.Model == l.Model && !slices.Contains(l.Avoid, set[0].ref)
	})
}

// actResize gives a lease another number of GPUs, or parts of another size.
func (w *poolWalk) actResize() {
	ids, ok := w.open(!oneIn(w.r, 8))
	if !ok {
		return
	}
	l := w.lease(w.some(ids))
	if l.Spec.Part != nil && oneIn(w.r, 2) {
		part, deadline := w.drawPart(), time.Duration(w.r.IntN(3))*time.Second
		w.note("resize %s to %v: %v", l.Id, part, w.resizePart(l.Id, part, deadline))
		w.checkRound()
		return
	}
	count := uint32(1 + w.r.IntN(4))
	fits, sure := false, false
	_ = w.m.view(func(tx *tx) error { fits, sure = w.mayGrow(tx, tx.leases.get(l.Id), count); return nil })
	err := w.resize(l.Id, count, 0)
	w.note("resize %s to %d: %v", l.Id, count, err)
	if sure && count > l.Spec.Count && (err == nil) != fits {
		w.Errorf("lease %s grows to %d: %v; by the search %t", l.Id, count, err, fits)
	}
	if err == nil && count > l.Spec.Count {
		w.n.grown++
	}
	w.checkRound()
}

// mayGrow reports whether a lease can have more GPUs now, and whether the search can tell.
func (w *poolWalk) mayGrow(tx *tx, l *leaseRecord, count uint32) (fits, sure bool) {
	if l.State != leaseActive || count <= l.spec.Count || tx.reserved != nil {
		return false, l.State == leaseActive && tx.reserved == nil
	}
	p := walkPoolOf(tx)
	var has []*bindingRecord
	for _, id := range tx.bindingsOf(l.ID) {
		if b := tx.bindings.get(id); b.serving() {
			has = append(has, b)
		}
	}
	m := w.replacing(tx, l, has)
	m.spec.Count, m.host = count-l.spec.Count, l.HostID
	m.spec.HostLabels = nil // it is on its host already
	if q := tx.quota(l.spec.Tenant); l.spec.Part != nil || len(l.spec.GpuIds) > 0 || q.MaxGPUs > 0 && count > q.MaxGPUs {
		return false, false
	}
	return p.fits([]*member{m}), true
}

// empty repairs the pool, and ends all leases: each that waits gets its turn.
func (w *poolWalk) empty() {
	for _, id := range w.order {
		n := w.nodes[id]
		n.down = false
		clear(n.dead)
		w.uncordon(atBox(id))
		w.uncordon(atHost(id))
		for slot := range n.slots {
			w.uncordon(atGPU(placement.Ref{Box: id, Slot: uint32(slot)}.String()))
		}
	}
	for _, id := range []string{"a", "b", "c"} {
		w.putTenant(id, &dxpuv1.Quota{MaxPriority: proto.Int32(2)})
	}
	clear(w.used)
	w.note("all is well")
	w.advance(40 * time.Minute)
	if w.check(); w.Failed() {
		return
	}
	for range 30 {
		ended := w.deleteServed()
		if w.rest(); !ended {
			break
		}
		if w.check(); w.Failed() {
			return
		}
	}
}
