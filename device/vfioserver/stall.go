package vfioserver

import (
	"time"

	"github.com/dxpu-project/dxpu/machine"
)

const (
	// stallTimeout is the Completion Timeout of a host, whose reads wait behind
	// other requests: the longest time for which one request delays those behind
	// it, and for which the backlog may be full before the server's progress counts.
	stallTimeout = time.Second
	// minProgress is what a server with a full backlog has to take in that time,
	// in bytes of cost. The full backlog is no smaller, so a read of the host behind it
	// would take longer than that time.
	minProgress = leastBacklog
	// stallLooks is how often the owner looks in that time. A suspension of the
	// process, in which the server may not have run either, counts as one look.
	stallLooks = 4
	lookEvery  = stallTimeout / stallLooks
)

// stall watches the progress of a server with a full backlog. The zero value is
// that of a server that keeps up.
type stall struct {
	full bool
	next time.Duration // when to look again
	left int           // looks until the progress is judged
	done uint64        // when the time began
}

// note takes the state of the backlog: whether it is full, and the cost of the
// requests that the server has taken so far.
func (s *stall) note(now time.Duration, full bool, done uint64) {
	switch {
	case !full:
		s.full = false
	case !s.full:
		*s = stall{full: true, next: now + lookEvery, left: stallLooks, done: done}
	}
}

// tooSlow reports whether the server took too little while its backlog was full.
func (s *stall) tooSlow(now time.Duration, done uint64) bool {
	if !s.full || now < s.next {
		return false
	}
	s.next = now + lookEvery
	if s.left--; s.left > 0 {
		return false
	}
	slow := done-s.done < minProgress
	s.left, s.done = stallLooks, done
	return slow
}

// wake returns when tooSlow is due.
func (s *stall) wake() time.Duration {
	if s.full {
		return s.next
	}
	return machine.Never
}
