package manager

import (
	"context"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/cockroachdb/datadriven"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// migrate asks for a live migration and returns the ID of the successor.
func (w *world) migrate(r *dxpuv1.MigrateLeaseRequest) (string, error) {
	res, err := w.api().MigrateLease(context.Background(), connect.NewRequest(r))
	if err != nil {
		return "", err
	}
	return res.Msg.Binding.Id, nil
}

// moveArg returns the behaviour that a command names.
func (s *scenario) moveArg(d *datadriven.TestData) (m move) {
	why := ""
	d.MaybeScanArgs(s.t, "why", &why)
	why = strings.ReplaceAll(why, "_", " ")
	switch d.CmdArgs[1].Key {
	case "never":
		m.never, m.why = true, why
	case "stall":
		m.stalls = true
	case "copy":
		m.copies = true
	case "wait":
		m.waits = true
	case "fail":
		m.fails = why
	}
	return m
}

// failover makes another manager take over with the records of the present one, without
// any report.
func (w *world) failover() {
	cfg := w.m.cfg
	cfg.Store = w.m.store
	m, err := New(context.Background(), cfg)
	if err != nil {
		w.t.Fatalf("failover: %v", err)
	}
	w.m = m
}

// inState lets the pool work until the successor has a state, with a node that stalls
// before the next one.
func (w *world) inState(id string, want dxpuv1.BindingState) *dxpuv1.Binding {
	w.t.Helper()
	for range 40 {
		for _, l := range w.leases() {
			for _, b := range l.Bindings {
				if b.Id == id && b.State == want {
					return b
				}
			}
		}
		w.rounds(1)
	}
	w.t.Fatalf("binding %s does not become %s\n%s", id, stateWord(want), w.events())
	return nil
}

func (w *world) leases() (out []*dxpuv1.Lease) {
	_ = w.m.view(func(t *tx) error {
		for _, id := range t.leases.ids() {
			out = append(out, t.leaseMessage(t.leases.get(id)))
		}
		return nil
	})
	return out
}

// moving returns a pool in which the GPU of a lease moves and the successor has reached a
// state, in which the migration stands still.
func moving(t *testing.T, at dxpuv1.BindingState) (w *world, lease, next string) {
	t.Helper()
	w = newWorld(t, Config{Store: &MemoryStore{}}, hostNode("h1", 2), boxNode("b1", 1), boxNode("b2", 1), boxNode("b3", 1))
	lease = w.create(&dxpuv1.LeaseSpec{Count: 1, GpuIds: nil, Wait: true})
	w.settle()
	w.wantLease(lease, leaseActive)
	switch at {
	case preparing:
		w.nodes["b2"].deaf = true
	case ready:
		w.nodes["b2"].moves.stalls = true
	case copying:
		w.nodes["b1"].moves.copies = true
	case switching:
		w.nodes["h1"].moves.waits = true
	}
	next, err := w.migrate(&dxpuv1.MigrateLeaseRequest{LeaseId: lease, ToGpuId: "b2/0"})
	if err != nil {
		t.Fatal(err)
	}
	w.inState(next, at)
	return w, lease, next
}

// goOn ends what stops the migration of moving.
func (w *world) goOn() {
	for _, n := range w.nodes {
		n.deaf, n.moves = false, move{}
	}
	w.settle()
}

var movingStates = []dxpuv1.BindingState{preparing, ready, copying, switching}

// TestMigrateFailover lets another manager take over in each state: the migration goes on.
func TestMigrateFailover(t *testing.T) {
	for _, at := range movingStates {
		t.Run(stateWord(at), func(t *testing.T) {
			w, lease, next := moving(t, at)
			w.failover()
			w.rounds(2)
			w.inState(next, at)
			w.goOn()
			if l := w.wantLease(lease, leaseActive); w.has(lease) != "b2/0" {
				t.Errorf("the lease has %s: %v\n%s", w.has(lease), l.Bindings, w.events())
			}
			if strings.Contains(w.events(), "degraded") {
				t.Errorf("the lease was degraded\n%s", w.events())
			}
		})
	}
}

// TestMigrateFaults makes each part fail in each state: the lease keeps a GPU that works, or
// gets another one, and nothing is left of the migration.
func TestMigrateFaults(t *testing.T) {
	faults := []struct {
		name string
		do   func(w *world, lease string)
		has  string // the GPU of the lease afterwards; "": none
		// degraded: the guest loses a device
		degraded bool
	}{
		{"target fails", func(w *world, _ string) { w.nodes["b2"].dead[0] = true }, "b1/0", false},
		{"target refuses", func(w *world, _ string) { w.nodes["b2"].moves = move{fails: "no"} }, "b1/0", false},
		{"target's box restarts", func(w *world, _ string) { w.nodes["b2"].forget() }, "b1/0", false},
		{"target's box is deleted", func(w *world, _ string) { w.deleteAndForget("b2") }, "b1/0", false},
		{"source reports a failure", func(w *world, _ string) { w.nodes["b1"].moves = move{fails: "no"} }, "b1/0", false},
		{"host reports a failure", func(w *world, _ string) { w.nodes["h1"].moves = move{fails: "no"} }, "b1/0", false},
		{"source fails", func(w *world, _ string) { w.nodes["b1"].dead[0] = true }, "", true},
		{"source's box restarts", func(w *world, _ string) { w.nodes["b1"].forget() }, "", true},
		{"host restarts", func(w *world, _ string) { w.nodes["h1"].forget() }, "", true},
		{"lease is deleted", func(w *world, lease string) { w.delete(lease, true) }, "-", false},
		{"lease is removed by force", func(w *world, lease string) { w.delete(lease, false) }, "-", false},
		{"lease is drained away", func(w *world, _ string) { w.drain(atHost("h1"), time.Millisecond); w.pass(time.Second) }, "-", false},
	}
	for _, at := range movingStates {
		for _, f := range faults {
			t.Run(stateWord(at)+"/"+f.name, func(t *testing.T) {
				w, lease, next := moving(t, at)
				f.do(w, lease)
				w.rounds(4)
				w.checkIndex(t)
				for _, n := range w.nodes {
					n.deaf = false
				}
				w.settle()
				clear(w.nodes["b2"].dead)
				w.goOn()
				w.passReporting(30 * time.Second)
				has := w.has(lease)
				switch {
				case f.has == "-":
					if has != "" {
						t.Errorf("the lease has %s", has)
					}
				case f.has == "b1/0":
					again := at == preparing && f.name == "target's box restarts" // it begins again
					if has != "b1/0" && at != switching && !again {               // a host that decides later may find all well
						t.Errorf("the lease has %s, want b1/0", has)
					}
					fallthrough
				default:
					w.wantLease(lease, leaseActive)
				}
				if !f.degraded && strings.Contains(w.events(), "is degraded") && !(at == switching && strings.HasPrefix(f.name, "target")) {
					t.Errorf("the lease was degraded\n%s", w.events())
				}
				if b := w.record(next); b.State != released && b.State != attached {
					t.Errorf("the successor is %s\n%s", stateWord(b.State), w.events())
				}
				for _, n := range w.nodes {
					for slot, b := range n.has {
						if r := w.record(b.BindingId); r.State != attached {
							t.Errorf("%s slot %d has %s, which is %s", n.id, slot, b.BindingId, stateWord(r.State))
						}
					}
				}
			})
		}
	}
}

// TestCancelMigration ends a migration in each state in which the host does not decide yet:
// the lease keeps its GPU, and the other one is free afterwards.
func TestCancelMigration(t *testing.T) {
	for _, at := range movingStates {
		t.Run(stateWord(at), func(t *testing.T) {
			w, lease, next := moving(t, at)
			if m := w.inState(next, at).Migration; (at == copying || at == switching) != (m != nil) {
				t.Errorf("progress %v", m)
			}
			res, err := w.api().CancelMigration(t.Context(), connect.NewRequest(&dxpuv1.CancelMigrationRequest{LeaseId: lease, GpuId: "b1/0"}))
			has := "b1/0"
			if at == switching {
				has = "b2/0"
				if connect.CodeOf(err) != connect.CodeFailedPrecondition || !strings.Contains(err.Error(), "decides already") {
					t.Errorf("error %v", err)
				}
			} else if err != nil || res.Msg.Binding.Id != next || !strings.Contains(res.Msg.Binding.Detail, "canceled") {
				t.Errorf("%v, %v", res, err)
			}
			w.checkIndex(t)
			w.goOn()
			w.wantLease(lease, leaseActive)
			if w.has(lease) != has || strings.Contains(w.events(), "degraded") {
				t.Errorf("the lease has %s, want %s\n%s", w.has(lease), has, w.events())
			}
			if b := w.record(next); at != switching && b.State != released {
				t.Errorf("the successor is %s", stateWord(b.State))
			}
			_, err = w.api().CancelMigration(t.Context(), connect.NewRequest(&dxpuv1.CancelMigrationRequest{LeaseId: lease}))
			if connect.CodeOf(err) != connect.CodeFailedPrecondition {
				t.Errorf("a second time: %v", err)
			}
		})
	}
}

// record returns the record of a binding.
func (w *world) record(id string) (b bindingRecord) {
	_ = w.m.view(func(t *tx) error {
		if r := t.bindings.get(id); r != nil {
			b = *r
		}
		return nil
	})
	return b
}

// TestMigrateHostAway lets the host be silent while it decides: the manager waits, whatever
// the boxes say, and then gives the lease up like others of a lost host.
func TestMigrateHostAway(t *testing.T) {
	w, lease, next := moving(t, switching)
	h := w.nodes["h1"]
	h.moves.waits = false
	h.observe() // it switches, and the manager does not hear of it
	h.down = true
	w.nodes["b1"].has[0].State = lost
	w.nodes["b2"].has[0].State = attached
	w.passReporting(30 * time.Second)
	w.inState(next, switching)
	w.wantLease(lease, leaseActive)
	h.down = false
	w.passReporting(2 * time.Second)
	if w.has(lease) != "b2/0" {
		t.Errorf("the lease has %s\n%s", w.has(lease), w.events())
	}

	w, lease, _ = moving(t, switching)
	w.nodes["h1"].down = true
	w.nodes["b1"].has[0].State = lost
	w.nodes["b2"].has[0].State = lost
	w.passReporting(11 * time.Minute)
	w.nodes["b1"].deaf, w.nodes["b2"].deaf = false, false
	w.passReporting(30 * time.Second)
	if l := w.lease(lease); l.State == leaseActive {
		t.Errorf("the lease is %s: %s", leaseWord(l.State), l.StateReason)
	}
}

// TestMigrateSecrets checks which node gets which secret, and that none does before its time.
func TestMigrateSecrets(t *testing.T) {
	w, _, next := moving(t, preparing)
	desired := func(node string) *dxpuv1.DesiredBinding {
		var d *dxpuv1.DesiredState
		_ = w.m.view(func(t *tx) error {
			d = t.desired(t.nodes.get(node))
			return nil
		})
		if len(d.Bindings) != 1 {
			t.Fatalf("%s is to have %v", node, d.Bindings)
		}
		return d.Bindings[0]
	}
	if b := desired("b1"); b.Transfer != nil {
		t.Errorf("the source is told before the target is ready")
	}
	if h := desired("h1"); h.Successor != nil {
		t.Errorf("the host is told before the target is ready")
	}
	w.nodes["b2"].deaf, w.nodes["b2"].moves.stalls = false, true
	w.inState(next, ready)
	source, target, host := desired("b1"), desired("b2"), desired("h1")
	a, b := source.Transfer.GetLink(), target.Transfer.GetLink()
	switch {
	case len(a.GetSecret()) != 32 || string(a.Secret) != string(b.GetSecret()) || source.Transfer.Receive || !target.Transfer.Receive:
		t.Errorf("transfer: %v and %v", source.Transfer, target.Transfer)
	case string(a.Secret) == string(target.Secret) || string(a.Secret) == string(source.Secret) || string(source.Secret) == string(target.Secret):
		t.Error("two links have one secret")
	case host.Transfer != nil || string(host.Successor.GetSecret()) != string(target.Secret) || host.Successor.Epoch != target.Epoch || host.Switch:
		t.Errorf("host: %v", host)
	case a.Slot != 0 || a.Peer.NodeId != "b2" || b.Peer.NodeId != "b1" || a.BindingId != next || a.Epoch != target.Epoch:
		t.Errorf("link: %v and %v", a, b)
	}
	w.goOn()
	if b := desired("b2"); b.Transfer != nil || w.record(next).TransferSecret != nil {
		t.Errorf("the transfer is not over: %v", b)
	}
}

// TestMigrateIsRepeatable repeats calls, before and after the switch.
func TestMigrateIsRepeatable(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 2), boxNode("b1", 1), boxNode("b2", 1), boxNode("b3", 1))
	lease := w.create(&dxpuv1.LeaseSpec{Count: 1})
	w.settle()
	r := &dxpuv1.MigrateLeaseRequest{LeaseId: lease, ToGpuId: "b3/0", RequestId: "r1"}
	first, err := w.migrate(r)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if again, err := w.migrate(r); err != nil || again != first {
			t.Errorf("the call gave %s, then %s, %v", first, again, err)
		}
		w.settle()
	}
	if w.has(lease) != "b3/0" {
		t.Errorf("the lease has %s", w.has(lease))
	}
	r.ToGpuId = "b2/0"
	if _, err := w.migrate(r); connect.CodeOf(err) != connect.CodeAlreadyExists {
		t.Errorf("another call with its request_id: %v", err)
	}
}

// TestMigrateQuota lets a tenant that has all it may have move a GPU.
func TestMigrateQuota(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 2), boxNode("b1", 1), boxNode("b2", 1))
	w.putTenant("a", &dxpuv1.Quota{MaxGpus: 1})
	lease := w.create(&dxpuv1.LeaseSpec{Count: 1, Tenant: "a"})
	w.settle()
	if _, err := w.migrate(&dxpuv1.MigrateLeaseRequest{LeaseId: lease}); err != nil {
		t.Fatal(err)
	}
	w.settle()
	if w.has(lease) != "b2/0" {
		t.Errorf("the lease has %s\n%s", w.has(lease), w.events())
	}
}

// TestMigrateKeepsTogether asks for the migration of one of two GPUs that must be in one box,
// and of one of two that need not.
func TestMigrateKeepsTogether(t *testing.T) {
	for preference, want := range map[dxpuv1.Preference]connect.Code{
		dxpuv1.Preference_PREFERENCE_REQUIRED:    connect.CodeFailedPrecondition,
		dxpuv1.Preference_PREFERENCE_UNSPECIFIED: 0,
	} {
		for _, to := range []string{"", "b2/1"} {
			w := newWorld(t, Config{}, hostNode("h1", 2), boxNode("b1", 2), boxNode("b2", 2))
			lease := w.create(&dxpuv1.LeaseSpec{Count: 2, SameBox: preference})
			w.settle()
			_, err := w.migrate(&dxpuv1.MigrateLeaseRequest{LeaseId: lease, GpuId: "b1/0", ToGpuId: to})
			if (err == nil) != (want == 0) || err != nil && connect.CodeOf(err) != want {
				t.Errorf("same box %v, to %q: %v, want %v", preference, to, err, want)
			}
		}
	}
}
