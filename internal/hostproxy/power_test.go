package hostproxy_test

import (
	"testing"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/device/gpu/driver/vfiouserbus"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
)

// "If No_Soft_Reset is Clear, a Function performs an internal reset upon
// transitioning from D3hot to D0" (section 5.3.1.4). A guest under QEMU does not
// see that its BARs were lost, and does not write them again.
func TestLeavingD3hotKeepsBARs(t *testing.T) {
	r := newCluster(t, options{})
	b := r.attach(0, 0, 0, 0)
	bus := r.bus(0, 0, vfiouserbus.Options{})
	regs, err := bus.BAR(reg.BARRegisters)
	if err != nil {
		t.Fatal(err)
	}
	control := int(bus.ConfigRead32(cfgspace.OffCapPtr)&0xff) + cfgspace.OffPMStatus // PM is the first
	for _, to := range []uint32{3, 0} {
		bus.ConfigWrite32(control, to)
		if got := bus.ConfigRead32(control) & 3; got != to {
			t.Errorf("power state %d, want %d", got, to)
		}
	}
	if command := bus.ConfigRead32(cfgspace.OffCommand); command&cfgspace.CmdMemory != 0 {
		t.Errorf("command %#x: the function was not reset", command)
	}
	bus.ConfigWrite32(cfgspace.OffCommand, cfgspace.CmdMemory|cfgspace.CmdBusMaster)
	if id := regs.Read32(reg.ID); id != reg.Magic {
		t.Errorf("ID register %#x, want %#x", id, reg.Magic)
	}
	check(t, bus.Close())
	r.detach(b)
}
