package vswitch

import (
	"encoding/binary"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// slotHost plays the hot-plug driver of an OS for slot 0.
type slotHost struct {
	*testBus
	id       pcie.BDF
	exp, msi uint16
}

func newSlotHost(t *testing.T) *slotHost {
	b := newTestBus(t, 1)
	root := b.enumerate()
	h := &slotHost{testBus: b, id: root.Children[0].Children[0].ID}
	h.exp = uint16(b.sw.down[0].express)
	h.msi = uint16(cfgspace.Find(b.sw.down[0].space.Bytes(), cfgspace.CapMSI))
	h.config(h.id, h.msi+4, 0xf, true, 0xfee0_0000)
	h.config(h.id, h.msi+12, 0x3, true, 0x41)
	h.config(h.id, h.msi, 0xc, true, cfgspace.MSIEnable<<16)
	h.control(cfgspace.SlotCtlPresence | cfgspace.SlotCtlHotPlug | cfgspace.SlotCtlLinkChange | cfgspace.SlotCtlAttnButton | cfgspace.SlotCtlCmdCpl)
	h.ack()
	h.interrupts()
	return h
}

func (h *slotHost) control(v uint16) {
	h.config(h.id, h.exp+cfgspace.OffSlotCtl, 0x3, true, uint32(v))
}

func (h *slotHost) status() uint16 {
	return uint16(h.config(h.id, h.exp+cfgspace.OffSlotCtl, 0xf, false, 0) >> 16)
}

// ack clears the events that are set.
func (h *slotHost) ack() {
	h.config(h.id, h.exp+cfgspace.OffSlotCtl, 0xc, true, uint32(h.status())<<16)
}

// interrupts counts the MSIs since the last call.
func (h *slotHost) interrupts() (n int) {
	for _, p := range append(h.up, h.drain()...) {
		if p.Type == tlp.MWr && p.Addr == 0xfee0_0000 && binary.LittleEndian.Uint32(p.Data) == 0x41 && p.Requester == h.id {
			n++
		}
	}
	h.up = nil
	return n
}

func (h *slotHost) linkActive() bool {
	return h.config(h.id, h.exp+cfgspace.OffLinkCtl, 0xf, false, 0)>>16&cfgspace.LinkStaActive != 0
}

func TestSurpriseRemoval(t *testing.T) {
	h := newSlotHost(t)
	h.plug(0)
	if got := h.interrupts(); got != 1 {
		t.Errorf("plug: %d interrupts, want 1: the condition is true once until it is acknowledged", got)
	}
	const changed = cfgspace.SlotStaPresence | cfgspace.SlotStaLinkChange
	if got := h.status(); got != changed|cfgspace.SlotStaPresent || !h.linkActive() {
		t.Errorf("plug: slot status %#x, link %v", got, h.linkActive())
	}
	h.ack()
	if got := h.status(); got != cfgspace.SlotStaPresent {
		t.Errorf("acknowledged: slot status %#x", got)
	}
	h.unplug(0)
	if got := h.interrupts(); got != 1 {
		t.Errorf("unplug: %d interrupts, want 1", got)
	}
	if got := h.status(); got != changed || h.linkActive() {
		t.Errorf("unplug: slot status %#x, link %v", got, h.linkActive())
	}
}

func TestLinkLoss(t *testing.T) {
	h := newSlotHost(t)
	h.plug(0)
	h.ack()
	h.interrupts()
	h.sw.SetLink(0, false)
	if got := h.interrupts(); got != 1 || h.linkActive() || h.status()&cfgspace.SlotStaPresent == 0 {
		t.Errorf("link lost: %d interrupts, link %v, slot status %#x", got, h.linkActive(), h.status())
	}
}

func TestCommandCompletes(t *testing.T) {
	h := newSlotHost(t)
	h.control(0x1fff &^ cfgspace.SlotCtlPowerOff)
	if h.status()&cfgspace.SlotStaCmdCpl == 0 || h.interrupts() != 1 {
		t.Errorf("slot status %#x after a command", h.status())
	}
}

func TestOrderlyRemoval(t *testing.T) {
	h := newSlotHost(t)
	h.plug(0)
	h.ack()
	h.interrupts()
	h.sw.PressAttention(0)
	if h.interrupts() != 1 || h.status()&cfgspace.SlotStaAttnButton == 0 {
		t.Fatalf("attention button: slot status %#x", h.status())
	}
	h.control(cfgspace.SlotCtlPowerOff)
	if h.sw.Active(0) {
		t.Error("link is up without power")
	}
	h.control(0)
	if !h.sw.Active(0) {
		t.Error("link is down with power")
	}
	want := []Event{{EventPowerOff, 0}, {EventPowerOn, 0}}
	if diff := cmp.Diff(want, h.events()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func (h *slotHost) events() (es []Event) {
	for e, ok := h.sw.NextEvent(); ok; e, ok = h.sw.NextEvent() {
		es = append(es, e)
	}
	return es
}

func TestResets(t *testing.T) {
	for _, c := range []struct {
		name  string
		do    func(h *slotHost)
		alive bool // the ports keep their configuration
	}{
		{"secondary bus reset of the downstream port", func(h *slotHost) {
			h.config(h.id, cfgspace.OffIntLine, 0xc, true, cfgspace.BridgeSecReset<<16)
			h.config(h.id, cfgspace.OffIntLine, 0xc, true, 0)
		}, true},
		{"secondary bus reset of the upstream port", func(h *slotHost) {
			h.config(pcie.NewBDF(1, 0, 0), cfgspace.OffIntLine, 0xc, true, cfgspace.BridgeSecReset<<16)
			h.config(pcie.NewBDF(1, 0, 0), cfgspace.OffIntLine, 0xc, true, 0)
		}, false},
		{"reset of the host", func(h *slotHost) { h.sw.Reset() }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newSlotHost(t)
			h.plug(0)
			c.do(h)
			if diff := cmp.Diff([]Event{{EventReset, 0}}, h.events()); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
			if got := h.sw.down[0].space.BusMaster(); got != c.alive {
				t.Errorf("downstream port: bus master %v, want %v", got, c.alive)
			}
			if !h.sw.Active(0) || h.sw.down[0].space.Read(h.sw.down[0].express+cfgspace.OffSlotSta, 2)&cfgspace.SlotStaPresent == 0 {
				t.Error("the device is gone from the slot")
			}
			h.enumerate()
		})
	}
}

func TestLinkDisable(t *testing.T) {
	h := newSlotHost(t)
	h.plug(0)
	h.config(h.id, h.exp+cfgspace.OffLinkCtl, 0x3, true, cfgspace.LinkCtlDisable)
	if h.sw.Active(0) {
		t.Error("a disabled link is up")
	}
	h.config(h.id, h.exp+cfgspace.OffLinkCtl, 0x3, true, 0)
	if !h.sw.Active(0) {
		t.Error("an enabled link is down")
	}
}

// The pins of device n are rotated by n (table 2-20), and two that meet on one
// upstream pin are combined.
func TestInterruptPins(t *testing.T) {
	b := newTestBus(t, 5)
	for slot := range 5 {
		b.plug(slot)
	}
	b.enumerate()
	wire := func(slot int, code uint8) (codes []uint8) {
		b.sw.FromSlot(slot, &tlp.Packet{Type: tlp.Msg, DW4: true, Routing: tlp.RouteLocal, Code: code})
		for _, p := range b.drain() {
			codes = append(codes, p.Code)
		}
		return codes
	}
	for _, c := range []struct {
		name string
		slot int
		code uint8
		want []uint8
	}{
		{"slot 0 asserts A", 0, tlp.CodeAssertINTA, []uint8{tlp.CodeAssertINTA}},
		{"again: no change", 0, tlp.CodeAssertINTA, nil},
		{"slot 1 asserts A, rotated to B", 1, tlp.CodeAssertINTA, []uint8{tlp.CodeAssertINTB}},
		{"slot 4 asserts A, already pulled", 4, tlp.CodeAssertINTA, nil},
		{"slot 0 lets go, slot 4 still pulls", 0, tlp.CodeDeassertINTA, nil},
	} {
		if diff := cmp.Diff(c.want, wire(c.slot, c.code)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
	b.sw.SetLink(4, false)
	if out := b.drain(); len(out) != 1 || out[0].Code != tlp.CodeDeassertINTA {
		t.Errorf("a lost link leaves its pin asserted: %v", out)
	}
}
