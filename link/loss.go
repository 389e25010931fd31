package link

import (
	"slices"
	"time"

	"github.com/dxpu-project/dxpu/frame"
	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/tlp"
)

// receiveAck applies an acknowledgement.
func (l *Link) receiveAck(now time.Duration, a *frame.Ack) error {
	if int(a.Path) >= len(l.paths) {
		return ErrProtocol
	}
	p := l.paths[a.Path]
	if a.Ranges[0].Last >= p.sent.next {
		return ErrProtocol // acknowledges a number that was not sent
	}
	for _, r := range a.Ranges[:a.Count] {
		if p.omission.covers(r.First, r.Last) {
			l.broken(now)
			return ErrProtocol
		}
	}
	l.send.limit = max(l.send.limit, a.Limit)
	largest, sampled := a.Ranges[0].Last, false
	p.ecn.fresh, p.ecn.owed = 0, 0
	newest := !p.anyAcked || largest > p.largestAcked
	for i := range a.Ranges[:a.Count] {
		r := a.Ranges[i]
		for n := p.sent.undone(max(r.First, p.sent.oldest)); n <= r.Last; n = p.sent.undone(n + 1) {
			rec := p.sent.at(n)
			if n == largest && rec.eliciting {
				p.rtt.sample(min(now-rec.at, l.cfg.DeadInterval), min(a.Delay, l.cfg.AckDelay))
				l.liveness.slow(now, now-rec.at, l.cfg.DeadInterval)
				sampled = true
			}
			l.ackRecord(now, p, n, rec)
		}
	}
	l.keys.acked(p.id, largest)
	if newest {
		p.anyAcked, p.largestAcked = true, largest
		l.receiveMarks(now, p, a.Marked)
	}
	if sampled {
		p.probeTimeouts, p.probes = 0, 0
		if p.telling { // the answer is to an earlier datagram
			p.probes = 1
		}
		if !p.usable {
			p.usable = true
			l.failSilent(now, p)
		}
	}
	l.detectLoss(now, p)
	p.trim(now)
	l.setAhead()
	return nil
}

// ackRecord takes one datagram out of flight.
func (l *Link) ackRecord(now time.Duration, p *path, n uint64, rec *record) {
	rec.settle()
	if !rec.eliciting {
		return
	}
	if rec.mtuProbe > 0 {
		p.mtu.probed(now, int(rec.mtuProbe), true)
	}
	p.ecn.countECN(rec.ecn)
	size := int(rec.size)
	p.mtu.acked(now, size, rec.at)
	if p.anyAcked && n < p.largestAcked && p.rtt.sampled {
		p.reordering.late(now-rec.at-p.rtt.recent(), &p.rtt)
	}
	if rec.lost {
		l.stats.SpuriousLosses++
		p.congestion.spurious(rec)
	} else {
		p.eliciting--
		p.congestion.acked(size, p.mtu.size, rec.at)
	}
	for i := range rec.runs[:rec.nruns] {
		l.send.acked(&rec.runs[i])
	}
}

// detectLoss declares datagrams lost that were sent too many datagrams or too long
// before an acknowledged one (RFC 9002 section 6.1, RFC 8985).
func (l *Link) detectLoss(now time.Duration, p *path) {
	p.lossAt = machine.Never
	if !p.anyAcked {
		return
	}
	age, distance := p.reordering.age(&p.rtt), p.reordering.distance()
	for p.scan = max(p.scan, p.sent.oldest); p.scan < p.largestAcked; p.scan++ {
		rec := p.sent.at(p.scan)
		if rec.done || !rec.eliciting || rec.lost && !rec.presumed {
			continue
		}
		if p.largestAcked-p.scan < distance && rec.at+age > now {
			p.lossAt = rec.at + age
			return
		}
		if !rec.lost {
			l.loseRecord(now, p, rec)
		}
		rec.presumed = false
		if rec.mtuProbe == 0 && p.congestion.lost(now, p.mtu.size, rec) {
			p.reordering.cut()
		}
	}
}

// loseRecord declares a datagram lost and marks its fragments for retransmission.
func (l *Link) loseRecord(now time.Duration, p *path, rec *record) {
	rec.lost = true
	p.eliciting--
	p.congestion.inFlight -= int(rec.size)
	l.stats.LostDatagrams++
	if rec.mtuProbe > 0 {
		p.mtu.probed(now, int(rec.mtuProbe), false)
	} else {
		p.mtu.lost(now, int(rec.size), rec.at)
	}
	for i := range rec.runs[:rec.nruns] {
		l.send.lose(&rec.runs[i])
	}
	if rec.limit {
		l.tellLimit(now)
	}
}

// loseOldest sends the oldest datagrams in flight again, at most n. That they are
// lost is only presumed.
func (l *Link) loseOldest(now time.Duration, p *path, n int) {
	for i := max(p.scan, p.sent.oldest); i < p.sent.next && n > 0; i++ {
		if rec := p.sent.at(i); rec.eliciting && !rec.done && !rec.lost {
			l.loseRecord(now, p, rec)
			rec.presumed = true
			n--
		}
	}
}

// forgetOldest makes room for one more record. That the oldest datagram is lost is only
// presumed, and nothing shows later that it was not.
func (l *Link) forgetOldest(now time.Duration, p *path) {
	for p.sent.full() {
		if rec := p.sent.at(p.sent.oldest); rec.eliciting && !rec.done && !rec.lost {
			l.loseRecord(now, p, rec)
		}
		p.sent.oldest++
	}
}

// expire handles the expired timers.
func (l *Link) expire(now time.Duration) {
	if now-l.liveness.lastRan >= quiet {
		l.liveness.late(now, l.Wake(), l.cfg.DeadInterval)
	}
	l.liveness.lastRan = now
	if l.liveness.dead(now, l.cfg.DeadInterval) {
		l.beginClose(now, PeerLost, CodeSilence) // the other direction may work
		return
	}
	for _, p := range l.paths {
		if now >= p.timeout() {
			if p.lossAt != machine.Never {
				l.detectLoss(now, p)
			} else {
				l.probeTimeout(now, p)
			}
		}
		if now >= p.pingAt() && p.probes == 0 {
			p.probes = 1
			p.nextProbe = now + probeInterval
			l.shrink()
		}
	}
}

// probeTimeout handles a missing acknowledgement (RFC 9002 section 6.2): it
// retransmits the contents of two datagrams, regardless of the window, or by another path
// within its window.
func (l *Link) probeTimeout(now time.Duration, p *path) {
	l.stats.ProbeTimeouts++
	p.probeTimeouts++
	if !p.usable {
		l.loseOldest(now, p, p.eliciting) // pings; the next one is scheduled
		return
	}
	if p.probeTimeouts >= failTimeouts {
		p.ecn.fail(now) // the way has perhaps changed
		p.mtu.lower(now, below(p.mtu.size))
		p.congestion.collapse(p.mtu.size)
		if l.otherUsable(p) {
			l.failPath(now, p)
			return
		}
	}
	l.loseOldest(now, p, 2)
	p.probes = 2
}

func (l *Link) otherUsable(p *path) bool {
	return slices.ContainsFunc(l.paths, func(q *path) bool { return q != p && q.usable })
}

// failPath moves everything in flight on p to the other paths.
func (l *Link) failPath(now time.Duration, p *path) {
	p.usable = false
	p.failures++
	p.probes, p.probeTimeouts = 0, 0
	p.nextProbe = now + probeInterval
	l.loseOldest(now, p, p.eliciting)
	if p.telling { // no probe has left since
		p.telling = false
		l.tellLimit(now)
	}
}

// failSilent fails the paths that have long been silent, now that a path works
// again. Before, there was no path to replace them.
func (l *Link) failSilent(now time.Duration, works *path) {
	for _, p := range l.paths {
		if p != works && p.usable && p.probeTimeouts >= failTimeouts {
			l.failPath(now, p)
		}
	}
}

// shrink frees memory on an idle link.
func (l *Link) shrink() {
	l.send.shrink()
	l.recv.shrink()
	// The scratch space aliases buffers of the link and of the caller.
	l.out, l.hp, l.dp = tlp.Packet{}, frame.HeaderPacket{}, frame.DataPacket{}
	for _, p := range l.paths {
		p.sent.shrink()
	}
}
