package manager

import (
	"maps"
	"slices"
)

const (
	// maxAttemptsPerPass and maxGrants bound the part of the queue that one
	// transaction serves.
	maxAttemptsPerPass = 64
	maxGrants          = 64
)

// serve offers capacity that has come back to the leases that need it: first
// those that need a replacement, then the queue. A small lease may pass a large
// one that does not fit. It reports whether anything changed.
func (t *tx) serve() bool {
	p := &t.pass
	if t.capacityGrew && !p.active {
		t.capacityGrew = false
		*p = pass{active: true, replacements: sorted(slices.Collect(maps.Keys(t.unreplaced))), tried: map[string]bool{}}
	}
	if !p.active {
		return false
	}
	for len(p.replacements) > 0 {
		if t.attempts >= maxAttemptsPerPass {
			return false
		}
		id := p.replacements[0]
		p.replacements = p.replacements[1:]
		t.attempts++
		t.examined[subject{leaseSubject, id}] = true
		if l := t.leases.get(id); l != nil && l.holds() && t.advanceLease(id) {
			return true
		}
	}
	for t.attempts < maxAttemptsPerPass && t.grants < maxGrants {
		id, shape := t.firstPending()
		if id == "" {
			p.active = false
			return t.capacityGrew // another pass
		}
		if t.grant(id) {
			t.grants++
			return true
		}
		t.attempts++
		p.tried[shape] = true
	}
	return false
}
