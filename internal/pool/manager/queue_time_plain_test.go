package manager

import (
	"fmt"
	"slices"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// plainTimes is a pool at rest with what its GPUs and slots are used for later, for a search
// that does not use the index or package placement.
type plainTimes struct {
	now      time.Time
	gpus     []timedPlace
	slots    []timedPlace
	promises []plainPromise
}

// timedPlace is a GPU, or a slot of a host.
type timedPlace struct {
	ref   placement.Ref // of a slot: the host and the slot
	model string
	sound bool
	there bool // the node can be used
	plans []*planRecord
	busy  bool
	until time.Time // when its lease ends; zero: never
	stuck bool      // its lease is over, and its nodes do not release it
}

type plainPromise struct {
	lease       string
	gpus, slots []placement.Ref
	from, until time.Time
}

// claim is what a lease needs: from a time until another one, zero: for ever.
type claim struct {
	lease       string
	spec        *dxpuv1.LeaseSpec
	from, until time.Time
	later       bool                    // the leases that are there may end first
	without     []placement.Ref         // GPUs and slots that are kept from it
	mayHave     func(model string) bool // by its quota
	freeBy      time.Time               // of a lease that begins later: others must have ended
}

// plainTimesOf copies the pool.
func plainTimesOf(tx *tx) *plainTimes {
	p := &plainTimes{now: tx.now}
	for _, id := range tx.nodes.ids() {
		n := tx.nodes.get(id)
		var plans []*planRecord
		for _, plan := range tx.plans.ids() {
			if m := tx.plans.get(plan); m.Box == id || m.Host == id {
				plans = append(plans, m)
			}
		}
		sound := tx.connected(id) && n.Cordon == nil && (n.Stability == nil || !n.Stability.Unstable)
		for _, s := range n.Slots {
			at := timedPlace{ref: placement.Ref{Box: id, Slot: s.Slot}, there: sound, sound: sound && s.Cordon == nil && s.Health != dxpuv1.Health_HEALTH_FAILED, plans: plans}
			if n.Kind == dxpuv1.NodeKind_NODE_KIND_HOST {
				p.slots = append(p.slots, at)
				continue
			}
			at.model = s.Device.Model
			p.gpus = append(p.gpus, at)
		}
	}
	for _, id := range tx.bindings.ids() {
		b := tx.bindings.get(id)
		l := tx.leases.get(b.LeaseID)
		var until time.Time
		if l.holds() && (b.serving() || b.needsReplacement()) {
			until = l.expires()
		}
		if l.State == leaseReleasing || l.State == leasePending {
			until = tx.now
		}
		if b.State != released && !b.BoxClear {
			p.occupy(p.gpus, b.ref(), until, l.ended())
		}
		if b.State != released && (!b.HostClear || b.serving()) || b.needsReplacement() && l.holds() {
			p.occupy(p.slots, placement.Ref{Box: b.HostID, Slot: b.HostSlot}, until, l.ended())
		}
	}
	for _, id := range tx.leases.ids() {
		l := tx.leases.get(id)
		if l.Promise == nil {
			continue
		}
		q := plainPromise{lease: id, gpus: l.Promise.GPUs, from: l.spec.StartTime.AsTime(), until: l.spec.StartTime.AsTime().Add(l.spec.ExpiresAfter.AsDuration())}
		for _, s := range l.Promise.Slots {
			q.slots = append(q.slots, placement.Ref{Box: l.Promise.Host, Slot: s})
		}
		p.promises = append(p.promises, q)
	}
	return p
}

func (p *plainTimes) occupy(places []timedPlace, r placement.Ref, until time.Time, ended bool) {
	at := slices.IndexFunc(places, func(o timedPlace) bool { return o.ref == r })
	if at < 0 {
		return
	}
	o := &places[at]
	o.stuck = o.stuck || ended
	if !o.busy || until.IsZero() || !o.until.IsZero() && until.After(o.until) {
		o.busy, o.until = true, until
	}
}

// claimOf returns what a lease that would be created, or waits, needs.
func claimOf(tx *tx, id string, s *dxpuv1.LeaseSpec) claim {
	c := claim{lease: id, spec: s, from: tx.now, mayHave: func(model string) bool {
		return tx.overQuota(s.Tenant, wholeGPUs(s.Count), model) == ""
	}}
	if s.StartTime != nil {
		at := s.StartTime.AsTime()
		c.until = at.Add(s.ExpiresAfter.AsDuration())
		if at.After(tx.now) {
			c.from, c.later, c.freeBy = at, true, at.Add(-time.Minute)
		}
		return c
	}
	if s.ExpiresAfter != nil {
		c.until = tx.now.Add(s.ExpiresAfter.AsDuration())
	}
	return c
}

// free reports whether a claim may have a GPU or a slot.
func (p *plainTimes) free(o *timedPlace, c *claim) bool {
	switch {
	case !o.sound, slices.Contains(c.without, o.ref):
		return false
	case o.busy && (!c.later || o.until.IsZero() || o.until.After(c.freeBy)):
		return false
	}
	for _, m := range o.plans {
		if c.from.Before(m.End) && (c.until.IsZero() || c.until.After(m.Start.Add(-m.DrainBefore))) {
			return false
		}
	}
	for _, q := range p.promises {
		if q.lease != c.lease && (slices.Contains(q.gpus, o.ref) || slices.Contains(q.slots, o.ref)) &&
			c.from.Before(q.until.Add(time.Minute)) && (c.until.IsZero() || c.until.After(q.from.Add(-time.Minute))) {
			return false
		}
	}
	return true
}

// gpusFor returns the sets of GPUs that a claim may have.
func (p *plainTimes) gpusFor(c *claim) (out [][]placement.Ref) {
	var all []*timedPlace
	for i := range p.gpus {
		g := &p.gpus[i]
		if p.free(g, c) && (c.spec.Model == "" || g.model == c.spec.Model) && c.mayHave(g.model) &&
			(len(c.spec.GpuIds) == 0 || slices.Contains(c.spec.GpuIds, g.ref.String())) {
			all = append(all, g)
		}
	}
	for set := range subsets(all) {
		if len(set) != int(c.spec.Count) || slices.ContainsFunc(set, func(g *timedPlace) bool { return g.model != set[0].model }) {
			continue
		}
		var refs []placement.Ref
		for _, g := range set {
			refs = append(refs, g.ref)
		}
		out = append(out, refs)
	}
	return out
}

// slotsFor returns the slots of each host that has enough of them for a claim.
func (p *plainTimes) slotsFor(c *claim) map[string][]placement.Ref {
	out := map[string][]placement.Ref{}
	for i := range p.slots {
		if s := &p.slots[i]; p.free(s, c) && (c.spec.HostId == "" || c.spec.HostId == s.ref.Box) {
			out[s.ref.Box] = append(out[s.ref.Box], s.ref)
		}
	}
	for id, slots := range out {
		if len(slots) < int(c.spec.Count) {
			delete(out, id)
		}
	}
	return out
}

// emptied returns the pool without leases and promises.
func (p *plainTimes) emptied() *plainTimes {
	free := func(places []timedPlace) (out []timedPlace) {
		for _, o := range places {
			o.busy = false
			out = append(out, o)
		}
		return out
	}
	return &plainTimes{now: p.now, gpus: free(p.gpus), slots: free(p.slots)}
}

func (p *plainTimes) fits(c *claim) bool { return len(p.gpusFor(c)) > 0 && len(p.slotsFor(c)) > 0 }

// begin sets when a claim begins as others end, and reports whether it does by a time.
func (p *plainTimes) begin(c *claim, by time.Time) bool {
	at := []time.Time{p.now.Add(time.Nanosecond)}
	for _, o := range slices.Concat(p.gpus, p.slots) {
		at = append(at, o.until)
		for _, m := range o.plans {
			at = append(at, m.End)
		}
	}
	for _, q := range p.promises {
		at = append(at, q.until.Add(time.Minute))
	}
	slices.SortFunc(at, time.Time.Compare)
	for _, e := range at {
		if !e.After(p.now) || e.After(by) {
			continue
		}
		if c.later, c.freeBy, c.from = true, e, e; c.spec.ExpiresAfter != nil {
			c.until = e.Add(c.spec.ExpiresAfter.AsDuration())
		}
		if p.fits(c) {
			return true
		}
	}
	return false
}

// fitBoth reports whether two claims fit beside each other.
func (p *plainTimes) fitBoth(a, b *claim) bool {
	slots := false
	for h, x := range p.slotsFor(a) {
		for o, y := range p.slotsFor(b) {
			both := slices.Concat(x, slices.DeleteFunc(slices.Clone(y), func(r placement.Ref) bool { return slices.Contains(x, r) }))
			slots = slots || h != o || len(both) >= int(a.spec.Count+b.spec.Count)
		}
	}
	if !slots {
		return false
	}
	others := p.gpusFor(b)
	return slices.ContainsFunc(p.gpusFor(a), func(x []placement.Ref) bool {
		return slices.ContainsFunc(others, func(y []placement.Ref) bool {
			return !slices.ContainsFunc(x, func(r placement.Ref) bool { return slices.Contains(y, r) })
		})
	})
}

func (p *plainTimes) String() (s string) {
	in := func(at time.Time) string {
		if at.IsZero() {
			return "never"
		}
		return at.Sub(p.now).Round(time.Second).String()
	}
	for _, o := range slices.Concat(p.gpus, p.slots) {
		s += fmt.Sprintf("%s %s sound %t", o.ref, o.model, o.sound)
		if o.busy {
			s += ", busy until " + in(o.until)
		}
		for _, m := range o.plans {
			s += fmt.Sprintf(", plan from %s (%s before) to %s, %v", in(m.Start), m.DrainBefore, in(m.End), m.Phase)
		}
		s += "\n"
	}
	for _, q := range p.promises {
		s += fmt.Sprintf("promised to %s: %v, %v from %s to %s\n", q.lease, q.gpus, q.slots, in(q.from), in(q.until))
	}
	return s
}
