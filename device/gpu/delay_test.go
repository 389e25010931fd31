package gpu_test

import (
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/tlp"
)

// stamped runs commands between two time stamps and returns the time between them.
func (r *gpuHost) stamped(q int, cmds ...reg.Command) time.Duration {
	r.t.Helper()
	at := fencesAt + uint64(q)*64
	cmds = append([]reg.Command{reg.StampTime(0, at)}, cmds...)
	r.do(q, append(cmds, reg.StampTime(0, at+8))...)
	return time.Duration(r.host64(at+8) - r.host64(at))
}

func TestDelayLasts(t *testing.T) {
	// A copy of one request takes the round trip of the host.
	const trip = time.Microsecond
	upload := reg.CopyToVRAM(0, 0, dataAt, 64)
	for _, tt := range []struct {
		name string
		cmds []reg.Command
		want time.Duration
	}{
		{"none", []reg.Command{reg.Delay(0, 0)}, 0},
		{"one nanosecond", []reg.Command{reg.Delay(0, 1)}, 1},
		{"the longest", []reg.Command{reg.Delay(0, reg.MaxDelay)}, time.Second},
		{"three without a gap", []reg.Command{reg.Delay(0, 10), reg.Delay(0, 20), reg.Delay(0, 30)}, 60},
		{"a no-operation between", []reg.Command{reg.Delay(0, 10), reg.Nop(0), reg.Delay(0, 20)}, 30},
		{"before a copy", []reg.Command{reg.Delay(0, 500), upload}, 500 + trip},
		{"behind a copy", []reg.Command{upload, reg.Delay(0, 500)}, trip + 500},
		{"a copy that takes longer", []reg.Command{upload, reg.DelaySinceStart(0, 500)}, trip},
		{"a copy that takes less", []reg.Command{upload, reg.DelaySinceStart(0, 5000)}, 5000},
		{"since the start of a delay", []reg.Command{reg.Delay(0, 100), reg.DelaySinceStart(0, 300)}, 300},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newGPUHost(t, gpu.Spec{})
			if got := r.stamped(0, tt.cmds...); got != tt.want {
				t.Errorf("took %v, want %v", got, tt.want)
			}
		})
	}
}

func TestDelaysOfQueuesOverlap(t *testing.T) {
	r := newGPUHost(t, gpu.Spec{})
	start := r.host.Now
	for q := range r.gpu.Spec().Queues {
		r.submit(q, reg.Delay(0, uint64(time.Millisecond)))
	}
	for q := range r.gpu.Spec().Queues {
		r.drain(q)
	}
	if took := r.host.Now - start; took > 1100*time.Microsecond {
		t.Errorf("eight delays of 1ms took %v", took)
	}
}

func TestDelayRefuses(t *testing.T) {
	flagged := reg.Delay(0, 1)
	flagged.Flags = 1 << 1
	for name, c := range map[string]reg.Command{"too long": reg.Delay(0, reg.MaxDelay+1), "flag": flagged} {
		t.Run(name, func(t *testing.T) {
			r := newGPUHost(t, gpu.Spec{})
			r.submit(0, c)
			if e := r.drain(0); e != reg.ErrParameter {
				t.Errorf("error %v, want %v", e, reg.ErrParameter)
			}
		})
	}
}

// A queue that stops forgets its delay, and the device does not wake for it.
func TestDelayEndsWithItsQueue(t *testing.T) {
	for name, stop := range map[string]func(r *gpuHost){
		"disabled": func(r *gpuHost) { r.write32(reg.Queue+reg.QControl, 0) },
		"reset":    func(r *gpuHost) { r.gpu.Reset(r.host.Now, device.FunctionLevelReset) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newGPUHost(t, gpu.Spec{})
			r.submit(0, reg.Delay(0, uint64(time.Second)), reg.Fence(0, fencesAt, 1))
			r.host.RunUntil(r.host.Now+100*time.Microsecond, func() bool { return false })
			if r.gpu.Wake() == machine.Never {
				t.Fatal("no delay runs")
			}
			stop(r)
			r.host.RunUntil(r.host.Now+2*time.Second, func() bool { return false })
			if r.host64(fencesAt) != 0 || r.gpu.Wake() != machine.Never {
				t.Errorf("fence %d, wake %v", r.host64(fencesAt), r.gpu.Wake())
			}
		})
	}
}

// An owner whose timers are late does not make a chain of delays longer.
func TestDelayNoticedLate(t *testing.T) {
	r := newGPUHost(t, gpu.Spec{})
	const link = 100 * time.Microsecond
	for range 10 {
		r.submit(0, reg.Delay(0, uint64(link)))
	}
	r.host.RunUntil(r.host.Now+10*time.Microsecond, func() bool { return false })
	first := r.gpu.Wake()
	now := r.host.Now
	for range 10 {
		if w := r.gpu.Wake(); w < now {
			t.Fatalf("wakes at %v, now is %v", w, now)
		}
		now = r.gpu.Wake() + 30*time.Microsecond
		r.gpu.Transmit(now, func(*tlp.Packet) bool { return true })
	}
	if want := first + 9*link + 30*time.Microsecond; now != want {
		t.Errorf("ten delays ended at %v, want %v", now, want)
	}
}
