package manager

import (
	"context"
	"maps"
	"slices"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// watchAlive is the interval of the messages of a watch on which nothing happens.
const watchAlive = 10 * time.Second

// WatchLeases implements dxpuv1connect.PoolServiceHandler. The events say which leases
// have changed; the message has the state that the lease has now. A change of the reason
// alone has no event, because a host could cause any number of them.
func (s *poolService) WatchLeases(ctx context.Context, req *connect.Request[dxpuv1.WatchLeasesRequest], stream *connect.ServerStream[dxpuv1.WatchLeasesResponse]) error {
	r, over := req.Msg, s.m.termEnded()
	at := r.AfterRevision
	if at == 0 {
		leases, revision, err := s.m.leasesNow(ctx, r, nil)
		if err != nil {
			return err
		}
		if err := sendLeases(stream, leases, revision); err != nil {
			return err
		}
		at = revision
	} else if _, _, _, ok := s.m.events.after(at); !ok {
		return errForgotten()
	}
	if err := stream.Send(&dxpuv1.WatchLeasesResponse{Revision: at}); err != nil { // the watch is open
		return err
	}
	alive := time.NewTicker(watchAlive)
	defer alive.Stop()
	for {
		events, newest, more, ok := s.m.events.after(at)
		if !ok {
			return errForgotten()
		}
		if changed := changedLeases(events, r, scopeOf(ctx)); len(changed) > 0 {
			leases, _, err := s.m.leasesNow(ctx, r, changed)
			if err != nil {
				return err
			}
			if err := sendLeases(stream, leases, newest); err != nil {
				return err
			}
		}
		at = max(at, newest)
		idling(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-over:
			return nil
		case <-more:
		case <-alive.C:
			if err := stream.Send(&dxpuv1.WatchLeasesResponse{Revision: at}); err != nil {
				return err
			}
		}
	}
}

// changedLeases returns the leases that events of a watch concern, in order. The events
// of others are sorted out here, so that watches do not read the state for them.
func changedLeases(events []*dxpuv1.Event, r *dxpuv1.WatchLeasesRequest, visible scope) []string {
	ids := map[string]bool{}
	for _, e := range events {
		if e.LeaseId != "" && (r.LeaseId == "" || r.LeaseId == e.LeaseId) && visible.event(e) != nil {
			ids[e.LeaseId] = true
		}
	}
	return slices.SortedFunc(maps.Keys(ids), compareLeaseIDs)
}

// sendLeases sends leases. Only the last message has the revision: a caller that
// resumes after another one gets the rest again.
func sendLeases(stream *connect.ServerStream[dxpuv1.WatchLeasesResponse], leases []*dxpuv1.Lease, revision uint64) error {
	for i, l := range leases {
		m := &dxpuv1.WatchLeasesResponse{Lease: l}
		if i == len(leases)-1 {
			m.Revision = revision
		}
		if err := stream.Send(m); err != nil {
			return err
		}
	}
	return nil
}

// leasesNow returns the leases of a watch that have some IDs, or all that have not
// ended, and the revision of the state.
func (m *Manager) leasesNow(ctx context.Context, r *dxpuv1.WatchLeasesRequest, ids []string) (out []*dxpuv1.Lease, revision uint64, err error) {
	visible := scopeOf(ctx)
	err = m.viewIn(ctx, func(t *tx) error {
		revision = t.meta.Revision
		if ids == nil {
			ids = visible.openLeases(t)
		}
		for _, id := range ids {
			l := t.leases.get(id)
			if l != nil && visible.lease(l) && (r.LeaseId == "" || r.LeaseId == id) && (r.Tenant == "" || r.Tenant == l.spec.Tenant) &&
				(r.HostId == "" || r.HostId == l.HostID) {
				out = append(out, t.leaseMessage(l))
			}
		}
		return nil
	})
	return out, revision, err
}
