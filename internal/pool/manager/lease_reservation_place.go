package manager

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/dxpu-project/dxpu/internal/plural"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// makePromise promises GPUs and host slots to a lease. It returns why there are none.
func (t *tx) makePromise(id string) (why string) {
	a := t.decideLater(t.leases.get(id))
	if !a.OK() {
		return cmp.Or(strings.Join(decisionWhy(a.Decision, a.Host), " "), "no GPUs are free then")
	}
	l := t.editLease(id)
	l.Promise = &promiseRecord{Host: a.Host.Host, Slots: a.Host.Slots, GPUs: a.Picks}
	var gpus []string
	for _, p := range a.Picks {
		gpus = append(gpus, p.String())
	}
	t.setLeaseState(id, leasePending, fmt.Sprintf("reserved from %s to %s: %s to %s", rfc3339(startTime(l.spec)), rfc3339(l.expires()), strings.Join(gpus, ", "), a.Host.Host))
	t.tookMore(l.spec.Tenant)
	return ""
}

// decideLater returns where a lease that begins later would be placed: with what is free, or
// else also with what leases have that end before. It leaves the first lease of the queue
// what that needs, when it will begin.
func (t *tx) decideLater(l *leaseRecord) (a placement.Assignment) {
	t.tryTogether(func() { a = t.decideAtStart(l) })
	return a
}

func (t *tx) decideAtStart(l *leaseRecord) (a placement.Assignment) {
	at := startTime(l.spec)
	ends := t.endingsUntil(at.Add(-promiseLead))
	head := t.headBefore(l, ends, at.Add(-promiseLead))
	for _, gone := range [][]ending{nil, ends} {
		place := func(needed *reservation) {
			t.tryWithout(endedBy(gone, at), at, func() {
				t.tried.needed = needed
				a = t.decideThen(l)
			})
		}
		place(nil)
		if a.OK() && head != nil && !t.leavesEnough(head, ends, &a) {
			place(head.needs)
		}
		if a.OK() {
			break
		}
	}
	return a
}

// decideThen returns where a lease that begins later would be placed if all that is free now
// were free then, within the quotas by model. The present GPUs of its tenant do not count.
func (t *tx) decideThen(l *leaseRecord) (a placement.Assignment) {
	a.Decision, a.Host = t.decide(l.ID, l.spec, 0)
	if !a.OK() {
		return a
	}
	over := t.promisesOverQuota(l, t.modelAt(a.Picks[0]))
	if over == "" {
		return a
	}
	var why []string
	for _, model := range t.gpuPool.Models() {
		if l.spec.Model != anyModel && l.spec.Model != model {
			continue
		}
		if over := t.promisesOverQuota(l, model); over != "" {
			why = append(why, over)
			continue
		}
		s := proto.CloneOf(l.spec)
		s.Model = model
		if a.Decision, a.Host = t.decide(l.ID, s, 0); a.OK() {
			return a
		}
		why = append(why, decisionWhy(a.Decision, a.Host)...)
	}
	return placement.Assignment{Decision: placement.Decision{Why: why}}
}

// misfitOf returns why a lease may not have what is promised to it although all of it can be
// used, "" if it may: there are other taints, labels or devices now.
func (t *tx) misfitOf(l *leaseRecord) (why string) {
	p, gone := l.Promise, map[string]bool{}
	for _, r := range p.GPUs {
		for _, id := range t.bindingsOn(r) {
			gone[id] = true
		}
	}
	for _, s := range p.Slots {
		for _, id := range t.bindingsByHostSlot[hostSlotRef{p.Host, s}] {
			gone[id] = true
		}
	}
	gpus, host := t.requestOf(l.ID, l.spec, l.expires()), t.hostRequestOf(l.ID, l.spec, l.expires())
	gpus.Only, gpus.Exclude, gpus.UseSpares, gpus.Uplinks = p.GPUs, nil, true, t.fullUplinks
	host.Host, host.Exclude = p.Host, nil
	gpus.Brief, host.Brief = t.isBrief(), t.isBrief()
	nodes := []string{p.Host}
	for _, r := range p.GPUs {
		nodes = append(nodes, r.Box)
	}
	t.tryAmong(nodes, func() {
		t.tryWithout(gone, startTime(l.spec), func() {
			d, h := t.gpuPool.PlaceLease(t.hostPool, t.cfg.Reserve, gpus, host)
			t.noteDecision(d.OK() && h.OK(), gpus.Brief)
			if !d.OK() || !h.OK() {
				why = strings.TrimSuffix(strings.Join(decisionWhy(d, h), " "), ".")
			}
		})
	})
	return why
}

// promisesOverQuota returns why the quota by model does not admit that GPUs of a model are
// promised to a lease too; "" if it does. The present GPUs of its tenant do not count.
func (t *tx) promisesOverQuota(l *leaseRecord, model string) string {
	limit, ok := t.quota(l.spec.Tenant).MaxGPUsByModel[model]
	if !ok {
		return ""
	}
	t.reindex()
	n := int(l.spec.Count)
	for id := range t.promises {
		o := t.leases.get(id)
		if id != l.ID && o.Promise != nil && o.spec.Tenant == l.spec.Tenant && t.modelAt(o.Promise.GPUs[0]) == model {
			n += len(o.Promise.GPUs)
		}
	}
	if n <= int(limit) {
		return ""
	}
	return fmt.Sprintf("With it %s of model %s would be promised to tenant %s, whose quota is %d.", plural.Count(n, "GPU", "GPUs"), model, l.spec.Tenant, limit)
}

// ending is the bindings of a lease that end at a time.
type ending struct {
	at       time.Time
	lease    string
	bindings []string
}

// endingsUntil returns what ends until a time, with at most maxPromiseWaits bindings: that of
// leases that end, also the slots that they have for GPUs that broke, and at once what is being
// released, also of leases that wait again.
func (t *tx) endingsUntil(by time.Time) (out []ending) {
	for id, l := range t.leases.rows {
		e, leaves := l.expires(), l.State == leaseReleasing || l.State == leasePending
		switch {
		case leaves:
			e = t.now.Add(time.Nanosecond)
		case !l.holds() || e.IsZero():
			continue
		}
		if e.After(by) {
			continue
		}
		one := ending{at: e, lease: id}
		for _, bid := range t.bindingsOf(id) {
			if b := t.bindings.get(bid); leaves && b.State != released || b.serving() || b.needsReplacement() {
				one.bindings = append(one.bindings, bid)
			}
		}
		if len(one.bindings) > 0 {
			out = append(out, one)
		}
	}
	slices.SortFunc(out, func(a, b ending) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.lease, b.lease)) })
	n := 0
	for i, e := range out {
		if n += len(e.bindings); n > maxPromiseWaits {
			return out[:i]
		}
	}
	return out
}

// endedBy returns the bindings that have ended by a time. ends is in the order of their times.
func endedBy(ends []ending, by time.Time) map[string]bool {
	out := map[string]bool{}
	for _, e := range ends {
		if e.at.After(by) {
			break
		}
		for _, id := range e.bindings {
			out[id] = true
		}
	}
	return out
}
