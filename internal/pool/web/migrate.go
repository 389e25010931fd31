package web

import (
	"context"
	"fmt"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
)

// move is a live migration of a GPU of a lease that is under way.
type move struct {
	From, To string
	State    dxpuv1.BindingState
	Copied   *dxpuv1.MigrationProgress // nil before the copy begins
}

// Decided reports whether the host decides already, so that the GPU cannot stay any more.
func (m move) Decided() bool { return m.State == dxpuv1.BindingState_BINDING_STATE_SWITCHING }

// movesOf returns the live migrations of a lease.
func movesOf(l *dxpuv1.Lease) []move {
	gpus := map[string]string{} // by binding
	for _, b := range l.Bindings {
		gpus[b.Id] = b.GpuId
	}
	var out []move
	for _, b := range l.Bindings {
		if b.FollowsBindingId == "" {
			continue
		}
		switch b.State {
		case dxpuv1.BindingState_BINDING_STATE_PREPARING, dxpuv1.BindingState_BINDING_STATE_READY,
			dxpuv1.BindingState_BINDING_STATE_COPYING, dxpuv1.BindingState_BINDING_STATE_SWITCHING:
			out = append(out, move{gpus[b.FollowsBindingId], b.GpuId, b.State, b.Migration})
		}
	}
	return out
}

// movableGPUs returns the GPUs of a lease that the viewer can move now.
func movableGPUs(v *view, l *dxpuv1.Lease) ([]string, error) {
	if !v.Operator() || l.State != dxpuv1.LeaseState_LEASE_STATE_ACTIVE {
		return nil, nil
	}
	moves := map[string]bool{}
	for _, m := range movesOf(l) {
		moves[m.From], moves[m.To] = true, true
	}
	res, err := ask(v.ctx(), v.api.ListGPUs, &dxpuv1.ListGPUsRequest{LeaseId: l.Id, PageSize: 2 * maxCount})
	var out []string
	for _, g := range res.GetGpus() {
		if g.Movable && !moves[g.Id] {
			out = append(out, g.Id)
		}
	}
	return out, allowed(err)
}

// migrate moves a GPU of a lease to another one, which the manager chooses if the form does
// not name it.
func (a *action) migrate(ctx context.Context, api dxpuv1connect.PoolServiceClient) (string, error) {
	gpu := a.form.Get("gpu")
	res, err := ask(ctx, api.MigrateLease, &dxpuv1.MigrateLeaseRequest{LeaseId: a.id, GpuId: gpu, ToGpuId: a.form.Get("to"), RequestId: a.request})
	return fmt.Sprintf("GPU %s of lease %s moves to %s.", gpu, a.id, res.GetBinding().GetGpuId()), err
}

// stay ends the migration of a GPU of a lease.
func (a *action) stay(ctx context.Context, api dxpuv1connect.PoolServiceClient) (string, error) {
	gpu := a.form.Get("gpu")
	_, err := api.CancelMigration(ctx, connect.NewRequest(&dxpuv1.CancelMigrationRequest{LeaseId: a.id, GpuId: gpu}))
	return fmt.Sprintf("Lease %s keeps GPU %s.", a.id, gpu), err
}
