package controller

import (
	"context"
	"fmt"

	"connectrpc.com/connect"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/claims"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/inventory"
)

var getOptions = metav1.GetOptions{}

// reconcile brings the leases and the status of a claim in line with its allocation.
func (c *Controller) reconcile(ctx context.Context, uid string) error {
	claim := c.claimByUID(uid)
	leases := c.watch.Leases(uid)
	plan, err := c.decide(ctx, claim, leases)
	if err != nil {
		return err
	}
	if len(plan.Delete) > 0 {
		// The informer may be behind, after a change of the leader above all: a lease is
		// deleted only if the API server agrees.
		if claim, err = c.live(ctx, uid, leases); err != nil {
			return err
		}
		if plan, err = c.decide(ctx, claim, leases); err != nil {
			return err
		}
	}
	for _, id := range plan.Delete {
		if err := c.deleteLease(ctx, id); err != nil {
			return err
		}
	}
	for _, r := range plan.Create {
		if err := c.createLease(ctx, r, &plan); err != nil {
			return err
		}
	}
	if claim == nil {
		c.forget(uid)
		return nil
	}
	return c.report(ctx, claim, plan.Status)
}

// forget drops what the controller keeps of a claim that is gone.
func (c *Controller) forget(uid string) {
	c.watch.Forget(uid)
	c.mu.Lock()
	delete(c.said, uid)
	c.mu.Unlock()
	c.askPublish() // it may have had a lost device
}

func (c *Controller) claimByUID(uid string) *resourceapi.ResourceClaim {
	found, err := c.claims.GetIndexer().ByIndex(claimUID, uid)
	if err != nil || len(found) == 0 {
		return nil
	}
	return found[0].(*resourceapi.ResourceClaim)
}

// live reads a claim from the API server, by the name that its leases have. It returns nil
// if the claim is gone.
func (c *Controller) live(ctx context.Context, uid string, leases []*dxpuv1.Lease) (*resourceapi.ResourceClaim, error) {
	at := leases[0].Spec.Labels
	claim, err := c.cfg.Kube.ResourceV1().ResourceClaims(at[claims.LabelNamespace]).Get(ctx, at[claims.LabelName], getOptions)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read the claim: %w", err)
	case string(claim.UID) != uid:
		return nil, nil
	}
	return claim, nil
}

func (c *Controller) decide(ctx context.Context, claim *resourceapi.ResourceClaim, leases []*dxpuv1.Lease) (claims.Plan, error) {
	seen, err := c.view(ctx, claim)
	if err != nil {
		return claims.Plan{}, err
	}
	return claims.Decide(seen, leases, c.cfg.Policy), nil
}

// view returns the part of a claim that concerns the pool, nil if there is none.
func (c *Controller) view(ctx context.Context, claim *resourceapi.ResourceClaim) (*claims.Claim, error) {
	if claim == nil || claim.Status.Allocation == nil {
		return nil, nil
	}
	a := claim.Status.Allocation
	v := &claims.Claim{UID: string(claim.UID), Namespace: claim.Namespace, Name: claim.Name}
	if a.AllocationTimestamp != nil {
		v.Allocated = a.AllocationTimestamp.Unix()
	}
	inv := c.current()
	for _, r := range a.Devices.Results {
		if r.Driver != inventory.Driver || r.AdminAccess != nil && *r.AdminAccess {
			continue // access for monitoring takes no GPU
		}
		d := claims.Device{Name: r.Device}
		d.GPU, _ = inv.GPU(r.Device)
		if s := deviceStatus(claim, r.Device); s != nil {
			d.Failed = isTrue(*s, inventory.Failed)
		}
		v.Devices = append(v.Devices, d)
	}
	if len(v.Devices) == 0 {
		return nil, nil
	}
	var err error
	if v.Node, err = c.nodeOf(ctx, claim); err != nil {
		return nil, err
	}
	if v.Node != "" {
		v.Host, v.HostErr = c.hostOf(v.Node)
	}
	return v, nil
}

// nodeOf returns the node of an allocated claim: that of the allocation, or without
// binding conditions that of the pod.
func (c *Controller) nodeOf(ctx context.Context, claim *resourceapi.ResourceClaim) (string, error) {
	if n := allocatedNode(claim.Status.Allocation.NodeSelector); n != "" {
		return n, nil
	}
	for _, r := range claim.Status.ReservedFor {
		if r.Resource != "pods" || r.APIGroup != "" {
			continue
		}
		pod, err := c.cfg.Kube.CoreV1().Pods(claim.Namespace).Get(ctx, r.Name, getOptions)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("read the pod of the claim: %w", err)
		}
		if pod.UID == r.UID && pod.Spec.NodeName != "" {
			return pod.Spec.NodeName, nil
		}
		return "", fmt.Errorf("pod %s has no node yet", r.Name) // the queue tries again
	}
	return "", nil
}

// allocatedNode returns the node that a selector names, "" if it selects by other means.
func allocatedNode(s *corev1.NodeSelector) string {
	if s == nil || len(s.NodeSelectorTerms) != 1 {
		return ""
	}
	for _, f := range s.NodeSelectorTerms[0].MatchFields {
		if f.Key == metav1.ObjectNameField && f.Operator == corev1.NodeSelectorOpIn && len(f.Values) == 1 {
			return f.Values[0]
		}
	}
	return ""
}

// hostOf returns the host of the pool for a node, or why there is none.
func (c *Controller) hostOf(node string) (host, why string) {
	obj, ok, err := c.nodes.GetStore().GetByKey(node)
	if err != nil || !ok {
		return "", fmt.Sprintf("the cluster has no node %s", node)
	}
	host = obj.(*corev1.Node).Labels[inventory.HostLabel]
	if host == "" {
		return "", fmt.Sprintf("node %s has no label %s; set it to the ID of its host in the pool", node, inventory.HostLabel)
	}
	if s := c.watch.Snapshot(); s == nil || s.Hosts[host] == nil {
		return "", fmt.Sprintf("the label %s of node %s names %s, but the pool has no such host", inventory.HostLabel, node, host)
	}
	return host, ""
}

func (c *Controller) deleteLease(ctx context.Context, id string) error {
	res, err := c.cfg.Pool.DeleteLease(ctx, connect.NewRequest(&dxpuv1.DeleteLeaseRequest{LeaseId: id}))
	if connect.CodeOf(err) == connect.CodeNotFound {
		return nil // the manager has forgotten it
	}
	if err != nil {
		return fmt.Errorf("delete lease %s: %w", id, err)
	}
	c.cfg.Metrics.deleted.Inc()
	c.watch.Put(res.Msg.Lease)
	return nil
}

// createLease creates a lease. A refusal becomes the status of the device.
func (c *Controller) createLease(ctx context.Context, r claims.Request, plan *claims.Plan) error {
	res, err := c.cfg.Pool.CreateLease(ctx, connect.NewRequest(&dxpuv1.CreateLeaseRequest{RequestId: r.ID, Spec: r.Spec}))
	if err == nil {
		c.cfg.Metrics.created.Inc()
		c.watch.Put(res.Msg.Lease)
		return nil
	}
	switch connect.CodeOf(err) {
	case connect.CodeInvalidArgument, connect.CodeNotFound, connect.CodeAlreadyExists, connect.CodePermissionDenied,
		connect.CodeResourceExhausted, connect.CodeFailedPrecondition:
		c.cfg.Metrics.refused.Inc()
		klog.FromContext(ctx).Info("The manager refuses a lease", "device", r.Device, "err", err)
		for i := range plan.Status {
			if s := &plan.Status[i]; s.Device == r.Device {
				s.Phase, s.Reason, s.Message = claims.Failed, "Refused", messageOf(err)
			}
		}
		return nil
	}
	return fmt.Errorf("create a lease for %s: %w", r.Device, err)
}
