package torture

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
)

// currentVersion returns the version that a refusal for a stale version names; 0: the error is
// another one, or the object does not exist.
func currentVersion(err error) (version uint64, isConflict bool) {
	var ce *connect.Error
	if !errors.As(err, &ce) || ce.Code() != connect.CodeAborted {
		return 0, false
	}
	var kind, id string
	_, e := fmt.Sscanf(ce.Message(), "resource_version: %s %s has version %d,", &kind, &id, &version)
	return version, e == nil
}

// resize changes the number of GPUs of a lease that is still as the client has read it.
func (h *history) resize(ctx context.Context, client, first int, r *rand.Rand) error {
	id := h.anyLease(r)
	if id == "" {
		return nil
	}
	read, err := h.get(ctx, client, first, id)
	if err != nil || read.State != active {
		return err
	}
	if r.IntN(3) == 0 { // in most cases the pool makes no change by itself meanwhile
		wait(ctx, time.Duration(r.IntN(60))*time.Millisecond)
	}
	in := opInput{kind: "resize", lease: id, count: 3 - min(2, read.Spec.Count), version: read.ResourceVersion}
	call := time.Now()
	req := &dxpuv1.ResizeLeaseRequest{LeaseId: id, ResourceVersion: in.version, Count: in.count}
	res, ambiguous, err := ask(ctx, h.pool, client, first, func(ctx context.Context, api dxpuv1connect.PoolServiceClient) (*connect.Response[dxpuv1.ResizeLeaseResponse], error) {
		return api.ResizeLease(ctx, connect.NewRequest(req))
	})
	out := opOutput{ambiguous: ambiguous}
	if err != nil {
		at, ok := currentVersion(err)
		if !ok {
			return unlessRefused("resize "+id, err)
		}
		out.conflict = at
	} else {
		out.leases = map[string]seen{id: seenOf(res.Msg.Lease)}
	}
	h.record(client, call, in, out)
	return nil
}

// resizing gives a lease a second GPU and takes it away again. Each change is refused to a
// caller that does not know the last one.
func (e *exam) resizing() error {
	l, err := e.create(&dxpuv1.LeaseSpec{Count: 1})
	if err != nil {
		return err
	}
	for _, count := range []uint32{2, 1} {
		if err := e.reaches(l.Id, active); err != nil {
			return err
		}
		old := l.ResourceVersion
		if l, err = e.lease(e.ctx, 0, 0, l.Id); err != nil {
			return err
		}
		resize := func(version uint64) error {
			_, _, err := ask(e.ctx, e.pool, 0, 0, func(ctx context.Context, api dxpuv1connect.PoolServiceClient) (*connect.Response[dxpuv1.ResizeLeaseResponse], error) {
				return api.ResizeLease(ctx, connect.NewRequest(&dxpuv1.ResizeLeaseRequest{LeaseId: l.Id, Count: count, ResourceVersion: version}))
			})
			return err
		}
		if err := resize(old); connect.CodeOf(err) != connect.CodeAborted {
			return fmt.Errorf("resize at version %d of %d: %w", old, l.ResourceVersion, errors.Join(err))
		}
		if err := resize(l.ResourceVersion); err != nil {
			return err
		}
		if err := e.settled(e.ctx, e.tenant, 1); err != nil {
			return fmt.Errorf("after a resize to %d: %w", count, err)
		}
	}
	if err := e.end(l.Id); err != nil {
		return err
	}
	return e.settled(e.ctx, e.tenant, 0)
}
