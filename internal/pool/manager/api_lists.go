package manager

import (
	"cmp"
	"context"
	"encoding/base64"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// Sizes of a page.
const (
	defaultPage = 100
	maxPage     = 1000
	// maxPageBytes bounds the messages of a page: clients of gRPC accept 4 MiB by default.
	maxPageBytes = 3 << 20
)

// pageRequest is a request for a page of a list.
type pageRequest interface {
	GetPageSize() int32
	GetPageToken() string
}

// listPage returns a page of items that from returns in the order of their keys.
// The token is the key of the last item of the previous page; from may leave out
// items up to it. listPage consumes no more items than the page needs. A page of large messages
// has fewer of them than were asked for.
func listPage[T, M any](r pageRequest, key func(T) string, compare func(a, b string) int,
	from func(after string) iter.Seq[T], message func(T) M,
) (out []M, next string, err error) {
	size := int(r.GetPageSize())
	if size < 0 {
		return nil, "", invalid("page_size: %d is negative", size)
	}
	size = min(cmp.Or(size, defaultPage), maxPage)
	after, err := parsePageToken(r.GetPageToken())
	if err != nil {
		return nil, "", err
	}
	last, bytes := "", 0
	for item := range from(after) {
		k := key(item)
		if after != "" && compare(k, after) <= 0 {
			continue
		}
		if len(out) == size {
			return out, pageToken(last), nil
		}
		m := message(item)
		if p, ok := any(m).(proto.Message); ok {
			bytes += proto.Size(p)
		}
		if bytes > maxPageBytes && len(out) > 0 {
			return out, pageToken(last), nil
		}
		out, last = append(out, m), k
	}
	return out, "", nil
}

// pageMark begins the content of every page token, so that other texts are recognised.
const pageMark = "after:"

// pageToken returns the token of the page after an item with a key.
func pageToken(key string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(pageMark + key))
}

// parsePageToken returns the key after which a page begins, "" for the first page.
func parsePageToken(token string) (string, error) {
	if token == "" {
		return "", nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(token)
	key, ok := strings.CutPrefix(string(raw), pageMark)
	if err != nil || !ok || key == "" {
		return "", invalid("page_token: not issued by this manager; use next_page_token of the page before")
	}
	return key, nil
}

// allOf makes a list the source of a page.
func allOf[T any](items []T) func(string) iter.Seq[T] {
	return func(string) iter.Seq[T] { return slices.Values(items) }
}

func same[T any](v T) T { return v }

// sortable pads a number so that its text sorts as the number does.
func sortable(prefix string, n uint64) string {
	s := strconv.FormatUint(n, 10)
	return prefix + "00000000000000000000"[len(s):] + s
}

func nodeKey(n *nodeRecord) string { return n.ID }

// nodesFrom returns the nodes of a sequence that have the labels, starting at an ID.
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

func (s *poolService) ListHosts(ctx context.Context, req *connect.Request[dxpuv1.ListHostsRequest]) (*connect.Response[dxpuv1.ListHostsResponse], error) {
	visible := scopeOf(ctx)
	return viewResponse(ctx, s.m, func(t *tx, res *dxpuv1.ListHostsResponse) (err error) {
		hosts := func(after string) iter.Seq[*nodeRecord] {
			return filter(t.nodesFrom(&t.hostIDs, after, req.Msg.Labels), func(n *nodeRecord) bool { return visible.hasHost(t, n) })
		}
		message := func(n *nodeRecord) *dxpuv1.Host { return visible.hostPart(t, t.hostMessage(n)) }
		res.Revision = t.meta.Revision
		res.Hosts, res.NextPageToken, err = listPage(req.Msg, nodeKey, strings.Compare, hosts, message)
		return err
	})
}

func (s *poolService) GetHost(ctx context.Context, req *connect.Request[dxpuv1.GetHostRequest]) (*connect.Response[dxpuv1.GetHostResponse], error) {
	return viewResponse(ctx, s.m, func(t *tx, res *dxpuv1.GetHostResponse) error {
		n := t.nodes.get(req.Msg.HostId)
		visible := scopeOf(ctx)
		if n == nil || n.Kind != dxpuv1.NodeKind_NODE_KIND_HOST || !visible.hasHost(t, n) {
			return notFound("host", req.Msg.HostId)
		}
		res.Host = visible.hostPart(t, t.hostMessage(n))
		return nil
	})
}

func (s *poolService) ListBoxes(ctx context.Context, req *connect.Request[dxpuv1.ListBoxesRequest]) (*connect.Response[dxpuv1.ListBoxesResponse], error) {
	kind := req.Msg.Kind
	return viewResponse(ctx, s.m, func(t *tx, res *dxpuv1.ListBoxesResponse) (err error) {
		boxes := func(after string) iter.Seq[*nodeRecord] {
			return filter(t.nodesFrom(&t.boxIDs, after, req.Msg.Labels), func(n *nodeRecord) bool { return kind == 0 || n.BoxKind == kind })
		}
		res.Revision = t.meta.Revision
		res.Boxes, res.NextPageToken, err = listPage(req.Msg, nodeKey, strings.Compare, boxes, t.boxMessage)
		return err
	})
}

func (s *poolService) GetBox(ctx context.Context, req *connect.Request[dxpuv1.GetBoxRequest]) (*connect.Response[dxpuv1.GetBoxResponse], error) {
	return viewResponse(ctx, s.m, func(t *tx, res *dxpuv1.GetBoxResponse) error {
		n := t.nodes.get(req.Msg.BoxId)
		if n == nil || n.Kind != dxpuv1.NodeKind_NODE_KIND_BOX {
			return notFound("box", req.Msg.BoxId)
		}
		res.Box = t.boxMessage(n)
		return nil
	})
}

func (s *poolService) ListLeases(ctx context.Context, req *connect.Request[dxpuv1.ListLeasesRequest]) (*connect.Response[dxpuv1.ListLeasesResponse], error) {
	return viewResponse(ctx, s.m, func(t *tx, res *dxpuv1.ListLeasesResponse) (err error) {
		if endedToo(req.Msg) {
			if err := t.needEnded(); err != nil {
				return err
			}
		}
		leases := func(after string) iter.Seq[*leaseRecord] { return t.leasesFrom(scopeOf(ctx), req.Msg, after) }
		key := func(l *leaseRecord) string { return l.ID }
		res.Revision = t.meta.Revision
		res.Leases, res.NextPageToken, err = listPage(req.Msg, key, compareLeaseIDs, leases, t.leaseMessage)
		return err
	})
}

// leasesFrom returns the leases that pass the filters of a request, oldest
// first, starting at an ID.
func (t *tx) leasesFrom(visible scope, r *dxpuv1.ListLeasesRequest, from string) iter.Seq[*leaseRecord] {
	t.reindex()
	ids := t.openLeaseIDs.from(from)
	switch {
	case endedToo(r):
		ids = t.leaseIDs.from(from)
	case r.Reserved:
		ids = slices.Values(slices.SortedFunc(maps.Keys(t.promises), compareLeaseIDs))
	case r.Tenant != "":
		ids = slices.Values(scope{tenant: r.Tenant}.openLeases(t))
	case !visible.all:
		ids = slices.Values(visible.openLeases(t))
	}
	return func(yield func(*leaseRecord) bool) {
		for id := range ids {
			l := t.leases.get(id)
			if visible.lease(l) && (r.State == 0 || r.State == l.State) && (r.Tenant == "" || r.Tenant == l.spec.Tenant) &&
				(r.HostId == "" || r.HostId == l.HostID) && (!r.Reserved || l.Promise != nil) && !yield(l) {
				return
			}
		}
	}
}

// endedToo reports whether a list shows leases that have ended.
func endedToo(r *dxpuv1.ListLeasesRequest) bool {
	return r.IncludeEnded || r.State == leaseReleased || r.State == leaseFailed
}

func (s *poolService) GetLease(ctx context.Context, req *connect.Request[dxpuv1.GetLeaseRequest]) (*connect.Response[dxpuv1.GetLeaseResponse], error) {
	return viewResponse(ctx, s.m, func(t *tx, res *dxpuv1.GetLeaseResponse) error {
		l, err := t.lease(req.Msg.LeaseId)
		if err != nil {
			return err
		}
		if l == nil {
			return notFound("lease", req.Msg.LeaseId)
		}
		res.Lease = t.leaseMessage(l)
		return nil
	})
}

func (s *poolService) ListEvents(ctx context.Context, req *connect.Request[dxpuv1.ListEventsRequest]) (*connect.Response[dxpuv1.ListEventsResponse], error) {
	if err := s.hasReached(ctx, req.Msg.AfterRevision); err != nil {
		return nil, err
	}
	events, newest, _, complete := s.m.events.after(req.Msg.AfterRevision)
	if req.Msg.AfterRevision != 0 && !complete {
		return nil, errForgotten()
	}
	events = slices.DeleteFunc(scopeOf(ctx).events(events), func(e *dxpuv1.Event) bool { return !matches(e, req.Msg.Filter) })
	key := func(e *dxpuv1.Event) string { return sortable("", e.Revision) }
	if req.Msg.NewestFirst {
		slices.Reverse(events)
		key = func(e *dxpuv1.Event) string { return sortable("", ^e.Revision) }
	}
	events, next, err := listPage(req.Msg, key, strings.Compare, allOf(events), same)
	return connect.NewResponse(&dxpuv1.ListEventsResponse{Events: events, NextPageToken: next, Revision: newest}), err
}

func (s *poolService) GetPool(ctx context.Context, _ *connect.Request[dxpuv1.GetPoolRequest]) (*connect.Response[dxpuv1.GetPoolResponse], error) {
	p := &dxpuv1.Pool{}
	err := s.m.view(func(t *tx) error {
		t.addTotals(p)
		p.NodesSettled = !t.now.Before(t.reconnected())
		p = scopeOf(ctx).totals(t, p)
		return nil
	})
	if s.m.cluster != nil {
		p.Managers = s.m.cluster.Managers()
		if scopeOf(ctx).all {
			p.AbsentManagers = s.m.cluster.Absent()
		}
	}
	for _, i := range p.Managers {
		if i.Leader {
			p.LeaderId, p.LeaderUrl = i.Id, i.Url
		}
	}
	return connect.NewResponse(&dxpuv1.GetPoolResponse{Pool: p}), err
}
