package manager

import (
	"context"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// Cordon implements dxpuv1connect.PoolServiceHandler.
func (s *poolService) Cordon(ctx context.Context, req *connect.Request[dxpuv1.CordonRequest]) (*connect.Response[dxpuv1.CordonResponse], error) {
	c := &cordon{Reason: req.Msg.Reason}
	if err := s.m.cordon(ctx, req.Msg.Target, req.Msg.ResourceVersion, c); err != nil {
		return nil, apiError(err)
	}
	return connect.NewResponse(&dxpuv1.CordonResponse{}), nil
}

// Uncordon implements dxpuv1connect.PoolServiceHandler.
func (s *poolService) Uncordon(ctx context.Context, req *connect.Request[dxpuv1.UncordonRequest]) (*connect.Response[dxpuv1.UncordonResponse], error) {
	if err := s.m.cordon(ctx, req.Msg.Target, req.Msg.ResourceVersion, nil); err != nil {
		return nil, apiError(err)
	}
	return connect.NewResponse(&dxpuv1.UncordonResponse{}), nil
}

// cordon sets a target's cordon; nil removes it.
func (m *Manager) cordon(ctx context.Context, target *dxpuv1.Target, version uint64, c *cordon) error {
	return m.update(ctx, func(t *tx) error {
		n, err := t.target(target)
		if err != nil {
			return err
		}
		if version != 0 && version != n.ResourceVersion {
			return conflict("target", n.ID, n.ResourceVersion, version)
		}
		t.setCordon(target, c)
		return nil
	})
}

// target returns the node of a target.
func (t *tx) target(target *dxpuv1.Target) (*nodeRecord, error) {
	node := func(kind, id string, want dxpuv1.NodeKind) (*nodeRecord, error) {
		if n := t.nodes.get(id); n != nil && n.Kind == want && !n.Deleting {
			return n, nil
		}
		return nil, notFound(kind, id)
	}
	switch {
	case target.GetGpuId() != "":
		n, _, ok := t.gpuByID(target.GetGpuId())
		if !ok || n.Deleting {
			return nil, notFound("gpu", target.GetGpuId())
		}
		return n, nil
	case target.GetBoxId() != "":
		return node("box", target.GetBoxId(), dxpuv1.NodeKind_NODE_KIND_BOX)
	case target.GetHostId() != "":
		return node("host", target.GetHostId(), dxpuv1.NodeKind_NODE_KIND_HOST)
	}
	return nil, invalid("target: one of gpu_id, box_id and host_id must be set")
}

// setCordon sets or removes the cordon of a target that exists.
func (t *tx) setCordon(target *dxpuv1.Target, c *cordon) {
	n, err := t.target(target)
	if err != nil {
		return
	}
	n = t.nodes.edit(n.ID)
	n.ResourceVersion = t.revision()
	what := n.ID
	typ := dxpuv1.EventType_EVENT_TYPE_CORDONED
	if c == nil {
		typ = dxpuv1.EventType_EVENT_TYPE_UNCORDONED
	}
	e := nodeEvent(n, typ)
	if id := target.GetGpuId(); id != "" {
		_, s, _ := t.gpuByID(id) // of the editable record
		s.Cordon = c
		what, e.GpuId = id, id
	} else {
		n.Cordon = c
	}
	if c == nil {
		t.event(e, "%s takes new bindings again", what)
		return
	}
	text := what + " takes no new bindings"
	if c.Reason != "" {
		text += ": " + c.Reason
	}
	t.event(e, "%s", text)
}
