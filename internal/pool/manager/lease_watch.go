package manager

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// WatchLeases implements dxpuv1connect.PoolServiceHandler. The events say which leases
// have changed; the message has the state that the lease has now. A change of the reason
// alone has no event, because a host could cause any number of them.
func (s *poolService) WatchLeases(ctx context.Context, req *connect.Request[dxpuv1.WatchLeasesRequest], stream *connect.ServerStream[dxpuv1.WatchLeasesResponse]) error {
	r, over := req.Msg, s.m.termEnded()
	at := r.AfterRevision
	if err := s.hasReached(ctx, at); err != nil {
		return err
	}
	if at == 0 {
		revision, err := s.m.sendOpenLeases(ctx, r, stream.Send)
		if err != nil {
			return err
		}
		at = revision
	} else if _, _, _, ok := s.m.events.after(at); !ok {
		return errForgotten()
	}
	here := func(at uint64) error { return stream.Send(&dxpuv1.WatchLeasesResponse{Revision: at}) }
	if err := here(at); err != nil { // the watch is open
		return err
	}
	return s.m.events.follow(ctx, over, at, here, func(events []*dxpuv1.Event, newest uint64) error {
		for changed := changedLeases(events, r, scopeOf(ctx)); len(changed) > 0; {
			page := changed[:min(len(changed), watchPage)]
			changed = changed[len(page):]
			leases, err := s.m.leasesNow(ctx, r, page)
			if err != nil {
				return err
			}
			if err := sendLeases(stream.Send, leases, newest, len(changed) == 0); err != nil {
				return err
			}
		}
		return nil
	})
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

// watchPage bounds the leases that a watch reads at a time: a page takes a few
// milliseconds, in which no call is served.
const watchPage = 256

// sendOpenLeases sends all leases of a watch that have not ended, a page at a time, and
// returns the revision from which the watch goes on: that of the first page. A lease that
// changes between two pages is sent again for its events.
func (m *Manager) sendOpenLeases(ctx context.Context, r *dxpuv1.WatchLeasesRequest, send func(*dxpuv1.WatchLeasesResponse) error) (revision uint64, err error) {
	for after := ""; ; {
		var ids []string
		var leases []*dxpuv1.Lease
		if err := m.viewIn(ctx, func(t *tx) error {
			if revision == 0 {
				revision = t.meta.Revision
			}
			ids = t.openLeasesAfter(scopeOf(ctx), r.Tenant, after)
			leases = t.watched(ctx, r, ids)
			return nil
		}); err != nil {
			return 0, err
		}
		last := len(ids) < watchPage
		if err := sendLeases(send, leases, revision, last); err != nil {
			return 0, err
		}
		if last {
			return revision, nil
		}
		after = ids[len(ids)-1]
	}
}

// openLeasesAfter returns the next page of leases that have not ended, in the order of
// their IDs. They may be others than those of the scope and the tenant.
func (t *tx) openLeasesAfter(visible scope, tenant, after string) (page []string) {
	t.reindex()
	ids := t.openLeaseIDs.from(after)
	if tenant = cmp.Or(visible.tenant, tenant); tenant != "" {
		ids = slices.Values(scope{tenant: tenant}.openLeases(t))
	}
	for id := range ids {
		if after != "" && compareLeaseIDs(id, after) <= 0 {
			continue
		}
		if page = append(page, id); len(page) == watchPage {
			break
		}
	}
	return page
}

// sendLeases sends a page of leases. Only the last message of the last page has the
// revision: a caller that resumes after another one gets the rest again.
func sendLeases(send func(*dxpuv1.WatchLeasesResponse) error, leases []*dxpuv1.Lease, revision uint64, last bool) error {
	for i, l := range leases {
		m := &dxpuv1.WatchLeasesResponse{Lease: l}
		if last && i == len(leases)-1 {
			m.Revision = revision
		}
		if err := send(m); err != nil {
			return err
		}
	}
	return nil
}

// leasesNow returns the leases of a watch that have some IDs.
func (m *Manager) leasesNow(ctx context.Context, r *dxpuv1.WatchLeasesRequest, ids []string) (out []*dxpuv1.Lease, err error) {
	err = m.viewIn(ctx, func(t *tx) error {
		for _, id := range ids {
			if _, err := t.lease(id); err != nil {
				return err // it may have ended
			}
		}
		out = t.watched(ctx, r, ids)
		return nil
	})
	return out, err
}

// watched returns those of some leases that a watch shows.
func (t *tx) watched(ctx context.Context, r *dxpuv1.WatchLeasesRequest, ids []string) (out []*dxpuv1.Lease) {
	visible := scopeOf(ctx)
	for _, id := range ids {
		l := t.leases.get(id)
		if l != nil && visible.lease(l) && (r.LeaseId == "" || r.LeaseId == id) && (r.Tenant == "" || r.Tenant == l.spec.Tenant) &&
			(r.HostId == "" || r.HostId == l.HostID) {
			out = append(out, t.leaseMessage(l))
		}
	}
	return out
}
