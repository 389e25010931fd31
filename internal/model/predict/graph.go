package predict

import (
	"time"

	"github.com/dxpu-project/dxpu/internal/model/workload"
)

// graphEnd returns the operation that ends last of the CUDA graph in which op is, or op: the next
// operation on the stream, and a wait for op, come after all branches of the graph, which may
// run on other streams. It returns op if the other one has not ended by t in the recording.
func (l *linker) graphEnd(op int32, t time.Duration) int32 {
	if op == none {
		return none
	}
	if end := l.graphEnds[op]; l.done[end] && l.w.Ops[end].End() <= t {
		return end
	}
	return op
}

// branchBefore returns the operation of another stream that ends last in the graph before
// operation i on its stream, or none.
func (l *linker) branchBefore(i, prev int32) int32 {
	op := &l.w.Ops[i]
	if prev == none || l.w.Ops[prev].Call == op.Call {
		return none
	}
	if end := l.graphEnd(prev, op.Start); l.w.Ops[end].Stream != op.Stream {
		return end
	}
	return none
}

// follows makes operation i the one that the next on its stream follows, unless it is a branch
// of a graph of which another one on this stream ends later.
func (l *linker) follows(i int32) {
	op := &l.w.Ops[i]
	last := l.lastOp[op.Stream]
	if last != none && op.Call != none && l.w.Ops[last].Call == op.Call && l.w.Calls[op.Call].Kind == workload.GraphLaunch && l.w.Ops[last].End() > op.End() {
		return
	}
	l.lastOp[op.Stream] = i
}

// mostNodes bounds how many operations graphPredecessor looks at.
const mostNodes = 64

// graphPredecessor returns the node of the same graph that ended last before operation i began,
// or none. Nodes of a graph depend on each other alone, whatever else ends at the same time.
func (l *linker) graphPredecessor(i int32) int32 {
	op := &l.w.Ops[i]
	if op.Call == none || l.w.Calls[op.Call].Kind != workload.GraphLaunch {
		return none
	}
	found := none
	for k := i - 1; k >= max(0, i-mostNodes); k-- {
		o := &l.w.Ops[k]
		if o.Call == op.Call && l.done[k] && o.End() <= op.Start && (found == none || o.End() > l.w.Ops[found].End()) {
			found = k
		}
	}
	return found
}

// node links a node of a graph to the one before it, and reports whether there is one.
func (l *linker) node(i int32) bool {
	before, o := l.graphPredecessor(i), &l.p.ops[i]
	switch {
	case before == none:
		return false
	case l.w.Ops[before].Stream == l.w.Ops[i].Stream:
		o.constraint = streamConstraint
	default:
		o.constraint, o.cross = crossConstraint, before
	}
	return true
}
