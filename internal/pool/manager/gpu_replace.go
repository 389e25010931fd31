package manager

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// ReplaceGPU implements dxpuv1connect.PoolServiceHandler.
func (s *poolService) ReplaceGPU(ctx context.Context, req *connect.Request[dxpuv1.ReplaceGPURequest]) (*connect.Response[dxpuv1.ReplaceGPUResponse], error) {
	res := &dxpuv1.ReplaceGPUResponse{}
	err := s.m.update(ctx, func(t *tx) error {
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
			return connect.NewError(connect.CodeResourceExhausted,
				fmt.Errorf("gpu_id: no other GPU fits lease %s; nothing was changed", b.LeaseID))
		}
		res.Binding = bindingMessage(next)
		res.Lease = t.leaseMessage(t.leases.get(b.LeaseID))
		return nil
	})
	if err != nil {
		return nil, apiError(err)
	}
	return connect.NewResponse(res), nil
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
	return nil, connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("gpu_id: %s is not leased; only leased GPUs can be replaced or plugged in again", id))
}

// gpuByID finds a GPU by its ID.
func (t *tx) gpuByID(id string) (*nodeRecord, *slotRecord, bool) {
	box, number, _ := strings.Cut(id, "/")
	slot, err := strconv.ParseUint(number, 10, 32)
	n := t.nodes.get(box)
	if err != nil || n == nil || n.Kind != dxpuv1.NodeKind_NODE_KIND_BOX || gpuID(box, uint32(slot)) != id {
		return nil, nil, false
	}
	s := n.slot(uint32(slot))
	return n, s, s != nil && s.Device != nil
}
