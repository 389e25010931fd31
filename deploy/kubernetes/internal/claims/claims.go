// Package claims decides what a ResourceClaim needs of the pool: which leases to create
// and to delete, and which conditions to report. It is a machine: a function of the
// claim and its leases, without clock and I/O.
//
// Each allocated device has one lease, which names the GPU and the host; the GPUs of the
// host's own machine have one together. A lease belongs to one allocation of its claim, so what
// is left of an earlier one is recognised.
//
//	allocated -> lease PENDING, BINDING -> ACTIVE: Attached=True, the scheduler binds the pod
//	                       |                  |
//	                       +------------------+-> the lease ends: Failed=True, for ever
//
// Failed stays: the scheduler gives the device back if the pod is not bound yet, and a
// taint evicts the pod if it is. Both end in a claim that is not allocated any more.
package claims

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// The labels of a lease.
const (
	LabelCluster   = "kubernetes.dxpu.dev/cluster" // UID of the namespace kube-system
	LabelClaim     = "kubernetes.dxpu.dev/claim"   // UID
	LabelNamespace = "kubernetes.dxpu.dev/namespace"
	LabelName      = "kubernetes.dxpu.dev/name"
	LabelDevice    = "kubernetes.dxpu.dev/device"
	LabelShare     = "kubernetes.dxpu.dev/share" // ID of the share, of a part of a GPU
	LabelNode      = "kubernetes.dxpu.dev/node"
	LabelAllocated = "kubernetes.dxpu.dev/allocated" // time of the allocation, Unix seconds
	LabelGang      = "kubernetes.dxpu.dev/gang"      // name in the pool, also if it was not waited for
)

// Claim is an allocated ResourceClaim, as far as the pool is concerned.
type Claim struct {
	UID       string
	Namespace string
	Name      string
	// Allocated is the time of the allocation in Unix seconds, 0 if Kubernetes has not
	// recorded it. Nothing tells two allocations of one second apart that have the same devices and
	// node: the generation counts changes of the specification, the resource version changes with each
	// write of the status, the scheduler reserves the claim for the same pod again, and a pod that comes
	// to share an allocation is reserved later. They have one lease, which is for the same GPU, host and
	// tenant. Shares of a GPU have an ID of their own in each allocation.
	Allocated int64
	// Node is the node of the pod; empty: it is not known yet.
	Node string
	// Host is the host of the pool for the node, by ID. HostErr says why there is none.
	Host    string
	HostErr string
	// HostShut says why the host takes no GPU now, nor soon. Empty: it takes one.
	HostShut string
	// HostLost says why the host attaches nothing: it has reported, and does no more. Empty: it may.
	HostLost string
	// LocalErr says why the pod cannot have GPUs of the host's own machine by this claim.
	LocalErr string
	// Devices are those of this driver.
	Devices []Device
}

// Device is an allocated device, or a share of one.
type Device struct {
	Name string
	// Share is the ID of the share that Kubernetes has made for this allocation of the
	// device. Empty: the device is not shared.
	Share string
	GPU   string // empty: the pool does not have it any more
	// Local is whether the GPU is one of the host's own machine.
	Local bool
	// Part is the part of the GPU, nil for the whole GPU.
	Part *dxpuv1.Part
	// Parameters are those of the request; ParametersErr says why they cannot be read.
	Parameters    Parameters
	ParametersErr string
	// GangRuns is whether leases of the gang of the parameters have GPUs already. The device is
	// then for the successor of a pod, and waits for no others.
	GangRuns bool
	// Tolerations are those of the request.
	Tolerations []*dxpuv1.Toleration
	// Attached and Failed are whether the claim says so already, Reported whether it says
	// anything of the device.
	Attached, Failed, Reported bool
	// Lease is the lease of which the claim says so, empty if it names none.
	Lease string
	// Awaited is whether the scheduler binds no pod before the device is attached. Else the pod may be on
	// its node already, and wait there.
	Awaited bool
	// Admin is access beside the users of the device, for monitoring: it takes no GPU.
	Admin bool
}

// Phase is the state of an allocated device.
type Phase int

// Phases.
const (
	Waiting   Phase = iota // in the queue of the pool
	Attaching              // the pool attaches it
	Attached               // the node has it
	Failed                 // the device must be given back
)

// AttachDelayed is the Reason of a device whose attach waits for something.
const AttachDelayed = "AttachDelayed"

// Status is the status of an allocated device.
type Status struct {
	Device  string
	Share   string // of the device, empty if it is not shared
	Phase   Phase
	Reason  string // a word, as conditions have it
	Message string // in the words of the manager
	Lease   string
	// Binding is the binding that serves the device; nil unless it is Attached.
	Binding *dxpuv1.Binding
}

// Request is a lease to create.
type Request struct {
	ID   string // makes the call idempotent
	Spec *dxpuv1.LeaseSpec
	// Devices are those for which it is.
	Devices []Device
}

// For reports whether a lease is for the device of a status.
func (r *Request) For(s Status) bool {
	return slices.ContainsFunc(r.Devices, func(d Device) bool { return d.Name == s.Device && d.Share == s.Share })
}

// Plan is what to do for a claim.
type Plan struct {
	Create []Request
	Delete []string // leases, by ID
	Status []Status // of each device; nil: nothing to report
	Again  bool     // a lease to create is not the first one of its second
}

// Failures returns the status of the devices that must be given back.
func (p *Plan) Failures() (out []Status) {
	for _, s := range p.Status {
		if s.Phase == Failed {
			out = append(out, s)
		}
	}
	return out
}

// Policy is the part of a lease that does not depend on the claim.
type Policy struct {
	Cluster string
	// Tenant returns the tenant for a namespace.
	Tenant func(namespace string) string
	// QueueTimeout bounds the time in the queue of the pool. It is shorter than the
	// scheduler's own bound, so that the pod's event has the manager's reason.
	QueueTimeout time.Duration
}

// Decide returns what to do for a claim. claim is nil if it is gone or not allocated.
// leases are those with the label of the claim.
func Decide(claim *Claim, leases []*dxpuv1.Lease, p Policy) Plan {
	var plan Plan
	keep := map[string]bool{}
	if claim != nil {
		for _, d := range claim.Devices {
			s := claim.device(d, leases, p, &plan)
			if s.Lease != "" && s.Phase != Failed {
				keep[s.Lease] = true
			}
			plan.Status = append(plan.Status, s)
		}
	}
	for _, l := range leases {
		if !keep[l.Id] && open(l) {
			plan.Delete = append(plan.Delete, l.Id)
		}
	}
	slices.Sort(plan.Delete)
	return plan
}

// open reports whether a lease holds GPUs, or may get some.
func open(l *dxpuv1.Lease) bool {
	switch l.State {
	case dxpuv1.LeaseState_LEASE_STATE_RELEASING, dxpuv1.LeaseState_LEASE_STATE_RELEASED, dxpuv1.LeaseState_LEASE_STATE_FAILED:
		return false
	}
	return true
}

// device returns the status of a device, and adds the lease that it lacks to the plan.
func (c *Claim) device(d Device, leases []*dxpuv1.Lease, p Policy, plan *Plan) Status {
	s := Status{Device: d.Name, Share: d.Share}
	l := c.lease(leases, d, p)
	switch {
	case d.Admin:
		s.Phase, s.Reason, s.Message = Attached, "AdminAccess", "access for monitoring has no lease"
	case l != nil:
		s.of(l, d)
		switch {
		case s.Phase == Failed && d.Attached && preempted(l):
			s.Reason = "Preempted"
		case s.Phase == Failed:
		case d.Failed:
			s.Phase, s.Reason, s.Message = Failed, "LeaseLost", "the device has failed before"
		case d.Attached && s.Phase == Waiting:
			// A pod may run with the device that it had: it does not get another one.
			if s.Phase = Failed; preempted(l) {
				s.Reason = "Preempted"
			} else {
				s.Reason, s.Message = "DeviceLost", s.lost(l, d)
			}
		case s.Phase == Waiting && c.Host == "":
			s.Phase, s.Reason, s.Message = Failed, "NoHost", c.HostErr
		case s.Phase == Waiting && c.HostShut != "" && d.Awaited:
			// The scheduler chooses another node, which the queue of the pool cannot do. A pod that is
			// on its node already waits in the queue, because the host may take GPUs again.
			s.Phase, s.Reason, s.Message = Failed, "HostUnavailable", c.HostShut+". The manager says: "+s.Message
		case s.Phase == Attaching && !d.Attached && d.Awaited && c.HostLost != "":
			// The manager waits for it for many minutes, in which another node could have the pod.
			s.Phase, s.Reason, s.Message = Failed, "HostUnavailable", c.HostLost+". The manager says: "+s.Message
		}
	case d.Failed:
		s.Phase, s.Reason, s.Message = Failed, "LeaseLost", "the lease of the device has ended"
	case d.GPU == "":
		s.Phase, s.Reason, s.Message = Failed, "NoSuchGPU", "the GPU has left the pool"
	case d.ParametersErr != "":
		s.Phase, s.Reason, s.Message = Failed, "InvalidParameters", d.ParametersErr
	case c.Node == "":
		s.Phase, s.Reason, s.Message = Waiting, "NoNode", "the scheduler has not chosen a node yet"
	case d.Attached: // a pod may run with the device that it had: it does not get another one
		s.Phase, s.Reason, s.Message = Failed, "LeaseLost", "the pool has forgotten the lease of the device"
	case c.Host == "":
		s.Phase, s.Reason, s.Message = Failed, "NoHost", c.HostErr
	case c.HostShut != "" && d.Awaited:
		s.Phase, s.Reason, s.Message = Failed, "HostUnavailable", c.HostShut
	case d.Local && c.notOneShare() != "":
		s.Phase, s.Reason, s.Message = Failed, "Unsupported", c.notOneShare()
	default:
		s.Phase, s.Reason, s.Message = Waiting, "Requested", "the pool is asked for the GPU"
		if r := c.request(c.together(d), p); d.same(r.Devices[0]) {
			id := unusedID(r.ID, leases)
			r.ID, plan.Again = id, plan.Again || id != r.ID
			plan.Create = append(plan.Create, r)
		}
	}
	return s
}

// lease returns the lease of a device, nil for none. An allocation is known by its second, so a
// lease that was deleted may be that of an earlier one: it counts if the claim has said anything of the
// device, which the end of an allocation takes back. A second one that was deleted counts as well: an
// operator may want the claim to have none.
func (c *Claim) lease(leases []*dxpuv1.Lease, d Device, p Policy) *dxpuv1.Lease {
	var deleted []*dxpuv1.Lease
	for _, l := range leases {
		if !c.owns(l, d, p) {
			continue
		}
		if l.State != dxpuv1.LeaseState_LEASE_STATE_RELEASING && l.State != dxpuv1.LeaseState_LEASE_STATE_RELEASED {
			return l
		}
		deleted = append(deleted, l)
	}
	if len(deleted) > 1 || d.Reported && len(deleted) > 0 {
		return deleted[0]
	}
	return nil
}

// unusedID returns an ID that no lease of a claim has: an allocation of the same second may have made
// one, for another node. The manager refuses another lease of the same ID.
func unusedID(id string, leases []*dxpuv1.Lease) string {
	unused := id
	for n := 2; slices.ContainsFunc(leases, func(l *dxpuv1.Lease) bool { return l.RequestId == unused }); n++ {
		unused = fmt.Sprintf("%s-%d", id, n)
	}
	return unused
}

// owns reports whether a lease is that of a device in the present allocation. Every user of
// the pool can give a lease these labels, so the claim's status, the tenant, the GPU and the host
// must agree.
func (c *Claim) owns(l *dxpuv1.Lease, d Device, p Policy) bool {
	spec := l.GetSpec()
	at, together := spec.GetLabels(), c.together(d)
	device, share := labelsOf(together)
	if at[LabelClaim] != c.UID || at[LabelDevice] != device || at[LabelShare] != share || at[LabelAllocated] != strconv.FormatInt(c.Allocated, 10) || at[LabelNode] != c.Node {
		return false
	}
	if d.Lease != "" {
		return l.Id == d.Lease // the tenant and the host of a node may have changed since
	}
	return spec.Tenant == p.Tenant(c.Namespace) && (d.GPU == "" || slices.Equal(spec.GpuIds, gpusOf(together))) && (c.Host == "" || spec.HostId == c.Host)
}

// preempted reports whether a lease has lost its GPU to another lease.
func preempted(l *dxpuv1.Lease) bool {
	return slices.ContainsFunc(l.Bindings, func(b *dxpuv1.Binding) bool { return b.Reason == dxpuv1.Reason_REASON_PREEMPTED })
}

// of sets the status of a device to that of its lease.
func (s *Status) of(l *dxpuv1.Lease, d Device) {
	s.Lease, s.Message = l.Id, strings.TrimSuffix(l.StateReason, ".")
	switch l.State {
	case dxpuv1.LeaseState_LEASE_STATE_PENDING:
		s.Phase, s.Reason = Waiting, "Queued"
	case dxpuv1.LeaseState_LEASE_STATE_BINDING:
		s.attaching(l)
	case dxpuv1.LeaseState_LEASE_STATE_ACTIVE:
		s.active(l, d)
	case dxpuv1.LeaseState_LEASE_STATE_DEGRADED:
		s.Phase, s.Reason, s.Message = Failed, "DeviceLost", s.lost(l, d)
	default:
		s.Phase, s.Reason = Failed, "LeaseEnded"
	}
}

func (s *Status) active(l *dxpuv1.Lease, d Device) {
	for _, b := range l.Bindings {
		if b.State == dxpuv1.BindingState_BINDING_STATE_ATTACHED && (len(l.GetSpec().GetGpuIds()) < 2 || d.GPU == cmp.Or(b.PartOfGpuId, b.GpuId)) {
			s.Phase, s.Reason, s.Binding = Attached, "Attached", b
			s.Message = fmt.Sprintf("lease %s: GPU %s is in slot %d of host %s", l.Id, b.GpuId, b.HostSlot, b.HostId)
			return
		}
	}
	if d.Attached { // one of several that the pool does not list at the moment
		s.Phase, s.Reason, s.Message = Attached, "Attached", "lease "+l.Id
		return
	}
	s.attaching(l)
}

// attaching tells an attach that takes its time from one that waits: for what a host tells, or for
// another GPU in the place of one that is lost.
func (s *Status) attaching(l *dxpuv1.Lease) {
	s.Phase, s.Reason = Attaching, "Attaching"
	coming := 0
	for _, b := range l.Bindings {
		switch b.State {
		case dxpuv1.BindingState_BINDING_STATE_ATTACHED:
			coming++
		case dxpuv1.BindingState_BINDING_STATE_PREPARING, dxpuv1.BindingState_BINDING_STATE_READY:
			if b.Detail == "" {
				coming++
			}
		default:
		}
	}
	if len(l.Bindings) > 0 && coming < int(l.GetSpec().GetCount()) {
		s.Reason = AttachDelayed
	}
}

// request returns the lease for a device, or for those that have one together.
func (c *Claim) request(together []Device, p Policy) Request {
	d, at := together[0], strconv.FormatInt(c.Allocated, 10)
	device, share := labelsOf(together)
	spec := &dxpuv1.LeaseSpec{
		Count: uint32(len(together)), GpuIds: gpusOf(together), HostId: c.Host, Tenant: p.Tenant(c.Namespace),
		Wait: true, WaitTimeout: durationpb.New(p.QueueTimeout), Tolerations: d.Tolerations,
		Labels: map[string]string{
			LabelCluster: p.Cluster, LabelClaim: c.UID, LabelNamespace: c.Namespace, LabelName: c.Name,
			LabelDevice: device, LabelNode: c.Node, LabelAllocated: at,
		},
	}
	if d.Part != nil {
		spec.Part = &dxpuv1.Part{MemoryBytes: d.Part.MemoryBytes, Compute: d.Part.Compute}
	}
	which := device
	if share != "" {
		which = share
		spec.Labels[LabelShare] = share
	}
	d.Parameters.apply(spec)
	if g := d.Parameters; g.Gang != "" {
		name := GangName(p.Cluster, c.Namespace, g.Gang)
		if spec.Labels[LabelGang] = name; !d.GangRuns {
			spec.Gang = &dxpuv1.Gang{Name: name, Size: g.GangSize}
		}
	}
	// The manager bounds the ID to 128 characters: a UID has 36, a device 63, a share 36, a
	// time 10, and unusedID adds a number.
	return Request{ID: "k8s-" + c.UID + "-" + which + "-" + at, Devices: together, Spec: spec}
}
