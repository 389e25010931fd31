package manager

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// Tenants go in the order of their dominant shares: half of the rare GPUs is more than a
// quarter of the common ones, although it is fewer GPUs. A weight divides the share.
func TestDominantShares(t *testing.T) {
	for _, tt := range []struct {
		weight uint32 // of the tenant with the rare GPU
		want   string // the tenant that gets the next GPU
		why    string
	}{
		{0, "common", "tenant rare has 1 GPU, among them 50 % of model H100."},
		{3, "rare", "and weight 3."},
	} {
		t.Run(fmt.Sprint(tt.weight), func(t *testing.T) {
			few := boxNode("b2", 2)
			few.model = "H100"
			w := newWorld(t, Config{}, hostNode("h1", 16), boxNode("b1", 8), few)
			w.putTenant("rare", &dxpuv1.Quota{Weight: tt.weight})
			w.putTenant("common", nil)
			w.putTenant("other", nil)
			w.create(&dxpuv1.LeaseSpec{Count: 1, Model: "H100", Tenant: "rare"})
			w.create(&dxpuv1.LeaseSpec{Count: 2, Model: "DX100", Tenant: "common"})
			rest := w.create(&dxpuv1.LeaseSpec{Count: 6, Model: "DX100", Tenant: "other"})
			waiting := map[string]string{
				"rare":   w.create(&dxpuv1.LeaseSpec{Count: 6, Model: "DX100", Tenant: "rare", Wait: true}),
				"common": w.create(&dxpuv1.LeaseSpec{Count: 6, Model: "DX100", Tenant: "common", Wait: true}),
			}
			w.settle()
			if s := w.explain(waiting["rare"]); !strings.Contains(s, tt.why) {
				t.Errorf("the explanation does not say %q: %s", tt.why, s)
			}
			if l := w.wantLease(waiting[tt.want], leasePending); l.QueuePosition != 1 {
				t.Errorf("tenant %s is at %d", tt.want, l.QueuePosition)
			}
			w.delete(rest, true)
			w.settle()
			w.wantLease(waiting[tt.want], leaseActive)
		})
	}
}

// One tenant cannot take all places of the queue.
func TestPlacesOfTheQueueAreShared(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 1))
	_ = w.m.update(t.Context(), func(t *tx) error { // as if the leases were there
		for i := range maxQueued/2 - 1 {
			t.waiting.add("greedy", queueKey{created: int64(i), id: fmt.Sprint("l-", i)}, ask{gpus: 1})
		}
		return nil
	})
	_, err := w.tryCreate(&dxpuv1.LeaseSpec{Count: 1, Tenant: "greedy", Wait: true})
	if err != nil {
		t.Errorf("as many places as remain free: %v", err)
	}
	_, err = w.tryCreate(&dxpuv1.LeaseSpec{Count: 1, Tenant: "greedy", Wait: true})
	wantErr(t, err, connect.CodeResourceExhausted, "tenant greedy has 10000 leases in the queue, and its 10000 free places are kept for other tenants")
	if _, err := w.tryCreate(&dxpuv1.LeaseSpec{Count: 1, Tenant: "modest", Wait: true}); err != nil {
		t.Errorf("another tenant: %v", err)
	}
}

// Models that a tenant invents do not make the order of the queue expensive: the memory
// for a position grows with the leases, not with leases times models.
func TestInventedModelsInTheQueue(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 1))
	const leases = 2000
	_ = w.m.update(t.Context(), func(t *tx) error { // as if the leases were there
		for i := range leases {
			k := queueKey{created: int64(i), id: fmt.Sprint("l-", i)}
			t.waiting.add("greedy", k, ask{1, fmt.Sprint("model-", i)})
			t.indexedLeases[k.id] = leaseEntry{queueKey: k, tenant: "greedy", shape: k.id}
		}
		return nil
	})
	var before, after runtime.MemStats
	_ = w.m.view(func(tx *tx) error {
		runtime.ReadMemStats(&before)
		last := fmt.Sprint("l-", leases-1)
		if p, all := tx.queuePosition(last), tx.allPositions()[last]; p != leases || all != leases {
			t.Errorf("the last lease is at %d, in a list at %d", p, all)
		}
		runtime.ReadMemStats(&after)
		return nil
	})
	if got := after.TotalAlloc - before.TotalAlloc; got > 4000*leases {
		t.Errorf("two positions took %d bytes", got)
	}
}
