package link

import "github.com/dxpu-project/dxpu/frame"

// minChunk is the minimum size of a chunk at the end of a partly filled datagram.
const minChunk = 4 * frame.Unit

// writeLost appends lost fragments, oldest first.
func (l *Link) writeLost(p *path, d *datagram) {
	for {
		seq, ok := l.send.nextLost()
		if !ok {
			return
		}
		o := l.send.slot(seq)
		if o.hdrLost {
			// The header goes with the first lost units, which add merges with it.
			if d.space() < frame.HeaderPacketSize(int(o.headerLen), l.form) || !d.rec.add(seq, true, 0, 0, unitCount(int(o.payloadLen))) {
				return
			}
			l.writeHeader(p, d, seq, o)
			l.send.resent(o, true, 0)
			l.stats.Retransmissions++
			if !o.anyLost() {
				continue
			}
		}
		from, to := o.lost.firstRun()
		to = l.writeChunk(d, seq, o, from, to, frame.Unit)
		if to == from {
			return
		}
		l.send.resent(o, false, unitRange(from, to))
		l.stats.Retransmissions++
	}
}

// writeNew appends unsent TLPs, within the peer's credit.
func (l *Link) writeNew(p *path, d *datagram) {
	s := &l.send
	capacity := d.limit - frame.HeaderSize
	for s.cursor < s.end {
		o := s.slot(s.cursor)
		if o.cost > s.limit {
			return
		}
		total := unitCount(int(o.payloadLen))
		if !s.cursorHdr {
			if n := l.runLength(d); n > 1 {
				if !l.writeRun(p, d, n) {
					return
				}
				continue
			}
			// A TLP that fits a datagram is not split, because reassembly copies
			// it.
			head := frame.HeaderPacketSize(int(o.headerLen), l.form)
			whole := head
			if total > 0 {
				whole += frame.DataPacketSize(int(o.payloadLen), l.form)
			}
			if whole > d.space() && (whole <= capacity || d.space() < head+frame.DataPacketSize(minChunk, l.form)) {
				return
			}
			if !d.rec.add(s.cursor, true, 0, 0, total) {
				return
			}
			l.writeHeader(p, d, s.cursor, o)
			s.cursorHdr = true
		}
		if s.cursorUnit < total {
			s.cursorUnit = l.writeChunk(d, s.cursor, o, s.cursorUnit, total, minChunk)
			if s.cursorUnit < total {
				return
			}
		}
		s.cursor, s.cursorUnit, s.cursorHdr = s.cursor+1, 0, false
	}
}

func (l *Link) writeHeader(p *path, d *datagram, seq uint64, o *outgoing) {
	hp := &l.hp
	hp.Source, hp.Destination, hp.Path = l.cfg.Local, l.cfg.Remote, p.id
	hp.Seq, hp.PayloadLen = seq, int(o.payloadLen)
	hp.TLP, hp.Digest, hp.HeaderCRC = o.header[:o.headerLen], o.digest, o.headerCRC
	if l.form == frame.Checked {
		hp.TLPCRC = frame.TLPCRC(o.headerCRC, o.payloadCRC, int(o.payloadLen))
	}
	d.b = hp.Append(d.b, l.form)
	d.rec.eliciting = true
}

// writeChunk appends the units from up to to, as far as they fit, and returns the
// first unit that did not. It starts no chunk of less than least bytes, except the
// last one.
func (l *Link) writeChunk(d *datagram, seq uint64, o *outgoing, from, to, least int) int {
	start, end := from*frame.Unit, min(to*frame.Unit, int(o.payloadLen))
	if space := d.space() - frame.DataPacketSize(0, l.form); space < end-start {
		if space < least {
			return from
		}
		end = start + space/frame.Unit*frame.Unit
	}
	to = unitCount(end)
	if !d.rec.add(seq, false, from, to, unitCount(int(o.payloadLen))) {
		return from
	}
	payload := l.send.payload(o)
	dp := &l.dp
	dp.Seq, dp.Offset, dp.PayloadLen, dp.Chunk = seq, start, len(payload), payload[start:end]
	switch {
	case l.form == frame.Bare:
	case end-start == len(payload):
		dp.ChunkCRC = o.payloadCRC
	default:
		dp.ChunkCRC = frame.CRC(0, dp.Chunk)
	}
	d.b = dp.Append(d.b, l.form)
	d.rec.eliciting = true
	return to
}
