package link

import (
	"time"

	"github.com/dxpu-project/dxpu/frame"
)

// congestion is the window of one path: NewReno with the constants of CUBIC in its
// TCP-friendly region (RFC 9438 section 4.3). On paths as short as a datacenter's
// CUBIC is in that region, so a link and a TCP flow share a bottleneck evenly.
type congestion struct {
	fixed    bool
	cwnd     int
	inFlight int

	ssthresh   int
	recovering bool          // a cut has happened
	cutAt      time.Duration // of the last cut: losses of datagrams sent before do not cut again
	before     int           // the window before the cut
	credit     int           // bytes acknowledged towards the next increase
}

const (
	// The window is cut to beta = 7/10 and grows by alpha = 3(1-beta)/(1+beta)
	// = 9/17 of a datagram per round trip.
	betaNum, betaDen   = 7, 10
	alphaNum, alphaDen = 9, 17
	// maxCwnd bounds slow start: 100 Gb/s for 5 ms.
	maxCwnd = 64 << 20
)

func newCongestion(cfg *Config) congestion {
	if cfg.FixedCwnd > 0 {
		return congestion{fixed: true, cwnd: cfg.FixedCwnd}
	}
	return congestion{cwnd: max(cfg.InitialCwnd, 2*frame.MinMTU), ssthresh: maxCwnd}
}

func (c *congestion) covers(sentAt time.Duration) bool { return c.recovering && sentAt <= c.cutAt }

// acked grows the window if it limited the sender.
func (c *congestion) acked(size, mtu int, sentAt time.Duration) {
	limited := 2*c.inFlight >= c.cwnd
	c.inFlight -= size
	if c.fixed || !limited || c.covers(sentAt) {
		return
	}
	if c.cwnd < c.ssthresh {
		c.cwnd = min(c.cwnd+size, maxCwnd)
		return
	}
	c.credit += size
	if need := c.cwnd / alphaNum * alphaDen; c.credit >= need {
		c.credit -= need
		c.cwnd = min(c.cwnd+mtu, maxCwnd)
	}
}

// lost cuts the window, once per round trip.
func (c *congestion) lost(now time.Duration, mtu int, sentAt time.Duration) {
	if c.fixed || c.covers(sentAt) {
		return
	}
	c.recovering, c.cutAt, c.before, c.credit = true, now, c.cwnd, 0
	c.ssthresh = max(c.cwnd*betaNum/betaDen, 2*mtu)
	c.cwnd = c.ssthresh
}

// spurious undoes the last cut: the datagram that caused it was not lost.
func (c *congestion) spurious(sentAt time.Duration) {
	if !c.fixed && c.covers(sentAt) && c.before > c.cwnd {
		c.cwnd, c.ssthresh = c.before, c.before
	}
}

// collapse resets the window to its minimum: no datagram arrives.
func (c *congestion) collapse(mtu int) {
	if !c.fixed {
		c.cwnd = 2 * mtu
	}
}
