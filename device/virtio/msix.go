package virtio

import (
	"encoding/binary"
	mathbits "math/bits"

	"github.com/dxpu-project/dxpu/tlp"
)

// msix is the content of the MSI-X BAR (PCI Express, section 7.7.2), and the ISR status,
// which a driver without MSI-X reads.
type msix struct {
	table   [MaxQueues + 1]msixEntry
	pending uint64 // bit per vector
	isr     uint8
}

// Bits of the ISR status.
const (
	isrQueue  = 1
	isrConfig = 2
)

// msixEntry is one entry of the table as in memory. Unmasked is the inverse of the mask bit,
// which is set after reset.
type msixEntry struct {
	addr     uint64
	data     uint32
	unmasked bool
}

const msixEntrySize = 16

func (e *msixEntry) bytes() (b [msixEntrySize]byte) {
	binary.LittleEndian.PutUint64(b[:], e.addr)
	binary.LittleEndian.PutUint32(b[8:], e.data)
	if !e.unmasked {
		b[12] = 1
	}
	return b
}

func (m *msix) read(off int, dst []byte, vectors int) {
	for v := range vectors {
		overlap(off, dst, v*msixEntrySize, msixEntrySize, func(at int, b []byte) {
			e := m.table[v].bytes()
			copy(b, e[at:])
		})
	}
	overlap(off, dst, msixPBA, 8, func(at int, b []byte) {
		var w [8]byte
		binary.LittleEndian.PutUint64(w[:], m.pending)
		copy(b, w[at:])
	})
}

func (m *msix) write(off int, src []byte, vectors int) {
	for v := range vectors {
		overlap(off, src, v*msixEntrySize, msixEntrySize, func(at int, b []byte) {
			e := m.table[v].bytes()
			copy(e[at:], b)
			m.table[v] = msixEntry{
				addr: binary.LittleEndian.Uint64(e[:]) &^ 3, data: binary.LittleEndian.Uint32(e[8:]), unmasked: e[12]&1 == 0,
			}
		})
	}
}

// fire makes a vector pending and sets a bit of the ISR status.
func (d *Device) fire(vector uint16, isr uint8) {
	on, _ := d.cfg.MSIXControl()
	switch {
	case !on:
		d.msix.isr |= isr
	case int(vector) <= len(d.queues):
		d.msix.pending |= 1 << vector
	}
}

// fireConfig interrupts for a change of the configuration.
func (d *Device) fireConfig() { d.fire(d.common.configVector, isrConfig) }

// flushInterrupts sends the pending vectors that are not masked.
func (d *Device) flushInterrupts(emit func(p *tlp.Packet) bool) bool {
	on, masked := d.cfg.MSIXControl()
	if d.msix.pending == 0 || !on || masked || !d.mayMaster() {
		return true
	}
	for rest := d.msix.pending; rest != 0; rest &= rest - 1 {
		v := mathbits.TrailingZeros64(rest)
		e := &d.msix.table[v]
		if !e.unmasked {
			continue
		}
		d.out = tlp.Packet{Type: tlp.MWr, Requester: d.id, Data: binary.LittleEndian.AppendUint32(d.buf[:0], e.data)}
		d.out.SetMemory(e.addr, 4)
		if !emit(&d.out) {
			return false
		}
		d.msix.pending &^= 1 << v
	}
	return true
}
