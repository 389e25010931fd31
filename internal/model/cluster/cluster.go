// Package cluster simulates how jobs fill a cluster of GPUs: with servers that own
// their GPUs, under the policies that schedulers use, and with a pool that gives any
// GPU to any host, placed by the manager's own package placement. A run is a pure
// function of its inputs and a seed.
package cluster

import (
	"fmt"
	"slices"
	"strings"
)

// Milli is one whole GPU, in thousandths.
const Milli = 1000

// MaxGPUs is the most GPUs of one node.
const MaxGPUs = 16

// Node is a server with its GPUs.
type Node struct {
	Name      string
	MilliCPU  int64 // thousandths of a core
	MemoryMiB int64
	GPUs      int
	Model     string // of its GPUs; "" if the trace does not tell
}

// Pod is a job that runs on one host.
type Pod struct {
	Name      string
	MilliCPU  int64
	MemoryMiB int64
	GPUs      int
	MilliGPU  int64 // of each GPU: Milli, or less for one GPU that is shared
	// Models are those that the pod accepts, separated by "|"; "": any.
	Models string
	// Created and Deleted are seconds from the trace's start; Deleted is 0 if the trace
	// has no times.
	Created, Deleted int64
	// Copies is the number of hosts that the job needs at the same time, each with what
	// the pod says; 0: one.
	Copies int
	// Profile is the name of what the job does with its GPUs; "" : not known.
	Profile string
}

// Demand returns the GPU that the pod asks for on one host, in thousandths.
func (p *Pod) Demand() int64 { return int64(p.GPUs) * p.MilliGPU }

// copies returns the number of hosts that the job needs.
func (p *Pod) copies() int { return max(p.Copies, 1) }

// total returns the GPU that the job asks for on all its hosts, in thousandths.
func (p *Pod) total() int64 { return int64(p.copies()) * p.Demand() }

// shared reports whether the pod asks for a fraction of one GPU.
func (p *Pod) shared() bool { return p.GPUs == 1 && p.MilliGPU < Milli }

// accepts reports whether the pod runs on a GPU model.
func (p *Pod) accepts(model string) bool {
	if strings.Trim(p.Models, "|") == "" {
		return true
	}
	for m := range strings.SplitSeq(p.Models, "|") {
		if m != "" && m == model {
			return true
		}
	}
	return false
}

// shape is what decides where a pod can run: pods of one shape are placed alike.
type shape struct {
	cpu, memory, milli int64
	gpus               int
	models             string
}

func (p *Pod) shape() shape { return shape{p.MilliCPU, p.MemoryMiB, p.MilliGPU, p.GPUs, p.Models} }

// server is a node and what is free on it.
type server struct {
	spec        *Node
	cpu, memory int64
	free        []int64 // thousandths of each GPU
	left        int64   // their sum
	// kinds counts the pods of each kind (gpuKind) that run here.
	kinds   [kinds]int
	version uint32 // changes with what is free
}

// Kinds of pods by their GPUs, for the clustering policy.
const (
	kindNone = iota
	kindShared
	kindWhole // and one kind for each number of whole GPUs
	kinds     = kindWhole + MaxGPUs
)

func gpuKind(p *Pod) int {
	switch {
	case p.GPUs == 0:
		return kindNone
	case p.shared():
		return kindShared
	}
	return kindWhole + p.GPUs - 1
}

func newServers(nodes []Node) []server {
	out := make([]server, len(nodes))
	for i := range nodes {
		n := &nodes[i]
		s := server{spec: n, cpu: n.MilliCPU, memory: n.MemoryMiB, free: slices.Repeat([]int64{Milli}, n.GPUs)}
		s.left = int64(n.GPUs) * Milli
		out[i] = s
	}
	return out
}

// fits reports whether the pod can run here.
func (s *server) fits(p *Pod) bool {
	if s.cpu < p.MilliCPU || s.memory < p.MemoryMiB {
		return false
	}
	if p.GPUs == 0 {
		return true
	}
	if s.left < p.Demand() || !p.accepts(s.spec.Model) {
		return false
	}
	n := 0
	for _, f := range s.free {
		if f >= p.MilliGPU {
			n++
		}
	}
	return n >= p.GPUs
}

// tightest returns the GPU with the least room that suffices for a fraction.
func (s *server) tightest(milli int64) int {
	best := -1
	for i, f := range s.free {
		if f >= milli && (best < 0 || f < s.free[best]) {
			best = i
		}
	}
	return best
}

// take gives the pod its resources; gpu is the GPU of a fraction.
func (s *server) take(p *Pod, gpu int) placed {
	s.cpu -= p.MilliCPU
	s.memory -= p.MemoryMiB
	s.left -= p.Demand()
	s.kinds[gpuKind(p)]++
	s.version++
	var mask uint32
	if p.shared() {
		s.free[gpu] -= p.MilliGPU
		mask = 1 << gpu
	} else {
		for i, n := 0, p.GPUs; n > 0; i++ {
			if s.free[i] == Milli {
				s.free[i] = 0
				mask |= 1 << i
				n--
			}
		}
	}
	return placed{gpus: mask}
}

// give takes the resources back.
func (s *server) give(p *Pod, at placed) {
	s.cpu += p.MilliCPU
	s.memory += p.MemoryMiB
	s.left += p.Demand()
	s.kinds[gpuKind(p)]--
	s.version++
	for i := range s.free {
		if at.gpus&(1<<i) != 0 {
			s.free[i] += p.MilliGPU
		}
	}
}

// placed is where a pod runs on its server.
type placed struct {
	node int
	gpus uint32 // bit mask
	use  int32  // number of a pool's record of it
}

// checkNodes returns an error for the first node that cannot be simulated.
func checkNodes(nodes []Node) error {
	if len(nodes) == 0 {
		return fmt.Errorf("cluster: no nodes")
	}
	gpus := 0
	for i := range nodes {
		if err := nodes[i].check(); err != nil {
			return fmt.Errorf("cluster: %w", err)
		}
		gpus += nodes[i].GPUs
	}
	if gpus == 0 {
		return fmt.Errorf("cluster: none of the %d nodes has a GPU", len(nodes))
	}
	return nil
}

func (n *Node) check() error {
	if n.GPUs < 0 || n.GPUs > MaxGPUs || n.MilliCPU < 0 || n.MemoryMiB < 0 {
		return fmt.Errorf("node %q: %d GPUs, %d millicores, %d MiB: want 0 to %d GPUs and nothing negative", n.Name, n.GPUs, n.MilliCPU, n.MemoryMiB, MaxGPUs)
	}
	return nil
}

// maxCopies bounds the hosts of one job.
const maxCopies = 1024

// checkPods does the same for pods.
func checkPods(pods []Pod) error {
	if len(pods) == 0 {
		return fmt.Errorf("cluster: no pods")
	}
	var demand int64
	for i := range pods {
		p := &pods[i]
		if err := p.check(); err != nil {
			return fmt.Errorf("cluster: %w", err)
		}
		demand += p.total()
	}
	if demand == 0 {
		return fmt.Errorf("cluster: none of the %d pods asks for a GPU", len(pods))
	}
	return nil
}

func (p *Pod) check() error {
	whole := p.GPUs >= 0 && p.GPUs <= MaxGPUs && (p.MilliGPU == Milli || p.GPUs == 0 && p.MilliGPU == 0)
	part := p.GPUs == 1 && p.MilliGPU > 0 && p.MilliGPU <= Milli
	if !whole && !part || p.Copies < 0 || p.Copies > maxCopies || p.MilliCPU < 0 || p.MilliCPU > maxNumber || p.MemoryMiB < 0 || p.MemoryMiB > maxNumber {
		return fmt.Errorf("pod %q: %d GPUs of %d thousandths, %d millicores, %d MiB: want 0 to %d whole GPUs (%d thousandths) or a part of one", p.Name, p.GPUs, p.MilliGPU, p.MilliCPU, p.MemoryMiB, MaxGPUs, Milli)
	}
	if p.Deleted > 0 && p.Deleted < p.Created {
		return fmt.Errorf("pod %q: deleted at %d s, before its creation at %d s", p.Name, p.Deleted, p.Created)
	}
	return nil
}

// totalGPU returns the GPU of all nodes, in thousandths.
func totalGPU(nodes []Node) int64 {
	var sum int64
	for i := range nodes {
		sum += int64(nodes[i].GPUs) * Milli
	}
	return sum
}

// withGPUs returns the nodes that have GPUs, in their order.
func withGPUs(nodes []Node) []Node {
	return slices.DeleteFunc(slices.Clone(nodes), func(n Node) bool { return n.GPUs == 0 })
}
