package vfioserver

import (
	"fmt"
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
	// silentTimeout is how long a server with a full backlog may take nothing at all: its
	// process may be stopped, or wait for a processor. The client's own limit for a server
	// that does not read is the same.
	silentTimeout = requestTimeout
	// lookEvery is the time between two looks of the owner. A suspension of the
	// process, in which the server may not have run either, counts as one look.
	lookEvery   = stallTimeout / 4
	stallLooks  = int(stallTimeout / lookEvery)
	silentLooks = int(silentTimeout / lookEvery)
)

// stall watches the progress of a server with a full backlog. The zero value is
// that of a server that keeps up.
type stall struct {
	full   bool
	next   time.Duration // when to look again
	left   int           // looks with progress until the progress is judged
	silent int           // looks without progress until the server is given up
	began  uint64        // done when the judged time began
	last   uint64        // done at the last look
}

// note takes the state of the backlog: whether it is full, and the cost of the
// requests that the server has taken so far.
func (s *stall) note(now time.Duration, full bool, done uint64) {
	switch {
	case !full:
		s.full = false
	case !s.full:
		*s = stall{full: true, next: now + lookEvery, left: stallLooks, silent: silentLooks, began: done, last: done}
	}
}

// tooSlow returns why a server with a full backlog is given up, or "". Looks without any
// progress do not count as slow: they are allowed silentTimeout, all together, until the
// server has made the progress that it should.
func (s *stall) tooSlow(now time.Duration, done uint64) (why string) {
	if !s.full || now < s.next {
		return ""
	}
	s.next = now + lookEvery
	if done == s.last {
		if s.silent--; s.silent == 0 {
			return fmt.Sprintf("took nothing for %v", silentTimeout)
		}
		return ""
	}
	s.last = done
	if s.left--; s.left > 0 {
		return ""
	}
	if done-s.began < minProgress {
		return fmt.Sprintf("took less than %d KiB of writes in %v", minProgress>>10, stallTimeout)
	}
	s.left, s.silent, s.began = stallLooks, silentLooks, done
	return ""
}

// wake returns when tooSlow is due.
func (s *stall) wake() time.Duration {
	if s.full {
		return s.next
	}
	return machine.Never
}
