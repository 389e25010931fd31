package manager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/plural"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// ResizeLease implements dxpuv1connect.PoolServiceHandler. It returns a lease
// that already has the count regardless of the version, so that a call whose
// answer was lost can be repeated.
func (s *poolService) ResizeLease(ctx context.Context, req *connect.Request[dxpuv1.ResizeLeaseRequest]) (*connect.Response[dxpuv1.ResizeLeaseResponse], error) {
	return updateResponse(ctx, s.m, func(t *tx, res *dxpuv1.ResizeLeaseResponse) error { return t.resizeLease(req.Msg, res) })
}

// resizeLease carries out a request to resize a lease.
func (t *tx) resizeLease(r *dxpuv1.ResizeLeaseRequest, res *dxpuv1.ResizeLeaseResponse) error {
	if err := checkResize(r); err != nil {
		return err
	}
	l, err := t.lease(r.LeaseId)
	switch {
	case err != nil:
		return err
	case l == nil:
		return notFound("lease", r.LeaseId)
	case r.Part != nil:
		err = t.resizePart(l, r)
	case l.spec.Count != r.Count || l.ended():
		err = t.resize(l, r)
	}
	if err == nil {
		res.Lease = t.leaseMessage(t.leases.get(l.ID))
	}
	return err
}

func checkResize(r *dxpuv1.ResizeLeaseRequest) error {
	switch {
	case r.Part != nil && r.Count != 0:
		return invalid("count: parts get another number or another size, one at a time; leave count or part out")
	case r.Part == nil && r.Deadline != nil:
		return invalid("deadline: only for part: whole GPUs are unplugged at once")
	case r.Part == nil && r.Count == 0:
		return invalid("count: 0 is not 1 to %d; delete the lease to give all of its GPUs back", maxGPUs)
	case r.Part == nil && r.Count > maxGPUs:
		return invalid("count: %d is not 1 to %d", r.Count, maxGPUs)
	}
	return checkDuration("deadline", r.Deadline)
}

func (t *tx) resize(l *leaseRecord, r *dxpuv1.ResizeLeaseRequest) error {
	switch {
	case r.ResourceVersion != 0 && r.ResourceVersion != l.ResourceVersion:
		return conflict("lease", l.ID, l.ResourceVersion, r.ResourceVersion)
	case l.State != leaseActive:
		return errorf(connect.CodeFailedPrecondition, "lease_id: %s is %s; only a lease that is active can be resized", l.ID, leaseWord(l.State))
	case r.Count > l.spec.Count:
		return t.grow(l, r.Count)
	}
	t.shrink(l, r.Count)
	return nil
}

// grow gives an active lease more GPUs on its host, under the lease's
// constraints. The lease stays active while they are being attached.
func (t *tx) grow(l *leaseRecord, count uint32) error {
	more := count - l.spec.Count
	if n := t.gpusOfGang(l) + more; l.spec.Gang != nil && n > maxGangGPUs {
		return invalid("count: gang %s would have %d GPUs, at most %d", l.spec.Gang.Name, n, maxGangGPUs)
	}
	grown := proto.CloneOf(l.spec)
	grown.Count = count
	if err := cmp.Or(checkPart(grown), t.admitParts(grown)); err != nil {
		return err
	}
	q, size := t.quota(l.spec.Tenant), sizeOf(grown)-sizeOf(l.spec)
	if err := cmp.Or(q.allows(l.spec.Tenant, "count", l.size()+size, l.Model), t.guarantees(l.spec, "count", l.size()+size)); err != nil {
		return err
	}
	if why := cmp.Or(t.overQuota(l.spec.Tenant, size, l.Model), t.overGuarantee(l.spec, size)); why != "" {
		return connect.NewError(connect.CodeResourceExhausted, errors.New("count: "+strings.TrimSuffix(why, ".")))
	}
	req := t.replacement(l, nil)
	req.Count, req.UseSpares = int(more), false
	host := placement.HostRequest{Count: int(more), Host: l.HostID, Domain: t.domainOf(l), Tolerations: req.Tolerations}
	promised, slots := t.promised(l.ID, grown, t.now, t.until(l))
	req.Exclude, host.Exclude = append(req.Exclude, promised...), slots
	if r := t.reservedFrom(l.ID, l.spec, size); r != nil {
		req.Exclude, host.Exclude = append(req.Exclude, r.gpus...), append(host.Exclude, r.slots...)
	}
	d, h := t.chooseMore(l, req), t.chooseHost(host)
	if !d.OK() || !h.OK() {
		why := strings.Join(append(h.Why, d.Why...), " ")
		return errorf(connect.CodeResourceExhausted, "count: lease %s cannot grow by %s now: %s", l.ID, plural.Count(more, "GPU", "GPUs"), strings.TrimSuffix(why, "."))
	}
	l = t.setCount(l.ID, count, "")
	l.explain(fmt.Sprintf("It grew by %s.", plural.Count(more, "GPU", "GPUs")))
	l.explain(d.Why...)
	for i, pick := range d.Picks {
		t.bind(l, h.Host, h.Slots[i], pick, nil).Grown = true
	}
	t.setSize(l.ID)
	t.tookMore(l.spec.Tenant)
	return nil
}

// chooseMore chooses more GPUs for a lease, within the quota and the guarantee of its tenant.
func (t *tx) chooseMore(l *leaseRecord, req placement.Request) placement.Decision {
	d := t.chooseGPUs(req)
	more := proto.CloneOf(l.spec)
	more.Count = uint32(req.Count)
	over := t.overQuotaAt(more, &d, anySize)
	if over == "" || l.spec.Part == nil {
		return d
	}
	if size := t.mayStillHave(more, l.Model); size > 0 {
		req.MaxSize = uint64(size)
		if smaller := t.chooseGPUs(req); smaller.OK() {
			return smaller
		}
	}
	return placement.Decision{Why: append(d.Why, over)}
}

// domainOf returns the domain of the host in which a lease has its GPUs.
func (t *tx) domainOf(l *leaseRecord) string {
	for _, id := range t.bindingsOf(l.ID) {
		b := t.bindings.get(id)
		if n := t.nodes.get(b.HostID); b.serving() && n != nil && n.slot(b.HostSlot) != nil {
			return n.slot(b.HostSlot).Domain
		}
	}
	return l.spec.HostDomain
}

// shrink takes GPUs from a lease. It chooses them so that the remaining ones
// are as close together as possible.
func (t *tx) shrink(l *leaseRecord, count uint32) {
	var held []placement.LeasedGPU
	ids := map[placement.Ref]string{}
	for _, id := range t.bindingsOf(l.ID) {
		b := t.bindings.get(id)
		if !b.serving() {
			continue
		}
		h := placement.LeasedGPU{Ref: b.ref(), Attached: b.State == attached, Order: b.Epoch}
		if n, s := t.nodes.get(b.BoxID), t.boxSlot(b.ref()); s != nil && s.Device != nil {
			h.Domain, h.Sound = s.Device.NVLinkDomain, t.takesBindings(n) && s.takesBindings()
		}
		ids[h.Ref] = id
		held = append(held, h)
	}
	spread := l.spec.SameBox == dxpuv1.Preference_PREFERENCE_AVOID
	gone := placement.Shrink(held, int(l.spec.Count-count), spread)
	t.setCount(l.ID, count, "")
	for _, ref := range gone {
		t.release(ids[ref], dxpuv1.Reason_REASON_LEASE_RESIZED, true)
		t.bindings.edit(ids[ref]).Dropped = true
	}
	t.setSize(l.ID)
}

// setSpec gives a lease a spec that differs from its own only in numbers.
func (l *leaseRecord) setSpec(spec *dxpuv1.LeaseSpec) {
	raw, err := protojson.Marshal(spec)
	if err != nil {
		// The same strings were encoded when the lease was created: they are valid UTF-8.
		panic("manager: a spec that was stored cannot be encoded: " + err.Error())
	}
	l.spec, l.Spec = spec, raw
}

// setCount changes the number of GPUs of a lease. It replaces the spec, because
// others may be reading the old one.
func (t *tx) setCount(id string, count uint32, why string) *leaseRecord {
	l := t.editLease(id)
	was := l.spec.Count
	if l.Asked == 0 {
		l.Asked = was
	}
	spec := proto.CloneOf(l.spec)
	spec.Count = count
	l.setSpec(spec)
	e := leaseEvent(l, dxpuv1.EventType_EVENT_TYPE_LEASE_RESIZED)
	e.Reason = dxpuv1.Reason_REASON_LEASE_RESIZED
	t.event(e, "lease %s was resized from %d to %s%s", id, was, plural.Count(count, "GPU", "GPUs"), why)
	return l
}

// advanceGrown replaces GPUs that were added to a lease and could not be
// attached, or reduces the lease's count again.
func (t *tx) advanceGrown(broken []string) {
	for _, id := range broken {
		b := t.bindings.get(id)
		if b.Tries+1 < maxAttempts && b.Reason != dxpuv1.Reason_REASON_HOST_FAILED && t.replace([]string{id}) {
			continue
		}
		t.bindings.edit(id).Dropped = true
		l := t.leases.get(b.LeaseID)
		t.setCount(l.ID, l.spec.Count-1, ": "+b.attachFailure())
		t.setSize(l.ID)
	}
}
