package controller

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/claims"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/inventory"
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
		if _, err := c.report(t.Context(), claim, status); err != nil {
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

// allocatedLocal returns a claim that has a GPU, reserved for pod p.
func allocatedLocal(name, device string) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: name}}
	c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{{Request: "gpu", Driver: inventory.Driver, Device: device}},
	}}
	c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: "p1"}}
	return c
}

// TestLocalErr: a container with GPUs of its node's own machine by two claims is refused, because it
// would have one share of both. Two containers may have one claim each.
func TestLocalErr(t *testing.T) {
	uses := func(name string, claims ...string) corev1.Container {
		c := corev1.Container{Name: name}
		for _, r := range claims {
			c.Resources.Claims = append(c.Resources.Claims, corev1.ResourceClaim{Name: r})
		}
		return c
	}
	const why = "container c of pod p has GPUs of the node's own machine by claim "
	for name, test := range map[string]struct {
		inits, containers []corev1.Container
		extended          string // container with the claim b by an extended resource
		second            string // device of the claim b
		want              string
	}{
		"two claims":                {containers: []corev1.Container{uses("c", "x", "y")}, second: "m1-gpus-1", want: why + "b, too"},
		"in an init container":      {inits: []corev1.Container{uses("c", "x", "y")}, second: "m1-gpus-1", want: why + "b, too"},
		"an extended resource":      {containers: []corev1.Container{uses("c", "x")}, extended: "c", second: "m1-gpus-1", want: why + "b, too"},
		"one claim each":            {containers: []corev1.Container{uses("c", "x"), uses("d", "y")}, second: "m1-gpus-1"},
		"an extended resource each": {containers: []corev1.Container{uses("c", "x")}, extended: "d", second: "m1-gpus-1"},
		"two requests of one claim": {containers: []corev1.Container{uses("c", "x", "x")}, second: "m1-gpus-1"},
		"a GPU of a box":            {containers: []corev1.Container{uses("c", "x", "y")}, second: "b1-0"},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := allocatedLocal("a", "m1-gpus-0"), allocatedLocal("b", test.second)
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "p", UID: "p1"}, Spec: corev1.PodSpec{
				InitContainers: test.inits, Containers: test.containers,
				ResourceClaims: []corev1.PodResourceClaim{{Name: "x", ResourceClaimName: &a.Name}, {Name: "y"}},
			}}
			pod.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "y", ResourceClaimName: &b.Name}}
			if test.extended != "" {
				pod.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{
					ResourceClaimName: "b", RequestMappings: []corev1.ContainerExtendedResourceRequest{{ContainerName: test.extended}},
				}
			}
			c := controllerWith(oneAnswer{})
			c.cfg.Kube = fake.NewClientset(pod)
			c.claims = cache.NewSharedIndexInformer(&cache.ListWatch{}, &resourceapi.ResourceClaim{}, 0, cache.Indexers{})
			for _, claim := range []*resourceapi.ResourceClaim{a, b} {
				if err := c.claims.GetStore().Add(claim); err != nil {
					t.Fatal(err)
				}
			}
			c.inventory = inventory.New(inventory.State{GPUs: []*dxpuv1.GPU{
				{Id: "m1-gpus/0", BoxId: "m1-gpus", LocalHost: "m1", Device: &dxpuv1.Device{}},
				{Id: "m1-gpus/1", BoxId: "m1-gpus", LocalHost: "m1", Device: &dxpuv1.Device{}},
				{Id: "b1/0", BoxId: "b1", Device: &dxpuv1.Device{}},
			}})
			v := &claims.Claim{Devices: []claims.Device{viewDevice(a, &a.Status.Allocation.Devices.Results[0], c.inventory)}}
			got, err := c.localErr(t.Context(), a, v)
			if err != nil || !strings.HasPrefix(got, test.want) || (got == "") != (test.want == "") {
				t.Errorf("%q, %v; want %q", got, err, test.want)
			}
			v.Devices[0].Attached = true
			if got, err := c.localErr(t.Context(), a, v); err != nil || got != "" {
				t.Errorf("a pod that runs: %q, %v", got, err)
			}
		})
	}
}
