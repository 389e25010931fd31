package torture

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
)

// moveLocked takes the next step of the live migration that is wanted for a slot. One in four
// fails when the host decides.
func (n *simNode) moveLocked(s *slotState, now time.Time) bool {
	if now.Before(s.due) || s.want == nil || s.has == nil || !isBinding(s.want, s.has) {
		return false
	}
	next := s.want.Successor
	if next == nil {
		next = s.want.Transfer.GetLink()
	}
	move := &dxpuv1.Migration{BindingId: next.GetBindingId(), State: dxpuv1.MigrationState_MIGRATION_STATE_COPYING}
	switch m := s.move; {
	case next == nil && m != nil && m.BindingId != s.has.BindingId:
		move = nil
	case next == nil, m.GetState() == dxpuv1.MigrationState_MIGRATION_STATE_FAILED && m.BindingId == next.BindingId:
		return false
	case m.GetBindingId() != next.BindingId:
	case s.want.Transfer != nil && !s.want.Transfer.Receive && m.State == move.State:
		move.State = dxpuv1.MigrationState_MIGRATION_STATE_READY
	case !s.want.Switch || s.state != attached:
		return false
	case n.rng.IntN(4) == 0:
		move.State, move.Detail = dxpuv1.MigrationState_MIGRATION_STATE_FAILED, "the target refuses"
	default:
		move.State = dxpuv1.MigrationState_MIGRATION_STATE_DONE
		s.has = next
	}
	s.move = move
	s.due = now.Add(time.Duration(n.rng.IntN(20)) * time.Millisecond)
	return true
}

// attachedBinding returns a binding by which a lease has a GPU; nil: none.
func attachedBinding(l *dxpuv1.Lease) *dxpuv1.Binding {
	for _, b := range l.Bindings {
		if b.State == attached {
			return b
		}
	}
	return nil
}

// migrate moves a GPU of an active lease, or ends the migration of one.
func (h *history) migrate(ctx context.Context, client, first int, request string, r *rand.Rand) error {
	leases, err := h.list(ctx, client, first, h.tenant)
	if err != nil {
		return fmt.Errorf("list: %w", err)
	}
	leases = slices.DeleteFunc(leases, func(l *dxpuv1.Lease) bool { return l.State != active || attachedBinding(l) == nil })
	if len(leases) == 0 {
		return nil
	}
	l := leases[r.IntN(len(leases))]
	if r.IntN(4) == 0 {
		_, _, err := ask(ctx, h.pool, client, first, func(ctx context.Context, api dxpuv1connect.PoolServiceClient) (*connect.Response[dxpuv1.CancelMigrationResponse], error) {
			return api.CancelMigration(ctx, connect.NewRequest(&dxpuv1.CancelMigrationRequest{LeaseId: l.Id}))
		})
		return unlessRefused("cancel the migration of "+l.Id, err)
	}
	call := time.Now()
	req := &dxpuv1.MigrateLeaseRequest{RequestId: request, LeaseId: l.Id, GpuId: attachedBinding(l).GpuId}
	if _, err := h.move(ctx, client, first, req); err != nil {
		return unlessRefused("migrate "+l.Id, err)
	}
	h.record(client, call, opInput{kind: "migrate", lease: l.Id}, opOutput{})
	return nil
}

// unlessRefused returns the error of a call unless a manager refused the call for a reason
// that faults and other calls may cause.
func unlessRefused(what string, err error) error {
	switch connect.CodeOf(err) {
	case connect.CodeFailedPrecondition, connect.CodeResourceExhausted, connect.CodeInvalidArgument:
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

func (p *pool) lease(ctx context.Context, client, first int, id string) (*dxpuv1.Lease, error) {
	res, _, err := ask(ctx, p, client, first, func(ctx context.Context, api dxpuv1connect.PoolServiceClient) (*connect.Response[dxpuv1.GetLeaseResponse], error) {
		return api.GetLease(ctx, connect.NewRequest(&dxpuv1.GetLeaseRequest{LeaseId: id}))
	})
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", id, err)
	}
	return res.Msg.Lease, nil
}

// move calls MigrateLease and returns the successor.
func (p *pool) move(ctx context.Context, client, first int, req *dxpuv1.MigrateLeaseRequest) (*dxpuv1.Binding, error) {
	res, _, err := ask(ctx, p, client, first, func(ctx context.Context, api dxpuv1connect.PoolServiceClient) (*connect.Response[dxpuv1.MigrateLeaseResponse], error) {
		return api.MigrateLease(ctx, connect.NewRequest(req))
	})
	if err != nil {
		return nil, err
	}
	return res.Msg.Binding, nil
}

// migration moves the GPU of a lease to another box; one in four attempts fails.
func (e *exam) migration() error {
	l, err := e.create(&dxpuv1.LeaseSpec{Count: 1})
	if err != nil {
		return err
	}
	if err := e.reaches(l.Id, active); err != nil {
		return err
	}
	if l, err = e.lease(e.ctx, 0, 0, l.Id); err != nil {
		return err
	}
	from := attachedBinding(l)
	for moved := false; !moved; {
		e.n++
		next, err := e.move(e.ctx, 0, 0, &dxpuv1.MigrateLeaseRequest{RequestId: fmt.Sprintf("%s-exam-%d", e.tenant, e.n), LeaseId: l.Id})
		if err != nil {
			return err
		}
		if next.BoxId == from.BoxId || next.HostSlot != from.HostSlot {
			return fmt.Errorf("GPU %s at slot %d moves to %s at slot %d", from.GpuId, from.HostSlot, next.GpuId, next.HostSlot)
		}
		if moved, err = e.moved(l.Id, next); err != nil {
			return err
		}
	}
	if err := e.end(l.Id); err != nil {
		return err
	}
	return e.settled(e.ctx, e.tenant, 0)
}

// moved waits until a migration is over, and reports whether the lease has the successor.
func (e *exam) moved(lease string, next *dxpuv1.Binding) (bool, error) {
	for {
		l, err := e.lease(e.ctx, 0, 0, lease)
		if err != nil {
			return false, err
		}
		over := l.State == active
		for _, b := range l.Bindings {
			over = over && (b.State == attached || b.State == dxpuv1.BindingState_BINDING_STATE_RELEASED)
		}
		if b := attachedBinding(l); over && b != nil {
			return b.Id == next.Id, nil
		}
		if e.ctx.Err() != nil {
			return false, fmt.Errorf("GPU %s is still %v: %v", next.GpuId, l.State, l.Bindings)
		}
		wait(e.ctx, pollEvery)
	}
}
