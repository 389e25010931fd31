package manager

import (
	"context"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

func (s *poolService) ListGPUs(ctx context.Context, req *connect.Request[dxpuv1.ListGPUsRequest]) (*connect.Response[dxpuv1.ListGPUsResponse], error) {
	return viewResponse(ctx, s.m, func(t *tx, res *dxpuv1.ListGPUsResponse) (err error) {
		gpus := func(after string) iter.Seq[*dxpuv1.GPU] { return t.gpusFrom(scopeOf(ctx), req.Msg, after) }
		res.Revision = t.meta.Revision
		res.Gpus, res.NextPageToken, err = listPage(req.Msg, gpuKey, strings.Compare, gpus, same)
		return err
	})
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
			parts := t.partsOfAll(n)
			for i := range n.Slots {
				if n.Slots[i].Device == nil || n.Slots[i].PartOf != nil {
					continue
				}
				g := t.gpuMessageWith(n, &n.Slots[i], parts)
				if passes(g, r) && visible.gpu(t, g) && !yield(g) {
					return
				}
			}
		}
	}
}

func passes(g *dxpuv1.GPU, r *dxpuv1.ListGPUsRequest) bool {
	has := func(of func(*dxpuv1.GPUPart) bool) bool { return slices.ContainsFunc(g.Parts, of) }
	return (r.HostId == "" || r.HostId == g.HostId || has(func(p *dxpuv1.GPUPart) bool { return p.HostId == r.HostId })) &&
		(r.LeaseId == "" || r.LeaseId == g.LeaseId || has(func(p *dxpuv1.GPUPart) bool { return p.LeaseId == r.LeaseId })) &&
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

func (s *poolService) GetGPU(ctx context.Context, req *connect.Request[dxpuv1.GetGPURequest]) (*connect.Response[dxpuv1.GetGPUResponse], error) {
	return viewResponse(ctx, s.m, func(t *tx, res *dxpuv1.GetGPUResponse) error {
		n, slot, ok := t.gpuByID(req.Msg.GpuId)
		if ok {
			res.Gpu = t.gpuMessage(n, slot)
			if scopeOf(ctx).all {
				res.Gpu.History = t.historyOf(res.Gpu)
			}
		}
		if !ok || !scopeOf(ctx).gpu(t, res.Gpu) {
			return notFound("gpu", req.Msg.GpuId)
		}
		return nil
	})
}

func (s *poolService) ReplaceGPU(ctx context.Context, req *connect.Request[dxpuv1.ReplaceGPURequest]) (*connect.Response[dxpuv1.ReplaceGPUResponse], error) {
	return updateResponse(ctx, s.m, func(t *tx, res *dxpuv1.ReplaceGPUResponse) error {
		id := req.Msg.RequestId
		old := t.bindings.get(t.replacedByRequest[id])
		if old == nil && id != "" { // its lease may have ended since
			if err := t.needEnded(); err != nil {
				return err
			}
		}
		if old != nil && id != "" {
			if old.gpuID() != req.Msg.GpuId {
				return errorf(connect.CodeAlreadyExists, "request_id: %q was used to replace GPU %s; use a new one", id, old.gpuID())
			}
			t.answerReplace(old, res)
			return nil
		}
		b, err := t.leasedGPU(req.Msg.GpuId)
		if err != nil {
			return err
		}
		if req.Msg.Cordon {
			t.setCordon(&dxpuv1.Target{Target: &dxpuv1.Target_GpuId{GpuId: req.Msg.GpuId}}, &cordon{Reason: "replaced by an operator"})
		}
		t.release(b.ID, dxpuv1.Reason_REASON_REPLACED, true)
		t.replace([]string{b.ID})
		next := t.bindings.get(t.bindings.get(b.ID).Successor)
		if next == nil {
			why := t.findReplacements(t.leases.get(b.LeaseID), []string{b.ID}).Why // callers are operators: they see all of it
			return errorf(connect.CodeResourceExhausted, "gpu_id: no other GPU fits lease %s, and nothing was changed: %s", b.LeaseID, strings.Join(why, " "))
		}
		t.bindings.edit(b.ID).ReplaceRequest = id
		t.answerReplace(t.bindings.get(b.ID), res)
		return nil
	})
}

// answerReplace fills in the answer for a binding that was replaced.
func (t *tx) answerReplace(old *bindingRecord, res *dxpuv1.ReplaceGPUResponse) {
	if next := t.bindings.get(old.Successor); next != nil {
		res.Binding = bindingMessage(next)
	}
	if l := t.leases.get(old.LeaseID); l != nil {
		res.Lease = t.leaseMessage(l)
	}
}

// leasedGPU returns the binding by which a lease has a GPU.
func (t *tx) leasedGPU(id string) (*bindingRecord, error) {
	n, s, ok := t.gpuByID(id)
	if !ok {
		return nil, notFound("gpu", id)
	}
	if b := t.holderOf(placement.Ref{Box: n.ID, Slot: s.Slot}); b != nil && b.serving() {
		return b, nil
	}
	return nil, errorf(connect.CodeFailedPrecondition, "gpu_id: %s is not leased; only leased GPUs can be replaced or plugged in again", id)
}

// gpuByID returns a GPU by its ID, also one that is gone and has left a cordon or a
// quarantine, which an operator may want to end.
func (t *tx) gpuByID(id string) (*nodeRecord, *slotRecord, bool) {
	r, ok := parseGPU(id)
	n := t.nodes.get(r.Box)
	if !ok || n == nil || n.Kind != dxpuv1.NodeKind_NODE_KIND_BOX {
		return nil, nil, false
	}
	s := n.slot(r.Slot)
	return n, s, s != nil && (s.Device != nil || s.keeps())
}

// parseGPU parses the ID of a GPU, "BOX/SLOT".
func parseGPU(id string) (placement.Ref, bool) {
	box, number, _ := strings.Cut(id, "/")
	slot, err := strconv.ParseUint(number, 10, 32)
	r := placement.Ref{Box: box, Slot: uint32(slot)}
	return r, err == nil && box != "" && r.String() == id
}

// ClearGPUErrors implements dxpuv1connect.PoolServiceHandler. The box goes on
// counting from its present values.
func (s *poolService) ClearGPUErrors(ctx context.Context, req *connect.Request[dxpuv1.ClearGPUErrorsRequest]) (*connect.Response[dxpuv1.ClearGPUErrorsResponse], error) {
	return updateResponse(ctx, s.m, func(t *tx, res *dxpuv1.ClearGPUErrorsResponse) error {
		n, slot, ok := t.gpuByID(req.Msg.GpuId)
		if !ok {
			return notFound("gpu", req.Msg.GpuId)
		}
		if slot.Fault != nil {
			t.clearErrors(n.ID, slot.Slot)
		}
		n, slot, _ = t.gpuByID(req.Msg.GpuId)
		res.Gpu = t.gpuMessage(n, slot)
		return nil
	})
}

func (t *tx) clearErrors(id string, slot uint32) {
	was := t.nodes.get(id).slot(slot).Fault
	t.editFault(id, slot, func(c *faultRecord) {
		*c = faultRecord{Serial: was.Serial, Instance: was.Instance, Reset: was.Reset, Done: was.Reset}
		for _, e := range was.Errors {
			c.Errors = append(c.Errors, errorCount{Code: e.Code, Seen: e.Seen})
		}
	})
	if was.Reset != was.Done {
		t.touch(id) // the reset is no longer wanted
	}
	n := t.nodes.edit(id)
	why := t.whyOutOfService(n, n.slot(slot))
	switch {
	case was.usable():
		if slices.ContainsFunc(was.Errors, func(e errorCount) bool { return e.Count > 0 }) {
			n.ResourceVersion = t.revision()
			e := gpuEvent(n, slot, dxpuv1.EventType_EVENT_TYPE_GPU_HEALTH)
			t.event(e, "an operator cleared the error counts of GPU %s", e.GpuId)
		}
	case why == "":
		t.announceReturn(id, slot, "an operator cleared its errors")
	default:
		n.ResourceVersion = t.revision()
		e := gpuEvent(n, slot, dxpuv1.EventType_EVENT_TYPE_GPU_HEALTH)
		t.event(e, "an operator cleared the errors of GPU %s, which stays out of service: %s", e.GpuId, why)
	}
}

// whyOutOfService returns why a GPU without errors gets no bindings, "" if it may get some.
func (t *tx) whyOutOfService(n *nodeRecord, s *slotRecord) string {
	switch {
	case s.Device == nil:
		return "it is gone"
	case s.Cordon != nil:
		return "it is cordoned"
	case s.Health != dxpuv1.Health_HEALTH_OK:
		return "it is " + healthWord(s.Health)
	case !t.connected(n.ID):
		return "its box does not report"
	case n.Cordon != nil:
		return "its box is cordoned"
	case !n.takesBindings():
		return "its box is unstable"
	}
	return ""
}
