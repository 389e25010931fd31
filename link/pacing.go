package link

import (
	"time"

	"github.com/dxpu-project/dxpu/machine"
)

// pacer spreads the datagrams of a window over a round trip (RFC 9002 section 7.7),
// so that a queue on the path need not hold a whole window.
//
// at is the time at which an exact sender would have sent all that was sent. A
// datagram may leave before its time by at most an allowance: a batch of
// segmentation offload, which is one system call, or what the rate carries while a
// timer of the operating system is late. So round trips that timers cannot divide
// are not paced, and short messages never wait.
type pacer struct {
	at      time.Duration
	waiting bool // a datagram waits for its time
	held    bool // only the pacer has delayed the sender since it first waited
}

const (
	paceBatch = 64 << 10
	// paceTimer is how late a timer commonly is.
	paceTimer = 100 * time.Microsecond
)

// spacing returns the time that size bytes take at the pacing rate: 5/4 of the
// window in a round trip, twice the window in slow start, which doubles it. 0
// means that the rate is not known.
func (p *path) spacing(size int) time.Duration {
	c := &p.congestion
	if c.fixed || !p.rtt.sampled {
		return 0
	}
	rate := c.cwnd + c.cwnd/4
	if c.slowStart() {
		rate = 2 * c.cwnd
	}
	return time.Duration(float64(size) / float64(rate) * float64(p.rtt.srtt))
}

// allowance returns how long before its time a datagram may leave. A sender that
// had to wait resumes when it may send half of it, so that it sends batches.
func (p *path) allowance() time.Duration {
	d := max(p.spacing(paceBatch), paceTimer)
	if p.pacer.waiting {
		return d / 2
	}
	return d
}

// open reports whether the path takes a datagram with data now: the congestion
// window has room and the pacer lets it leave.
func (p *path) open(now time.Duration) bool {
	if !p.fits() {
		p.pacer.release()
		return false
	}
	if p.pacer.waiting = now+p.allowance() < p.pacer.at; p.pacer.waiting {
		p.pacer.held = true
	}
	return !p.pacer.waiting
}

// release notes that something else than the pacer delays the sender.
func (c *pacer) release() { c.waiting, c.held = false, false }

// paced notes that a datagram has left. A sender makes up for a late timer, but
// not for the time in which it had nothing to send.
func (p *path) paced(now time.Duration, size int) {
	c := &p.pacer
	if !c.held {
		c.at = max(c.at, now)
	}
	c.at = max(c.at, now-p.rtt.srtt) + p.spacing(size)
}

// paceAt returns when the datagram that waits may leave, or Never.
func (p *path) paceAt() time.Duration {
	if !p.pacer.waiting {
		return machine.Never
	}
	return p.pacer.at - p.allowance()
}
