package link

import (
	"slices"
	"time"

	"github.com/dxpu-project/dxpu/frame"
	"github.com/dxpu-project/dxpu/machine"
)

// maxPadding limits padding to 1/maxPadding of a datagram.
const maxPadding = 8

// Transmit writes the next datagram into buf and returns its size and path, or
// size 0 if there is nothing to send now. Call it after Send, after Receive and at
// Wake, in a loop until it returns 0. buf should hold the largest MTU of the paths.
// With a shorter one Transmit makes shorter datagrams, with less than frame.MinMTU
// none.
func (l *Link) Transmit(now time.Duration, buf []byte) (n int, path uint8) {
	l.ecn = NotECT
	switch {
	case l.state == Down || len(buf) < frame.MinMTU:
		return 0, 0
	case l.state == Closing:
		return l.transmitClose(now, buf)
	}
	if n, path := l.transmitHandshake(now, buf); n > 0 || l.state != Up {
		return n, path
	}
	if l.expire(now); l.state == Closing {
		return l.transmitClose(now, buf)
	}
	for _, p := range l.paths {
		if p.probes > 0 {
			p.probes--
			return l.write(now, p, buf, true), p.id
		}
		if p.usable && now >= p.mtu.probeAt() {
			if n := l.writeMTUProbe(now, p, buf); n > 0 {
				return n, p.id
			}
		}
	}
	if l.hasData() {
		if p := l.pick(now); p != nil {
			return l.write(now, p, buf, false), p.id
		}
	} else {
		for _, p := range l.paths {
			p.pacer.release()
		}
	}
	for _, p := range l.paths {
		if now >= p.ackAt {
			p = l.ackPath(p)
			return l.write(now, p, buf, false), p.id
		}
	}
	return 0, 0
}

// Lent is a piece of a datagram that lies in the send buffer of a link, behind the first
// At bytes of the other pieces.
type Lent struct {
	At    int
	Bytes []byte
}

// TransmitLent is Transmit for an owner that can send a datagram from several places:
// without a cipher, long payloads stay in the send buffer. n is the size of the datagram.
// The pieces that are not in buf are appended to pieces, in their order, and are valid until
// the next call of a method other than TransmitLent.
func (l *Link) TransmitLent(now time.Duration, buf []byte, pieces []Lent) (n int, path uint8, _ []Lent) {
	l.lending, l.lent = l.state == Up && !l.keys.send.cur.seal.sealed(), pieces
	n, path = l.Transmit(now, buf)
	pieces, l.lending, l.lent = l.lent, false, nil
	return n, path, pieces
}

// leastLent is the size from which on payloads are lent: a part costs more than the copy of
// a few hundred bytes.
const leastLent = 2048

// hasData reports whether there is a fragment that the peer's credit permits to
// send.
func (l *Link) hasData() bool {
	s := &l.send
	return s.lostCount > 0 || s.cursor < s.end && s.slot(s.cursor).cost <= s.limit
}

// pick selects the path for the next datagram of data: of those that take one now,
// the one with the earliest arrival. A path that owes an acknowledgement carries data only
// if all others do too.
func (l *Link) pick(now time.Duration) *path {
	var best *path
	for _, p := range l.paths {
		if p.usable && p.open(now) && !l.spared(p) && (best == nil || p.score() < best.score()) {
			best = p
		}
	}
	return best
}

// spared reports whether a path has let a probe timeout pass while another one answers. A read
// of a register would otherwise wait for failTimeouts of them, in each direction.
func (l *Link) spared(p *path) bool {
	return p.probeTimeouts > 0 && slices.ContainsFunc(l.paths, func(q *path) bool { return q.usable && q.probeTimeouts == 0 })
}

// ackPath selects the path for a datagram of acknowledgements of p: p itself, if
// it is usable or no other path is known to work.
func (l *Link) ackPath(p *path) *path {
	if p.usable {
		return p
	}
	for _, q := range l.paths {
		if q.usable && q.probeTimeouts == 0 {
			return q
		}
	}
	return p
}

// datagram is a datagram under construction.
type datagram struct {
	b     []byte // written so far
	lent  int    // bytes that lie in the send buffer
	limit int    // of size, before the seal
	rec   *record
	reads int  // in its runs
	probe bool // it looks for an answer, or for the MTU
}

func (d *datagram) size() int { return len(d.b) + d.lent }

func (d *datagram) space() int { return d.limit - d.size() }

// begin writes the header of a datagram of at most size bytes.
func (l *Link) begin(now time.Duration, p *path, buf []byte, size int) (d datagram, ok bool) {
	seal := &l.keys.send.cur.seal
	d.limit = min(len(buf), size) - seal.overhead()
	if d.limit < frame.HeaderSize+frame.AckSize(1, l.form)+frame.PingSize(l.form) {
		return d, false
	}
	h := frame.Header{
		Version: l.version, Type: frame.TypeTraffic, KeyPhase: l.keys.send.number, Path: p.id,
		Binding: l.cfg.Binding, Epoch: l.cfg.Epoch, Number: p.sent.next,
	}
	d.b = h.Append(buf[:0])
	p.trim(now) // datagrams with only acknowledgements are never acknowledged
	l.forgetOldest(now, p)
	d.rec = p.sent.push()
	d.rec.at = now
	return d, true
}

// finish seals the datagram and counts it.
func (l *Link) finish(now time.Duration, p *path, d *datagram) int {
	n := d.lent + len(l.keys.send.cur.close(d.b, frame.HeaderSize, d.lent, p.id, p.sent.next-1))
	l.ecn = l.ecnOf(now, p, d)
	d.rec.ecn = l.ecn
	if d.rec.eliciting {
		d.rec.size = int32(n)
		p.congestion.sending(now, n, p.rtt.probeTimeout(p.cfg.AckDelay))
		p.paced(now, n)
		p.eliciting++
		p.lastEliciting = now
		l.liveness.asked(now)
	}
	l.keys.sent++
	if l.keys.sent >= l.cfg.RekeyDatagrams {
		l.Rekey(now)
	}
	l.stats.DatagramsSent++
	l.stats.WireBytesSent += uint64(n)
	if d.rec.eliciting {
		l.omit(now, p)
	}
	return n
}

// write builds a datagram of acknowledgements, lost fragments and new ones. A
// probe is sent in any case and asks for an answer.
func (l *Link) write(now time.Duration, p *path, buf []byte, probe bool) int {
	d, ok := l.begin(now, p, buf, p.mtu.size)
	if !ok {
		return 0
	}
	d.probe = probe
	if probe && p.telling { // another path may have taken the acknowledgement with it, and lost it
		p.ackAt = min(p.ackAt, now)
	}
	switch {
	case p.usable || !l.otherUsable(p):
		l.writeAcks(now, &d)
	case l.ackPath(p) == p:
		// The usable paths are silent. This one may work now, so the peer must
		// receive its acknowledgement by this one.
		l.writeAck(now, &d, p)
	}
	if p.usable && (probe || p.open(now)) && !l.spared(p) {
		l.writeLost(p, &d)
		l.writeNew(p, &d)
		p.level(&d, l.hasData())
	}
	if probe {
		d.rec.limit, p.telling = p.telling, false
	}
	if probe && !d.rec.eliciting && d.space() >= frame.PingSize(l.form) {
		d.b = frame.AppendPing(d.b, l.form)
		d.rec.eliciting = true
	}
	if len(d.b) == frame.HeaderSize {
		p.sent.next-- // nothing fitted: the number is not used
		return 0
	}
	return l.finish(now, p, &d)
}

// level pads a datagram to the size of the preceding ones if it is a little
// shorter and more follow. Datagrams of equal size are sent and received together
// (UDP segmentation and receive offload), which saves more than the padding costs.
// The split of a TLP makes some datagrams shorter by less than a unit.
func (p *path) level(d *datagram, more bool) {
	switch {
	case !more:
		p.runSize = 0 // the last of a batch may be shorter
		return
	case !d.rec.eliciting:
		return // only acknowledgements; a probe needs room for its ping
	}
	if n := p.runSize - d.size(); n > 0 && n <= p.runSize/maxPadding && p.runSize <= d.limit {
		size := len(d.b)
		d.b = d.b[:size+n]
		clear(d.b[size:]) // frame.KindPadding
	}
	p.runSize = d.size()
}

// writeAcks appends an acknowledgement for every path with one due.
func (l *Link) writeAcks(now time.Duration, d *datagram) {
	for _, p := range l.paths {
		if !l.writeAck(now, d, p) {
			return
		}
	}
}

// writeAck appends the acknowledgement of a path if one is due. It returns false
// if it did not fit.
func (l *Link) writeAck(now time.Duration, d *datagram, p *path) bool {
	if p.ackAt == machine.Never {
		return true
	}
	a, r := &l.ack, &p.received
	if d.space() < frame.AckSize(1, l.form) {
		return false
	}
	fit := (d.space()-frame.AckSize(1, l.form))/(frame.AckSize(2, l.form)-frame.AckSize(1, l.form)) + 1
	l.recv.advertised = max(l.recv.advertised, l.recv.limit())
	a.Path, a.Delay, a.Limit, a.Marked = p.id, now-p.largestAt, l.recv.advertised, 0
	if l.spoken >= frame.Version5 {
		a.Marked = p.marked
	}
	a.Count = min(r.count, fit)
	copy(a.Ranges[:a.Count], r.ranges[:])
	l.keys.acknowledges(p.id, r.ranges[0].Last)
	d.b = a.Append(d.b, l.form)
	p.ackAt, p.ackCount, p.ackBytes = machine.Never, 0, 0
	return true
}

// writeMTUProbe builds a datagram of the next larger size with a ping.
func (l *Link) writeMTUProbe(now time.Duration, p *path, buf []byte) int {
	size := p.mtu.above()
	p.mtu.probing = true
	if len(buf) < size { // the caller cannot send this size
		p.mtu.probed(now, size, false)
		return 0
	}
	d, ok := l.begin(now, p, buf, size)
	if !ok {
		return 0
	}
	d.b = frame.AppendPing(d.b, l.form)
	for len(d.b) < d.limit {
		d.b = append(d.b, byte(frame.KindPadding))
	}
	d.rec.eliciting, d.rec.mtuProbe, d.probe = true, uint16(size), true
	return l.finish(now, p, &d)
}

// transmitClose sends the close datagrams and then takes the link down.
func (l *Link) transmitClose(now time.Duration, buf []byte) (int, uint8) {
	if now < l.closing.next {
		return 0, 0
	}
	if l.closing.left == 0 {
		l.down(l.reason, l.code)
		return 0, 0
	}
	l.closing.left--
	p := l.paths[l.closing.left%len(l.paths)]
	// All paths in turn, the second round after a pause.
	if l.closing.left%len(l.paths) == 0 {
		l.closing.next = now + closeSpacing
	}
	d, ok := l.begin(now, p, buf, p.mtu.size)
	if !ok {
		return 0, 0
	}
	d.b = frame.AppendClose(d.b, l.code, l.form)
	return l.finish(now, p, &d), p.id
}
