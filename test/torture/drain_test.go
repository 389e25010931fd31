package torture

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
)

// operator is the number of the client that drains boxes and hosts.
const operator = clients + admins

func (n *simNode) target() *dxpuv1.Target {
	if n.kind == dxpuv1.NodeKind_NODE_KIND_BOX {
		return &dxpuv1.Target{Target: &dxpuv1.Target_BoxId{BoxId: n.name}}
	}
	return &dxpuv1.Target{Target: &dxpuv1.Target_HostId{HostId: n.name}}
}

// operate drains one node after another and takes each back into service, also when the storm
// is over.
func (h *history) operate(storm, deadline context.Context, r *rand.Rand) error {
	for storm.Err() == nil {
		n := h.nodes[r.IntN(len(h.nodes))]
		first := r.IntN(len(h.managers))
		if err := h.setCordon(deadline, first, n, true, r); err != nil {
			return fmt.Errorf("operator: %w", err)
		}
		for range 1 + r.IntN(8) {
			wait(storm, 100*time.Millisecond)
			if err := h.lookAtDrain(deadline, first, n); err != nil {
				return fmt.Errorf("operator: %w", err)
			}
		}
		if err := h.setCordon(deadline, first, n, false, r); err != nil {
			return fmt.Errorf("operator: %w", err)
		}
		wait(storm, time.Duration(r.IntN(300))*time.Millisecond)
	}
	return nil
}

// setCordon drains a node that is still as the operator has read it, or takes it back into
// service. It repeats the call with another version, because the pool itself changes a node.
func (h *history) setCordon(ctx context.Context, first int, n *simNode, drain bool, r *rand.Rand) error {
	value := ""
	if drain {
		value = fmt.Sprintf("drained at %v", time.Since(h.start))
	}
	for {
		call := time.Now()
		_, version, err := h.readNode(ctx, operator, first, n)
		if err != nil {
			return err
		}
		if r.IntN(4) == 0 {
			version-- // the pool must refuse it
		}
		_, ambiguous, err := ask(ctx, h.pool, operator, first, func(ctx context.Context, api dxpuv1connect.PoolServiceClient) (any, error) {
			if !drain {
				return api.Uncordon(ctx, connect.NewRequest(&dxpuv1.UncordonRequest{Target: n.target(), ResourceVersion: version}))
			}
			req := &dxpuv1.DrainRequest{Target: n.target(), ResourceVersion: version, Reason: value}
			if r.IntN(2) == 0 {
				req.Deadline = durationpb.New(time.Duration(r.IntN(600)) * time.Millisecond)
			}
			return api.Drain(ctx, connect.NewRequest(req))
		})
		in := accessInput{kind: "put", key: n.name, version: version, value: value, loose: true}
		at, isConflict := currentVersion(err)
		switch {
		case err != nil && !isConflict:
			return fmt.Errorf("%s: %w", n.name, err)
		case isConflict && !ambiguous:
			h.recordAccess(operator, call, in, accessOutput{conflict: true, version: at})
			continue
		case isConflict: // no other caller changes the cordon
			node, _, err := h.readNodeSilently(ctx, operator, first, n)
			if err != nil {
				return err
			}
			if node.CordonReason != value {
				continue
			}
		}
		h.recordAccess(operator, call, in, accessOutput{})
		return nil
	}
}

// readNode reads the cordon of a node.
func (h *history) readNode(ctx context.Context, client, first int, n *simNode) (*dxpuv1.NodeInfo, uint64, error) {
	call := time.Now()
	node, version, err := h.readNodeSilently(ctx, client, first, n)
	if err == nil {
		h.recordAccess(client, call, accessInput{kind: "read", key: n.name, loose: true}, accessOutput{version: version, value: node.CordonReason})
	}
	return node, version, err
}

func (p *pool) readNodeSilently(ctx context.Context, client, first int, n *simNode) (*dxpuv1.NodeInfo, uint64, error) {
	if n.kind == dxpuv1.NodeKind_NODE_KIND_BOX {
		res, _, err := ask(ctx, p, client, first, func(ctx context.Context, api dxpuv1connect.PoolServiceClient) (*connect.Response[dxpuv1.GetBoxResponse], error) {
			return api.GetBox(ctx, connect.NewRequest(&dxpuv1.GetBoxRequest{BoxId: n.name}))
		})
		if err != nil {
			return nil, 0, fmt.Errorf("get box %s: %w", n.name, err)
		}
		return res.Msg.Box.Node, res.Msg.Box.ResourceVersion, nil
	}
	res, _, err := ask(ctx, p, client, first, func(ctx context.Context, api dxpuv1connect.PoolServiceClient) (*connect.Response[dxpuv1.GetHostResponse], error) {
		return api.GetHost(ctx, connect.NewRequest(&dxpuv1.GetHostRequest{HostId: n.name}))
	})
	if err != nil {
		return nil, 0, fmt.Errorf("get host %s: %w", n.name, err)
	}
	return res.Msg.Host.Node, res.Msg.Host.ResourceVersion, nil
}

// lookAtDrain checks that a node that is said to be drained has nothing.
func (h *history) lookAtDrain(ctx context.Context, first int, n *simNode) error {
	node, _, err := h.readNode(ctx, operator, first, n)
	if err == nil && node.Drained && n.serves() {
		h.violate("%s is said to be drained: %v", n.name, n)
	}
	return err
}

// serves reports whether a slot has a binding that does not come from an old disk.
func (n *simNode) serves() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := range n.have {
		if s := &n.have[i]; s.has != nil && s.state != lost && !s.hasOld {
			return true
		}
	}
	return false
}

// checkCordons checks by the events of the pool that no node got a binding while it was
// drained. A lease that a draining host has already gets its next GPU there.
func checkCordons(events []*dxpuv1.Event) error {
	cordoned := map[string]bool{}
	placed := map[string]bool{} // bindings
	at := map[string]string{}   // lease: its host
	for _, e := range events {
		switch e.Type {
		case dxpuv1.EventType_EVENT_TYPE_CORDONED:
			cordoned[e.BoxId+e.HostId] = true
		case dxpuv1.EventType_EVENT_TYPE_UNCORDONED:
			delete(cordoned, e.BoxId+e.HostId)
		case dxpuv1.EventType_EVENT_TYPE_BINDING_STATE:
			if placed[e.BindingId] {
				continue
			}
			placed[e.BindingId] = true
			if cordoned[e.BoxId] || cordoned[e.HostId] && at[e.LeaseId] != e.HostId {
				return fmt.Errorf("binding %s of lease %s was placed while its box or host was drained: %v", e.BindingId, e.LeaseId, e)
			}
			at[e.LeaseId] = e.HostId
		}
	}
	return nil
}
