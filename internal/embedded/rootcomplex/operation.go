package rootcomplex

import (
	"encoding/binary"
	"time"

	"github.com/dxpu-project/dxpu/internal/dataplane/transaction"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// operation is one access of the CPU: a read or write of any size, or a
// configuration access.
type operation struct {
	kind   tlp.Type // MRd, MWr, CfgRd1 or CfgWr1 (of type 0 on the root bus)
	addr   uint64   // or, for configuration, the register
	target pcie.BDF
	be     uint8
	data   []byte // source of a write, destination of a read
	word   [pcie.DW]byte
	cookie uint64
	id     uint64 // key in Host.live; 0 is none

	size        int // bytes
	sent        int // bytes in requests that were sent
	outstanding int // requests without their last completion
	failed      bool
	notBefore   time.Duration // of the next try
	giveUp      time.Duration // no retry after this; 0 until the first
}

// Read queues a read of len(dst) bytes at the bus address addr. Up to 8 bytes
// that do not cross a multiple of 8 are one request; more are split. dst
// belongs to the host until the event with this cookie.
func (h *RootComplex) Read(addr uint64, dst []byte, cookie uint64) {
	op := h.newOperation()
	*op = operation{kind: tlp.MRd, addr: addr, data: dst, size: len(dst), cookie: cookie}
	h.enqueue(op)
}

// writeCost is the memory of a queued write besides its data, in bytes.
const writeCost = 128

// maxSpare bounds the operations kept for reuse.
const maxSpare = 1 << 10

func (h *RootComplex) newOperation() *operation {
	n := len(h.spare)
	if n == 0 {
		return new(operation)
	}
	op := h.spare[n-1]
	h.spare = h.spare[:n-1]
	return op
}

// over keeps an operation for reuse. The caller must not keep a reference.
func (h *RootComplex) over(op *operation) {
	op.data = nil
	if len(h.spare) < maxSpare {
		h.spare = append(h.spare, op)
	}
}

// Write queues posted writes of a copy of src to addr. There is no event.
func (h *RootComplex) Write(addr uint64, src []byte) {
	if len(src) == 0 {
		return
	}
	op := h.newOperation()
	*op = operation{kind: tlp.MWr, addr: addr, size: len(src)}
	h.queued += writeCost + len(src)
	if len(src) <= len(op.word) {
		op.data = append(op.word[:0], src...)
	} else {
		op.data = append([]byte(nil), src...)
	}
	h.enqueue(op)
}

// ConfigRead queues a read of the double word at off in the configuration space
// of a function; the event has it in Value.
func (h *RootComplex) ConfigRead(id pcie.BDF, off uint16, cookie uint64) {
	h.enqueueConfig(&operation{kind: tlp.CfgRd1, target: id, addr: uint64(off &^ 3), be: 0xf, cookie: cookie})
}

// ConfigWrite queues a write of the bytes of v that be enables (bit i for byte
// i) to the double word at off.
func (h *RootComplex) ConfigWrite(id pcie.BDF, off uint16, be uint8, v uint32, cookie uint64) {
	op := &operation{kind: tlp.CfgWr1, target: id, addr: uint64(off &^ 3), be: be & 0xf, cookie: cookie}
	binary.LittleEndian.PutUint32(op.word[:], v)
	h.enqueueConfig(op)
}

// enqueueConfig ends an access at once when its bus or device cannot be there:
// the root port drops it (section 7.3.1).
func (h *RootComplex) enqueueConfig(op *operation) {
	op.size, op.data = pcie.DW, op.word[:]
	if op.target.Bus() < h.spec.RootBus || op.target.Bus() == h.spec.RootBus && op.target.Device() != 0 {
		op.fail(0)
		op.sent = op.size
		h.finishOperation(op)
		return
	}
	if op.target.Bus() == h.spec.RootBus {
		op.kind = map[tlp.Type]tlp.Type{tlp.CfgRd1: tlp.CfgRd0, tlp.CfgWr1: tlp.CfgWr0}[op.kind]
	}
	h.enqueue(op)
}

func (h *RootComplex) enqueue(op *operation) {
	if op.size == 0 {
		h.finishOperation(op)
		return
	}
	if op.kind != tlp.MWr {
		h.nextOp++
		op.id = h.nextOp
		h.live[op.id] = op
	}
	*h.ops.push() = op
}

// sendOperation emits one request of the oldest operation. sent is false when there was
// none to send, ok is false when emit refused it. A refused request already has a tag:
// the next call offers it first.
func (h *RootComplex) sendOperation(now time.Duration, emit func(p *tlp.Packet) bool) (sent, ok bool) {
	if !h.offered && !h.prepare(now) {
		return false, true
	}
	h.offered = !emit(&h.request)
	return !h.offered, !h.offered
}

// prepare makes h.request the next request, if there is one and a tag for it.
func (h *RootComplex) prepare(now time.Duration) bool {
	if h.ops.empty() {
		return false
	}
	op := *h.ops.front()
	n := h.build(op)
	var dst []byte
	if op.kind.Read() {
		dst = op.data[op.sent : op.sent+n]
	}
	if !h.requests.Begin(now, now+h.spec.Timeout, &h.request, dst, op.id) {
		return false
	}
	op.sent += n
	if op.kind != tlp.MWr {
		op.outstanding++
	}
	if op.sent < op.size {
		return true
	}
	h.ops.pop()
	if op.kind == tlp.MWr { // the request has a copy of its last bytes
		h.queued -= writeCost + op.size
		h.over(op)
	}
	return true
}

// build makes h.request the next request of an operation and returns its number of bytes.
func (h *RootComplex) build(op *operation) int {
	h.request = tlp.Packet{Type: op.kind, Length: 1}
	if op.kind.Config() {
		h.request.Target, h.request.Register, h.request.FirstBE = op.target, uint16(op.addr), op.be
		if op.kind.HasData() {
			h.request.Data = append(h.requestData[:0], op.word[:]...) // the request may outlive the operation
		}
		return op.size
	}
	addr := op.addr + uint64(op.sent)
	limit := int(h.spec.MaxRead)
	if op.kind == tlp.MWr {
		limit = int(h.spec.MaxPayload)
	}
	n := tlp.NextChunk(addr, op.size-op.sent, limit)
	h.request.SetMemory(addr, n)
	if op.kind == tlp.MWr {
		pad := transaction.Pad(addr)
		payload := h.requestData[:int(h.request.Length)*pcie.DW]
		clear(payload[:pad])
		clear(payload[pad+copy(payload[pad:], op.data[op.sent:op.sent+n]):])
		h.request.Data = payload
	}
	return n
}

// finish processes the end of one request of an operation.
func (h *RootComplex) finish(now time.Duration, r transaction.Result) {
	op := h.live[r.Cookie]
	if op == nil {
		return
	}
	op.outstanding--
	if r.Outcome == transaction.Completed && r.Status == pcie.RequestRetry && op.kind.Config() && h.retry(now, op) {
		return
	}
	if !r.OK() {
		op.failed = true
		fill(r.Dst)
		if r.Outcome == transaction.Completed {
			h.counters.Failed++
		} else {
			h.counters.Timeouts++
			h.tell(op)
		}
	}
	h.finishOperation(op)
}

// tell passes an access without an answer to the owner.
func (h *RootComplex) tell(op *operation) {
	if h.spec.TimedOut == nil {
		return
	}
	p := tlp.Packet{Type: op.kind, Target: op.target, Register: uint16(op.addr), Length: 1}
	if !op.kind.Config() {
		p.SetMemory(op.addr, 1)
	}
	h.spec.TimedOut(&p)
}

// retry schedules the repetition of a configuration access that the device cannot answer
// yet (section 2.3.2). It returns false after Spec.RetryFor.
func (h *RootComplex) retry(now time.Duration, op *operation) bool {
	if op.giveUp == 0 {
		op.giveUp = now + h.spec.RetryFor
	}
	if now >= op.giveUp {
		return false
	}
	h.counters.Retries++
	op.sent = 0
	op.notBefore = now + retryEvery
	h.retries = append(h.retries, op)
	return true
}

func (h *RootComplex) wakeRetries(now time.Duration) {
	kept := h.retries[:0]
	for _, op := range h.retries {
		if op.notBefore <= now {
			*h.ops.push() = op
		} else {
			kept = append(kept, op)
		}
	}
	h.retries = kept
}

// finishOperation reports the end of an operation after its last request.
func (h *RootComplex) finishOperation(op *operation) {
	if op.outstanding > 0 || op.sent < op.size {
		return
	}
	delete(h.live, op.id)
	if op.kind == tlp.MWr {
		return
	}
	e := Event{Kind: EventDone, Cookie: op.cookie, OK: !op.failed}
	if op.kind.Config() {
		e.Value = binary.LittleEndian.Uint32(op.word[:])
	}
	*h.events.push() = e
	h.over(op)
}

// fail fills the destination of a read with ones from the offset on.
func (op *operation) fail(from int) {
	op.failed = true
	if !op.kind.HasData() {
		fill(op.data[from:])
	}
}

func fill(b []byte) {
	for i := range b {
		b[i] = 0xff
	}
}
