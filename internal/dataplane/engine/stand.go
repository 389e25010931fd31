package engine

import (
	"time"

	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/machine"
)

// A request that waits for its answer must not end because an end has stood still: a process
// that was stopped, a machine that was suspended, processors that are busy. The links judge
// that for themselves; the functions of this file tell it to those who wait.

const (
	// longStand is how late the timer of a group is if its process has stood still.
	longStand = 250 * time.Millisecond
	// oneStand is the time after which a further stand is one of its own.
	oneStand = 10 * time.Second
	// lookAgain is when a request is judged again whose answer may be under way: a link that
	// works hears its peer a few times a second.
	lookAgain = 25 * time.Millisecond
	// mostDelay bounds what the delays of a link add to short timeouts: as the devices' own
	// default, it is longer than the link bears silence.
	mostDelay = 10 * time.Second
)

// stand is a time in which a group was not entered although its timer was due.
type stand struct{ end, length time.Duration }

// note takes the time of an entry, that of the entry before, and when the timer was due.
func (s *stand) note(now, before, due time.Duration) {
	if due == machine.Never {
		return
	}
	late := now - max(before, due)
	if late < longStand {
		return
	}
	if s.length > 0 && now-s.end < oneStand+late {
		late += s.length
	}
	s.end, s.length = now, late
}

// StoodStill returns how long the group has stood still since a time.
func (e Entry) StoodStill(since time.Duration) time.Duration {
	if s := &e.group.stand; s.end > since {
		return s.length
	}
	return 0
}

// Slack returns by how much a request whose answer comes from the peer may exceed its
// deadline at present, of which the timeout is over: by as much as the link's own
// acknowledgements are late, or until the peer is heard, and by the time in which this end has
// stood still.
func (b *Binding) Slack(e Entry, deadline, timeout time.Duration) time.Duration {
	if b.closed || b.link.State() != link.Up {
		return 0
	}
	return max(min(b.link.MaxDelay(), mostDelay)-timeout, b.Unheard(e, deadline), 0) + e.StoodStill(deadline-timeout)
}

// Unheard returns how long after a deadline the peer is still to be heard: it may have
// stood still, or its answer waits in a socket. If it has died, the end of the link ends the
// request. Unheard returns 0 once the peer was heard and the sockets were read.
func (b *Binding) Unheard(e Entry, deadline time.Duration) time.Duration {
	if b.closed || b.link.State() != link.Up {
		return 0
	}
	if b.link.Heard() >= deadline {
		return b.Unread(e, deadline)
	}
	return e.Now() - deadline + lookAgain
}

// Unread returns how long after a deadline the sockets are still to be read: an answer that
// arrived in time may lie in one, behind the datagram by which the peer was heard, or on
// another path. Unread returns 0 once all was received that had arrived by the deadline.
func (b *Binding) Unread(e Entry, deadline time.Duration) time.Duration {
	listened := b.group.cfg.Listened
	if b.closed || b.link.State() != link.Up || listened == nil || listened() >= deadline {
		return 0
	}
	return e.Now() - deadline + lookAgain
}
