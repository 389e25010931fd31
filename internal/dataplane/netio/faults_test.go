package netio

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dxpu-project/dxpu/fault"
	"github.com/dxpu-project/dxpu/link"
)

func TestRestartNeedsAFunction(t *testing.T) {
	plan := fault.Plan{Restarts: []time.Duration{time.Second}}
	f, err := Open(Config{Paths: []PathConfig{{Listen: "127.0.0.1:0", Fault: plan}}, Logger: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), "restarted") {
		t.Errorf("opened %v: %v", f, err)
	}
}

// Restarts and jumps happen at their times, in order.
func TestPlanIsExecuted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var restarts []time.Duration
		f := &Fabric{start: time.Now()}
		f.routes.Store(&map[uint32]route{})
		f.restart = func() { restarts = append(restarts, f.Now()) }
		plan := fault.Plan{
			Restarts: []time.Duration{5 * time.Second, time.Second},
			Jumps:    []fault.Jump{{At: 2 * time.Second, By: 300 * time.Millisecond}},
		}
		if err := f.execute(context.Background(), plan); err != nil {
			t.Fatal(err)
		}
		if len(restarts) != 2 || restarts[0] != time.Second || restarts[1] != 5300*time.Millisecond {
			t.Errorf("restarts at %v on a clock that jumped", restarts)
		}
	})
}

// A plan that is set on a running path applies until it is removed. Jumps of both
// clocks meanwhile lose no TLP.
func TestSetFault(t *testing.T) {
	const n = 2000
	r := joinFabrics(t)
	if err := r.fabric[0].SetFault(0, fault.Plan{Jumps: []fault.Jump{{At: time.Second, By: time.Second}}}, 0); err == nil {
		t.Error("SetFault took a plan with a jump, which it does not carry out")
	}
	if err := r.fabric[0].SetFault(1, fault.Plan{}, 0); err == nil {
		t.Error("a path that is not there takes a plan")
	}
	var a, b end
	done := b.expect(t, n)
	r.join(r.configs(1, link.CipherAES256GCM), &a, &b)
	a.await(t, link.Up)
	b.await(t, link.Up)
	lost := func() uint64 {
		at := a.group.Enter()
		defer a.group.Leave(at)
		return a.binding.Stats(at).LostDatagrams
	}
	check := func(err error) {
		if err != nil {
			t.Error(err)
		}
	}
	check(r.fabric[0].SetFault(0, fault.Plan{Loss: 0.2, Dup: 0.1, Reorder: 0.1, Corrupt: 0.1}, 7))
	a.sendAll(t, n)
	r.fabric[0].Jump(400 * time.Millisecond)
	r.fabric[1].Jump(400 * time.Millisecond)
	wait(t, done, "the TLPs through a bad network")
	if lost() == 0 {
		t.Error("nothing was lost with the plan")
	}
	check(r.fabric[0].SetFault(0, fault.Plan{}, 0))
	done = b.expectMore(t, n)
	before := lost()
	a.sendAll(t, n)
	wait(t, done, "the TLPs through a good network")
	if after := lost(); after > before+n/20 {
		t.Errorf("%d datagrams were lost without the plan", after-before)
	}
}

// expectMore is expect for the next stream, while the link is in use.
func (e *end) expectMore(t *testing.T, n int) <-chan struct{} {
	at := e.group.Enter()
	defer e.group.Leave(at)
	return e.expect(t, n)
}
