package hostproxy_test

import (
	"bytes"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/internal/leaktest"
	"github.com/dxpu-project/dxpu/internal/rawio/eventfd"
)

func TestAttachDriveDetach(t *testing.T) {
	for _, c := range fronts {
		t.Run(c.name, func(t *testing.T) {
			r := newCluster(t, options{gpus: 2, inside: c.inside})
			for range 2 {
				first, second := r.attach(0, 0, 0, 1), r.attach(0, 1, 0, 0)
				for slot := range 2 {
					bus, dev := r.open1(0, slot)
					copyBothWays(t, dev, 300<<10+17)
					closeBoth(t, bus, dev)
				}
				r.detach(first)
				r.detach(second)
			}
		})
	}
}

// Open finds a device during an attach only when it is ready.
func TestOpenWhileAttaching(t *testing.T) {
	r := newCluster(t, options{inside: true})
	for range 3 {
		b := r.bind(0, 0, 0, 0)
		r.until("a device", func() bool {
			bus, err := r.hosts[0].inside.Open(0)
			if err != nil {
				return false
			}
			if id := bus.ConfigRead32(0); id != reg.DeviceID<<16|reg.VendorID {
				t.Errorf("ID %#x", id)
			}
			if _, err := bus.BAR(reg.BARVRAM); err != nil {
				t.Error(err)
			}
			check(t, bus.Close())
			return true
		})
		r.await(b, attached)
		r.detach(b)
	}
}

// A host proxy that ends while a device is being attached that has fallen silent
// does not wait for each of the requests to time out.
func TestEndWhileAttaching(t *testing.T) {
	for _, c := range fronts {
		t.Run(c.name, func(t *testing.T) {
			const timeout = 300 * time.Millisecond
			r, spy := newWatched(t, options{inside: c.inside, timeout: timeout})
			spy.left.Store(5)
			r.bind(0, 0, 0, 0)
			r.until("the device to fall silent", spy.mute.Load)
			began := time.Now()
			r.hosts[0].kill()
			if took, limit := time.Since(began), loaded(timeout+time.Second); took > limit {
				t.Errorf("it took %v, want at most %v", took, limit)
			}
		})
	}
}

// A VMM that connects finds a device whose configuration space is known: there
// is no socket before that, and none after the device is gone.
func TestNoSocketWithoutADevice(t *testing.T) {
	r, spy := newWatched(t, options{})
	there := func() bool {
		_, err := os.Stat(r.hosts[0].vm.Socket(0))
		return err == nil
	}
	spy.delay.Store(true)
	b := r.bind(0, 0, 0, 0)
	r.until("the host to ask for the device", func() bool {
		return metric(t, r.boxes[0], "slot_tlps_total", "direction", "to_device") > 0
	})
	if there() {
		t.Error("a VMM can connect while the device is not known")
	}
	spy.delay.Store(false)
	r.await(b, attached)
	if !there() {
		t.Error("there is no socket")
	}
	r.detach(b)
	if there() {
		t.Error("the socket outlives the device")
	}
}

// A hundred bindings leave no goroutine, no descriptor and no significant memory.
func TestPlugAndUnplug(t *testing.T) {
	for _, c := range fronts {
		t.Run(c.name, func(t *testing.T) {
			times := 100
			if testing.Short() || raceEnabled {
				times = 20
			}
			r := newCluster(t, options{inside: c.inside})
			cycle := func(drive bool) {
				b := r.attach(0, 0, 0, 0)
				if drive {
					bus, dev := r.open1(0, 0)
					copyBothWays(t, dev, 4096)
					closeBoth(t, bus, dev)
				}
				r.detach(b)
			}
			for range 3 {
				cycle(true)
			}
			openSignaller(t)
			fds, goroutines, heap := resources(t)
			for i := range times {
				cycle(i%4 == 0)
			}
			r.until("goroutines to end", func() bool {
				return runtime.NumGoroutine() <= goroutines
			})
			fdsAfter, _, heapAfter := resources(t)
			if fdsAfter > fds {
				t.Errorf("%d descriptors, were %d", fdsAfter, fds)
			}
			if heapAfter > heap+4<<20 {
				t.Errorf("%d bytes of heap, were %d", heapAfter, heap)
			}
		})
	}
}

// openSignaller makes the process open the descriptor that all signals share. Otherwise
// the first signal does: that to a VMM which is still connected when its device is taken
// away, as it depends on the speed of the machine.
func openSignaller(t *testing.T) {
	t.Helper()
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	check(t, err)
	check(t, eventfd.Signal(event))
	check(t, unix.Close(event))
}

func resources(t *testing.T) (fds, goroutines int, heap uint64) {
	t.Helper()
	fds = leaktest.Descriptors(t)
	runtime.GC()
	runtime.GC() // the first one leaves what pools hold
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return fds, runtime.NumGoroutine(), m.HeapAlloc
}

// The next tenant does not find the former one's data in the device's memory.
func TestMemoryIsScrubbed(t *testing.T) {
	r := newCluster(t, options{hosts: 2})
	const n = 1 << 20
	b := r.attach(0, 0, 0, 0)
	bus, dev := r.open1(0, 0)
	s, err := dev.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	check(t, s.Upload(t.Context(), 0, bytes.Repeat([]byte{0xa5}, n)))
	dev.Registers().Write32(scratch, 0xa5a5a5a5)
	check(t, s.Close())
	closeBoth(t, bus, dev)
	r.detach(b)

	r.attach(1, 0, 0, 0)
	bus, dev = r.open1(1, 0)
	if s, err = dev.NewStream(); err != nil {
		t.Fatal(err)
	}
	out := make([]byte, n)
	check(t, s.Download(t.Context(), out, 0))
	if !bytes.Equal(out, make([]byte, n)) {
		t.Error("the next tenant reads what the one before wrote")
	}
	if v := dev.Registers().Read32(scratch); v != 0 {
		t.Errorf("a register keeps %#x", v)
	}
	check(t, s.Close())
	closeBoth(t, bus, dev)
}
