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
	// in bytes of cost. The socket of a VMM holds about this much, so a read of the
	// guest waits behind the writes there for about a second.
	minProgress = 256 << 10
)

// stall watches the progress of a server with a full backlog. The zero value is
// that of a server that keeps up.
type stall struct {
	full  bool
	until time.Duration // when the progress since then is judged
	done  uint64        // by then
}

// note takes the state of the backlog: whether it is full, and the cost of the
// requests that the server has taken so far.
func (s *stall) note(now time.Duration, full bool, done uint64) {
	switch {
	case !full:
		s.full = false
	case !s.full:
		*s = stall{full: true, until: now + stallTimeout, done: done}
	}
}

// tooSlow reports whether the server took too little while its backlog was full.
func (s *stall) tooSlow(now time.Duration, done uint64) bool {
	if !s.full || now < s.until {
		return false
	}
	slow := done-s.done < minProgress
	s.until, s.done = now+stallTimeout, done
	return slow
}

// wake returns when tooSlow is due.
func (s *stall) wake() time.Duration {
	if s.full {
		return s.until
	}
	return machine.Never
}
