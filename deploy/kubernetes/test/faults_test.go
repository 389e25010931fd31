package test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"connectrpc.com/connect"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/claims"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/inventory"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/kubetest"
)

// TestFaults makes the faults that a platform sees, one after the other.
func TestFaults(t *testing.T) {
	t.Parallel()
	e := newEnv(t, versions[0], kubetest.PoolSpec{Boxes: 4, GPUs: 4, Hosts: 3, Slots: 4, Simulate: true})
	t.Run("lease ended by an operator", func(t *testing.T) { e.on(t).leaseEnded(podSpec{name: "lost"}) })
	t.Run("lease ended, a pod that tolerates it", func(t *testing.T) {
		e.on(t).leaseEnded(podSpec{name: "stays", tolerations: tolerate(inventory.TaintLost, resourceapi.DeviceTaintEffectNoExecute, nil)})
	})
	t.Run("controller restarts", func(t *testing.T) { e.on(t).controllerRestarts() })
	t.Run("no host", func(t *testing.T) { e.on(t).noHost() })
	t.Run("a kubelet names a host", func(t *testing.T) { e.on(t).kubeletNamesHost() })
	t.Run("quota", func(t *testing.T) { e.on(t).quota() })
	t.Run("quota of the namespace", func(t *testing.T) { e.on(t).namespaceQuota() })
	t.Run("rights", func(t *testing.T) { e.on(t).rights() })
	t.Run("leaders are killed", func(t *testing.T) { e.on(t).leadersKilled() })
	t.Run("rights that are used", func(t *testing.T) { e.on(t).rightsUsed() })
}

// leaseEnded: the pod that lost its device is evicted, and the taint goes by itself.
func (e *env) leaseEnded(s podSpec) {
	ctx := e.t.Context()
	e.createPod(s)
	e.waitRunning(s.name)
	l := e.onlyLease()
	if _, err := e.pool.API.Pool.DeleteLease(ctx, connect.NewRequest(&dxpuv1.DeleteLeaseRequest{LeaseId: l.Id})); err != nil {
		e.t.Fatal(err)
	}
	e.waitGone(s.name)
	e.waitNoLease()
	e.wait("the taint to go", func(ctx context.Context) (bool, error) {
		d, err := e.device(ctx, l.Spec.Labels[claims.LabelDevice])
		return err == nil && len(d.Taints) == 0, err
	})
}

func (e *env) onlyLease() *dxpuv1.Lease {
	e.t.Helper()
	all, err := e.leases(e.t.Context())
	if err != nil || len(all) != 1 {
		e.t.Fatalf("%d leases, %v; want one", len(all), err)
	}
	return all[0]
}

// controllerRestarts: a claim is made and another one goes while no controller runs.
func (e *env) controllerRestarts() {
	e.createPod(podSpec{name: "before"})
	e.waitRunning("before")
	old := e.onlyLease()
	e.controller.Kill()
	e.deletePod("before")
	e.createPod(podSpec{name: "after"})
	e.wait("the allocation without a controller", func(ctx context.Context) (bool, error) {
		pod, err := e.pod(ctx, "after")
		if err != nil {
			return false, err
		}
		claim, err := e.claimOf(ctx, pod)
		return err == nil && claim.Status.Allocation != nil, err
	})
	if l := e.onlyLease(); l.Id != old.Id {
		e.t.Fatalf("lease %s without a controller", l.Id)
	}
	e.startController()
	e.waitRunning("after")
	if l := e.onlyLease(); l.Id == old.Id {
		e.t.Errorf("lease %s of the claim that is gone is left", l.Id)
	}
	e.deletePod("after")
	e.waitNoLease()
}

// noHost: a node without a host of the pool in its label; the pod's event says so.
func (e *env) noHost() {
	if err := e.AddNode(e.t.Context(), "strange", map[string]string{"dxpu.dev.node-restriction.kubernetes.io/host": "nowhere"}); err != nil {
		e.t.Fatal(err)
	}
	e.createPod(podSpec{name: "strange", node: "strange"})
	e.waitEvent("strange", "GPUNoHost", "but the pool has no such host")
	e.deletePod("strange")
	e.waitNoLease()
}

// kubeletNamesHost: a node that is taken over cannot ask for the GPUs of another one.
func (e *env) kubeletNamesHost() {
	const name = "kubelet-1"
	ctx := e.t.Context()
	if err := e.AddNode(ctx, name, nil); err != nil {
		e.t.Fatal(err)
	}
	kubelet, err := kubernetes.NewForConfig(e.Config("system:node:" + name))
	if err != nil {
		e.t.Fatal(err)
	}
	label := func(key string) error {
		patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:"host-00000"}}}`, key)
		_, err := kubelet.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	}
	if err := label("example.com/rack"); err != nil {
		e.t.Errorf("a label that says nothing about rights: %v", err)
	}
	if err := label(inventory.HostLabel); !apierrors.IsForbidden(err) {
		e.t.Errorf("the label of the host: %v, want a refusal", err)
	}
	if err := e.RemoveNode(ctx, name); err != nil {
		e.t.Fatal(err)
	}
}

func (e *env) waitEvent(pod, reason, text string) {
	e.t.Helper()
	e.wait("event "+reason+" of pod "+pod, func(ctx context.Context) (bool, error) {
		all, err := e.Kube.CoreV1().Events("default").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + pod})
		if err != nil {
			return false, err
		}
		var seen []string
		for _, v := range all.Items {
			if v.Reason == reason && strings.Contains(v.Message, text) {
				return true, nil
			}
			seen = append(seen, v.Reason+": "+v.Message)
		}
		return false, fmt.Errorf("events: %q", seen)
	})
}
