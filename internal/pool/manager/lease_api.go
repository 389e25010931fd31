package manager

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
	"github.com/dxpu-project/dxpu/internal/plural"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// poolService implements the API for persons and orchestrators. Methods that it
// lacks answer UNIMPLEMENTED.
type poolService struct {
	dxpuv1connect.UnimplementedPoolServiceHandler
	m *Manager
}

func (s *poolService) CreateLease(ctx context.Context, req *connect.Request[dxpuv1.CreateLeaseRequest]) (*connect.Response[dxpuv1.CreateLeaseResponse], error) {
	return updateResponse(ctx, s.m, func(t *tx, res *dxpuv1.CreateLeaseResponse) error { return t.createLeaseOnce(req.Msg, res) })
}

// createLeaseOnce creates the lease of a request, or returns the one that an earlier
// attempt has created.
func (t *tx) createLeaseOnce(r *dxpuv1.CreateLeaseRequest, res *dxpuv1.CreateLeaseResponse) error {
	spec := proto.CloneOf(r.Spec)
	if err := checkSpec(spec); err != nil {
		return err
	}
	old, err := t.leaseByRequest(r.RequestId, spec.Tenant)
	if err != nil {
		return err
	}
	if old != nil {
		if !proto.Equal(old.asked(), spec) {
			return errorf(connect.CodeAlreadyExists, "request_id: %q was used for another spec by lease %s; use a new one", old.RequestID, old.ID)
		}
		res.Lease = t.leaseMessage(old)
		return nil
	}
	l, err := t.createLease(r.RequestId, spec)
	if err == nil {
		res.Lease = t.leaseMessage(t.leases.get(l.ID))
	}
	return err
}

func (t *tx) createLease(request string, spec *dxpuv1.LeaseSpec) (*leaseRecord, error) {
	t.setStart(spec)
	raw, err := protojson.Marshal(spec)
	if err != nil {
		return nil, invalid("spec: %v", err)
	}
	if spec.HostId != "" {
		if n := t.nodes.get(spec.HostId); n == nil || n.Kind != dxpuv1.NodeKind_NODE_KIND_HOST {
			return nil, notFound("spec.host_id: host", spec.HostId)
		}
	}
	if err := t.admit(spec, t.call == nil || scopeFor(t.call.caller).all); err != nil {
		return nil, err
	}
	if err := cmp.Or(t.admitToGang(spec), t.admitParts(spec)); err != nil {
		return nil, err
	}
	if spec.StartTime != nil {
		if err := t.mayPromise(spec); err != nil {
			return nil, err
		}
	}
	rev := t.revision()
	l := &leaseRecord{
		ID: t.leaseID(), RequestID: request, Spec: raw, spec: spec, State: leasePending,
		StateReason: "waiting for GPUs", CreateTime: t.now, ResourceVersion: rev, Trace: t.traceContext,
	}
	if t.call != nil {
		l.Creator = t.call.caller.Actor
	}
	t.leases.put(l.ID, l)
	if spec.Ttl != nil {
		t.renew(l.ID)
	}
	t.setTarget(l.ID)
	t.event(leaseEvent(l, dxpuv1.EventType_EVENT_TYPE_LEASE_CREATED), "tenant %s requested %s: lease %s", spec.Tenant, plural.Count(spec.Count, "GPU", "GPUs"), l.ID)
	if spec.StartTime != nil {
		if why := t.makePromise(l.ID); why != "" {
			return nil, errorf(connect.CodeResourceExhausted, "no capacity for this lease from %s to %s: %s", rfc3339(startTime(spec)), rfc3339(expireTime(spec)), why)
		}
		return t.leases.get(l.ID), nil
	}
	t.completeGang(l)
	if l = t.leases.get(l.ID); !l.lacksMembers() && t.grant(l.ID) > 0 {
		return l, nil
	}
	why := strings.Join(t.whyNotNow(l), " ")
	if !spec.Wait {
		return nil, errorf(connect.CodeResourceExhausted, "no capacity for this lease now: %s", why)
	}
	if err := t.placeInQueue(spec.Tenant); err != nil {
		return nil, err
	}
	t.setLeaseState(l.ID, leasePending, "in the queue: "+why)
	if !l.lacksMembers() {
		t.shareReason(l.ID)
		t.reserveIfFirst(t.firstOfGang(l.ID))
	}
	return l, nil
}

func (s *poolService) DeleteLease(ctx context.Context, req *connect.Request[dxpuv1.DeleteLeaseRequest]) (*connect.Response[dxpuv1.DeleteLeaseResponse], error) {
	r := req.Msg
	return updateResponse(ctx, s.m, func(t *tx, res *dxpuv1.DeleteLeaseResponse) error {
		l, err := t.lease(r.LeaseId)
		switch {
		case err != nil:
			return err
		case l == nil:
			return notFound("lease", r.LeaseId)
		case r.ResourceVersion != 0 && r.ResourceVersion != l.ResourceVersion:
			return conflict("lease", l.ID, l.ResourceVersion, r.ResourceVersion)
		case !l.ended():
			if r.LeaveGang {
				t.leaveGang(l)
			}
			gang := t.gangOf(l.ID)
			t.endLease(l.ID, dxpuv1.Reason_REASON_LEASE_DELETED, "it was deleted", !r.Force)
			if r.Force {
				t.forceOff(gang)
			}
		}
		res.Lease = t.leaseMessage(t.leases.get(l.ID))
		return nil
	})
}

func (s *poolService) ExplainLease(ctx context.Context, req *connect.Request[dxpuv1.ExplainLeaseRequest]) (*connect.Response[dxpuv1.ExplainLeaseResponse], error) {
	spec := proto.CloneOf(req.Msg.GetSpec())
	if req.Msg.GetLeaseId() == "" {
		if err := checkSpec(spec); err != nil {
			return nil, err
		}
	}
	res := &dxpuv1.ExplainLeaseResponse{}
	visible := scopeOf(ctx)
	err := s.m.viewIn(ctx, func(t *tx) error {
		defer func() { res.Explanation = visible.explanation(t, res.Explanation) }()
		if id := req.Msg.GetLeaseId(); id != "" {
			return t.explain(id, res)
		}
		if err := t.admit(spec, visible.all); err != nil {
			return err
		}
		t.setStart(spec)
		return t.explainSpec(spec, res)
	})
	if err != nil {
		return nil, apiError(err)
	}
	return connect.NewResponse(res), nil
}

// explainSpec says where a lease would be placed if it were created now.
func (t *tx) explainSpec(spec *dxpuv1.LeaseSpec, res *dxpuv1.ExplainLeaseResponse) error {
	if err := cmp.Or(t.admitToGang(spec), t.admitParts(spec)); err != nil {
		return err
	}
	l := &leaseRecord{spec: spec}
	leases := []*leaseRecord{l}
	if spec.Gang != nil {
		leases = append(t.membersOf(t.gangs[l.gang()]), l)
		if len(leases) < int(spec.Gang.Size) {
			res.Explanation = []string{fmt.Sprintf("Gang %s would have %d of its %d leases, and wait for the others.", spec.Gang.Name, len(leases), spec.Gang.Size)}
			return nil
		}
	}
	var a placement.Assignment
	if spec.StartTime != nil {
		if err := t.mayPromise(spec); err != nil {
			return err
		}
		a = t.decideLater(l)
	} else if q := t.quotaReached(leases); q != "" {
		res.Explanation = []string{q}
		return nil
	} else if d := t.decideTogether(leases); d.OK() {
		a = d.Members[len(leases)-1]
	} else {
		a = d.Why
	}
	res.Explanation = decisionWhy(a.Decision, a.Host)
	if res.Satisfied = a.OK(); res.Satisfied {
		res.HostId = a.Host.Host
		for _, p := range a.Picks {
			res.GpuIds = append(res.GpuIds, p.String())
		}
	}
	return nil
}

func (t *tx) explain(id string, res *dxpuv1.ExplainLeaseResponse) error {
	l, err := t.lease(id)
	if err != nil {
		return err
	}
	if l == nil {
		return notFound("lease", id)
	}
	why := l.Explanation
	if l.State == leasePending {
		why = t.whyPending(l)
	}
	res.Explanation = append(slices.Clone(why), fmt.Sprintf("The lease is %s: %s.", leaseWord(l.State), strings.TrimSuffix(l.StateReason, ".")))
	res.Explanation = append(res.Explanation, t.absences(l)...)
	res.HostId = l.HostID
	for _, bid := range t.bindingsOf(id) {
		if b := t.bindings.get(bid); b.serving() {
			res.GpuIds = append(res.GpuIds, b.gpuID())
		}
	}
	res.Satisfied = uint32(len(res.GpuIds)) == l.spec.Count
	return nil
}

// maxGPUs is the largest count of a lease: no server has more slots.
const maxGPUs = 64

var tenantPattern = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)

// checkSpec sets defaults and checks the spec. The error names the field.
func checkSpec(s *dxpuv1.LeaseSpec) error {
	switch {
	case s == nil:
		return invalid("spec: must be set")
	case s.Count < 1 || s.Count > maxGPUs:
		return invalid("spec.count: %d is not 1 to %d", s.Count, maxGPUs)
	case s.Priority < -100 || s.Priority > 100:
		return invalid("spec.priority: %d is not -100 to 100", s.Priority)
	case s.BoxKind < 0 || s.BoxKind > dxpuv1.BoxKind_BOX_KIND_NVLINK:
		return invalid("spec.box_kind: %d is unknown", s.BoxKind)
	case unknownPreference(s.Nvlink):
		return invalid("spec.nvlink: %d is unknown", s.Nvlink)
	case unknownPreference(s.SameBox):
		return invalid("spec.same_box: %d is unknown", s.SameBox)
	case s.SameBox == dxpuv1.Preference_PREFERENCE_AVOID && s.Nvlink == dxpuv1.Preference_PREFERENCE_REQUIRED:
		return invalid("spec.same_box: GPUs joined by NVLink are in one box; they cannot be spread")
	case s.BoxKind == dxpuv1.BoxKind_BOX_KIND_PCIE_SWITCH && s.Nvlink == dxpuv1.Preference_PREFERENCE_REQUIRED:
		return invalid("spec.box_kind: PCIe-switch boxes have no NVLink")
	}
	if s.Tenant == "" {
		s.Tenant = "default"
	}
	if !tenantPattern.MatchString(s.Tenant) {
		return invalid("spec.tenant: %q is not 1 to 63 of a-z, 0-9, '.', '_' and '-'", s.Tenant)
	}
	if err := cmp.Or(checkPart(s), checkGPUs(s), checkGang(s), checkTTL(s), checkTolerations(s), checkDuration("spec.expires_after", s.ExpiresAfter), checkStart(s)); err != nil {
		return err
	}
	return checkDuration("spec.wait_timeout", s.WaitTimeout)
}

// checkGPUs checks the GPUs that a spec names.
func checkGPUs(s *dxpuv1.LeaseSpec) error {
	if n := len(s.GpuIds); n > 0 && n != int(s.Count) {
		return invalid("spec.gpu_ids: %s, but the count is %d; name all of them, or none", plural.Count(n, "GPU", "GPUs"), s.Count)
	}
	seen := map[string]bool{}
	for _, id := range s.GpuIds {
		if _, ok := parseGPU(id); !ok {
			return invalid("spec.gpu_ids: %q is not the ID of a GPU, BOX/SLOT", id)
		}
		if seen[id] {
			return invalid("spec.gpu_ids: %s is named twice", id)
		}
		seen[id] = true
	}
	return nil
}

func unknownPreference(p dxpuv1.Preference) bool {
	return p < 0 || p > dxpuv1.Preference_PREFERENCE_AVOID
}

func checkDuration(field string, d *durationpb.Duration) error {
	if d == nil {
		return nil
	}
	if err := d.CheckValid(); err != nil || d.AsDuration() <= 0 || d.AsDuration() > 10*365*24*time.Hour {
		return invalid("%s: must be positive and at most ten years", field)
	}
	return nil
}
