package manager

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// The store holds the records below. They are separate from the types of the API and
// encoded as JSON with a version (store_load.go). Enumerations are stored by number,
// which the API never reuses.

// meta is the record of the pool itself; there is one.
type meta struct {
	ClusterID string `json:"cluster_id"`
	// Incarnation is a random number that each new pool and each restore
	// chooses. It is part of the IDs of bindings, so that those of two pools
	// differ. 0: the pool was made by a version without incarnations.
	Incarnation   uint64 `json:"incarnation,omitempty"`
	FirstRevision uint64 `json:"first_revision,omitempty"` // the first revision of the incarnation
	// Revision grows with every event and every change of a desired state or a
	// resource.
	Revision   uint64 `json:"revision"`
	Epoch      uint64 `json:"epoch"`       // the epoch of the newest binding
	NodeNumber uint32 `json:"node_number"` // the number of the newest node
	// NextLease is the number of the next lease. 0: an earlier version made the
	// pool and took revisions for numbers.
	NextLease uint64 `json:"next_lease,omitempty"`
	// Plans counts the plans of maintenance that the pool has had.
	Plans uint64 `json:"plans,omitempty"`
	// Audits counts the entries that the audit log has had.
	Audits uint64 `json:"audits,omitempty"`
	// EventRecords counts the records that the ring of events has had. EventsFrom is the
	// revision after which events are stored.
	EventRecords uint64 `json:"event_records,omitempty"`
	EventsFrom   uint64 `json:"events_from,omitempty"`
}

// nodeRecord is a host or a box.
type nodeRecord struct {
	ID             string          `json:"id"`
	Number         uint32          `json:"number"`
	Kind           dxpuv1.NodeKind `json:"kind"`
	CredentialHash []byte          `json:"credential_hash"` // the SHA-256 of the credential
	// Certificates lists the serial numbers of valid certificates. A node that
	// has any cannot use its credential.
	Certificates []string `json:"certificates,omitempty"`
	// AuthorityStep is secretRecord.Steps of the pool's authority when the first of them
	// was issued.
	AuthorityStep uint64 `json:"authority_step,omitempty"`
	// Deleting is set when the node was deleted and its record remains until
	// nothing is bound there.
	Deleting  bool              `json:"banished,omitempty"`
	Rack      string            `json:"rack,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	Addresses []pathAddress     `json:"addresses,omitempty"`
	Version   string            `json:"version,omitempty"`
	BoxKind   dxpuv1.BoxKind    `json:"box_kind,omitempty"`
	// ProxyGPUs is the number of busy GPUs that use up the bandwidth of a box
	// proxy; 0: unknown.
	ProxyGPUs uint32 `json:"proxy_gpus,omitempty"`
	// LocalPeer is the node of the other kind on the same machine that it names as the only
	// one that it works with.
	LocalPeer string `json:"local_peer,omitempty"`
	// SeveralGPUs says that a lease may have several GPUs of a box with a local peer.
	SeveralGPUs bool `json:"several_gpus,omitempty"`
	// ErrorsFull is set while errors of its GPUs are not counted, because there are too many kinds.
	ErrorsFull      bool         `json:"errors_full,omitempty"`
	Slots           []slotRecord `json:"slots,omitempty"` // in the order of their numbers
	Cordon          *cordon      `json:"cordon,omitempty"`
	Taints          []taint      `json:"taints,omitempty"`    // not changed once stored
	Stability       *stability   `json:"stability,omitempty"` // nil: not lost recently
	DesiredRevision uint64       `json:"desired_revision"`
	ResourceVersion uint64       `json:"resource_version"`
}

func (n *nodeRecord) unshare() {
	n.Labels, n.Addresses, n.Slots = maps.Clone(n.Labels), slices.Clone(n.Addresses), slices.Clone(n.Slots)
}

// slot returns the record of a slot, nil if there is none.
func (n *nodeRecord) slot(i uint32) *slotRecord { return findSlot(n.Slots, i) }

// findSlot returns a slot of a list in order, nil if it is not there.
func findSlot(slots []slotRecord, i uint32) *slotRecord {
	if uint64(i) < uint64(len(slots)) && slots[i].Slot == i { // most nodes number their slots from 0 on
		return &slots[i]
	}
	at, found := slices.BinarySearchFunc(slots, i, func(s slotRecord, i uint32) int { return cmp.Compare(s.Slot, i) })
	if !found {
		return nil
	}
	return &slots[at]
}

func sortSlots(slots []slotRecord) {
	slices.SortFunc(slots, func(a, b slotRecord) int { return cmp.Compare(a.Slot, b.Slot) })
}

// pathAddress is the address on which a node listens on one path.
type pathAddress struct {
	Path    uint32 `json:"path"`
	Address string `json:"address"`
	MTU     uint32 `json:"mtu,omitempty"`
	Network string `json:"network,omitempty"`
}

// slotRecord is what the manager keeps of a slot between reports.
type slotRecord struct {
	Slot         uint32        `json:"slot"`
	Domain       string        `json:"domain,omitempty"` // hosts
	Device       *deviceRecord `json:"device,omitempty"` // boxes; nil: empty
	Health       dxpuv1.Health `json:"health"`
	HealthDetail string        `json:"health_detail,omitempty"`
	Cordon       *cordon       `json:"cordon,omitempty"`
	Taints       []taint       `json:"taints,omitempty"` // not changed once stored
	Fault        *faultRecord  `json:"care,omitempty"`   // boxes; nil: no errors
	// Since is the revision at which the slot first had the device; 0: by a version that
	// did not record it.
	Since uint64 `json:"since,omitempty"`
	// Duplicate is set once an event has said that another slot has the device.
	Duplicate bool `json:"duplicate,omitempty"`
	// PartOf is the slot of the GPU of which this slot is for a part; nil: the slot has a
	// whole device. It is not changed in place.
	PartOf *uint32 `json:"part_of,omitempty"`
}

// keeps reports whether the record of an empty slot has state that must not be lost.
func (s *slotRecord) keeps() bool { return s.Cordon != nil || s.Fault != nil || len(s.Taints) > 0 }

// deviceRecord describes the device of a box slot. It is not changed once stored.
type deviceRecord struct {
	Model        string `json:"model"`
	MemoryBytes  uint64 `json:"memory_bytes"`
	Serial       string `json:"serial,omitempty"`
	VendorID     uint32 `json:"vendor_id"`
	DeviceID     uint32 `json:"device_id"`
	NVLinkDomain string `json:"nvlink_domain,omitempty"`
	PCIeSwitch   string `json:"pcie_switch,omitempty"`
	// ShareModes are the modes in which parts can share the GPU.
	ShareModes      placement.ShareModes `json:"share_modes,omitempty"`
	Multiprocessors uint32               `json:"multiprocessors,omitempty"`
}

// cordon keeps new bindings away from a target. It is not changed once stored.
type cordon struct {
	Reason string `json:"reason,omitempty"`
	Drain  *drain `json:"drain,omitempty"` // set when bindings at the target must move away; nil: they stay
}

// bindingRecord joins a host slot and a box slot.
type bindingRecord struct {
	ID        string              `json:"id"`
	Epoch     uint64              `json:"epoch"`
	LeaseID   string              `json:"lease_id"`
	HostID    string              `json:"host_id"`
	HostSlot  uint32              `json:"host_slot"`
	BoxID     string              `json:"box_id"`
	BoxSlot   uint32              `json:"box_slot"`
	Secret    []byte              `json:"secret,omitempty"` // removed when released
	State     dxpuv1.BindingState `json:"state"`
	Reason    dxpuv1.Reason       `json:"reason,omitempty"`
	Detail    string              `json:"detail,omitempty"`
	Replaces  string              `json:"replaces,omitempty"`
	Successor string              `json:"successor,omitempty"` // the binding that replaces this one
	// Follows is the binding that this one is to follow in a live migration; "": none, or it
	// has followed it. TransferSecret is for the link between the boxes. MoveRequest is the
	// request_id of the call that began the migration.
	Follows        string `json:"follows,omitempty"`
	TransferSecret []byte `json:"transfer_secret,omitempty"`
	MoveRequest    string `json:"move_request,omitempty"`
	// MoveTries counts the migrations of this binding that failed, MoveFailed is the time of
	// the last one.
	MoveTries  int       `json:"move_tries,omitempty"`
	MoveFailed time.Time `json:"move_failed,omitzero"`
	// ReplaceRequest is the request_id of the call that replaced the binding.
	ReplaceRequest string `json:"replace_request,omitempty"`
	// HostClear and BoxClear are set when that side has nothing of the binding.
	HostClear bool `json:"host_clear"`
	BoxClear  bool `json:"box_clear"`
	// HostTold and BoxTold are the revisions of the desired states that first had the
	// binding, HostDropped and BoxDropped of the first ones without it; 0: none yet.
	HostTold    uint64    `json:"host_told,omitempty"`
	BoxTold     uint64    `json:"box_told,omitempty"`
	HostDropped uint64    `json:"host_dropped,omitempty"`
	BoxDropped  uint64    `json:"box_dropped,omitempty"`
	LinkLostAt  time.Time `json:"link_lost_at,omitzero"` // when the host first reported that the link is lost
	Trace       string    `json:"trace,omitempty"`       // the W3C trace context of the call that created the lease
	NoSpare     bool      `json:"no_spare,omitempty"`    // set once an event has said that no GPU can replace the binding's
	Overdue     bool      `json:"overdue,omitempty"`     // set once an event has said that the binding's removal takes too long
	// AwaitsGPUOf is the binding that must release the GPU before this one is sent to
	// the box. GPUPromisedTo is the binding that gets the GPU of this one.
	AwaitsGPUOf   string `json:"waits,omitempty"`
	GPUPromisedTo string `json:"heir,omitempty"`
	Dropped       bool   `json:"dropped,omitempty"` // set when the lease needs no replacement of the binding
	// Grown is set when a resize added the binding to an ACTIVE lease, which
	// stays active without it until it is attached. Tries counts the failed
	// bindings in its place.
	Grown bool `json:"grown,omitempty"`
	Tries int  `json:"tries,omitempty"`
	// Waiting is set while the host waits for something, which Detail names;
	// WaitedUntil is when it last stopped.
	Waiting     bool      `json:"waiting,omitempty"`
	WaitedUntil time.Time `json:"waited_until,omitzero"`
	// Ejected is set when the guest has removed the device. Replugs counts the
	// requests to plug it in again.
	Ejected bool         `json:"ejected,omitempty"`
	Replugs uint32       `json:"replugs,omitempty"`
	InUse   bool         `json:"in_use,omitempty"` // set once an event has said that the guest still uses the device
	Part    *partRecord  `json:"part,omitempty"`   // nil: the whole GPU
	Steps   []stepRecord `json:"steps"`
}

func (b *bindingRecord) unshare() { b.Steps = slices.Clone(b.Steps) }

// since returns when the binding entered its state.
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

type leaseRecord struct {
	ID          string            `json:"id"`
	RequestID   string            `json:"request_id,omitempty"`
	Spec        json.RawMessage   `json:"spec"` // the API's message as JSON, as it was requested
	State       dxpuv1.LeaseState `json:"state"`
	StateReason string            `json:"state_reason"`
	HostID      string            `json:"host_id,omitempty"`
	Explanation []string          `json:"explanation,omitempty"`
	Trace       string            `json:"trace,omitempty"`   // the W3C trace context of the call that created the lease
	Failing     bool              `json:"failing,omitempty"` // set when the lease ends because it could not be satisfied
	// Attempts counts the bindings that failed before the lease was first
	// ACTIVE; Avoid lists their GPUs.
	Attempts     int             `json:"attempts,omitempty"`
	Avoid        []placement.Ref `json:"avoid,omitempty"`
	Creator      string          `json:"creator,omitempty"` // the token or node that created the lease
	CreateTime   time.Time       `json:"create_time"`
	QueueTime    time.Time       `json:"queue_time,omitzero"`    // when the lease returned to the queue; zero: never
	Running      time.Time       `json:"running,omitzero"`       // when the lease became ACTIVE since it was last in the queue; its lifetime counts from then
	Granted      time.Time       `json:"grant_time,omitzero"`    // Running, before that when the lease got GPUs: for managers of the previous version, which count from then
	GangComplete time.Time       `json:"gang_complete,omitzero"` // when all leases of its gang existed; its place in the queue counts from then
	LeftGang     bool            `json:"left_gang,omitzero"`     // it ends without the other leases of its gang
	Model        string          `json:"model,omitempty"`        // that of the lease's GPUs, once it has been granted
	Asked        uint32          `json:"asked,omitempty"`        // the count with which the lease was created, if it has been resized
	// AskedPart is the part with which the lease was created, if it has been resized. It is not changed.
	AskedPart *partRecord `json:"asked_part,omitempty"`
	// Share is the mode in which the lease's part shares its GPU, once it has been granted.
	Share dxpuv1.ShareMode `json:"share,omitempty"`
	// Size is what the lease's part takes of its GPU, in thousandths, once it has been granted.
	Size       uint32    `json:"size,omitempty"`
	ActiveTime time.Time `json:"active_time,omitzero"`
	// Promise is what is promised to a lease that begins later, until it has GPUs.
	Promise         *promiseRecord `json:"promise,omitempty"`
	EndTime         time.Time      `json:"end_time,omitzero"`
	ResourceVersion uint64         `json:"resource_version"`

	spec *dxpuv1.LeaseSpec // the decoded Spec; copies share it, it is never changed
}

func (l *leaseRecord) unshare() {
	l.Explanation, l.Avoid = slices.Clone(l.Explanation), slices.Clone(l.Avoid)
}

// queuedSince returns when the lease entered the queue.
func (l *leaseRecord) queuedSince() time.Time {
	if l.QueueTime.IsZero() {
		return l.CreateTime
	}
	return l.QueueTime
}

// expires returns when the lease is over; zero: never, or not before it is ACTIVE.
func (l *leaseRecord) expires() time.Time {
	if l.spec.StartTime != nil {
		return expireTime(l.spec)
	}
	if l.spec.ExpiresAfter == nil || l.Running.IsZero() {
		return time.Time{}
	}
	return l.Running.Add(l.spec.ExpiresAfter.AsDuration())
}

// asked returns the spec with which the lease was created.
func (l *leaseRecord) asked() *dxpuv1.LeaseSpec {
	if (l.Asked == 0 || l.Asked == l.spec.Count) && l.AskedPart == nil && l.spec.StartAfter == nil {
		return l.spec
	}
	s := proto.CloneOf(l.spec)
	if s.StartAfter != nil {
		s.StartTime = nil // setStart has set it
	}
	s.Count, s.Part = cmp.Or(l.Asked, s.Count), cmp.Or(l.AskedPart.message(), s.Part)
	return s
}

func (l *leaseRecord) ended() bool { return l.State == leaseReleased || l.State == leaseFailed }

// holds reports whether the lease is in a state in which it should have GPUs.
func (l *leaseRecord) holds() bool {
	return l.State == leaseBinding || l.State == leaseActive || l.State == leaseDegraded
}

// tenantRecord is a tenant with its quota.
type tenantRecord struct {
	ID          string      `json:"id"`
	Description string      `json:"description,omitempty"`
	Quota       quotaRecord `json:"quota"`
	CreateTime  time.Time   `json:"create_time"`
	// Created is the revision at which the tenant was created. It tells the tenant from
	// others that have had the name. 0: by a version that did not record it.
	Created uint64 `json:"created,omitempty"`
	// ResourceVersion grows with every change.
	ResourceVersion uint64 `json:"resource_version"`
}

func (r *tenantRecord) unshare() { r.Quota.MaxGPUsByModel = maps.Clone(r.Quota.MaxGPUsByModel) }

// quotaRecord bounds the use of a tenant; 0: no bound.
type quotaRecord struct {
	MaxGPUs        uint32            `json:"max_gpus,omitempty"`
	MaxLeases      uint32            `json:"max_leases,omitempty"`
	MaxGPUsByModel map[string]uint32 `json:"max_gpus_by_model,omitempty"`
	MaxPriority    *int32            `json:"max_priority,omitempty"`
	Weight         uint32            `json:"weight,omitempty"` // in the queue; 0: 1
	GuaranteedGPUs *uint32           `json:"guaranteed_gpus,omitempty"`
}

// tokenRecord is the credential of a person or a program.
type tokenRecord struct {
	ID          string      `json:"id"`
	Role        dxpuv1.Role `json:"role"`
	Tenant      string      `json:"tenant,omitempty"`
	Description string      `json:"description,omitempty"`
	SecretHash  []byte      `json:"secret_hash"` // the SHA-256 of the secret
	CreateTime  time.Time   `json:"create_time"`
	ExpireTime  time.Time   `json:"expire_time,omitzero"`
	Creator     string      `json:"creator,omitempty"`
	// TenantCreated is Created of the tenant; 0: of the default tenant, or not known.
	TenantCreated uint64 `json:"tenant_created,omitempty"`
	RequestID     string `json:"request_id,omitempty"`
}

// auditRecord says which caller did what. It is not changed once stored.
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
