package netio

import (
	"sync/atomic"
	"time"
)

// listening knows up to when the datagrams of a socket have been received. Silence
// of a peer beyond that proves nothing: its datagrams may lie in the socket, because
// this process did not get a processor.
//
// The reader of the socket calls its methods; any goroutine reads until.
type listening struct {
	until atomic.Int64 // time.Duration

	// All datagrams that had arrived at asked have been received once the socket was
	// found empty, or once more was received than it holds.
	asked time.Duration
	left  int // bytes until then
	empty int // times that the socket was found empty since asked
}

const (
	// kernelCost is less than what the kernel adds to the size of each datagram.
	kernelCost = 512
	// pollsPerClock is how often a polling reader finds its socket empty before it
	// looks at the clock: a poll takes a microsecond.
	pollsPerClock = 64
	// longUnproved is how long a reader sleeps for each datagram before it looks whether the
	// socket is empty. Where datagrams come one by one, no read waits in vain.
	longUnproved = 25 * time.Millisecond
)

// unproved reports whether the reader is to look before it sleeps.
func (l *listening) unproved(now time.Duration) bool { return now-l.asked >= longUnproved }

// received notes that the links have what took some bytes of the socket. room is what it
// holds.
func (l *listening) received(bytes, room int, clock func() time.Duration) {
	if l.left -= bytes; l.left <= 0 {
		l.proved(clock)
		l.left = room
	}
}

// nothing notes that the socket is empty, after a wait or a poll. room is what it
// holds.
func (l *listening) nothing(waited bool, room int, clock func() time.Duration) {
	if l.empty++; waited || l.empty >= pollsPerClock {
		l.proved(clock)
		l.left = room
	}
}

// proved notes that all that had arrived at asked has been received, and asks again.
func (l *listening) proved(clock func() time.Duration) {
	l.until.Store(int64(l.asked))
	l.asked, l.empty = clock(), 0
}
