package hostproxy

import (
	"strings"
	"testing"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/internal/rawio/reader"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
	"github.com/dxpu-project/dxpu/vfiouser"
)

// A device whose registers are behind I/O BARs only is refused with that reason.
func TestIOBARs(t *testing.T) {
	io, memory := pcie.BAR{Size: 256, IO: true}, pcie.BAR{Size: 4096}
	for _, c := range []struct {
		name string
		bars [pcie.MaxBARs]pcie.BAR
		says string
	}{
		{"none", [pcie.MaxBARs]pcie.BAR{}, ""},
		{"memory and I/O", [pcie.MaxBARs]pcie.BAR{io, memory}, ""},
		{"I/O only", [pcie.MaxBARs]pcie.BAR{2: io}, "I/O BARs only (BAR 2 of 256 bytes)"},
	} {
		err := (&remote{bars: c.bars}).usable()
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", c.name, err, c.says)
		}
	}
}

// IRQ_INFO gives the interrupts of the device.
func TestInterruptsOfTheDevice(t *testing.T) {
	config := make([]byte, pcie.ConfigSize)
	config[6], config[0x34] = 0x10, 0x40 // a list of capabilities
	config[0x40], config[0x42] = cfgspace.CapMSI, 3<<1
	v := &vm{device: &remote{config: config, msiVectors: msiVectors(config), msixVectors: 16}}
	if got, want := v.serverConfig(0, reader.Polling{}).IRQs, [vfiouser.NumIRQs]uint32{0, 8, 16, 0, 1}; got != want {
		t.Errorf("vectors %v, want %v", got, want)
	}
	config[cfgspace.OffIntPin], config[0x40] = 1, 0x09
	v.device.msiVectors = msiVectors(config)
	if got, want := v.serverConfig(0, reader.Polling{}).IRQs, [vfiouser.NumIRQs]uint32{1, 0, 16, 0, 1}; got != want {
		t.Errorf("vectors %v, want %v", got, want)
	}
}

// A function stays in its power state when a write asks for one that it does not support.
func TestPowerStates(t *testing.T) {
	const pm = 0x40
	config := make([]byte, pcie.ConfigSize)
	r := &remote{config: config, power: pm}
	config[pm+cfgspace.OffPMCaps+1] = 1 << 2 // D2_Support
	for state, want := range []bool{true, false, true, true} {
		p := tlp.Packet{Type: tlp.CfgWr0, Register: pm + cfgspace.OffPMStatus, FirstBE: 0xf, Data: []byte{byte(state), 0, 0, 0}}
		if got, ok := r.powerTo(&p); int(got) != state || ok != want {
			t.Errorf("a write of %d: state %d, %v, want %v", state, got, ok, want)
		}
	}
}
