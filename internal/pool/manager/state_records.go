package manager

import (
	"encoding/json"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// The records below are what is stored: our own types, apart from those of the
// API, encoded as JSON with the version of record.go's envelope. Enumerations are
// stored by number, as in the API, where numbers are never reused.

// meta is the pool's own record; there is one.
type meta struct {
	ClusterID string `json:"cluster_id"`
	// Incarnation is a random number that a new pool and every restore choose. It
	// is part of the IDs of bindings, so that those of two pools differ. 0: the
	// pool was made by a version that knew none.
	Incarnation uint64 `json:"incarnation,omitempty"`
	// FirstRevision is where the incarnation begins to count.
	FirstRevision uint64 `json:"first_revision,omitempty"`
	// Revision grows with every event, desired state and resource change.
	Revision uint64 `json:"revision"`
	// Epoch is the last one given to a binding.
	Epoch uint64 `json:"epoch"`
	// NodeNumber is the last one given to a node.
	NodeNumber uint32 `json:"node_number"`
	// Audits is how many entries the audit log has had.
	Audits uint64 `json:"audits,omitempty"`
}

func (m *meta) clone() *meta { c := *m; return &c }

// nodeRecord is a host or a box.
type nodeRecord struct {
	ID     string          `json:"id"`
	Number uint32          `json:"number"`
	Kind   dxpuv1.NodeKind `json:"kind"`
	// CredentialHash is the SHA-256 of the credential.
	CredentialHash []byte `json:"credential_hash"`
	// Certificates are the serial numbers of those that are good. A node that
	// has any is known by them alone.
	Certificates []string `json:"certificates,omitempty"`
	// Deleting: the node was deleted and goes when nothing is bound there any more.
	Deleting  bool              `json:"banished,omitempty"`
	Rack      string            `json:"rack,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	Addresses []pathAddress     `json:"addresses,omitempty"`
	Version   string            `json:"version,omitempty"`
	BoxKind   dxpuv1.BoxKind    `json:"box_kind,omitempty"`
	// ProxyGPUs is how many busy GPUs use up a box proxy's bandwidth; 0: unknown.
	ProxyGPUs       uint32       `json:"proxy_gpus,omitempty"`
	Slots           []slotRecord `json:"slots,omitempty"`
	Cordon          *cordon      `json:"cordon,omitempty"`
	Stability       *stability   `json:"stability,omitempty"` // nil: never lost of late
	DesiredRevision uint64       `json:"desired_revision"`
	ResourceVersion uint64       `json:"resource_version"`
}

func (n *nodeRecord) clone() *nodeRecord {
	c := *n
	c.Labels = maps.Clone(n.Labels)
	c.Addresses = slices.Clone(n.Addresses)
	c.Slots = slices.Clone(n.Slots)
	return &c
}

// slot returns the node's record of a slot, nil when it has none.
func (n *nodeRecord) slot(i uint32) *slotRecord {
	for s := range n.Slots {
		if n.Slots[s].Slot == i {
			return &n.Slots[s]
		}
	}
	return nil
}

// pathAddress is where a node listens on one path.
type pathAddress struct {
	Path    uint32 `json:"path"`
	Address string `json:"address"`
	MTU     uint32 `json:"mtu,omitempty"`
	Network string `json:"network,omitempty"`
}

// slotRecord is what the manager remembers of a slot between reports.
type slotRecord struct {
	Slot         uint32        `json:"slot"`
	Domain       string        `json:"domain,omitempty"` // hosts
	Device       *deviceRecord `json:"device,omitempty"` // boxes; nil: empty
	Health       dxpuv1.Health `json:"health"`
	HealthDetail string        `json:"health_detail,omitempty"`
	Cordon       *cordon       `json:"cordon,omitempty"`
	Fault        *faultRecord  `json:"care,omitempty"` // boxes; nil: nothing to take care of
}

// deviceRecord is what sits in a box slot. It is not changed once stored.
type deviceRecord struct {
	Model        string `json:"model"`
	MemoryBytes  uint64 `json:"memory_bytes"`
	Serial       string `json:"serial,omitempty"`
	VendorID     uint32 `json:"vendor_id"`
	DeviceID     uint32 `json:"device_id"`
	NVLinkDomain string `json:"nvlink_domain,omitempty"`
	PCIeSwitch   string `json:"pcie_switch,omitempty"`
}

// cordon keeps new bindings away. It is not changed once stored.
type cordon struct {
	Reason string `json:"reason,omitempty"`
	// Drain: what is bound at the target goes elsewhere; nil: it stays.
	Drain *drain `json:"drain,omitempty"`
}

// bindingRecord joins a host slot and a box slot.
type bindingRecord struct {
	ID       string              `json:"id"`
	Epoch    uint64              `json:"epoch"`
	LeaseID  string              `json:"lease_id"`
	HostID   string              `json:"host_id"`
	HostSlot uint32              `json:"host_slot"`
	BoxID    string              `json:"box_id"`
	BoxSlot  uint32              `json:"box_slot"`
	Secret   []byte              `json:"secret,omitempty"` // removed when released
	State    dxpuv1.BindingState `json:"state"`
	Reason   dxpuv1.Reason       `json:"reason,omitempty"`
	Detail   string              `json:"detail,omitempty"`
	Replaces string              `json:"replaces,omitempty"`
	// Successor is the binding that replaces this one.
	Successor string `json:"successor,omitempty"`
	// HostClear and BoxClear: the side holds nothing of the binding.
	HostClear bool `json:"host_clear"`
	BoxClear  bool `json:"box_clear"`
	// The desired revisions with which each side was told to have the binding
	// and to let go of it; 0: not yet.
	HostTold    uint64 `json:"host_told,omitempty"`
	BoxTold     uint64 `json:"box_told,omitempty"`
	HostDropped uint64 `json:"host_dropped,omitempty"`
	BoxDropped  uint64 `json:"box_dropped,omitempty"`
	// LinkLostAt is when the host first said that the link is gone.
	LinkLostAt time.Time `json:"link_lost_at,omitzero"`
	// Trace is the W3C trace context of the call that asked for the lease.
	Trace string `json:"trace,omitempty"`
	// NoSpare: it was said that nothing can replace it.
	NoSpare bool `json:"no_spare,omitempty"`
	// Overdue: it was said that it takes too long.
	Overdue bool `json:"overdue,omitempty"`
	// AwaitsGPUOf is the binding that must give the GPU back before the box is told
	// of this one; Heir is the binding that gets the GPU of this one.
	AwaitsGPUOf   string `json:"waits,omitempty"`
	GPUPromisedTo string `json:"heir,omitempty"`
	// Dropped: its lease does not miss it.
	Dropped bool `json:"dropped,omitempty"`
	// Grown: it was added to a lease that was ACTIVE and goes on without it
	// until it is attached. Tries counts the bindings in its place that failed.
	Grown bool `json:"grown,omitempty"`
	Tries int  `json:"tries,omitempty"`
	// Ejected: the guest has removed the device itself; Replugs is how often it
	// was to be shown again.
	Ejected bool   `json:"ejected,omitempty"`
	Replugs uint32 `json:"replugs,omitempty"`
	// InUse: it was said that the guest does not let go.
	InUse bool         `json:"in_use,omitempty"`
	Steps []stepRecord `json:"steps"`
}

func (b *bindingRecord) clone() *bindingRecord {
	c := *b
	c.Steps = slices.Clone(b.Steps)
	return &c
}

// since returns when the present state was entered.
func (b *bindingRecord) since() time.Time {
	for _, s := range slices.Backward(b.Steps) {
		if s.NodeID == "" {
			return s.Time
		}
	}
	return time.Time{}
}

func (b *bindingRecord) ref() placement.Ref { return placement.Ref{Box: b.BoxID, Slot: b.BoxSlot} }

func (b *bindingRecord) gpuID() string { return b.ref().String() }

// stepRecord is an entry of a binding's timeline.
type stepRecord struct {
	Name     string        `json:"name"`
	Time     time.Time     `json:"time"`
	Duration time.Duration `json:"duration"`
	NodeID   string        `json:"node_id,omitempty"`
}

// leaseRecord is a lease.
type leaseRecord struct {
	ID        string `json:"id"`
	RequestID string `json:"request_id,omitempty"`
	// Spec is the API's message in its JSON form: it is stored as it was asked.
	Spec        json.RawMessage   `json:"spec"`
	State       dxpuv1.LeaseState `json:"state"`
	StateReason string            `json:"state_reason"`
	HostID      string            `json:"host_id,omitempty"`
	Explanation []string          `json:"explanation,omitempty"`
	// Trace is the W3C trace context of the call that asked for it.
	Trace string `json:"trace,omitempty"`
	// Failing: it ends because it could not be satisfied.
	Failing bool `json:"failing,omitempty"`
	// Attempts counts bindings that could not be made before the lease was
	// ACTIVE; Avoid lists their GPUs.
	Attempts int             `json:"attempts,omitempty"`
	Avoid    []placement.Ref `json:"avoid,omitempty"`
	// Creator is the token or node that asked.
	Creator    string    `json:"creator,omitempty"`
	CreateTime time.Time `json:"create_time"`
	// QueueTime is when it went back into the queue; zero: never.
	QueueTime time.Time `json:"queue_time,omitzero"`
	// Model is that of its GPUs, once it has been given some.
	Model string `json:"model,omitempty"`
	// Asked is the count that it was created with, once it has been resized.
	Asked           uint32    `json:"asked,omitempty"`
	ActiveTime      time.Time `json:"active_time,omitzero"`
	EndTime         time.Time `json:"end_time,omitzero"`
	ResourceVersion uint64    `json:"resource_version"`

	spec *dxpuv1.LeaseSpec // decoded Spec; shared between clones, never changed
}

func (l *leaseRecord) clone() *leaseRecord {
	c := *l
	c.Explanation = slices.Clone(l.Explanation)
	c.Avoid = slices.Clone(l.Avoid)
	return &c
}

// queuedSince returns when the lease began to wait.
func (l *leaseRecord) queuedSince() time.Time {
	if l.QueueTime.IsZero() {
		return l.CreateTime
	}
	return l.QueueTime
}

// asked returns the spec with which the lease was created.
func (l *leaseRecord) asked() *dxpuv1.LeaseSpec {
	if l.Asked == 0 || l.Asked == l.spec.Count {
		return l.spec
	}
	s := proto.CloneOf(l.spec)
	s.Count = l.Asked
	return s
}

// ended reports whether the lease is over.
func (l *leaseRecord) ended() bool {
	return l.State == dxpuv1.LeaseState_LEASE_STATE_RELEASED || l.State == dxpuv1.LeaseState_LEASE_STATE_FAILED
}

// holds reports whether the lease is one that should have GPUs.
func (l *leaseRecord) holds() bool {
	switch l.State {
	case dxpuv1.LeaseState_LEASE_STATE_BINDING, dxpuv1.LeaseState_LEASE_STATE_ACTIVE, dxpuv1.LeaseState_LEASE_STATE_DEGRADED:
		return true
	default:
		return false
	}
}

// tenantRecord is a tenant with its quota.
type tenantRecord struct {
	ID          string      `json:"id"`
	Description string      `json:"description,omitempty"`
	Quota       quotaRecord `json:"quota"`
	CreateTime  time.Time   `json:"create_time"`
	// ResourceVersion grows with every change.
	ResourceVersion uint64 `json:"resource_version"`
}

func (r *tenantRecord) clone() *tenantRecord {
	c := *r
	c.Quota.MaxGPUsByModel = maps.Clone(r.Quota.MaxGPUsByModel)
	return &c
}

// quotaRecord bounds what a tenant may have; 0: no bound.
type quotaRecord struct {
	MaxGPUs        uint32            `json:"max_gpus,omitempty"`
	MaxLeases      uint32            `json:"max_leases,omitempty"`
	MaxGPUsByModel map[string]uint32 `json:"max_gpus_by_model,omitempty"`
	MaxPriority    *int32            `json:"max_priority,omitempty"`
}

// tokenRecord is a credential of a person or a program.
type tokenRecord struct {
	ID          string      `json:"id"`
	Role        dxpuv1.Role `json:"role"`
	Tenant      string      `json:"tenant,omitempty"`
	Description string      `json:"description,omitempty"`
	// SecretHash is the SHA-256 of the secret.
	SecretHash []byte    `json:"secret_hash"`
	CreateTime time.Time `json:"create_time"`
	ExpireTime time.Time `json:"expire_time,omitzero"`
	Creator    string    `json:"creator,omitempty"`
}

func (r *tokenRecord) clone() *tokenRecord { c := *r; return &c }

// auditRecord says who did what. It is not changed once stored.
type auditRecord struct {
	Revision  uint64      `json:"revision"`
	Time      time.Time   `json:"time"`
	Actor     string      `json:"actor"`
	Role      dxpuv1.Role `json:"role"`
	Tenant    string      `json:"tenant,omitempty"`
	Procedure string      `json:"procedure"`
	Target    string      `json:"target,omitempty"`
	Code      string      `json:"code"`
	Message   string      `json:"message,omitempty"`
	Peer      string      `json:"peer,omitempty"`
	Request   string      `json:"request,omitempty"`
}

func (r *auditRecord) clone() *auditRecord { c := *r; return &c }
