package cohdi

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// update is the body of a change of a machine.
type update struct {
	Tenants struct {
		Tenant   string `json:"tenant_uuid"`
		Machines []struct {
			UUID      string `json:"mach_uuid"`
			Resources []struct {
				Specs []change `json:"res_specs"`
			} `json:"resources"`
		} `json:"machines"`
	} `json:"tenants"`
}

// change is one kind of resource to add or to remove.
type change struct {
	Type   string        `json:"res_type"`
	UUID   string        `json:"res_uuid"` // to remove
	Spec   specification `json:"res_spec"` // to add
	Number int           `json:"res_num"`
}

// maxChange bounds the GPUs of a call: a host has at most 32 slots.
const maxChange = 32

// changes returns the changes in the body, whose tenant and machine must be those of
// the URL.
func (c *call) changes() ([]change, error) {
	var u update
	if err := json.NewDecoder(c.request.Body).Decode(&u); err != nil {
		return nil, invalid("the body: %v", err)
	}
	if u.Tenants.Tenant != c.tenant {
		return nil, invalid("tenant_uuid is %q in the body and %q in the URL", u.Tenants.Tenant, c.tenant)
	}
	var out []change
	n := 0
	for _, m := range u.Tenants.Machines {
		if m.UUID != c.machine {
			return nil, invalid("mach_uuid is %q in the body and %q in the URL", m.UUID, c.machine)
		}
		for _, r := range m.Resources {
			for _, s := range r.Specs {
				if s.Type != gpuType {
					return nil, invalid("res_type is %q; the pool has %s only", s.Type, gpuType)
				}
				if s.Number < 1 || s.Number > maxChange {
					return nil, invalid("res_num is %d; want 1 to %d", s.Number, maxChange)
				}
				out = append(out, s)
				n += s.Number
			}
		}
	}
	if n < 1 || n > maxChange {
		return nil, invalid("%d resources to change; want 1 to %d", n, maxChange)
	}
	return out, nil
}

// add leases GPUs and returns when the host has them. When one of them fails, all are given
// back, because the caller learns nothing of the others.
func (s *server) add(ctx context.Context, c *call) (_ any, err error) {
	list, err := c.changes()
	if err != nil {
		return nil, err
	}
	host, err := c.api.GetHost(ctx, connect.NewRequest(&dxpuv1.GetHostRequest{HostId: c.machine}))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.Wait)
	defer cancel()
	var made []*dxpuv1.Lease
	defer func() {
		if err != nil {
			err = errors.Join(err, c.giveBack(ctx, made))
		}
	}()
	for _, change := range list {
		model, err := modelOf(change.Spec.Condition)
		if err != nil {
			return nil, err
		}
		for range change.Number {
			l, err := c.create(ctx, model)
			if err != nil {
				return nil, err
			}
			made = append(made, l)
		}
	}
	answer := c.describe(host.Msg.Host, nil)
	for _, l := range made {
		active, err := c.await(ctx, l.Id, dxpuv1.LeaseState_LEASE_STATE_ACTIVE)
		if err != nil {
			return nil, err
		}
		for _, b := range active.Bindings {
			if ended(b) { // of a GPU that was replaced during the attach
				continue
			}
			g, err := c.api.GetGPU(ctx, connect.NewRequest(&dxpuv1.GetGPURequest{GpuId: b.GpuId}))
			if err != nil {
				return nil, err
			}
			answer.Resources = append(answer.Resources, resourceOf(g.Msg.Gpu))
		}
	}
	return data{machines{[]machine{answer}}}, nil
}

// createTimeout bounds the creation of a lease.
const createTimeout = 20 * time.Second

// create leases one GPU, so that each can be removed alone. It does not queue: the
// operator tries again. It ends also when the caller has gone: a lease whose ID is lost would stay.
func (c *call) create(ctx context.Context, model string) (*dxpuv1.Lease, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), createTimeout)
	defer cancel()
	res, err := c.api.CreateLease(ctx, connect.NewRequest(&dxpuv1.CreateLeaseRequest{
		RequestId: "cohdi-" + rand.Text(),
		Spec:      &dxpuv1.LeaseSpec{Count: 1, Model: model, HostId: c.machine, Tenant: c.tenant, Labels: map[string]string{Label: c.machine}},
	}))
	if err != nil {
		return nil, err
	}
	return res.Msg.Lease, nil
}

// giveBackTimeout bounds the release of leases after a failure. The manager goes on with it.
const giveBackTimeout = 20 * time.Second

// giveBack ends leases, also when the caller has gone, and returns when their GPUs are free.
func (c *call) giveBack(ctx context.Context, list []*dxpuv1.Lease) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackTimeout)
	defer cancel()
	return c.release(ctx, list)
}

// release ends leases and returns when their GPUs are free.
func (c *call) release(ctx context.Context, list []*dxpuv1.Lease) error {
	var errs []error
	for _, l := range list {
		if _, err := c.api.DeleteLease(ctx, connect.NewRequest(&dxpuv1.DeleteLeaseRequest{LeaseId: l.Id})); err != nil {
			errs = append(errs, err)
		}
	}
	for _, l := range list {
		if _, err := c.await(ctx, l.Id, dxpuv1.LeaseState_LEASE_STATE_RELEASED); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// await returns a lease once it is in a state.
func (c *call) await(ctx context.Context, id string, want dxpuv1.LeaseState) (*dxpuv1.Lease, error) {
	watch, stop := context.WithCancel(ctx)
	defer stop()
	// The watch is open before the lease is read, so no change is missed.
	stream, err := c.api.WatchLeases(watch, connect.NewRequest(&dxpuv1.WatchLeasesRequest{LeaseId: id}))
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	for {
		res, err := c.api.GetLease(ctx, connect.NewRequest(&dxpuv1.GetLeaseRequest{LeaseId: id}))
		if err != nil {
			return nil, err
		}
		l := res.Msg.Lease
		switch l.State {
		case want:
			return l, nil
		case dxpuv1.LeaseState_LEASE_STATE_RELEASED, dxpuv1.LeaseState_LEASE_STATE_FAILED:
			return nil, connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("lease %s has ended: %s", id, l.StateReason))
		}
		if !stream.Receive() {
			if ctx.Err() != nil {
				return nil, connect.NewError(connect.CodeDeadlineExceeded, fmt.Errorf("lease %s: %s", id, l.StateReason))
			}
			if err := stream.Err(); err != nil {
				return nil, err
			}
			// A manager that is no longer the leader ends its watches without an error.
			return nil, connect.NewError(connect.CodeUnavailable, fmt.Errorf("lease %s: the manager has ended its watch; ask the leader", id))
		}
	}
}

// ended reports whether a binding has no GPU any more: a lease lists those of its earlier GPUs, too.
func ended(b *dxpuv1.Binding) bool {
	switch b.State {
	case dxpuv1.BindingState_BINDING_STATE_LOST, dxpuv1.BindingState_BINDING_STATE_FAILED, dxpuv1.BindingState_BINDING_STATE_RELEASED:
		return true
	default:
		return false
	}
}

// byGPU returns the leases by the GPUs that they have. A lost GPU is that of the last lease that had it,
// while that lease waits for another one: its operator does not know that it was lost. A lease that has
// another GPU now is not meant: the removal of a GPU that is asked for twice would end it.
func byGPU(owned map[string]*dxpuv1.Lease) map[string]*dxpuv1.Lease {
	out, last := map[string]*dxpuv1.Lease{}, map[string]*dxpuv1.Binding{}
	for _, l := range owned {
		waits := !slices.ContainsFunc(l.Bindings, func(b *dxpuv1.Binding) bool { return !ended(b) })
		for _, b := range l.Bindings {
			// Epochs increase with every binding of the pool, and a GPU has one that has not ended.
			if before := last[b.GpuId]; (waits || !ended(b)) && (before == nil || b.Epoch > before.Epoch) {
				out[b.GpuId], last[b.GpuId] = l, b
			}
		}
	}
	return out
}

// remove releases GPUs that were added, and returns when the host has released them.
func (s *server) remove(ctx context.Context, c *call) (any, error) {
	list, err := c.changes()
	if err != nil {
		return nil, err
	}
	owned, err := c.leases(ctx)
	if err != nil {
		return nil, err
	}
	byGPU := byGPU(owned)
	var ending []*dxpuv1.Lease
	for _, change := range list {
		l := byGPU[change.UUID]
		if l == nil || change.Number != 1 {
			return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("machine %s has no resource %q that tenant %s has added", c.machine, change.UUID, c.tenant))
		}
		ending = append(ending, l)
	}
	ctx, cancel := context.WithTimeout(ctx, s.Wait)
	defer cancel()
	return nil, c.release(ctx, ending)
}
