package opencl_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/device/opencl"
)

// hostTimer is the parameter of a platform for the resolution of its timer of the host.
const hostTimer = 0x0905

// The time of a device is of the clock of the events' times. A platform without timers is not asked for
// it: it may have no function for it.
func TestTimer(t *testing.T) {
	r := newTenant(t, opencl.Spec{})
	if r.read32(reg.ComputeFeatures)&reg.FeatureTimer == 0 {
		t.Error("the device does not offer the packet")
	}
	properties, _ := r.do(0, reg.PacketInfo, 0, 0, nil)
	if !timed(properties) {
		r.do(-59, reg.PacketTimer, 0, 0, nil)
		return
	}
	r.do(0, reg.PacketQueue, 0, 0, fields(u32(hQueue), uint32(0)))
	ask := func() uint64 {
		data, _ := r.do(0, reg.PacketTimer, 0, 0, nil)
		if len(data) != 8 {
			t.Fatalf("time %x", data)
		}
		return binary.LittleEndian.Uint64(data)
	}
	before := ask()
	_, e := r.do(0, reg.PacketMarker, hQueue, 0, noWaits)
	if after := ask(); before > e.Queued || e.Ended > after {
		t.Errorf("a marker from %d to %d between times %d and %d", e.Queued, e.Ended, before, after)
	}
}

// timed reports whether the properties have a timer of the host.
func timed(properties []byte) bool {
	le := binary.LittleEndian
	for b := properties; len(b) >= 16; {
		size := le.Uint64(b[8:])
		value := b[16:][:size]
		if le.Uint32(b) == hostTimer && !bytes.Equal(value, make([]byte, size)) {
			return true
		}
		b = b[16+(size+7)&^7:]
	}
	return false
}
