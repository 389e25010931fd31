package manager

import (
	"slices"

	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// affinityKey names the affinity of parts. The zero value is that of leases without one.
type affinityKey struct{ tenant, label string }

// chooseForAffinity chooses other GPUs for a lease, as chooseOthers does. Parts with one affinity
// that have lost their GPU follow the first of them that gets another one, so it gets one with
// room and slots for all of them if there is one.
func (t *tx) chooseForAffinity(l *leaseRecord, req placement.Request) placement.Decision {
	if all, parts := t.lostPart(l); all != nil {
		one := req
		one.Part, one.Exclude = all, slices.Clone(req.Exclude)
		for range maxAffinityTries {
			var d placement.Decision
			t.briefly(func() { d = t.chooseOthers(l, one) })
			if !d.OK() {
				break
			}
			gpu := t.gpuAt(d.Picks[0])
			box := t.indexedNodes[gpu.Box].placementBox
			if _, _, slots := placement.Room(&box, gpu.Slot); slots >= parts {
				return d
			}
			one.Exclude = append(one.Exclude, gpu)
		}
	}
	return t.chooseOthers(l, req)
}

// maxAffinityTries bounds the GPUs that have the room for all parts with an affinity, and are
// looked at for one that also has the slots.
const maxAffinityTries = 8

// lostPart returns a part as large as all parts with the affinity of a lease that await other
// GPUs, and how many these are; nil if only its own does or no GPU has the compute of all.
func (t *tx) lostPart(l *leaseRecord) (all *placement.Part, parts int) {
	if l.affinity() == "" {
		return nil, 0
	}
	t.reindex()
	all, parts = placementPart(l.spec), 1
	for _, id := range t.affine[affinityKey{l.spec.Tenant, l.affinity()}] {
		if o := t.leases.get(id); o.ID != l.ID && t.unreplaced[id] > 0 && o.sameAffinity(l) {
			all.Memory, all.Compute, parts = all.Memory+o.spec.Part.MemoryBytes, all.Compute+o.spec.Part.Compute, parts+1
		}
	}
	if parts == 1 || all.Compute > placement.Whole {
		return nil, 0
	}
	return all, parts
}

// joinsOthers reports whether a part with an affinity can be only on the GPU that it had, because
// parts of others with the affinity work there.
func (t *tx) joinsOthers(l *leaseRecord, broken []string) bool {
	if l.affinity() == "" {
		return false
	}
	b := t.bindings.get(broken[0])
	return slices.ContainsFunc(occupants{all: t.occupantsOf(b.BoxID)}.partsOn(b.gpu().Slot), func(o *bindingRecord) bool {
		other := t.leases.get(o.LeaseID)
		return o.serving() && o.LeaseID != l.ID && other != nil && other.sameAffinity(l)
	})
}

func (l *leaseRecord) affinity() string { return l.spec.GetPartRules().GetAffinity() }

// sameAffinity reports whether two leases of parts have one affinity.
func (l *leaseRecord) sameAffinity(o *leaseRecord) bool {
	return l.spec.Part != nil && l.affinity() == o.affinity() && l.spec.Tenant == o.spec.Tenant
}
