package torture

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
)

// exam checks what the model cannot demand under faults: once the pool is healthy and
// empty, it grants what there is and refuses only what there is not, serves its queue,
// preempts, and applies quotas. So a manager that refuses everything fails.
type exam struct {
	*history
	ctx context.Context
	n   int // requests so far
	all []string
}

// create makes a lease. The pool is calm, so the first certain answer counts.
func (e *exam) create(spec *dxpuv1.LeaseSpec) (*dxpuv1.Lease, error) {
	e.n++
	spec.Tenant = e.tenant
	req := &dxpuv1.CreateLeaseRequest{RequestId: fmt.Sprintf("%s-exam-%d", e.tenant, e.n), Spec: spec}
	res, _, err := ask(e.ctx, e.pool, 0, 0, func(ctx context.Context, api dxpuv1connect.PoolServiceClient) (*connect.Response[dxpuv1.CreateLeaseResponse], error) {
		return api.CreateLease(ctx, connect.NewRequest(req))
	})
	if err != nil {
		return nil, err
	}
	e.all = append(e.all, res.Msg.Lease.Id)
	return res.Msg.Lease, nil
}

func (e *exam) end(lease string) error {
	_, _, err := ask(e.ctx, e.pool, 0, 0, func(ctx context.Context, api dxpuv1connect.PoolServiceClient) (*connect.Response[dxpuv1.DeleteLeaseResponse], error) {
		return api.DeleteLease(ctx, connect.NewRequest(&dxpuv1.DeleteLeaseRequest{LeaseId: lease}))
	})
	if err != nil {
		return fmt.Errorf("delete %s: %w", lease, err)
	}
	return nil
}

// reaches waits until a lease has a state.
func (e *exam) reaches(lease string, want dxpuv1.LeaseState) error {
	for {
		res, _, err := ask(e.ctx, e.pool, 0, 0, func(ctx context.Context, api dxpuv1connect.PoolServiceClient) (*connect.Response[dxpuv1.GetLeaseResponse], error) {
			return api.GetLease(ctx, connect.NewRequest(&dxpuv1.GetLeaseRequest{LeaseId: lease}))
		})
		switch {
		case err != nil:
			return fmt.Errorf("lease %s does not become %v: %w", lease, want, err)
		case res.Msg.Lease.State == want:
			return nil
		case e.ctx.Err() != nil:
			return fmt.Errorf("lease %s is %v (%s), want %v", lease, res.Msg.Lease.State, res.Msg.Lease.StateReason, want)
		}
		wait(e.ctx, pollEvery)
	}
}

const (
	active   = dxpuv1.LeaseState_LEASE_STATE_ACTIVE
	pending  = dxpuv1.LeaseState_LEASE_STATE_PENDING
	released = dxpuv1.LeaseState_LEASE_STATE_RELEASED
)

// run takes the exam in an empty pool, and empties it again. A pool with fewer than two stable
// boxes or one stable host is not examined.
func (e *exam) run() error {
	if room, err := e.room(); err != nil || room < 2*gpus {
		e.unstable = err == nil
		return err
	}
	for _, part := range []struct {
		name string
		do   func() error
	}{
		{"full only when it is", e.capacity},
		{"the queue", e.queue},
		{"preemption", e.preemption},
		{"a quota", e.quota},
		{"a reservation", e.reservation},
		{"a migration", e.migration},
		{"resizing", e.resizing},
		{"events", e.events},
	} {
		if err := part.do(); err != nil {
			return fmt.Errorf("exam of %s: %w", part.name, err)
		}
	}
	return nil
}

// capacity takes each GPU of the pool, and then none.
func (e *exam) capacity() error {
	for taken, again := 0, false; ; {
		l, err := e.create(&dxpuv1.LeaseSpec{Count: 1, Preemptible: taken == 0})
		if err == nil {
			if err := e.reaches(l.Id, active); err != nil {
				return err
			}
			taken++
			continue
		}
		if err := refused(err, "no capacity for this lease now"); err != nil {
			return err
		}
		room, err := e.room()
		switch {
		case err != nil || taken >= room:
			return err
		case again: // at the first time a node may have become stable since the answer
			return fmt.Errorf("GPU %d of %d is refused", taken+1, room)
		}
		again = true
	}
}

// room returns how many GPUs new leases can have in the empty pool. A node that was lost three
// times within ten minutes is unstable, and takes no new bindings for a while.
func (e *exam) room() (int, error) {
	b, _, err := ask(e.ctx, e.pool, 0, 0, func(ctx context.Context, api dxpuv1connect.PoolServiceClient) (*connect.Response[dxpuv1.ListBoxesResponse], error) {
		return api.ListBoxes(ctx, connect.NewRequest(&dxpuv1.ListBoxesRequest{}))
	})
	if err != nil {
		return 0, err
	}
	h, _, err := ask(e.ctx, e.pool, 0, 0, func(ctx context.Context, api dxpuv1connect.PoolServiceClient) (*connect.Response[dxpuv1.ListHostsResponse], error) {
		return api.ListHosts(ctx, connect.NewRequest(&dxpuv1.ListHostsRequest{}))
	})
	if err != nil {
		return 0, err
	}
	ofBoxes, ofHosts := 0, 0
	for _, box := range b.Msg.Boxes {
		if !box.Node.Unstable {
			ofBoxes += gpus
		}
	}
	for _, host := range h.Msg.Hosts {
		if !host.Node.Unstable {
			ofHosts += slots
		}
	}
	return min(ofBoxes, ofHosts), nil
}

// refused returns an error unless a call was refused with a text.
func refused(err error, with string) error {
	if connect.CodeOf(err) != connect.CodeResourceExhausted || !strings.Contains(err.Error(), with) {
		return fmt.Errorf("the answer is %w, want a refusal with %q", errors.Join(err), with)
	}
	return nil
}

// queue lets two leases wait: the one of higher priority gets the GPU that comes back.
func (e *exam) queue() error {
	low, err := e.create(&dxpuv1.LeaseSpec{Count: 1, Priority: -2, Wait: true})
	if err != nil {
		return err
	}
	high, err := e.create(&dxpuv1.LeaseSpec{Count: 1, Priority: -1, Wait: true})
	if err != nil {
		return err
	}
	if low.State != pending || high.State != pending || high.QueuePosition != 1 {
		return fmt.Errorf("leases of priority -2 and -1 in a full pool: %v and %v, at %d", low.State, high.State, high.QueuePosition)
	}
	if err := e.end(e.all[1]); err != nil {
		return err
	}
	if err := e.reaches(high.Id, active); err != nil {
		return err
	}
	if err := e.reaches(low.Id, pending); err != nil {
		return err
	}
	return e.end(low.Id)
}

// preemption takes the GPU of the preemptible lease.
func (e *exam) preemption() error {
	l, err := e.create(&dxpuv1.LeaseSpec{Count: 1, Priority: 1})
	if err != nil {
		return err
	}
	if err := e.reaches(l.Id, active); err != nil {
		return err
	}
	return e.reaches(e.all[0], released)
}

// quota sets a quota that the tenant uses up, and empties the pool.
func (e *exam) quota() error {
	if _, _, err := ask(e.ctx, e.pool, 0, 0, func(ctx context.Context, api dxpuv1connect.PoolServiceClient) (*connect.Response[dxpuv1.PutTenantResponse], error) {
		return api.PutTenant(ctx, connect.NewRequest(&dxpuv1.PutTenantRequest{Tenant: &dxpuv1.Tenant{Id: e.tenant, Quota: &dxpuv1.Quota{MaxGpus: 1}}}))
	}); err != nil {
		return err
	}
	for _, l := range e.all {
		if err := e.end(l); err != nil {
			return err
		}
	}
	if err := e.settled(e.ctx, e.tenant, 0); err != nil {
		return err
	}
	l, err := e.create(&dxpuv1.LeaseSpec{Count: 1})
	if err != nil {
		return err
	}
	_, err = e.create(&dxpuv1.LeaseSpec{Count: 1})
	if err := refused(err, "GPUs that its quota allows"); err != nil {
		return err
	}
	if err := e.growth(l.Id); err != nil {
		return err
	}
	if err := e.end(l.Id); err != nil {
		return err
	}
	if err := e.settled(e.ctx, e.tenant, 0); err != nil {
		return err
	}
	// The tenants of other histories are not defined.
	_, _, err = ask(e.ctx, e.pool, 0, 0, func(ctx context.Context, api dxpuv1connect.PoolServiceClient) (*connect.Response[dxpuv1.DeleteTenantResponse], error) {
		return api.DeleteTenant(ctx, connect.NewRequest(&dxpuv1.DeleteTenantRequest{TenantId: e.tenant}))
	})
	if err != nil && connect.CodeOf(err) == connect.CodeNotFound { // an earlier attempt has deleted it
		return nil
	}
	return err
}

// growth tries to give a lease a second GPU, beyond the quota of its tenant.
func (e *exam) growth(lease string) error {
	if err := e.reaches(lease, active); err != nil {
		return err
	}
	_, _, err := ask(e.ctx, e.pool, 0, 0, func(ctx context.Context, api dxpuv1connect.PoolServiceClient) (*connect.Response[dxpuv1.ResizeLeaseResponse], error) {
		return api.ResizeLease(ctx, connect.NewRequest(&dxpuv1.ResizeLeaseRequest{LeaseId: lease, Count: 2}))
	})
	if connect.CodeOf(err) != connect.CodeInvalidArgument || !strings.Contains(err.Error(), "exceed the quota of 1") {
		return fmt.Errorf("growth beyond the quota: %w", errors.Join(err, errors.New("want a refusal")))
	}
	return nil
}

// events checks that the log has the life of each lease of the exam, in order.
func (e *exam) events() error {
	for _, lease := range e.all {
		res, _, err := ask(e.ctx, e.pool, 0, 0, func(ctx context.Context, api dxpuv1connect.PoolServiceClient) (*connect.Response[dxpuv1.ListEventsResponse], error) {
			return api.ListEvents(ctx, connect.NewRequest(&dxpuv1.ListEventsRequest{PageSize: 1000, Filter: &dxpuv1.EventFilter{LeaseId: lease}}))
		})
		if err != nil {
			return err
		}
		last := uint64(0)
		for i, ev := range res.Msg.Events {
			if i == 0 && ev.Type != dxpuv1.EventType_EVENT_TYPE_LEASE_CREATED || ev.Revision <= last {
				return fmt.Errorf("event %d of lease %s is %v", i, lease, ev)
			}
			last = ev.Revision
		}
		if len(res.Msg.Events) == 0 {
			return fmt.Errorf("no event of lease %s", lease)
		}
	}
	return nil
}
