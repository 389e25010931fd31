package link

import (
	"time"

	"github.com/dxpu-project/dxpu/machine"
)

// liveness judges the silence of the peer. Silence alone does not prove death:
// on a busy machine either end may wait for a processor while its datagrams
// wait in a socket. So
//   - the dead interval is stretched to a multiple of the longest delay that either
//     end has shown lately;
//   - silence counts only as far as this end has listened: its sockets were read;
//   - a silence in which this end stood still begins again;
//   - another link that hears the same peer shows that the peer lives;
//   - a refused port, which a dead process leaves behind, shortens it.
//
// Invariant: firstUnanswered is machine.Never or at least lastHeard.
type liveness struct {
	lastHeard       time.Duration // an authenticated datagram arrived
	firstUnanswered time.Duration // first datagram since then that asks for an answer, or Never
	refusedAt       time.Duration // first refusal since then, or Never
	heardElsewhere  time.Duration // another link heard the peer
	listened        time.Duration // all that arrived before has been received; Never: up to now
	postponed       time.Duration // until then nothing is judged: listened is behind
	lastRan         time.Duration // the link looked at its timers
	slowest         time.Duration // longest recent delay of an answer or of a timer
	slowestAt       time.Duration // when slowest was last lowered or raised
}

const (
	// quiet is the time without a look at the timers from which on a timer can
	// be late.
	quiet = 10 * time.Millisecond
	// patience is the silence in units of the slowest delay: scheduling delays
	// under load vary by about a factor of two, and each answer can suffer one
	// at either end.
	patience = 6
	// mostPatience bounds the silence, in dead intervals, whatever other links hear: the
	// peer may have lost this link alone.
	mostPatience = 8
	// slowMemory is the time in which slowest falls by a quarter.
	slowMemory = 2 * time.Second
	// refusedPart is the part of the dead interval that remains after a refusal. The
	// report is not authenticated, so a peer that lives has this time to answer the
	// ping that follows.
	refusedPart = 4
	// refusedPatience is that time in units of the slowest delay.
	refusedPatience = 2
	// listenAgain is when a judgement is postponed to: sockets that are idle are read
	// every 50 ms.
	listenAgain = 25 * time.Millisecond
)

func newLiveness(now time.Duration) liveness {
	return liveness{lastHeard: now, firstUnanswered: machine.Never, refusedAt: machine.Never, listened: machine.Never}
}

// heard records an authenticated datagram of the peer.
func (v *liveness) heard(now time.Duration) {
	v.lastHeard, v.firstUnanswered, v.refusedAt, v.postponed = now, machine.Never, machine.Never, 0
}

// refused records a refusal. It reports whether it is the first one since the peer
// was heard.
func (v *liveness) refused(now time.Duration) bool {
	first := v.refusedAt == machine.Never
	v.refusedAt = min(v.refusedAt, now)
	return first
}

// asked records a datagram that the peer must answer.
func (v *liveness) asked(now time.Duration) {
	v.firstUnanswered = min(v.firstUnanswered, now)
}

// late records that the timer of due runs at now. An end that expects an answer
// has a timer at least every quarter of the dead interval. If nothing ran for
// much longer, this end stood still (a stopped process, a suspended machine):
// the answer may wait in the socket, so the silence starts now.
func (v *liveness) late(now, due, dead time.Duration) {
	if v.firstUnanswered == machine.Never {
		return
	}
	if now-v.lastRan > dead*3/4 {
		v.firstUnanswered = now
		return
	}
	v.slow(now, now-max(due, v.lastRan), dead)
}

// slow records a delay, up to the longest that allows more silence: a machine that was
// suspended for a minute would not notice a death for long after it.
func (v *liveness) slow(now, delay, dead time.Duration) {
	delay = min(delay, mostPatience*dead/patience)
	for ; v.slowest > 0 && now-v.slowestAt >= slowMemory; v.slowestAt += slowMemory {
		v.slowest -= v.slowest/4 + 1
	}
	if delay >= v.slowest {
		v.slowest, v.slowestAt = delay, now
	}
}

// maxDelay returns how long an answer may take now although both ends live.
func (v *liveness) maxDelay() time.Duration { return patience * v.slowest }

// deadAt returns when the peer counts as lost: after the dead interval of
// silence, or patience times the slowest delay, but not before half of the dead
// interval has passed since a datagram that asks for an answer. The silence of a peer
// that another link hears begins later. After a refusal it is a part of the interval,
// if that is earlier.
func (v *liveness) deadAt(dead time.Duration) time.Duration {
	if v.firstUnanswered == machine.Never {
		return machine.Never
	}
	silence := min(max(dead, v.maxDelay()), mostPatience*dead)
	since := max(v.lastHeard, min(v.heardElsewhere, v.lastHeard+mostPatience*dead-silence))
	at := max(since+silence, v.firstUnanswered+silence/2)
	if v.refusedAt != machine.Never {
		part := max(dead/refusedPart, refusedPatience*v.slowest)
		at = min(at, max(v.refusedAt, v.firstUnanswered)+part)
	}
	return at
}

// wake returns when dead is to be called.
func (v *liveness) wake(dead time.Duration) time.Duration { return max(v.deadAt(dead), v.postponed) }

// dead reports whether the peer counts as lost now.
func (v *liveness) dead(now, interval time.Duration) bool {
	if now < v.wake(interval) {
		return false
	}
	if v.listened < v.deadAt(interval) {
		v.postponed = now + listenAgain
		return false
	}
	return true
}
