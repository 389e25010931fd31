package hostproxy_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// glutton is a device that reads host memory without waiting for answers, in runs and with
// more requests than there are tags.
type glutton struct {
	device.Device
	from                   atomic.Uint64 // address of the pages; 0: it does not read
	sent, good, overflowed atomic.Uint64
}

func (g *glutton) Transmit(now time.Duration, emit func(*tlp.Packet) bool) {
	g.Device.Transmit(now, emit)
	const pages, burst = 16, 2048
	for range burst / pages {
		from := g.from.Load()
		if from == 0 {
			return
		}
		reads := pageReads(0x100, from, pages)
		for i := range reads {
			if !emit(&reads[i]) {
				return
			}
			g.sent.Add(1)
		}
	}
}

func (g *glutton) Receive(now time.Duration, p *tlp.Packet) bool {
	if !p.Type.Completion() || p.Tag < forgedTag {
		return g.Device.Receive(now, p)
	}
	switch p.Status {
	case pcie.SuccessfulCompletion:
		g.good.Add(1)
	case pcie.CompleterAbort:
		g.overflowed.Add(1)
	}
	return true
}

// A device that floods its host with runs of reads gets at most one answer for each, an
// error for those beyond the tags that a device can have, and works on afterwards.
// Meanwhile its neighbour works.
func TestFloodOfReads(t *testing.T) {
	var gluttons []*glutton
	r := newCluster(t, options{gpus: 2, hosts: 2, spec: gpu.Spec{Tags: 64}, wrap: func(d device.Device) device.Device {
		gluttons = append(gluttons, &glutton{Device: d})
		return gluttons[len(gluttons)-1]
	}})
	r.attach(0, 0, 0, 0)
	r.attach(1, 0, 0, 1)
	bus, dev := r.open1(0, 0)
	defer closeBoth(t, bus, dev)
	other, neighbour := r.open1(1, 0)
	defer closeBoth(t, other, neighbour)
	memory, err := dev.AllocDMA(16 * 4096)
	if err != nil {
		t.Fatal(err)
	}
	g := gluttons[0]
	g.from.Store(memory.Segments()[0].Addr)
	dev.Registers().Write32(reg.Scratch, 1)
	holdsOnce(t, func() {}, func() error {
		if median, limit := readsFor(t, neighbour, floodFor), readLimit(0); median > limit {
			return fmt.Errorf("the neighbour's reads take %v, want at most %v", median, limit)
		}
		return nil
	})
	r.until("refused reads", func() bool { return g.good.Load() > 0 && g.overflowed.Load() > 0 })
	g.from.Store(0)
	if v := dev.Registers().Read32(reg.ID); v != reg.Magic {
		t.Errorf("the device itself reads %#x", v)
	}
	t.Logf("%d reads, %d answered, %d beyond the tags", g.sent.Load(), g.good.Load(), g.overflowed.Load())
	if g.good.Load()+g.overflowed.Load() > g.sent.Load() {
		t.Errorf("%d answers and %d refusals of %d reads", g.good.Load(), g.overflowed.Load(), g.sent.Load())
	}
}
