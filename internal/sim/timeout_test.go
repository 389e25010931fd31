package sim_test

import (
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/fault"
	"github.com/dxpu-project/dxpu/internal/sim"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/tlp"
)

// lateDevice answers memory reads late.
type lateDevice struct {
	*recorder
	after, due time.Duration
}

func (d *lateDevice) Receive(now time.Duration, p *tlp.Packet) bool {
	if p.Type == tlp.MRd {
		d.due = now + d.after
	}
	return d.recorder.Receive(now, p)
}

func (d *lateDevice) Transmit(now time.Duration, emit func(p *tlp.Packet) bool) {
	if now >= d.due {
		d.recorder.Transmit(now, emit)
	}
}

func (d *lateDevice) Wake() time.Duration {
	if len(d.out) > 0 {
		return d.due
	}
	return machine.Never
}

// A read without an answer ends after a second. Where the acknowledgements of the link
// are as slow, as on a machine with busy processors, the answer is waited for.
func TestCompletionTimeoutFollowsTheLink(t *testing.T) {
	const lost = 0xffff_ffff
	for _, c := range []struct {
		name         string
		delay, after time.Duration // of a datagram, of the device
		want         uint32
	}{
		{"fast link, answer in time", 5 * us, 900 * time.Millisecond, 0},
		{"fast link, late answer", 5 * us, 1500 * time.Millisecond, lost},
		{"slow link, late answer", 200 * time.Millisecond, 1500 * time.Millisecond, 0},
		{"slow link, no answer for 4 s", 200 * time.Millisecond, 4 * time.Second, lost},
	} {
		t.Run(c.name, func(t *testing.T) {
			plan := fault.Plan{Delay: c.delay}
			w, err := sim.NewPair(sim.PairSpec{
				Device: &lateDevice{recorder: newRecorder(t), after: c.after}, Memory: 1 << 20,
				Paths: []sim.Duplex{{Down: plan, Up: plan}},
			})
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			bus, err := w.Open()
			if err != nil {
				t.Fatal(err)
			}
			bar, err := bus.BAR(0)
			if err != nil {
				t.Fatal(err)
			}
			began := w.Now()
			got := bar.Read32(0)
			if took := w.Now() - began; got != c.want || took > 4*time.Second {
				t.Errorf("the read gives %#x after %v, want %#x", got, took, c.want)
			}
		})
	}
}

// upload copies host memory to the GPU, without a look at registers meanwhile.
func upload(t *testing.T, w *sim.Pair, n int) error {
	t.Helper()
	dev, err := w.OpenGPU(t.Context(), driver.Options{})
	if err != nil {
		t.Fatal(err)
	}
	stream, err := dev.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	memory, err := dev.AllocDMA(n)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.CopyToDevice(t.Context(), 0, memory, 0, n); err != nil {
		t.Fatal(err)
	}
	return stream.Sync(t.Context())
}

// A GPU that reads host memory waits longer than its Completion Timeout while the link to
// the host is as slow, or after both ends have stood still: the host works, and the answer is under
// way.
func TestReadsOfADeviceFollowTheLink(t *testing.T) {
	slow := fault.Plan{Delay: 200 * time.Millisecond}
	suspended := fault.Plan{Delay: 3 * us, Rate: 1e6, Jumps: []fault.Jump{{At: 300 * time.Millisecond, By: 12 * time.Second}}}
	for _, c := range []struct {
		name    string
		plan    fault.Plan
		timeout time.Duration // 0: the default
	}{
		{"slow link", slow, 50 * time.Millisecond},
		{"both ends suspended", suspended, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, err := sim.NewPair(sim.PairSpec{
				GPU:    gpu.Spec{VRAM: 1 << 20, CompletionTimeout: c.timeout},
				Paths:  []sim.Duplex{{Down: c.plan, Up: c.plan}},
				Memory: hostMemory, Link: link.Config{FixedCwnd: 4 << 20},
			})
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			if err := upload(t, w, 1<<20); err != nil {
				t.Error(err)
			}
			if len(c.plan.Jumps) > 0 && w.BoxNode.Now() < c.plan.Jumps[0].By {
				t.Error("the copy has ended before the suspension")
			}
		})
	}
}
