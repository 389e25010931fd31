package link

import (
	"encoding/binary"
	"time"

	"github.com/dxpu-project/dxpu/frame"
	"github.com/dxpu-project/dxpu/tlp"
)

// A run of memory writes travels as one run packet, if it fits a datagram. Only the
// first transmission makes runs: the TLPs of a lost datagram are sent again one by one.

// page is the size that no memory request crosses (section 2.2.7 of the PCI Express
// Base Specification).
const page = 4096

// runs reports whether a TLP may be part of a run: a memory write of whole double
// words, which its size keeps from crossing a page wherever the run ends.
func runs(p *tlp.Packet, size int) bool {
	return p.Type == tlp.MWr && size >= frame.MinRunPayload && page%size == 0 && p.Addr%uint64(size) == 0 &&
		p.FirstBE == 0xf && p.LastBE == 0xf && !p.HasDigest && !p.EP && !p.TH && p.PH == 0 && !p.LN && len(p.Prefix) == 0
}

// noteRun notes whether the TLP that push appends may be part of a run, and continues
// the one before.
func (s *sendBuffer) noteRun(o *outgoing, p *tlp.Packet) {
	if o.write = runs(p, len(p.Data)); !o.write {
		return
	}
	if s.end != s.base && p.Addr == s.next {
		before := s.slot(s.end - 1)
		o.follows = before.write && before.headerLen == o.headerLen && before.payloadLen == o.payloadLen &&
			binary.NativeEndian.Uint64(before.header[:]) == binary.NativeEndian.Uint64(o.header[:]) // all but the address
	}
	s.next = p.Addr + uint64(len(p.Data))
}

// runLength returns how many unsent TLPs from the cursor on a run packet in the space
// of d takes.
func (l *Link) runLength(d *datagram) int {
	s := &l.send
	o := s.slot(s.cursor)
	if !l.runs || !o.write {
		return 0
	}
	fixed := frame.RunPacketSize(int(o.headerLen), 0, 0, l.form)
	each := frame.RunPacketSize(int(o.headerLen), 1, int(o.payloadLen), l.form) - fixed
	most := min((d.space()-fixed)/each, frame.MaxRun)
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
	if l.form == frame.Checked {
		for i := range count {
			rp.CRCs = binary.BigEndian.AppendUint32(rp.CRCs, s.slot(s.cursor+uint64(i)).payloadCRC)
		}
		l.crcs = rp.CRCs
	}
	d.b = rp.Append(d.b, l.form)
	for range count {
		d.b = append(d.b, s.payload(s.slot(s.cursor))...)
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

// Run is a run of consecutive memory writes of equal size that arrived together. None
// of them is poisoned or has a digest, a prefix or disabled bytes.
type Run struct {
	// First is the first TLP.
	First tlp.Packet
	// Count is the number of TLPs, at least 2.
	Count int
	// Data holds the payloads of all TLPs, one after another, for consecutive addresses.
	Data []byte
}

// TLP stores TLP i of the run in p. Its Data aliases the run's.
func (r *Run) TLP(i int, p *tlp.Packet) {
	size := len(r.First.Data)
	*p = r.First
	p.Addr += uint64(i * size)
	p.Data = r.Data[i*size : (i+1)*size : (i+1)*size]
}

// decode takes a run from its packet. It returns false if the TLPs are not those of a
// run, or if a later one would have another header.
func (r *Run) decode(p *frame.RunPacket) bool {
	first := &r.First
	n, err := first.DecodeHeader(p.TLP)
	if err != nil || n != len(p.TLP) || first.PayloadLen() != p.PayloadLen || !runs(first, p.PayloadLen) {
		return false
	}
	last := first.Addr + uint64(len(p.Payload)) - 1
	if last < first.Addr || !first.DW4 && last>>32 != 0 {
		return false
	}
	first.Data = p.Payload[:p.PayloadLen:p.PayloadLen]
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
	switch {
	case !l.runs:
		return 0, ErrMalformed
	case rp.Source != l.cfg.Remote || rp.Destination != l.cfg.Local:
		return 0, ErrRoute
	case !l.run.decode(rp):
		l.broken(now)
		return 0, ErrProtocol
	}
	if to.run != nil && rp.Seq == l.recv.next && l.recv.count == 0 {
		l.stats.TLPsReceived += uint64(rp.Count)
		l.stats.BytesReceived += uint64(len(rp.Payload))
		to.run(&l.run)
		l.recv.advanceRun(rp.Count, rp.PayloadLen)
		return n, nil
	}
	header := l.header[:copy(l.header[:], rp.TLP)]
	for i := range rp.Count {
		if err := l.receiveOfRun(now, i, header, to); err != nil || l.state != Up {
			return n, err
		}
		advanceAddress(header, rp.PayloadLen)
	}
	return n, nil
}

// advanceAddress adds to the address in the header of a memory write. The bits below
// it are zero in a run, and it does not overflow.
func advanceAddress(header []byte, n int) {
	if len(header) == tlp.Header3DW {
		binary.BigEndian.PutUint32(header[8:], binary.BigEndian.Uint32(header[8:])+uint32(n))
		return
	}
	binary.BigEndian.PutUint64(header[8:], binary.BigEndian.Uint64(header[8:])+uint64(n))
}

// receiveOfRun processes TLP i of the run packet l.rp.
func (l *Link) receiveOfRun(now time.Duration, i int, header []byte, to owner) error {
	rp, r := &l.rp, &l.recv
	seq := rp.Seq + uint64(i)
	payload := rp.Payload[i*rp.PayloadLen : (i+1)*rp.PayloadLen]
	if seq < r.next {
		l.stats.Duplicates++
		return nil
	}
	var headerCRC, payloadCRC, tlpCRC uint32
	if l.form == frame.Checked {
		headerCRC, payloadCRC = frame.CRC(0, header), binary.BigEndian.Uint32(rp.CRCs[i*frame.CRCSize:])
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

// advanceRun moves past TLPs next to next+count-1, of which none is held.
func (r *reassembly) advanceRun(count, payloadLen int) {
	r.next += uint64(count)
	r.delivered += uint64(count * (frame.TLPCost + payloadLen))
}
