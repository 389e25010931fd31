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
		case k < 32:
			spec := &dxpuv1.LeaseSpec{Count: uint32(1 + r.IntN(2))}
			if r.IntN(4) == 0 { // a reservation
				spec.StartAfter = durationpb.New(time.Duration(1+r.IntN(3000)) * time.Millisecond)
				spec.ExpiresAfter = durationpb.New(time.Duration(1+r.IntN(5000)) * time.Millisecond)
			}
			err = h.create(deadline, id, first, fmt.Sprintf("%s-%d-%d", h.tenant, id, n), spec)
		case k < 46:
			err = h.migrate(deadline, id, first, fmt.Sprintf("%s-%d-%d", h.tenant, id, n), r)
		case k < 62:
			err = h.resize(deadline, id, first, r)
		case k < 80:
			err = h.delete(deadline, id, first, r)
		case k < 90:
			if l := h.anyLease(r); l != "" {
				_, err = h.get(deadline, id, first, l)
			}
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
		h.record(client, call, opInput{kind: "create", count: spec.Count}, opOutput{lease: res.Msg.Lease.Id})
		h.mu.Lock()
		h.known = append(h.known, res.Msg.Lease.Id)
		h.mu.Unlock()
	case connect.CodeOf(err) == connect.CodeResourceExhausted:
		i := h.record(client, call, opInput{kind: "create", count: spec.Count}, opOutput{full: true})
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
	res, _, err := ask(ctx, h.pool, client, first, func(ctx context.Context, api dxpuv1connect.PoolServiceClient) (*connect.Response[dxpuv1.DeleteLeaseResponse], error) {
		return api.DeleteLease(ctx, connect.NewRequest(&dxpuv1.DeleteLeaseRequest{LeaseId: lease}))
	})
	if err != nil {
		return fmt.Errorf("delete %s: %w", lease, err)
	}
	h.record(client, call, opInput{kind: "delete", lease: lease}, opOutput{leases: map[string]seen{lease: seenOf(res.Msg.Lease)}})
	return nil
}

func (h *history) get(ctx context.Context, client, first int, id string) (*dxpuv1.Lease, error) {
	call := time.Now()
	l, err := h.lease(ctx, client, first, id)
	if err != nil {
		return nil, err
	}
	h.record(client, call, opInput{kind: "get", lease: id}, opOutput{leases: map[string]seen{id: seenOf(l)}})
	return l, nil
}

// listAll lists all leases.
func (h *history) listAll(ctx context.Context, client, first int) ([]*dxpuv1.Lease, error) {
	call := time.Now()
	leases, err := h.list(ctx, client, first, h.tenant)
	if err != nil {
		return nil, fmt.Errorf("list: %w", err)
	}
	h.record(client, call, opInput{kind: "list"}, listed(leases))
	return leases, nil
}

// listed returns the answer that has all leases.
func listed(leases []*dxpuv1.Lease) opOutput {
	out := opOutput{leases: map[string]seen{}}
	for _, l := range leases {
		out.leases[l.Id] = seenOf(l)
	}
	return out
}
