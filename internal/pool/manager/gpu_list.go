package manager

import (
	"context"
	"iter"
	"maps"
	"slices"
	"strings"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// ListGPUs implements dxpuv1connect.PoolServiceHandler.
func (s *poolService) ListGPUs(ctx context.Context, req *connect.Request[dxpuv1.ListGPUsRequest]) (*connect.Response[dxpuv1.ListGPUsResponse], error) {
	res := &dxpuv1.ListGPUsResponse{}
	err := s.m.view(func(t *tx) error {
		c, err := cursorOf(req.Msg.PageSize, req.Msg.PageToken)
		if err != nil {
			return err
		}
		visible := scopeOf(ctx)
		res.Gpus, res.NextPageToken = collect(c, t.gpusFrom(visible, req.Msg, c.after), gpuKey, strings.Compare)
		return nil
	})
	return connect.NewResponse(res), err
}

// gpuKey orders GPUs by box and slot.
func gpuKey(g *dxpuv1.GPU) string { return sortable(g.BoxId+"\x00", uint64(g.Slot)) }

// gpusFrom returns the GPUs that pass the filters of a request, in order,
// starting at the box of a key.
func (t *tx) gpusFrom(visible scope, r *dxpuv1.ListGPUsRequest, after string) iter.Seq[*dxpuv1.GPU] {
	box, _, _ := strings.Cut(after, "\x00")
	return func(yield func(*dxpuv1.GPU) bool) {
		for id := range t.boxesFrom(visible, r, box) {
			n := t.nodes.get(id)
			for i := range n.Slots {
				if n.Slots[i].Device == nil {
					continue
				}
				g := t.gpuMessage(n, &n.Slots[i])
				if passes(g, r) && visible.gpu(t, g) && !yield(g) {
					return
				}
			}
		}
	}
}

func passes(g *dxpuv1.GPU, r *dxpuv1.ListGPUsRequest) bool {
	return (r.HostId == "" || r.HostId == g.HostId) && (r.LeaseId == "" || r.LeaseId == g.LeaseId) &&
		(r.Model == "" || r.Model == g.Device.Model) && (r.State == 0 || r.State == g.State) && (r.Health == 0 || r.Health == g.Health)
}

// boxesFrom returns the boxes that may have GPUs which pass the filters, in
// order, starting at an ID. The indexes narrow them down.
func (t *tx) boxesFrom(visible scope, r *dxpuv1.ListGPUsRequest, from string) iter.Seq[string] {
	t.reindex()
	boxes := t.boxIDs.from(from)
	switch {
	case r.BoxId != "":
		boxes = slices.Values([]string{r.BoxId})
	case r.LeaseId != "":
		boxes = t.boxesOf(slices.Values(t.bindingsByLease[r.LeaseId]))
	case r.HostId != "":
		boxes = t.boxesOf(maps.Keys(t.bindingsByNode[r.HostId]))
	case visible.host != "":
		boxes = t.boxesOf(maps.Keys(t.bindingsByNode[visible.host]))
	case !visible.all:
		boxes = t.boxesOf(func(yield func(string) bool) {
			for lease := range t.openLeasesOf(visible.tenant) {
				for _, b := range t.bindingsByLease[lease] {
					if !yield(b) {
						return
					}
				}
			}
		})
	}
	return filter(boxes, func(id string) bool {
		e, known := t.indexedNodes[id]
		return known && e.box && id >= from &&
			(r.State != dxpuv1.GPUState_GPU_STATE_BOUND || e.bound > 0) && (r.State != dxpuv1.GPUState_GPU_STATE_FREE || e.free > 0) &&
			(r.Model == "" || slices.ContainsFunc(e.models, func(m modelSum) bool { return m.model == r.Model }))
	})
}

// boxesOf returns the boxes of bindings, in order, each once.
func (t *tx) boxesOf(bindings iter.Seq[string]) iter.Seq[string] {
	set := map[string]bool{}
	for id := range bindings {
		set[t.indexedBindings[id].gpu.Box] = true
	}
	return slices.Values(slices.Sorted(maps.Keys(set)))
}

// GetGPU implements dxpuv1connect.PoolServiceHandler.
func (s *poolService) GetGPU(ctx context.Context, req *connect.Request[dxpuv1.GetGPURequest]) (*connect.Response[dxpuv1.GetGPUResponse], error) {
	res := &dxpuv1.GetGPUResponse{}
	err := s.m.view(func(t *tx) error {
		n, slot, ok := t.gpuByID(req.Msg.GpuId)
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
