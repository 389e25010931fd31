package web

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"testing/synctest"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
)

// bigAPI is an API of a pool of many boxes with eight GPUs each, without a manager.
type bigAPI struct {
	*fakeAPI
	boxes, perRack int
}

func (a *bigAPI) GetPool(context.Context, *connect.Request[dxpuv1.GetPoolRequest]) (*connect.Response[dxpuv1.GetPoolResponse], error) {
	return connect.NewResponse(&dxpuv1.GetPoolResponse{Pool: &dxpuv1.Pool{Gpus: uint32(8 * a.boxes), Boxes: uint32(a.boxes)}}), nil
}

func (a *bigAPI) box(i int) *dxpuv1.Box {
	id := fmt.Sprintf("box-%05d", i)
	b := &dxpuv1.Box{Node: &dxpuv1.NodeInfo{Id: id, Rack: fmt.Sprintf("rack-%d", i/a.perRack), Connected: i%97 != 5}, Kind: nvlink}
	for slot := range 8 {
		g := &dxpuv1.GPU{
			Id: fmt.Sprintf("%s/%d", id, slot), BoxId: id, Slot: uint32(slot), State: dxpuv1.GPUState_GPU_STATE_BOUND, Health: dxpuv1.Health_HEALTH_OK,
			Device:  &dxpuv1.Device{Model: "DX200", MemoryBytes: 80 << 30},
			LeaseId: fmt.Sprintf("l-%d", 100_000+i), HostId: fmt.Sprintf("host-%05d", i), HostSlot: uint32(slot), Tenant: "research",
		}
		if (i+slot)%31 == 0 {
			g.Health, g.HealthDetail = dxpuv1.Health_HEALTH_FAILED, "fallen off the bus"
		}
		b.Gpus = append(b.Gpus, g)
	}
	return b
}

func (a *bigAPI) ListBoxes(_ context.Context, req *connect.Request[dxpuv1.ListBoxesRequest]) (*connect.Response[dxpuv1.ListBoxesResponse], error) {
	from, _ := strconv.Atoi(req.Msg.PageToken)
	res := &dxpuv1.ListBoxesResponse{}
	for i := from; i < min(a.boxes, from+int(req.Msg.PageSize)); i++ {
		res.Boxes = append(res.Boxes, a.box(i))
	}
	if end := from + len(res.Boxes); end < a.boxes {
		res.NextPageToken = strconv.Itoa(end)
	}
	return connect.NewResponse(res), nil
}

func (a *bigAPI) GetBox(_ context.Context, req *connect.Request[dxpuv1.GetBoxRequest]) (*connect.Response[dxpuv1.GetBoxResponse], error) {
	var i int
	if _, err := fmt.Sscanf(req.Msg.BoxId, "box-%d", &i); err != nil {
		return nil, connect.NewError(connect.CodeNotFound, err)
	}
	return connect.NewResponse(&dxpuv1.GetBoxResponse{Box: a.box(i)}), nil
}

func (a *bigAPI) ListGPUs(_ context.Context, req *connect.Request[dxpuv1.ListGPUsRequest]) (*connect.Response[dxpuv1.ListGPUsResponse], error) {
	res := &dxpuv1.ListGPUsResponse{}
	for i := 0; i < a.boxes && len(res.Gpus) < int(req.Msg.PageSize); i++ {
		res.Gpus = append(res.Gpus, a.box(i).Gpus...)
	}
	res.NextPageToken = "more"
	return connect.NewResponse(res), nil
}

func (a *bigAPI) ListLeases(context.Context, *connect.Request[dxpuv1.ListLeasesRequest]) (*connect.Response[dxpuv1.ListLeasesResponse], error) {
	return connect.NewResponse(&dxpuv1.ListLeasesResponse{}), nil
}

func (a *bigAPI) ListEvents(context.Context, *connect.Request[dxpuv1.ListEventsRequest]) (*connect.Response[dxpuv1.ListEventsResponse], error) {
	return connect.NewResponse(&dxpuv1.ListEventsResponse{}), nil
}

// maxPage is the maximum size of a page, in bytes.
const maxPage = 1 << 20

// TestPagesStaySmall checks that no page is larger than maxPage. Up to maxDrawn GPUs
// the page draws every slot, beyond that the totals of a hundred racks.
func TestPagesStaySmall(t *testing.T) {
	for _, tt := range []struct {
		gpus, perRack int
		path          string
		slots, rows   int
	}{
		{512, 22, "/", 512, 0},
		{1024, 4, "/", 1024, 0},
		{1032, 4, "/", 0, 33},
		{100_000, 16, "/", 0, 100},
		{100_000, 16, "/?page=8", 0, 82},
		{100_000, 16, "/?rack=rack-781", 32, 0},
		{100_000, 100_000, "/?rack=rack-0", 1024, 0},
		{100_000, 1, "/?page=125", 0, 100},
		{100_000, 16, "/ui/gpus", 0, 0},
	} {
		t.Run(fmt.Sprintf("%d GPUs, %d boxes per rack, %s", tt.gpus, tt.perRack, tt.path), func(t *testing.T) {
			if raceEnabled && tt.gpus > 2000 {
				t.Skip("the race detector makes it ten times slower, and one page is rendered at a time")
			}
			// In virtual time a busy machine does not use up the time of a rendering.
			synctest.Test(t, func(t *testing.T) {
				a := &bigAPI{fakeAPI: newFakeAPI(), boxes: tt.gpus / 8, perRack: tt.perRack}
				w := fetch(t, serve(a), "operator", tt.path, "")
				if w.Code != http.StatusOK {
					t.Fatalf("%d: %s", w.Code, w.Body)
				}
				if w.Body.Len() > maxPage {
					t.Errorf("%d bytes, want at most %d", w.Body.Len(), maxPage)
				}
				slots, rows := drawn(checkPage(t, w.Body.String()))
				if slots != tt.slots || rows != tt.rows {
					t.Errorf("%d slots and %d racks are drawn, want %d and %d", slots, rows, tt.slots, tt.rows)
				}
			})
		})
	}
}

// BenchmarkPoolPage measures the pool's page with a manager: the first rendering,
// another one, and a live page that shares a rendering.
func BenchmarkPoolPage(b *testing.B) {
	for _, gpus := range []int{512, 100_000} {
		b.Run(fmt.Sprintf("%dGPUs", gpus), func(b *testing.B) {
			w := idleWorld(b, gpus/8, 22)
			size := 0
			show := func(b *testing.B, after string) {
				r := httptest.NewRequestWithContext(b.Context(), http.MethodGet, "/", nil)
				r.RemoteAddr, r.Host = "127.0.0.1:9", "127.0.0.1"
				if after != "" {
					r.Header.Set(afterHeader, after)
				}
				rec := httptest.NewRecorder()
				w.pages.ServeHTTP(rec, r)
				if size = rec.Body.Len(); rec.Code != http.StatusOK {
					b.Fatalf("%d: %s", rec.Code, rec.Body)
				}
			}
			b.Run("first", func(b *testing.B) {
				for b.Loop() {
					w.pages = Handler(w.m.Handler())
					show(b, "")
				}
				b.ReportMetric(float64(size), "bytes")
			})
			b.Run("again", func(b *testing.B) {
				for b.Loop() {
					show(b, "")
				}
			})
			b.Run("live", func(b *testing.B) {
				for b.Loop() {
					show(b, "1")
				}
			})
		})
	}
}

// The sum of a rack counts the leased GPUs in boxes that do not report.
func TestSumOfALostBox(t *testing.T) {
	_, h := dxpuv1connect.NewPoolServiceHandler(&bigAPI{fakeAPI: &fakeAPI{}, boxes: 190, perRack: 100})
	srv := httptest.NewServer(h)
	defer srv.Close()
	racks, err := sumRacks(t.Context(), dxpuv1connect.NewPoolServiceClient(srv.Client(), srv.URL))
	if err != nil || len(racks) != 2 {
		t.Fatalf("%d racks, %v", len(racks), err)
	}
	// Boxes 5 and 102 are silent.
	for _, r := range racks {
		if r.Silent != 1 || r.Hit != 8 {
			t.Errorf("rack %s: %d silent boxes with %d leased GPUs, want 1 and 8", r.Name, r.Silent, r.Hit)
		}
	}
}
