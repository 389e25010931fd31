package cluster

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// refFill fills servers by best fit, and counts.
func refFill(f *Fill, nodes []Node, arrivals []*Pod) FillResult {
	var r FillResult
	ref, total := refServers(nodes), float64(totalGPU(nodes))
	var cpus, memory, asked, given, used float64
	for _, n := range nodes {
		cpus, memory = cpus+float64(n.MilliCPU), memory+float64(n.MemoryMiB)
	}
	sizes := map[float64]*SizeShare{}
	note := func(asked float64) {
		for _, step := range []float64{80, 90, 100, 110, 120, 130} {
			if 100*asked/total < step-1e-9 || slices.ContainsFunc(r.Points, func(p FillPoint) bool { return p.Demand == step }) {
				continue
			}
			r.Points = append(r.Points, FillPoint{step, 100 * given / total, 100 * used / max(cpus, 1)})
			if step != 100 {
				continue
			}
			var gpu, cpu, mem float64
			for i := range ref {
				if !slices.ContainsFunc(f.Pods, func(p Pod) bool { return p.GPUs > 0 && ref[i].fits(&p) }) {
					gpu, cpu, mem = gpu+float64(sumOf(ref[i].free)), cpu+float64(ref[i].cpu), mem+float64(ref[i].memory)
				}
			}
			r.StrandedGPU, r.StrandedCPU, r.StrandedMemory = 100*gpu/total, 100*cpu/max(cpus, 1), 100*mem/max(memory, 1)
		}
	}
	for _, p := range arrivals {
		copies := max(p.Copies, 1)
		asked += float64(copies) * float64(p.GPUs) * float64(p.MilliGPU)
		saved := refServers(nodes)
		for i := range ref {
			saved[i].cpu, saved[i].memory, saved[i].free = ref[i].cpu, ref[i].memory, slices.Clone(ref[i].free)
		}
		ok := true
		for range copies {
			best, score, gpu := -1, int64(0), -1
			for i := range ref {
				if ref[i].fits(p) {
					if v, g := refScore("best-fit", &ref[i], i, nil, p); best < 0 || v > score {
						best, score, gpu = i, v, g
					}
				}
			}
			if ok = best >= 0; !ok {
				ref = saved
				break
			}
			ref[best].take(p, gpu)
		}
		size := float64(p.GPUs * copies)
		if refKind(p) == -1 {
			size = 0.5
		}
		if sizes[size] == nil {
			sizes[size] = &SizeShare{GPUs: size}
		}
		sizes[size].Pods++
		if ok {
			sizes[size].Accepted++
			given += float64(copies) * float64(p.GPUs) * float64(p.MilliGPU)
			used += float64(copies) * float64(p.MilliCPU)
		}
		if r.Refused1 == 0 && asked-given > 0.01*asked && asked > total/2 {
			r.Refused1 = 100 * asked / total
		}
		note(asked)
	}
	note(math.Trunc(f.Demand * total))
	for _, s := range sizes {
		r.BySize = append(r.BySize, *s)
	}
	slices.SortFunc(r.BySize, func(a, b SizeShare) int { return int(2*a.GPUs) - int(2*b.GPUs) })
	return r
}

// The figures of a fill are those of a plain count.
func TestFillAgreesWithReference(t *testing.T) {
	for seed := range uint64(150) {
		rng := rand.New(rand.NewPCG(seed, 42))
		nodes, pods := drawWorld(rng)
		pods[0].GPUs, pods[0].MilliGPU = 1, 1000
		for i := range pods {
			if pods[i].GPUs != 0 && rng.IntN(6) == 0 {
				pods[i].Copies = rng.IntN(4)
			}
		}
		f := &Fill{Nodes: nodes, Pods: pods, Demand: []float64{0.5, 1, 1.3, 2}[rng.IntN(4)], Seed: seed}
		arrivals := f.arrivals(rngOf(seed, 1))
		want := refFill(f, nodes, arrivals)
		want.Policy, want.Seed, want.Pods = "best-fit", seed, len(arrivals)
		got := f.run(nil, "best-fit", newScheduler(nodes, bestFit{}, nil), arrivals)
		if fmt.Sprintf("%.6v", got) != fmt.Sprintf("%.6v", want) {
			t.Fatalf("seed %d:\n%+v, want\n%+v", seed, got, want)
		}
	}
}

// refStranded is what no pod of a list that asks for GPUs can use in a pool, by a look at
// each box, each shared GPU and each host for each pod.
func refStranded(c *pool, pods []Pod) (out Stranded) {
	pods = slices.DeleteFunc(slices.Clone(pods), func(p Pod) bool { return p.GPUs == 0 })
	onHost := func(h *host, p *Pod, most int) bool {
		return h.cpu >= p.MilliCPU && h.memory >= p.MemoryMiB && (most == 0 || h.gpus+p.GPUs <= most)
	}
	anyHost := func(p *Pod) bool {
		return slices.ContainsFunc(c.hosts.hosts, func(h host) bool { return onHost(&h, p, c.opt.MaxPerHost) })
	}
	// fresh reports whether the pod could have a free GPU of the box.
	fresh := func(p *Pod, s *boxState) bool {
		free := 0
		for i := range c.state {
			if c.state[i].model == s.model {
				free += c.state[i].nfree
			}
		}
		if p.GPUs > 1 && (c.opt.OneBox == placement.Required || c.opt.WorstFit && c.opt.OneBox != placement.Avoided) {
			free = s.nfree
		}
		return s.nfree > 0 && free >= p.GPUs && takes(p, s.model)
	}
	type shared struct {
		model       string
		left, slots int64
		host        int
	}
	var parts []shared
	for _, step := range c.parts {
		for _, g := range step {
			parts = append(parts, shared{g.model, g.left, 1, g.host})
		}
	}
	for id, b := range c.served {
		for i := range b.GPUs {
			n, left := int64(0), int64(Milli)
			for k := range b.Parts {
				if s := &b.Parts[k]; s.GPU == b.GPUs[i].Slot && s.Taken {
					n, left = n+1, left-int64(s.Part.Compute)
				}
			}
			if n > 0 {
				parts = append(parts, shared{c.boxOf(id).model, left, partSlots - n, -1})
			}
		}
	}
	onPart := func(p *Pod, g *shared) bool {
		return !c.opt.WholeGPUs && refKind(p) == -1 && g.left >= p.MilliGPU && g.slots > 0 && takes(p, g.model)
	}
	for i := range c.hosts.hosts {
		h := &c.hosts.hosts[i]
		if !slices.ContainsFunc(pods, func(p Pod) bool {
			return onHost(h, &p, c.opt.MaxPerHost) && slices.ContainsFunc(c.state, func(s boxState) bool { return fresh(&p, &s) }) ||
				slices.ContainsFunc(parts, func(g shared) bool {
					return onPart(&p, &g) && (g.host == i && onHost(h, &p, 0) || g.host < 0 && onHost(h, &p, c.opt.MaxPerHost))
				})
		}) {
			out.CPU, out.Memory = out.CPU+h.cpu, out.Memory+h.memory
		}
	}
	for i := range c.state {
		if s := &c.state[i]; !slices.ContainsFunc(pods, func(p Pod) bool { return anyHost(&p) && fresh(&p, s) }) {
			out.GPU += int64(s.nfree) * Milli
		}
	}
	for _, g := range parts {
		if !slices.ContainsFunc(pods, func(p Pod) bool {
			return onPart(&p, &g) && (g.host < 0 && anyHost(&p) || g.host >= 0 && onHost(&c.hosts.hosts[g.host], &p, 0))
		}) {
			out.GPU += g.left
		}
	}
	return out
}

// drawOptions returns a pool of any kind.
func drawOptions(rng *rand.Rand) PoolOptions {
	return PoolOptions{
		BoxSize: 1 + rng.IntN(9), MaxPerHost: []int{0, 0, 2, 8}[rng.IntN(4)], WholeGPUs: rng.IntN(4) == 0, PartsAnywhere: rng.IntN(2) == 0,
		ManagerParts: rng.IntN(2) == 0, WorstFit: rng.IntN(4) == 0, BlindToModels: rng.IntN(4) == 0,
		OneBox: []placement.Preference{placement.Indifferent, placement.Required, placement.Avoided}[rng.IntN(3)],
	}
}

// A pool strands a resource if no pod can use it: the reference tries one by one.
func TestStrandedAgreesWithReference(t *testing.T) {
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 43))
		nodes, pods := drawWorld(rng)
		opt := drawOptions(rng)
		opt.ManagerParts = opt.ManagerParts && !opt.WholeGPUs
		c := newPoolFor(pods, nodes, nodes, opt, nil)
		var runs []placed
		var of []*Pod
		for range 60 {
			if len(runs) > 0 && rng.IntN(4) == 0 {
				i := rng.IntN(len(runs))
				c.remove(of[i], runs[i])
				runs, of = slices.Delete(runs, i, i+1), slices.Delete(of, i, i+1)
			} else {
				p := &pods[rng.IntN(len(pods))]
				if at, ok := c.place(p); ok {
					runs, of = append(runs, at), append(of, p)
				}
			}
		}
		if got, want := c.stranded(smallest(pods)), refStranded(c, pods); got != want {
			t.Fatalf("seed %d: %+v, want %+v\n%+v\npods %+v\nfree %v", seed, got, want, c.opt, pods, c.free)
		}
	}
}

// refTimeline runs the jobs one event after the other, with the queue as a list.
func refTimeline(pl placer, queue Queueing, speed func(*Pod) float64, from, to float64, jobs []stay) timelineResult {
	var r timelineResult
	var waiting []stay
	var active []running
	hold := func() (gpu float64) {
		for _, j := range active {
			gpu += float64(j.pod.total())
		}
		return gpu
	}
	begin := func(now float64, s stay) bool {
		where, ok := placeJob(pl, s.pod, nil)
		if !ok {
			return false
		}
		v := 1.0
		if s.pod.GPUs > 0 {
			v = speed(s.pod)
		}
		active = append(active, running{stay: s, start: now, speed: v, until: now + s.life/v, where: where})
		if now >= from {
			r.PeakGPU = max(r.PeakGPU, hold())
		}
		if s.at >= from {
			r.Started++
			r.Given += float64(s.pod.total()) / Milli
			r.Waits = append(r.Waits, now-s.at)
			if s.pod.GPUs*max(s.pod.Copies, 1) > 1 {
				r.WaitsMulti = append(r.WaitsMulti, now-s.at)
			}
		}
		return true
	}
	span := func(j *running, until float64) {
		if d := min(until, to) - max(j.start, from); d > 0 {
			r.GPU += d * float64(j.pod.total())
			r.Work += d * float64(j.pod.total()) * j.speed
			r.CPU += d * float64(int64(max(j.pod.Copies, 1))*j.pod.MilliCPU)
		}
	}
	ends := func(until float64) {
		for {
			at := math.Inf(1)
			for _, j := range active {
				at = min(at, j.until)
			}
			if at > min(until, to) {
				return
			}
			active = slices.DeleteFunc(active, func(j running) bool {
				if j.until != at {
					return false
				}
				span(&j, at)
				removeJob(pl, j.pod, j.where)
				return true
			})
			for i := 0; i < len(waiting); {
				if begin(at, waiting[i]) {
					waiting = slices.Delete(waiting, i, i+1)
				} else if queue == FIFO {
					break
				} else {
					i++
				}
			}
		}
	}
	held := false
	for _, s := range jobs {
		if s.at > to {
			break
		}
		if !held && s.at >= from {
			ends(from)
			r.PeakGPU, held = max(r.PeakGPU, hold()), true
		}
		ends(s.at)
		if s.at >= from {
			r.Jobs++
			r.Asked += float64(s.pod.total()) / Milli
		}
		if queue == FIFO && len(waiting) > 0 || !begin(s.at, s) {
			waiting = append(waiting, s)
			if queue == Refuse {
				waiting = nil
			}
		}
	}
	if !held {
		ends(from)
		r.PeakGPU = max(r.PeakGPU, hold())
	}
	ends(to)
	for i := range active {
		span(&active[i], to)
	}
	r.Hours, r.Unstarted = to-from, len(waiting)
	return r
}

// A timeline is the plain loop over its events, whatever comes at the same time.
func TestTimelineAgreesWithReference(t *testing.T) {
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 44))
		nodes, pods := drawWorld(rng)
		for i := range pods {
			if rng.IntN(5) == 0 {
				pods[i].Copies = 2
			}
		}
		var jobs []stay
		at := 0.0
		for range rng.IntN(80) {
			at += []float64{0, 0, 0.5, 1, rng.Float64()}[rng.IntN(5)]
			jobs = append(jobs, stay{pod: &pods[rng.IntN(len(pods))], at: at, life: []float64{0, 1, 2, 4, 8 * rng.Float64(), math.Inf(1)}[rng.IntN(6)]})
		}
		queue := []Queueing{Refuse, FIFO, Backfill}[rng.IntN(3)]
		speed := func(p *Pod) float64 { return 1 - float64(p.GPUs)/32 }
		from, to := []float64{0, 3}[rng.IntN(2)], 3+20*rng.Float64()
		opt := drawOptions(rng)
		place := func() placer {
			if seed%2 == 0 {
				return newScheduler(nodes, bestFit{}, nil)
			}
			return newPoolFor(pods, nodes, nodes, opt, nil)
		}
		n := 0
		tl := timeline{pl: place(), queue: queue, speed: speed, from: from, to: to}
		got := tl.run(func() (stay, bool) {
			if n == len(jobs) {
				return stay{}, false
			}
			n++
			return jobs[n-1], true
		})
		got.BySize = nil
		want := refTimeline(place(), queue, speed, from, to, jobs)
		if a, b := fmt.Sprintf("%.9v", got), fmt.Sprintf("%.9v", want); a != b {
			t.Fatalf("seed %d, queue %d, %v to %v:\n%s, want\n%s", seed, queue, from, to, a, b)
		}
	}
}

// The time for which a number of GPUs is away is that of a look at each of them between any
// two changes.
func TestOutagesAgreeWithReference(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 45))
		units, gpus, pool := 1+rng.IntN(3), 1+rng.IntN(4), rng.IntN(2) == 0
		var all []outage
		times := []float64{0, 10}
		for range rng.IntN(12) {
			o := outage{part: part(rng.IntN(int(parts))), unit: rng.IntN(units), gpu: rng.IntN(gpus), start: float64(rng.IntN(12)) - 1}
			o.end = o.start + []float64{0, 1, 3, rng.Float64(), math.Inf(1)}[rng.IntN(5)]
			all = append(all, o)
			times = append(times, o.start, o.end)
		}
		slices.Sort(times)
		want := map[int]float64{}
		for i := 1; i < len(times); i++ {
			a, b := max(times[i-1], 0), min(times[i], 10)
			if a >= b {
				continue
			}
			away := map[[2]int]bool{}
			for _, o := range all {
				for g := range gpus {
					takesIt := o.part == partGPU && (!pool || g == o.gpu) || o.part == partBox || o.part == partHost && !pool || o.part == partProxy && pool
					if o.start <= a && o.end >= b && takesIt {
						away[[2]int{o.unit, g}] = true
					}
				}
			}
			want[len(away)] += b - a
		}
		got := newPlant(pool, units, gpus).run(all, 0, 10)
		for n := range units*gpus + 1 {
			v := 0.0
			if n < len(got) {
				v = got[n]
			}
			if math.Abs(v-want[n]) > 1e-9 {
				t.Fatalf("seed %d, pool %v: %d GPUs are away for %v days, want %v: %+v", seed, pool, n, v, want[n], all)
			}
		}
	}
}
