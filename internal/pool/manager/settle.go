package manager

import (
	"errors"
	"maps"
	"slices"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

const (
	// maxAlarms bounds how many alarms one transaction sees to, so that none
	// is long; Tick makes as many as are needed.
	maxAlarms = 64
	// maxRounds bounds the settling of one transaction: a chain of replacements
	// takes some ten.
	maxRounds = 1000
	// maxTries and maxGrants bound how much of the queue one transaction serves.
	maxTries  = 64
	maxGrants = 64
)

// errRestless says that rules chase each other: a mistake in the program.
var errRestless = errors.New("manager: the pool does not come to rest")

// work is what has to be looked at. It outlives transactions: what one leaves,
// the next one finds.
type work struct {
	dirty map[subject]bool
	// restless nodes have begun or ceased to count as connected.
	restless map[string]bool
	alarms   alarms
	pass     pass
}

// pass is one walk over those who wait for capacity. It may take several
// transactions; capacity that comes back meanwhile starts another one after it.
type pass struct {
	active bool
	hungry []string        // leases in need of a replacement that were not tried yet
	tried  map[string]bool // shapes that do not fit
}

func newWork() work {
	return work{
		dirty: map[subject]bool{}, restless: map[string]bool{},
		alarms: alarms{at: map[subject]time.Duration{}},
	}
}

// clock is the time since the manager began, which no setting of the wall clock
// changes.
func (t *tx) clock() time.Duration { return t.now.Sub(t.began) }

// due reports whether a time has come. Where it has not, the subject is looked
// at again when it has.
func (t *tx) due(s subject, at time.Time) bool {
	left := at.Sub(t.now)
	if left <= 0 {
		return true
	}
	t.alarms.set(s, t.clock()+min(left, alarmCap))
	return false
}

// mark makes sure that a subject is looked at before the transaction ends.
func (t *tx) mark(s subject) { t.dirty[s] = true }

// markNode marks a node with all that is bound there.
func (t *tx) markNode(id string) {
	t.mark(subject{aNode, id})
	for b := range t.ofNode[id] {
		t.mark(subject{aBinding, b})
		t.mark(subject{aLease, t.bindingEntries[b].lease})
	}
}

// wakeDue marks what the clock has made due.
func (t *tx) wakeDue() {
	for range maxAlarms {
		s, ok := t.alarms.next(t.clock())
		if !ok {
			return
		}
		t.rung = append(t.rung, s)
		t.mark(s)
		if s.kind == aNode {
			t.markNode(s.id)
		}
	}
}

// settle works out everything that follows from what changed in records,
// reports and the clock, until nothing more does.
func (t *tx) settle() error {
	for range maxRounds {
		t.spread()
		if len(t.dirty) > 0 {
			t.advanceAll()
			continue
		}
		if !t.serve() {
			t.forget()
			return nil
		}
	}
	return errRestless
}

// spread marks what depends on the records that changed since it was called last.
func (t *tx) spread() {
	t.reindex()
	for id := range t.bindings.hot {
		t.mark(subject{aBinding, id})
		b := t.bindings.get(id)
		if b == nil {
			continue
		}
		t.mark(subject{aLease, b.LeaseID})
		for _, peer := range t.hostSlots[hostSlot{b.HostID, b.HostSlot}] {
			t.mark(subject{aBinding, peer})
		}
	}
	for id := range t.leases.hot {
		t.mark(subject{aLease, id})
	}
	for id := range t.nodes.hot {
		t.markNode(id)
	}
	clear(t.bindings.hot)
	clear(t.leases.hot)
	clear(t.nodes.hot)
}

// advanceAll looks at everything that is marked: nodes, then bindings, then leases.
func (t *tx) advanceAll() {
	ids := map[byte][]string{}
	for s := range t.dirty {
		ids[s.kind] = append(ids[s.kind], s.id)
		t.looked[s] = true
	}
	clear(t.dirty)
	for _, id := range sorted(ids[aNode]) {
		if t.nodes.get(id) != nil {
			t.advanceNode(id)
		}
		if n := t.nodes.get(id); n != nil && !n.Banished {
			t.maintain(id)
		}
	}
	for _, id := range sorted(ids[aBinding]) {
		if t.bindings.get(id) != nil {
			t.advance(id)
		}
	}
	for _, id := range sorted(ids[aLease]) {
		if t.leases.get(id) != nil {
			t.advanceLease(id)
		}
	}
}

func sorted(ids []string) []string {
	slices.Sort(ids)
	return ids
}

// advanceNode notices that a node has fallen silent.
func (t *tx) advanceNode(id string) {
	if t.nodes.get(id).Banished {
		t.advanceBanished(id)
		return
	}
	l := t.live[id]
	if l == nil || l.last.IsZero() || l.lost || !t.due(subject{aNode, id}, l.last.Add(l.patience)) {
		return
	}
	l.lost = true
	t.fellSilent = append(t.fellSilent, l)
	t.restless[id] = true
	t.noteLost(id, l.last.Add(l.patience))
	n := t.nodes.get(id)
	t.event(nodeEvent(n, dxpuv1.EventType_EVENT_TYPE_NODE_LOST), "%s %s is silent", kindWord(n.Kind), id)
	t.markNode(id)
}

// serve lets those try again who wait for capacity, when some has come back:
// leases in need of a replacement first, then the queue, by priority and in the
// order in which they came. A small one may pass a large one that does not fit.
// It reports whether anything changed.
func (t *tx) serve() bool {
	p := &t.pass
	if t.grew && !p.active {
		t.grew = false
		*p = pass{active: true, hungry: sorted(slices.Collect(maps.Keys(t.hungry))), tried: map[string]bool{}}
	}
	if !p.active {
		return false
	}
	for len(p.hungry) > 0 {
		if t.tries >= maxTries {
			return false
		}
		id := p.hungry[0]
		p.hungry = p.hungry[1:]
		t.tries++
		t.looked[subject{aLease, id}] = true
		if l := t.leases.get(id); l != nil && l.holds() && t.advanceLease(id) {
			return true
		}
	}
	for t.tries < maxTries && t.grants < maxGrants {
		id, shape := t.firstWaiting()
		if id == "" {
			p.active = false
			return t.grew // another pass
		}
		if t.grant(id) {
			t.grants++
			return true
		}
		t.tries++
		p.tried[shape] = true
	}
	return false
}

// unfinished reports whether there is work that the clock need not be waited for.
func (t *tx) unfinished() bool {
	return len(t.dirty) > 0 || t.grew || t.pass.active || t.alarms.due(t.clock())
}

// forget removes what was over long ago of the leases that were looked at, and
// the oldest where too many are remembered.
func (t *tx) forget() {
	t.reindex()
	if over := len(t.ended) - t.cfg.KeepEnded; over > 0 {
		for _, e := range slices.Clone(t.ended[:over]) {
			t.forgetLease(e.id)
		}
	}
	for s := range t.looked {
		id := s.id
		l := t.leases.get(id)
		if s.kind != aLease || l == nil ||
			l.ended() && t.due(s, l.EndTime.Add(keepEnded)) && t.forgetLease(id) {
			continue
		}
		var old []string
		for _, bid := range t.ofLease[id] {
			if b := t.bindings.get(bid); b.State == released && (!b.missed() || l.ended()) {
				old = append(old, bid)
			}
		}
		for len(old) > keepReleased {
			t.bindings.remove(old[0])
			old = old[1:]
		}
	}
	t.reindex()
}

// forgetLease removes a lease with its bindings, once nothing is left of them
// anywhere.
func (t *tx) forgetLease(id string) bool {
	for _, b := range t.ofLease[id] {
		if t.bindings.get(b).State != released {
			return false
		}
	}
	for _, b := range t.ofLease[id] {
		t.bindings.remove(b)
	}
	t.leases.remove(id)
	return true
}
