package test

import (
	"context"
	"fmt"
	"testing"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/claims"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/kubetest"
)

// TestGangs: the pods of a job get their GPUs when all of them can have them. A pod that ends
// takes its own GPUs only, and its successor waits for its own only.
func TestGangs(t *testing.T) {
	t.Parallel()
	e := newEnv(t, versions[0], kubetest.PoolSpec{Boxes: 2, GPUs: 4, Hosts: 3, Slots: 4, Simulate: true}, "--queue-timeout", "20s")
	member := func(i int) string { return fmt.Sprintf("train-%d", i) }
	create := func(i int) {
		e.createPod(podSpec{name: member(i), gpus: 2, parameters: `"gang":"train","gangSize":6`})
	}
	create(0)
	create(1)
	for i := range 2 {
		e.waitEvent(member(i), "GPUQueued", "of its 6 leases, and waits for the others")
	}
	res, err := e.pool.API.Pool.GetPool(t.Context(), connect.NewRequest(&dxpuv1.GetPoolRequest{}))
	if err != nil || res.Msg.Pool.GpusBound > 0 {
		t.Fatalf("%d GPUs are attached for a part of the gang, %v", res.Msg.GetPool().GetGpusBound(), err)
	}
	// No pod waits for ever: without the last pod the claims are given back, and asked for again.
	e.waitEvent(member(0), "GPULeaseEnded", "the wait timed out: Gang ")
	create(2)
	for i := range 3 {
		e.waitRunning(member(i))
	}
	claim, err := e.claimOf(t.Context(), e.waitRunning(member(0)))
	if err != nil {
		t.Fatal(err)
	}
	e.deletePod(member(0))
	e.wait("the leases of the other pods", func(ctx context.Context) (bool, error) {
		all, err := e.leases(ctx)
		others := 0
		for _, l := range all {
			if l.State == dxpuv1.LeaseState_LEASE_STATE_ACTIVE && l.Spec.Labels[claims.LabelClaim] != string(claim.UID) {
				others++
			}
		}
		if err == nil && others < 4 {
			t.Fatalf("%d of the 4 leases of the other pods are left: %v", others, all)
		}
		return len(all) == 4, err
	})
	e.createPod(podSpec{name: "successor", gpus: 2, parameters: `"gang":"train","gangSize":6`})
	e.waitRunning("successor")
	for i := 1; i < 3; i++ {
		if p := e.waitRunning(member(i)); p.DeletionTimestamp != nil {
			t.Errorf("pod %s is deleted with another one of its gang", p.Name)
		}
		e.deletePod(member(i))
	}
	e.deletePod("successor")
	e.waitNoLease()
	e.gangOnFullNode(t)
}

// gangOnFullNode: a gang whose pods want five of the four slots of a node. The last claim is given
// back with the reason, and the gang gets its GPUs when its pod may go to another node.
func (e *env) gangOnFullNode(t *testing.T) {
	t.Helper()
	const job = `"gang":"packed","gangSize":5`
	e.createPod(podSpec{name: "packed", gpus: 2, node: nodeName(0), parameters: job})
	e.waitEvent("packed", "GPUQueued", "of its 5 leases")
	e.createPod(podSpec{name: "last", gpus: 3, node: nodeName(0), parameters: job})
	e.waitEvent("last", "GPUHostUnavailable", "has room for 4 of the 5 GPUs that the gang wants there")
	e.deletePod("last")
	e.createPod(podSpec{name: "too-many", gpus: 5, node: nodeName(1)})
	e.waitEvent("too-many", "GPUHostUnavailable", "has room for 4 of the claim's 5 GPUs")
	e.deletePod("too-many")
	e.createPod(podSpec{name: "elsewhere", gpus: 3, node: nodeName(1), parameters: job})
	e.waitRunning("packed")
	e.waitRunning("elsewhere")
	e.checkInvariants()
	e.deletePod("packed")
	e.deletePod("elsewhere")
	e.waitNoLease()
}
