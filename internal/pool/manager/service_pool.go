package manager

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// poolService is what people and orchestrators call. What it does not
// implement answers UNIMPLEMENTED.
type poolService struct {
	dxpuv1connect.UnimplementedPoolServiceHandler
	m *Manager
}

// CreateLease implements dxpuv1connect.PoolServiceHandler.
func (s *poolService) CreateLease(ctx context.Context, req *connect.Request[dxpuv1.CreateLeaseRequest]) (*connect.Response[dxpuv1.CreateLeaseResponse], error) {
	spec := proto.CloneOf(req.Msg.Spec)
	if err := checkSpec(spec); err != nil {
		return nil, err
	}
	var out *dxpuv1.Lease
	err := s.m.update(ctx, func(t *tx) error {
		if old := t.leaseByRequest(req.Msg.RequestId, spec.Tenant); old != nil {
			if !proto.Equal(old.asked(), spec) {
				return connect.NewError(connect.CodeAlreadyExists,
					fmt.Errorf("request_id: %q was used for another spec by lease %s; use a new one", old.RequestID, old.ID))
			}
			out = t.leaseMessage(old)
			return nil
		}
		l, err := t.createLease(req.Msg.RequestId, spec)
		if err != nil {
			return err
		}
		out = t.leaseMessage(t.leases.get(l.ID))
		return nil
	})
	if err != nil {
		return nil, apiError(err)
	}
	return connect.NewResponse(&dxpuv1.CreateLeaseResponse{Lease: out}), nil
}

func (t *tx) createLease(request string, spec *dxpuv1.LeaseSpec) (*leaseRecord, error) {
	raw, err := protojson.Marshal(spec)
	if err != nil {
		return nil, invalid("spec: %v", err)
	}
	if spec.HostId != "" {
		if n := t.nodes.get(spec.HostId); n == nil || n.Kind != dxpuv1.NodeKind_NODE_KIND_HOST {
			return nil, notFound("spec.host_id: host", spec.HostId)
		}
	}
	if err := t.admit(spec); err != nil {
		return nil, err
	}
	rev := t.revision()
	l := &leaseRecord{
		ID: fmt.Sprintf("l-%d", rev), RequestID: request, Spec: raw, spec: spec, State: leasePending,
		StateReason: "waiting for GPUs", CreateTime: t.now, ResourceVersion: rev, Trace: t.trace,
	}
	if t.call != nil {
		l.Creator = t.call.caller.Actor
	}
	t.leases.put(l.ID, l)
	t.setTarget(l.ID)
	t.event(leaseEvent(l, dxpuv1.EventType_EVENT_TYPE_LEASE_CREATED), "tenant %s asks for %d GPUs: lease %s", spec.Tenant, spec.Count, l.ID)
	if t.grant(l.ID) {
		return l, nil
	}
	why := strings.Join(t.whyNotNow(l), " ")
	if !spec.Wait {
		return nil, connect.NewError(connect.CodeResourceExhausted,
			fmt.Errorf("no capacity for this lease now: %s Set spec.wait to queue", why))
	}
	t.enterLease(l.ID, leasePending, "in the queue: "+why)
	return l, nil
}

// DeleteLease implements dxpuv1connect.PoolServiceHandler.
func (s *poolService) DeleteLease(ctx context.Context, req *connect.Request[dxpuv1.DeleteLeaseRequest]) (*connect.Response[dxpuv1.DeleteLeaseResponse], error) {
	var out *dxpuv1.Lease
	err := s.m.update(ctx, func(t *tx) error {
		l, err := t.leaseVersion(req.Msg.LeaseId, req.Msg.ResourceVersion)
		if err != nil {
			return err
		}
		if !l.ended() {
			t.endLease(l.ID, dxpuv1.Reason_REASON_LEASE_DELETED, "it was deleted", !req.Msg.Force)
		}
		out = t.leaseMessage(t.leases.get(l.ID))
		return nil
	})
	if err != nil {
		return nil, apiError(err)
	}
	return connect.NewResponse(&dxpuv1.DeleteLeaseResponse{Lease: out}), nil
}

func (t *tx) leaseVersion(id string, version uint64) (*leaseRecord, error) {
	l := t.leases.get(id)
	switch {
	case l == nil:
		return nil, notFound("lease", id)
	case version != 0 && version != l.ResourceVersion:
		return nil, conflict("lease", id, l.ResourceVersion, version)
	}
	return l, nil
}

// ExplainLease implements dxpuv1connect.PoolServiceHandler.
func (s *poolService) ExplainLease(_ context.Context, req *connect.Request[dxpuv1.ExplainLeaseRequest]) (*connect.Response[dxpuv1.ExplainLeaseResponse], error) {
	spec := proto.CloneOf(req.Msg.GetSpec())
	if req.Msg.GetLeaseId() == "" {
		if err := checkSpec(spec); err != nil {
			return nil, err
		}
	}
	res := &dxpuv1.ExplainLeaseResponse{}
	err := s.m.view(func(t *tx) error {
		if id := req.Msg.GetLeaseId(); id != "" {
			return t.explain(id, res)
		}
		if err := t.admit(spec); err != nil {
			return err
		}
		if q := t.quotaReached(spec); q != "" {
			res.Explanation = []string{q}
			return nil
		}
		d, h := t.decideWithin(spec)
		res.Explanation = slices.Concat(h.Why, d.Why)
		if res.Satisfied = d.OK() && h.OK(); res.Satisfied {
			res.HostId = h.Host
			for _, p := range d.Picks {
				res.GpuIds = append(res.GpuIds, p.String())
			}
		}
		return nil
	})
	if err != nil {
		return nil, apiError(err)
	}
	return connect.NewResponse(res), nil
}

func (t *tx) explain(id string, res *dxpuv1.ExplainLeaseResponse) error {
	l := t.leases.get(id)
	if l == nil {
		return notFound("lease", id)
	}
	why := l.Explanation
	if l.State == leasePending {
		why = t.whyPending(l)
	}
	res.Explanation = append(slices.Clone(why), fmt.Sprintf("The lease is %s: %s.", leaseWord(l.State), strings.TrimSuffix(l.StateReason, ".")))
	res.HostId = l.HostID
	for _, bid := range t.bindingsOf(id) {
		if b := t.bindings.get(bid); b.good() {
			res.GpuIds = append(res.GpuIds, b.gpuID())
		}
	}
	res.Satisfied = uint32(len(res.GpuIds)) == l.spec.Count
	return nil
}

// ReplaceGPU implements dxpuv1connect.PoolServiceHandler.
func (s *poolService) ReplaceGPU(ctx context.Context, req *connect.Request[dxpuv1.ReplaceGPURequest]) (*connect.Response[dxpuv1.ReplaceGPUResponse], error) {
	res := &dxpuv1.ReplaceGPUResponse{}
	err := s.m.update(ctx, func(t *tx) error {
		b, err := t.leasedGPU(req.Msg.GpuId)
		if err != nil {
			return err
		}
		if req.Msg.Cordon {
			t.setCordon(&dxpuv1.Target{Target: &dxpuv1.Target_GpuId{GpuId: req.Msg.GpuId}}, &cordon{Reason: "replaced by an operator"})
		}
		t.release(b.ID, dxpuv1.Reason_REASON_REPLACED, true)
		t.replace([]string{b.ID})
		next := t.bindings.get(t.bindings.get(b.ID).Successor)
		if next == nil {
			return connect.NewError(connect.CodeResourceExhausted,
				fmt.Errorf("gpu_id: no other GPU fits lease %s; nothing was changed", b.LeaseID))
		}
		res.Binding = bindingMessage(next)
		res.Lease = t.leaseMessage(t.leases.get(b.LeaseID))
		return nil
	})
	if err != nil {
		return nil, apiError(err)
	}
	return connect.NewResponse(res), nil
}

// leasedGPU returns the binding by which a lease has a GPU.
func (t *tx) leasedGPU(id string) (*bindingRecord, error) {
	n, s, ok := t.gpu(id)
	if !ok {
		return nil, notFound("gpu", id)
	}
	if b := t.holderOf(placement.Ref{Box: n.ID, Slot: s.Slot}); b != nil && b.good() {
		return b, nil
	}
	return nil, connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("gpu_id: %s is not leased; only leased GPUs can be replaced or plugged in again", id))
}

// gpu finds a GPU by its ID.
func (t *tx) gpu(id string) (*nodeRecord, *slotRecord, bool) {
	box, number, _ := strings.Cut(id, "/")
	slot, err := strconv.ParseUint(number, 10, 32)
	n := t.nodes.get(box)
	if err != nil || n == nil || n.Kind != dxpuv1.NodeKind_NODE_KIND_BOX || gpuID(box, uint32(slot)) != id {
		return nil, nil, false
	}
	s := n.slot(uint32(slot))
	return n, s, s != nil && s.Device != nil
}

func errForgotten() error {
	return connect.NewError(connect.CodeOutOfRange, errors.New("after_revision: these events are forgotten; list again"))
}

// WatchEvents implements dxpuv1connect.PoolServiceHandler.
func (s *poolService) WatchEvents(ctx context.Context, req *connect.Request[dxpuv1.WatchEventsRequest], stream *connect.ServerStream[dxpuv1.WatchEventsResponse]) error {
	at, visible, over := req.Msg.AfterRevision, scopeOf(ctx), s.m.over()
	switch {
	case req.Msg.FromStart:
		at = s.m.events.start()
	case at == 0:
		_, at, _, _ = s.m.events.after(0)
	}
	if _, _, _, ok := s.m.events.after(at); !ok {
		return errForgotten()
	}
	// The first message says that the watch stands, and from where on.
	if err := stream.Send(&dxpuv1.WatchEventsResponse{Revision: at}); err != nil {
		return err
	}
	alive := time.NewTicker(10 * time.Second)
	defer alive.Stop()
	for {
		events, newest, more, ok := s.m.events.after(at)
		if !ok {
			return errForgotten()
		}
		for _, e := range events {
			if e = visible.event(e); e != nil && matches(e, req.Msg.Filter) {
				if err := stream.Send(&dxpuv1.WatchEventsResponse{Event: e, Revision: e.Revision}); err != nil {
					return err
				}
			}
		}
		at = max(at, newest)
		select {
		case <-ctx.Done():
			return nil
		case <-over:
			return nil
		case <-more:
		case <-alive.C:
			if err := stream.Send(&dxpuv1.WatchEventsResponse{Revision: at}); err != nil {
				return err
			}
		}
	}
}
