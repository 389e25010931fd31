package virtio

import (
	"github.com/dxpu-project/dxpu/internal/dataplane/transaction"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// readKept is the transaction.MemoryFunc of the device. isr is the ISR status at the time of the
// request, which has cleared it.
func (d *Device) readKept(addr uint64, dst []byte, isr uint32) pcie.CplStatus {
	bar, off, ok := d.decode(addr, len(dst))
	if !ok {
		return pcie.UnsupportedRequest
	}
	d.readBAR(bar, off, dst, uint8(isr))
	return pcie.SuccessfulCompletion
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
	d.answers.Memory(p, uint32(d.takeISR(bar, off, n)))
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
