package test

import (
	"context"
	"fmt"
	"testing"

	"connectrpc.com/connect"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/kubetest"
)

// TestTaints: the cases of KEP-5055 with taints that operators of the pool give.
func TestTaints(t *testing.T) {
	t.Parallel()
	e := newEnv(t, versions[0], kubetest.PoolSpec{Boxes: 1, GPUs: 2, Hosts: 2, Slots: 2, Simulate: true})
	t.Run("no schedule", func(t *testing.T) { e.on(t).noSchedule() })
	t.Run("no execute", func(t *testing.T) { e.on(t).noExecute() })
	t.Run("for some time", func(t *testing.T) { e.on(t).toleratedForATime() })
	t.Run("examples of the documentation", func(t *testing.T) { e.on(t).examples() })
}

// taint gives the first GPU a taint and returns a function that takes it away.
func (e *env) taint(key string, effect dxpuv1.TaintEffect) (remove func()) {
	e.t.Helper()
	target := &dxpuv1.Target{Target: &dxpuv1.Target_GpuId{GpuId: "box-00000/0"}}
	t := []*dxpuv1.Taint{{Key: key, Value: "x", Effect: effect}}
	change := func(r *dxpuv1.SetTaintsRequest) {
		e.t.Helper()
		if _, err := e.pool.API.Pool.SetTaints(e.t.Context(), connect.NewRequest(r)); err != nil {
			e.t.Fatal(err)
		}
	}
	change(&dxpuv1.SetTaintsRequest{Target: target, Set: t})
	e.waitTaints(1)
	return func() {
		e.t.Helper()
		change(&dxpuv1.SetTaintsRequest{Target: target, Remove: []*dxpuv1.Taint{{Key: key, Effect: effect}}})
		e.waitTaints(0)
	}
}

func (e *env) waitTaints(n int) {
	e.t.Helper()
	e.wait(fmt.Sprintf("%d taints of the GPU", n), func(ctx context.Context) (bool, error) {
		d, err := e.device(ctx, "box-00000-0")
		if err != nil {
			return false, err
		}
		return len(d.Taints) == n, fmt.Errorf("taints %v", d.Taints)
	})
}

const (
	keepAway = dxpuv1.TaintEffect_TAINT_EFFECT_NO_SCHEDULE
	sendAway = dxpuv1.TaintEffect_TAINT_EFFECT_NO_EXECUTE
)

// tolerate names the effect: Kubernetes 1.36 evicts a pod from a device with NoExecute
// although a toleration without an effect is for all of them.
func tolerate(key string, effect resourceapi.DeviceTaintEffect, seconds *int64) []resourceapi.DeviceToleration {
	return []resourceapi.DeviceToleration{{Key: key, Operator: resourceapi.DeviceTolerationOpExists, Effect: effect, TolerationSeconds: seconds}}
}

// noSchedule: a pod that runs keeps its GPU, a new one gets it only with a toleration, and
// the lease has that toleration.
func (e *env) noSchedule() {
	e.createPod(podSpec{name: "old", selector: firstGPU})
	old := e.waitRunning("old")
	remove := e.taint("team", keepAway)
	if p, err := e.pod(e.t.Context(), "old"); err != nil || p.UID != old.UID || p.DeletionTimestamp != nil {
		e.t.Errorf("the pod that ran before: %v, %v", p, err)
	}
	e.deletePod("old")
	e.waitNoLease()
	e.createPod(podSpec{name: "without", selector: firstGPU})
	e.waitUnschedulable("without")
	e.createPod(podSpec{name: "with", selector: firstGPU, tolerations: tolerate("team", resourceapi.DeviceTaintEffectNoSchedule, nil)})
	e.waitRunning("with")
	if l := e.onlyLease(); len(l.Spec.Tolerations) != 1 || l.Spec.Tolerations[0].Key != "team" {
		e.t.Errorf("the lease tolerates %v", l.Spec.Tolerations)
	}
	e.deletePod("with")
	e.waitNoLease()
	remove()
	e.waitRunning("without")
	e.deletePod("without")
	e.waitNoLease()
}

// noExecute: a pod without a toleration goes, one with it stays.
func (e *env) noExecute() {
	e.createPod(podSpec{name: "stays", selector: firstGPU, capacity: "memory=1Gi,compute=10", tolerations: tolerate("repair", resourceapi.DeviceTaintEffectNoExecute, nil)})
	stays := e.waitRunning("stays")
	e.createPod(podSpec{name: "goes", selector: firstGPU, capacity: "memory=1Gi,compute=10"})
	e.waitRunning("goes")
	remove := e.taint("repair", sendAway)
	e.waitGone("goes")
	if p, err := e.pod(e.t.Context(), "stays"); err != nil || p.UID != stays.UID || p.DeletionTimestamp != nil {
		e.t.Errorf("the pod that tolerates the taint: %v, %v", p, err)
	}
	claim, err := e.claimOf(e.t.Context(), stays)
	if err != nil || !meta.IsStatusConditionTrue(claim.Status.Devices[0].Conditions, "dxpu.dev/Attached") || meta.IsStatusConditionTrue(claim.Status.Devices[0].Conditions, "dxpu.dev/Failed") {
		e.t.Errorf("its device: %v, %v", claim.Status.Devices, err)
	}
	e.deletePod("stays")
	e.waitNoLease()
	remove()
}

func (e *env) waitGone(pod string) {
	e.t.Helper()
	e.wait("pod "+pod+" to go", func(ctx context.Context) (bool, error) {
		_, err := e.pod(ctx, pod)
		return apierrors.IsNotFound(err), err
	})
}

// toleratedForATime: a pod may stay for some seconds.
func (e *env) toleratedForATime() {
	seconds := int64(3)
	e.createPod(podSpec{name: "leaves", selector: firstGPU, tolerations: tolerate("repair", resourceapi.DeviceTaintEffectNoExecute, &seconds)})
	e.waitRunning("leaves")
	remove := e.taint("repair", sendAway)
	e.waitGone("leaves")
	e.waitNoLease()
	remove()
}
