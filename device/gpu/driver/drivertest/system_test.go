package drivertest

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the golden files")

func newGPU(t testing.TB) *gpu.GPU {
	t.Helper()
	g, err := gpu.New(gpu.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// The life of a slot as "lspci -tv" would show it: booted empty, a GPU plugged
// in, a second one, the first pulled out.
func TestBusAsTheHostSeesIt(t *testing.T) {
	sys, err := New(Config{Slots: 3})
	if err != nil {
		t.Fatal(err)
	}
	defer sys.Close()
	var out bytes.Buffer
	show := func(title string) { out.WriteString("# " + title + "\n" + sys.Root.String() + "\n") }
	show("boot: only the switch, with room behind its ports")
	for _, slot := range []int{2, 0} {
		if err := sys.Plug(slot, newGPU(t)); err != nil {
			t.Fatal(err)
		}
	}
	show("GPUs in slots 2 and 0")
	sys.Unplug(2)
	show("slot 2 pulled out")
	const file = "testdata/bus.txt"
	if *rewrite {
		if err := os.WriteFile(file, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), out.String()); diff != "" {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}

// Everything in virtual time: boot, hot-plug, drive, a device that stops
// answering, and what the host makes of it.
func TestVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		mute := false
		sys, err := New(Config{Filter: func(_ int, up bool, p *tlp.Packet) bool {
			mu.Lock()
			defer mu.Unlock()
			return !mute || !up
		}})
		if err != nil {
			t.Fatal(err)
		}
		defer sys.Close()
		if err := sys.Plug(1, newGPU(t)); err != nil {
			t.Fatal(err)
		}
		bus, err := sys.Open(1)
		if err != nil {
			t.Fatal(err)
		}
		d, err := driver.Open(t.Context(), bus, driver.Options{})
		if err != nil {
			t.Fatal(err)
		}
		s, err := d.NewStream()
		if err != nil {
			t.Fatal(err)
		}
		want, got := bytes.Repeat([]byte("virtual"), 10000), make([]byte, 70000)
		if err := errors.Join(s.Upload(t.Context(), 64, want), s.Download(t.Context(), got, 64)); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("copy: %v", err)
		}

		began := time.Now()
		mu.Lock()
		mute = true
		mu.Unlock()
		// An unanswered register read returns all ones after the Completion Timeout of
		// the root complex (50 ms).
		if v := d.Registers().Read32(reg.ID); v != 0xffff_ffff {
			t.Errorf("mute device reads %#x", v)
		}
		if took := time.Since(began); took != 50*time.Millisecond {
			t.Errorf("read took %v, want the timeout of 50ms", took)
		}
		began = time.Now()
		if err := s.Sync(t.Context()); !errors.Is(err, driver.ErrDeviceLost) {
			t.Errorf("sync with a mute device: %v", err)
		}
		if took := time.Since(began); took > 200*time.Millisecond {
			t.Errorf("the loss was noticed after %v", took)
		}
		if n := sys.Host.Counters().Timeouts; n == 0 {
			t.Error("no timeout was counted")
		}
	})
}

func TestOpenRefuses(t *testing.T) {
	sys, err := New(Config{Slots: 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sys.Open(0); err == nil {
		t.Error("an empty slot was opened")
	}
	if _, err := sys.Host.Open(sys.Root); err == nil {
		t.Error("a bridge was opened")
	}
	if err := sys.Plug(0, newGPU(t)); err != nil {
		t.Fatal(err)
	}
	bus, err := sys.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	sys.Close()
	if _, err := sys.Open(0); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("closed host: %v", err)
	}
	if v := bus.ConfigRead32(0); v != 0xffff_ffff {
		t.Errorf("closed host reads %#x", v)
	}
	if _, err := bus.AllocDMA(1); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("closed host: %v", err)
	}
	if _, err := bus.WaitInterrupt(t.Context(), 0, time.Minute); err == nil {
		t.Error("closed host waits for interrupts")
	}
	if err := bus.Close(); err != nil {
		t.Error(err)
	}
}

func TestRegionAndMemoryBounds(t *testing.T) {
	sys, err := New(Config{Slots: 1, Memory: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer sys.Close()
	if err := sys.Plug(0, newGPU(t)); err != nil {
		t.Fatal(err)
	}
	bus, err := sys.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	r, err := bus.BAR(reg.BARRegisters)
	if err != nil {
		t.Fatal(err)
	}
	if v := r.Read32(r.Size()); v != 0xffff_ffff {
		t.Errorf("beyond the region: %#x", v)
	}
	if v := r.Read64(r.Size() - 4); v != ^uint64(0) {
		t.Errorf("across its end: %#x", v)
	}
	r.Write32(r.Size(), 1)
	if _, err := r.WriteAt(make([]byte, 8), int64(r.Size())-4); err == nil {
		t.Error("a write across the end was taken")
	}
	if _, err := bus.BAR(1); err == nil {
		t.Error("BAR 1 exists")
	}
	if _, err := bus.AllocDMA(2 << 20); !errors.Is(err, driver.ErrOutOfMemory) {
		t.Errorf("more than there is: %v", err)
	}
	m, err := bus.AllocDMA(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(m.Free(), m.Free()); err != nil {
		t.Error(err)
	}
	if _, err := bus.AllocDMA(1 << 20); err != nil {
		t.Errorf("after it was freed: %v", err)
	}
}

// A function that is not there reads all ones without a wait.
func TestAbsentFunctions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sys, err := New(Config{Slots: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer sys.Close()
		for _, id := range []pcie.BDF{pcie.NewBDF(0, 0, 0), pcie.NewBDF(1, 1, 0), pcie.NewBDF(2, 9, 0), pcie.NewBDF(3, 0, 0), pcie.NewBDF(200, 0, 0)} {
			if v, err := sys.Host.ConfigRead32(id, 0); err != nil || v != 0xffff_ffff {
				t.Errorf("%v reads %#x, %v", id, v, err)
			}
		}
	})
}
