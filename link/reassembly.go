package link

import (
	"math/bits"

	"github.com/dxpu-project/dxpu/frame"
)

// incoming is a TLP that was received in part or out of order.
type incoming struct {
	held       bool // the slot is in use
	hdr        bool // the header was received
	digest     bool
	headerLen  uint8
	payloadLen uint16
	header     [frame.MaxTLPHeader + frame.DigestSize]byte
	headerCRC  uint32
	tlpCRC     uint32
	got        units
	payload    []byte // payloadLen bytes of a pooled buffer
}

func (in *incoming) complete() bool {
	return in.held && in.hdr && in.got == unitRange(0, unitCount(int(in.payloadLen)))
}

// reassembly holds TLPs that were received out of order or in part. A TLP that
// arrives completely and in order never enters it.
//
// Invariant: held <= window. A peer that honours its credit cannot exceed it,
// because the TLPs that it may send beyond the delivered ones cost at most window.
type reassembly struct {
	window    int
	next      uint64 // sequence number to deliver next
	delivered uint64 // cost of all TLPs delivered
	owned     uint64 // cost of the TLPs delivered that the owner still holds (Hold)
	held      int    // cost of the TLPs held here
	count     int    // of the TLPs held here
	// advertised is the limit last sent to the peer. It never decreases.
	advertised uint64
	ring       []incoming
	free       [7][][]byte // payload buffers of 64 << i bytes
	pooled     int         // bytes of them, at most window: a peer may send TLPs of all sizes in turn
}

// limit returns the credit of the peer; see frame.Ack.
func (r *reassembly) limit() uint64 {
	return r.delivered - min(r.owned, r.delivered) + uint64(r.window)
}

func (r *reassembly) slot(seq uint64) *incoming { return &r.ring[seq&uint64(len(r.ring)-1)] }

// peek returns the TLP of that number, or nil if no part of it is held.
func (r *reassembly) peek(seq uint64) *incoming {
	if r.count == 0 || seq-r.next >= uint64(len(r.ring)) {
		return nil
	}
	if in := r.slot(seq); in.held {
		return in
	}
	return nil
}

// take returns the TLP of that number, which must not be below next. It makes room
// for it if no part of it is held.
func (r *reassembly) take(seq uint64, payloadLen int) (*incoming, error) {
	if in := r.peek(seq); in != nil {
		if int(in.payloadLen) != payloadLen {
			return nil, ErrProtocol
		}
		return in, nil
	}
	cost := frame.TLPCost + payloadLen
	if r.held+cost > r.window || seq-r.next >= uint64(r.window/frame.TLPCost) {
		return nil, ErrCredit
	}
	for seq-r.next >= uint64(len(r.ring)) {
		r.grow()
	}
	in := r.slot(seq)
	*in = incoming{held: true, payloadLen: uint16(payloadLen), payload: r.buffer(payloadLen)}
	r.held += cost
	r.count++
	return in, nil
}

func (r *reassembly) grow() {
	ring := make([]incoming, max(minRing, 2*len(r.ring)))
	for i := range r.ring {
		seq := r.next + uint64(i)
		ring[seq&uint64(len(ring)-1)] = *r.slot(seq)
	}
	r.ring = ring
}

// advance frees TLP next and increments next.
func (r *reassembly) advance(payloadLen int) {
	if in := r.peek(r.next); in != nil {
		r.recycle(in.payload)
		r.held -= frame.TLPCost + int(in.payloadLen)
		r.count--
		*in = incoming{}
	}
	r.next++
	r.delivered += uint64(frame.TLPCost + payloadLen)
}

// class returns the index of the smallest pooled size that holds n bytes.
func class(n int) int { return bits.Len(uint((n - 1) / frame.Unit)) }

func (r *reassembly) buffer(n int) []byte {
	if n == 0 {
		return nil
	}
	c := class(n)
	if f := r.free[c]; len(f) > 0 {
		b := f[len(f)-1]
		r.free[c] = f[:len(f)-1]
		r.pooled -= cap(b)
		return b[:n]
	}
	return make([]byte, n, frame.Unit<<c)
}

func (r *reassembly) recycle(b []byte) {
	if b != nil && r.pooled+cap(b) <= r.window {
		c := class(cap(b))
		r.free[c] = append(r.free[c], b)
		r.pooled += cap(b)
	}
}

// release frees the memory.
func (r *reassembly) release() {
	r.ring, r.free, r.pooled, r.held, r.count = nil, [7][][]byte{}, 0, 0, 0
}

// shrink frees the memory if nothing is held.
func (r *reassembly) shrink() {
	if r.count == 0 && r.ring != nil {
		r.release()
	}
}
