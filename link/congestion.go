package link

import "time"

// congestion is the window of one path: NewReno with the constants of CUBIC in its
// TCP-friendly region (RFC 9438 section 4.3). On paths as short as a datacenter's
// CUBIC is in that region, so a link and a TCP flow share a bottleneck evenly.
type congestion struct {
	fixed    bool
	initial  int // the window of a new path, and after a pause
	cwnd     int
	inFlight int

	ssthresh int
	credit   int // bytes acknowledged towards the next increase
	episode  episode
	usedAt   time.Duration // the sender was last limited by the window
}

// episode is a cut of the window with the losses that it answers: those of
// datagrams that were sent before the cut.
//
// Invariant: unproven counts the records that bear number, are lost and have not
// been acknowledged since, and one more if the network has asked for the cut (marked).
type episode struct {
	number         uint32 // from 1
	open           bool   // the cut has not been undone
	at             time.Duration
	unproven       int
	marked         bool // the network has asked for the cut
	byMark         bool // it has begun the episode, and no loss has come since
	cwnd, ssthresh int  // before the cut
}

const (
	// The window is cut to beta = 7/10 and grows by alpha = 3(1-beta)/(1+beta)
	// = 9/17 of a datagram per round trip.
	betaNum, betaDen = 7, 10
	// A mark tells of a queue that has just begun, so it costs less (RFC 8511 section 3.1).
	markedNum, markedDen = 17, 20
	alphaNum, alphaDen   = 9, 17
	// maxCwnd bounds slow start: 100 Gb/s for 5 ms.
	maxCwnd = 64 << 20
)

func newCongestion(cfg *Config, mtu int) congestion {
	if cfg.FixedCwnd > 0 {
		return congestion{fixed: true, cwnd: cfg.FixedCwnd}
	}
	initial := max(cfg.InitialCwnd, 2*mtu)
	return congestion{initial: initial, cwnd: initial, ssthresh: maxCwnd}
}

func (c *congestion) slowStart() bool { return c.cwnd < c.ssthresh }

// covers reports whether the last cut answers the loss of a datagram.
func (c *congestion) covers(sentAt time.Duration) bool {
	return c.episode.open && sentAt <= c.episode.at
}

// sending notes that a datagram of size bytes is in flight. Before, if the window
// has not limited the sender for a timeout or more, it no longer describes the
// network: it falls by half for each timeout, down to the initial window (RFC 2861
// section 3.2, RFC 5681 section 4.1). Slow start regains it.
func (c *congestion) sending(now time.Duration, size int, timeout time.Duration) {
	if !c.fixed && c.cwnd > c.initial && now-c.usedAt >= timeout {
		c.ssthresh = max(c.ssthresh, c.cwnd-c.cwnd/4)
		for ; c.cwnd > c.initial && now-c.usedAt >= timeout; c.usedAt += timeout {
			c.cwnd = max(c.cwnd/2, c.initial)
		}
	}
	c.inFlight += size
	if c.limits() {
		c.usedAt = now
	}
}

// limits reports whether the sender uses the window: at least half of it.
func (c *congestion) limits() bool { return 2*c.inFlight >= c.cwnd }

// acked grows the window if it limited the sender.
func (c *congestion) acked(size, mtu int, sentAt time.Duration) {
	limited := c.limits()
	c.inFlight -= size
	if c.fixed || !limited || c.covers(sentAt) {
		return
	}
	if c.slowStart() {
		c.cwnd = min(c.cwnd+size, maxCwnd)
		return
	}
	c.credit += size
	if need := c.cwnd / alphaNum * alphaDen; c.credit >= need {
		c.credit -= need
		c.cwnd = min(c.cwnd+mtu, maxCwnd)
	}
}

// lost cuts the window, once per round trip. It reports whether it did.
func (c *congestion) lost(now time.Duration, mtu int, rec *record) (cut bool) {
	if c.fixed {
		return false
	}
	switch {
	case !c.covers(rec.at):
		cut = true
		c.cut(now, mtu, betaNum, betaDen)
	case c.episode.byMark: // a loss of the same round trip asks for more
		cut, c.episode.byMark = true, false
		c.lower(c.episode.cwnd, mtu, betaNum, betaDen)
	}
	rec.episode = c.episode.number
	c.episode.unproven++
	return cut
}

// marked cuts the window because the network has marked a datagram, once per round trip:
// sentAt is when one was sent that arrived before or with the mark. A mark is no loss that
// could be spurious, so the cut is not undone. It reports whether it cut.
func (c *congestion) marked(now time.Duration, mtu int, sentAt time.Duration) bool {
	if c.fixed {
		return false
	}
	if c.usedAt < sentAt && c.cwnd <= c.initial { // the sender does not use the window: pings, acknowledgements
		return false
	}
	cut := !c.covers(sentAt)
	if cut {
		c.cut(now, mtu, markedNum, markedDen)
		c.episode.byMark = true
	}
	if !c.episode.marked {
		c.episode.marked = true
		c.episode.unproven++
	}
	return cut
}

// cut begins an episode: num/den of the window are left.
func (c *congestion) cut(now time.Duration, mtu, num, den int) {
	c.episode = episode{number: c.episode.number + 1, open: true, at: now, cwnd: c.cwnd, ssthresh: c.ssthresh}
	c.credit = 0
	c.lower(c.cwnd, mtu, num, den)
}

// lower leaves num/den of a window.
func (c *congestion) lower(window, mtu, num, den int) {
	c.ssthresh = max(window*num/den, 2*mtu)
	c.cwnd = min(c.cwnd, c.ssthresh)
}

// spurious notes that a datagram arrived that had been declared lost. If that
// holds for every loss of its episode, no queue has overflowed, and the cut is
// undone (RFC 4015; like Linux, which counts duplicate acknowledgements instead).
// The next loss cuts the window again.
func (c *congestion) spurious(rec *record) {
	e := &c.episode
	if rec.episode != e.number || !e.open {
		return
	}
	if e.unproven--; e.unproven == 0 {
		c.cwnd, c.ssthresh = max(c.cwnd, e.cwnd), max(c.ssthresh, e.ssthresh)
		e.open = false
	}
}

// collapse resets the window to its minimum: no datagram arrives.
func (c *congestion) collapse(mtu int) {
	if !c.fixed {
		c.cwnd = min(c.cwnd, 2*mtu)
		c.episode.open = false // not to be undone
	}
}
