package manager

import (
	"context"
	"encoding/base64"
	"slices"
	"strconv"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// Sizes of a page.
const (
	defaultPage = 100
	maxPage     = 1000
)

// page cuts a page out of items that are ordered by key. The token is the key of
// the last item of the page before.
func page[T any](items []T, key func(T) string, size int32, token string) (out []T, next string, err error) {
	return pageIn(items, key, size, token, func(a, b string) bool { return a > b })
}

// pageBack is page for items in the opposite order.
func pageBack[T any](items []T, key func(T) string, size int32, token string) (out []T, next string, err error) {
	slices.Reverse(items)
	return pageIn(items, key, size, token, func(a, b string) bool { return a < b })
}

func pageIn[T any](items []T, key func(T) string, size int32, token string, after func(a, b string) bool) (out []T, next string, err error) {
	switch {
	case size < 0:
		return nil, "", invalid("page_size: %d is negative", size)
	case size == 0:
		size = defaultPage
	case size > maxPage:
		size = maxPage
	}
	if token != "" {
		last, err := base64.RawURLEncoding.DecodeString(token)
		if err != nil {
			return nil, "", invalid("page_token: not one that this manager gave")
		}
		i := 0
		for i < len(items) && !after(key(items[i]), string(last)) {
			i++
		}
		items = items[i:]
	}
	if len(items) <= int(size) {
		return items, "", nil
	}
	items = items[:size]
	return items, base64.RawURLEncoding.EncodeToString([]byte(key(items[size-1]))), nil
}

// sortable pads a number so that its order as text is its order.
func sortable(prefix string, n uint64) string {
	s := strconv.FormatUint(n, 10)
	return prefix + "00000000000000000000"[len(s):] + s
}

// nodesOf returns the nodes of a kind that have the labels, by ID.
func (t *tx) nodesOf(kind dxpuv1.NodeKind, labels map[string]string) []*nodeRecord {
	var out []*nodeRecord
	for _, id := range t.nodes.ids() {
		if n := t.nodes.get(id); n.Kind == kind && hasLabels(n.Labels, labels) {
			out = append(out, n)
		}
	}
	return out
}

func nodeKey(n *nodeRecord) string { return n.ID }

// ListHosts implements dxpuv1connect.PoolServiceHandler.
func (s *poolService) ListHosts(ctx context.Context, req *connect.Request[dxpuv1.ListHostsRequest]) (*connect.Response[dxpuv1.ListHostsResponse], error) {
	res := &dxpuv1.ListHostsResponse{}
	err := s.m.view(func(t *tx) error {
		visible := scopeOf(ctx)
		all := slices.DeleteFunc(t.nodesOf(dxpuv1.NodeKind_NODE_KIND_HOST, req.Msg.Labels), func(n *nodeRecord) bool {
			return !visible.hasHost(t, n)
		})
		nodes, next, err := page(all, nodeKey, req.Msg.PageSize, req.Msg.PageToken)
		res.NextPageToken = next
		for _, n := range nodes {
			res.Hosts = append(res.Hosts, visible.hostPart(t, t.hostMessage(n)))
		}
		return err
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
		all := t.nodesOf(dxpuv1.NodeKind_NODE_KIND_BOX, req.Msg.Labels)
		all = slices.DeleteFunc(all, func(n *nodeRecord) bool { return req.Msg.Kind != 0 && n.BoxKind != req.Msg.Kind })
		nodes, next, err := page(all, nodeKey, req.Msg.PageSize, req.Msg.PageToken)
		res.NextPageToken = next
		for _, n := range nodes {
			res.Boxes = append(res.Boxes, t.boxMessage(n))
		}
		return err
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

// ListGPUs implements dxpuv1connect.PoolServiceHandler.
func (s *poolService) ListGPUs(ctx context.Context, req *connect.Request[dxpuv1.ListGPUsRequest]) (*connect.Response[dxpuv1.ListGPUsResponse], error) {
	res := &dxpuv1.ListGPUsResponse{}
	r := req.Msg
	err := s.m.view(func(t *tx) (err error) {
		visible := scopeOf(ctx)
		var all []*dxpuv1.GPU
		for _, n := range t.nodesOf(dxpuv1.NodeKind_NODE_KIND_BOX, nil) {
			if r.BoxId == "" || r.BoxId == n.ID {
				all = append(all, t.boxMessage(n).Gpus...)
			}
		}
		all = slices.DeleteFunc(all, func(g *dxpuv1.GPU) bool {
			return r.HostId != "" && r.HostId != g.HostId || r.LeaseId != "" && r.LeaseId != g.LeaseId ||
				r.Model != "" && r.Model != g.Device.Model || r.State != 0 && r.State != g.State ||
				r.Health != 0 && r.Health != g.Health || !visible.gpu(t, g)
		})
		key := func(g *dxpuv1.GPU) string { return sortable(g.BoxId+"\x00", uint64(g.Slot)) }
		res.Gpus, res.NextPageToken, err = page(all, key, r.PageSize, r.PageToken)
		return err
	})
	return connect.NewResponse(res), err
}

// GetGPU implements dxpuv1connect.PoolServiceHandler.
func (s *poolService) GetGPU(ctx context.Context, req *connect.Request[dxpuv1.GetGPURequest]) (*connect.Response[dxpuv1.GetGPUResponse], error) {
	res := &dxpuv1.GetGPUResponse{}
	err := s.m.view(func(t *tx) error {
		n, slot, ok := t.gpu(req.Msg.GpuId)
		if ok {
			res.Gpu = t.gpuMessage(n, slot)
		}
		if !ok || !scopeOf(ctx).gpu(t, res.Gpu) {
			return notFound("gpu", req.Msg.GpuId)
		}
		return nil
	})
	return connect.NewResponse(res), err
}

// ListLeases implements dxpuv1connect.PoolServiceHandler.
func (s *poolService) ListLeases(ctx context.Context, req *connect.Request[dxpuv1.ListLeasesRequest]) (*connect.Response[dxpuv1.ListLeasesResponse], error) {
	res := &dxpuv1.ListLeasesResponse{}
	r := req.Msg
	err := s.m.view(func(t *tx) error {
		var all []*leaseRecord
		visible := scopeOf(ctx)
		for _, id := range t.leases.ids() {
			l := t.leases.get(id)
			if !visible.lease(l) || l.ended() && !r.IncludeEnded && r.State != l.State || r.State != 0 && r.State != l.State ||
				r.Tenant != "" && r.Tenant != l.spec.Tenant || r.HostId != "" && r.HostId != l.HostID {
				continue
			}
			all = append(all, l)
		}
		// The number in an ID is the revision of its creation: oldest first.
		key := func(l *leaseRecord) string { return leaseKey(l.ID) }
		slices.SortFunc(all, func(a, b *leaseRecord) int { return compareText(key(a), key(b)) })
		leases, next, err := page(all, key, r.PageSize, r.PageToken)
		res.NextPageToken = next
		for _, l := range leases {
			res.Leases = append(res.Leases, t.leaseMessage(l))
		}
		return err
	})
	return connect.NewResponse(res), err
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
	events, next, err := page(events, key, req.Msg.PageSize, req.Msg.PageToken)
	return connect.NewResponse(&dxpuv1.ListEventsResponse{Events: events, NextPageToken: next, Revision: newest}), err
}

// GetPool implements dxpuv1connect.PoolServiceHandler.
func (s *poolService) GetPool(ctx context.Context, _ *connect.Request[dxpuv1.GetPoolRequest]) (*connect.Response[dxpuv1.GetPoolResponse], error) {
	p := &dxpuv1.Pool{}
	err := s.m.view(func(t *tx) error {
		t.sum(p)
		p = scopeOf(ctx).pool(t, p)
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
