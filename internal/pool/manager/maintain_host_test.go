package manager

import (
	"context"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// A lease whose only GPU broke has nothing attached at its host, and leaves it all the same
// when the host is emptied: it would get its next GPU there.
func TestLeaseWithoutGPUsLeavesItsHost(t *testing.T) {
	for name, closeHost := range map[string]func(*world) error{
		"drain": func(w *world) error { w.drain(atHost("h1"), time.Second); return nil },
		"plan": func(w *world) error {
			_, err := w.api().PlanMaintenance(context.Background(), connect.NewRequest(&dxpuv1.PlanMaintenanceRequest{Maintenance: &dxpuv1.Maintenance{
				Target: &dxpuv1.Maintenance_HostId{HostId: "h1"}, EndTime: timestamppb.New(w.clock.now().Add(time.Hour)),
			}}))
			return err
		},
		"taint": func(w *world) error {
			_, err := w.api().SetTaints(context.Background(), connect.NewRequest(&dxpuv1.SetTaintsRequest{
				Target: atHost("h1"), Set: []*dxpuv1.Taint{{Key: "k", Effect: dxpuv1.TaintEffect_TAINT_EFFECT_NO_EXECUTE}},
			}))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Config{}, hostNode("h1", 2), hostNode("h2", 1), boxNode("b1", 1))
			id := w.create(&dxpuv1.LeaseSpec{Count: 1, Wait: true, ExpiresAfter: durationpb.New(time.Hour)})
			w.settle()
			if l := w.wantLease(id, leaseActive); l.HostId != "h1" {
				t.Fatalf("it is on %s", l.HostId)
			}
			w.nodes["b1"].dead[0] = true
			w.settle()
			w.wantLease(id, leaseDegraded)
			if err := closeHost(w); err != nil {
				t.Fatal(err)
			}
			w.settle()
			w.pass(2 * time.Second)
			w.settle()
			w.wantLease(id, leasePending)
			clear(w.nodes["b1"].dead)
			w.settle()
			if l := w.wantLease(id, leaseActive); l.HostId != "h2" {
				t.Errorf("it is on %s\n%s", l.HostId, w.events())
			}
		})
	}
}
