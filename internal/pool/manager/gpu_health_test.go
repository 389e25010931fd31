package manager

import (
	"context"
	"runtime"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/auth"
	"github.com/dxpu-project/dxpu/internal/pool/gpuerr"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

func (w *world) gpu(id string) *dxpuv1.GPU {
	w.t.Helper()
	res, err := w.api().GetGPU(operatorContext(), connect.NewRequest(&dxpuv1.GetGPURequest{GpuId: id}))
	if err != nil {
		w.t.Fatalf("GetGPU %s: %v", id, err)
	}
	return res.Msg.Gpu
}

func (w *world) clearErrors(id string) {
	w.t.Helper()
	if _, err := w.api().ClearGPUErrors(operatorContext(), connect.NewRequest(&dxpuv1.ClearGPUErrorsRequest{GpuId: id})); err != nil {
		w.t.Fatalf("ClearGPUErrors %s: %v", id, err)
	}
}

func TestErrorsAndTheirActions(t *testing.T) {
	tests := []struct {
		name   string
		boxes  []*fakeNode
		spec   *dxpuv1.LeaseSpec
		code   uint32
		times  int
		state  dxpuv1.LeaseState
		has    string
		free   dxpuv1.GPUState // of b1/0 half a minute later
		events []string
	}{
		{"ignored", nil, nil, 45, 1, leaseActive, "b1/0", dxpuv1.GPUState_GPU_STATE_BOUND, []string{"XID 45", ": ignore"}},
		{"the application's", nil, nil, 31, 50, leaseActive, "b1/0", dxpuv1.GPUState_GPU_STATE_BOUND, []string{"memory page fault", "under lease", ": restart the application"}},
		{"reset", nil, nil, 48, 1, leaseActive, "b1/1", dxpuv1.GPUState_GPU_STATE_FREE, []string{": reset", "replaces b1/0", "b1/0 is in service again: it has been reset"}},
		{"reset, again and again", nil, nil, 48, 3, leaseActive, "b1/1", dxpuv1.GPUState_GPU_STATE_UNAVAILABLE, []string{"3 or more within 24h:", ": replace"}},
		{"replace", nil, nil, 79, 1, leaseActive, "b1/1", dxpuv1.GPUState_GPU_STATE_UNAVAILABLE, []string{"fallen off the bus", "replaces b1/0"}},
		{"ignored until they are many", nil, nil, 92, 5, leaseActive, "b1/1", dxpuv1.GPUState_GPU_STATE_UNAVAILABLE, []string{": replace"}},
		{"reset, but no other GPU", []*fakeNode{boxNode("b1", 1)}, nil, 48, 1, leaseActive, "b1/0", dxpuv1.GPUState_GPU_STATE_BOUND, []string{"cannot move now"}},
		{"replace, but no other GPU", []*fakeNode{boxNode("b1", 1)}, nil, 79, 1, leaseDegraded, "", dxpuv1.GPUState_GPU_STATE_UNAVAILABLE, []string{"cannot be replaced now"}},
		{
			"replace, but only another model",
			[]*fakeNode{boxNode("b1", 1), modelBox("b2", "T4")},
			nil, 79, 1, leaseDegraded, "",
			dxpuv1.GPUState_GPU_STATE_UNAVAILABLE,
			[]string{"cannot be replaced now", `model "DX100"`},
		},
		{
			"replace, but only in another box",
			[]*fakeNode{boxNode("b1", 2), boxNode("b2", 2)},
			&dxpuv1.LeaseSpec{Count: 2, SameBox: dxpuv1.Preference_PREFERENCE_REQUIRED}, 79, 1, leaseDegraded, "b1/1",
			dxpuv1.GPUState_GPU_STATE_UNAVAILABLE,
			[]string{"cannot be replaced now", "must be with the lease's others"},
		},
		{
			"replace, but only in another NVLink domain",
			[]*fakeNode{nvlinkBox("b1", 2), nvlinkBox("b2", 2)},
			&dxpuv1.LeaseSpec{Count: 2, Nvlink: dxpuv1.Preference_PREFERENCE_REQUIRED}, 79, 1, leaseDegraded, "b1/1",
			dxpuv1.GPUState_GPU_STATE_UNAVAILABLE,
			[]string{"cannot be replaced now", "must be with the lease's others"},
		},
		{
			"replace, spread",
			[]*fakeNode{boxNode("b1", 2), boxNode("b2", 2)},
			&dxpuv1.LeaseSpec{Count: 2, SameBox: dxpuv1.Preference_PREFERENCE_AVOID}, 79, 1, leaseActive, "b1/1 b2/0",
			dxpuv1.GPUState_GPU_STATE_UNAVAILABLE,
			[]string{"replaces"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.boxes == nil {
				tt.boxes = []*fakeNode{boxNode("b1", 2)}
			}
			if tt.spec == nil {
				tt.spec = &dxpuv1.LeaseSpec{Count: 1, Model: "DX100"}
			}
			w := newWorld(t, Config{Reserve: placement.Reserve{Count: 1}}, append([]*fakeNode{hostNode("h1", 4)}, tt.boxes...)...)
			if len(tt.boxes) == 1 && tt.boxes[0].slots == 1 || len(tt.boxes) > 1 {
				w = newWorld(t, Config{}, append([]*fakeNode{hostNode("h1", 4)}, tt.boxes...)...)
			}
			id := w.create(tt.spec)
			w.settle()
			w.wantLease(id, leaseActive)
			for range tt.times {
				w.nodes["b1"].addError(0, tt.code)
				w.report("b1")
			}
			w.settle()
			for range 30 {
				w.pass(500 * time.Millisecond)
				w.rounds(1)
			}
			w.settle()
			w.wantLease(id, tt.state)
			if got := w.has(id); got != tt.has {
				t.Errorf("it has %q, want %q\n%s", got, tt.has, w.events())
			}
			g := w.gpu("b1/0")
			if g.State != tt.free {
				t.Errorf("b1/0 is %v, want %v", g.State, tt.free)
			}
			if len(g.Errors) != 1 || g.Errors[0].Code != tt.code || g.Errors[0].Count != uint64(tt.times) || g.Errors[0].Action == 0 {
				t.Errorf("errors %v", g.Errors)
			}
			for _, want := range tt.events {
				if !strings.Contains(w.events(), want) {
					t.Errorf("no event says %q:\n%s", want, w.events())
				}
			}
			w.checkIndex(t)
		})
	}
}

// A quarantine ends after its time and a reset. The next one is longer, and errors
// during it start it again.
func TestQuarantine(t *testing.T) {
	w := newWorld(t, Config{Quarantine: gpuerr.Backoff{Base: time.Minute, Max: time.Hour}}, hostNode("h1", 1), boxNode("b1", 1))
	wait := func(d time.Duration) {
		for ; d > 0; d -= 900 * time.Millisecond {
			w.pass(min(d, 900*time.Millisecond))
			w.report("b1")
			w.report("h1")
		}
		w.settle()
	}
	out := func() bool {
		t.Helper()
		g := w.gpu("b1/0")
		if (g.QuarantinedUntil != nil) != (g.State == dxpuv1.GPUState_GPU_STATE_UNAVAILABLE) {
			t.Errorf("GPU %v", g)
		}
		return g.QuarantinedUntil != nil
	}
	for _, length := range []time.Duration{time.Minute, 2 * time.Minute, 4 * time.Minute} {
		w.nodes["b1"].addError(0, 79)
		w.settle()
		wait(length - 10*time.Second)
		if !out() {
			t.Fatalf("in service before %s have passed", length)
		}
		wait(12 * time.Second)
		if out() {
			t.Fatalf("out of service after %s\n%s", length, w.events())
		}
	}
	if got := w.nodes["b1"].resetCount; got != 3 {
		t.Errorf("%d resets, want 3", got)
	}
	w.nodes["b1"].addError(0, 79)
	w.settle()
	wait(7 * time.Minute)
	w.nodes["b1"].addError(0, 48) // starts the quarantine again
	w.settle()
	wait(7 * time.Minute)
	if !out() {
		t.Error("in service in spite of the error")
	}
	w.clearErrors("b1/0")
	if g := w.gpu("b1/0"); out() || len(g.Errors) != 0 {
		t.Errorf("after clearing: %v", g)
	}
	w.settle()
	if out() {
		t.Error("old errors count again")
	}
	w.nodes["b1"].restart() // counts from 0
	w.nodes["b1"].addError(0, 45)
	w.settle()
	if g := w.gpu("b1/0"); len(g.Errors) != 1 || g.Errors[0].Count != 1 {
		t.Errorf("after the proxy's restart: %v", g.Errors)
	}
}

// A GPU of a box without resets stays out of service, and an event says so.
func TestResetIsNotConfirmed(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 1), boxNode("b1", 1))
	w.nodes["b1"].noResets = true
	w.nodes["b1"].addError(0, 48)
	w.settle()
	for range 80 {
		w.pass(900 * time.Millisecond)
		w.rounds(1)
	}
	if g := w.gpu("b1/0"); g.State != dxpuv1.GPUState_GPU_STATE_UNAVAILABLE || !strings.Contains(g.HealthDetail, "to be reset") {
		t.Errorf("GPU %v", g)
	}
	if !strings.Contains(w.events(), "has not confirmed the reset of GPU b1/0") {
		t.Errorf("no event says that the reset is not confirmed:\n%s", w.events())
	}
	w.nodes["b1"].noResets, w.nodes["b1"].applied = false, 0
	w.settle()
	if g := w.gpu("b1/0"); g.State != dxpuv1.GPUState_GPU_STATE_FREE {
		t.Errorf("GPU %v", g)
	}
}

// A device that fails and recovers repeatedly is taken out of service.
func TestGPUComesAndGoes(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 1), boxNode("b1", 1))
	for range 3 {
		w.nodes["b1"].dead[0] = true
		w.settle()
		w.nodes["b1"].dead[0] = false
		w.settle()
	}
	if g := w.gpu("b1/0"); g.QuarantinedUntil == nil || g.State != dxpuv1.GPUState_GPU_STATE_UNAVAILABLE {
		t.Errorf("GPU %v\n%s", g, w.events())
	}
	w.nodes["b1"].model = "T4" // another device is in the slot
	w.m.state.nodes.get("b1").slot(0).Fault = &faultRecord{Serial: "old", QuarantinedUntil: w.clock.now().Add(time.Hour), ResetDue: true}
	w.settle()
	if g := w.gpu("b1/0"); g.QuarantinedUntil != nil {
		t.Errorf("GPU %v", g)
	}
}

func TestNodeComesAndGoes(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 2), boxNode("b1", 2))
	id := w.create(&dxpuv1.LeaseSpec{Count: 1})
	w.settle()
	flap := func() {
		w.nodes["b1"].down = true
		for range 3 {
			w.pass(500 * time.Millisecond)
			w.report("h1")
		}
		w.nodes["b1"].down = false
		w.settle()
	}
	flap()
	flap()
	w.delete(w.create(&dxpuv1.LeaseSpec{Count: 1}), true)
	w.settle()
	flap()
	if _, err := w.tryCreate(&dxpuv1.LeaseSpec{Count: 1}); connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Errorf("an unstable node gets bindings: %v\n%s", err, w.events())
	}
	w.wantLease(id, leaseActive) // its bindings stay
	for range 40 {
		w.pass(800 * time.Millisecond)
		w.report("h1")
		w.report("b1")
	}
	if _, err := w.tryCreate(&dxpuv1.LeaseSpec{Count: 1}); err != nil {
		t.Errorf("after half a minute: %v\n%s", err, w.events())
	}
	if !strings.Contains(w.events(), "b1 was lost 3 times") || !strings.Contains(w.events(), "takes new bindings again") {
		t.Errorf("events:\n%s", w.events())
	}
}

// A manager that was suspended does not count nodes as lost repeatedly.
func TestManagerSleeps(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 2), boxNode("b1", 2))
	for range 5 {
		w.pass(10 * time.Second)
		w.settle()
	}
	w.create(&dxpuv1.LeaseSpec{Count: 1})
}

func TestPathHealth(t *testing.T) {
	const ok, failed = dxpuv1.Health_HEALTH_OK, dxpuv1.Health_HEALTH_FAILED
	w := newWorld(t, Config{}, hostNode("h1", 1), boxNode("b1", 1))
	h := w.nodes["h1"]
	h.pathHealth = []dxpuv1.Health{ok, ok}
	w.create(&dxpuv1.LeaseSpec{Count: 1})
	w.settle()
	for _, step := range []struct {
		paths []dxpuv1.Health
		want  string
	}{
		{[]dxpuv1.Health{ok, failed}, "path 1 of binding b-1 (GPU b1/0 to h1) failed, as reported by h1"},
		{[]dxpuv1.Health{ok, ok}, "path 1 of binding b-1 (GPU b1/0 to h1) works again, as reported by h1"},
		{[]dxpuv1.Health{failed, ok}, "path 0 of binding b-1 (GPU b1/0 to h1) failed, as reported by h1"},
		{[]dxpuv1.Health{ok}, ""},
	} {
		h.pathHealth = step.paths
		w.report("h1")
		if !strings.Contains(w.events(), step.want) {
			t.Errorf("no event says %q", step.want)
		}
	}
	res, err := w.api().GetHost(operatorContext(), connect.NewRequest(&dxpuv1.GetHostRequest{HostId: "h1"}))
	if err != nil || len(res.Msg.Host.Slots[0].Paths) != 1 {
		t.Errorf("host %v, %v", res, err)
	}
}

// operatorContext is the context of an operator's call.
func operatorContext() context.Context {
	return auth.With(context.Background(), auth.Identity{Actor: "operator", Role: dxpuv1.Role_ROLE_OPERATOR})
}

// A GPU that its box reports as failed stays out of service when its errors are cleared:
// nothing says that it is in service again.
func TestClearedErrorsOfAFailedGPU(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 1), boxNode("b1", 1))
	w.nodes["b1"].addError(0, 79)
	w.nodes["b1"].dead[0] = true
	w.settle()
	w.clearErrors("b1/0")
	w.settle()
	if g := w.gpu("b1/0"); g.Health != dxpuv1.Health_HEALTH_FAILED || g.State != dxpuv1.GPUState_GPU_STATE_UNAVAILABLE {
		t.Errorf("after clearing: %v, %v", g.Health, g.State)
	}
	if events := w.events(); strings.Contains(events, "in service again") || !strings.Contains(events, " 1 time:") ||
		!strings.Contains(events, "cleared the errors of GPU b1/0, which stays out of service: it is failed") {
		t.Errorf("events:\n%s", events)
	}
}

// No GPU is called in service again that is not there, or whose box takes no bindings.
func TestClearedErrorsOfAGPUThatCannotBeHad(t *testing.T) {
	for why, happens := range map[string]func(*world){
		"it is gone": func(w *world) { w.nodes["b1"].models = map[uint32]string{0: ""} },
		"its box is cordoned": func(w *world) {
			if _, err := w.api().Cordon(t.Context(), connect.NewRequest(&dxpuv1.CordonRequest{Target: atBox("b1")})); err != nil {
				t.Fatal(err)
			}
		},
		"its box does not report": func(w *world) {
			w.nodes["b1"].down = true
			w.passReporting(time.Minute)
		},
	} {
		w := newWorld(t, Config{}, hostNode("h1", 1), boxNode("b1", 2))
		w.nodes["b1"].addError(0, 79)
		w.settle()
		happens(w)
		w.settle()
		w.clearErrors("b1/0")
		if events := w.events(); strings.Contains(events, "in service again") || !strings.Contains(events, "GPU b1/0, which stays out of service: "+why) {
			t.Errorf("%s:\n%s", why, events)
		}
	}
}

// Clearing the error counts of a GPU that works leaves an event, unless there are none.
func TestClearedErrorsOfAGPUThatWorks(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 1), boxNode("b1", 1))
	w.nodes["b1"].addError(0, 13) // of the program
	w.settle()
	if g := w.gpu("b1/0"); g.State != dxpuv1.GPUState_GPU_STATE_FREE {
		t.Fatalf("the GPU is %v", g.State)
	}
	for range 2 {
		w.clearErrors("b1/0")
	}
	if n := strings.Count(w.events(), "an operator cleared the error counts of GPU b1/0"); n != 1 {
		t.Errorf("%d events say so, want 1:\n%s", n, w.events())
	}
}

// The report of a large box with many errors looks at the box once, not for each error.
func TestManyErrorsInOneReport(t *testing.T) {
	const slots = 256
	w := newWorld(t, Config{}, boxNode("b1", slots))
	w.settle()
	for slot := range uint32(slots) {
		for code := range uint32(8) {
			w.nodes["b1"].addError(slot, 40+code)
		}
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	w.report("b1")
	w.deliver("b1")
	w.report("b1")
	w.pass(time.Minute)
	runtime.ReadMemStats(&after)
	if n := (after.Mallocs - before.Mallocs) / slots; n > 1000 {
		t.Errorf("%d allocations for each slot", n)
	}
	o := w.nodes["b1"].observe()
	for _, s := range o.Slots {
		s.Errors = make([]*dxpuv1.DeviceError, maxReportErrors/slots)
	}
	if err := checkReport(o); err != nil {
		t.Error(err)
	}
	o.Slots[0].Errors = append(o.Slots[0].Errors, nil)
	if err := checkReport(o); err == nil || !strings.Contains(err.Error(), "8193 errors, at most 8192") {
		t.Errorf("one more: %v", err)
	}
}
