package driver_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/device/gpu/driver/drivertest"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
)

// gpuSystem is a system with an opened GPU in slot 0.
type gpuSystem struct {
	sys *drivertest.System
	gpu *gpu.GPU
	dev *driver.Device
}

func newGPU(t testing.TB, spec gpu.Spec) *gpu.GPU {
	t.Helper()
	g, err := gpu.New(spec)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func newSystem(t testing.TB, cfg drivertest.Config) *drivertest.System {
	t.Helper()
	sys, err := drivertest.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sys.Close)
	return sys
}

func newGPUSystem(t testing.TB, spec gpu.Spec, opts driver.Options) *gpuSystem {
	t.Helper()
	r := &gpuSystem{sys: newSystem(t, drivertest.Config{}), gpu: newGPU(t, spec)}
	r.dev = plug(t, r.sys, 0, r.gpu, opts)
	return r
}

func plug(t testing.TB, sys *drivertest.System, slot int, g *gpu.GPU, opts driver.Options) *driver.Device {
	t.Helper()
	if err := sys.Plug(slot, g); err != nil {
		t.Fatal(err)
	}
	bus, err := sys.Open(slot)
	if err != nil {
		t.Fatal(err)
	}
	dev, err := driver.Open(t.Context(), bus, opts)
	if err != nil {
		t.Fatal(err)
	}
	return dev
}

func newStream(t testing.TB, d *driver.Device) *driver.Stream {
	t.Helper()
	s, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func random(n int) []byte {
	r := rand.NewChaCha8([32]byte{byte(n)})
	b := make([]byte, n)
	_, _ = r.Read(b) // never fails
	return b
}

func TestOpenSaysWhatItFound(t *testing.T) {
	r := newGPUSystem(t, gpu.Spec{Model: "test GPU", Serial: 77}, driver.Options{})
	i := r.dev.Info()
	if i.Model != "test GPU" || i.Serial != 77 || i.VRAMSize != 256<<20 || i.ApertureSize != 64<<20 || i.Queues != 8 || i.Vectors != 8 || i.Tags != 140 {
		t.Errorf("%+v", i)
	}
}

func TestUploadDownload(t *testing.T) {
	for _, c := range []struct {
		name string
		opts driver.Options
	}{{"interrupts", driver.Options{}}, {"polling", driver.Options{Polling: true}}} {
		t.Run(c.name, func(t *testing.T) {
			r := newGPUSystem(t, gpu.Spec{}, c.opts)
			s := newStream(t, r.dev)
			for _, n := range []int{1, 3, 4095, 4096, 4097, 1 << 20, 5<<20 + 7} {
				p, err := r.dev.Malloc(uint64(n))
				if err != nil {
					t.Fatal(err)
				}
				want, got := random(n), make([]byte, n)
				if err := s.Upload(t.Context(), p, want); err != nil {
					t.Fatal(err)
				}
				if err := s.Download(t.Context(), got, p); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(got, want) {
					t.Errorf("%d bytes come back changed", n)
				}
				if err := r.dev.Free(p); err != nil {
					t.Error(err)
				}
			}
			if arrived, missed := r.dev.Interrupts(); missed > 0 || (arrived > 0) != !c.opts.Polling {
				t.Errorf("%d interrupts arrived, %d missed", arrived, missed)
			}
		})
	}
}

func TestApertureAcrossItsWindow(t *testing.T) {
	r := newGPUSystem(t, gpu.Spec{VRAM: 1 << 20, Aperture: 64 << 10}, driver.Options{})
	want, got := random(200<<10), make([]byte, 200<<10)
	const at = 60<<10 + 3
	if err := r.dev.WriteAperture(at, want); err != nil {
		t.Fatal(err)
	}
	if err := r.dev.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := newStream(t, r.dev).Download(t.Context(), got, at); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("memory differs from the bytes written through the aperture")
	}
	clear(got)
	if err := r.dev.ReadAperture(got[:1000], at+64<<10-500); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got[:1000], want[64<<10-500:][:1000]) {
		t.Error("the aperture differs from memory")
	}
	if err := r.dev.WriteAperture(1<<20-1, make([]byte, 2)); err == nil {
		t.Error("a write beyond memory was taken")
	}
}

func TestPeerCopy(t *testing.T) {
	r := newGPUSystem(t, gpu.Spec{}, driver.Options{})
	peer := plug(t, r.sys, 2, newGPU(t, gpu.Spec{VRAM: 1 << 20, Aperture: 128 << 10}), driver.Options{})
	want := random(300 << 10)
	if err := newStream(t, peer).Upload(t.Context(), 4096, want); err != nil {
		t.Fatal(err)
	}
	before := r.sys.Host.Counters().ReadBytes
	s := newStream(t, r.dev)
	if err := s.CopyPeer(t.Context(), 8192, peer, 4096, uint64(len(want))); err != nil {
		t.Fatal(err)
	}
	if moved := r.sys.Host.Counters().ReadBytes - before; moved > 1<<10 {
		t.Errorf("%d bytes went through the host", moved)
	}
	got := make([]byte, len(want))
	if err := s.Download(t.Context(), got, 8192); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("the copy differs")
	}
}

// More commands than the ring has entries.
func TestRingWrapsAround(t *testing.T) {
	r := newGPUSystem(t, gpu.Spec{}, driver.Options{RingEntries: 4})
	s := newStream(t, r.dev)
	for i := range 50 {
		if err := s.Fill(t.Context(), driver.Ptr(4*i), uint32(i), 4); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 200)
	if err := s.Download(t.Context(), got, 0); err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		if got[4*i] != byte(i) {
			t.Fatalf("word %d: %d", i, got[4*i])
		}
	}
}

func TestQueueErrorIsDecodedAndResetHelps(t *testing.T) {
	r := newGPUSystem(t, gpu.Spec{}, driver.Options{})
	s := newStream(t, r.dev)
	if err := s.Fill(t.Context(), 0, 1, 4); err != nil {
		t.Fatal(err)
	}
	if err := s.CopyInside(t.Context(), 0, driver.Ptr(r.dev.Info().VRAMSize), 16); err != nil {
		t.Fatal(err)
	}
	err := s.Sync(t.Context())
	var q *driver.QueueError
	if !errors.As(err, &q) || q.Code != reg.ErrRange || q.ID != 1 || q.Op != reg.OpCopy || q.Queue != s.Queue() {
		t.Fatalf("%v", err)
	}
	if err := s.Submit(t.Context(), reg.Nop(0)); !errors.As(err, &q) {
		t.Errorf("a halted queue takes commands: %v", err)
	}
	if err := s.Reset(); err != nil {
		t.Fatal(err)
	}
	if err := s.Sync(t.Context()); err != nil {
		t.Errorf("after the reset: %v", err)
	}
}

func TestDeadlineEndsAWait(t *testing.T) {
	for _, polling := range []bool{false, true} {
		r := newGPUSystem(t, gpu.Spec{}, driver.Options{Polling: polling})
		s := newStream(t, r.dev)
		if err := s.WaitSemaphore(t.Context(), 3, 1); err != nil {
			t.Fatal(err)
		}
		f, err := s.Fence(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		defer cancel()
		if err := s.Wait(ctx, f); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("polling %v: %v", polling, err)
		}
		other := newStream(t, r.dev)
		if err := other.Signal(t.Context(), 3, 1); err != nil {
			t.Fatal(err)
		}
		if err := other.Submit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := s.Wait(t.Context(), f); err != nil {
			t.Errorf("polling %v: after the signal: %v", polling, err)
		}
	}
}

func TestResetDropsFences(t *testing.T) {
	r := newGPUSystem(t, gpu.Spec{}, driver.Options{})
	s := newStream(t, r.dev)
	if err := s.WaitSemaphore(t.Context(), 0, 1); err != nil {
		t.Fatal(err)
	}
	f, err := s.Fence(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Reset(); err != nil {
		t.Fatal(err)
	}
	if err := s.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Wait(t.Context(), f); !errors.Is(err, driver.ErrDropped) {
		t.Errorf("dropped fence: %v", err)
	}
}

// A GPU that is pulled out or dies ends every wait, and nothing hangs.
func TestDeviceLost(t *testing.T) {
	for _, c := range []struct {
		name string
		opts driver.Options
		lose func(r *gpuSystem)
	}{
		{"unplugged, interrupts", driver.Options{}, func(r *gpuSystem) { r.sys.Unplug(0) }},
		{"unplugged, polling", driver.Options{Polling: true}, func(r *gpuSystem) { r.sys.Unplug(0) }},
		{"dead, interrupts", driver.Options{}, func(r *gpuSystem) { r.sys.Do(func() { r.gpu.Inject(gpu.Kill) }) }},
		{"dead, polling", driver.Options{Polling: true}, func(r *gpuSystem) { r.sys.Do(func() { r.gpu.Inject(gpu.Kill) }) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newGPUSystem(t, gpu.Spec{}, c.opts)
			s := newStream(t, r.dev)
			if err := s.WaitSemaphore(t.Context(), 0, 1); err != nil {
				t.Fatal(err)
			}
			f, err := s.Fence(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- s.Wait(t.Context(), f) }()
			c.lose(r)
			select {
			case err := <-done:
				if !errors.Is(err, driver.ErrDeviceLost) {
					t.Errorf("wait ends with %v", err)
				}
			case <-time.After(10 * time.Second):
				t.Fatal("wait hangs")
			}
			if err := s.Upload(t.Context(), 0, make([]byte, 100)); !errors.Is(err, driver.ErrDeviceLost) {
				t.Errorf("upload: %v", err)
			}
			if err := r.dev.ReadAperture(make([]byte, 4), 0); !errors.Is(err, driver.ErrDeviceLost) {
				t.Errorf("aperture: %v", err)
			}
			if err := r.dev.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		})
	}
}

// The spare takes the place of a dead GPU, as often as one likes.
func TestReplaceManyTimes(t *testing.T) {
	sys := newSystem(t, drivertest.Config{})
	for i := range 20 {
		d := plug(t, sys, 1, newGPU(t, gpu.Spec{Serial: uint64(i + 1)}), driver.Options{})
		if d.Info().Serial != uint64(i+1) {
			t.Fatalf("round %d: serial %d", i, d.Info().Serial)
		}
		s := newStream(t, d)
		if err := s.Upload(t.Context(), 0, random(10000)); err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
		}
		sys.Unplug(1)
	}
}

func TestStreamsFromManyGoroutines(t *testing.T) {
	r := newGPUSystem(t, gpu.Spec{}, driver.Options{})
	errs := make(chan error)
	for g := range 4 {
		s := newStream(t, r.dev)
		for h := range 2 { // two goroutines share a stream
			go func() {
				base := driver.Ptr((2*g + h) << 20)
				want, got := random(100000+2*g+h), make([]byte, 100000+2*g+h)
				for range 3 {
					if err := errors.Join(s.Upload(t.Context(), base, want), s.Download(t.Context(), got, base)); err != nil {
						errs <- err
						return
					}
					if !bytes.Equal(got, want) {
						errs <- errors.New("data differs")
						return
					}
				}
				errs <- nil
			}()
		}
	}
	for range 8 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

func TestStreamsRunOut(t *testing.T) {
	r := newGPUSystem(t, gpu.Spec{Queues: 2}, driver.Options{})
	s := newStream(t, r.dev)
	newStream(t, r.dev)
	if _, err := r.dev.NewStream(); !errors.Is(err, driver.ErrOutOfMemory) {
		t.Errorf("third stream of two: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.dev.NewStream(); err != nil {
		t.Errorf("after a stream was closed: %v", err)
	}
	if err := s.Sync(t.Context()); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("closed stream: %v", err)
	}
}

func TestFunctionLevelReset(t *testing.T) {
	r := newGPUSystem(t, gpu.Spec{}, driver.Options{})
	if err := newStream(t, r.dev).Upload(t.Context(), 0, random(1000)); err != nil {
		t.Fatal(err)
	}
	bus, err := r.sys.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	d, err := driver.Open(t.Context(), bus, driver.Options{Reset: true})
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 1000)
	if err := newStream(t, d).Download(t.Context(), got, 0); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, random(1000)) {
		t.Error("memory did not survive a function level reset")
	}
}

func TestTryPutFillsTheRing(t *testing.T) {
	r := newGPUSystem(t, gpu.Spec{}, driver.Options{})
	s, err := r.dev.NewStreamSize(8)
	if err != nil {
		t.Fatal(err)
	}
	fill := reg.Fill(0, 0, 0, 4)
	var last driver.Fence
	for round := range 3 {
		if s.Room() != 8 {
			t.Fatalf("round %d: room for %d commands in an empty ring of 8", round, s.Room())
		}
		for range 7 {
			if !s.TryPut(fill) {
				t.Fatal("a ring with room took no command")
			}
		}
		f, ok := s.TryFence()
		if !ok || f != last+8 {
			t.Fatalf("fence %d, %v; want %d", f, ok, last+8)
		}
		if s.TryPut(fill) || s.Room() != 0 {
			t.Fatal("a full ring took a command")
		}
		if _, ok := s.TryFence(); ok {
			t.Fatal("a full ring took a fence")
		}
		s.Ring()
		if err := s.Wait(t.Context(), f); err != nil {
			t.Fatal(err)
		}
		last = f
	}
	if err := s.Submit(t.Context(), fill); err != nil {
		t.Fatal(err)
	}
	if err := s.Reset(); err != nil {
		t.Fatal(err)
	}
	if f, ok := s.TryFence(); !ok || f <= last {
		t.Errorf("fence %d after a reset, %d before it", f, last)
	}
	for _, n := range []int{0, 1, 3, 1 << 17} {
		if _, err := r.dev.NewStreamSize(n); err == nil {
			t.Errorf("a ring of %d entries was made", n)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if s.TryPut(fill) || !errors.Is(s.Err(), driver.ErrClosed) {
		t.Errorf("a closed stream took a command, Err() = %v", s.Err())
	}
}
