package controller

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/claims"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/inventory"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/pool"
)

// TestLargestClaim: a claim has as many devices as Kubernetes allows, of alternatives, for monitoring, with
// parameters as large as it allows. Each lease has an ID of its own that the manager takes, and what is
// wrong with a claim stays small in its status and in the events of its pods.
func TestLargestClaim(t *testing.T) {
	junk := `{"apiVersion":"gpu.dxpu.dev/v1","kind":"LeaseParameters","class":"` + strings.Repeat("x", 10<<10-100) + `"}`
	for name, test := range map[string]struct {
		parameters string
		created    int
		reason     string
	}{
		"served":                   {"", resourceapi.AllocationResultsMaxSize - 1, "GPUQueued"},
		"junk":                     {junk, 0, "GPUInvalidParameters"},
		"a kind of another driver": {`{"apiVersion":"gpu.nvidia.com/v1","kind":"GpuConfig"}`, 0, "GPUInvalidParameters"},
	} {
		t.Run(name, func(t *testing.T) {
			claim := largestClaim(test.parameters)
			kube, events := fake.NewClientset(claim), record.NewFakeRecorder(100)
			c := controllerWith(oneAnswer{})
			c.cfg.Kube, c.recorder, c.said, c.cfg.Policy.Tenant = kube, events, map[string]map[string]saying{}, func(string) string { return "lab" }
			c.nodes, c.claims = cache.NewSharedIndexInformer(&cache.ListWatch{}, &corev1.Node{}, 0, byHost), cache.NewSharedIndexInformer(&cache.ListWatch{}, &resourceapi.ResourceClaim{}, 0, cache.Indexers{})
			if err := c.nodes.GetStore().Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "w1", Labels: map[string]string{inventory.HostLabel: "h1"}}}); err != nil {
				t.Fatal(err)
			}
			host := &dxpuv1.Host{Node: &dxpuv1.NodeInfo{Id: "h1", Connected: true}}
			gpus := []*dxpuv1.GPU{}
			for i := range resourceapi.AllocationResultsMaxSize {
				host.Slots = append(host.Slots, &dxpuv1.HostSlot{Slot: uint32(i)})
				gpus = append(gpus, &dxpuv1.GPU{Id: fmt.Sprintf("%s/%d", longestBox, i), BoxId: longestBox, Device: &dxpuv1.Device{}})
			}
			c.watch.SetSnapshot(&pool.Snapshot{GPUs: gpus, Hosts: map[string]*dxpuv1.Host{"h1": host}})
			c.inventory = inventory.New(inventory.State{GPUs: gpus})
			plan, err := c.decide(t.Context(), claim, nil)
			if err != nil {
				t.Fatal(err)
			}
			ids := map[string]bool{}
			for _, r := range plan.Create {
				ids[r.ID] = true
				if len(r.ID) > 128 {
					t.Errorf("the ID %s has %d bytes", r.ID, len(r.ID))
				}
			}
			if len(ids) != test.created || len(plan.Status) != resourceapi.AllocationResultsMaxSize {
				t.Errorf("%d leases and %d devices", len(ids), len(plan.Status))
			}
			for i := range plan.Status {
				if s := &plan.Status[i]; s.Reason == "Requested" {
					s.Reason, s.Message = "Queued", "in the queue"
				}
			}
			checkSmall(t, c, claim, plan, events, test.reason)
		})
	}
}

// checkSmall reports a status, and checks the size of it and of its events.
func checkSmall(t *testing.T, c *Controller, claim *resourceapi.ResourceClaim, plan claims.Plan, events *record.FakeRecorder, reason string) {
	t.Helper()
	written, err := c.report(t.Context(), claim, plan.Status)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(written.Status.Devices)
	if most := 1 << 10 * resourceapi.AllocationResultsMaxSize; err != nil || len(raw) > most {
		t.Errorf("the status has %d bytes, at most %d: %v", len(raw), most, err)
	}
	if len(events.Events) != resourceapi.AllocationResultsMaxSize-1 {
		t.Errorf("%d events", len(events.Events))
	}
	for range len(events.Events) {
		if e := <-events.Events; len(e) > 500 || !strings.Contains(e, reason) {
			t.Errorf("event of %d bytes: %s", len(e), e)
		}
	}
}

// longestBox is the longest name of a box.
var longestBox = strings.Repeat("b", 63)

// largestClaim returns a claim of all devices. The first is one for monitoring.
func largestClaim(parameters string) *resourceapi.ResourceClaim {
	claim, yes := &resourceapi.ResourceClaim{}, true
	claim.Namespace, claim.Name, claim.UID = "lab", "train", types.UID(strings.Repeat("0", 36))
	claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: "p"}}
	a := &resourceapi.AllocationResult{NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchFields: []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{"w1"}}},
	}}}}
	for i := range resourceapi.AllocationResultsMaxSize {
		r := resourceapi.DeviceRequestAllocationResult{Request: "gpu/large", Driver: inventory.Driver, Pool: "dxpu/b", Device: inventory.DeviceName(fmt.Sprintf("%s/%d", longestBox, i))}
		if i == 0 {
			r.Request, r.AdminAccess = "admin", &yes
		}
		a.Devices.Results = append(a.Devices.Results, r)
	}
	if parameters != "" {
		a.Devices.Config = []resourceapi.DeviceAllocationConfiguration{{
			Source: resourceapi.AllocationConfigSourceClaim, Requests: []string{"gpu"},
			DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: inventory.Driver, Parameters: runtime.RawExtension{Raw: []byte(parameters)}}},
		}}
	}
	claim.Status.Allocation = a
	return claim
}
