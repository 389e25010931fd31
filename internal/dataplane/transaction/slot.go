package transaction

import (
	"time"

	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// tagState is the state of one tag; see the diagram at Requester.
type tagState uint8

const (
	unused tagState = iota
	outstanding
	quarantined
	aged    // the quarantine has ended without a completion
	retired // as aged, but SetTags has taken the tag out of use: in no list
)

// none ends a list of tags.
const none = int16(-1)

// slot holds the request of one tag.
type slot struct {
	state     tagState
	typ       tlp.Type
	poisoned  bool
	prev      int16 // neighbors in a list
	next      int16
	requester pcie.BDF
	deadline  time.Duration
	timeout   time.Duration // from Begin to deadline
	cookie    uint64
	dst       []byte
	// addr is the address of the next byte to arrive. Only bits 1:0 matter for
	// a request other than a memory read: the offset of the first wanted byte
	// in its double word.
	addr  uint64
	want  int // bytes that the request asks for
	got   int // bytes that have arrived
	count int // Byte Count of the next completion; 0: the data is complete
}

func (s *slot) begin(p *tlp.Packet, now, deadline time.Duration, dst []byte, cookie uint64) {
	*s = slot{
		state: outstanding, typ: p.Type, prev: none, next: none,
		requester: p.Requester, deadline: deadline, timeout: deadline - now, cookie: cookie, dst: dst,
	}
	s.count, _ = p.CompletionBytes()
	switch {
	case p.Type.Atomic():
		s.want = s.count
	case p.Type.Read():
		s.addr, s.want = p.ByteRange()
	}
}

// clear removes the request. The requester ID stays: it distinguishes late
// completions from unexpected ones.
func (s *slot) clear(to tagState) {
	*s = slot{state: to, prev: none, next: none, requester: s.requester}
}

func (s *slot) result(tag pcie.Tag) Result {
	return Result{Cookie: s.cookie, Tag: tag, Poisoned: s.poisoned, N: s.got, Dst: s.dst}
}

// take checks that a completion fits the request and copies its data to dst. It
// returns the wanted bytes of the completion. It accepts a read that is split
// anywhere, although completers must split at multiples of RCB.
func (s *slot) take(p *tlp.Packet) (data []byte, ok bool) {
	if locked := p.Type == tlp.CplLk || p.Type == tlp.CplDLk; locked != (s.typ == tlp.MRdLk) {
		return nil, false
	}
	switch {
	case p.Status != pcie.SuccessfulCompletion:
		return nil, true // data with an error status is undefined
	case p.Type.HasData() != s.typ.Read():
		return nil, false
	case !s.typ.Read():
		s.count = 0
		return nil, true
	}
	skip := int(s.addr % pcie.DW)
	whole := s.count
	if s.memoryRead() {
		whole += skip
	}
	payload := len(p.Data)
	if payload == 0 || payload != int(p.Length)*pcie.DW || payload >= whole+pcie.DW {
		return nil, false
	}
	if !p.BCM && int(p.ByteCount) != s.count {
		return nil, false
	}
	if s.memoryRead() {
		if p.LowerAddr != uint8(s.addr&0x7f) {
			return nil, false
		}
	} else if payload < s.count {
		return nil, false // only memory reads are split
	}
	s.account(p, min(payload, whole), skip)
	data = p.Data[skip:min(payload, skip+s.want-s.got)]
	if s.got < len(s.dst) {
		copy(s.dst[s.got:], data)
	}
	s.got += len(data)
	return data, true
}

// overdue describes the request whose deadline has passed.
func (s *slot) overdue() Overdue {
	return Overdue{Cookie: s.cookie, Deadline: s.deadline, Timeout: s.timeout}
}

// account advances the expected address and Byte Count by a payload of n bytes,
// of which the first skip are padding.
func (s *slot) account(p *tlp.Packet, n, skip int) {
	s.poisoned = s.poisoned || p.EP
	if !s.memoryRead() {
		s.count = 0
		return
	}
	s.addr += uint64(n - skip)
	s.count -= n - skip
}

func (s *slot) memoryRead() bool { return s.typ == tlp.MRd || s.typ == tlp.MRdLk }

// link inserts an outstanding slot into the list by deadline. It searches from
// the end, where requests with equal timeouts belong.
func (r *Requester) link(tag int16) {
	after := r.open.last
	for after != none && r.slots[after].deadline > r.slots[tag].deadline {
		after = r.slots[after].prev
	}
	if after == none {
		r.slack = 0
	}
	r.open.insert(r.slots, tag, after)
}

func (r *Requester) unlink(tag int16) {
	if r.open.first == tag {
		r.slack = 0
	}
	r.open.remove(r.slots, tag)
}

// list is a list of n tags, each of which is in one list at most.
type list struct {
	first, last int16
	n           int
}

func newList() list { return list{first: none, last: none} }

// insert puts a tag behind another one, or in front if that is none.
func (l *list) insert(slots []slot, tag, after int16) {
	s := &slots[tag]
	s.prev, s.next = after, l.first
	if after == none {
		l.first = tag
	} else {
		s.next = slots[after].next
		slots[after].next = tag
	}
	if s.next == none {
		l.last = tag
	} else {
		slots[s.next].prev = tag
	}
	l.n++
}

func (l *list) remove(slots []slot, tag int16) {
	s := &slots[tag]
	if s.prev == none {
		l.first = s.next
	} else {
		slots[s.prev].next = s.next
	}
	if s.next == none {
		l.last = s.prev
	} else {
		slots[s.next].prev = s.prev
	}
	l.n--
}

// fifo is a queue of at most cap(ring) tags.
type fifo struct {
	ring []int16
	head int
	n    int
}

func newFIFO(size int) fifo { return fifo{ring: make([]int16, size)} }

func (f *fifo) len() int { return f.n }

func (f *fifo) push(tag int16) {
	f.ring[(f.head+f.n)%len(f.ring)] = tag
	f.n++
}

func (f *fifo) peek() (int16, bool) {
	if f.n == 0 {
		return none, false
	}
	return f.ring[f.head], true
}

func (f *fifo) pop() (int16, bool) {
	tag, ok := f.peek()
	if ok {
		f.head = (f.head + 1) % len(f.ring)
		f.n--
	}
	return tag, ok
}
