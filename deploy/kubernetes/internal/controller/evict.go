package controller

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/inventory"
)

// evict evicts the pods of a claim that has lost a device. The taint of a whole device does not
// suffice: a pod may tolerate it, and would keep the device file of the slot, into which the pool
// puts the next GPU. A share has no taint, which would evict the pods of the other shares, too.
// A pod that is not bound stays: the scheduler gives the device back and tries again.
func (c *Controller) evict(ctx context.Context, claim *resourceapi.ResourceClaim) error {
	switch in, ever := evictIn(claim); {
	case !ever:
		return nil
	case in > 0:
		c.queue.AddAfter(string(claim.UID), in)
		return nil
	}
	pods, err := c.podsOf(ctx, claim)
	if err != nil {
		return err
	}
	for _, pod := range pods {
		if pod.Spec.NodeName == "" {
			return fmt.Errorf("pod %s has lost its GPU and is not bound", pod.Name) // the queue tries again
		}
		err = c.cfg.Kube.PolicyV1().Evictions(claim.Namespace).Evict(ctx, &policyv1.Eviction{
			ObjectMeta:    metav1.ObjectMeta{Name: pod.Name, Namespace: claim.Namespace},
			DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}},
		})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("evict pod %s, which has lost its GPU: %w", pod.Name, err)
		}
	}
	return nil
}

// giveUpPause is the time between the failure of a device that was never attached and the eviction of
// its pod, which waits on its node. It bounds how often a Deployment makes pods that the pool refuses.
const giveUpPause = 30 * time.Second

// evictIn returns the time after which the pods of a claim are evicted, if they are: at once when it has
// lost a device, and later when a device without binding conditions, of which the scheduler does not
// hear that it has failed, was never attached.
func evictIn(claim *resourceapi.ResourceClaim) (in time.Duration, ever bool) {
	if slices.ContainsFunc(claim.Status.Devices, isLost) {
		return 0, true
	}
	for i := range claim.Status.Devices {
		d := claim.Status.Devices[i]
		failed := meta.FindStatusCondition(d.Conditions, inventory.Failed)
		if d.Driver != inventory.Driver || failed == nil || failed.Status != metav1.ConditionTrue || awaited(claim, d) {
			continue
		}
		// A clock that was set back does not make it longer.
		if left := min(giveUpPause-time.Since(failed.LastTransitionTime.Time), giveUpPause); !ever || left < in {
			in, ever = left, true
		}
	}
	return in, ever
}

// awaited reports whether the scheduler binds no pod before a device is attached.
func awaited(claim *resourceapi.ResourceClaim, d resourceapi.AllocatedDeviceStatus) bool {
	if claim.Status.Allocation == nil {
		return true // the device is being given back
	}
	return !slices.ContainsFunc(claim.Status.Allocation.Devices.Results, func(r resourceapi.DeviceRequestAllocationResult) bool {
		is := r.Driver == inventory.Driver && r.Device == d.Device && (r.ShareID == nil || string(*r.ShareID) == shareOf(d))
		return is && !slices.Contains(r.BindingConditions, inventory.Attached)
	})
}

// podsOf returns the pods for which a claim is reserved and that are still there.
func (c *Controller) podsOf(ctx context.Context, claim *resourceapi.ResourceClaim) (pods []*corev1.Pod, err error) {
	for _, r := range claim.Status.ReservedFor {
		if r.Resource != "pods" || r.APIGroup != "" {
			continue
		}
		pod, err := c.cfg.Kube.CoreV1().Pods(claim.Namespace).Get(ctx, r.Name, getOptions)
		switch {
		case apierrors.IsNotFound(err) || err == nil && pod.UID != r.UID:
			continue
		case err != nil:
			return nil, fmt.Errorf("read pod %s of the claim: %w", r.Name, err)
		}
		pods = append(pods, pod)
	}
	return pods, nil
}
