package controller

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/claims"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/inventory"
)

// named returns a lease that names a claim.
func named(uid, namespace, name string) *dxpuv1.Lease {
	return &dxpuv1.Lease{Id: uid + "/" + namespace + "/" + name, Spec: &dxpuv1.LeaseSpec{Labels: map[string]string{
		claims.LabelCluster: "c", claims.LabelClaim: uid, claims.LabelNamespace: namespace, claims.LabelName: name,
	}}}
}

// TestLive: a lease with the UID of a claim and another name does not make the claim look gone,
// whichever of the leases is first.
func TestLive(t *testing.T) {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "train", UID: "u"}}
	other := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "other", UID: "u2"}}
	c := controllerWith(oneAnswer{})
	c.cfg.Kube = fake.NewClientset(claim, other)
	own := named("u", "lab", "train")
	forged := []*dxpuv1.Lease{named("u", "lab", "gone"), named("u", "lab", "other"), named("u", "", ""), named("u", "lab", "..")}
	for _, known := range []*resourceapi.ResourceClaim{claim, nil} {
		for at := range len(forged) + 1 {
			if got, err := c.live(t.Context(), "u", known, slices.Insert(slices.Clone(forged), at, own)); err != nil || got == nil || got.UID != "u" {
				t.Errorf("known %v, own lease at %d: claim %v, %v", known != nil, at, got, err)
			}
		}
	}
	if got, err := c.live(t.Context(), "u", nil, forged); err != nil || got != nil {
		t.Errorf("a claim that is gone: %v, %v", got, err)
	}
}

// TestLeaseOfNoClaim: a user's lease with the label of the cluster alone is one of the others.
func TestLeaseOfNoClaim(t *testing.T) {
	c := controllerWith(oneAnswer{})
	c.watch.Put(named("", "", ""))
	if ours, uids := c.watch.Ours(); len(ours) > 0 || len(uids) > 0 {
		t.Errorf("leases %v of claims %q", ours, uids)
	}
}

// TestEvict: the pod that has lost its GPU, or its part of one, is evicted when it is bound. Its
// name may be that of another pod by then.
func TestEvict(t *testing.T) {
	for _, test := range []struct {
		name, uid, node string
		whole, evicted  bool
		err             string
	}{
		{name: "bound", uid: "p", node: "n1", evicted: true},
		{name: "a whole GPU", uid: "p", node: "n1", whole: true, evicted: true},
		{name: "not bound", uid: "p", err: "is not bound"},
		{name: "a successor", uid: "p2", node: "n1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			claim, share := attachedClaim(t, inventory.Attached, inventory.Failed), "s"
			claim.Namespace = "lab"
			if !test.whole {
				claim.Status.Devices[0].ShareID = &share
			}
			claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "train", UID: "p"}}
			kube := fake.NewClientset(&corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "train", UID: types.UID(test.uid)}, Spec: corev1.PodSpec{NodeName: test.node},
			})
			c := controllerWith(oneAnswer{})
			c.cfg.Kube = kube
			err := c.evict(t.Context(), claim)
			if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("error %v, want %q", err, test.err)
			}
			evicted := false
			for _, a := range kube.Actions() {
				evicted = evicted || a.GetSubresource() == "eviction"
			}
			if evicted != test.evicted {
				t.Errorf("evicted %v, want %v", evicted, test.evicted)
			}
		})
	}
}

// TestNodeOf: without binding conditions the node of a claim is that of a pod for which it is reserved. A
// pod that is gone says nothing, also if another one has its name, as in a StatefulSet.
func TestNodeOf(t *testing.T) {
	kube := fake.NewClientset(
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "again", UID: "new"}, Spec: corev1.PodSpec{NodeName: "n9"}},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "waits", UID: "w"}},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "runs", UID: "r"}, Spec: corev1.PodSpec{NodeName: "n1"}},
	)
	c := controllerWith(oneAnswer{})
	c.cfg.Kube = kube
	for want, pods := range map[string][]string{
		"":                          {"gone/g", "again/old"},
		"n1":                        {"gone/g", "again/old", "waits/w", "runs/r"},
		"pod waits has no node yet": {"again/old", "waits/w"},
	} {
		claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "lab"}, Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{}}}
		for _, p := range pods {
			name, uid, _ := strings.Cut(p, "/")
			claim.Status.ReservedFor = append(claim.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: name, UID: types.UID(uid)})
		}
		got, err := c.nodeOf(t.Context(), claim)
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("pods %q: %q, want %q", pods, got, want)
		}
	}
}

// TestAdminAccess: a claim for monitoring is attached at once, without a lease.
func TestAdminAccess(t *testing.T) {
	yes := true
	claim := &resourceapi.ResourceClaim{}
	r := resourceapi.DeviceRequestAllocationResult{Driver: inventory.Driver, Pool: "dxpu/b1", Device: "b1-0", Request: "gpu", AdminAccess: &yes}
	claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{r}}}
	d := viewDevice(claim, &r, &inventory.Inventory{})
	plan := claims.Decide(&claims.Claim{UID: "u", Devices: []claims.Device{d}}, nil, claims.Policy{})
	if len(plan.Create) > 0 || !setStatus(claim, plan.Status[0], nil) {
		t.Fatalf("plan %+v", plan)
	}
	if s := claim.Status.Devices[0]; !isTrue(s, inventory.Attached) || s.Data != nil {
		t.Errorf("status %+v", s)
	}
}
