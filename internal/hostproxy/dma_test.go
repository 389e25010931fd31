package hostproxy_test

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/device/gpu/driver/vfiouserbus"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
)

var fronts = []struct {
	name   string
	inside bool
}{{"vfio-user", false}, {"embedded", true}}

func TestSelfTest(t *testing.T) {
	if raceEnabled {
		t.Skip("the driver's own test takes long under the race detector: its parts are tested apart")
	}
	for _, c := range fronts {
		t.Run(c.name, func(t *testing.T) {
			r := newCluster(t, options{inside: c.inside})
			r.attach(0, 0, 0, 0)
			bus, dev := r.open1(0, 0)
			selfTest(t, dev, driver.SelfTestOptions{Quick: true})
			closeBoth(t, bus, dev)
		})
	}
}

// A device's write is in the host's memory when the completion of the register
// read behind it arrives (PCI Express Base Specification, table 2-40): none of two
// thousand reads is stale.
func TestWritesAreVisibleBeforeReads(t *testing.T) {
	for _, c := range fronts {
		t.Run(c.name, func(t *testing.T) {
			r := newCluster(t, options{inside: c.inside})
			r.attach(0, 0, 0, 0)
			bus, dev := r.open1(0, 0)
			s, err := dev.NewStream()
			if err != nil {
				t.Fatal(err)
			}
			m, err := dev.AllocDMA(4096)
			if err != nil {
				t.Fatal(err)
			}
			const rounds, first = 2000, 1 << 40
			stale := 0
			seen := reg.Queue + uint64(s.Queue())*reg.QueueStride + reg.QFence
			for i := uint64(first); i < first+rounds; i++ {
				check(t, s.Submit(t.Context(), reg.Fence(0, m.Segments()[0].Addr, i)))
				for n := 0; dev.Registers().Read64(seen) != i; n++ {
					if n > 1e5 {
						t.Fatal("the fence is not written")
					}
				}
				if m.Load64(0) != i {
					stale++
				}
			}
			if stale > 0 {
				t.Errorf("%d stale of %d", stale, rounds)
			}
			check(t, s.Close())
			closeBoth(t, bus, dev)
		})
	}
}

// DMA to addresses that the VM did not map is refused, counted, and reaches
// the device as Unsupported Request.
func TestDMAOutsideMemoryIsRefused(t *testing.T) {
	const nowhere = 0x000f_dead_0000_0000
	for _, c := range []struct {
		name    string
		command reg.Command
		halts   bool // reads are answered; a refused write leaves no trace at the device
	}{
		{"read", reg.CopyToVRAM(0, 0, nowhere, 4096), true},
		{"write", reg.CopyFromVRAM(0, nowhere, 0, 256), false},
		{"read of the interrupt window", reg.CopyToVRAM(0, 0, 0xfee0_0000, 64), true},
		{"fence", reg.Fence(0, nowhere, 7), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newCluster(t, options{})
			b := r.attach(0, 0, 0, 0)
			bus, dev := r.open1(0, 0)
			s, err := dev.NewStream()
			if err != nil {
				t.Fatal(err)
			}
			check(t, s.Submit(t.Context(), c.command))
			err = s.Sync(t.Context())
			var q *driver.QueueError
			switch {
			case c.halts && (!errors.As(err, &q) || q.Code != reg.ErrDMARefused):
				t.Errorf("the device says %v, want that its DMA was refused", err)
			case !c.halts && err != nil:
				t.Error(err)
			}
			if n := metric(t, r.hosts[0], "slot_dma_refused_total"); n == 0 {
				t.Error("not counted")
			}
			if b := r.atHost(b); b == nil {
				t.Error("the binding is gone")
			}
			check(t, s.Reset())
			check(t, s.Close())
			copyBothWays(t, dev, 100<<10)
			closeBoth(t, bus, dev)
		})
	}
}

// A VMM that shares no memory serves the device's DMA by messages.
func TestDMAByMessages(t *testing.T) {
	r := newCluster(t, options{message: true})
	r.attach(0, 0, 0, 0)
	bus, dev := r.openWith(0, 0, vfiouserbus.Options{Messages: true, MaxPayload: 512, MaxReadRequest: 4096})
	copyBothWays(t, dev, 1<<20+3)
	s, err := dev.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	for range 50 { // a fence comes behind what was copied before it
		in, out := pattern(int(reg.Scratch), 9000), make([]byte, 9000)
		check(t, s.Upload(t.Context(), 64, in))
		check(t, s.Download(t.Context(), out, 64))
		if !bytes.Equal(in, out) {
			t.Fatal("other bytes came back")
		}
	}
	check(t, s.Submit(t.Context(), reg.CopyToVRAM(0, 0, 0x000f_dead_0000_0000, 64)))
	var q *driver.QueueError
	if err := s.Sync(t.Context()); !errors.As(err, &q) || q.Code != reg.ErrDMARefused {
		t.Errorf("DMA outside memory: %v", err)
	}
	check(t, s.Close())
	closeBoth(t, bus, dev)
}

// The VMM unmaps memory that a command still uses.
func TestMemoryUnmappedUnderDMA(t *testing.T) {
	for _, c := range []struct {
		name     string
		messages bool
	}{{"shared", false}, {"by messages", true}} {
		t.Run(c.name, func(t *testing.T) {
			r := newCluster(t, options{message: c.messages})
			r.attach(0, 0, 0, 0)
			bus, dev := r.openWith(0, 0, vfiouserbus.Options{Messages: c.messages})
			for range 10 {
				s, err := dev.NewStream()
				if err != nil {
					t.Fatal(err)
				}
				m, err := dev.AllocDMA(1 << 20)
				if err != nil {
					t.Fatal(err)
				}
				check(t, s.CopyToDevice(t.Context(), 0, m, 0, 1<<20))
				check(t, m.Free())
				var q *driver.QueueError
				if err := s.Sync(t.Context()); err != nil && !errors.As(err, &q) {
					t.Fatal(err)
				}
				check(t, s.Reset())
				check(t, s.Close())
			}
			copyBothWays(t, dev, 10000)
			closeBoth(t, bus, dev)
		})
	}
}

// A VMM that goes away in mid-transfer leaves a slot that the next one can use.
func TestVMMLeavesInMidTransfer(t *testing.T) {
	r := newCluster(t, options{})
	r.attach(0, 0, 0, 0)
	for range 5 {
		bus, dev := r.open1(0, 0)
		s, err := dev.NewStream()
		if err != nil {
			t.Fatal(err)
		}
		m, err := dev.AllocDMA(4 << 20)
		if err != nil {
			t.Fatal(err)
		}
		check(t, s.CopyToDevice(t.Context(), 0, m, 0, 4<<20))
		check(t, s.CopyToHost(t.Context(), m, 0, 0, 4<<20))
		check(t, bus.Close())
		if err := s.Sync(context.Background()); err == nil {
			t.Error("a copy ended without a VMM")
		}
	}
	bus := r.bus(0, 0, vfiouserbus.Options{})
	dev, err := driver.Open(t.Context(), bus, driver.Options{Reset: true})
	if err != nil {
		t.Fatal(err)
	}
	copyBothWays(t, dev, 100<<10)
	closeBoth(t, bus, dev)
}
