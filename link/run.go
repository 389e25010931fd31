package link

import (
	"encoding/binary"
	"time"

	"github.com/dxpu-project/dxpu/frame"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// A run of memory writes, completions or read requests travels as one run packet, if it
// fits a datagram. Only the first transmission makes runs: the TLPs of a lost datagram
// are sent again one by one.

const (
	// page is the size that no memory request crosses (section 2.2.7 of the PCI
	// Express Base Specification).
	page = 4096
	// maxRunReads bounds the read requests of the runs of a datagram, which take next to
	// no bytes in it. The largest datagram has room for 1364 in packets of their own.
	maxRunReads = 1024
)

// runKind is what the TLPs of a run are.
type runKind uint8

const (
	runNone        runKind = iota // a TLP that no run contains
	runWrites                     // memory writes at consecutive addresses
	runReads                      // memory reads at consecutive addresses, with consecutive tags
	runCompletions                // completions with data and consecutive tags
)

// kindOf returns the kind of the run that may contain a TLP with the given payload. The
// TLP has whole double words, and its size keeps a request from crossing a page wherever
// the run ends.
func kindOf(p *tlp.Packet, payload int) runKind {
	if p.HasDigest || p.EP || p.TH || p.LN || p.PH != 0 || len(p.Prefix) > 0 {
		return runNone
	}
	size := int(p.Length) * pcie.DW
	requests := size >= frame.MinRunPayload && page%size == 0 && p.Addr%uint64(size) == 0 && p.FirstBE == 0xf && p.LastBE == 0xf
	switch {
	case p.Type == tlp.MWr && payload == size && requests:
		return runWrites
	case p.Type == tlp.MRd && payload == 0 && requests:
		return runReads
	case p.Type == tlp.CplD && payload == size && payload >= frame.MinRunPayload && p.Status == pcie.SuccessfulCompletion && !p.BCM:
		return runCompletions
	}
	return runNone
}

// allowed reports whether a session of a version has runs of a kind.
func (k runKind) allowed(version uint8) bool {
	switch k {
	case runWrites:
		return version >= frame.Version3
	case runReads, runCompletions:
		return version >= frame.Version4
	}
	return false
}

// addressed reports whether the TLPs of the run have consecutive addresses.
func (k runKind) addressed() bool { return k == runWrites || k == runReads }

// runHeader is the header of a TLP of a run, zero behind its length.
type runHeader [tlp.Header4DW]byte

// tagOffset returns where the lower eight bits of the tag are in the header.
func (k runKind) tagOffset() int {
	if k == runReads {
		return 6
	}
	return 10 // of a completion
}

// advance turns the header of a TLP of a run, of n bytes, into that of the next one,
// where size is the size of each in bytes. It reports whether there can be one: neither
// the address nor the lower bits of the tag overflow.
func (h *runHeader) advance(k runKind, n, size int) bool {
	if k.addressed() {
		if n == tlp.Header3DW {
			addr := binary.BigEndian.Uint32(h[8:]) + uint32(size)
			if binary.BigEndian.PutUint32(h[8:], addr); addr < uint32(size) {
				return false
			}
		} else {
			addr := binary.BigEndian.Uint64(h[8:]) + uint64(size)
			if binary.BigEndian.PutUint64(h[8:], addr); addr < uint64(size) {
				return false
			}
		}
	}
	if k == runWrites {
		return true
	}
	h[k.tagOffset()]++
	return h[k.tagOffset()] != 0
}

// noteRun notes whether the TLP that push appends may be part of a run, and continues
// the one before.
func (s *sendBuffer) noteRun(o *outgoing, p *tlp.Packet) {
	if o.kind = kindOf(p, len(p.Data)); o.kind == runNone {
		return
	}
	header := runHeader(o.header[:])
	if s.end != s.base {
		before := s.slot(s.end - 1)
		o.follows = before.kind == o.kind && before.headerLen == o.headerLen && before.payloadLen == o.payloadLen && header == s.next
	}
	s.next = header
	if !s.next.advance(o.kind, int(o.headerLen), int(p.Length)*pcie.DW) {
		s.next = runHeader{} // which no TLP has
	}
}

// runLength returns how many unsent TLPs from the cursor on a run packet in the space
// of d takes.
func (l *Link) runLength(d *datagram) int {
	s := &l.send
	o := s.slot(s.cursor)
	if !o.kind.allowed(l.spoken) {
		return 0
	}
	most := frame.MaxRun
	fixed := frame.RunPacketSize(int(o.headerLen), 0, 0, l.form)
	if space := d.space() - fixed; o.kind == runReads {
		most = min(most, maxRunReads-d.reads)
		if space < 0 {
			return 0
		}
	} else {
		most = min(most, space/(frame.RunPacketSize(int(o.headerLen), 1, int(o.payloadLen), l.form)-fixed))
	}
	n := 1
	for seq := s.cursor + 1; n < most && seq < s.end; seq++ {
		if o := s.slot(seq); !o.follows || o.cost > s.limit {
			break
		}
		n++
	}
	return min(n, most)
}

// writeRun appends count TLPs from the cursor on as one run packet. It returns false
// if the record of the datagram is full.
func (l *Link) writeRun(p *path, d *datagram, count int) bool {
	s := &l.send
	o := s.slot(s.cursor)
	if !d.rec.addWhole(s.cursor, s.cursor+uint64(count-1), unitCount(int(o.payloadLen))) {
		return false
	}
	rp := &l.rp
	rp.Source, rp.Destination, rp.Path = l.cfg.Local, l.cfg.Remote, p.id
	rp.Seq, rp.Count, rp.PayloadLen = s.cursor, count, int(o.payloadLen)
	rp.TLP, rp.HeaderCRC, rp.CRCs = o.header[:o.headerLen], o.headerCRC, l.crcs[:0]
	if l.form == frame.Checked && o.payloadLen > 0 {
		for i := range count {
			rp.CRCs = binary.BigEndian.AppendUint32(rp.CRCs, s.slot(s.cursor+uint64(i)).payloadCRC)
		}
		l.crcs = rp.CRCs
	}
	if o.kind == runReads {
		d.reads += count
	}
	d.b = rp.Append(d.b, l.form)
	for range count {
		if o := s.slot(s.cursor); o.payloadLen > 0 {
			d.b = append(d.b, s.payload(o)...)
		}
		s.cursor++
	}
	d.rec.eliciting = true
	return true
}

// addWhole records the TLPs first to last, of total units each.
func (r *record) addWhole(first, last uint64, total int) bool {
	if r.nruns > 0 {
		if before := &r.runs[r.nruns-1]; first == before.last+1 && before.ends {
			before.last, before.to = last, uint8(total)
			return true
		}
	}
	if r.nruns == maxRuns {
		return false
	}
	r.runs[r.nruns] = run{first: first, last: last, to: uint8(total), hdr: true, ends: true}
	r.nruns++
	return true
}

// Run is a run of TLPs of equal size that arrived together: consecutive memory writes,
// completions with data, or read requests. None of them is poisoned or has a digest, a
// prefix or disabled bytes.
type Run struct {
	// First is the first TLP.
	First tlp.Packet
	// Count is the number of TLPs, at least 2.
	Count int
	// Data holds the payloads of all TLPs, one after another: those of memory writes are
	// for consecutive addresses.
	Data []byte

	kind runKind
}

// Writes reports whether the TLPs are memory writes.
func (r *Run) Writes() bool { return r.kind == runWrites }

// TLP stores TLP i of the run in p. Its Data aliases the run's.
func (r *Run) TLP(i int, p *tlp.Packet) {
	*p = r.First
	if r.kind.addressed() {
		p.Addr += uint64(i * r.size())
	}
	if r.kind != runWrites {
		p.Tag += pcie.Tag(i)
	}
	if size := len(r.First.Data); size > 0 {
		p.Data = r.Data[i*size : (i+1)*size : (i+1)*size]
	}
}

// size returns how many bytes each TLP writes, reads or returns.
func (r *Run) size() int { return int(r.First.Length) * pcie.DW }

// decode takes a run from its packet. It returns false if the TLPs are not those of a
// run that a session of the version has, or if a later one would have another header.
func (r *Run) decode(p *frame.RunPacket, version uint8) bool {
	first := &r.First
	n, err := first.DecodeHeader(p.TLP)
	if err != nil || n != len(p.TLP) || first.PayloadLen() != p.PayloadLen {
		return false
	}
	if r.kind = kindOf(first, p.PayloadLen); !r.kind.allowed(version) {
		return false
	}
	if r.kind.addressed() {
		last := first.Addr + uint64(p.Count*r.size()) - 1
		if last < first.Addr || !first.DW4 && last>>32 != 0 {
			return false
		}
	}
	if r.kind != runWrites && int(first.Tag&0xff)+p.Count-1 > 0xff {
		return false
	}
	if first.Data = nil; p.PayloadLen > 0 {
		first.Data = p.Payload[:p.PayloadLen:p.PayloadLen]
	}
	r.Count, r.Data = p.Count, p.Payload
	return true
}

// receiveRun processes a run packet. A run that is next in order goes to the owner as
// it is, if it takes runs.
func (l *Link) receiveRun(now time.Duration, body []byte, to owner) (n int, err error) {
	rp := &l.rp
	if n, err = rp.Parse(body, l.form); err != nil {
		return 0, parseError(err)
	}
	r := &l.run
	switch {
	case !runWrites.allowed(l.spoken):
		return 0, ErrMalformed
	case rp.Source != l.cfg.Remote || rp.Destination != l.cfg.Local:
		return 0, ErrRoute
	case !r.decode(rp, l.spoken):
		l.broken(now)
		return 0, ErrProtocol
	}
	if r.kind == runReads {
		if l.reads += rp.Count; l.reads > maxRunReads {
			return 0, ErrMalformed
		}
	}
	if to.run != nil && rp.Seq == l.recv.next && l.recv.count == 0 {
		if !l.recv.permits(rp.Count, rp.PayloadLen) {
			return 0, ErrCredit
		}
		l.stats.TLPsReceived += uint64(rp.Count)
		l.stats.BytesReceived += uint64(len(rp.Payload))
		to.run(r)
		l.recv.advanceRun(rp.Count, rp.PayloadLen)
		return n, nil
	}
	var header runHeader
	copy(header[:], rp.TLP)
	for i := range rp.Count {
		if err := l.receiveOfRun(now, i, header[:len(rp.TLP)], to); err != nil || l.state != Up {
			return n, err
		}
		header.advance(r.kind, len(rp.TLP), r.size())
	}
	return n, nil
}

// receiveOfRun processes TLP i of the run packet l.rp.
func (l *Link) receiveOfRun(now time.Duration, i int, header []byte, to owner) error {
	rp, r := &l.rp, &l.recv
	seq := rp.Seq + uint64(i)
	var payload []byte // nil for a read
	if rp.PayloadLen > 0 {
		payload = rp.Payload[i*rp.PayloadLen : (i+1)*rp.PayloadLen]
	}
	if seq < r.next {
		l.stats.Duplicates++
		return nil
	}
	var headerCRC, payloadCRC, tlpCRC uint32
	if l.form == frame.Checked {
		headerCRC = frame.CRC(0, header)
		if len(payload) > 0 {
			payloadCRC = binary.BigEndian.Uint32(rp.CRCs[i*frame.CRCSize:])
		}
		tlpCRC = frame.TLPCRC(headerCRC, payloadCRC, len(payload))
	}
	if seq == r.next && r.peek(seq) == nil {
		if err := l.deliver(now, header, false, headerCRC, tlpCRC, payload, payloadCRC, to); err != nil {
			return err
		}
		return l.deliverHeld(now, to)
	}
	in, err := r.take(seq, len(payload))
	if err != nil {
		return err
	}
	if in.complete() {
		l.stats.Duplicates++
		return nil
	}
	in.hdr, in.digest, in.headerLen = true, false, uint8(len(header))
	copy(in.header[:], header)
	in.headerCRC, in.tlpCRC, in.got = headerCRC, tlpCRC, unitRange(0, unitCount(len(payload)))
	copy(in.payload, payload)
	return l.deliverHeld(now, to)
}

// permits reports whether the credit of the peer covers TLPs next to next+count-1. Those
// that arrive one by one and in order are taken without it: a run of reads is as many in
// few bytes.
func (r *reassembly) permits(count, payloadLen int) bool {
	return uint64(count*(frame.TLPCost+payloadLen)) <= r.advertised-min(r.advertised, r.delivered)
}

// advanceRun moves past TLPs next to next+count-1, of which none is held.
func (r *reassembly) advanceRun(count, payloadLen int) {
	r.next += uint64(count)
	r.delivered += uint64(count * (frame.TLPCost + payloadLen))
}
