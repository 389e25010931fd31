package controller

import (
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/claims"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/inventory"
)

// TestWrites: the status of a claim is written when a lease begins to wait and when it fails, and
// not when the manager finds other words for either.
func TestWrites(t *testing.T) {
	claim := &resourceapi.ResourceClaim{}
	claim.Namespace, claim.Name, claim.UID = "lab", "train", "u"
	claim.Status.Allocation = &resourceapi.AllocationResult{}
	kube := fake.NewClientset(claim)
	c := controllerWith(oneAnswer{})
	c.cfg.Kube, c.said = kube, map[string]map[string]saying{}
	for _, step := range []struct {
		phase           claims.Phase
		reason, message string
		written         bool
	}{
		{claims.Waiting, "Requested", "the pool is asked", false},
		{claims.Waiting, "Queued", "0 of 8 GPUs are free", true},
		{claims.Waiting, "Queued", "0 of 7 GPUs are free", false},
		{claims.Failed, "HostUnavailable", "host h1 has no free slot", true},
		{claims.Failed, "LeaseEnded", "deleted by the controller", false},
	} {
		kube.ClearActions()
		if _, err := c.report(t.Context(), claim, []claims.Status{{Device: "b1-0", Phase: step.phase, Reason: step.reason, Message: step.message}}); err != nil {
			t.Fatal(err)
		}
		if written := len(kube.Actions()) > 0; written != step.written {
			t.Errorf("%s, %s: written %v", step.reason, step.message, written)
		}
		var err error
		if claim, err = kube.ResourceV1().ResourceClaims("lab").Get(t.Context(), "train", getOptions); err != nil {
			t.Fatal(err)
		}
	}
	if f := meta.FindStatusCondition(claim.Status.Devices[0].Conditions, inventory.Failed); f == nil || f.Reason != "HostUnavailable" {
		t.Errorf("the claim failed for %v", f)
	}
}

// TestSays: the pods of a claim hear once why they wait, and nothing of an attach that goes on.
func TestSays(t *testing.T) {
	claim := &resourceapi.ResourceClaim{}
	claim.Namespace, claim.Name, claim.UID = "lab", "train", "u"
	claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: "p"}}
	events := record.NewFakeRecorder(1)
	c := controllerWith(oneAnswer{})
	c.recorder, c.said = events, map[string]map[string]saying{}
	for _, step := range []struct {
		phase                 claims.Phase
		reason, message, want string
	}{
		{claims.Waiting, "Requested", "the pool is asked", ""},
		{claims.Waiting, "Queued", "0 of 8 GPUs are free", "Normal GPUQueued GPU for claim train, device b1-0: 0 of 8 GPUs are free"},
		{claims.Waiting, "Queued", "0 of 8 GPUs are free", ""},
		{claims.Attaching, "Attaching", "GPUs are being attached", ""},
		{claims.Attaching, claims.AttachDelayed, "waiting for host h1", "Normal GPUAttachDelayed GPU for claim train, device b1-0: waiting for host h1"},
		{claims.Attached, "Attached", "lease l-1", ""},
		{claims.Failed, "DeviceLost", "b1 is lost", "Warning GPUDeviceLost GPU for claim train, device b1-0: b1 is lost"},
	} {
		c.say(claim, claims.Status{Device: "b1-0", Phase: step.phase, Reason: step.reason, Message: step.message})
		got := ""
		select {
		case got = <-events.Events:
		default:
		}
		if got != step.want {
			t.Errorf("%s: event %q, want %q", step.reason, got, step.want)
		}
	}
}

// TestSaysWhatIsWritten: a failure that the API server refuses to write is no event. The claim has
// changed since, and its lease is that of an earlier allocation.
func TestSaysWhatIsWritten(t *testing.T) {
	claim := &resourceapi.ResourceClaim{}
	claim.Namespace, claim.Name, claim.UID = "lab", "train", "u"
	claim.Status.Allocation = &resourceapi.AllocationResult{}
	claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: "p"}}
	kube := fake.NewClientset(claim)
	refuses := true
	kube.PrependReactor("update", "resourceclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
		return refuses, nil, apierrors.NewConflict(resourceapi.Resource("resourceclaims"), "train", nil)
	})
	events := record.NewFakeRecorder(1)
	c := controllerWith(oneAnswer{})
	c.cfg.Kube, c.recorder, c.said = kube, events, map[string]map[string]saying{}
	failed := []claims.Status{{Device: "b1-0", Phase: claims.Failed, Reason: "LeaseEnded", Message: "it was deleted"}}
	if _, err := c.report(t.Context(), claim, failed); err == nil || len(events.Events) > 0 {
		t.Errorf("refused: %v, with an event", err)
	}
	refuses = false
	if _, err := c.report(t.Context(), claim, failed); err != nil || len(events.Events) != 1 {
		t.Errorf("written: %v, with %d events", err, len(events.Events))
	}
}

// TestSaysAfterAKill: a controller says why a claim has failed whose failure another one has written,
// which may have died before it said so.
func TestSaysAfterAKill(t *testing.T) {
	claim := &resourceapi.ResourceClaim{}
	claim.Namespace, claim.Name, claim.UID = "lab", "train", "u"
	claim.Status.Allocation = &resourceapi.AllocationResult{}
	claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: "p"}}
	shut := claims.Status{Device: "b1-0", Phase: claims.Failed, Reason: "HostUnavailable", Message: "host h1 has no free slot" + strings.Repeat(".", 5000)}
	setStatus(claim, shut, nil)
	events := record.NewFakeRecorder(2)
	c := controllerWith(oneAnswer{})
	c.recorder, c.said = events, map[string]map[string]saying{}
	for _, message := range []string{"the lease was deleted", "the lease was deleted by the controller"} {
		again := claims.Status{Device: "b1-0", Phase: claims.Failed, Reason: "LeaseEnded", Message: message}
		if _, err := c.report(t.Context(), claim, []claims.Status{again}); err != nil {
			t.Fatal(err)
		}
	}
	if len(events.Events) != 1 {
		t.Fatalf("%d events, want 1", len(events.Events))
	}
	if e := <-events.Events; !strings.HasPrefix(e, "Warning GPUHostUnavailable GPU for claim train, device b1-0: host h1 has no free slot.") {
		t.Errorf("event %.200q", e)
	}
}

// TestSaysToEachPod: the next pod of a claim hears what the one before has been told.
func TestSaysToEachPod(t *testing.T) {
	claim := &resourceapi.ResourceClaim{}
	claim.Namespace, claim.Name, claim.UID = "lab", "train", "u"
	events := record.NewFakeRecorder(10)
	c := controllerWith(oneAnswer{})
	c.recorder, c.said = events, map[string]map[string]saying{}
	for _, step := range []struct {
		pods []types.UID
		told int
	}{{[]types.UID{"p"}, 1}, {[]types.UID{"p"}, 0}, {[]types.UID{"p", "q"}, 1}, {nil, 0}, {[]types.UID{"q"}, 0}, {[]types.UID{"r"}, 1}} {
		claim.Status.ReservedFor = nil
		for _, uid := range step.pods {
			claim.Status.ReservedFor = append(claim.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: string(uid), UID: uid})
		}
		c.say(claim, claims.Status{Device: "b1-0", Phase: claims.Waiting, Reason: "Queued", Message: "0 of 8 GPUs are free"})
		if n := len(events.Events); n != step.told {
			t.Errorf("with the pods %v: %d events, want %d", step.pods, n, step.told)
		}
		for len(events.Events) > 0 {
			<-events.Events
		}
	}
}
