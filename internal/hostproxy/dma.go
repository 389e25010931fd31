package hostproxy

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
	"github.com/dxpu-project/dxpu/internal/dataplane/transaction"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
	"github.com/dxpu-project/dxpu/vfiouser"
)

// Interrupt messages are writes to this window (Intel SDM volume 3, section
// 11.11.1); no memory lies there.
const (
	msiBase  = 0xfee00000
	msiLimit = 0xfeefffff
)

// Receive carries out the device's DMA and interrupts, and takes the answers to
// the VM's own requests. A write is in guest memory before Receive takes the next
// TLP, which keeps PCIe's ordering.
func (v *vm) Receive(e engine.Entry, p *tlp.Packet) bool {
	switch {
	case p.Type.Completion():
		v.root.complete(e, p)
	case p.Type == tlp.MWr:
		switch transaction.WriteBytes(p, v.writeMem) {
		case pcie.SuccessfulCompletion:
		case notNow:
			return false
		default:
			v.slot.counters.dmaRefused.Add(1)
		}
	case p.Type == tlp.MRd || p.Type == tlp.MRdLk:
		if !v.reads.add(p, v.device.payload) {
			v.slot.refuse(e, p, pcie.CompleterAbort)
		}
	case p.Type.Atomic():
		return v.atomic(e, p)
	case p.Type.Message():
		v.message(p)
	default:
		v.slot.counters.unsupported.Add(1)
		v.slot.refuse(e, p, pcie.UnsupportedRequest)
	}
	return true
}

// ReceiveRun queues a run of reads, or stores a run of writes in guest memory. If one of
// the writes is to a place that is not mapped, or not shared, or the interrupt window,
// Receive takes them one by one.
func (v *vm) ReceiveRun(_ engine.Entry, r *link.Run) bool {
	if r.Reads() {
		return v.reads.addRun(r, v.device.payload)
	}
	addr, last := r.First.Addr, r.First.Addr+uint64(len(r.Data))-1
	if v.bus == nil || addr <= msiLimit && last >= msiBase {
		return false
	}
	return v.bus.Memory().TryWrite(addr, r.Data)
}

// notNow is the status of a write that must wait until the VMM has taken
// messages. It never reaches a device.
const notNow = pcie.RequestRetry

// write stores a run of bytes in guest memory; a message to the interrupt
// window becomes an interrupt. It writes memory that the VMM does not share by
// messages, which keep their order, including interrupts. Such a write can become
// visible after a read completion that it should precede: the VMM serves no DMA
// message while it waits for that completion.
func (v *vm) write(addr uint64, src []byte) pcie.CplStatus {
	if v.bus == nil {
		return pcie.UnsupportedRequest
	}
	if addr >= msiBase && addr <= msiLimit && len(src) == pcie.DW {
		data := binary.LittleEndian.Uint32(src)
		err := v.queue(func() error { return v.bus.SignalMSI(addr, data, v.onSignalled) })
		if errors.Is(err, vfiouser.ErrQueueFull) {
			return notNow
		}
		v.slot.counters.interrupts.Add(1)
		if err != nil {
			v.log.Warn("interrupt lost", "err", err)
		}
		return pcie.SuccessfulCompletion
	}
	err := v.bus.Memory().Write(addr, src)
	if errors.Is(err, vfiouser.ErrNoDescriptor) {
		data := append([]byte(nil), src...)
		err = v.queue(func() error { return v.bus.DMAWrite(addr, data, v.onWrote) })
		if errors.Is(err, vfiouser.ErrQueueFull) {
			return notNow
		}
	}
	return status(err)
}

// queue passes a message to the connection. While the connection's queue is full
// the slot refuses the device's TLPs; the end of a queued message resumes them.
func (v *vm) queue(message func() error) error {
	err := message()
	if !errors.Is(err, vfiouser.ErrQueueFull) {
		return err
	}
	v.full.Store(true)
	return message() // the queue may have emptied before the flag was set
}

// wrote notes the end of a write message. The connection may call it from inside
// any of its methods, whether or not the caller has entered the group.
func (v *vm) wrote(err error) {
	if err != nil {
		v.slot.counters.dmaRefused.Add(1)
	}
	v.signalled(nil)
}

// signalled notes the end of an interrupt message. An error is the guest's
// choice: QEMU refuses messages while Bus Master Enable is clear.
func (v *vm) signalled(error) {
	if v.full.CompareAndSwap(true, false) {
		v.slot.host.group.Post(v.resume)
	}
}

// resume makes the group offer the refused TLPs again.
func (v *vm) resume(e engine.Entry) {
	if v.slot.binding != nil {
		v.slot.binding.Touch(e)
	}
}

// read fetches a run of bytes from guest memory.
func (v *vm) read(addr uint64, dst []byte) pcie.CplStatus {
	if v.bus == nil {
		return pcie.UnsupportedRequest
	}
	if f := v.reads.fetched(addr, len(dst)); f != nil {
		copy(dst, f)
		return pcie.SuccessfulCompletion
	}
	return status(v.bus.Memory().Read(addr, dst))
}

// tryRead is read for a caller that calls read if it fails: the VM's memory counts no refusal.
func (v *vm) tryRead(addr uint64, dst []byte) bool {
	if f := v.reads.fetched(addr, len(dst)); f != nil {
		return copy(dst, f) == len(dst)
	}
	return v.bus != nil && v.bus.Memory().TryRead(addr, dst)
}

func status(err error) pcie.CplStatus {
	if err != nil {
		return pcie.UnsupportedRequest
	}
	return pcie.SuccessfulCompletion
}

// atomic does an AtomicOp on guest memory and sends the original value back.
// It is atomic among the devices of this host. Towards the guest's processors it
// is not, as on a platform without AtomicOp routing.
func (v *vm) atomic(e engine.Entry, p *tlp.Packet) bool {
	if v.slot.binding == nil || !v.slot.roomFor(e, 1) {
		return false // before memory is changed
	}
	transaction.ExecuteAtomic(&v.out, p, rootID, v.reads.buf, v.readMem, v.writeMem)
	switch v.out.Status {
	case pcie.SuccessfulCompletion:
	case notNow:
		return false
	default:
		v.slot.counters.dmaRefused.Add(1)
	}
	_ = v.slot.send(e, &v.out) // Room was checked: an error means that the link goes down
	return true
}

func (v *vm) message(p *tlp.Packet) {
	switch p.Code {
	case tlp.CodeAssertINTA, tlp.CodeDeassertINTA:
		if v.bus == nil {
			return
		}
		asserted := p.Code == tlp.CodeAssertINTA
		if asserted {
			v.slot.counters.interrupts.Add(1)
		}
		if err := v.bus.SetINTx(asserted); err != nil && !errors.Is(err, vfiouser.ErrNotArmed) {
			v.log.Warn("INTx lost", "err", err)
		}
	case tlp.CodeErrCor, tlp.CodeErrNonFatal, tlp.CodeErrFatal:
		v.slot.counters.errors.Add(1)
		v.log.Warn("device reports an error", "code", tlp.CodeName(p.Code))
	}
}

// fetch reads a run of bytes of guest memory into the send buffer of the link, from
// where they are sent without another copy. It returns nil if it cannot.
func (v *vm) fetch(addr uint64, n int) []byte {
	if v.slot.binding == nil || v.slot.gone {
		return nil
	}
	dst := v.slot.binding.Payload(v.reads.entry, n)
	if dst == nil || !v.tryRead(addr, dst) {
		return nil
	}
	return dst
}

// Transmit sends completions while the link has room.
func (v *vm) Transmit(e engine.Entry) {
	v.sendReset(e)
	v.reads.entry = e
	for !v.reads.empty() && v.slot.roomFor(e, v.device.payload) {
		if v.reads.answerRun(e, v.slot, v.tryMem) {
			continue
		}
		job := v.reads.front()
		if !v.prepare(job) {
			return // fetched by message: continues when the data have arrived
		}
		if job.status != pcie.SuccessfulCompletion {
			job.Fail(&v.out, job.status)
			if !v.toDevice(&v.out) {
				return
			}
			v.slot.counters.dmaRefused.Add(1)
			v.reads.pop()
			continue
		}
		if !job.EmitFrom(&v.out, v.reads.buf, v.fetchMem, v.readMem, v.sendTLP) {
			return
		}
		v.reads.pop()
	}
}

// Owes reports whether reads of the device wait for their completions.
func (v *vm) Owes(engine.Entry) bool { return !v.reads.empty() }

// Wake returns machine.Never: completions wait only for the link.
func (v *vm) Wake(engine.Entry) time.Duration { return machine.Never }

// toDevice sends a completion down; false means that the link is full.
func (v *vm) toDevice(p *tlp.Packet) bool { return v.slot.forward(v.reads.entry, p) }

// prepare reports whether the bytes of a read can be copied now. It fetches memory
// that the VMM does not share by message, once for the whole request.
func (v *vm) prepare(job *readJob) bool {
	switch job.fetch {
	case fetchDone:
		return true
	case fetchPending:
		return false
	}
	addr, n := job.addr, job.n
	if v.bus == nil {
		job.fetch, job.status = fetchDone, pcie.UnsupportedRequest
		return true
	}
	inPlace, err := v.bus.Memory().Check(addr, n, false)
	job.fetch, job.status = fetchDone, status(err)
	if err != nil || inPlace {
		return true
	}
	return v.fetchMessage(v.bus, job)
}

// dmaReader is the connection to a VMM, as fetchMessage needs it.
type dmaReader interface {
	DMARead(addr uint64, p []byte, done func(error)) error
}

// fetchMessage begins to fetch the bytes of a read by message. It reports whether the read has
// ended already.
func (v *vm) fetchMessage(bus dmaReader, job *readJob) bool {
	bytes, ticket := make([]byte, job.n), job.ticket
	job.fetch, job.bytes = fetchPending, bytes
	err := v.queue(func() error {
		return bus.DMARead(job.addr, bytes, func(err error) {
			v.slot.host.group.Post(func(e engine.Entry) {
				v.reads.arrived(ticket, status(err))
				v.resume(e)
			})
		})
	})
	switch {
	case errors.Is(err, vfiouser.ErrQueueFull): // the Transmit after the end of the next message tries again
		job.fetch, job.bytes = fetchNone, nil
	case err != nil:
		job.fetch, job.status = fetchDone, status(err)
		return true
	}
	return false
}
