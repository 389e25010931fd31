package manager

import (
	"time"

	"github.com/dxpu-project/dxpu/machine"
)

// subject is an object that the rules examine: a node, a binding or a lease.
type subject struct {
	kind byte // nodeSubject, bindingSubject or leaseSubject
	id   string
}

const (
	nodeSubject    = 'n'
	bindingSubject = 'b'
	leaseSubject   = 'l'
)

// alarmCap is the longest time for which an alarm is set, and so the longest
// time until a wall clock that was put forward is noticed.
const alarmCap = 10 * time.Minute

// alarms holds the times at which the clock alone makes a subject worth
// examining. An alarm too many does no harm, because the rules check
// everything. So alarms are not part of a transaction and not stored; a manager
// that starts examines everything once.
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
