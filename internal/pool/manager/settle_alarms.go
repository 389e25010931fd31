package manager

import (
	"time"

	"github.com/dxpu-project/dxpu/machine"
)

// subject is something that may have to be looked at again: a node, a binding
// or a lease.
type subject struct {
	kind byte // aNode, aBinding or aLease
	id   string
}

const (
	nodeSubject    = 'n'
	bindingSubject = 'b'
	leaseSubject   = 'l'
)

// alarmCap is the longest time for which an alarm is set: a wall clock that is
// put forward is noticed so soon at the latest.
const alarmCap = 10 * time.Minute

// alarms says when the clock alone makes a subject worth a look. Setting one too
// many does no harm: who is woken looks at everything. So alarms are not part of
// a transaction and not stored; a manager that starts looks at everything once.
type alarms struct {
	queue machine.Queue[alarm]
	at    map[subject]time.Duration // the earliest of each subject
}

type alarm struct {
	at time.Duration
	subject
}

// set makes sure that a subject is looked at no later than at.
func (a *alarms) set(s subject, at time.Duration) {
	if old, ok := a.at[s]; ok && old <= at {
		return
	}
	a.at[s] = at
	a.queue.Push(at, alarm{at, s})
}

// next returns a subject whose time has come.
func (a *alarms) next(now time.Duration) (subject, bool) {
	for x, due := a.queue.Pop(now); due; x, due = a.queue.Pop(now) {
		if at, ok := a.at[x.subject]; ok && at == x.at { // not replaced by an earlier one
			delete(a.at, x.subject)
			return x.subject, true
		}
	}
	return subject{}, false
}

// due reports whether next would return something.
func (a *alarms) due(now time.Duration) bool { return a.queue.Wake() <= now }
