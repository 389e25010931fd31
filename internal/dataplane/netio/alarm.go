package netio

import (
	"time"

	"github.com/dxpu-project/dxpu/machine"
)

// alarm decides when the timer of a group fires. Each setting and each firing of a
// timer wakes a thread of the Go runtime. In an exchange of reads and answers all of
// that is for nothing, because an entry does the work before its deadline: an
// acknowledgement leaves with the next request. So the timer may be late by a slack,
// which grows while it fires for nothing and shrinks with each deadline that has passed.
//
// The group's lock guards it.
type alarm struct {
	timer timer
	// at is when the timer fires. machine.Never: it is not set. firing: it has fired, and
	// fired is about to be called.
	at     time.Duration
	slack  time.Duration
	passed bool // a deadline has passed since the last firing
}

// timer is a time.Timer with a function that has not been started at first.
type timer interface {
	Reset(d time.Duration) bool
	Stop() bool
}

const (
	firing time.Duration = -1

	// firstSlack is the longest delay of an acknowledgement, the deadline that traffic
	// meets most often (link.Config.AckDelay).
	firstSlack = 250 * time.Microsecond
	// mostSlack is as late as a timer of the Go runtime may be in an idle process, and less than
	// the least probe timeout of a link.
	mostSlack = time.Millisecond
	// A timer that is set stays as it is while it is late by at most these slacks: in
	// an exchange the deadlines of an acknowledgement and of a probe, a slack later,
	// take turns.
	keep = 3
)

func newAlarm(t timer) alarm { return alarm{timer: t, at: machine.Never} }

// entered notes an entry of a group whose deadline is wake.
func (a *alarm) entered(now, wake time.Duration) {
	if now >= wake {
		a.passed = true
		if a.slack /= 2; a.slack < firstSlack {
			a.slack = 0
		}
	}
}

// fired notes that the timer has fired. The call of entered comes before it.
func (a *alarm) fired() {
	a.at = machine.Never
	if !a.passed {
		a.slack = min(max(2*a.slack, firstSlack), mostSlack)
	}
	a.passed = false
}

// set makes the timer fire at a deadline, or up to keep slacks later. A timer that
// fires early does no harm, so it is only ever moved forward: most entries leave it
// alone.
func (a *alarm) set(now, deadline time.Duration) {
	if machine.After(deadline, keep*a.slack) < a.at {
		a.move(now, machine.After(deadline, a.slack))
	}
}

// setExactly is set without slack.
func (a *alarm) setExactly(now, at time.Duration) {
	if at < a.at {
		a.move(now, at)
	}
}

// again makes the timer fire at once. The caller does not hold the group's lock: a timer
// that fires before that is unlocked finds the group entered. The setting stays: one
// firing too many does no harm.
func (a *alarm) again() { a.timer.Reset(0) }

func (a *alarm) move(now, at time.Duration) {
	if !a.stop() {
		return
	}
	a.at = at
	a.timer.Reset(max(at-now, 0))
}

// stop stops the timer. It returns false if the timer has fired, and fired was not
// called yet.
func (a *alarm) stop() bool {
	switch {
	case a.at == machine.Never:
	case a.at == firing || !a.timer.Stop():
		a.at = firing
		return false
	}
	a.at = machine.Never
	return true
}
