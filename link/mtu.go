package link

import (
	"time"

	"github.com/dxpu-project/dxpu/frame"
	"github.com/dxpu-project/dxpu/machine"
)

// rungs are the datagram sizes that a path falls back to: Ethernet with jumbo
// frames, Ethernet, and the least, each less the headers of IPv6 and UDP.
var rungs = [...]int{9000 - 48, 1500 - 48, frame.MinMTU}

// mtuSearch finds the datagram size that a path carries, in the manner of RFC
// 8899 but downwards: the configured size is used until datagrams stop
// arriving, then the next rung below them, and from there pings try the rung
// above.
type mtuSearch struct {
	configured int
	size       int // in use

	losses  int           // in a row, with nothing as large arriving
	least   int           // the smallest of them
	passed  time.Duration // when the last full-size datagram that arrived was sent, or -1
	probing bool          // a probe is in flight
	nextAt  time.Duration // of the next probe, Never when at the top
	wait    time.Duration // between probes, doubling
}

const (
	// blackHole losses in a row mean that the size does not fit. A misjudgement
	// is corrected by the next probe.
	blackHole    = 5
	mtuProbeWait = 20 * time.Millisecond
	mtuProbeMax  = 30 * time.Second
)

func newMTUSearch(configured int) mtuSearch {
	return mtuSearch{configured: configured, size: configured, nextAt: machine.Never, wait: mtuProbeWait, passed: -1}
}

// below returns the next rung below a size, frame.MinMTU if there is none. A
// rung that is nearly the size would tell nothing new.
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

// lower uses a smaller size, and probes for a larger one a little later.
func (m *mtuSearch) lower(now time.Duration, size int) {
	if size < m.size {
		m.size, m.losses, m.probing = size, 0, false
		m.wait = mtuProbeWait
		m.nextAt = now + m.wait
	}
}

// lost notes a lost datagram. It says nothing about the size when a full one
// that was sent later has arrived: then a queue has overflowed.
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

// acked notes an acknowledged datagram.
func (m *mtuSearch) acked(now time.Duration, size int, sentAt time.Duration) {
	if size > m.size { // it was late, not too large
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

// probed tells how a probe of the given size went.
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
