package vfioserver

import (
	"github.com/dxpu-project/dxpu/internal/dataplane/transaction"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
	"github.com/dxpu-project/dxpu/vfiouser"
)

// outQueue holds the output for the host in order: completions, the writes of the
// server, and interrupts. A read of the server waits in it until the writes before
// it have gone; later output may pass the read.
type outQueue struct {
	items []outItem
	data  [pcie.MaxPayload + 2*pcie.DW]byte
	out   tlp.Packet
}

// outItem is the answer to a read of the host (read), a DMA request (dma), or
// packet.
type outItem struct {
	packet tlp.Packet
	word   [pcie.DW]byte // payload of packet, if it has one

	read bool
	job  transaction.ReadJob
	data []byte // from the address base on
	base uint64

	dma  *vfiouser.DMARequest
	done int // bytes of a write that have been sent

	answer bool // ends a request of the host
}

const (
	// maxUnanswered bounds the host's requests without a completion: all tags of
	// the host, and as many of its other devices. A peer that asks for more and
	// takes no completions waits, and then its credit is used up.
	maxUnanswered = 2 * pcie.MaxTags
	// maxOutput is the length of the queue from which on interrupts stay pending.
	// A server can signal them at any rate.
	maxOutput = 1024
)

func (q *outQueue) push(i outItem) { q.items = append(q.items, i) }

// crowded reports whether interrupts are to wait.
func (q *outQueue) crowded() bool { return len(q.items) >= maxOutput }

// drop empties the queue and refuses its DMA requests. It reports whether an edge of INTx
// was in the queue.
func (q *outQueue) drop(refuse func(*vfiouser.DMARequest)) (edge bool) {
	for i := range q.items {
		if item := &q.items[i]; item.dma != nil {
			refuse(item.dma)
		} else if item.packet.Type == tlp.Msg {
			edge = true
		}
	}
	q.items = nil
	return edge
}

// transmit emits the items in order. It returns false when emit refuses one.
func (q *outQueue) transmit(c *connection, emit func(p *tlp.Packet) bool) bool {
	for len(q.items) > 0 {
		if !q.one(c, &q.items[0], emit) {
			return false
		}
		if q.items[0].answer {
			c.unanswered--
		}
		q.items[0] = outItem{}
		q.items = q.items[1:]
	}
	q.items = nil
	return true
}

func (q *outQueue) one(c *connection, i *outItem, emit func(p *tlp.Packet) bool) bool {
	switch {
	case i.read:
		return i.job.Emit(&q.out, q.data[:], func(addr uint64, dst []byte) pcie.CplStatus {
			copy(dst, i.data[addr-i.base:])
			return pcie.SuccessfulCompletion
		}, emit)
	case i.dma != nil && i.dma.Write:
		return q.write(c, i, emit)
	case i.dma != nil:
		c.dma.add(i.dma)
		return true
	}
	if i.packet.Type.HasData() {
		i.packet.Data = i.word[:]
	}
	return emit(&i.packet)
}

// write emits a write of the server and answers it after its last packet.
func (q *outQueue) write(c *connection, i *outItem, emit func(p *tlp.Packet) bool) bool {
	for i.done < len(i.dma.Data) {
		addr := i.dma.Addr + uint64(i.done)
		n := tlp.NextChunk(addr, len(i.dma.Data)-i.done, int(c.dma.limits.MaxPayload))
		pad := transaction.Pad(addr)
		payload := q.data[:(pad+n+pcie.DW-1)&^(pcie.DW-1)]
		clear(payload[:pad])
		clear(payload[pad+n:])
		copy(payload[pad:], i.dma.Data[i.done:i.done+n])
		q.out = tlp.Packet{Type: tlp.MWr, Requester: c.fn.ID, Data: payload}
		q.out.SetMemory(addr, n)
		if !emit(&q.out) {
			return false
		}
		i.done += n
	}
	c.finishDMA(i.dma, nil)
	return true
}
