package manager

import (
	"errors"
	"slices"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/machine"
)

const (
	// maxAlarmsPerTx bounds the alarms that one transaction handles, so that
	// none takes long. Tick makes as many transactions as necessary.
	maxAlarmsPerTx = 64
	// maxRounds bounds the rounds of settling a transaction: a chain of
	// replacements takes about ten.
	maxRounds = 1000
	// maxForgotten bounds the ended leases that one transaction forgets: a manager that
	// takes over may remember many that are too many, and must answer meanwhile.
	maxForgotten = 64
)

// errUnsettled reports rules that undo each other, which is a mistake in the program.
var errUnsettled = errors.New("manager: the rules of the pool do not settle")

// clock returns the time since the manager began. Setting the wall clock does
// not change it.
func (t *tx) clock() time.Duration { return t.now.Sub(t.began) }

// dueOrSchedule reports whether a time has come. If not, it schedules the
// subject to be examined at that time.
func (t *tx) dueOrSchedule(s subject, at time.Time) bool {
	left := at.Sub(t.now)
	if left <= 0 {
		return true
	}
	t.alarms.set(s, t.clock()+min(left, alarmCap))
	return false
}

// mark makes the transaction examine a subject before it ends.
func (t *tx) mark(s subject) { t.dirty[s] = true }

// markNode marks a node and everything that is bound there.
func (t *tx) markNode(id string) {
	t.mark(subject{nodeSubject, id})
	for b := range t.bindingsByNode[id] {
		t.mark(subject{leaseSubject, t.indexedBindings[b].lease})
		for _, peer := range t.bindingsByHostSlot[t.indexedBindings[b].slot] { // a migration depends on both boxes
			t.mark(subject{bindingSubject, peer})
		}
	}
}

// markAlarmed marks the subjects whose alarms are due.
func (t *tx) markAlarmed() {
	for range maxAlarmsPerTx {
		s, ok := t.alarms.next(t.clock())
		if !ok {
			return
		}
		t.alarmed = append(t.alarmed, s)
		t.mark(s)
		if s.kind == nodeSubject {
			t.markNode(s.id)
		}
	}
}

// settle applies the rules to everything that a change of records, a report or
// the clock affects, until nothing more follows.
func (t *tx) settle() error {
	for range maxRounds {
		t.markDependents()
		if len(t.dirty) == 0 {
			t.reindex() // it marks the boxes that report a device of another one
		}
		if len(t.dirty) > 0 {
			t.advanceAll()
			continue
		}
		if !t.serve() {
			t.forgetEnded()
			return nil
		}
	}
	return errUnsettled
}

// markDependents marks the subjects that depend on the records that have
// changed since its last call.
func (t *tx) markDependents() {
	t.endStep()
	for id := range t.bindings.unsettled {
		t.mark(subject{bindingSubject, id})
		b := t.bindings.get(id)
		if b == nil {
			continue
		}
		t.mark(subject{leaseSubject, b.LeaseID})
		for _, peer := range t.bindingsByHostSlot[hostSlotRef{b.HostID, b.HostSlot}] {
			t.mark(subject{bindingSubject, peer})
		}
	}
	for id := range t.leases.unsettled {
		t.mark(subject{leaseSubject, id})
	}
	for id := range t.nodes.unsettled {
		t.markNode(id)
	}
	clear(t.bindings.unsettled)
	clear(t.leases.unsettled)
	clear(t.nodes.unsettled)
}

// advanceAll examines all marked subjects: plans, then nodes, then bindings, then leases.
func (t *tx) advanceAll() {
	ids := map[byte][]string{}
	for s := range t.dirty {
		ids[s.kind] = append(ids[s.kind], s.id)
		t.examined[s] = true
	}
	clear(t.dirty)
	for _, id := range sorted(ids[planSubject]) {
		if t.plans.get(id) != nil {
			t.advancePlan(id)
			t.endStep()
		}
	}
	for _, id := range sorted(ids[nodeSubject]) {
		if t.nodes.get(id) != nil {
			t.advanceNode(id)
		}
		if n := t.nodes.get(id); n != nil && !n.Deleting {
			t.maintain(id)
		}
		t.endStep()
	}
	for _, id := range sorted(ids[bindingSubject]) {
		if t.bindings.get(id) != nil {
			t.advance(id)
			t.endStep()
		}
	}
	for _, id := range sorted(ids[leaseSubject]) {
		if t.leases.get(id) != nil {
			t.advanceLease(id)
			t.endStep()
		}
	}
	for _, id := range sorted(ids[tokenSubject]) {
		if t.tokens.get(id) != nil {
			t.advanceToken(id)
			t.endStep()
		}
	}
}

func sorted(ids []string) []string {
	slices.Sort(ids)
	return ids
}

// advanceNode detects that a node has stopped reporting.
func (t *tx) advanceNode(id string) {
	if t.nodes.get(id).Deleting {
		t.advanceDeletion(id)
		return
	}
	l := t.live[id]
	at := subject{nodeSubject, id}
	if l == nil || l.last.IsZero() || l.told.lost || !t.dueOrSchedule(at, l.lostAt(t.now)) {
		return
	}
	if t.connected(id) { // its report may have arrived, unheard
		t.dueOrSchedule(at, t.now.Add(tickInterval))
		return
	}
	told := t.tell(l)
	told.lost, told.connected = true, false
	t.changeConnectivity(id)
	t.recordLoss(id, l.lostAt(t.now))
	n := t.nodes.get(id)
	t.event(nodeEvent(n, dxpuv1.EventType_EVENT_TYPE_NODE_LOST), "%s %s has stopped reporting", kindWord(n.Kind), id)
	t.markNode(id)
}

// unfinished reports whether there is work that does not depend on the clock.
func (t *tx) unfinished() bool {
	return len(t.dirty) > 0 || t.capacityGrew || t.pass.active || t.alarms.due(t.clock())
}

// forgetEnded removes ended leases that are too old, and the oldest ones if there are
// too many. It also removes old released bindings of the leases that were examined.
func (t *tx) forgetEnded() {
	t.reindex()
	t.forgetOldest()
	t.forgetReleased()
	t.reindex()
}

// forgetOldest removes ended leases that are too old or too many, once all are in memory.
func (t *tx) forgetOldest() {
	if !t.ended.complete {
		return
	}
	over := len(t.endedLeases) - t.cfg.KeepEnded
	forgotten := 0
	for i, e := range t.endedLeases {
		oldest := subject{leaseSubject, e.id}
		if i >= over && !t.dueOrSchedule(oldest, e.at.Add(keepEnded)) {
			break
		}
		if forgotten == maxForgotten {
			t.mark(oldest) // the next transaction goes on
			break
		}
		if t.forgetLease(e.id) {
			forgotten++
		}
		if i >= max(over, 0)+maxForgotten { // those whose nodes are away stay
			break
		}
	}
}

// forgetReleased removes old released bindings of the leases that were examined.
func (t *tx) forgetReleased() {
	for s := range t.examined {
		id := s.id
		l := t.leases.get(id)
		if s.kind != leaseSubject || l == nil {
			continue
		}
		var old []string
		for _, bid := range t.bindingsByLease[id] {
			if b := t.bindings.get(bid); b.State == released && (!b.needsReplacement() || l.ended()) {
				old = append(old, bid)
			}
		}
		for len(old) > keepReleased {
			t.bindings.remove(old[0])
			old = old[1:]
		}
	}
}

// forgetLease removes a lease with its bindings if nothing is left of them on any node.
func (t *tx) forgetLease(id string) bool {
	for _, b := range t.bindingsByLease[id] {
		if t.bindings.get(b).State != released {
			return false
		}
	}
	for _, b := range t.bindingsByLease[id] {
		t.bindings.remove(b)
	}
	t.leases.remove(id)
	return true
}

// subject is an object that the rules examine: a node, a binding or a lease.
type subject struct {
	kind byte // one of the constants below
	id   string
}

const (
	nodeSubject    = 'n'
	bindingSubject = 'b'
	leaseSubject   = 'l'
	tokenSubject   = 't'
	planSubject    = 'p'
)

// alarmCap is the longest time for which an alarm is set, and so the longest
// time until a wall clock that was put forward is noticed.
const alarmCap = 10 * time.Minute

// alarms holds the times at which the clock alone makes a subject worth examining. An
// alarm too many does no harm, because the rules check everything. So alarms are not
// part of a transaction and not stored; a manager that starts examines everything once.
type alarms struct {
	queue machine.Queue[alarm]
	at    map[subject]time.Duration // the earliest alarm of each subject
}

type alarm struct {
	at time.Duration
	subject
}

// set makes sure that a subject is examined no later than at.
func (a *alarms) set(s subject, at time.Duration) {
	if old, ok := a.at[s]; ok && old <= at {
		return
	}
	a.at[s] = at
	a.queue.Push(at, alarm{at, s})
}

// next returns a subject whose alarm is due.
func (a *alarms) next(now time.Duration) (subject, bool) {
	for x, due := a.queue.Pop(now); due; x, due = a.queue.Pop(now) {
		if at, ok := a.at[x.subject]; ok && at == x.at { // not replaced by an earlier one
			delete(a.at, x.subject)
			return x.subject, true
		}
	}
	return subject{}, false
}

// due reports whether next would return a subject.
func (a *alarms) due(now time.Duration) bool { return a.queue.Wake() <= now }
