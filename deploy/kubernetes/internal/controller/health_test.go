package controller

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/kubernetes/fake"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/claims"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/inventory"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/pool"
)

// TestHealth: the status of an attached device says when its GPU is not healthy any more, and when
// it is again. A GPU that has always been healthy costs no write.
func TestHealth(t *testing.T) {
	for name, b := range map[string]*dxpuv1.Binding{
		"a GPU": {GpuId: "b1/0", HostId: "h1"}, "a part": {GpuId: "b1/9", PartOfGpuId: "b1/0", HostId: "h1"},
	} {
		t.Run(name, func(t *testing.T) { healthOf(t, b) })
	}
}

func healthOf(t *testing.T, b *dxpuv1.Binding) {
	claim := attachedClaim(t, inventory.Attached)
	claim.Namespace, claim.Name, claim.Status.Allocation = "lab", "train", &resourceapi.AllocationResult{}
	kube := fake.NewClientset(claim)
	c := controllerWith(oneAnswer{})
	c.cfg.Kube = kube
	status := []claims.Status{{Device: "b1-0", Phase: claims.Attached, Reason: "Attached", Lease: "l-1", Binding: b}}
	writes := 0
	for _, step := range []struct {
		health       dxpuv1.Health
		detail, want string
		written      bool
	}{
		{dxpuv1.Health_HEALTH_OK, "", "none", false},
		{dxpuv1.Health_HEALTH_DEGRADED, "12 corrected errors", "False Degraded 12 corrected errors", true},
		{dxpuv1.Health_HEALTH_DEGRADED, "13 corrected errors", "False Degraded 12 corrected errors", false},
		{dxpuv1.Health_HEALTH_UNREACHABLE, "no report for 10s", "Unknown Unreachable no report for 10s", true},
		{dxpuv1.Health_HEALTH_OK, "", "True OK ", true},
		{dxpuv1.Health_HEALTH_UNSPECIFIED, "", "True OK ", false}, // the pool does not have it at the moment
	} {
		c.watch.SetSnapshot(&pool.Snapshot{
			GPUs:      []*dxpuv1.GPU{{Id: "b1/0", BoxId: "b1", Health: step.health, HealthDetail: step.detail}},
			LostBoxes: map[string]bool{"b1": step.health == dxpuv1.Health_HEALTH_UNREACHABLE},
		})
		if _, err := c.report(t.Context(), claim, status); err != nil {
			t.Fatal(err)
		}
		before := writes
		writes = 0
		for _, a := range kube.Actions() {
			if a.GetVerb() == "update" {
				writes++
			}
		}
		if (writes > before) != step.written {
			t.Errorf("%v: written %v, want %v", step.health, writes > before, step.written)
		}
		var err error
		if claim, err = kube.ResourceV1().ResourceClaims("lab").Get(t.Context(), "train", getOptions); err != nil {
			t.Fatal(err)
		}
		got := "none"
		if h := meta.FindStatusCondition(claim.Status.Devices[0].Conditions, inventory.Healthy); h != nil {
			got = string(h.Status) + " " + h.Reason + " " + h.Message
		}
		if got != step.want {
			t.Errorf("%v: %s; want %s", step.health, got, step.want)
		}
	}
}

// TestHealthChanged: the claims that have a GPU are looked at again when its health changes, and
// no others.
func TestHealthChanged(t *testing.T) {
	c := controllerWith(oneAnswer{})
	set := func(healths ...dxpuv1.Health) []string {
		s := &pool.Snapshot{}
		for i, h := range healths {
			s.GPUs = append(s.GPUs, &dxpuv1.GPU{Id: []string{"b1/0", "b1/1"}[i], Health: h})
		}
		return c.watch.SetSnapshot(s)
	}
	ok, degraded := dxpuv1.Health_HEALTH_OK, dxpuv1.Health_HEALTH_DEGRADED
	set(ok, ok)
	for i, uid := range []string{"u0", "u1"} {
		l := named(uid, "lab", "train")
		l.Spec.GpuIds = []string{[]string{"b1/0", "b1/1"}[i]}
		c.watch.Put(l)
	}
	if changed := set(ok, ok); len(changed) > 0 {
		t.Errorf("without a change: %q", changed)
	}
	if changed := set(ok, degraded); len(changed) != 1 || changed[0] != "u1" {
		t.Errorf("after that of b1/1: %q", changed)
	}
	if changed := set(ok); len(changed) != 1 || changed[0] != "u1" {
		t.Errorf("after b1/1 has left the pool: %q", changed)
	}
}
