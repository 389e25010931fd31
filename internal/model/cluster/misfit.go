package cluster

import (
	"fmt"
	"slices"
	"strings"
)

// misfits counts the jobs that not even an empty server can run, by the first reason. A
// list whose models or sizes are not those of the servers gives figures that mean nothing
// without this.
type misfits struct{ models, gpus, other int }

func (m misfits) all() int { return m.models + m.gpus + m.other }

// String is empty if each job fits somewhere.
func (m misfits) String() string {
	var why []string
	for _, r := range []struct {
		n    int
		what string
	}{{m.models, "accept no model that a server has"}, {m.gpus, "want more GPUs than a server has"}, {m.other, "want more processors or memory than a server with their GPUs has"}} {
		if r.n > 0 {
			why = append(why, fmt.Sprintf("%d %s", r.n, r.what))
		}
	}
	return strings.Join(why, ", ")
}

// countMisfits compares the jobs with empty servers.
func countMisfits(nodes []Node, pods []Pod) misfits {
	best := largest(nodes)
	var out misfits
	known := map[shape]*int{}
	for i := range pods {
		p := &pods[i]
		n, ok := known[p.shape()]
		if !ok {
			n = out.reason(best, p)
			known[p.shape()] = n
		}
		if n != nil {
			*n++
		}
	}
	return out
}

// reason returns the count of the reason why a pod fits on no node, or nil.
func (m *misfits) reason(nodes []Node, p *Pod) *int {
	model, gpus := false, false
	for i := range nodes {
		n := &nodes[i]
		if p.GPUs > 0 && !p.accepts(n.Model) {
			continue
		}
		model = true
		if n.GPUs < p.GPUs {
			continue
		}
		gpus = true
		if n.MilliCPU >= p.MilliCPU && n.MemoryMiB >= p.MemoryMiB {
			return nil
		}
	}
	switch {
	case !model:
		return &m.models
	case !gpus:
		return &m.gpus
	}
	return &m.other
}

// largest returns the nodes that no other node of their model exceeds.
func largest(nodes []Node) []Node {
	var out []Node
	covers := func(a, b Node) bool {
		return a.Model == b.Model && a.GPUs >= b.GPUs && a.MilliCPU >= b.MilliCPU && a.MemoryMiB >= b.MemoryMiB
	}
	for _, n := range nodes {
		if slices.ContainsFunc(out, func(a Node) bool { return covers(a, n) }) {
			continue
		}
		out = append(slices.DeleteFunc(out, func(a Node) bool { return covers(n, a) }), n)
	}
	return out
}
