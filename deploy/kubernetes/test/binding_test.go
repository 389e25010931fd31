package test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"connectrpc.com/connect"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/claims"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/kubetest"
)

// TestBinding: the cases of KEP-5007 in which a pod does not get the devices that the scheduler
// has chosen. A user outside of the cluster takes a GPU before the controller asks for it.
func TestBinding(t *testing.T) {
	t.Parallel()
	e := newEnv(t, versions[0], kubetest.PoolSpec{Boxes: 2, GPUs: 4, Hosts: 2, Slots: 4, Simulate: true})
	for _, test := range []struct {
		name string
		run  func()
	}{
		{"one of two devices fails", e.oneFails},
		{"timeout without a controller", e.timeoutAlone},
		{"timeout in the queue", e.timeoutQueued},
		{"claim deleted in the queue", e.deletedQueued},
		{"host without a free slot", func() { e.hostShut("full", e.fillHost, "has no free slot") }},
		{"cordoned host", func() { e.hostShut("shut", e.cordonHost, "is cordoned") }},
	} {
		t.Run(test.name, func(t *testing.T) {
			outer := e.t
			e.t = t
			defer func() { e.t = outer }()
			test.run()
			e.checkInvariants()
		})
	}
}

// allocateAlone creates a pod without a controller and returns its claim when it is allocated.
func (e *env) allocateAlone(s podSpec) *resourceapi.ResourceClaim {
	e.t.Helper()
	e.controller.Kill()
	e.createPod(s)
	return e.waitAllocated(s.name, nil)
}

// waitAllocated waits until the claim of a pod has an allocation that is not an earlier one.
func (e *env) waitAllocated(pod string, earlier *resourceapi.ResourceClaim) (claim *resourceapi.ResourceClaim) {
	e.t.Helper()
	e.wait("an allocation for pod "+pod, func(ctx context.Context) (bool, error) {
		p, err := e.pod(ctx, pod)
		if err != nil {
			return false, err
		}
		if claim, err = e.claimOf(ctx, p); err != nil || claim.Status.Allocation == nil {
			return false, err
		}
		return earlier == nil || !claim.Status.Allocation.AllocationTimestamp.Equal(earlier.Status.Allocation.AllocationTimestamp), nil
	})
	return claim
}

// devicesOf returns the names of the devices that a claim has.
func devicesOf(c *resourceapi.ResourceClaim) (out []string) {
	for _, r := range c.Status.Allocation.Devices.Results {
		out = append(out, r.Device)
	}
	return out
}

// take gives the GPU of a device to a user outside of the cluster.
func (e *env) take(device string) (release func()) {
	e.t.Helper()
	d, err := e.device(e.t.Context(), device)
	if err != nil {
		e.t.Fatal(err)
	}
	res, err := e.pool.API.Pool.CreateLease(e.t.Context(), connect.NewRequest(&dxpuv1.CreateLeaseRequest{
		Spec: &dxpuv1.LeaseSpec{Count: 1, GpuIds: []string{*d.Attributes["gpu"].StringValue}},
	}))
	if err != nil {
		e.t.Fatal(err)
	}
	return func() {
		e.t.Helper()
		if _, err := e.pool.API.Pool.DeleteLease(e.t.Context(), connect.NewRequest(&dxpuv1.DeleteLeaseRequest{LeaseId: res.Msg.Lease.Id})); err != nil {
			e.t.Fatal(err)
		}
	}
}

// clusterLeases returns the leases of the cluster that hold or want a GPU.
func (e *env) clusterLeases(ctx context.Context) (out []*dxpuv1.Lease, err error) {
	all, err := e.leases(ctx)
	for _, l := range all {
		if l.Spec.Labels[claims.LabelClaim] != "" && l.State != dxpuv1.LeaseState_LEASE_STATE_RELEASING {
			out = append(out, l)
		}
	}
	return out, err
}

// startWithQueue starts the controller, whose leases wait in the queue of the pool for a time.
func (e *env) startWithQueue(d time.Duration) {
	e.t.Helper()
	e.flags = []string{"--queue-timeout", d.String()}
	e.startController()
}

// waitQueued waits until a lease of the cluster is in the queue.
func (e *env) waitQueued() {
	e.t.Helper()
	e.wait("a lease in the queue", func(ctx context.Context) (bool, error) {
		all, err := e.clusterLeases(ctx)
		return slices.ContainsFunc(all, func(l *dxpuv1.Lease) bool { return l.State == dxpuv1.LeaseState_LEASE_STATE_PENDING }), err
	})
}

// runsWithout checks that a pod runs with a number of GPUs, none of which is a given device.
func (e *env) runsWithout(pod, device string, n int) {
	e.t.Helper()
	claim, err := e.claimOf(e.t.Context(), e.waitRunning(pod))
	if err != nil {
		e.t.Fatal(err)
	}
	if got := devicesOf(claim); len(got) != n || slices.Contains(got, device) {
		e.t.Errorf("the pod runs with the devices %q", got)
	}
	if all, err := e.clusterLeases(e.t.Context()); err != nil || len(all) != n {
		e.t.Errorf("%d leases, %v; want %d", len(all), err, n)
	}
}

// oneFails: the lease of one device does not come in time. The scheduler gives both back.
func (e *env) oneFails() {
	first := devicesOf(e.allocateAlone(podSpec{name: "fails", gpus: 2}))
	release := e.take(first[1])
	e.startWithQueue(3 * time.Second)
	e.waitEvent("fails", "GPUQueued", first[1])
	e.waitEvent("fails", "GPULeaseEnded", first[1])
	e.runsWithout("fails", first[1], 2)
	e.deletePod("fails")
	release()
	e.waitNoLease()
}

// timeoutAlone: the scheduler gives a device back whose condition does not come, also while no
// controller runs. The lease is that of the present allocation.
func (e *env) timeoutAlone() {
	if err := e.SetBindingTimeout(e.t.Context(), 8*time.Second); err != nil {
		e.t.Fatal(err)
	}
	first := e.allocateAlone(podSpec{name: "late"})
	e.waitAllocated("late", first)
	e.startWithQueue(time.Hour)
	e.runsWithout("late", "", 1)
	e.deletePod("late")
	e.waitNoLease()
}

// timeoutQueued: the time of the scheduler ends before that of the queue. The lease that waits
// goes with the allocation, and the next one is for another GPU.
func (e *env) timeoutQueued() {
	first := devicesOf(e.allocateAlone(podSpec{name: "queued"}))[0]
	release := e.take(first)
	e.startWithQueue(time.Hour)
	e.waitQueued()
	e.runsWithout("queued", first, 1)
	e.deletePod("queued")
	release()
	e.waitNoLease()
}

// deletedQueued: claim and pod are deleted while the lease waits. It gets no GPU afterwards.
func (e *env) deletedQueued() {
	if err := e.SetBindingTimeout(e.t.Context(), 10*time.Minute); err != nil {
		e.t.Fatal(err)
	}
	claim := e.allocateAlone(podSpec{name: "deleted"})
	release := e.take(devicesOf(claim)[0])
	e.startWithQueue(time.Hour)
	e.waitQueued()
	if err := e.Kube.ResourceV1().ResourceClaims(claim.Namespace).Delete(e.t.Context(), claim.Name, metav1.DeleteOptions{}); err != nil {
		e.t.Fatal(err)
	}
	e.deletePod("deleted")
	e.wait("the lease to end", func(ctx context.Context) (bool, error) {
		all, err := e.clusterLeases(ctx)
		return err == nil && len(all) == 0, fmt.Errorf("%d leases, %w", len(all), err)
	})
	release()
	e.waitNoLease()
}

// hostShut: the host of the node that the scheduler has chosen takes no GPU any more. The claim is
// given back at once, and the pod runs on the other node long before any time ends.
func (e *env) hostShut(pod string, shut func(host string) (undo func()), why string) {
	claim := e.allocateAlone(podSpec{name: pod})
	node := claim.Status.Allocation.NodeSelector.NodeSelectorTerms[0].MatchFields[0].Values[0]
	undo := shut("host-00" + node[1:])
	e.startWithQueue(time.Hour)
	e.waitEvent(pod, "GPUHostUnavailable", why)
	if p := e.waitRunning(pod); p.Spec.NodeName == node {
		e.t.Errorf("the pod runs on %s, whose host %s", node, why)
	}
	e.deletePod(pod)
	undo()
	e.waitNoLease()
}

// fillHost gives all slots of a host to users outside of the cluster.
func (e *env) fillHost(host string) (undo func()) {
	e.t.Helper()
	var ids []string
	for range 4 {
		res, err := e.pool.API.Pool.CreateLease(e.t.Context(), connect.NewRequest(&dxpuv1.CreateLeaseRequest{Spec: &dxpuv1.LeaseSpec{Count: 1, HostId: host}}))
		if err != nil {
			e.t.Fatal(err)
		}
		ids = append(ids, res.Msg.Lease.Id)
	}
	return func() {
		e.t.Helper()
		for _, id := range ids {
			if _, err := e.pool.API.Pool.DeleteLease(e.t.Context(), connect.NewRequest(&dxpuv1.DeleteLeaseRequest{LeaseId: id})); err != nil {
				e.t.Fatal(err)
			}
		}
	}
}

func (e *env) cordonHost(host string) (undo func()) {
	e.t.Helper()
	target := &dxpuv1.Target{Target: &dxpuv1.Target_HostId{HostId: host}}
	if _, err := e.pool.API.Pool.Cordon(e.t.Context(), connect.NewRequest(&dxpuv1.CordonRequest{Target: target})); err != nil {
		e.t.Fatal(err)
	}
	return func() {
		e.t.Helper()
		if _, err := e.pool.API.Pool.Uncordon(e.t.Context(), connect.NewRequest(&dxpuv1.UncordonRequest{Target: target})); err != nil {
			e.t.Fatal(err)
		}
	}
}
