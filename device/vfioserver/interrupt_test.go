package vfioserver_test

import (
	"strings"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/tlp"
)

func (h *tlpHost) enableMSIX() (control int) {
	const msixCap = 0x94
	if id := h.configRead(msixCap) & 0xff; id != cfgspace.CapMSIX {
		h.t.Fatalf("capability %#x at %#x", id, msixCap)
	}
	for v := range uint64(toyVectors) {
		h.write32(toyTable+16*v, msiBase)
		h.write32(toyTable+16*v+8, 0x40+uint32(v))
	}
	h.configWrite(msixCap+2, 2, cfgspace.MSIXEnable)
	return msixCap + 2
}

func (h *tlpHost) fire(vector uint32) {
	h.write32(toyVector, vector)
	h.write32(toyCommand, toyFire)
}

func TestDeviceServerMSIX(t *testing.T) {
	h := newTLPHost(t, newToy(t, nil))
	control := h.enableMSIX()
	mask := func(v uint64, bit uint32) { h.write32(toyTable+16*v+12, bit) }
	for v := range uint64(toyVectors) {
		mask(v, 0)
	}
	if got := h.read32(toyTable + 16*2 + 8); got != 0x42 {
		t.Errorf("table says %#x", got)
	}
	h.fire(2)
	h.until("vector 2", func() bool { return len(h.msis) == 1 && h.msis[0] == 0x42 })

	mask(1, 1)
	h.fire(1)
	h.until("pending bit 1", func() bool { return h.read32(toyPBA) == 1<<1 })
	h.fire(3)
	h.until("vector 3", func() bool { return len(h.msis) == 2 && h.msis[1] == 0x43 })
	mask(1, 0)
	h.until("vector 1 after its mask", func() bool { return len(h.msis) == 3 && h.msis[2] == 0x41 })

	h.configWrite(control, 2, cfgspace.MSIXEnable|cfgspace.MSIXMask)
	h.fire(0)
	h.until("pending bit 0", func() bool { return h.read32(toyPBA) == 1 })
	h.configWrite(control, 2, cfgspace.MSIXEnable)
	h.until("vector 0 after the function's mask", func() bool { return len(h.msis) == 4 && h.msis[3] == 0x40 })

	h.configWrite(control, 2, 0)
	h.fire(2)
	_ = h.read32(toyScratch) // behind the command
	h.configWrite(control, 2, cfgspace.MSIXEnable)
	h.fire(1)
	h.until("vector 1 after enabling again", func() bool { return len(h.msis) == 5 })
	if h.msis[4] != 0x41 {
		t.Errorf("interrupts %#x: one was sent while MSI-X was off", h.msis)
	}
}

// A server that takes the descriptors of its interrupts late has interrupts all the same,
// and one that never does has failed: the driver would wait without end.
func TestLateInterrupts(t *testing.T) {
	t.Run("late", func(t *testing.T) {
		late := time.After(1200 * time.Millisecond) // more than a host's Completion Timeout
		h := newTLPHost(t, newToy(t, func(d *toy) { d.arm = func() { <-late } }))
		h.enableMSIX()
		h.write32(toyTable+12, 0)
		h.fire(0)
		h.until("vector 0", func() bool { return len(h.msis) == 1 })
	})
	t.Run("never", func(t *testing.T) {
		over := make(chan struct{})
		h := newTLPHost(t, newToy(t, func(d *toy) { d.arm = func() { <-over } }))
		t.Cleanup(func() { close(over) })
		h.enableMSIX()
		h.write32(toyTable+12, 0)
		h.until("the failure", func() bool {
			ok, why := h.dev.Check()
			return !ok && strings.Contains(why, "does not take event descriptors: ")
		})
	})
}

func TestDeviceServerMSI(t *testing.T) {
	h := newTLPHost(t, newToy(t, nil))
	const msiCap = 0x7c
	if id := h.configRead(msiCap) & 0xff; id != cfgspace.CapMSI {
		t.Fatalf("capability %#x at %#x", id, msiCap)
	}
	h.configWrite(msiCap+4, 4, msiBase)
	h.configWrite(msiCap+12, 2, 0x50)
	h.configWrite(msiCap+2, 2, cfgspace.MSIEnable|2<<4) // 4 vectors
	h.fire(3)
	h.until("vector 3", func() bool { return len(h.msis) == 1 && h.msis[0] == 0x53 })
	h.configWrite(msiCap+16, 4, 1<<1)
	h.fire(1)
	h.fire(2)
	h.until("vector 2", func() bool { return len(h.msis) == 2 && h.msis[1] == 0x52 })
	h.configWrite(msiCap+16, 4, 0)
	h.until("vector 1 after its mask", func() bool { return len(h.msis) == 3 && h.msis[2] == 0x51 })
}

func TestDeviceServerINTx(t *testing.T) {
	d := newToy(t, nil)
	h := newTLPHost(t, d)
	h.write32(toyCommand, toyRaise)
	h.until("INTA", func() bool { return len(h.wires) == 1 && h.wires[0] == tlp.CodeAssertINTA })
	status := func() bool { return h.configRead(cfgspace.OffCommand)>>16&cfgspace.StaInterrupt != 0 }
	if !status() {
		t.Error("Interrupt Status is 0 while the interrupt is pending")
	}
	// The handler looks at the device: taken for the end, and the level raises it again.
	_ = h.read32(toyScratch)
	h.until("INTA again", func() bool { return len(h.wires) == 3 })
	if h.wires[1] != tlp.CodeDeassertINTA || h.wires[2] != tlp.CodeAssertINTA {
		t.Errorf("messages %#x", h.wires)
	}
	acks := d.get(toyAcks)
	h.write32(toyCommand, toyLower)
	h.until("the end of INTA", func() bool { return d.get(toyAcks) > acks && h.wires[len(h.wires)-1] == tlp.CodeDeassertINTA })
	if status() {
		t.Error("Interrupt Status is 1 after the interrupt")
	}
	h.configWrite(cfgspace.OffCommand, 2, cfgspace.CmdMemory|cfgspace.CmdBusMaster|cfgspace.CmdINTxDisable)
	n := len(h.wires)
	h.write32(toyCommand, toyRaise)
	h.write32(toyCommand, toyLower)
	_ = h.read32(toyScratch)
	if len(h.wires) != n {
		t.Errorf("INTx while it is disabled: %#x", h.wires[n:])
	}
}
