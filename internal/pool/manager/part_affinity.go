package manager

import (
	"slices"

	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// chooseForAffinity chooses other GPUs for a lease, as chooseOthers does. Parts with one affinity
// that have lost their GPU follow the first of them that gets another one, so it gets one with
// room for all of them if there is one.
func (t *tx) chooseForAffinity(l *leaseRecord, req placement.Request) placement.Decision {
	if all := t.lostPart(l); all != nil {
		one := req
		one.Part = all
		if d := t.chooseOthers(l, one); d.OK() {
			return d
		}
	}
	return t.chooseOthers(l, req)
}

// lostPart returns a part as large as all parts with the affinity of a lease that await other
// GPUs, nil if only its own does or no GPU has the compute of all.
func (t *tx) lostPart(l *leaseRecord) *placement.Part {
	if l.affinity() == "" {
		return nil
	}
	t.reindex()
	all, parts := placementPart(l.spec), 1
	for id := range t.unreplaced {
		if o := t.leases.get(id); o.ID != l.ID && o.sameAffinity(l) {
			all.Memory, all.Compute, parts = all.Memory+o.spec.Part.MemoryBytes, all.Compute+o.spec.Part.Compute, parts+1
		}
	}
	if parts == 1 || all.Compute > placement.Whole {
		return nil
	}
	return all
}

// joinsOthers reports whether a part with an affinity can be only on the GPU that it had, because
// parts of others with the affinity work there.
func (t *tx) joinsOthers(l *leaseRecord, broken []string) bool {
	if l.affinity() == "" {
		return false
	}
	b := t.bindings.get(broken[0])
	return slices.ContainsFunc(partsOn(t.occupantsOf(b.BoxID), b.gpu().Slot), func(o *bindingRecord) bool {
		other := t.leases.get(o.LeaseID)
		return o.serving() && o.LeaseID != l.ID && other != nil && other.sameAffinity(l)
	})
}

func (l *leaseRecord) affinity() string { return l.spec.GetPartRules().GetAffinity() }

// sameAffinity reports whether two leases of parts have one affinity.
func (l *leaseRecord) sameAffinity(o *leaseRecord) bool {
	return l.spec.Part != nil && l.affinity() == o.affinity() && l.spec.Tenant == o.spec.Tenant
}
