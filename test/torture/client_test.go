package torture

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"connectrpc.com/connect"
	"github.com/anishathalye/porcupine"
	"google.golang.org/protobuf/types/known/durationpb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
)

// client makes calls until storm ends. Each must be answered before deadline.
func (h *history) client(storm, deadline context.Context, id int, r *rand.Rand) error {
	for n := 0; storm.Err() == nil; n++ {
		var err error
		first := r.IntN(len(h.managers))
		switch k := r.IntN(100); {
		case k < 36:
			spec := &dxpuv1.LeaseSpec{Count: uint32(1 + r.IntN(2))}
			if r.IntN(4) == 0 { // a reservation
				spec.StartAfter = durationpb.New(time.Duration(1+r.IntN(3000)) * time.Millisecond)
				spec.ExpiresAfter = durationpb.New(time.Duration(1+r.IntN(5000)) * time.Millisecond)
			}
			err = h.create(deadline, id, first, fmt.Sprintf("%s-%d-%d", h.tenant, id, n), spec)
		case k < 54:
			err = h.migrate(deadline, id, first, fmt.Sprintf("%s-%d-%d", h.tenant, id, n), r)
		case k < 78:
			err = h.delete(deadline, id, first, r)
		case k < 89:
			err = h.get(deadline, id, first, r)
		default:
			_, err = h.listAll(deadline, id, first)
		}
		if err != nil {
			return fmt.Errorf("client %d: %w", id, err)
		}
		wait(storm, time.Duration(r.IntN(80))*time.Millisecond)
	}
	return nil
}

// record adds an operation that began at call to the history and returns its index.
func (h *history) record(client int, call time.Time, in opInput, out opOutput) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, porcupine.Operation{
		ClientId: client, Input: in, Output: out,
		Call: call.Sub(h.start).Nanoseconds(), Return: time.Since(h.start).Nanoseconds(),
	})
	return len(h.ops) - 1
}

func (h *history) create(ctx context.Context, client, first int, request string, spec *dxpuv1.LeaseSpec) error {
	call := time.Now()
	spec.Tenant = h.tenant
	req := &dxpuv1.CreateLeaseRequest{RequestId: request, Spec: spec}
	res, ambiguous, err := ask(ctx, h.pool, client, first, func(ctx context.Context, api dxpuv1connect.PoolServiceClient) (*connect.Response[dxpuv1.CreateLeaseResponse], error) {
		return api.CreateLease(ctx, connect.NewRequest(req))
	})
	switch {
	case err == nil:
		h.record(client, call, opInput{kind: "create"}, opOutput{lease: res.Msg.Lease.Id})
		h.mu.Lock()
		h.known = append(h.known, res.Msg.Lease.Id)
		h.mu.Unlock()
	case connect.CodeOf(err) == connect.CodeResourceExhausted:
		i := h.record(client, call, opInput{kind: "create"}, opOutput{full: true})
		if ambiguous {
			h.mu.Lock()
			h.maybe[request] = i
			h.mu.Unlock()
		}
	default:
		return fmt.Errorf("create: %w", err)
	}
	return nil
}

// anyLease returns one of the latest six leases; empty: none yet.
func (h *history) anyLease(r *rand.Rand) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.known) == 0 {
		return ""
	}
	return h.known[max(0, len(h.known)-1-r.IntN(6))]
}

func (h *history) delete(ctx context.Context, client, first int, r *rand.Rand) error {
	lease := h.anyLease(r)
	if lease == "" {
		return nil
	}
	call := time.Now()
	_, _, err := ask(ctx, h.pool, client, first, func(ctx context.Context, api dxpuv1connect.PoolServiceClient) (*connect.Response[dxpuv1.DeleteLeaseResponse], error) {
		return api.DeleteLease(ctx, connect.NewRequest(&dxpuv1.DeleteLeaseRequest{LeaseId: lease}))
	})
	if err != nil {
		return fmt.Errorf("delete %s: %w", lease, err)
	}
	h.record(client, call, opInput{kind: "delete", lease: lease}, opOutput{})
	return nil
}

func (h *history) get(ctx context.Context, client, first int, r *rand.Rand) error {
	lease := h.anyLease(r)
	if lease == "" {
		return nil
	}
	call := time.Now()
	res, _, err := ask(ctx, h.pool, client, first, func(ctx context.Context, api dxpuv1connect.PoolServiceClient) (*connect.Response[dxpuv1.GetLeaseResponse], error) {
		return api.GetLease(ctx, connect.NewRequest(&dxpuv1.GetLeaseRequest{LeaseId: lease}))
	})
	if err != nil {
		return fmt.Errorf("get %s: %w", lease, err)
	}
	h.record(client, call, opInput{kind: "get", lease: lease}, opOutput{phases: map[string]phase{lease: phaseOf(res.Msg.Lease)}})
	return nil
}

// listAll lists all leases.
func (h *history) listAll(ctx context.Context, client, first int) ([]*dxpuv1.Lease, error) {
	call := time.Now()
	leases, err := h.list(ctx, client, first, h.tenant)
	if err != nil {
		return nil, fmt.Errorf("list: %w", err)
	}
	out := opOutput{phases: map[string]phase{}}
	for _, l := range leases {
		out.phases[l.Id] = phaseOf(l)
	}
	h.record(client, call, opInput{kind: "list"}, out)
	return leases, nil
}
