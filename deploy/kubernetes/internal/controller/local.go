package controller

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/claims"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/inventory"
)

// isLocal reports whether an allocated device is a GPU of a host's own machine, and takes it.
func isLocal(inv *inventory.Inventory, r *resourceapi.DeviceRequestAllocationResult) bool {
	return r.Driver == inventory.Driver && (r.AdminAccess == nil || !*r.AdminAccess) && inv.Local(r.Device)
}

// localErr returns why a pod cannot have GPUs of its node's own machine by a claim: one of its
// containers has some by another claim, too. Each claim has a share of its own, and a container
// has one, of which the runtime would choose the last.
func (c *Controller) localErr(ctx context.Context, claim *resourceapi.ResourceClaim, v *claims.Claim) (string, error) {
	if !slices.ContainsFunc(v.Devices, func(d claims.Device) bool { return d.Local && !d.Attached }) {
		return "", nil
	}
	pods, err := c.podsOf(ctx, claim)
	if err != nil {
		return "", err
	}
	for _, pod := range pods {
		by := claimsOfContainers(pod)
		for _, container := range slices.Sorted(maps.Keys(by)) {
			names := by[container]
			if !slices.Contains(names, claim.Name) {
				continue
			}
			if i := slices.IndexFunc(names, func(n string) bool { return n != claim.Name && c.hasLocal(claim.Namespace, n) }); i >= 0 {
				return fmt.Sprintf("container %s of pod %s has GPUs of the node's own machine by claim %s, too, and a container has them by one claim: ask for all of them in one claim", container, pod.Name, names[i]), nil
			}
		}
	}
	return "", nil
}

// hasLocal reports whether GPUs of a node's own machine are allocated for a claim.
func (c *Controller) hasLocal(namespace, name string) bool {
	obj, ok, err := c.claims.GetStore().GetByKey(namespace + "/" + name)
	if err != nil || !ok {
		return false
	}
	a := obj.(*resourceapi.ResourceClaim).Status.Allocation
	inv := c.current()
	return a != nil && slices.ContainsFunc(a.Devices.Results, func(r resourceapi.DeviceRequestAllocationResult) bool { return isLocal(inv, &r) })
}

// claimsOfContainers returns the names of the claims that each container of a pod has.
func claimsOfContainers(pod *corev1.Pod) map[string][]string {
	byRef := map[string]string{} // name in the pod -> claim
	for _, r := range pod.Spec.ResourceClaims {
		if r.ResourceClaimName != nil {
			byRef[r.Name] = *r.ResourceClaimName
		}
	}
	for _, s := range pod.Status.ResourceClaimStatuses {
		if s.ResourceClaimName != nil {
			byRef[s.Name] = *s.ResourceClaimName
		}
	}
	out := map[string][]string{}
	for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, r := range container.Resources.Claims {
			if claim := byRef[r.Name]; claim != "" {
				out[container.Name] = append(out[container.Name], claim)
			}
		}
	}
	if e := pod.Status.ExtendedResourceClaimStatus; e != nil {
		for _, m := range e.RequestMappings {
			out[m.ContainerName] = append(out[m.ContainerName], e.ResourceClaimName)
		}
	}
	return out
}
