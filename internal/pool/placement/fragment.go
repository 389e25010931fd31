package placement

import (
	"cmp"
	"slices"
)

// A GPU is fragmented as far as typical requests cannot use what is left of it: the
// room, weighted by the share of the requests that do not fit there. A part goes where
// it adds least to the fragmentation (fragmentation gradient descent; Weng et al.,
// "Beware of Fragmentation", USENIX ATC 2023). Room is the mean of the shares of memory
// and compute. The sums are integers, so that equal pools decide alike on every machine.

// Typical is a kind of request and how often it occurs.
type Typical struct {
	Model   string // exact; empty: any
	Memory  uint64 // bytes of one GPU; 0 with Compute Whole: all
	Compute uint32 // thousandths of one GPU
	Count   int
}

// Interference is the measured slow-down of programs that share a GPU: the part of its
// speed that the first one of a pair loses beside the second, in thousandths.
type Interference map[[2]string]uint32

// maxTypical bounds the kinds of requests that count: the most frequent ones.
const maxTypical = 64

// million is the sum of the weights of typical requests.
const million = 1_000_000

// SetTypical sets the kinds of requests that the pool gets. A few requests of usual sizes
// count beside them (usualRequests), so that the first leases of a pool decide little.
func (p *Pool) SetTypical(requests []Typical) {
	all := slices.SortedFunc(slices.Values(slices.Concat(requests, usualRequests)), func(a, b Typical) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Model, b.Model), cmp.Compare(a.Compute, b.Compute), cmp.Compare(a.Memory, b.Memory))
	})
	all = all[:min(len(all), maxTypical)]
	p.typical, p.losses = all, map[lossKey]*loss{}
}

// SetInterference sets the slow-downs of programs. It must not change afterwards.
func (p *Pool) SetInterference(slow Interference) {
	p.interference = slow
	for _, b := range p.boxes {
		p.unsetShared(b.ID)
		p.setShared(&b.Box)
	}
}

// usualRequests stand for requests that are not known: half of them are for whole GPUs.
var usualRequests = []Typical{
	{Compute: Whole, Count: 8}, {Compute: 500, Count: 4}, {Compute: 250, Count: 2}, {Compute: 125, Count: 2},
}

type lossKey struct {
	model  string
	memory uint64
}

// loss tells for a kind of GPU which share of the typical requests does not fit into some
// room. It has one row for each step of compute, and one column for each of memory.
type loss struct {
	row, column [Whole + 1]uint8
	misses      [][]int64 // of million
	memories    []uint32  // thousandths at which the columns begin
}

// lossOf returns the losses of a kind of GPU.
func (p *Pool) lossOf(model string, memory uint64) *loss {
	k := lossKey{model, memory}
	if l := p.losses[k]; l != nil {
		return l
	}
	typical := p.typical
	if len(typical) == 0 {
		typical = usualRequests
	}
	l := newLoss(typical, model, memory)
	p.losses[k] = l
	return l
}

// need is what a typical request takes of a GPU, in thousandths.
type need struct {
	compute, memory uint32
	weight          int64
}

func newLoss(typical []Typical, model string, memory uint64) *loss {
	sum := 0
	for _, t := range typical {
		sum += t.Count
	}
	var needs []need
	computes, memories := []uint32{0}, []uint32{0}
	for _, t := range typical {
		n := need{compute: t.Compute, memory: permilleUp(t.Memory, memory), weight: int64(t.Count) * million / int64(max(1, sum))}
		if t.Memory == 0 { // whole GPUs, and requests that were made in thousandths only
			n.memory = t.Compute
		}
		if t.Model != "" && t.Model != model || t.Memory > memory {
			continue // it never fits
		}
		needs = append(needs, n)
		computes, memories = append(computes, n.compute), append(memories, n.memory)
	}
	slices.Sort(computes)
	slices.Sort(memories)
	computes, memories = slices.Compact(computes), slices.Compact(memories)
	l := &loss{misses: make([][]int64, len(computes)), memories: memories}
	for i := range computes {
		l.misses[i] = make([]int64, len(memories))
	}
	for _, n := range needs {
		i, _ := slices.BinarySearch(computes, n.compute)
		j, _ := slices.BinarySearch(memories, n.memory)
		l.misses[i][j] += n.weight
	}
	for i, row := range l.misses { // sums over all that need less
		for j := range row {
			if j > 0 {
				row[j] += row[j-1]
			}
		}
		for j := range row {
			if i > 0 {
				row[j] += l.misses[i-1][j]
			}
		}
	}
	for _, row := range l.misses {
		for j := range row {
			row[j] = million - row[j]
		}
	}
	steps(&l.row, computes)
	steps(&l.column, memories)
	return l
}

// steps sets for each number of thousandths the last step that it reaches.
func steps(to *[Whole + 1]uint8, at []uint32) {
	step := 0
	for v := range to {
		for step+1 < len(at) && int(at[step+1]) <= v {
			step++
		}
		to[v] = uint8(step)
	}
}

// missesAt returns the share of the typical requests that do not fit into a room, of
// million.
func (l *loss) missesAt(compute, memory uint32) int64 {
	return l.misses[l.row[compute]][l.column[memory]]
}

// fragmented returns how much of a room typical requests cannot use, in millionths of
// the GPU times 2000.
func (l *loss) fragmented(compute, memory uint32) int64 {
	return int64(compute+memory) * l.missesAt(compute, memory)
}

// gradient returns by how much a part adds to the fragmentation of a GPU, in the unit of
// fragmented. The need of the part is rounded up on its own, so that GPUs with more room in the
// same steps never have a smaller gradient: the search counts on that (searchpart.go).
func (l *loss) gradient(r room, memory uint64, p *Part) int64 {
	has, needs := permille(r.memory, memory), permilleUp(p.Memory, memory)
	return l.fragmented(r.compute-p.Compute, has-min(has, needs)) - l.fragmented(r.compute, has)
}

// slowdown returns the compute that a part and its neighbours lose by their interference,
// in the unit of fragmented.
func (s Interference) slowdown(p *Part, beside []neighbour) int64 {
	var lost int64 // thousandths of thousandths of a GPU
	for _, n := range beside {
		lost += int64(p.Compute)*int64(s[[2]string{p.Workload, n.workload}]) + int64(n.compute)*int64(s[[2]string{n.workload, p.Workload}])
	}
	return lost * 2 * Whole // a thousandth of a GPU is 2 million units
}

// neighbour is a part with a program whose interference may be known.
type neighbour struct {
	workload string
	compute  uint32
}
