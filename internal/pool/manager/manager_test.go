package manager

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

func TestLeaseLife(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 4), boxNode("b1", 2))
	id := w.create(&dxpuv1.LeaseSpec{Count: 2})
	w.wantLease(id, leaseBinding)

	// The box comes first; the host follows once the box is ready.
	w.deliver("h1")
	if len(w.nodes["h1"].has) != 0 {
		t.Fatal("the host was told before the box was ready")
	}
	w.settle()
	l := w.wantLease(id, leaseActive)
	var names []string
	for _, s := range l.Bindings[0].Timeline {
		names = append(names, s.Name)
	}
	if want := []string{"created", "preparing", "ready", "attached"}; !slices.Equal(names, want) {
		t.Errorf("timeline %v, want %v", names, want)
	}

	w.delete(id, true)
	w.deliver("b1")
	if len(w.nodes["b1"].has) != 2 {
		t.Fatal("the box was told to drop a binding that the host still has")
	}
	w.settle()
	l = w.wantLease(id, leaseReleased)
	if b := l.Bindings[0]; b.State != released || !b.HostClear || !b.BoxClear {
		t.Errorf("binding after release: %v", b)
	}
	if p := w.m.totals(); p.GpusFree != 2 || p.LeasesActive != 0 {
		t.Errorf("pool after release: %v", p)
	}
}

func TestFailures(t *testing.T) {
	reserve := placement.Reserve{Count: 1}
	tests := []struct {
		name   string
		spares placement.Reserve
		fail   func(w *world)
		after  time.Duration
		state  dxpuv1.LeaseState
		reason dxpuv1.Reason
	}{
		{"GPU fails", reserve, func(w *world) { w.nodes["b1"].dead[0] = true }, 0, leaseActive, dxpuv1.Reason_REASON_GPU_FAILED},
		{"box lost with its links", reserve, func(w *world) {
			w.nodes["b1"].down, w.nodes["h1"].linkDown = true, true
			w.settle()
			w.settle()
			w.nodes["h1"].linkDown = false
		}, time.Second, leaseActive, dxpuv1.Reason_REASON_BOX_LOST},
		{"box silent, links whole", reserve, func(w *world) { w.nodes["b1"].down = true }, time.Minute, leaseActive, 0},
		{"link lost for long", reserve, func(w *world) {
			w.nodes["h1"].linkDown = true
			for range 5 {
				w.settle()
			}
			w.nodes["h1"].linkDown = false
		}, 0, leaseActive, dxpuv1.Reason_REASON_LINK_LOST},
		{"link lost for a moment", reserve, func(w *world) {
			w.nodes["h1"].linkDown = true
			w.report("h1")
			w.nodes["h1"].linkDown = false
		}, 0, leaseActive, 0},
		{"box forgets", reserve, func(w *world) { clear(w.nodes["b1"].has) }, 0, leaseActive, dxpuv1.Reason_REASON_BINDING_FORGOTTEN},
		{"host forgets", reserve, func(w *world) { clear(w.nodes["h1"].has) }, 0, leaseActive, dxpuv1.Reason_REASON_BINDING_FORGOTTEN},
		{"box restarts without its disk", reserve, func(w *world) {
			w.nodes["b1"].forget()
			for range 5 { // the host does not say why
				w.settle()
			}
		}, 0, leaseActive, dxpuv1.Reason_REASON_LINK_LOST},
		{"host restarts with its disk", reserve, func(w *world) { w.nodes["h1"].restart() }, 0, leaseActive, 0},
		{"host silent", reserve, func(w *world) { w.nodes["h1"].down = true }, time.Minute, leaseActive, 0},
		{"everything fails", reserve, func(w *world) {
			for _, b := range []string{"b1", "b2"} {
				w.nodes[b].dead[0], w.nodes[b].dead[1] = true, true
			}
		}, 0, leaseDegraded, dxpuv1.Reason_REASON_GPU_FAILED},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, Config{Reserve: tt.spares}, hostNode("h1", 2), boxNode("b1", 2), boxNode("b2", 2))
			id := w.create(&dxpuv1.LeaseSpec{Count: 1})
			w.settle()
			first := w.wantLease(id, leaseActive).Bindings[0]
			tt.fail(w)
			w.settle()
			w.pass(tt.after)
			w.settle()
			l := w.wantLease(id, tt.state)
			if got := l.Bindings[0].Reason; got != tt.reason {
				t.Errorf("reason %v, want %v", got, tt.reason)
			}
			if tt.state == leaseActive && tt.reason != 0 {
				last := l.Bindings[len(l.Bindings)-1]
				if last.ReplacesBindingId != first.Id || last.Epoch <= first.Epoch || last.HostSlot != first.HostSlot {
					t.Errorf("replacement %v of %v", last, first)
				}
			}
		})
	}
}

// A GPU that failed returns to the pool when its box reports it healthy.
func TestReturnToService(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 1), boxNode("b1", 1))
	id := w.create(&dxpuv1.LeaseSpec{Count: 1})
	w.settle()
	w.nodes["b1"].dead[0] = true
	w.settle()
	w.wantLease(id, leaseDegraded)
	if !strings.Contains(w.events(), "cannot be replaced now") {
		t.Error("no event says that there is no spare")
	}
	w.nodes["b1"].dead[0] = false
	w.settle()
	w.wantLease(id, leaseActive)
}

func TestAttachFails(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 1), boxNode("b1", 8))
	w.nodes["h1"].refuses = true
	id := w.create(&dxpuv1.LeaseSpec{Count: 1})
	for range 4 {
		w.settle()
	}
	l := w.wantLease(id, leaseFailed)
	tried := 0
	for _, b := range l.Bindings {
		if slices.ContainsFunc(b.Timeline, func(s *dxpuv1.Step) bool { return s.Name == "ready" }) {
			tried++
		}
	}
	if tried != maxAttempts {
		t.Errorf("%d bindings were tried, want %d", tried, maxAttempts)
	}
	if p := w.m.totals(); p.GpusFree != 8 {
		t.Errorf("%d GPUs are free, want 8", p.GpusFree)
	}
}

func TestQueue(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 4), boxNode("b1", 1))
	first := w.create(&dxpuv1.LeaseSpec{Count: 1})
	if _, err := w.tryCreate(&dxpuv1.LeaseSpec{Count: 1}); connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Fatalf("without waiting: %v", err)
	}
	low := w.create(&dxpuv1.LeaseSpec{Count: 1, Wait: true})
	high := w.create(&dxpuv1.LeaseSpec{Count: 1, Wait: true, Priority: 5})
	brief := w.create(&dxpuv1.LeaseSpec{Count: 1, Wait: true, WaitTimeout: durationpb.New(time.Second)})
	w.settle()
	w.wantLease(low, leasePending)
	w.delete(first, true)
	w.settle()
	w.wantLease(high, leaseActive)
	w.wantLease(low, leasePending)
	w.pass(time.Second)
	w.wantLease(brief, leaseFailed)
}

func TestExpiry(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 1), boxNode("b1", 1))
	id := w.create(&dxpuv1.LeaseSpec{Count: 1, ExpiresAfter: durationpb.New(time.Minute)})
	w.settle()
	w.wantLease(id, leaseActive)
	w.pass(time.Minute)
	w.settle()
	if l := w.wantLease(id, leaseReleased); l.Bindings[0].Reason != dxpuv1.Reason_REASON_LEASE_EXPIRED {
		t.Errorf("reason %v", l.Bindings[0].Reason)
	}
}

// A manager of the previous version counts the lifetime from grant_time, and from the
// creation of the lease if there is none: it must not end a lease that waited for long.
func TestLifetimeForThePreviousVersion(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 2), boxNode("b1", 1))
	first := w.create(&dxpuv1.LeaseSpec{Count: 1})
	id := w.create(&dxpuv1.LeaseSpec{Count: 1, Wait: true, ExpiresAfter: durationpb.New(time.Minute)})
	w.settle()
	w.pass(time.Hour)
	w.delete(first, true)
	granted := func() (at time.Time) {
		_ = w.m.view(func(t *tx) error {
			var old struct {
				GrantTime time.Time `json:"grant_time"`
			}
			raw, _ := json.Marshal(t.leases.get(id))
			_ = json.Unmarshal(raw, &old)
			at = old.GrantTime
			return nil
		})
		return at
	}
	w.nodes["h1"].waits = "no VM runs"
	w.settle()
	w.wantLease(id, leaseBinding)
	if at := granted(); w.clock.now().Sub(at) > 10*time.Second {
		t.Errorf("it has got its GPU: grant_time is %v, now is %v", at, w.clock.now())
	}
	w.passReporting(2 * time.Minute)
	w.nodes["h1"].waits = ""
	w.settle()
	w.wantLease(id, leaseActive)
	if at := granted(); w.clock.now().Sub(at) > 10*time.Second {
		t.Errorf("it is active: grant_time is %v, now is %v", at, w.clock.now())
	}
}

// The lifetime of a lease counts neither the time in the queue nor that of the attach,
// and a lease that returns to the queue gets the whole time again.
func TestExpiryCountsFromActive(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 2), boxNode("b1", 1))
	first := w.create(&dxpuv1.LeaseSpec{Count: 1})
	id := w.create(&dxpuv1.LeaseSpec{Count: 1, Wait: true, ExpiresAfter: durationpb.New(time.Minute)})
	w.settle()
	w.pass(time.Hour)
	w.settle()
	if l := w.wantLease(id, leasePending); l.ExpireTime != nil {
		t.Errorf("a lease that waits expires at %v", l.ExpireTime.AsTime())
	}
	w.nodes["h1"].waits = "no VM runs"
	w.delete(first, true)
	w.settle()
	w.passReporting(2 * time.Minute)
	if l := w.wantLease(id, leaseBinding); l.ExpireTime != nil {
		t.Errorf("a lease that was never active expires at %v", l.ExpireTime.AsTime())
	}
	w.nodes["h1"].waits = ""
	w.settle()
	if l := w.wantLease(id, leaseActive); l.ExpireTime.AsTime().Sub(w.clock.now()) < 50*time.Second {
		t.Errorf("it expires at %v, now is %v", l.ExpireTime.AsTime(), w.clock.now())
	}
	w.pass(30 * time.Second)
	w.settle()
	w.drain(atHost("h1"), time.Millisecond)
	w.pass(time.Second)
	w.settle()
	if l := w.wantLease(id, leasePending); l.ExpireTime != nil {
		t.Errorf("a lease that is back in the queue expires at %v", l.ExpireTime.AsTime())
	}
	w.uncordon(atHost("h1"))
	w.settle()
	if l := w.wantLease(id, leaseActive); l.ExpireTime.AsTime().Sub(w.clock.now()) < 50*time.Second {
		t.Errorf("it expires at %v, now is %v", l.ExpireTime.AsTime(), w.clock.now())
	}
	w.pass(time.Minute)
	w.settle()
	w.wantLease(id, leaseReleased)
}

// The box fences off a host that does not answer; the host slot stays occupied until
// the host returns.
func TestDetachFromSilentHost(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 1), boxNode("b1", 2))
	id := w.create(&dxpuv1.LeaseSpec{Count: 1})
	w.settle()
	w.nodes["h1"].deaf = true
	w.delete(id, true)
	w.settle()
	w.wantLease(id, leaseReleasing)
	w.pass(defaultUnplugTimeout + unplugSlack)
	w.settle()
	if len(w.nodes["b1"].has) != 0 {
		t.Fatal("the box was not told to fence the host off")
	}
	w.nodes["h1"].down = true
	w.pass(time.Minute)
	w.wantLease(id, leaseReleased)
	if b := w.lease(id).Bindings[0]; b.HostClear || !b.BoxClear {
		t.Errorf("binding: %v", b)
	}
	w.nodes["h1"].down, w.nodes["h1"].deaf = false, false
	w.settle()
	w.settle()
	if b := w.lease(id).Bindings[0]; b.State != released {
		t.Errorf("binding: %v", b)
	}
}

// A report from before a node has received a binding proves nothing.
func TestStaleReports(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 1), boxNode("b1", 1))
	old := w.nodes["h1"].observe()
	id := w.create(&dxpuv1.LeaseSpec{Count: 1})
	w.settle()
	send := func(o *dxpuv1.ObservedState) {
		if _, _, err := w.m.report(context.Background(), o, func(*tx) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	send(old)
	w.wantLease(id, leaseActive)
	old.Sequence = w.nodes["h1"].sequence + 100
	send(old) // a newer report, but the node has not applied the revision
	w.wantLease(id, leaseActive)
	w.nodes["h1"].restart()
	w.report("h1")
	old.Sequence += 100
	old.InstanceId = "0"
	send(old) // of the previous run
	w.wantLease(id, leaseActive)
}

func TestStateSurvivesRestart(t *testing.T) {
	store := &MemoryStore{}
	w := newWorld(t, Config{Store: store}, hostNode("h1", 1), boxNode("b1", 1))
	id := w.create(&dxpuv1.LeaseSpec{Count: 1, Model: "DX100"})
	w.settle()
	before := w.lease(id)

	cluster := w.m.state.meta.ClusterID
	var err error
	w.m, err = New(context.Background(), Config{JoinToken: "token-for-tests", Store: store, Now: w.clock.now})
	if err != nil {
		t.Fatal(err)
	}
	if w.m.state.meta.ClusterID != cluster {
		t.Error("another cluster ID")
	}
	w.pass(time.Minute)
	w.wantLease(id, leaseActive) // although no node has reported yet
	w.settle()
	after := w.wantLease(id, leaseActive)
	if after.Bindings[0].Epoch != before.Bindings[0].Epoch || len(after.Bindings) != 1 {
		t.Errorf("bindings after restart: %v", after.Bindings)
	}
	w.delete(id, true)
	w.settle()
	w.wantLease(id, leaseReleased)
}

// brokenStore refuses all commits on request.
type brokenStore struct {
	MemoryStore
	broken bool
}

func (s *brokenStore) Commit(ctx context.Context, put map[string][]byte, remove []string) error {
	if s.broken {
		return errors.New("disk full")
	}
	return s.MemoryStore.Commit(ctx, put, remove)
}

// A change that is not stored has not happened.
func TestStoreFails(t *testing.T) {
	s := &brokenStore{}
	w := newWorld(t, Config{Store: s}, hostNode("h1", 1), boxNode("b1", 1))
	s.broken = true
	if id, err := w.tryCreate(&dxpuv1.LeaseSpec{Count: 1}); err == nil {
		t.Fatalf("lease %s was acknowledged but not stored", id)
	}
	w.deliver("b1")
	if p := w.m.totals(); p.LeasesActive != 0 || p.GpusFree != 1 || len(w.nodes["b1"].has) != 0 {
		t.Errorf("pool: %v", p)
	}
	s.broken = false
	id := w.create(&dxpuv1.LeaseSpec{Count: 1})
	w.settle()
	w.wantLease(id, leaseActive)
}

func TestCheckSpec(t *testing.T) {
	tests := []struct {
		name string
		spec *dxpuv1.LeaseSpec
		want string
	}{
		{"none", nil, "spec: must be set"},
		{"no GPU", &dxpuv1.LeaseSpec{}, "spec.count: 0 is not 1 to 64"},
		{"one", &dxpuv1.LeaseSpec{Count: 1}, ""},
		{"most", &dxpuv1.LeaseSpec{Count: 64}, ""},
		{"too many", &dxpuv1.LeaseSpec{Count: 65}, "spec.count: 65 is not 1 to 64"},
		{"priority", &dxpuv1.LeaseSpec{Count: 1, Priority: 101}, "spec.priority: 101 is not -100 to 100"},
		{"tenant", &dxpuv1.LeaseSpec{Count: 1, Tenant: "A b"}, `spec.tenant: "A b" is not`},
		{"kind", &dxpuv1.LeaseSpec{Count: 1, BoxKind: 9}, "spec.box_kind: 9 is unknown"},
		{"preference", &dxpuv1.LeaseSpec{Count: 1, Nvlink: -1}, "spec.nvlink: -1 is unknown"},
		{"spread NVLink", &dxpuv1.LeaseSpec{
			Count: 2, Nvlink: dxpuv1.Preference_PREFERENCE_REQUIRED, SameBox: dxpuv1.Preference_PREFERENCE_AVOID,
		}, "spec.same_box: GPUs joined by NVLink"},
		{"NVLink of a switch", &dxpuv1.LeaseSpec{
			Count: 2, Nvlink: dxpuv1.Preference_PREFERENCE_REQUIRED, BoxKind: dxpuv1.BoxKind_BOX_KIND_PCIE_SWITCH,
		}, "spec.box_kind: PCIe-switch boxes"},
		{"expiry", &dxpuv1.LeaseSpec{Count: 1, ExpiresAfter: durationpb.New(0)}, "spec.expires_after: must be positive"},
		{"long wait", &dxpuv1.LeaseSpec{Count: 1, WaitTimeout: &durationpb.Duration{Seconds: 1 << 60}}, "spec.wait_timeout: must be"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := checkSpec(tt.spec)
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}
