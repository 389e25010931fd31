package link

import (
	"time"

	"github.com/dxpu-project/dxpu/frame"
)

// Explicit congestion notification (RFC 3168): a switch marks the datagrams of senders that
// understand it (ECT) when a queue begins, and need not drop them when it is full. The
// receiver counts the marks (CE) and tells the count with each acknowledgement, as in QUIC
// (RFC 9000 section 13.4); the sender cuts its window as after a loss, but by less.

// ecn is what a path knows about the way of its datagrams through the network. Some networks
// drop those that may be marked, and some mark all. So only the first ones may be marked, until
// one of them has arrived without a mark (RFC 9000 section 13.4.2). Perhaps a full queue was
// the reason, so the path tries again, less and less often.
type ecn struct {
	off    bool  // the peer, or the network, hides marks
	tried  int   // datagrams that may have been marked, up to tryMarks
	proven bool  // one of them has arrived without a mark
	seen   uint8 // the count of marks that the peer has told last
	fresh  int   // of those, the number that the present acknowledgement is the first one for
	owed   int   // marks that it has to tell, at least: this end has set them
	// testAt is when this end sets the next one; 0: the path has not used its window yet.
	testAt time.Duration
	// After tryMarks one more is tried at next, and then after pause.
	next, pause time.Duration
}

const (
	// tryMarks is the number of datagrams that RFC 9000 section 13.4.2 recommends.
	tryMarks = 10
	// The pauses between later tries: one that is lost costs a cut.
	firstTryPause, lastTryPause = 100 * time.Millisecond, 64 * time.Second
)

// try returns the ECN field of the datagram that is being sent. A probe must arrive, and
// an acknowledgement alone is not acknowledged: they try nothing.
func (e *ecn) try(now time.Duration, data bool) ECN {
	switch {
	case e.off:
		return NotECT
	case e.proven:
		return ECT
	case !data || e.tried == tryMarks && now < e.next:
		return NotECT
	}
	e.tried = min(e.tried+1, tryMarks)
	if e.tried == tryMarks {
		e.pause = min(max(2*e.pause, firstTryPause), lastTryPause)
		e.next = now + e.pause
	}
	return ECT
}

// fail says that the way of the datagrams has perhaps changed.
func (e *ecn) fail(now time.Duration) {
	if e.proven {
		e.proven, e.tried = false, tryMarks
		e.pause = firstTryPause
		e.next = now + e.pause
	}
}

// Marked says that the datagram of the next Receive carries the mark of a congested network
// (CE, RFC 3168). It counts only if the datagram is the peer's.
func (l *Link) Marked() { l.marked = true }

// ECN is the ECN field of an IP header (RFC 3168 section 5).
type ECN uint8

// Values of the field.
const (
	NotECT ECN = 0 // the network may not mark the datagram
	ECT    ECN = 2 // it may, ECT(0): the peer tells of marks, and this end heeds them
	CE     ECN = 3 // the datagram has a mark
)

// ECN returns the field for the datagram that Transmit has returned last.
func (l *Link) ECN() ECN { return l.ecn }

// ecnOf returns the field for the datagram that is being sent. A peer that hides marks keeps a
// queue long, and its neighbours heed the marks for it. So a path that uses its window sets one
// itself now and then, as it leaves out numbers (see omission), and the acknowledgement must
// tell of it.
func (l *Link) ecnOf(now time.Duration, p *path, d *datagram) ECN {
	if !l.cfg.ECN || l.spoken < frame.Version5 || p.congestion.fixed {
		return NotECT
	}
	e, data := &p.ecn, d.rec.eliciting && !d.probe
	field := e.try(now, data)
	if field == NotECT || !e.proven || !data || !p.congestion.limits() {
		return field
	}
	switch {
	case e.testAt == 0:
		e.testAt = now + firstOmission/2 + time.Duration(l.chance.Uint64()%uint64(firstOmission))
	case now >= e.testAt:
		e.testAt = now + omissionEvery/2 + time.Duration(l.chance.Uint64()%uint64(omissionEvery))
		return CE
	}
	return field
}

// countECN counts the acknowledgement of a datagram that bore the field.
func (e *ecn) countECN(field ECN) {
	switch field {
	case ECT:
		e.fresh++
	case CE:
		e.owed++
	}
}

// receiveMarks applies the count of marks in the acknowledgement of the largest number so
// far. One that is modulo 256 the same hides no more than one cut.
func (l *Link) receiveMarks(now time.Duration, p *path, count uint8) {
	e := &p.ecn
	marks := int(count - e.seen)
	switch {
	case marks < e.owed:
		e.off, e.proven = true, false
		l.stats.HiddenMarks++
		return
	case marks < e.owed+e.fresh:
		e.proven = true
	}
	if marks == e.owed {
		e.seen = count
		return
	}
	if p.largestAcked < p.sent.oldest { // the next one tells, too
		return
	}
	e.seen = count
	if p.congestion.marked(now, p.mtu.size, p.sent.at(p.largestAcked).at) {
		l.stats.MarkCuts++
	}
}
