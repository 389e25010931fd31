package link

import (
	"time"

	"github.com/dxpu-project/dxpu/frame"
	"github.com/dxpu-project/dxpu/machine"
)

// rungs are the datagram sizes that a path falls back to: Ethernet with jumbo
// frames, Ethernet, and the minimum, without the headers of IPv6 and UDP.
var rungs = [...]int{9000 - 48, 1500 - 48, frame.MinMTU}

// mtuSearch finds the datagram size that a path carries, like RFC 8899 but
// downwards: it uses the configured size until datagrams stop arriving, then the
// next rung below them. From there pings probe the rung above.
type mtuSearch struct {
	configured int
	size       int // in use

	losses  int           // in a row, while no datagram as large arrives
	least   int           // size of the smallest of them
	passed  time.Duration // send time of the last full-size datagram that arrived, or -1
	probing bool          // a probe is in flight
	nextAt  time.Duration // of the next probe, Never at the configured size
	wait    time.Duration // between probes, doubling
}

const (
	// blackHole losses in a row mean that the size does not fit. The next probe
	// corrects a wrong decision.
	blackHole    = 5
	mtuProbeWait = 20 * time.Millisecond
	mtuProbeMax  = 30 * time.Second
)

func newMTUSearch(configured int) mtuSearch {
	return mtuSearch{configured: configured, size: configured, nextAt: machine.Never, wait: mtuProbeWait, passed: -1}
}

// below returns the next rung below a size, frame.MinMTU if there is none. It
// skips a rung that is nearly the size.
func below(size int) int {
	for _, r := range rungs {
		if r <= size-size/8 {
			return r
		}
	}
	return frame.MinMTU
}

// above returns the next larger size to try.
func (m *mtuSearch) above() int {
	up := m.configured
	for _, r := range rungs {
		if r > m.size && r < up {
			up = r
		}
	}
	return up
}

// lower switches to a smaller size and schedules a probe for a larger one.
func (m *mtuSearch) lower(now time.Duration, size int) {
	if size < m.size {
		m.size, m.losses, m.probing = size, 0, false
		m.wait = mtuProbeWait
		m.nextAt = now + m.wait
	}
}

// lost records a lost datagram. If a full one that was sent later has arrived, a
// queue has overflowed, and the loss does not count.
func (m *mtuSearch) lost(now time.Duration, size int, sentAt time.Duration) {
	if size <= frame.MinMTU || size > m.size || sentAt <= m.passed {
		return
	}
	if m.losses == 0 || size < m.least {
		m.least = size
	}
	if m.losses++; m.losses >= blackHole {
		m.lower(now, below(m.least))
	}
}

// acked records an acknowledged datagram.
func (m *mtuSearch) acked(now time.Duration, size int, sentAt time.Duration) {
	if size > m.size { // late, but not too large
		m.size, m.nextAt = size, now+m.wait
		if size == m.configured {
			m.nextAt = machine.Never
		}
	}
	if size >= m.least {
		m.losses = 0
	}
	if size > m.size-m.size/8 {
		m.passed = max(m.passed, sentAt)
	}
}

func (m *mtuSearch) probeAt() time.Duration {
	if m.probing {
		return machine.Never
	}
	return m.nextAt
}

// probed records the result of a probe of the given size.
func (m *mtuSearch) probed(now time.Duration, size int, arrived bool) {
	if !m.probing {
		return
	}
	m.probing = false
	switch {
	case !arrived:
		m.wait = min(2*m.wait, mtuProbeMax)
		m.nextAt = now + m.wait
	case size > m.size:
		m.size, m.losses, m.wait, m.nextAt = size, 0, mtuProbeWait, now
	}
	if m.size == m.configured {
		m.nextAt = machine.Never
	}
}
