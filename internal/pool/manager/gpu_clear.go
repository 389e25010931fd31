package manager

import (
	"context"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// ClearGPUErrors implements dxpuv1connect.PoolServiceHandler. The box goes on
// counting from its present values.
func (s *poolService) ClearGPUErrors(ctx context.Context, req *connect.Request[dxpuv1.ClearGPUErrorsRequest]) (*connect.Response[dxpuv1.ClearGPUErrorsResponse], error) {
	res := &dxpuv1.ClearGPUErrorsResponse{}
	err := s.m.update(ctx, func(t *tx) error {
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
	if err != nil {
		return nil, apiError(err)
	}
	return connect.NewResponse(res), nil
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
	if !was.usable() {
		t.announceReturn(id, slot, "an operator cleared its errors")
	}
}
