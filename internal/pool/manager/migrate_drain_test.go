package manager

import (
	"context"
	"maps"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// TestMigrateTargetCloses closes the box of the target before the switch: the migration
// ends, because the guest would lose its GPU there.
func TestMigrateTargetCloses(t *testing.T) {
	for _, at := range []dxpuv1.BindingState{preparing, ready, copying} {
		for name, do := range map[string]func(w *world){
			"cordon": func(w *world) {
				_, err := w.api().Cordon(context.Background(), connect.NewRequest(&dxpuv1.CordonRequest{Target: atGPU("b2/0")}))
				if err != nil {
					w.t.Fatalf("%v", err)
				}
			},
			"drain": func(w *world) { w.drain(atBox("b2"), time.Second) },
			"maintenance": func(w *world) {
				now := w.clock.now()
				_, err := w.api().PlanMaintenance(context.Background(), connect.NewRequest(&dxpuv1.PlanMaintenanceRequest{Maintenance: &dxpuv1.Maintenance{
					Target: &dxpuv1.Maintenance_BoxId{BoxId: "b2"}, StartTime: timestamp(now.Add(2 * time.Second)), EndTime: timestamp(now.Add(time.Hour)),
				}}))
				if err != nil {
					w.t.Fatalf("%v", err)
				}
			},
		} {
			t.Run(stateWord(at)+"/"+name, func(t *testing.T) {
				w, lease, next := moving(t, at)
				do(w)
				w.passReporting(4 * time.Second)
				w.goOn()
				w.passReporting(4 * time.Second)
				if b := w.record(next); b.State != released || b.Reason != dxpuv1.Reason_REASON_MIGRATION_FAILED || w.has(lease) != "b1/0" {
					t.Errorf("the successor is %s, the lease has %s\n%s", stateWord(b.State), w.has(lease), w.events())
				}
				w.wantLease(lease, leaseActive)
			})
		}
	}
}

// TestMigrateRestored restores a backup from before a switch that has happened since: the
// guest keeps the GPU that it has.
func TestMigrateRestored(t *testing.T) {
	for _, at := range movingStates[1:] { // a host does not know one that is PREPARING
		t.Run(stateWord(at), func(t *testing.T) {
			w, lease, next := moving(t, at)
			saved := maps.Clone(w.m.store.(*MemoryStore).records)
			w.goOn()
			if w.has(lease) != "b2/0" {
				t.Fatalf("the lease has %s\n%s", w.has(lease), w.events())
			}
			records, err := Restored(saved)
			if err != nil {
				t.Fatal(err)
			}
			w.restoredPool(records)
			w.settle()
			w.passReporting(30 * time.Second)
			if w.has(lease) != "b2/0" || w.record(next).State != attached || strings.Contains(w.events(), "degraded") {
				t.Errorf("the lease has %s\n%s", w.has(lease), w.events())
			}
			w.wantLease(lease, leaseActive)
		})
	}
}

// drainLive drains a box live.
func (w *world) drainLive(box string, deadline time.Duration) {
	w.t.Helper()
	r := &dxpuv1.DrainRequest{Target: atBox(box), Live: true}
	if deadline > 0 {
		r.Deadline = durationpb.New(deadline)
	}
	if _, err := w.api().Drain(context.Background(), connect.NewRequest(r)); err != nil {
		w.t.Fatalf("%v", err)
	}
}

// TestDrainLiveFails lets live drains fail: the guest keeps its GPU until the deadline.
func TestDrainLiveFails(t *testing.T) {
	t.Run("immovable", func(t *testing.T) {
		w := newWorld(t, Config{}, hostNode("h1", 2), boxNode("b1", 1))
		lease := w.create(&dxpuv1.LeaseSpec{Count: 1})
		w.settle()
		w.join(boxNode("b2", 1))
		w.nodes["b1"].moves = move{never: true, why: "it computes by OpenCL"}
		w.settle()
		w.drainLive("b1", time.Minute)
		w.passReporting(50 * time.Second)
		w.wantEvents("GPU b1/0 of lease " + lease + " cannot move live now: it computes by OpenCL")
		if w.has(lease) != "b1/0" {
			t.Errorf("before the deadline the lease has %s\n%s", w.has(lease), w.events())
		}
		w.passReporting(20 * time.Second)
		if w.has(lease) != "b2/0" {
			t.Errorf("after the deadline the lease has %s\n%s", w.has(lease), w.events())
		}
	})
	fails := func(t *testing.T) (w *world, lease string) {
		w = newWorld(t, Config{}, hostNode("h1", 2), boxNode("b1", 1))
		lease = w.create(&dxpuv1.LeaseSpec{Count: 1})
		w.settle()
		w.join(boxNode("b2", 1))
		w.nodes["b1"].moves.fails = "no"
		w.settle()
		return w, lease
	}
	tries := func(w *world) int { return strings.Count(w.events(), "did not move to b2/0: b1 reports: no") }
	t.Run("three tries", func(t *testing.T) {
		w, lease := fails(t)
		w.drainLive("b1", 0)
		w.passReporting(time.Minute)
		if n := tries(w); n != maxMoveTries || w.has(lease) != "b1/0" {
			t.Errorf("it was tried %d times, and the lease has %s\n%s", n, w.has(lease), w.events())
		}
		w.wantEvents("it has failed 3 times")
		w.uncordon(atBox("b1"))
		w.nodes["b1"].moves = move{}
		w.drainLive("b1", 0)
		w.passReporting(10 * time.Second)
		if w.has(lease) != "b2/0" {
			t.Errorf("after another drain the lease has %s\n%s", w.has(lease), w.events())
		}
	})
	t.Run("deadline", func(t *testing.T) {
		w, lease := fails(t)
		w.drainLive("b1", 3*time.Second) // before the second try
		w.passReporting(20 * time.Second)
		if n := tries(w); n != 1 || w.has(lease) != "b2/0" {
			t.Errorf("it was tried %d times, and the lease has %s\n%s", n, w.has(lease), w.events())
		}
		w.wantLease(lease, leaseActive)
	})
}
