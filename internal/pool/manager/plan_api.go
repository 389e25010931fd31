package manager

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// PlanMaintenance implements dxpuv1connect.PoolServiceHandler.
func (s *poolService) PlanMaintenance(ctx context.Context, req *connect.Request[dxpuv1.PlanMaintenanceRequest]) (*connect.Response[dxpuv1.PlanMaintenanceResponse], error) {
	r := req.Msg
	if err := checkDuration("maintenance.drain_before", r.GetMaintenance().GetDrainBefore()); err != nil {
		return nil, err
	}
	if err := cmp.Or(checkTime("maintenance.start_time", r.GetMaintenance().GetStartTime()), checkTime("maintenance.end_time", r.GetMaintenance().GetEndTime())); err != nil {
		return nil, err
	}
	return updateResponse(ctx, s.m, func(t *tx, res *dxpuv1.PlanMaintenanceResponse) error {
		p, err := t.plan(r)
		if err == nil {
			res.Maintenance = t.planMessage(t.plans.get(p.ID))
		}
		return err
	})
}

// checkTime returns an error for a time that is set and no time.
func checkTime(field string, at *timestamppb.Timestamp) error {
	if at == nil {
		return nil
	}
	if err := at.CheckValid(); err != nil {
		return invalid("%s: %v", field, err)
	}
	return nil
}

// plan makes the plan of a request, or returns the one that an earlier attempt made.
func (t *tx) plan(r *dxpuv1.PlanMaintenanceRequest) (*planRecord, error) {
	p, err := t.planFrom(r.Maintenance)
	if err != nil {
		return nil, err
	}
	for _, old := range t.plans.rows {
		if r.RequestId == "" || old.RequestID != r.RequestId {
			continue
		}
		// A repeated command counts its times from its own present.
		if old.what() != p.what() || !old.End.Equal(p.End) && old.End.Sub(old.Start) != p.End.Sub(p.Start) {
			return nil, errorf(connect.CodeAlreadyExists, "request_id: %q was used for other maintenance, %s; use a new one", r.RequestId, old.ID)
		}
		return old, nil
	}
	switch {
	case !t.alike:
		return nil, errorf(connect.CodeFailedPrecondition, "managers of several versions run, and the older ones do not know maintenance; upgrade them first")
	case t.plans.len() >= maxPlans:
		return nil, errorf(connect.CodeResourceExhausted, "the pool has %d plans of maintenance, which is its limit; end one, or plan for a rack", maxPlans)
	}
	p.ID, p.RequestID = t.planID(), r.RequestId
	if t.call != nil {
		p.Creator = t.call.caller.Actor
	}
	t.plans.put(p.ID, p)
	t.replanNodes(p)
	t.reindex()
	if n := t.gpuPool.Restrictions() + t.hostPool.Restrictions(); n > maxTaintSets {
		return nil, errorf(connect.CodeResourceExhausted,
			"the pool would have %d different sets of taints and plans, its limit is %d; plan for fewer nodes with taints of their own", n, maxTaintSets)
	}
	t.planEvent(p, dxpuv1.EventType_EVENT_TYPE_MAINTENANCE_PLANNED, "is planned from "+rfc3339(p.Start)+" to "+rfc3339(p.End))
	t.mark(subject{planSubject, p.ID})
	return p, nil
}

// planID returns the ID of the next plan: "m-1", as for leases.
func (t *tx) planID() string {
	t.meta.Plans++
	return t.numbered("m-", t.meta.Plans)
}

// comparePlanIDs orders plans by their numbers.
func comparePlanIDs(a, b string) int {
	return compareLeaseIDs("l"+strings.TrimPrefix(a, "m"), "l"+strings.TrimPrefix(b, "m"))
}

// ListMaintenance implements dxpuv1connect.PoolServiceHandler.
func (s *poolService) ListMaintenance(ctx context.Context, req *connect.Request[dxpuv1.ListMaintenanceRequest]) (*connect.Response[dxpuv1.ListMaintenanceResponse], error) {
	return viewResponse(ctx, s.m, func(t *tx, res *dxpuv1.ListMaintenanceResponse) (err error) {
		all := make([]*planRecord, 0, t.plans.len())
		for _, p := range t.plans.rows {
			all = append(all, p)
		}
		slices.SortFunc(all, func(a, b *planRecord) int { return comparePlanIDs(a.ID, b.ID) })
		res.Revision = t.meta.Revision
		res.Maintenance, res.NextPageToken, err = listPage(req.Msg, func(p *planRecord) string { return p.ID }, comparePlanIDs, allOf(all), t.planMessage)
		return err
	})
}

// EndMaintenance implements dxpuv1connect.PoolServiceHandler.
func (s *poolService) EndMaintenance(ctx context.Context, req *connect.Request[dxpuv1.EndMaintenanceRequest]) (*connect.Response[dxpuv1.EndMaintenanceResponse], error) {
	id := req.Msg.MaintenanceId
	return updateResponse(ctx, s.m, func(t *tx, _ *dxpuv1.EndMaintenanceResponse) error {
		p := t.plans.get(id)
		switch {
		case p != nil && p.closed():
			t.endPlan(id, "was ended by an operator")
		case p != nil:
			t.endPlan(id, "was cancelled")
		case !t.wasPlanned(id):
			return notFound("maintenance", id)
		}
		return nil // one that is over already
	})
}

// wasPlanned reports whether this pool has had a plan with an ID.
func (t *tx) wasPlanned(id string) bool {
	digits, _ := leaseNumber("l-" + strings.TrimPrefix(id, "m-"))
	n, err := strconv.ParseUint(digits, 10, 64)
	return err == nil && n > 0 && n <= t.meta.Plans && id == t.numbered("m-", n)
}

// durationMessage returns a duration, nil for 0.
func durationMessage(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}
