package link

import "time"

// Hold sets the number of bytes of delivered TLPs (payload and frame.TLPCost for
// each) that the owner still holds because it could not pass them on. They count
// against the peer's credit as if they had not been delivered: a slow owner slows
// its peer down instead of growing a queue. Call it whenever the number changes;
// calls are cheap. When a quarter of the window is free again, the link tells the
// peer.
func (l *Link) Hold(now time.Duration, bytes int) {
	r := &l.recv
	r.owned = uint64(max(bytes, 0))
	if l.state != Up || r.limit() < r.advertised+uint64(r.window/4) {
		return
	}
	l.tellLimit(now)
}

// tellLimit tells the peer the limit, as a probe, and again if that is lost: the peer may have
// nothing in flight that would ask for a newer limit.
func (l *Link) tellLimit(now time.Duration) {
	var by *path
	for _, p := range l.paths {
		if p.usable && p.received.any && (by == nil || l.spared(by) && !l.spared(p)) {
			by = p
		}
	}
	if by == nil {
		return
	}
	by.ackAt = min(by.ackAt, now)
	by.probes = max(by.probes, 1)
	by.telling = true
}
