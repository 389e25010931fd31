package hostproxy_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
)

// flood keeps a device busy until stop and returns the number of bytes that it moved.
type flood func(t testing.TB, dev *driver.Device, stop <-chan struct{}) (int, error)

var floods = []struct {
	name string
	run  flood
}{
	{"DMA to the device", func(t testing.TB, dev *driver.Device, stop <-chan struct{}) (int, error) {
		return floodDMA(t, dev, stop, true)
	}},
	{"DMA to the host", func(t testing.TB, dev *driver.Device, stop <-chan struct{}) (int, error) {
		return floodDMA(t, dev, stop, false)
	}},
	{"posted writes", func(_ testing.TB, dev *driver.Device, stop <-chan struct{}) (int, error) {
		n := 0
		for ; !done(stop); n += 4 {
			dev.Registers().Write32(scratch+4, uint32(n))
		}
		return n, dev.Alive()
	}},
}

func done(stop <-chan struct{}) bool {
	select {
	case <-stop:
		return true
	default:
		return false
	}
}

func floodDMA(t testing.TB, dev *driver.Device, stop <-chan struct{}, toDevice bool) (int, error) {
	const size = 1 << 20
	s, err := dev.NewStream()
	if err != nil {
		return 0, err
	}
	m, err := dev.AllocDMA(size)
	if err != nil {
		return 0, err
	}
	defer func() { _ = m.Free() }() // the device may be lost
	n := 0
	for ; !done(stop); n += size {
		if toDevice {
			err = s.CopyToDevice(t.Context(), 0, m, 0, size)
		} else {
			err = s.CopyToHost(t.Context(), m, 0, 0, size)
		}
		if err == nil {
			err = s.Sync(t.Context())
		}
		if err != nil {
			return n, err
		}
	}
	return n, s.Close()
}

// pairing is two devices of one box, attached to one host or to two.
type pairing struct {
	name string
	two  bool // hosts
}

var pairings = []pairing{{"one host", false}, {"two hosts", true}}

// open attaches both and opens them.
func (p pairing) open(t *testing.T) (a, b *driver.Device) {
	t.Helper()
	o := options{gpus: 2, inside: true}
	host, slot := 0, 1
	if p.two {
		o.hosts, host = 2, 1
	}
	r := newCluster(t, o)
	r.attach(0, 0, 0, 0)
	r.attach(host, slot, 0, 1)
	busA, a := r.open1(0, 0)
	busB, b := r.open1(host, slot)
	t.Cleanup(func() {
		closeQuietly(busA, a)
		closeQuietly(busB, b)
	})
	return a, b
}

const (
	// floodFor is how long each measurement takes.
	floodFor = 150 * time.Millisecond
	// beside is the limit of a register read beside a flood that is not in its
	// way, on a slow machine.
	beside = 25 * time.Millisecond
	// ahead is the number of bytes that another binding may have in flight before
	// the read: a mebibyte each way, counted twice.
	ahead = 4 << 20
)

// A register read beside another binding's flood takes at most the time that the
// flood's bytes in flight explain.
func TestReadsBesideAFlood(t *testing.T) {
	for _, p := range pairings {
		t.Run(p.name, func(t *testing.T) {
			a, b := p.open(t)
			reopen := func() { a, b = p.open(t) }
			for _, f := range floods {
				holdsOnce(t, reopen, func() error {
					quiet := readsFor(t, b, floodFor/3)
					stop := make(chan struct{})
					var wg sync.WaitGroup
					var n int
					var failed error
					wg.Go(func() { n, failed = f.run(t, a, stop) })
					median := readsFor(t, b, floodFor)
					close(stop)
					wg.Wait()
					t.Logf("%s of %.0f MB/s: a read takes %v, %v alone", f.name, float64(n)/floodFor.Seconds()/1e6, median, quiet)
					limit := readLimit(quiet) + floodFor*ahead/time.Duration(max(n, 1))
					if failed != nil || median > limit || n == 0 {
						return errors.Join(failed, fmt.Errorf("%s: a read takes %v beside %d bytes, want at most %v", f.name, median, n, limit))
					}
					return nil
				})
			}
		})
	}
}

// readLimit returns the limit of a register read beside a flood that is not in
// its way, from the time that a read takes without the flood.
func readLimit(quiet time.Duration) time.Duration { return max(loaded(beside), 5*quiet) }

// holdsOnce repeats a measurement until it holds, on new devices after each failure.
// Other processes may take the processors during one measurement, long enough to lose a
// link; a binding that the proxies starve fails all of them.
func holdsOnce(t *testing.T, reopen func(), measure func() error) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; {
		err := measure()
		if err == nil {
			return
		}
		if t.Failed() || time.Now().After(deadline) {
			t.Error(err)
			return
		}
		t.Logf("measured again: %v", err)
		reopen()
	}
}

// readsFor reads a register for a while and returns the median of the times.
func readsFor(t testing.TB, dev *driver.Device, d time.Duration) time.Duration {
	t.Helper()
	var all []time.Duration
	for end := time.Now().Add(d); len(all) == 0 || time.Now().Before(end); {
		at := time.Now()
		if v := dev.Registers().Read32(reg.ID); v != reg.Magic {
			t.Fatalf("the ID register reads %#x", v)
		}
		all = append(all, time.Since(at))
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// Two bindings with the same flood move similar numbers of bytes.
func TestFloodsShare(t *testing.T) {
	for _, p := range pairings {
		t.Run(p.name, func(t *testing.T) {
			a, b := p.open(t)
			reopen := func() { a, b = p.open(t) }
			for _, f := range floods {
				holdsOnce(t, reopen, func() error {
					stop := make(chan struct{})
					var wg sync.WaitGroup
					n, failed := make([]int, 2), make([]error, 2)
					for i, dev := range []*driver.Device{a, b} {
						wg.Go(func() { n[i], failed[i] = f.run(t, dev, stop) })
					}
					end := time.NewTimer(2 * floodFor)
					<-end.C
					close(stop)
					wg.Wait()
					share := float64(n[0]) / float64(n[0]+n[1])
					t.Logf("%s: %.2f of %.0f MB/s", f.name, share, float64(n[0]+n[1])/(2*floodFor).Seconds()/1e6)
					if !(share >= 0.1 && share <= 0.9) { // NaN: neither has moved a byte
						failed = append(failed, fmt.Errorf("%s: %d and %d bytes", f.name, n[0], n[1]))
					}
					return errors.Join(failed...)
				})
			}
		})
	}
}
