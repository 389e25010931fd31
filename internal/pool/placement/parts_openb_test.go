package placement_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/dxpu-project/dxpu/internal/model/cluster"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// fgdDefault is the GPU allocation of FGD at a demand of 100 %, in per cent: the mean of
// ten runs of its authors' simulator on the list "default" (USENIX ATC 2023, Figure 7).
const fgdDefault = 95.23

const gpuMemory = 16 << 30

// openbPool is the GPUs of the list in boxes of eight, and its nodes as hosts without GPUs.
type openbPool struct {
	*placement.Pool
	hosts []cluster.Node
	boxes map[string]*placement.Box
	gpus  int64
}

func newOpenbPool(nodes []cluster.Node, pods []cluster.Pod) *openbPool {
	p := &openbPool{Pool: placement.NewPool(), hosts: slices.Clone(nodes), boxes: map[string]*placement.Box{}}
	byModel := map[string]int{}
	for _, n := range nodes {
		byModel[n.Model] += n.GPUs
	}
	for model, left := range byModel {
		for ; left > 0; left -= 8 {
			b := &placement.Box{ID: fmt.Sprintf("%s-%05d", model, left), Kind: placement.PCIeSwitch}
			for slot := range uint32(min(left, 8)) {
				b.GPUs = append(b.GPUs, placement.GPU{Slot: slot, Model: model, Memory: gpuMemory, Usable: true, Free: true, Modes: placement.NewShareModes(placement.Space)})
				for k := range uint32(16) {
					b.Parts = append(b.Parts, placement.PartSlot{Slot: 8 + 16*slot + k, GPU: slot, Usable: true})
				}
			}
			p.gpus += int64(len(b.GPUs))
			p.boxes[b.ID] = b
			p.SetBox(*b)
		}
	}
	count := map[int64]int{}
	for _, pod := range pods {
		if pod.GPUs > 0 {
			count[pod.MilliGPU]++
		}
	}
	var typical []placement.Typical
	for milli, n := range count {
		typical = append(typical, placement.Typical{Compute: uint32(milli), Count: n})
	}
	p.SetTypical(typical)
	return p
}

// bestHost returns the host with the fewest processors left that suffice, -1 for none.
func (p *openbPool) bestHost(pod *cluster.Pod) int {
	best := -1
	for i := range p.hosts {
		h := &p.hosts[i]
		if h.MilliCPU >= pod.MilliCPU && h.MemoryMiB >= pod.MemoryMiB && (best < 0 || h.MilliCPU < p.hosts[best].MilliCPU) {
			best = i
		}
	}
	return best
}

// place returns the thousandths of GPUs that the pod got.
func (p *openbPool) place(pod *cluster.Pod) int64 {
	host := p.bestHost(pod)
	if host < 0 {
		return 0
	}
	if pod.GPUs > 0 {
		req := placement.Request{Count: pod.GPUs}
		if pod.MilliGPU < cluster.Milli {
			req.Part = &placement.Part{Memory: uint64(pod.MilliGPU) * gpuMemory / 1000, Compute: uint32(pod.MilliGPU)}
		}
		d := p.Place(placement.Reserve{}, req)
		if !d.OK() {
			return 0
		}
		for _, r := range d.Picks {
			p.take(r, req.Part)
		}
	}
	p.hosts[host].MilliCPU -= pod.MilliCPU
	p.hosts[host].MemoryMiB -= pod.MemoryMiB
	return pod.Demand()
}

func (p *openbPool) take(r placement.Ref, part *placement.Part) {
	b := p.boxes[r.Box]
	b.GPUs, b.Parts = slices.Clone(b.GPUs), slices.Clone(b.Parts)
	gpu := r.Slot
	if part != nil {
		s := &b.Parts[slices.IndexFunc(b.Parts, func(s placement.PartSlot) bool { return s.Slot == r.Slot })]
		s.Taken, s.Part, gpu = true, *part, s.GPU
		s.Part.Share = placement.Space
	}
	g := &b.GPUs[slices.IndexFunc(b.GPUs, func(g placement.GPU) bool { return g.Slot == gpu })]
	g.Free, g.Whole = false, part == nil
	p.SetBox(*b)
}

// TestPartsOfOpenb fills the GPUs of Alibaba's cluster with its pods: fractions are parts,
// which any host can use.
func TestPartsOfOpenb(t *testing.T) {
	nodes, pods := openb(t)
	const seeds = 10
	var sum float64
	for seed := range uint64(seeds) {
		rng := rand.New(rand.NewPCG(seed, 1))
		order := slices.Clone(pods)
		slices.SortStableFunc(order, func(a, b cluster.Pod) int { return cmp.Compare(a.Name, b.Name) })
		rng.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		p := newOpenbPool(nodes, pods)
		var asked, given int64
		for i := 0; asked < p.gpus*cluster.Milli; i++ {
			pod := &pods[rng.IntN(len(pods))]
			if i < len(order) {
				pod = &order[i]
			}
			asked += pod.Demand()
			given += p.place(pod)
		}
		got := 100 * float64(given) / float64(p.gpus*cluster.Milli)
		t.Logf("seed %d: %.2f %%", seed, got)
		sum += got
	}
	if mean := sum / seeds; mean < fgdDefault {
		t.Errorf("%.2f %% of the GPUs are allocated, FGD reaches %.2f %%", mean, fgdDefault)
	} else {
		t.Logf("mean %.2f %%, FGD %.2f %%", mean, fgdDefault)
	}
}

func openb(t *testing.T) ([]cluster.Node, []cluster.Pod) {
	dir := os.Getenv("DXPU_OPENB")
	if dir == "" {
		t.Skip("DXPU_OPENB is not set: the folder with openb_node_list_all_node.csv and openb_pod_list_default.csv of Alibaba's cluster-trace-gpu-v2023")
	}
	f, err := os.Open(filepath.Join(dir, "openb_node_list_all_node.csv"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	nodes, err := cluster.ReadNodes(f)
	if err != nil {
		t.Fatal(err)
	}
	g, err := os.Open(filepath.Join(dir, "openb_pod_list_default.csv"))
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	pods, err := cluster.ReadPods(g)
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(nodes, func(n cluster.Node) bool { return n.GPUs == 0 }), pods
}
