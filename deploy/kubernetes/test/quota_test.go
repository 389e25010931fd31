package test

import (
	"context"
	"fmt"
	"strings"

	"connectrpc.com/connect"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// tenantQuota sets the number of GPUs that the tenant may have, 0 for any.
func (e *env) tenantQuota(n uint32) {
	e.t.Helper()
	_, err := e.pool.API.Pool.PutTenant(e.t.Context(), connect.NewRequest(&dxpuv1.PutTenantRequest{
		Tenant: &dxpuv1.Tenant{Id: "default", Quota: &dxpuv1.Quota{MaxGpus: n}},
	}))
	e.must(err)
}

// quota: a claim beyond the quota of its tenant waits, with the manager's reason.
func (e *env) quota() {
	e.tenantQuota(1)
	e.createPod(podSpec{name: "first"})
	e.waitRunning("first")
	e.createPod(podSpec{name: "second"})
	e.waitEvent("second", "GPUQueued", "Tenant default has 1 of the 1 GPUs that its quota allows")
	e.deletePod("first")
	e.waitRunning("second")
	e.deletePod("second")
	e.waitNoLease()
	e.tenantQuota(0)
}

// The names by which a ResourceQuota counts the GPUs of claims, and those of claims and of pods that have
// them in their limits.
const (
	claimedGPUs   = corev1.ResourceName(class + corev1.ResourceClaimsPerClass)
	requestedGPUs = corev1.ResourceName(corev1.DefaultResourceRequestsPrefix + "dxpu.dev/gpu")
)

// namespaceQuota: the quota of the namespace and that of its tenant hold each by itself. A claim that one of them
// refuses does not count in the other, and comes when there is room.
func (e *env) namespaceQuota() {
	e.tenantQuota(2)
	e.resourceQuota(1)
	e.createPod(podSpec{name: "in"})
	e.waitRunning("in")
	e.createPod(podSpec{name: "beyond"})
	e.waitEvent("beyond", "FailedResourceClaimCreation", "exceeded quota: gpus")
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "limits"}, Spec: e.podSpec(podSpec{extended: 1})}
	if _, err := e.Kube.CoreV1().Pods("default").Create(e.t.Context(), p, metav1.CreateOptions{}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "exceeded quota: gpus") {
		e.t.Errorf("a pod beyond the quota: %v, want a refusal", err)
	}
	e.onlyLease()
	e.deletePod("in")
	e.waitRunning("beyond")

	e.tenantQuota(1)
	e.resourceQuota(2)
	e.createPod(podSpec{name: "limits", extended: 1})
	e.waitEvent("limits", "GPUQueued", "Tenant default has 1 of the 1 GPUs that its quota allows")
	e.waitUsed(2)
	e.deletePod("beyond")
	e.waitRunning("limits")
	e.waitUsed(1)
	e.deletePod("limits")
	e.waitNoLease()
	e.waitUsed(0)
	e.must(e.Kube.CoreV1().ResourceQuotas("default").Delete(e.t.Context(), "gpus", metav1.DeleteOptions{}))
	e.tenantQuota(0)
}

// resourceQuota sets the quota of the namespace, and waits until Kubernetes counts.
func (e *env) resourceQuota(n int64) {
	e.t.Helper()
	api := e.Kube.CoreV1().ResourceQuotas("default")
	hard := corev1.ResourceList{claimedGPUs: *quantity(n), requestedGPUs: *quantity(n)}
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "gpus"}, Spec: corev1.ResourceQuotaSpec{Hard: hard}}
	_, err := api.Create(e.t.Context(), q, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		patch := fmt.Appendf(nil, `{"spec":{"hard":{%q:"%d",%q:"%d"}}}`, claimedGPUs, n, requestedGPUs, n)
		_, err = api.Patch(e.t.Context(), "gpus", "application/merge-patch+json", patch, metav1.PatchOptions{})
	}
	e.must(err)
	e.wait("the quota of the namespace", func(ctx context.Context) (bool, error) {
		q, err := api.Get(ctx, "gpus", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		return len(q.Status.Used) == 2 && q.Status.Hard.Name(claimedGPUs, "").Value() == n, fmt.Errorf("status %v", q.Status)
	})
}

// waitUsed waits until the quota of the namespace counts a number of GPUs.
func (e *env) waitUsed(n int64) {
	e.t.Helper()
	e.wait(fmt.Sprintf("%d GPUs in the quota of the namespace", n), func(ctx context.Context) (bool, error) {
		q, err := e.Kube.CoreV1().ResourceQuotas("default").Get(ctx, "gpus", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		claimed, requested := q.Status.Used[claimedGPUs], q.Status.Used[requestedGPUs]
		return claimed.Value() == n && requested.Value() == n, fmt.Errorf("%v", q.Status.Used)
	})
}
