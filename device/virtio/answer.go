package virtio

import (
	"encoding/binary"

	"github.com/dxpu-project/dxpu/internal/dataplane/transaction"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// maxAnswers bounds the requests that wait for their completions: all tags of the host,
// and as many of its other devices. The device drops further requests, like a receiver
// that overflows, and their requester times out.
const maxAnswers = 2 * pcie.MaxTags

// answer is a completion to send.
type answer struct {
	request tlp.Packet // without Data
	status  pcie.CplStatus
	config  bool // the completion carries value
	memory  bool // a read of a BAR
	value   uint32
	isr     uint8 // ISR status at the time of the read, which has cleared it
}

// answers is the queue of completions. emit reads the registers, so the queue holds
// headers only.
type answers struct {
	queue   []answer
	head    int
	job     transaction.ReadJob
	started bool
}

func (a *answers) add(p *tlp.Packet, e answer) {
	if len(a.queue)-a.head >= maxAnswers {
		return
	}
	if a.head > 0 && len(a.queue) == cap(a.queue) {
		n := copy(a.queue, a.queue[a.head:])
		a.queue, a.head = a.queue[:n], 0
	}
	e.request = *p
	e.request.Data, e.request.Prefix = nil, nil // belong to the caller of Receive
	a.queue = append(a.queue, e)
}

func (a *answers) drop() {
	a.queue, a.head, a.started = a.queue[:0], 0, false
	a.job.Stop()
}

// emit sends the queue. It returns false when emit refuses a completion.
func (a *answers) emit(d *Device, emit func(*tlp.Packet) bool) bool {
	for a.head < len(a.queue) {
		if !a.one(d, &a.queue[a.head], emit) {
			return false
		}
		a.head++
	}
	a.queue, a.head = a.queue[:0], 0
	return true
}

func (a *answers) one(d *Device, e *answer, emit func(*tlp.Packet) bool) bool {
	if e.memory {
		if !a.started {
			a.job.Start(&e.request, d.id, pcie.DefaultRCB, d.maxPayload())
			a.started = true
		}
		if !a.job.Emit(&d.out, d.buf[:], func(addr uint64, dst []byte) pcie.CplStatus {
			bar, off, ok := d.decode(addr, len(dst))
			if !ok {
				return pcie.UnsupportedRequest
			}
			d.readBAR(bar, off, dst, e.isr)
			return pcie.SuccessfulCompletion
		}, emit) {
			return false
		}
		a.started = false
		return true
	}
	transaction.Respond(&d.out, &e.request, d.id, e.status)
	if e.config {
		d.out.Type, d.out.Length = tlp.CplD, 1
		d.out.Data = binary.LittleEndian.AppendUint32(d.buf[:0], e.value)
	}
	return emit(&d.out)
}

// decode finds the BAR for n bytes at a bus address; no BAR answers outside D0.
func (d *Device) decode(addr uint64, n int) (bar int, off uint64, ok bool) {
	if d.cfg.PowerState() != 0 || n < 0 {
		return 0, 0, false
	}
	return d.cfg.Decode(addr, uint64(max(n, 1)))
}

func (d *Device) memoryRead(p *tlp.Packet) {
	addr, n := p.ByteRange()
	bar, off, ok := d.decode(addr, n)
	if !ok || p.EP {
		d.refuse(p)
		return
	}
	d.answers.add(p, answer{memory: true, isr: d.takeISR(bar, off, n)})
}

// takeISR returns the ISR status for a read of n bytes. A read that includes it clears it.
func (d *Device) takeISR(bar int, off uint64, n int) (isr uint8) {
	if bar == barRegisters && off <= isrAt && off+uint64(n) > isrAt {
		isr, d.isr = d.isr, 0
	}
	return isr
}

func (d *Device) memoryWrite(p *tlp.Packet) {
	addr, n := p.ByteRange()
	if _, _, ok := d.decode(addr, n); !ok || p.EP {
		return
	}
	transaction.WriteBytes(p, func(addr uint64, src []byte) pcie.CplStatus {
		bar, off, ok := d.decode(addr, len(src))
		if !ok {
			return pcie.UnsupportedRequest
		}
		d.writeBAR(bar, off, src)
		return pcie.SuccessfulCompletion
	})
}

// readBAR reads registers; every byte that is not one is zero.
func (d *Device) readBAR(bar int, off uint64, dst []byte, isr uint8) {
	clear(dst)
	if bar == barMSIX {
		d.msix.Read(int(off), dst)
		return
	}
	overlap(int(off), dst, commonAt, commonSize, d.readCommon)
	overlap(int(off), dst, isrAt, 1, func(_ int, b []byte) { b[0] = isr })
	overlap(int(off), dst, deviceAt, len(d.config), func(at int, b []byte) { copy(b, d.config[at:]) })
}

func (d *Device) writeBAR(bar int, off uint64, src []byte) {
	if bar == barMSIX {
		d.msix.Write(int(off), src)
		return
	}
	overlap(int(off), src, commonAt, commonSize, d.writeCommon)
	overlap(int(off), src, notifyAt, len(d.queues)*notifyStep, func(at int, b []byte) {
		if at%notifyStep == 0 {
			d.notified(at/notifyStep, b)
		}
	})
}

// overlap calls f for the part of b, which is at off, inside size bytes at base: with the
// offset from base.
func overlap(off int, b []byte, base, size int, f func(at int, b []byte)) {
	lo, hi := max(off, base), min(off+len(b), base+size)
	if lo < hi {
		f(lo-base, b[lo-off:hi-off])
	}
}
