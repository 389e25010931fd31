package manager

import (
	"context"
	"encoding/base64"
	"iter"
	"slices"
	"strconv"
	"strings"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// Sizes of a page.
const (
	defaultPage = 100
	maxPage     = 1000
)

// cursor is the position of a requested page.
type cursor struct {
	size  int
	after string // key of the last item of the previous page; "": the list starts
}

func cursorOf(size int32, token string) (cursor, error) {
	switch {
	case size < 0:
		return cursor{}, invalid("page_size: %d is negative", size)
	case size == 0:
		size = defaultPage
	case size > maxPage:
		size = maxPage
	}
	after, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		return cursor{}, invalid("page_token: not issued by this manager")
	}
	return cursor{int(size), string(after)}, nil
}

// collect returns the page of items that come in the order of their keys. It
// consumes no more items than the page needs.
func collect[T any](c cursor, items iter.Seq[T], key func(T) string, compare func(a, b string) int) (out []T, next string) {
	for item := range items {
		if c.after != "" && compare(key(item), c.after) <= 0 {
			continue
		}
		if len(out) == c.size {
			return out, base64.RawURLEncoding.EncodeToString([]byte(key(out[len(out)-1])))
		}
		out = append(out, item)
	}
	return out, ""
}

// pageOf returns a page of items that are ordered by key. The token is the key of
// the last item of the previous page.
func pageOf[T any](items []T, key func(T) string, size int32, token string) (out []T, next string, err error) {
	c, err := cursorOf(size, token)
	if err != nil {
		return nil, "", err
	}
	out, next = collect(c, slices.Values(items), key, strings.Compare)
	return out, next, nil
}

// pageBack is page for items in the opposite order.
func pageBack[T any](items []T, key func(T) string, size int32, token string) (out []T, next string, err error) {
	c, err := cursorOf(size, token)
	if err != nil {
		return nil, "", err
	}
	slices.Reverse(items)
	out, next = collect(c, slices.Values(items), key, func(a, b string) int { return strings.Compare(b, a) })
	return out, next, nil
}

// sortable pads a number so that its text sorts as the number does.
func sortable(prefix string, n uint64) string {
	s := strconv.FormatUint(n, 10)
	return prefix + "00000000000000000000"[len(s):] + s
}

func idKey(id string) string { return id }

func nodeKey(n *nodeRecord) string { return n.ID }

// nodesFrom returns the nodes of a sequence that have the labels, starting at
// an ID.
func (t *tx) nodesFrom(s *sequence, from string, labels map[string]string) iter.Seq[*nodeRecord] {
	t.reindex()
	return func(yield func(*nodeRecord) bool) {
		for id := range s.from(from) {
			if n := t.nodes.get(id); hasLabels(n.Labels, labels) && !yield(n) {
				return
			}
		}
	}
}

// filter returns the items for which pass is true.
func filter[T any](items iter.Seq[T], pass func(T) bool) iter.Seq[T] {
	return func(yield func(T) bool) {
		for item := range items {
			if pass(item) && !yield(item) {
				return
			}
		}
	}
}

// ListHosts implements dxpuv1connect.PoolServiceHandler.
func (s *poolService) ListHosts(ctx context.Context, req *connect.Request[dxpuv1.ListHostsRequest]) (*connect.Response[dxpuv1.ListHostsResponse], error) {
	res := &dxpuv1.ListHostsResponse{}
	err := s.m.view(func(t *tx) error {
		visible := scopeOf(ctx)
		c, err := cursorOf(req.Msg.PageSize, req.Msg.PageToken)
		if err != nil {
			return err
		}
		all := filter(t.nodesFrom(&t.hostIDs, c.after, req.Msg.Labels), func(n *nodeRecord) bool { return visible.hasHost(t, n) })
		nodes, next := collect(c, all, nodeKey, strings.Compare)
		res.NextPageToken = next
		for _, n := range nodes {
			res.Hosts = append(res.Hosts, visible.hostPart(t, t.hostMessage(n)))
		}
		return nil
	})
	return connect.NewResponse(res), err
}

// GetHost implements dxpuv1connect.PoolServiceHandler.
func (s *poolService) GetHost(ctx context.Context, req *connect.Request[dxpuv1.GetHostRequest]) (*connect.Response[dxpuv1.GetHostResponse], error) {
	res := &dxpuv1.GetHostResponse{}
	err := s.m.view(func(t *tx) error {
		n := t.nodes.get(req.Msg.HostId)
		visible := scopeOf(ctx)
		if n == nil || n.Kind != dxpuv1.NodeKind_NODE_KIND_HOST || !visible.hasHost(t, n) {
			return notFound("host", req.Msg.HostId)
		}
		res.Host = visible.hostPart(t, t.hostMessage(n))
		return nil
	})
	return connect.NewResponse(res), err
}

// ListBoxes implements dxpuv1connect.PoolServiceHandler.
func (s *poolService) ListBoxes(_ context.Context, req *connect.Request[dxpuv1.ListBoxesRequest]) (*connect.Response[dxpuv1.ListBoxesResponse], error) {
	res := &dxpuv1.ListBoxesResponse{}
	err := s.m.view(func(t *tx) error {
		c, err := cursorOf(req.Msg.PageSize, req.Msg.PageToken)
		if err != nil {
			return err
		}
		all := filter(t.nodesFrom(&t.boxIDs, c.after, req.Msg.Labels), func(n *nodeRecord) bool {
			return req.Msg.Kind == 0 || n.BoxKind == req.Msg.Kind
		})
		nodes, next := collect(c, all, nodeKey, strings.Compare)
		res.NextPageToken = next
		for _, n := range nodes {
			res.Boxes = append(res.Boxes, t.boxMessage(n))
		}
		return nil
	})
	return connect.NewResponse(res), err
}

// GetBox implements dxpuv1connect.PoolServiceHandler.
func (s *poolService) GetBox(_ context.Context, req *connect.Request[dxpuv1.GetBoxRequest]) (*connect.Response[dxpuv1.GetBoxResponse], error) {
	res := &dxpuv1.GetBoxResponse{}
	err := s.m.view(func(t *tx) error {
		n := t.nodes.get(req.Msg.BoxId)
		if n == nil || n.Kind != dxpuv1.NodeKind_NODE_KIND_BOX {
			return notFound("box", req.Msg.BoxId)
		}
		res.Box = t.boxMessage(n)
		return nil
	})
	return connect.NewResponse(res), err
}

// ListLeases implements dxpuv1connect.PoolServiceHandler.
func (s *poolService) ListLeases(ctx context.Context, req *connect.Request[dxpuv1.ListLeasesRequest]) (*connect.Response[dxpuv1.ListLeasesResponse], error) {
	res := &dxpuv1.ListLeasesResponse{}
	r := req.Msg
	err := s.m.view(func(t *tx) error {
		c, err := cursorOf(r.PageSize, r.PageToken)
		if err != nil {
			return err
		}
		leases, next := collect(c, t.leasesFrom(scopeOf(ctx), r, c.after), func(l *leaseRecord) string { return l.ID }, compareNumbered)
		res.NextPageToken = next
		for _, l := range leases {
			res.Leases = append(res.Leases, t.leaseMessage(l))
		}
		return nil
	})
	return connect.NewResponse(res), err
}

// leasesFrom returns the leases that pass the filters of a request, oldest
// first, starting at an ID.
func (t *tx) leasesFrom(visible scope, r *dxpuv1.ListLeasesRequest, from string) iter.Seq[*leaseRecord] {
	t.reindex()
	ids := t.openLeaseIDs.from(from)
	over := r.State == leaseReleased || r.State == leaseFailed
	switch {
	case r.IncludeEnded || over:
		ids = t.leaseIDs.from(from)
	case r.Tenant != "":
		ids = slices.Values(scope{tenant: r.Tenant}.openLeases(t))
	case !visible.all:
		ids = slices.Values(visible.openLeases(t))
	}
	return func(yield func(*leaseRecord) bool) {
		for id := range ids {
			l := t.leases.get(id)
			if visible.lease(l) && (r.State == 0 || r.State == l.State) && (r.Tenant == "" || r.Tenant == l.spec.Tenant) &&
				(r.HostId == "" || r.HostId == l.HostID) && !yield(l) {
				return
			}
		}
	}
}

// GetLease implements dxpuv1connect.PoolServiceHandler.
func (s *poolService) GetLease(_ context.Context, req *connect.Request[dxpuv1.GetLeaseRequest]) (*connect.Response[dxpuv1.GetLeaseResponse], error) {
	res := &dxpuv1.GetLeaseResponse{}
	err := s.m.view(func(t *tx) error {
		l := t.leases.get(req.Msg.LeaseId)
		if l == nil {
			return notFound("lease", req.Msg.LeaseId)
		}
		res.Lease = t.leaseMessage(l)
		return nil
	})
	return connect.NewResponse(res), err
}

// ListEvents implements dxpuv1connect.PoolServiceHandler.
func (s *poolService) ListEvents(ctx context.Context, req *connect.Request[dxpuv1.ListEventsRequest]) (*connect.Response[dxpuv1.ListEventsResponse], error) {
	events, newest, _, _ := s.m.events.after(0)
	events = slices.DeleteFunc(scopeOf(ctx).events(events), func(e *dxpuv1.Event) bool { return !matches(e, req.Msg.Filter) })
	key := func(e *dxpuv1.Event) string { return sortable("", e.Revision) }
	if req.Msg.NewestFirst {
		slices.Reverse(events)
		key = func(e *dxpuv1.Event) string { return sortable("", ^e.Revision) }
	}
	events, next, err := pageOf(events, key, req.Msg.PageSize, req.Msg.PageToken)
	return connect.NewResponse(&dxpuv1.ListEventsResponse{Events: events, NextPageToken: next, Revision: newest}), err
}

// GetPool implements dxpuv1connect.PoolServiceHandler.
func (s *poolService) GetPool(ctx context.Context, _ *connect.Request[dxpuv1.GetPoolRequest]) (*connect.Response[dxpuv1.GetPoolResponse], error) {
	p := &dxpuv1.Pool{}
	err := s.m.view(func(t *tx) error {
		t.addTotals(p)
		p = scopeOf(ctx).totals(t, p)
		return nil
	})
	if s.m.cluster != nil {
		p.Managers = s.m.cluster.Managers()
	}
	for _, i := range p.Managers {
		if i.Leader {
			p.LeaderId, p.LeaderUrl = i.Id, i.Url
		}
	}
	return connect.NewResponse(&dxpuv1.GetPoolResponse{Pool: p}), err
}
