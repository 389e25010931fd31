package controller

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/client-go/kubernetes/fake"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/claims"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/pool"
)

// TestLocalData: the status of a device tells the plugin if the GPU is one of the node's own
// machine, and does not forget it while the pool lacks the GPU.
func TestLocalData(t *testing.T) {
	claim := &resourceapi.ResourceClaim{}
	claim.Namespace, claim.Name, claim.UID = "lab", "train", "u"
	claim.Status.Allocation = &resourceapi.AllocationResult{}
	kube := fake.NewClientset(claim)
	c := controllerWith(oneAnswer{})
	c.cfg.Kube = kube
	own := &dxpuv1.GPU{Id: "m1-gpus/0", LocalHost: "m1", Device: &dxpuv1.Device{Serial: "GPU-1f"}}
	box := &dxpuv1.GPU{Id: "b1/0", Device: &dxpuv1.Device{Serial: "17"}}
	status := []claims.Status{
		{Device: "m1-gpus-0", Phase: claims.Attached, Reason: "Attached", Lease: "l-1", Binding: &dxpuv1.Binding{GpuId: "m1-gpus/5", PartOfGpuId: "m1-gpus/0", HostId: "m1", HostSlot: 3}},
		{Device: "b1-0", Phase: claims.Attached, Reason: "Attached", Lease: "l-2", Binding: &dxpuv1.Binding{GpuId: "b1/0", HostId: "h1"}},
	}
	for _, gpus := range [][]*dxpuv1.GPU{{own, box}, nil} {
		c.watch.SetSnapshot(&pool.Snapshot{GPUs: gpus})
		if err := c.report(t.Context(), claim, status); err != nil {
			t.Fatal(err)
		}
		var err error
		if claim, err = kube.ResourceV1().ResourceClaims("lab").Get(t.Context(), "train", getOptions); err != nil {
			t.Fatal(err)
		}
		for i, want := range []string{
			`{"lease":"l-1","gpu":"m1-gpus/0","host":"m1","slot":3,"local":true,"serial":"GPU-1f"}`, `{"lease":"l-2","gpu":"b1/0","host":"h1","slot":0}`,
		} {
			if got := string(claim.Status.Devices[i].Data.Raw); got != want {
				t.Errorf("with %d GPUs: data %s; want %s", len(gpus), got, want)
			}
		}
	}
}
