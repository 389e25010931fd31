package driver_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/device/gpu/driver/drivertest"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/tlp"
)

func TestSelfTest(t *testing.T) {
	for _, c := range []struct {
		name string
		spec gpu.Spec
		opts driver.Options
	}{
		{"interrupts", gpu.Spec{}, driver.Options{}},
		{"polling", gpu.Spec{}, driver.Options{Polling: true}},
		{"small device", gpu.Spec{VRAM: 16 << 20, Aperture: 64 << 10, Tags: 1, Queues: 2, CopyEngines: 1, MaxReadRequest: 128}, driver.Options{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newGPUSystem(t, c.spec, c.opts)
			var out strings.Builder
			report, err := r.dev.SelfTest(t.Context(), &out, driver.SelfTestOptions{Quick: true})
			t.Logf("\n%s", out.String())
			if err != nil || !report.OK || report.Stale != 0 {
				t.Fatalf("ok %v, %d stale, %v", report.OK, report.Stale, err)
			}
			b, err := json.Marshal(report)
			if err != nil {
				t.Fatal(err)
			}
			var back driver.Report
			if err := json.Unmarshal(b, &back); err != nil || len(back.Checks) != len(report.Checks) {
				t.Errorf("JSON does not come back: %v", err)
			}
		})
	}
}

// hastyBus is the bus of a device so fast that fences are there before anyone waits for
// them: a doorbell returns when its commands are done, or after many looks.
type hastyBus struct{ driver.Bus }

func (b hastyBus) BAR(i int) (driver.Region, error) {
	r, err := b.Bus.BAR(i)
	return hastyRegion{r}, err
}

type hastyRegion struct{ driver.Region }

func (r hastyRegion) Write32(off uint64, v uint32) {
	r.Region.Write32(off, v)
	if off < reg.Queue || off%reg.QueueStride != reg.QDoorbell {
		return
	}
	for i := 0; i < 1000 && r.Read32(off-reg.QDoorbell+reg.QHead) != v; i++ {
	}
}

// No fence needs its interrupt then, but all of them arrive.
func TestSelfTestOfFastDevice(t *testing.T) {
	sys := newSystem(t, drivertest.Config{})
	if err := sys.Plug(0, newGPU(t, gpu.Spec{})); err != nil {
		t.Fatal(err)
	}
	bus, err := sys.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	dev, err := driver.Open(t.Context(), hastyBus{bus}, driver.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	report, err := dev.SelfTest(t.Context(), &out, driver.SelfTestOptions{Quick: true})
	if err != nil || !report.OK {
		t.Errorf("ok %v, %v:\n%s", report.OK, err, out.String())
	}
}

// A self-test that tests nothing would pass as well: damage must be seen.
func TestSelfTestSeesDamage(t *testing.T) {
	damaged := false
	sys := newSystem(t, drivertest.Config{Filter: func(_ int, up bool, p *tlp.Packet) bool {
		if up && p.Type == tlp.MWr && len(p.Data) > 64 && !damaged {
			p.Data[5] ^= 1
			damaged = true
		}
		return true
	}})
	d := plug(t, sys, 0, newGPU(t, gpu.Spec{}), driver.Options{})
	var out strings.Builder
	report, err := d.SelfTest(t.Context(), &out, driver.SelfTestOptions{Quick: true})
	if err != nil || report.OK || !strings.Contains(out.String(), "FAIL") {
		t.Errorf("ok %v, %v", report.OK, err)
	}
}

// Memory that is behind the register read is what the ordering check is for.
func TestSelfTestSeesStaleMemory(t *testing.T) {
	var held *tlp.Packet
	sys := newSystem(t, drivertest.Config{Filter: func(_ int, up bool, p *tlp.Packet) bool {
		// A posted write of a fence value of the ordering check is dropped.
		if up && p.Type == tlp.MWr && p.Length == 2 && p.Data[6] == 1 && p.Data[0] == 100 {
			held = p
			return false
		}
		return true
	}})
	d := plug(t, sys, 0, newGPU(t, gpu.Spec{}), driver.Options{})
	var out strings.Builder
	report, err := d.SelfTest(t.Context(), &out, driver.SelfTestOptions{Quick: true})
	t.Logf("\n%s", out.String())
	if err != nil || report.OK || report.Stale != 1 || held == nil {
		t.Errorf("ok %v, %d stale, %v", report.OK, report.Stale, err)
	}
}

func TestSelfTestOfLostDevice(t *testing.T) {
	r := newGPUSystem(t, gpu.Spec{}, driver.Options{})
	stop := time.AfterFunc(20*time.Millisecond, func() { r.sys.Unplug(0) })
	defer stop.Stop()
	if _, err := r.dev.SelfTest(t.Context(), &strings.Builder{}, driver.SelfTestOptions{}); !errors.Is(err, driver.ErrDeviceLost) {
		t.Errorf("%v", err)
	}
}
