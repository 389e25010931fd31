package vfioserver

import "time"

const (
	// backlogTime is the time for which requests may wait for the server: a read of the
	// host waits behind them.
	backlogTime = 20 * time.Millisecond
	// leastBacklog is the smallest limit of the backlog, in bytes of cost: a run of
	// writes of 128 bytes that is worth the wake-up of the owner.
	leastBacklog = 32 << 10
	// firstBacklog is the limit until the rate is known: 20 ms of 13 MB/s.
	firstBacklog = 256 << 10
	// maxBacklog is the limit for any rate, and that for a server that waits for an
	// answer to its own read: it may not read its socket until then, and the answer comes
	// behind all writes on their way, which are up to a window and a send buffer of the
	// link.
	maxBacklog = 8 << 20
	// rateTime is the shortest time for which a rate is measured: many times what the
	// worker and the owner take to wake up.
	rateTime = 5 * time.Millisecond
)

// backlog bounds the requests that wait for a server by the time that the server takes
// for them. The zero value is that of a server whose rate is not known.
type backlog struct {
	limit     int // 0: not known
	measuring bool
	since     time.Duration // when the measurement began
	done      uint64        // cost of the requests that the server had taken then
}

// note takes the cost of the requests that wait, and of those that the server has
// taken so far.
func (b *backlog) note(now time.Duration, waiting int, done uint64) {
	switch took := now - b.since; {
	case waiting == 0: // the server waits: its rate does not show
		b.measuring = false
	case !b.measuring:
		b.measuring, b.since, b.done = true, now, done
	case took >= rateTime:
		rate := float64(done-b.done) / took.Seconds()
		b.limit = int(min(max(rate*backlogTime.Seconds(), leastBacklog), maxBacklog))
		b.since, b.done = now, done
	}
}

// most returns the limit of the backlog. asking tells that the server waits for an
// answer of the host.
func (b *backlog) most(asking bool) int {
	switch {
	case asking:
		return maxBacklog
	case b.limit == 0:
		return firstBacklog
	}
	return b.limit
}
