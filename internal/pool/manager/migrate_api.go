package manager

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/auth"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// MigrateLease implements dxpuv1connect.PoolServiceHandler.
func (s *poolService) MigrateLease(ctx context.Context, req *connect.Request[dxpuv1.MigrateLeaseRequest]) (*connect.Response[dxpuv1.MigrateLeaseResponse], error) {
	return updateResponse(ctx, s.m, func(t *tx, res *dxpuv1.MigrateLeaseResponse) error {
		r := req.Msg
		next, err := t.migratedBy(r)
		if next == nil && err == nil {
			next, err = t.migrateLease(r)
		}
		if err != nil {
			return err
		}
		res.Binding = bindingMessage(next)
		if l := t.leases.get(next.LeaseID); l != nil {
			res.Lease = t.leaseMessage(l)
		}
		return nil
	})
}

// migratedBy returns the successor that an earlier call with the request_id has made, nil
// for none.
func (t *tx) migratedBy(r *dxpuv1.MigrateLeaseRequest) (*bindingRecord, error) {
	if r.RequestId == "" {
		return nil, nil
	}
	t.reindex()
	s := t.bindings.get(t.movedByRequest[r.RequestId])
	if s == nil { // its lease may have ended since
		return nil, t.needEnded()
	}
	from := t.bindings.get(cmp.Or(s.Follows, s.Replaces))
	if s.LeaseID != r.LeaseId || r.ToGpuId != "" && r.ToGpuId != s.gpuID() || r.GpuId != "" && from != nil && r.GpuId != from.gpuID() {
		return nil, errorf(connect.CodeAlreadyExists, "request_id: %q was used to move a GPU of lease %s to %s; use a new one", r.RequestId, s.LeaseID, s.gpuID())
	}
	return s, nil
}

// migrateLease begins the migration that a request asks for.
func (t *tx) migrateLease(r *dxpuv1.MigrateLeaseRequest) (*bindingRecord, error) {
	l, err := t.lease(r.LeaseId)
	switch {
	case err != nil:
		return nil, err
	case l == nil:
		return nil, notFound("lease", r.LeaseId)
	case r.ResourceVersion != 0 && r.ResourceVersion != l.ResourceVersion:
		return nil, conflict("lease", l.ID, l.ResourceVersion, r.ResourceVersion)
	case !t.alike:
		return nil, errOldManagers()
	case l.State != leaseActive:
		return nil, errorf(connect.CodeFailedPrecondition, "lease_id: %s is %s; only GPUs of a lease that is active can move", l.ID, leaseWord(l.State))
	}
	b, err := t.toMigrate(l, r.GpuId)
	if err != nil {
		return nil, err
	}
	if why := t.immovable(b); why != "" {
		return nil, errorf(connect.CodeFailedPrecondition, "gpu_id: GPU %s of lease %s cannot move: %s", b.gpuID(), l.ID, why)
	}
	to, err := t.migrationTarget(l, b, r.ToGpuId)
	if err != nil {
		return nil, err
	}
	s := t.beginMigration(l, b, to)
	s.MoveRequest = r.RequestId
	return s, nil
}

// CancelMigration implements dxpuv1connect.PoolServiceHandler.
func (s *poolService) CancelMigration(ctx context.Context, req *connect.Request[dxpuv1.CancelMigrationRequest]) (*connect.Response[dxpuv1.CancelMigrationResponse], error) {
	return updateResponse(ctx, s.m, func(t *tx, res *dxpuv1.CancelMigrationResponse) error {
		l, err := t.lease(req.Msg.LeaseId)
		switch {
		case err != nil:
			return err
		case l == nil:
			return notFound("lease", req.Msg.LeaseId)
		}
		next, err := t.toCancel(l, req.Msg.GpuId)
		if err != nil {
			return err
		}
		t.failMigration(next, "it was canceled by "+cmp.Or(auth.From(ctx).Actor, "an operator"))
		res.Lease, res.Binding = t.leaseMessage(l), bindingMessage(t.bindings.get(next.ID))
		return nil
	})
}

// toCancel returns the successor in the migration of a GPU of a lease; without an ID, in its
// only migration.
func (t *tx) toCancel(l *leaseRecord, gpu string) (*bindingRecord, error) {
	var moves []string
	var found *bindingRecord
	for _, id := range t.bindingsOf(l.ID) {
		next := t.bindings.get(id)
		if !next.moving() {
			continue
		}
		from := t.sourceOf(next)
		moves = append(moves, from)
		if gpu == "" || gpu == from {
			found = next
		}
	}
	switch {
	case gpu == "" && len(moves) > 1:
		return nil, invalid("gpu_id: %s of lease %s move; name the one that is to stay", strings.Join(moves, ", "), l.ID)
	case found == nil:
		return nil, errorf(connect.CodeFailedPrecondition, "lease_id: no migration of %s is under way", strings.TrimPrefix(gpu+" of lease "+l.ID, " of "))
	case found.State == switching:
		return nil, errorf(connect.CodeFailedPrecondition, "gpu_id: host %s decides already whether GPU %s or %s goes on; it takes less than a second", found.HostID, t.sourceOf(found), found.gpuID())
	}
	return found, nil
}

// errOldManagers refuses what a manager that may lead next would not understand.
func errOldManagers() error {
	return errorf(connect.CodeFailedPrecondition, "managers of several versions run, and the older ones do not know live migration; upgrade them first")
}

// toMigrate returns the binding of a lease by which it has a GPU; without an ID, that of
// its only GPU.
func (t *tx) toMigrate(l *leaseRecord, gpu string) (*bindingRecord, error) {
	var have []string
	var found *bindingRecord
	for _, id := range t.bindingsOf(l.ID) {
		b := t.bindings.get(id)
		if !b.serving() {
			continue
		}
		have = append(have, b.gpuID())
		if gpu == "" || gpu == b.gpuID() {
			found = b
		}
	}
	switch {
	case gpu == "" && len(have) > 1:
		return nil, invalid("gpu_id: lease %s has %s; name the GPU that is to move", l.ID, strings.Join(have, ", "))
	case found == nil:
		return nil, errorf(connect.CodeFailedPrecondition, "gpu_id: %s is not a GPU of lease %s, which has %s", gpu, l.ID, strings.Join(have, ", "))
	}
	return found, nil
}

// immovable returns why a binding cannot move now; "": it can.
func (t *tx) immovable(b *bindingRecord) string {
	port := t.observedSlot(b.HostID, b.HostSlot)
	switch s := t.successorOf(b); {
	case s != nil:
		return "it moves to " + s.gpuID() + " already"
	case b.State != attached:
		return "its binding is " + stateWord(b.State)
	case b.Part != nil:
		return "it is a part of a GPU, whose processor others share"
	case b.Ejected:
		return "its guest has removed it; plug it in again first"
	case !t.connected(b.HostID):
		return "host " + b.HostID + " does not report"
	case !port.GetMovable():
		return "host " + b.HostID + " does not know live migration; upgrade it"
	}
	return t.slotImmovable(b.ref())
}

// slotImmovable returns why the device in a box slot can neither leave it by a live
// migration nor take the state of another one; "": it can.
func (t *tx) slotImmovable(r placement.Ref) string {
	o := t.observedSlot(r.Box, r.Slot)
	switch {
	case !t.connected(r.Box):
		return "box " + r.Box + " does not report"
	case o.GetMovable():
		return ""
	}
	return cmp.Or(truncateText(o.GetImmovable()), "box "+r.Box+" does not know live migration; upgrade it")
}

// migrationTarget returns the GPU to which a binding moves: the one that the caller names,
// or the one that placement chooses for a replacement, among those that take the state.
func (t *tx) migrationTarget(l *leaseRecord, b *bindingRecord, named string) (placement.Ref, error) {
	req := t.replacement(l, []string{b.ID})
	if len(req.Together) > 0 && mustBeTogether(l.spec) {
		return placement.Ref{}, errorf(connect.CodeFailedPrecondition, "lease_id: the GPUs of lease %s must be in one box or NVLink domain, so %s does not leave the others", l.ID, b.gpuID())
	}
	if named != "" {
		n, s, ok := t.gpuByID(named)
		if !ok {
			return placement.Ref{}, notFound("to_gpu_id: gpu", named)
		}
		if why := t.unfit(b, n, s); why != "" {
			return placement.Ref{}, errorf(connect.CodeFailedPrecondition, "to_gpu_id: GPU %s cannot take the place of %s: %s", named, b.gpuID(), why)
		}
		to := placement.Ref{Box: n.ID, Slot: s.Slot}
		if len(req.Only) > 0 && !slices.Contains(req.Only, to) {
			return placement.Ref{}, errorf(connect.CodeFailedPrecondition, "to_gpu_id: lease %s asked for certain GPUs, and %s is not one of them", l.ID, named)
		}
		req.Only = []placement.Ref{to}
	}
	candidates, last := 0, ""
	for id := range t.boxIDs.from("") {
		n := t.nodes.get(id)
		for i := range n.Slots {
			s := &n.Slots[i]
			if s.Device == nil || s.PartOf != nil {
				continue
			}
			if why := t.unfit(b, n, s); why != "" {
				req.Exclude = append(req.Exclude, placement.Ref{Box: id, Slot: s.Slot})
				last = fmt.Sprintf("GPU %s: %s.", gpuID(id, s.Slot), why)
				continue
			}
			candidates++
		}
	}
	if candidates == 0 {
		return placement.Ref{}, errorf(connect.CodeResourceExhausted, "no GPU in another box can take the state of %s; %s", b.gpuID(), cmp.Or(last, "the pool has no other box"))
	}
	d := t.chooseGPUs(req)
	if !d.OK() {
		return placement.Ref{}, errorf(connect.CodeResourceExhausted, "no GPU can take the place of %s now: %s", b.gpuID(), strings.Join(d.Why, " "))
	}
	return d.Picks[0], nil
}

// unfit returns why a GPU cannot take the state of that of a binding; "": it can. Whether it
// is free, and may be used, is for placement to decide.
func (t *tx) unfit(b *bindingRecord, n *nodeRecord, s *slotRecord) string {
	from := t.boxSlot(b.ref())
	switch {
	case n.ID == b.BoxID:
		return "it is in the same box, and GPUs move between boxes"
	case s.PartOf != nil:
		return "it is a slot for parts of a GPU"
	case from == nil || from.Device == nil || s.Device == nil:
		return "one of the slots is empty"
	case from.Device.Model != s.Device.Model || from.Device.MemoryBytes != s.Device.MemoryBytes ||
		from.Device.VendorID != s.Device.VendorID || from.Device.DeviceID != s.Device.DeviceID:
		return fmt.Sprintf("it is a %s with %d MiB, not a %s with %d MiB", s.Device.Model, s.Device.MemoryBytes>>20, from.Device.Model, from.Device.MemoryBytes>>20)
	}
	return t.slotImmovable(placement.Ref{Box: n.ID, Slot: s.Slot})
}
