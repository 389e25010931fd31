package workload

// GraphEnds returns for each operation in a CUDA graph the one of its launch that ends last,
// and for each other operation itself. The next operation on the graph's stream comes after all
// of the branches, which may run on other streams, or be recorded on one.
func (w *Workload) GraphEnds() []int32 {
	out, last := make([]int32, len(w.Ops)), map[int32]int32{} // by call
	for i := range w.Ops {
		op := &w.Ops[i]
		out[i] = int32(i)
		if !w.inGraph(op) {
			continue
		}
		if end, ok := last[op.Call]; !ok || w.Ops[end].End() <= op.End() {
			last[op.Call] = int32(i)
		}
	}
	for i := range w.Ops {
		if op := &w.Ops[i]; w.inGraph(op) {
			out[i] = last[op.Call]
		}
	}
	return out
}

func (w *Workload) inGraph(op *Op) bool {
	return op.Call != None && w.Calls[op.Call].Kind == GraphLaunch
}
