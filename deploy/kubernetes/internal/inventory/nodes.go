package inventory

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// leftOut is what keeps devices from nodes: those that have no host, and those whose host takes
// no GPU now, or none but the GPUs of its own machine.
type leftOut struct {
	hosts []string // sorted
	// nodes are those that get no GPU, sorted, if they are few: nil otherwise.
	nodes []string
	named bool // nodes has all of them
}

// maxNamed is the largest number of nodes that a selector names. The scheduler parses the selector
// of each slice for each claim and node: the names of 16 nodes cost it less than a label.
const maxNamed = 16

func leaveOut(s State) (out leftOut) {
	for id, h := range s.Hosts {
		if h.Node.GetLocalPeer() != "" || closed(h, s.Queued[id]) {
			out.hosts = append(out.hosts, id)
		}
	}
	slices.Sort(out.hosts)
	for node, host := range s.Nodes {
		// A node that names a host which the pool does not have stays: its claims fail, and say so.
		if _, shut := slices.BinarySearch(out.hosts, host); shut || host == "" {
			out.nodes = append(out.nodes, node)
		}
	}
	slices.Sort(out.nodes)
	if out.named = s.Nodes != nil && len(out.nodes) <= maxNamed; !out.named {
		out.nodes = nil
	}
	return out
}

// localBoxes returns the boxes whose GPUs only the host on their machine may have, and for each
// the node of this host: "" if the host takes no GPU now, has no node, or does not name the box.
// Of several nodes of one host it is the first: claims there fail, and say why.
func localBoxes(s State) map[string]string {
	out, nodes := map[string]string{}, map[string]string{}
	for node, host := range s.Nodes {
		if first, ok := nodes[host]; !ok || node < first {
			nodes[host] = node
		}
	}
	for _, g := range s.GPUs {
		if _, seen := out[g.BoxId]; seen || g.LocalHost == "" {
			continue
		}
		out[g.BoxId] = ""
		if h := s.Hosts[g.LocalHost]; h != nil && h.Node.GetLocalPeer() == g.BoxId && !closed(h, s.Queued[g.LocalHost]) {
			out[g.BoxId] = nodes[g.LocalHost]
		}
	}
	return out
}

func (l leftOut) equal(o leftOut) bool {
	if l.named && o.named {
		return slices.Equal(l.nodes, o.nodes)
	}
	return l.named == o.named && slices.Equal(l.hosts, o.hosts)
}

// pool returns a resource pool for the nodes that get GPUs. One for all nodes costs the scheduler
// nothing; it parses the selector of another for each claim and node.
func (l leftOut) pool() resourceslice.Pool {
	if l.named && len(l.nodes) == 0 {
		return resourceslice.Pool{AllNodes: true}
	}
	return resourceslice.Pool{NodeSelector: l.selector()}
}

// selector returns the selector of the nodes that get GPUs, if some get none.
func (l leftOut) selector() *corev1.NodeSelector {
	if !l.named {
		nodes := []corev1.NodeSelectorRequirement{{Key: HostLabel, Operator: corev1.NodeSelectorOpExists}}
		if len(l.hosts) > 0 {
			nodes = append(nodes, corev1.NodeSelectorRequirement{Key: HostLabel, Operator: corev1.NodeSelectorOpNotIn, Values: l.hosts})
		}
		return &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: nodes}}}
	}
	return named(corev1.NodeSelectorOpNotIn, l.nodes...)
}

// noNode is a name that no node has: names below "invalid" are reserved (RFC 6761).
const noNode = "no-node.dxpu.invalid"

func noNodes() *corev1.NodeSelector { return named(corev1.NodeSelectorOpIn, noNode) }

// named returns a selector by the names of nodes.
func named(is corev1.NodeSelectorOperator, nodes ...string) *corev1.NodeSelector {
	var fields []corev1.NodeSelectorRequirement
	for _, n := range nodes { // a field takes one value
		fields = append(fields, corev1.NodeSelectorRequirement{Key: metav1.ObjectNameField, Operator: is, Values: []string{n}})
	}
	return &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: fields}}}
}

// closed reports whether a host takes no further GPU: the scheduler keeps away from its node.
// A pod that runs there keeps its GPUs.
func closed(h *dxpuv1.Host, queued int) bool { return Shut(h, 0) != "" || FreeSlots(h) <= queued }

// Shut returns why a host takes no GPU now, nor soon, "" if it takes one. leaving is the number
// of its slots whose GPUs are being released, less those that are known to be taken since.
func Shut(h *dxpuv1.Host, leaving int) string {
	switch n := h.Node; {
	case !n.GetConnected():
		return "does not report"
	case n.GetDraining():
		return "is being drained"
	case n.GetCordoned():
		return "is cordoned"
	case n.GetUnstable():
		return "was lost too often recently"
	case len(n.GetTaints()) > 0:
		return "has a taint of the pool"
	case FreeSlots(h)+leaving <= 0:
		return "has no free slot"
	}
	return ""
}

// FreeSlots returns the number of slots of a host that no binding has.
func FreeSlots(h *dxpuv1.Host) (n int) {
	for _, s := range h.Slots {
		if s.BindingId == "" {
			n++
		}
	}
	return n
}

// keep lets the boxes without a free device leave out the nodes that they left out before. The
// selector is in all slices, so each host that becomes full would be a write for each box; of these
// boxes the scheduler can allocate nothing, on any node, and in a pool that is nearly full they are
// nearly all.
func (i *Inventory) keep(before *Inventory, free map[string]bool) {
	i.kept = map[string]leftOut{}
	if before == nil {
		return
	}
	for box, has := range free {
		if was, published := before.leftOf(box); !has && published && !was.equal(i.left) {
			i.kept[box] = was
		}
	}
}

// leftOf returns what the slices of a box leave out, if it has some.
func (i *Inventory) leftOf(box string) (leftOut, bool) {
	if left, is := i.kept[box]; is {
		return left, true
	}
	return i.left, i.boxes[box]
}

// SameClosed reports whether two inventories leave out the same nodes.
func (i *Inventory) SameClosed(o *Inventory) bool { return i.left.equal(o.left) }

// KeepClosed makes the inventory leave out the nodes that another one leaves out. It
// reports whether it left out others.
func (i *Inventory) KeepClosed(o *Inventory) bool {
	changed := !i.SameClosed(o)
	i.left = o.left
	return changed
}
