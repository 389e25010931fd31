package rootcomplex

import (
	"encoding/binary"

	"github.com/dxpu-project/dxpu/internal/dataplane/transaction"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// maxAnswers bounds the requests of devices that wait for their completions: all tags of 64
// functions. Further requests are dropped, like those that a receiver has no room for
// (section 2.6.1.2), and their requester times out.
const maxAnswers = 64 * pcie.MaxTags

// id is the Completer ID of the root complex: bus 0 is inside it.
const id = pcie.BDF(0)

// reply is a completion that no longer depends on memory.
type reply struct {
	p    tlp.Packet
	data [2 * transaction.MaxOperand]byte
	n    int // bytes of data that p carries
}

// memory returns the n bytes of host memory at a bus address, or nil if they are not
// all inside.
func (h *RootComplex) memory(addr uint64, n int) []byte {
	off := addr - h.spec.MemoryBase
	if addr < h.spec.MemoryBase || off > uint64(len(h.spec.Memory)) || uint64(n) > uint64(len(h.spec.Memory))-off {
		return nil
	}
	return h.spec.Memory[off : off+uint64(n) : off+uint64(n)]
}

func (h *RootComplex) readMemory(addr uint64, dst []byte) pcie.CplStatus {
	m := h.memory(addr, max(len(dst), 1))
	if m == nil {
		return pcie.UnsupportedRequest
	}
	copy(dst, m)
	return pcie.SuccessfulCompletion
}

func (h *RootComplex) writeMemory(addr uint64, src []byte) pcie.CplStatus {
	m := h.memory(addr, len(src))
	if m == nil {
		return pcie.UnsupportedRequest
	}
	copy(m, src)
	return pcie.SuccessfulCompletion
}

// dmaWrite processes a posted write to memory or to the interrupt window. It drops and
// counts a poisoned write and one outside.
func (h *RootComplex) dmaWrite(p *tlp.Packet) {
	switch {
	case p.EP:
		h.counters.Poisoned++
		return
	case p.Addr-h.spec.InterruptBase < interruptWindow && p.Addr >= h.spec.InterruptBase:
		if p.Length != 1 || len(p.Data) != pcie.DW {
			h.counters.Refused++
			return
		}
		h.counters.Interrupts++
		*h.events.push() = Event{Kind: EventInterrupt, Addr: p.Addr, Data: binary.LittleEndian.Uint32(p.Data)}
		return
	}
	h.counters.WriteRequests++
	if transaction.WriteBytes(p, h.writeMemory) != pcie.SuccessfulCompletion {
		h.counters.Refused++
		return
	}
	h.counters.WriteBytes += uint64(len(p.Data))
}

// ReceiveWrites takes count consecutive memory writes, with their bytes in data. It
// returns false, and does nothing, if they are not all to memory.
func (h *RootComplex) ReceiveWrites(addr uint64, data []byte, count int) bool {
	m := h.memory(addr, len(data)) // the interrupt window does not overlap it
	if m == nil {
		return false
	}
	copy(m, data)
	h.counters.WriteRequests += uint64(count)
	h.counters.WriteBytes += uint64(len(data))
	return true
}

// ReceiveReads counts count consecutive memory reads of n bytes in all. The owner answers
// them, with ReadRun. It returns false, and does nothing, if they are not all to memory.
func (h *RootComplex) ReceiveReads(addr uint64, n, count int) bool {
	if h.memory(addr, n) == nil {
		return false
	}
	h.counters.ReadRequests += uint64(count)
	h.counters.ReadBytes += uint64(n)
	return true
}

// ReadRun copies memory for the completions of such reads. It returns false if the bytes
// are not all memory.
func (h *RootComplex) ReadRun(addr uint64, dst []byte) bool {
	return h.readMemory(addr, dst) == pcie.SuccessfulCompletion
}

// full reports whether a request that needs an answer must be dropped, and counts it.
func (h *RootComplex) full() bool {
	if h.jobs.len()+h.replies.len() < maxAnswers {
		return false
	}
	h.counters.Dropped++
	return true
}

// dmaRead queues the answer to a read. It refuses a read that is not entirely inside
// memory.
func (h *RootComplex) dmaRead(p *tlp.Packet) {
	h.counters.ReadRequests++
	if h.full() {
		return
	}
	addr, n := p.ByteRange()
	if h.memory(addr, max(n, 1)) == nil {
		h.refuse(p)
		return
	}
	h.counters.ReadBytes += uint64(n)
	h.jobs.push().Start(p, id, h.spec.RCB, int(h.spec.MaxPayload))
}

func (h *RootComplex) dmaAtomic(p *tlp.Packet) {
	h.counters.Atomics++
	if h.full() {
		return
	}
	if p.EP {
		h.counters.Poisoned++
	}
	r := h.newReply()
	if p.EP {
		transaction.Respond(&r.p, p, id, pcie.UnsupportedRequest)
		return
	}
	transaction.ExecuteAtomic(&r.p, p, id, r.data[:], h.readMemory, h.writeMemory)
	if r.p.Status != pcie.SuccessfulCompletion {
		h.counters.Refused++
	}
	// The queue may move the reply: sendAnswer sets Data again.
	r.n, r.p.Data = len(r.p.Data), nil
}

// refuse answers a non-posted request with Unsupported Request.
func (h *RootComplex) refuse(p *tlp.Packet) {
	h.counters.Refused++
	if p.Type.NonPosted() && !h.full() {
		transaction.Respond(&h.newReply().p, p, id, pcie.UnsupportedRequest)
	}
}

func (h *RootComplex) newReply() *reply { return h.replies.push() }

func (h *RootComplex) message(p *tlp.Packet) {
	switch {
	case p.Code >= tlp.CodeAssertINTA && p.Code <= tlp.CodeDeassertINTD:
		*h.events.push() = Event{Kind: EventWire, Wire: p.Code & 3, OK: p.Code < tlp.CodeDeassertINTA}
	case p.Code == tlp.CodeErrCor || p.Code == tlp.CodeErrNonFatal || p.Code == tlp.CodeErrFatal:
		h.counters.ErrorMessages++
	}
}

// sendAnswer emits one completion, or all those of one read. sent is false when there
// was none, ok is false when emit refused it.
func (h *RootComplex) sendAnswer(emit func(p *tlp.Packet) bool) (sent, ok bool) {
	if !h.replies.empty() {
		r := h.replies.front()
		if r.n > 0 {
			r.p.Data = r.data[:r.n]
		}
		if !emit(&r.p) {
			return false, false
		}
		h.replies.pop()
		return true, true
	}
	if h.jobs.empty() {
		return false, true
	}
	if !h.jobs.front().EmitFrom(&h.reply, h.replyData, h.memory, h.readMemory, emit) {
		return false, false
	}
	h.jobs.pop()
	return true, true
}
