package manager

import (
	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// A machine that shares its own GPUs is two nodes: a box with the GPUs, and a host for the
// programs. Each names the other as its local peer. No data go over the network, so the
// GPUs are for this host alone, and the host has no others: a taint that only leases with
// the name of the host tolerate keeps all other leases away from both.

// localTaint is the taint of nodes with a local peer. They have one in common, however
// many machines there are: placement looks at each set of taints.
var localTaint = placement.Taint{Key: "dxpu.dev/local", Effect: placement.Local}

var localToleration = placement.Toleration{Key: localTaint.Key, Effect: localTaint.Effect}

// localBox returns the box with the GPUs of a host that has no others; "" for none.
func (t *tx) localBox(host string) string {
	n := t.nodes.get(host)
	if n == nil || n.Kind != dxpuv1.NodeKind_NODE_KIND_HOST {
		return ""
	}
	return n.LocalPeer
}

// keepLocal restricts a request for a host to the GPUs of its machine.
func (t *tx) keepLocal(req *placement.Request, host string) {
	box := t.localBox(host)
	if box == "" {
		return
	}
	req.Box = box
	n := t.nodes.get(box)
	if n != nil && n.LocalPeer == host { // otherwise the box is not the host's
		req.Tolerations = append(req.Tolerations, localToleration)
	}
	if n == nil {
		n = &nodeRecord{ID: box}
	}
	req.Several = n.SeveralGPUs
	if len(req.Only) == 0 {
		req.Only = n.gpuRefs()
	}
}

// gpuRefs returns the GPUs of a box, or its first slot if it has reported none.
func (n *nodeRecord) gpuRefs() (out []placement.Ref) {
	for _, s := range n.Slots {
		if s.Device != nil && s.PartOf == nil {
			out = append(out, placement.Ref{Box: n.ID, Slot: s.Slot})
		}
	}
	if len(out) == 0 {
		out = append(out, placement.Ref{Box: n.ID})
	}
	return out
}
