package test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"

	"connectrpc.com/connect"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/kubetest"
)

const (
	gib      = 1 << 30
	firstGPU = `device.attributes["gpu.dxpu.dev"].gpu == "box-00000/0"`
)

// TestFractions gives parts of GPUs to pods, in each version of Kubernetes. The cases of
// consumable capacity are those of KEP-5075.
func TestFractions(t *testing.T) {
	t.Parallel()
	for _, v := range versions {
		t.Run(v, func(t *testing.T) {
			e := newEnv(t, v, kubetest.PoolSpec{Boxes: 2, GPUs: 2, Hosts: 3, Slots: 4, Simulate: true})
			t.Run("thirds of a GPU", func(t *testing.T) { e.on(t).thirds() })
			t.Run("rounding", func(t *testing.T) { e.on(t).rounding() })
			t.Run("beyond the capacity", func(t *testing.T) { e.on(t).beyond() })
			t.Run("two parts in one claim", func(t *testing.T) { e.on(t).twoParts() })
			t.Run("beside others", func(t *testing.T) { e.on(t).besideOthers() })
			t.Run("preempted", func(t *testing.T) { e.on(t).preemptedPart() })
		})
	}
}

// byGPU returns the leases of the pool by the GPU that serves them.
func (e *env) byGPU() map[string][]*dxpuv1.Lease {
	e.t.Helper()
	all, err := e.leases(e.t.Context())
	if err != nil {
		e.t.Fatal(err)
	}
	out := map[string][]*dxpuv1.Lease{}
	for _, l := range all {
		if len(l.Bindings) == 0 {
			e.t.Fatalf("lease %s has no binding: %s", l.Id, l.StateReason)
		}
		b := l.Bindings[len(l.Bindings)-1]
		gpu := b.GpuId
		if b.Part != nil {
			gpu = b.PartOfGpuId
		}
		out[gpu] = append(out[gpu], l)
	}
	return out
}

// thirds: three pods share a GPU, a fourth one does not fit, and a pod that asks for no
// capacity has a whole GPU.
func (e *env) thirds() {
	names := []string{"third-0", "third-1", "third-2", "third-3"}
	for _, name := range names {
		e.createPod(podSpec{name: name, capacity: "memory=26Gi,compute=33"})
		e.waitRunning(name)
	}
	e.createPod(podSpec{name: "whole"})
	e.waitRunning("whole")
	var sizes []string
	for _, list := range e.byGPU() {
		var compute uint32
		var memory uint64
		for _, l := range list {
			compute, memory = compute+l.Spec.GetPart().GetCompute(), memory+l.Spec.GetPart().GetMemoryBytes()
		}
		sizes = append(sizes, fmt.Sprintf("%d leases, %d thousandths, %d GiB", len(list), compute, memory/gib))
	}
	slices.Sort(sizes)
	if want := []string{"1 leases, 0 thousandths, 0 GiB", "1 leases, 330 thousandths, 26 GiB", "3 leases, 990 thousandths, 78 GiB"}; !slices.Equal(sizes, want) {
		e.t.Errorf("the GPUs have %q, want %q", sizes, want)
	}
	for _, name := range append(names, "whole") {
		e.deletePod(name)
	}
	e.waitNoLease()
}

// rounding: a request is rounded up to the step, one below the smallest amount has that, and
// one that does not name a capacity has all of it.
func (e *env) rounding() {
	for name, tc := range map[string]struct {
		capacity string
		memory   uint64
		compute  uint32
	}{
		"step":       {"memory=1073741825,compute=30", gib + 1<<20, 300},
		"smallest":   {"memory=1,compute=0", 1 << 20, 10},
		"not named":  {"memory=8Gi", 8 * gib, 1000},
		"fractional": {"memory=1Gi,compute=1500m", gib, 20},
	} {
		name := "rounded-" + fmt.Sprint(len(name)) + string(name[0])
		e.createPod(podSpec{name: name, capacity: tc.capacity})
		e.waitRunning(name)
		if p := e.onlyLease().Spec.Part; p.GetMemoryBytes() != tc.memory || p.GetCompute() != tc.compute {
			e.t.Errorf("%s: part %v, want %d bytes and %d thousandths", tc.capacity, p, tc.memory, tc.compute)
		}
		e.deletePod(name)
		e.waitNoLease()
	}
}

// beyond: no GPU has as much, or has such a capacity at all.
func (e *env) beyond() {
	for i, capacity := range []string{"memory=81Gi,compute=1", "memory=1Gi,compute=101", "bandwidth=1"} {
		name := fmt.Sprintf("beyond-%d", i)
		e.createPod(podSpec{name: name, capacity: capacity})
		e.waitUnschedulable(name)
		e.deletePod(name)
	}
	e.waitNoLease()
}

// twoParts: the requests of a claim may have parts of one GPU, or of different ones if a
// constraint says so.
func (e *env) twoParts() {
	for name, gpus := range map[string]int{"together": 1, "apart": 2} {
		e.createPod(podSpec{name: name, capacity: "memory=10Gi,compute=10", requests: 2, distinct: gpus == 2})
		e.waitRunning(name)
		e.wait("both parts", func(ctx context.Context) (bool, error) {
			all, err := e.leases(ctx)
			return err == nil && len(all) == 2 && !slices.ContainsFunc(all, func(l *dxpuv1.Lease) bool { return l.State != dxpuv1.LeaseState_LEASE_STATE_ACTIVE }), err
		})
		if got := e.byGPU(); len(got) != gpus {
			e.t.Errorf("%s: parts of %q, want %d GPUs", name, slices.Collect(maps.Keys(got)), gpus)
		}
		e.deletePod(name)
		e.waitNoLease()
	}
}

// outside creates a lease of a part of the first GPU for a user outside of the cluster.
func (e *env) outside(memory uint64, compute uint32, priority int32) (end func()) {
	e.t.Helper()
	res, err := e.pool.API.Pool.CreateLease(e.t.Context(), connect.NewRequest(&dxpuv1.CreateLeaseRequest{Spec: &dxpuv1.LeaseSpec{
		Count: 1, GpuIds: []string{"box-00000/0"}, Part: &dxpuv1.Part{MemoryBytes: memory * gib, Compute: compute}, Priority: priority, Wait: true,
	}}))
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

// besideOthers: the cluster is not offered the parts of users outside of it.
func (e *env) besideOthers() {
	end := e.outside(40, 500, 0)
	e.wait("the rest of the GPU", func(ctx context.Context) (bool, error) {
		d, err := e.device(ctx, "box-00000-0")
		if err != nil {
			return false, err
		}
		memory, compute := d.Capacity["memory"].Value, d.Capacity["compute"].Value
		return memory.Value() == 40*gib && compute.Value() == 50, fmt.Errorf("%v, %v %%", memory.String(), compute.String())
	})
	e.createPod(podSpec{name: "large", selector: firstGPU, capacity: "memory=41Gi,compute=50"})
	e.waitUnschedulable("large")
	e.createPod(podSpec{name: "all", selector: firstGPU})
	e.waitUnschedulable("all")
	e.createPod(podSpec{name: "small", selector: firstGPU, capacity: "memory=40Gi,compute=50"})
	e.waitRunning("small")
	end()
	e.deletePod("small")
	e.deletePod("all")
	e.waitRunning("large")
	e.deletePod("large")
	e.waitNoLease()
}

// preemptedPart: a part that the pool takes back for a lease of higher priority evicts its
// pod, whose events have the manager's words. The pod with the other part stays.
func (e *env) preemptedPart() {
	ctx := e.t.Context()
	e.createPod(podSpec{name: "stays", selector: firstGPU, capacity: "memory=20Gi,compute=20"})
	stays := e.waitRunning("stays")
	e.createPod(podSpec{name: "goes", selector: firstGPU, capacity: "memory=40Gi,compute=50", parameters: `"class":"offline","preemptible":true,"priority":-10`})
	goes := e.waitRunning("goes")
	end := e.outside(60, 700, 10)
	e.waitEvent("goes", "GPUPreempted", "preempted by lease")
	e.wait("the eviction of the pod", func(ctx context.Context) (bool, error) {
		p, err := e.pod(ctx, "goes")
		return apierrors.IsNotFound(err) || err == nil && p.UID != goes.UID, err
	})
	e.wait("two leases", func(ctx context.Context) (bool, error) {
		all, err := e.leases(ctx)
		return len(all) == 2, err
	})
	if p, err := e.pod(ctx, "stays"); err != nil || p.UID != stays.UID || p.DeletionTimestamp != nil {
		e.t.Errorf("the pod with the other part: %v, %v", p, err)
	}
	end()
	e.deletePod("stays")
	e.waitNoLease()
	// A claim cannot raise its own priority.
	e.createPod(podSpec{name: "greedy", capacity: "memory=1Gi,compute=1", parameters: `"priority":10`})
	e.waitEvent("greedy", "GPUInvalidParameters", "only a device class may have one above 0")
	e.deletePod("greedy")
	e.classWithPriority()
	e.createPod(podSpec{name: "urgent", class: "urgent", capacity: "memory=1Gi,compute=1"})
	e.waitRunning("urgent")
	if p := e.onlyLease().Spec.Priority; p != 10 {
		e.t.Errorf("the lease has the priority %d, the class 10", p)
	}
	e.deletePod("urgent")
	e.waitNoLease()
}

func (e *env) classWithPriority() {
	e.t.Helper()
	c := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "urgent"}, Spec: resourceapi.DeviceClassSpec{
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == "gpu.dxpu.dev"`}}},
		Config:    []resourceapi.DeviceClassConfiguration{{DeviceConfiguration: parameters(`"priority":10`)}},
	}}
	if _, err := e.Kube.ResourceV1().DeviceClasses().Create(e.t.Context(), c, metav1.CreateOptions{}); err != nil {
		e.t.Fatal(err)
	}
}
