package virtio

import (
	"encoding/binary"

	"github.com/dxpu-project/dxpu/tlp"
)

// Bits of the ISR status.
const (
	isrQueue  = 1
	isrConfig = 2
)

// fire makes a vector pending; without MSI-X it sets a bit of the ISR status.
func (d *Device) fire(vector uint16, isr uint8) {
	if on, _ := d.cfg.MSIXControl(); on {
		d.msix.Fire(uint32(vector))
	} else {
		d.isr |= isr
	}
}

// fireConfig interrupts for a change of the configuration. The ISR status tells it with MSI-X,
// too (section 4.1.4.5.1).
func (d *Device) fireConfig() {
	d.isr |= isrConfig
	d.fire(d.common.configVector, isrConfig)
}

// flushInterrupts sends the pending vectors that are not masked.
func (d *Device) flushInterrupts(emit func(p *tlp.Packet) bool) bool {
	on, masked := d.cfg.MSIXControl()
	if d.msix.Pending == 0 || !on || masked || !d.mayMaster() {
		return true
	}
	return d.msix.Flush(func(addr uint64, data uint32) bool {
		d.out = tlp.Packet{Type: tlp.MWr, Requester: d.id, Data: binary.LittleEndian.AppendUint32(d.buf[:0], data)}
		d.out.SetMemory(addr, 4)
		return emit(&d.out)
	})
}
