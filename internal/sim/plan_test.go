package sim_test

import (
	"strings"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/fault"
	"github.com/dxpu-project/dxpu/internal/sim"
)

func jumpAt(at, by time.Duration) fault.Plan {
	return fault.Plan{Delay: 3 * us, Jumps: []fault.Jump{{At: at, By: by}}}
}

// A plan advances the clock of its node. The link takes the jump for no loss, and
// nothing that waits is late.
func TestPlanJumps(t *testing.T) {
	w, err := sim.NewPair(sim.PairSpec{
		GPU: gpu.Spec{VRAM: 1 << 20}, Memory: hostMemory, Paths: []sim.Duplex{{Down: jumpAt(time.Second, 300*time.Millisecond), Up: fault.Plan{Delay: 3 * us}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	w.Run(1100 * time.Millisecond)
	if host, box := w.HostNode.Now()-w.Now(), w.BoxNode.Now()-w.Now(); host != 300*time.Millisecond || box != 0 {
		t.Errorf("the host's clock is %v ahead, the box's %v", host, box)
	}
	copyBothWays(t, w)
	if host, _, err := w.LinkReports(); err != nil || host.Lost != 0 || host.State != "up" {
		t.Errorf("after the jump: %+v, %v", host, err)
	}
}

// A waiting task continues when a jump passes the end of its wait.
func TestJumpEndsAWait(t *testing.T) {
	w, err := sim.NewPair(sim.PairSpec{GPU: gpu.Spec{VRAM: 1 << 20}, Memory: hostMemory})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	began := w.Now()
	if err := w.HostNode.Disturb(0, jumpAt(began+time.Second, 5*time.Second)); err != nil {
		t.Fatal(err)
	}
	var task, caller time.Duration
	never := func() bool { return false }
	w.HostNode.Go(func() {
		w.HostNode.WaitUntil(began+4*time.Second, never)
		task = w.Now()
	})
	w.HostNode.WaitUntil(began+3*time.Second, never)
	caller = w.Now()
	if want := began + time.Second; caller != want || task != want {
		t.Errorf("the caller continued at %v and the task at %v, want %v", caller, task, want)
	}
}

// Another plan takes the place of the old one's restarts and jumps.
func TestDisturbReplacesJumps(t *testing.T) {
	w, err := sim.NewPair(sim.PairSpec{
		GPU: gpu.Spec{VRAM: 1 << 20}, Memory: hostMemory, Paths: []sim.Duplex{{Down: jumpAt(time.Second, time.Millisecond)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := w.HostNode.Disturb(0, jumpAt(2*time.Second, time.Minute)); err != nil {
		t.Fatal(err)
	}
	w.Run(3 * time.Second)
	if ahead := w.HostNode.Now() - w.Now(); ahead != time.Minute {
		t.Errorf("the clock is %v ahead, want a minute", ahead)
	}
}

// A plan restarts the proxies of a pool, which come back with the state on their disks.
func TestPlanRestarts(t *testing.T) {
	p, err := sim.NewPool(sim.PoolSpec{
		Hosts: 1, Boxes: 1, HostSlots: 1, BoxSlots: 1, Paths: 2, GPU: gpu.Spec{VRAM: tenantMemory}, Memory: 4 << 20,
		Plan: fault.Plan{Delay: 5 * us, Restarts: []time.Duration{time.Second}}, ControlDelay: time.Millisecond, Seed: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	p.Run(10 * time.Millisecond)
	if _, ok := p.Attach(p.Hosts[0]); !ok {
		t.Fatal("no GPU")
	}
	if !p.RunUntil(900*time.Millisecond, p.Settled) {
		t.Fatal(p.Bindings)
	}
	p.Run(time.Second)
	if p.Hosts[0].Running() || p.Boxes[0].Running() {
		t.Error("the plan did not restart the proxies")
	}
	p.Run(1200 * time.Millisecond)
	if !p.Hosts[0].Running() || !p.Boxes[0].Running() {
		t.Error("the proxies did not come back")
	}
	if !p.RunUntil(p.Now()+time.Minute, p.Settled) {
		t.Error(p.Bindings)
	}
}

// A pair's proxies do not restart, and say so.
func TestPairRefusesRestarts(t *testing.T) {
	_, err := sim.NewPair(sim.PairSpec{Paths: []sim.Duplex{{}, {Up: fault.Plan{Restarts: []time.Duration{time.Second}}}}})
	if err == nil || !strings.Contains(err.Error(), "box: path 1: this node cannot be restarted by a fault plan") {
		t.Errorf("got %v", err)
	}
}
