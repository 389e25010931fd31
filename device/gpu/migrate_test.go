package gpu_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/tlp"
)

// snapshot freezes the GPU and returns its state.
func (r *gpuHost) snapshot() []byte {
	r.t.Helper()
	r.gpu.Freeze()
	var state []byte
	ok := false
	done := r.host.RunUntil(r.host.Now+time.Second, func() bool {
		if !ok {
			r.host.Pump()
			state, ok = r.gpu.Snapshot(r.host.Now)
		}
		return ok
	})
	if !done {
		r.t.Fatal("the frozen GPU does not come to rest")
	}
	return state
}

// copyChanged copies the memory that has changed.
func copyChanged(t testing.TB, from, to *gpu.GPU) {
	t.Helper()
	buf := make([]byte, 5*4096)
	for at := uint64(0); ; {
		addr, n, _ := from.ChangedMemory(at, buf)
		if n == 0 {
			if from.Changed() != 0 {
				t.Fatalf("%d bytes have changed that ChangedMemory does not find", from.Changed())
			}
			return
		}
		if err := to.StoreMemory(addr, buf[:n]); err != nil {
			t.Fatal(err)
		}
		at = addr + uint64(n)
	}
}

// move moves the state to a new GPU, which takes the place of the old one.
func (r *gpuHost) move(serial uint64, between func()) {
	r.t.Helper()
	spec := r.gpu.Spec()
	spec.Serial = serial
	next, err := gpu.New(spec)
	if err != nil {
		r.t.Fatal(err)
	}
	old := r.gpu
	old.Track(true)
	copyChanged(r.t, old, next)
	between()
	state := r.snapshot()
	copyChanged(r.t, old, next)
	if _, err := next.Restore(r.host.Now, state); err != nil {
		r.t.Fatal(err)
	}
	r.gpu, r.host.Device = next, next
	next.Thaw(r.host.Now)
	r.host.Pump()
}

// TestMove moves a GPU again and again while it works, and compares what it computes with
// what a GPU computes that stays.
func TestMove(t *testing.T) {
	const n = 64 << 10 // elements
	run := func(seed uint64, moves bool) ([]byte, []byte) {
		r := newGPUHost(t, gpu.Spec{VRAM: 16 << 20, Serial: 7})
		rnd := rand.New(rand.NewPCG(seed, 0))
		operands := r.data(dataAt, n*4)[:0]
		for _, x := range small(rand.New(rand.NewPCG(1, 1)), n) {
			operands = binary.LittleEndian.AppendUint32(operands, math.Float32bits(float32(x)))
		}
		r.segments(dataAt, n*4)
		for q := range 3 {
			base := uint64(q) << 21
			r.submit(q, reg.CopyToVRAM(1, base, listsAt, n*4).WithSegments(uint32(n*4/4096)))
			for i := range uint32(20) { // each depends on the one before
				r.submit(q, reg.Kernel(2, reg.Launch{Kernel: reg.KernelTriad, Type: reg.FP32, Alpha: 0.5, A: base, B: base, C: base, M: n}),
					reg.Fill(3, base+uint64(i)*4096, i<<8, 4096), reg.Delay(4, 20_000), reg.CopyVRAM(5, base+1<<20, base, n*4),
					reg.Fence(6, fencesAt+8*uint64(q), uint64(i)+1).WithInterrupt(uint16(q)))
			}
			r.submit(q, reg.CopyFromVRAM(7, dataAt+uint64(q+1)<<21, base, n*4), reg.CopyFromVRAM(8, dataAt+uint64(q+5)<<21, base+1<<20, n*4),
				reg.Signal(9, uint32(q), 42))
		}
		count := 0
		for serial := uint64(100); moves; serial++ {
			if r.busyQueues() == 0 {
				break
			}
			r.move(serial, func() { r.host.Run(time.Duration(rnd.IntN(30_000))) })
			r.host.Run(time.Duration(rnd.IntN(30_000)))
			count++
		}
		if moves && count < 5 {
			t.Errorf("the GPU moved %d times only", count)
		}
		for q := range 3 {
			if e := r.drain(q); e != reg.NoError {
				t.Fatalf("queue %d: %v", q, e)
			}
			if got := r.read64(reg.Semaphore + 8*uint64(q)); got != 42 {
				t.Errorf("semaphore %d is %d", q, got)
			}
		}
		if got := r.read64(reg.Serial); got != 7 {
			t.Errorf("the driver sees serial number %d", got)
		}
		if got := len(r.host.Interrupts); got != 60 {
			t.Errorf("%d interrupts, want 60", got)
		}
		return append([]byte(nil), r.mem[dataAt-memBase:]...), append([]byte(nil), r.data(fencesAt, 24)...)
	}
	want, fences := run(0, false)
	for seed := range uint64(3) {
		got, gotFences := run(seed, true)
		if !bytes.Equal(got, want) || !bytes.Equal(gotFences, fences) {
			t.Fatalf("seed %d: a GPU that moves computes other bytes", seed)
		}
	}
}

// segments writes a scatter-gather list of pages.
func (r *gpuHost) segments(addr uint64, n int) {
	at := r.mem[listsAt-memBase:][:0]
	for off := 0; off < n; off += 4096 {
		at = reg.Segment{Addr: addr + uint64(off), Length: 4096}.Append(at)
	}
}

func (r *gpuHost) busyQueues() (n int) {
	for q := range r.gpu.Spec().Queues {
		if reg.QueueState(r.queue32(q, reg.QState)) == reg.QueueBusy {
			n++
		}
	}
	return n
}

// TestThaw thaws a GPU whose move has failed: it goes on as if nothing had been.
func TestThaw(t *testing.T) {
	r := newGPUHost(t, gpu.Spec{VRAM: 4 << 20})
	r.put(0, reg.FP32, []float64{1, 2, 3, 4})
	r.put(4096, reg.FP32, []float64{1, 1, 1, 1})
	for range 50 {
		r.submit(0, reg.Kernel(2, reg.Launch{Kernel: reg.KernelAdd, Type: reg.FP32, A: 0, B: 4096, C: 0, M: 4}), reg.Delay(3, 1000))
		r.host.Run(700)
		r.snapshot()
		if r.host.Device.Wake() != machine.Never {
			t.Fatal("a frozen GPU wants to wake")
		}
		r.host.Run(10 * time.Microsecond)
		r.gpu.Thaw(r.host.Now)
		r.host.Pump()
	}
	if e := r.drain(0); e != reg.NoError {
		t.Fatal(e)
	}
	if got := r.get(0, reg.FP32, 4); got[3] != 54 {
		t.Fatalf("the GPU computed %v", got)
	}
}

// TestFrozenMemoryIsStill writes the result of a computation after Thaw only.
func TestFrozenMemoryIsStill(t *testing.T) {
	r := newGPUHost(t, gpu.Spec{VRAM: 4 << 20})
	r.submit(0, reg.Fill(1, 0, 0x55555555, 1<<20))
	r.gpu.Track(true)
	r.snapshot() // the job is out
	r.host.Run(time.Second)
	if n := r.gpu.Changed(); n != 0 {
		t.Fatalf("%d bytes changed while the GPU was frozen", n)
	}
	r.gpu.Thaw(r.host.Now)
	r.host.Pump()
	if e := r.drain(0); e != reg.NoError {
		t.Fatal(e)
	}
	if n := r.gpu.Changed(); n != 1<<20 {
		t.Fatalf("%d bytes changed, want %d", n, 1<<20)
	}
}

// TestRestoreRefuses refuses the state of another GPU, and each state that is cut short.
func TestRestoreRefuses(t *testing.T) {
	r := newGPUHost(t, gpu.Spec{VRAM: 4 << 20})
	state := r.snapshot()
	for name, spec := range map[string]gpu.Spec{
		"more memory": {VRAM: 8 << 20}, "another model": {VRAM: 4 << 20, Model: "x"}, "fewer queues": {VRAM: 4 << 20, Queues: 7},
		"a pin": {VRAM: 4 << 20, INTx: true},
	} {
		g, err := gpu.New(spec)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := g.Restore(0, state); err == nil {
			t.Errorf("%s: the state was taken over", name)
		}
	}
	g, err := gpu.New(gpu.Spec{VRAM: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	for n := range state {
		if _, err := g.Restore(0, state[:n]); err == nil {
			t.Fatalf("%d of %d bytes were taken over", n, len(state))
		}
	}
	if len(state) > device.MaxState/2 {
		t.Errorf("an idle GPU has a state of %d bytes", len(state))
	}
	if err := g.StoreMemory(4<<20-1, []byte{1, 2}); err == nil {
		t.Error("memory behind the end was stored")
	}
	if err := g.StoreMemory(1<<63, nil); err == nil {
		t.Error("an address beyond the memory was taken")
	}
}

// TestMovable says which GPUs cannot move.
func TestMovable(t *testing.T) {
	g, err := gpu.New(gpu.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Movable(); err != nil {
		t.Error(err)
	}
	for _, f := range []gpu.Fault{gpu.Hang, gpu.Kill} {
		if g.Inject(f); g.Movable() == nil {
			t.Errorf("%v: the GPU can move", f)
		}
	}
}

// FuzzRestore takes over hostile states and lets the GPU work with them.
func FuzzRestore(f *testing.F) {
	spec := gpu.Spec{VRAM: 1 << 20, Queues: 2}
	r := newGPUHost(f, spec)
	f.Add(r.snapshot(), []byte{})
	r.gpu.Thaw(r.host.Now)
	r.segments(dataAt, 1<<18)
	r.submit(0, reg.Fill(1, 0, 0x55555555, 1<<20), reg.Delay(2, 1000), reg.Fence(3, fencesAt, 1))
	r.submit(1, reg.CopyToVRAM(1, 0, listsAt, 1<<18).WithSegments(64), reg.CopyFromVRAM(2, dataAt, 0, 1<<18))
	for range 4 {
		r.host.Run(2 * time.Microsecond)
		f.Add(r.snapshot(), []byte{3, 0, 0, 0, 0xff})
		r.gpu.Thaw(r.host.Now)
		r.host.Pump()
	}
	f.Fuzz(func(t *testing.T, state, changes []byte) {
		// Each five bytes of changes replace one byte, so that much of the state stays right.
		state = bytes.Clone(state)
		for ; len(changes) >= 5 && len(state) > 0; changes = changes[5:] {
			state[binary.LittleEndian.Uint32(changes)%uint32(len(state))] = changes[4]
		}
		g, err := gpu.New(spec)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := g.Restore(time.Second, state); err != nil {
			return
		}
		g.Thaw(time.Second)
		now := time.Second
		for range 50 {
			sent := 0
			g.Transmit(now, func(*tlp.Packet) bool { sent++; return sent < 100 })
			if job, ok := g.NextJob(); ok {
				g.FinishJob(now, job) // without Run: its size is bounded by plan
			}
			now += time.Millisecond
		}
		g.Reset(now, device.ConventionalReset)
		g.Freeze()
		again, ok := g.Snapshot(now)
		if !ok {
			t.Fatal("a GPU after a reset has no snapshot")
		}
		if _, err := g.Restore(now, again); err != nil {
			t.Fatal(errors.Join(errors.New("a GPU refuses its own state"), err))
		}
	})
}
