package link

import "time"

// maxRecords bounds the records of a path. A window of DefaultWindow has half as many TLPs in
// flight at most. A peer that asks for acknowledgements without an end, and acknowledges
// nothing itself, would make their number grow.
const maxRecords = 1 << 16

// maxRuns bounds the runs of one datagram. New TLPs make one run, and so do
// retransmissions in sequence, so a datagram rarely needs a second.
const maxRuns = 4

// record describes a sent datagram.
type record struct {
	at       time.Duration // sent
	size     int32         // bytes in flight, 0 if it does not count
	episode  uint32        // of losses, see congestion; 0: none
	mtuProbe uint16        // size that this datagram probes, or 0
	eliciting,
	done, // acknowledged
	lost bool // its fragments are to be sent again
	// presumed marks a loss by a probe timeout, which does not prove that the
	// datagram will not arrive.
	presumed bool
	ecn      ECN
	limit    bool // tells the limit to a peer that may wait for it
	nruns    uint8
	skip     uint32 // of a record that is done: the next one that may not be is so much further
	runs     [maxRuns]run
}

// add records a fragment: units from up to to, of total. It returns false, and
// records nothing, when the record is full.
func (r *record) add(seq uint64, hdr bool, from, to, total int) bool {
	if r.nruns > 0 {
		last := &r.runs[r.nruns-1]
		follows := seq == last.last+1 && last.ends && hdr && from == 0
		continues := seq == last.last && !hdr && from == int(last.to)
		if follows || continues {
			last.last, last.to, last.ends = seq, uint8(to), to == total
			return true
		}
	}
	if r.nruns == maxRuns {
		return false
	}
	r.runs[r.nruns] = run{first: seq, last: seq, from: uint8(from), to: uint8(to), hdr: hdr, ends: to == total}
	r.nruns++
	return true
}

// sentRing holds the records of a path by datagram number, from oldest to next-1.
// It grows with the number of datagrams in flight.
type sentRing struct {
	ring         []record
	oldest, next uint64
}

func (s *sentRing) at(n uint64) *record { return &s.ring[n&uint64(len(s.ring)-1)] }

// push adds the record of number next and returns it. The pointer is valid until
// the next push.
func (s *sentRing) push() *record {
	if s.next-s.oldest == uint64(len(s.ring)) {
		ring := make([]record, max(minRing, 2*len(s.ring)))
		for n := s.oldest; n != s.next; n++ {
			ring[n&uint64(len(ring)-1)] = *s.at(n)
		}
		s.ring = ring
	}
	r := s.at(s.next)
	*r = record{}
	s.next++
	return r
}

// undone returns the first number from n on whose record is not done; next if there is
// none. A peer may acknowledge the same numbers again and again, so the records that are done are
// passed in few steps: each search halves the paths of later ones, as in a union-find
// structure.
func (s *sentRing) undone(n uint64) uint64 {
	for n < s.next {
		r := s.at(n)
		if !r.done {
			return n
		}
		n += uint64(r.skip)
		if n < s.next {
			if after := s.at(n); after.done {
				r.skip += after.skip
			}
		}
	}
	return s.next
}

// settle marks a record as done.
func (r *record) settle() { r.done, r.skip = true, 1 }

// trim drops the oldest records that are settled: acknowledged, not eliciting, or
// lost before the given time. Records of later losses stay, because an
// acknowledgement shows that a loss was spurious.
func (s *sentRing) trim(lostBefore time.Duration) {
	for s.oldest != s.next {
		r := s.at(s.oldest)
		if !r.done && r.eliciting && (!r.lost || r.at >= lostBefore) {
			return
		}
		s.oldest++
	}
}

// full reports whether the next record, and those of an omission behind it, are too many.
func (s *sentRing) full() bool { return s.next-s.oldest+mostOmitted >= maxRecords }

// shrink frees the memory when no record is held.
func (s *sentRing) shrink() {
	if s.oldest == s.next && len(s.ring) > minRing {
		s.ring = nil
	}
}
