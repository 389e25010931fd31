package link

import (
	"encoding/binary"
	"errors"
	"fmt"
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

// noteRun notes of which kind of run the TLP that is being appended may be a part, and
// whether it continues the one before. size is that of each TLP of the run in bytes.
func (s *sendBuffer) noteRun(o *outgoing, kind runKind, size int) {
	if o.kind = kind; kind == runNone {
		return
	}
	header := runHeader(o.header[:])
	if s.end != s.base {
		before := s.slot(s.end - 1)
		o.follows = before.kind == o.kind && before.headerLen == o.headerLen && before.payloadLen == o.payloadLen && header == s.next
	}
	s.next = header
	if !s.next.advance(o.kind, int(o.headerLen), size) {
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
	l.writePayloads(d, count)
	s.cursor += uint64(count)
	d.rec.eliciting = true
	return true
}

// writePayloads appends the payloads of count TLPs from the cursor on, or lends them.
func (l *Link) writePayloads(d *datagram, count int) {
	s := &l.send
	size := int(s.slot(s.cursor).payloadLen)
	if size == 0 {
		return
	}
	lend := l.lending && count*size >= leastLent
	for i := 0; i < count; {
		row := s.row(s.cursor+uint64(i), count-i)
		if i += len(row) / size; lend {
			l.lent = append(l.lent, Lent{len(d.b), row})
			d.lent += len(row)
		} else {
			d.b = append(d.b, row...)
		}
	}
}

// row returns the payloads of the TLPs from seq on, at most count of equal size, that lie one
// after another in the ring of bytes.
func (s *sendBuffer) row(seq uint64, count int) []byte {
	o := s.slot(seq)
	size := uint64(o.payloadLen)
	i := o.at & uint64(len(s.data)-1)
	end := i + size
	for n := 1; n < count && s.slot(seq+uint64(n)).at&uint64(len(s.data)-1) == end; n++ {
		end += size
	}
	return s.data[i:end:end]
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

// SendRun queues the TLPs of a run as Send queues each. It fails with ErrFull if it has
// no room for all of them, with ErrDown, or because they are not those of a run; then
// none is queued.
func (l *Link) SendRun(_ time.Duration, r *Run) error {
	if l.state != Connecting && l.state != Up {
		return ErrDown
	}
	if err := r.First.Validate(); err != nil {
		return fmt.Errorf("link: send a run: %w", err)
	}
	if !r.check(len(r.First.Data)) || len(r.Data) != r.Count*len(r.First.Data) {
		return fmt.Errorf("link: send a run of %d %v, tag %#x, %d bytes with %d: %w", r.Count, r.First.Type, r.First.Tag, r.Size(), len(r.Data), errNotRun)
	}
	if !l.send.pushRun(r) {
		return ErrFull
	}
	l.stats.TLPsSent += uint64(r.Count)
	l.stats.BytesSent += uint64(len(r.Data))
	return nil
}

var errNotRun = errors.New("not a run")

// pushRun appends copies of the TLPs of a run, which is checked. It returns false when
// there is no room.
func (s *sendBuffer) pushRun(r *Run) bool {
	size := len(r.First.Data)
	if r.Count*cost(size) > s.free() {
		return false
	}
	var header runHeader
	n := len(r.First.AppendHeader(header[:0]))
	at := s.hold(r.Data)
	for i := range r.Count {
		o := s.append(header[:n], size)
		o.at = at + uint64(i*size)
		s.noteRun(o, r.kind, r.Size())
		s.finish(o)
		header.advance(r.kind, n, r.Size())
	}
	return true
}

// Run is a run of TLPs of equal size that travel together: consecutive memory writes,
// completions with data, or read requests. None of them is poisoned or has a digest, a
// prefix or disabled bytes.
type Run struct {
	// First is the first TLP.
	First tlp.Packet
	// Count is the number of TLPs, at least 2 of a run that arrives.
	Count int
	// Data holds the payloads of all TLPs, one after another: those of memory writes are
	// for consecutive addresses.
	Data []byte

	kind runKind
}

// Writes reports whether the TLPs are memory writes.
func (r *Run) Writes() bool { return r.First.Type == tlp.MWr }

// Reads reports whether the TLPs are read requests.
func (r *Run) Reads() bool { return r.First.Type == tlp.MRd }

// TLP stores TLP i of the run in p. Its Data aliases the run's.
func (r *Run) TLP(i int, p *tlp.Packet) {
	*p = r.First
	if r.First.Type.Memory() {
		p.Addr += uint64(i * r.Size())
	}
	if !r.Writes() {
		p.Tag += pcie.Tag(i)
	}
	if size := len(r.First.Data); size > 0 {
		p.Data = r.Data[i*size : (i+1)*size : (i+1)*size]
	}
}

// Size returns how many bytes each TLP writes, reads or returns.
func (r *Run) Size() int { return int(r.First.Length) * pcie.DW }

// check sets the kind of the run. It returns false if its TLPs are not those of a run, or
// if a later one would have another header than the run says.
func (r *Run) check(payload int) bool {
	first := &r.First
	if r.kind = kindOf(first, payload); r.kind == runNone || r.Count < 1 {
		return false
	}
	if r.kind.addressed() {
		last := first.Addr + uint64(r.Count*r.Size()) - 1
		if last < first.Addr || !first.DW4 && last>>32 != 0 {
			return false
		}
	}
	return r.kind == runWrites || int(first.Tag&0xff)+r.Count-1 <= 0xff
}

// decode takes a run from its packet. It returns false if the TLPs are not those of a
// run that a session of the version has, or if a later one would have another header.
func (r *Run) decode(p *frame.RunPacket, version uint8) bool {
	first := &r.First
	n, err := first.DecodeHeader(p.TLP)
	if err != nil || n != len(p.TLP) || first.PayloadLen() != p.PayloadLen {
		return false
	}
	if r.Count = p.Count; !r.check(p.PayloadLen) || !r.kind.allowed(version) {
		return false
	}
	if first.Data = nil; p.PayloadLen > 0 {
		first.Data = p.Payload[:p.PayloadLen:p.PayloadLen]
	}
	r.Data = p.Payload
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
		header.advance(r.kind, len(rp.TLP), r.Size())
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
