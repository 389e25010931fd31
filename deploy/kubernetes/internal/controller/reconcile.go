package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"connectrpc.com/connect"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/klog/v2"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/claims"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/inventory"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/pool"
)

var getOptions = metav1.GetOptions{}

// reconcile brings the leases and the status of a claim in line with its allocation.
func (c *Controller) reconcile(ctx context.Context, uid string) error {
	claim := c.claimByUID(uid)
	leases, err := c.leasesOf(ctx, uid, claim)
	if err != nil {
		return err
	}
	plan, err := c.decide(ctx, claim, leases)
	if err != nil {
		return err
	}
	if len(plan.Delete) > 0 || plan.Again {
		// The informer may be behind, after a change of the leader above all: a lease is
		// deleted, or made again, only if the API server agrees.
		if claim, err = c.live(ctx, uid, claim, leases); err != nil {
			return err
		}
		if plan, err = c.decide(ctx, claim, leases); err != nil {
			return err
		}
	}
	if len(plan.Delete) > 0 && claim != nil {
		// First the failure, which is for ever: a call that is late, of a controller that has died
		// meanwhile, would take the GPU from a claim that another one has called attached.
		if claim, err = c.report(ctx, claim, plan.Failures()); err != nil || claim == nil {
			return err
		}
	}
	for _, id := range plan.Delete {
		if err := c.deleteLease(ctx, id); err != nil {
			if claim != nil { // its pods do not wait for the manager
				err = errors.Join(err, c.evict(ctx, claim))
			}
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
	if claim, err = c.report(ctx, claim, plan.Status); err != nil || claim == nil {
		return err
	}
	return c.evict(ctx, claim)
}

// leasesOf returns the leases of a claim. The manager is asked for those that the status of
// the claim names and the watch does not know, because without its lease a device is lost.
func (c *Controller) leasesOf(ctx context.Context, uid string, claim *resourceapi.ResourceClaim) ([]*dxpuv1.Lease, error) {
	leases := c.watch.Leases(uid)
	if claim == nil {
		return leases, nil
	}
	for _, d := range claim.Status.Devices {
		id := attachedBy(d).Lease
		if id == "" || slices.ContainsFunc(leases, func(l *dxpuv1.Lease) bool { return l.Id == id }) {
			continue
		}
		res, err := c.cfg.Pool.GetLease(ctx, connect.NewRequest(&dxpuv1.GetLeaseRequest{LeaseId: id}))
		if connect.CodeOf(err) == connect.CodeNotFound {
			continue // the manager has forgotten it
		}
		if err != nil {
			return nil, fmt.Errorf("read lease %s: %w", id, err)
		}
		c.watch.Put(res.Msg.Lease)
	}
	return c.watch.Leases(uid), nil
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

// live reads a claim from the API server, nil if it is gone. Its name is that of the claim that
// the informer has, or without one those that its leases name: every user of the pool can give a
// lease the UID of a claim and another name.
func (c *Controller) live(ctx context.Context, uid string, known *resourceapi.ResourceClaim, leases []*dxpuv1.Lease) (*resourceapi.ResourceClaim, error) {
	names := map[types.NamespacedName]bool{}
	if known != nil {
		names[types.NamespacedName{Namespace: known.Namespace, Name: known.Name}] = true
	} else {
		for _, l := range leases {
			at := l.GetSpec().GetLabels()
			names[types.NamespacedName{Namespace: at[claims.LabelNamespace], Name: at[claims.LabelName]}] = true
		}
	}
	for n := range names {
		if validation.IsDNS1123Label(n.Namespace) != nil || validation.IsDNS1123Subdomain(n.Name) != nil {
			continue // no claim has it
		}
		claim, err := c.cfg.Kube.ResourceV1().ResourceClaims(n.Namespace).Get(ctx, n.Name, getOptions)
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return nil, fmt.Errorf("read the claim: %w", err)
		case string(claim.UID) == uid:
			return claim, nil
		}
	}
	return nil, nil
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
	for i := range a.Devices.Results {
		r := &a.Devices.Results[i]
		if r.Driver != inventory.Driver {
			continue
		}
		d := viewDevice(claim, r, inv)
		if gang := d.Parameters.Gang; gang != "" {
			d.GangRuns = c.watch.GangRuns(claims.GangName(c.cfg.Policy.Cluster, claim.Namespace, gang))
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
		v.HostShut = c.watch.HostShut(v.Host, c.need(v))
		v.HostLost = c.watch.HostLost(v.Host)
	}
	v.LocalErr, err = c.localErr(ctx, claim, v)
	return v, err
}

// need returns what a claim wants of its host.
func (c *Controller) need(v *claims.Claim) pool.Need {
	n := pool.Need{Claim: v.UID}
	for i := range v.Devices {
		d := &v.Devices[i]
		if d.Admin {
			continue // it takes no GPU
		}
		n.Slots++
		if gang := d.Parameters.Gang; gang != "" && !d.GangRuns {
			n.Gang = claims.GangName(c.cfg.Policy.Cluster, v.Namespace, gang)
		}
	}
	return n
}

// viewDevice returns the part of an allocated device that concerns the pool.
func viewDevice(claim *resourceapi.ResourceClaim, r *resourceapi.DeviceRequestAllocationResult, inv *inventory.Inventory) claims.Device {
	part, err := inv.Part(r)
	d := claims.Device{
		Name: r.Device, Part: part, Tolerations: inventory.Tolerations(r.Tolerations), Admin: r.AdminAccess != nil && *r.AdminAccess,
	}
	if err != nil {
		d.ParametersErr = err.Error()
	}
	if r.ShareID != nil {
		d.Share = string(*r.ShareID)
	}
	d.GPU, _ = inv.GPU(r.Device)
	d.Local = isLocal(inv, r)
	d.Awaited = slices.Contains(r.BindingConditions, inventory.Attached)
	if s := deviceStatus(claim, d.Name, d.Share); s != nil {
		by := attachedBy(*s)
		d.Reported, d.Attached, d.Failed, d.Lease = true, isTrue(*s, inventory.Attached), isTrue(*s, inventory.Failed), by.Lease
		d.Local = d.Local || by.Local // also while the pool does not list the GPU
	}
	// Kubernetes lists the configuration of classes before that of the claim.
	for _, o := range claim.Status.Allocation.Devices.Config {
		if o.Opaque == nil || o.Opaque.Driver != inventory.Driver || !concerns(o.Requests, r.Request) {
			continue
		}
		if err := d.Parameters.Add(o.Opaque.Parameters.Raw, o.Source == resourceapi.AllocationConfigSourceClass); err != nil {
			d.ParametersErr = err.Error()
			break
		}
	}
	return d
}

// concerns reports whether a configuration for some requests holds for one: it may name
// the request, or a request of which this one is an alternative. No names are all requests.
func concerns(requests []string, request string) bool {
	parent, _, _ := strings.Cut(request, "/")
	return len(requests) == 0 || slices.Contains(requests, request) || slices.Contains(requests, parent)
}

// nodeOf returns the node of an allocated claim: that of the allocation, or without
// binding conditions that of the pod.
func (c *Controller) nodeOf(ctx context.Context, claim *resourceapi.ResourceClaim) (string, error) {
	if n := allocatedNode(claim.Status.Allocation.NodeSelector); n != "" {
		return n, nil
	}
	pods, err := c.podsOf(ctx, claim)
	if err != nil {
		return "", err
	}
	for _, pod := range pods {
		if pod.Spec.NodeName != "" {
			return pod.Spec.NodeName, nil
		}
	}
	if len(pods) > 0 {
		return "", fmt.Errorf("pod %s has no node yet", pods[0].Name) // the queue tries again
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
	nodes, err := c.nodes.GetIndexer().IndexKeys(nodeHost, host)
	if err != nil {
		return "", err.Error()
	}
	if len(nodes) > 1 {
		slices.Sort(nodes)
		return "", fmt.Sprintf("the nodes %s have the label %s=%s, but a host serves one node: remove it from the others",
			strings.Join(nodes[:min(len(nodes), 4)], ", "), inventory.HostLabel, host)
	}
	return host, ""
}

// deleteLease ends a lease. The others of its gang stay: pods of a job end one after the other.
func (c *Controller) deleteLease(ctx context.Context, id string) error {
	res, err := c.cfg.Pool.DeleteLease(ctx, connect.NewRequest(&dxpuv1.DeleteLeaseRequest{LeaseId: id, LeaveGang: true}))
	if connect.CodeOf(err) == connect.CodeNotFound {
		return nil // the manager has forgotten it
	}
	c.decides(err == nil)
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
		c.decides(true)
		return nil
	}
	code := connect.CodeOf(err)
	if code == connect.CodeAlreadyExists {
		if seen, errFind := c.findLease(ctx, r); seen || errFind != nil {
			return fmt.Errorf("create lease %s: %w", r.ID, cmp.Or(errFind, err))
		}
	}
	if isLater(err) {
		code = connect.CodeUnavailable // the caller has too many calls: that says nothing about the lease
	}
	switch code {
	case connect.CodeInvalidArgument, connect.CodeNotFound, connect.CodeAlreadyExists, connect.CodePermissionDenied,
		connect.CodeResourceExhausted, connect.CodeFailedPrecondition:
		c.cfg.Metrics.refused.Inc()
		klog.FromContext(ctx).Info("The manager refuses a lease", "lease", r.ID, "err", err)
		for i := range plan.Status {
			if s := &plan.Status[i]; r.For(*s) {
				s.Phase, s.Reason, s.Message = claims.Failed, "Refused", messageOf(err)
			}
		}
		return nil
	}
	c.decides(false)
	return fmt.Errorf("create lease %s: %w", r.ID, err)
}

// findLease asks the manager for a lease of the claim that exists with the ID of a request and another
// spec, which the watch has not shown yet: its answer was lost, and the gang began to run or the scheduler
// chose another node since. It reports whether there is one; any other is a user's of the same tenant.
func (c *Controller) findLease(ctx context.Context, r claims.Request) (bool, error) {
	for req := (&dxpuv1.ListLeasesRequest{PageSize: pool.PageSize, Tenant: r.Spec.Tenant, IncludeEnded: true}); ; {
		res, err := c.cfg.Pool.ListLeases(ctx, connect.NewRequest(req))
		if err != nil {
			return false, err
		}
		for _, l := range res.Msg.Leases {
			if l.RequestId == r.ID {
				c.watch.Put(l)
				ours := c.watch.Leases(r.Spec.Labels[claims.LabelClaim])
				return slices.ContainsFunc(ours, func(o *dxpuv1.Lease) bool { return o.Id == l.Id }), nil
			}
		}
		if req.PageToken = res.Msg.NextPageToken; req.PageToken == "" {
			return false, nil
		}
	}
}
