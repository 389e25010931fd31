package link

import (
	"encoding/binary"
	"math/bits"

	"github.com/dxpu-project/dxpu/frame"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// units is a set of payload units of one TLP (frame.Unit bytes each): unit i is
// bit i. The largest payload has 64 of them.
type units uint64

// unitCount returns the units of a payload of n bytes.
func unitCount(n int) int { return (n + frame.Unit - 1) / frame.Unit }

// unitRange returns the set {from, ..., to-1}.
func unitRange(from, to int) units {
	if from >= to {
		return 0
	}
	return units(^uint64(0) << from & (^uint64(0) >> (64 - to)))
}

// firstRun returns the lowest run of units in u, which is not empty.
func (u units) firstRun() (from, to int) {
	from = bits.TrailingZeros64(uint64(u))
	return from, from + bits.TrailingZeros64(^(uint64(u) >> from))
}

// outgoing is a TLP that the peer has not acknowledged completely.
type outgoing struct {
	header     [frame.MaxTLPHeader + frame.DigestSize]byte
	headerLen  uint8 // with digest
	digest     bool
	payloadLen uint16
	headerCRC  uint32
	payloadCRC uint32
	at         uint64 // payload: position in the ring of bytes
	cost       uint64 // credit of all TLPs up to and including this one
	// kind is that of the run which may contain the TLP. follows is set if it continues
	// a run with the TLP before.
	kind    runKind
	follows bool

	// Fragments that the peer has, and lost fragments to retransmit. The header
	// counts separately from the units of the payload.
	acked, lost       units
	hdrAcked, hdrLost bool
}

func (o *outgoing) whole() units { return unitRange(0, unitCount(int(o.payloadLen))) }

func (o *outgoing) anyLost() bool { return o.hdrLost || o.lost != 0 }

// run is a run of fragments in one datagram, of the TLPs first to last: of the
// first, the units from from on and, if hdr, the header; of the last, the units
// below to; of those in between, everything.
type run struct {
	first, last uint64
	from, to    uint8
	hdr         bool
	ends        bool // to is the end of the last TLP
}

// sendBuffer holds the TLPs that the peer has not acknowledged: descriptions in a
// ring indexed by sequence number, payloads in a ring of bytes. Both start empty
// and grow on demand up to capacity.
//
// Invariant: base <= cursor <= end. TLPs below cursor were sent at least once, the
// one at cursor perhaps in part.
type sendBuffer struct {
	capacity int  // maximum cost of the buffered TLPs
	ahead    int  // maximum cost of those that were not sent yet
	checked  bool // their packets have CRCs

	ring            []outgoing // length 0 or a power of two
	base, end       uint64     // sequence numbers held: base to end-1
	cursor          uint64     // the next TLP to send for the first time,
	cursorUnit      int        // from this unit on,
	cursorHdr       bool       // its header having been sent
	cost, costAcked uint64     // of all TLPs ever pushed, of those below base

	limit uint64 // the peer's credit: TLPs of a higher cost must wait

	lostCount int    // TLPs with lost fragments
	lostFrom  uint64 // no TLP below it has lost fragments

	next runHeader // of the TLP that would continue a run with the last one

	data       []byte // ring of payloads, length 0 or a power of two
	head, tail uint64 // positions, which grow without limit; the index is the position modulo length
}

const (
	minRing = 16
	minData = 1 << 10 // enough for an idle link, or one that carries register accesses only
)

func (s *sendBuffer) slot(seq uint64) *outgoing { return &s.ring[seq&uint64(len(s.ring)-1)] }

func (s *sendBuffer) empty() bool { return s.base == s.end }

func (s *sendBuffer) used() int { return int(s.cost - s.costAcked) }

func (s *sendBuffer) room() int { return max(0, s.free()-frame.TLPCost) }

// cost returns the credit that a TLP with a payload of n bytes takes.
func cost(n int) int { return frame.TLPCost + n }

// push appends a copy of a valid TLP. It returns false when there is no room.
func (s *sendBuffer) push(p *tlp.Packet) bool {
	n := len(p.Data)
	if cost(n) > s.free() {
		return false
	}
	var header [frame.MaxTLPHeader + frame.DigestSize]byte
	h := p.AppendHeader(header[:0])
	if p.HasDigest {
		h = binary.BigEndian.AppendUint32(h, p.Digest)
	}
	at := s.hold(p.Data)
	o := s.append(h, n)
	o.at, o.digest = at, p.HasDigest
	s.noteRun(o, kindOf(p, n), int(p.Length)*pcie.DW)
	s.finish(o)
	return true
}

// hold copies a payload into the ring of bytes, unless reserve put it there, and returns
// its position.
func (s *sendBuffer) hold(data []byte) (at uint64) {
	if len(data) == 0 {
		return s.head
	}
	at = s.place(len(data))
	s.head = at + uint64(len(data))
	i := at & uint64(len(s.data)-1)
	if dst := s.data[i : i+uint64(len(data))]; &dst[0] != &data[0] {
		copy(dst, data)
	}
	return at
}

// append appends a TLP with a header and a payload of n bytes. Its caller sets the rest.
func (s *sendBuffer) append(header []byte, n int) *outgoing {
	if s.end-s.base == uint64(len(s.ring)) {
		s.growRing()
	}
	o := s.slot(s.end)
	*o = outgoing{headerLen: uint8(len(header)), payloadLen: uint16(n)}
	copy(o.header[:], header)
	return o
}

// finish ends the appending of a TLP.
func (s *sendBuffer) finish(o *outgoing) {
	if s.checked {
		s.check(o)
	}
	s.cost += uint64(frame.TLPCost + int(o.payloadLen))
	o.cost = s.cost
	s.end++
}

// check computes the CRCs of a TLP, while its bytes are in the cache.
func (s *sendBuffer) check(o *outgoing) {
	o.headerCRC = frame.CRC(0, o.header[:o.headerLen])
	if o.payloadLen > 0 {
		o.payloadCRC = frame.CRC(0, s.payload(o))
	}
}

// open notes the form of the packets, which is known when the session opens.
func (s *sendBuffer) open(form frame.Form) {
	if s.checked = form == frame.Checked; !s.checked {
		return
	}
	for seq := s.base; seq != s.end; seq++ {
		s.check(s.slot(seq))
	}
}

func (s *sendBuffer) payload(o *outgoing) []byte {
	i := o.at & uint64(len(s.data)-1)
	return s.data[i : i+uint64(o.payloadLen)]
}

func (s *sendBuffer) growRing() {
	ring := make([]outgoing, max(minRing, 2*len(s.ring)))
	for seq := s.base; seq != s.end; seq++ {
		ring[seq&uint64(len(ring)-1)] = *s.slot(seq)
	}
	s.ring = ring
}

// reserve returns where push would put a payload of n bytes, or nil when there is
// no room.
func (s *sendBuffer) reserve(n int) []byte {
	if n <= 0 || n > s.room() {
		return nil
	}
	i := s.place(n) & uint64(len(s.data)-1)
	return s.data[i : i+uint64(n) : i+uint64(n)]
}

// place returns the position of n free contiguous bytes of the ring, for which it
// makes room. It returns the same position until the buffer changes.
func (s *sendBuffer) place(n int) uint64 {
	if s.empty() {
		s.head, s.tail = 0, 0
	}
	for {
		size := uint64(len(s.data))
		at := s.head
		if size > 0 && at&(size-1)+uint64(n) > size {
			at = (at | (size - 1)) + 1 // to the start of the ring
		}
		if at+uint64(n)-s.tail <= size {
			return at
		}
		s.growData()
	}
}

// growData doubles the ring of bytes and packs the payloads from its start.
func (s *sendBuffer) growData() {
	data := make([]byte, max(minData, 2*len(s.data)))
	var at uint64
	for seq := s.base; seq != s.end; seq++ {
		o := s.slot(seq)
		if o.payloadLen > 0 {
			copy(data[at:], s.payload(o))
		}
		o.at = at
		at += uint64(o.payloadLen)
	}
	s.data, s.tail, s.head = data, 0, at
}

// release frees the memory and drops all TLPs.
func (s *sendBuffer) release() {
	s.ring, s.data = nil, nil
	s.base, s.cursor, s.cursorUnit, s.cursorHdr = s.end, s.end, 0, false
	s.costAcked, s.lostCount, s.head, s.tail = s.cost, 0, 0, 0
}

// shrink frees the memory of an empty buffer that has grown.
func (s *sendBuffer) shrink() {
	if s.empty() && (len(s.ring) > minRing || len(s.data) > minData) {
		s.release()
	}
}

// fragments calls f for each TLP of r that is still held, with the fragments of it
// that r contains.
func (s *sendBuffer) fragments(r *run, f func(s *sendBuffer, seq uint64, o *outgoing, hdr bool, u units)) {
	for seq := max(r.first, s.base); seq <= r.last; seq++ {
		o := s.slot(seq)
		from, to, hdr := 0, unitCount(int(o.payloadLen)), true
		if seq == r.first {
			from, hdr = int(r.from), r.hdr
		}
		if seq == r.last {
			to = int(r.to)
		}
		f(s, seq, o, hdr, unitRange(from, to))
	}
}

// acked records that the peer has the fragments of r. It drops TLPs that the peer
// has completely.
func (s *sendBuffer) acked(r *run) {
	if r.last < s.base {
		return
	}
	s.fragments(r, (*sendBuffer).ackFragment)
	for s.base < s.cursor {
		o := s.slot(s.base)
		if !o.hdrAcked || o.acked != o.whole() {
			break
		}
		s.costAcked = o.cost
		s.base++
		s.tail = o.at + uint64(o.payloadLen)
	}
}

func (s *sendBuffer) ackFragment(_ uint64, o *outgoing, hdr bool, u units) {
	was := o.anyLost()
	o.acked |= u
	o.lost &^= u
	if hdr {
		o.hdrAcked, o.hdrLost = true, false
	}
	if was && !o.anyLost() {
		s.lostCount--
	}
}

// lose marks the fragments of r that the peer does not have for retransmission.
func (s *sendBuffer) lose(r *run) {
	if r.last >= s.base {
		s.fragments(r, (*sendBuffer).loseFragment)
	}
}

func (s *sendBuffer) loseFragment(seq uint64, o *outgoing, hdr bool, u units) {
	was := o.anyLost()
	o.lost |= u &^ o.acked
	o.hdrLost = o.hdrLost || hdr && !o.hdrAcked
	if was || !o.anyLost() {
		return
	}
	if s.lostCount == 0 || seq < s.lostFrom {
		s.lostFrom = seq
	}
	s.lostCount++
}

// nextLost returns the lowest TLP with lost fragments.
func (s *sendBuffer) nextLost() (uint64, bool) {
	if s.lostCount == 0 {
		return 0, false
	}
	s.lostFrom = max(s.lostFrom, s.base)
	for !s.slot(s.lostFrom).anyLost() {
		s.lostFrom++
	}
	return s.lostFrom, true
}

// resent records that lost fragments of a TLP are in flight again.
func (s *sendBuffer) resent(o *outgoing, hdr bool, u units) {
	o.lost &^= u
	if hdr {
		o.hdrLost = false
	}
	if !o.anyLost() {
		s.lostCount--
	}
}
