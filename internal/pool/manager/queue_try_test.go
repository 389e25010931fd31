package manager

import (
	"context"
	"fmt"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// The box of a GPU that broke may have been deleted. A decision without its binding leaves no
// box without a name in the index.
func TestTryWithoutADeletedBox(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 2), boxNode("b1", 1))
	id := w.create(&dxpuv1.LeaseSpec{Count: 1, Wait: true})
	w.settle()
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	tx := w.m.beginLocked(w.m.cfg.Now())
	defer tx.rollback()
	gone := map[string]bool{}
	for _, b := range tx.bindingsOf(id) {
		gone[b] = true
	}
	tx.nodes.remove("b1")
	tx.tryWithout(gone, time.Time{}, func() {})
	if none := tx.gpuPool.Handle("none"); len(gone) == 0 || tx.gpuPool.Handle("") != none || tx.gpuPool.Handle("b1") != none {
		t.Errorf("the index has a box that does not exist; bindings %v", gone)
	}
}

// The nodes of a plan are shown as open by the tries at times after it, and by no others.
func TestTriesOpenWhatMaintenanceCloses(t *testing.T) {
	w, from := maintainedRack(t, 3, 2)
	_ = w.m.view(func(tx *tx) error {
		fits := func(by time.Time) (ok bool) {
			tx.tryWithout(nil, by, func() {
				d := tx.gpuPool.Place(placement.Reserve{}, placement.Request{Count: 6})
				ok = d.OK()
			})
			return ok
		}
		over := from.Add(time.Hour)
		tx.tryTogether(func() {
			for _, by := range []time.Time{{}, over, over.Add(time.Hour), from, over, {}} {
				if fits(by) != !by.Before(over) {
					t.Errorf("at %v the GPUs are free: %t", by, fits(by))
				}
			}
			fits(over)
		})
		if fits(time.Time{}) || !fits(over) {
			t.Error("the nodes are not as they were")
		}
		return nil
	})
}

// maintainedRack returns a pool with boxes of one rack, in maintenance for the next hour.
func maintainedRack(t fatalTester, boxes, gpus int) (*world, time.Time) {
	nodes := []*fakeNode{hostNode("h1", 8)}
	for i := range boxes {
		b := boxNode(fmt.Sprintf("b%05d", i), gpus)
		b.rack = "r1"
		nodes = append(nodes, b)
	}
	w := newWorld(t, Config{}, nodes...)
	from := w.clock.t.Add(time.Second)
	if _, err := w.api().PlanMaintenance(context.Background(), connect.NewRequest(&dxpuv1.PlanMaintenanceRequest{Maintenance: &dxpuv1.Maintenance{
		Target: &dxpuv1.Maintenance_Rack{Rack: "r1"}, StartTime: timestamppb.New(from), EndTime: timestamppb.New(from.Add(time.Hour)),
	}})); err != nil {
		t.Fatalf("plan: %v", err)
	}
	w.passReporting(2 * time.Second)
	return w, from
}

// BenchmarkReserveInMaintenance measures the decision on a lease that begins after the maintenance
// of a rack, with leases that end at 20 times before, while another one is first in the queue. The
// manager's lock is held meanwhile.
func BenchmarkReserveInMaintenance(b *testing.B) {
	for _, boxes := range []int{100, 1000} {
		b.Run(fmt.Sprintf("boxes=%d", boxes), func(b *testing.B) {
			w, from := maintainedRack(b, boxes, 8)
			w.join(hostNode("h2", 64))
			free := boxNode("free", 20)
			free.labels = map[string]string{"for": "all"}
			w.join(free)
			w.settle()
			for i := range 20 {
				w.create(&dxpuv1.LeaseSpec{Count: 1, HostId: "h2", ExpiresAfter: durationpb.New(time.Duration(70+i) * time.Minute), BoxLabels: free.labels})
			}
			w.settle()
			w.create(&dxpuv1.LeaseSpec{Count: 8, HostId: "h1", Wait: true, Priority: 1, BoxLabels: free.labels})
			w.settle()
			_ = w.m.view(func(tx *tx) error {
				l := &leaseRecord{State: leasePending, CreateTime: tx.now, spec: &dxpuv1.LeaseSpec{
					Count: 4, StartTime: timestamppb.New(from.Add(3 * time.Hour)), ExpiresAfter: durationpb.New(time.Hour), Wait: true, Tenant: "default",
				}}
				for b.Loop() {
					tx.decideLater(l)
				}
				return nil
			})
		})
	}
}
