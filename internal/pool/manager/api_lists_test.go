package manager

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/auth"
)

// walk reads a list page by page.
func walk[T any](t *testing.T, size int32, list func(size int32, token string) ([]T, string, error)) []T {
	t.Helper()
	var all []T
	for token := ""; ; {
		items, next, err := list(size, token)
		if err != nil {
			t.Fatal(err)
		}
		if len(items) > int(size) || next != "" && len(items) < int(size) {
			t.Fatalf("a page of %d items, %d are asked for, next %q", len(items), size, next)
		}
		all = append(all, items...)
		if token = next; token == "" {
			return all
		}
	}
}

// For any filters, caller and page size, the pages together are the items of the whole
// list that pass, each once and in order.
func TestPagesAreTheList(t *testing.T) {
	other := boxNode("b10", 3)
	other.model = "other"
	w := newWorld(t, Config{},
		boxNode("b1", 4), other, boxNode("b2", 5), hostNode("h1", 4), hostNode("h10", 4), hostNode("h2", 4))

	w.putTenant("x", nil)
	w.settle()
	for i := range 9 {
		spec := &dxpuv1.LeaseSpec{Count: 1, Tenant: []string{"", "x"}[i%2]}
		id := w.create(spec)
		if w.settle(); i%4 == 3 {
			w.delete(id, true)
		}
	}
	w.settle()
	api := w.api()
	for who, identity := range map[string]auth.Identity{
		"admin":  {Role: dxpuv1.Role_ROLE_ADMIN},
		"tenant": {Role: dxpuv1.Role_ROLE_TENANT, Tenant: "x"},
		"host":   {Role: dxpuv1.Role_ROLE_HOST, Node: "h1"},
	} {
		ctx := auth.With(context.Background(), identity)
		var wholeGPUs []*dxpuv1.GPU
		var wholeLeases []*dxpuv1.Lease
		_ = w.m.view(func(tx *tx) error {
			for _, n := range sorted(slices.Collect(tx.boxIDs.from(""))) {
				for _, g := range tx.boxMessage(tx.nodes.get(n)).Gpus {
					if scopeOf(ctx).gpu(tx, g) {
						wholeGPUs = append(wholeGPUs, g)
					}
				}
			}
			for id := range tx.leaseIDs.from("") {
				if l := tx.leases.get(id); scopeOf(ctx).lease(l) {
					wholeLeases = append(wholeLeases, tx.leaseMessage(l))
				}
			}
			return nil
		})
		if len(wholeGPUs) == 0 || len(wholeLeases) == 0 {
			t.Fatalf("%s sees %d GPUs, %d leases", who, len(wholeGPUs), len(wholeLeases))
		}
		for _, req := range []*dxpuv1.ListGPUsRequest{
			{},
			{BoxId: "b10"},
			{BoxId: "h1"},
			{HostId: "h1"},
			{HostId: "h2"},
			{LeaseId: wholeLeases[0].Id},
			{LeaseId: "l-0"},
			{Model: "other"},
			{State: dxpuv1.GPUState_GPU_STATE_FREE},
			{State: dxpuv1.GPUState_GPU_STATE_BOUND, Model: "other"},
			{Health: dxpuv1.Health_HEALTH_OK},
		} {
			var want []string
			for _, g := range wholeGPUs {
				if passes(g, req) && (req.BoxId == "" || req.BoxId == g.BoxId) {
					want = append(want, g.Id)
				}
			}
			for size := int32(1); size < 14; size += 3 {
				got := walk(t, size, func(size int32, token string) ([]string, string, error) {
					req.PageSize, req.PageToken = size, token
					res, err := api.ListGPUs(ctx, connect.NewRequest(req))
					return idsOf(res.Msg.Gpus), res.Msg.NextPageToken, err
				})
				if !slices.Equal(got, want) {
					t.Errorf("%s, %v: GPUs %v, want %v", who, req, got, want)
				}
			}
		}
		for _, req := range []*dxpuv1.ListLeasesRequest{
			{},
			{IncludeEnded: true},
			{State: leaseReleased},
			{State: leaseActive},
			{Tenant: "x"},
			{Tenant: "x", IncludeEnded: true},
			{Tenant: "default"},
			{HostId: "h1"},
		} {
			var want []string
			for _, l := range wholeLeases {
				over := l.State == leaseReleased || l.State == leaseFailed
				if (!over || req.IncludeEnded || req.State == l.State) && (req.State == 0 || req.State == l.State) &&
					(req.Tenant == "" || req.Tenant == l.Spec.Tenant) && (req.HostId == "" || req.HostId == l.HostId) {
					want = append(want, l.Id)
				}
			}
			for size := int32(1); size < 11; size += 3 {
				got := walk(t, size, func(size int32, token string) ([]string, string, error) {
					req.PageSize, req.PageToken = size, token
					res, err := api.ListLeases(ctx, connect.NewRequest(req))
					return idsOf(res.Msg.Leases), res.Msg.NextPageToken, err
				})
				if !slices.Equal(got, want) {
					t.Errorf("%s, %v: leases %v, want %v", who, req, got, want)
				}
			}
		}
	}
	ctx := auth.With(context.Background(), auth.Identity{Role: dxpuv1.Role_ROLE_ADMIN})
	for size := int32(1); size < 5; size++ {
		boxes := walk(t, size, func(size int32, token string) (ids []string, next string, err error) {
			res, err := api.ListBoxes(ctx, connect.NewRequest(&dxpuv1.ListBoxesRequest{PageSize: size, PageToken: token}))
			for _, b := range res.Msg.Boxes {
				ids = append(ids, b.Node.Id)
			}
			return ids, res.Msg.NextPageToken, err
		})
		hosts := walk(t, size, func(size int32, token string) (ids []string, next string, err error) {
			res, err := api.ListHosts(ctx, connect.NewRequest(&dxpuv1.ListHostsRequest{PageSize: size, PageToken: token}))
			for _, h := range res.Msg.Hosts {
				ids = append(ids, h.Node.Id)
			}
			return ids, res.Msg.NextPageToken, err
		})
		if got := fmt.Sprint(boxes, hosts); got != "[b1 b10 b2] [h1 h10 h2]" {
			t.Errorf("pages of %d: %s", size, got)
		}
	}
}

func idsOf[T interface{ GetId() string }](items []T) (ids []string) {
	for _, i := range items {
		ids = append(ids, i.GetId())
	}
	return ids
}

// A client of gRPC takes 4 MiB by default, so a page of large messages has fewer of them. None is
// left out.
func TestPagesOfLargeMessages(t *testing.T) {
	var items []string
	for i := range 1000 {
		items = append(items, sortable("", uint64(i)))
	}
	text := strings.Repeat("x", 10<<10)
	message := func(id string) *dxpuv1.Event {
		if id == items[7] {
			return &dxpuv1.Event{LeaseId: id, Message: strings.Repeat(text, 400)} // no page has room for it
		}
		return &dxpuv1.Event{LeaseId: id, Message: text}
	}
	var got []string
	req := &dxpuv1.ListEventsRequest{PageSize: maxPage}
	for {
		events, next, err := listPage(req, same, strings.Compare, allOf(items), message)
		if err != nil {
			t.Fatal(err)
		}
		if n := proto.Size(&dxpuv1.ListEventsResponse{Events: events}); n > 4<<20-1024 && len(events) > 1 {
			t.Errorf("a page of %d messages has %d bytes", len(events), n)
		}
		for _, e := range events {
			got = append(got, e.LeaseId)
		}
		if req.PageToken = next; next == "" {
			break
		}
	}
	if !slices.Equal(got, items) {
		t.Errorf("the pages have %d of %d items", len(got), len(items))
	}
}
