package scenario

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/workload"
	"github.com/dxpu-project/dxpu/share"
	"github.com/dxpu-project/dxpu/share/plant"
)

// step is a launch of a program, with the time that the host takes before it.
type step struct {
	kernel plant.Kernel
	bound  share.Bound
	update bool
	host   time.Duration
}

// program is the sequence of launches of a job: a request of inference, or an iteration
// of training. After the last one the host waits for all.
type program struct {
	name   string
	steps  []step
	memory int64
	left   []time.Duration // of the kernels from each step on, alone; made when first needed
}

// shape describes a program that is made from a seed. The figures are ours, in the
// order of magnitude of profiles of the networks they are named after: about 60 % of
// ResNet-50's kernels take 10 µs or less at small batches, and training fills the GPU.
type shape struct {
	kernels     int
	short, long time.Duration // range of the kernels' durations
	fill        [2]int        // range of the multiprocessors that a kernel of one wave fills, in percent
	memoryBound int           // kernels bound by memory, in percent
	update      int           // kernels of the update phase at the end, in percent
	input       time.Duration // host time before the first kernel
	memory      int64
}

const us = time.Microsecond

var shapes = map[string]shape{
	"resnet50-inference":    {kernels: 120, short: 5 * us, long: 30 * us, fill: [2]int{15, 100}, memoryBound: 35, input: 100 * us, memory: 2 << 30},
	"mobilenet-inference":   {kernels: 100, short: 4 * us, long: 16 * us, fill: [2]int{10, 60}, memoryBound: 60, input: 80 * us, memory: 1 << 30},
	"bert-inference":        {kernels: 150, short: 12 * us, long: 70 * us, fill: [2]int{40, 100}, memoryBound: 20, input: 60 * us, memory: 3 << 30},
	"recommend-inference":   {kernels: 40, short: 6 * us, long: 24 * us, fill: [2]int{10, 50}, memoryBound: 80, input: 400 * us, memory: 5 << 30},
	"resnet50-training":     {kernels: 320, short: 20 * us, long: 400 * us, fill: [2]int{60, 100}, memoryBound: 45, update: 12, input: 2500 * us, memory: 7 << 30},
	"bert-training":         {kernels: 420, short: 30 * us, long: 500 * us, fill: [2]int{80, 100}, memoryBound: 25, update: 15, input: 800 * us, memory: 9 << 30},
	"mobilenet-training":    {kernels: 300, short: 12 * us, long: 120 * us, fill: [2]int{20, 100}, memoryBound: 60, update: 10, input: 6000 * us, memory: 4 << 30},
	"input-bound-training":  {kernels: 200, short: 20 * us, long: 200 * us, fill: [2]int{40, 100}, memoryBound: 40, update: 10, input: 25 * time.Millisecond, memory: 5 << 30},
	"steady-kernels":        {kernels: 50, short: 100 * us, long: 100*us + 1, fill: [2]int{100, 100}, memory: 1 << 30},
	"long-kernels-training": {kernels: 60, short: 1000 * us, long: 4000 * us, fill: [2]int{100, 100}, memoryBound: 30, update: 10, input: 500 * us, memory: 6 << 30},
}

// Programs returns the names of the programs, sorted.
func Programs() []string {
	var names []string
	for n := range shapes {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// newProgram makes the program of a name for a device. Equal names give equal programs.
func newProgram(name string, d share.Device) (*program, error) {
	s, ok := shapes[name]
	if !ok {
		return nil, fmt.Errorf("no program %q; the programs are %s", name, strings.Join(Programs(), ", "))
	}
	var seed uint64
	for _, c := range []byte(name) {
		seed = seed*31 + uint64(c)
	}
	rng := rand.New(rand.NewPCG(seed, uint64(d.SMs)))
	p := &program{name: name, memory: s.memory}
	for i := range s.kernels {
		p.steps = append(p.steps, s.step(rng, i, d))
	}
	p.steps[0].host = s.input
	return p, nil
}

// waveTime is the length of a wave of the kernels that take several ones.
const waveTime = 25 * time.Microsecond

func (s *shape) step(rng *rand.Rand, i int, d share.Device) step {
	length := octaves(rng, s.short, s.long)
	out := step{bound: share.BoundCompute, update: i >= s.kernels*(100-s.update)/100}
	memory := share.Percent(10 + rng.IntN(25))
	if rng.IntN(100) < s.memoryBound {
		out.bound, memory = share.BoundMemory, share.Percent(60+rng.IntN(36))
	}
	fill := s.fill[0] + rng.IntN(s.fill[1]-s.fill[0]+1)
	occupancy := int32(1) << rng.IntN(4)
	waves := min(max(int64(length/waveTime), 1), 12)
	sms := max(1, int64(d.SMs)*int64(fill)/100)
	if waves > 1 {
		sms = int64(d.SMs)
	}
	out.kernel = plant.Kernel{
		Name: fmt.Sprintf("k%d", i), Blocks: waves * sms * int64(occupancy), Occupancy: occupancy,
		BlockTime: length / time.Duration(waves), Memory: memory,
	}
	return out
}

// octaves draws a duration between a and b so that each octave is equally likely. It
// counts in integers, so that all processors draw the same.
func octaves(rng *rand.Rand, a, b time.Duration) time.Duration {
	var steps []time.Duration
	for x := a; x < b; x *= 2 {
		steps = append(steps, x)
	}
	low := steps[rng.IntN(len(steps))]
	return low + time.Duration(rng.Int64N(int64(min(low, b-low))))
}

// maxKernel bounds the duration of a recorded kernel: longer ones are evicted as stuck.
const maxKernel = 2 * share.StuckAfter

// maxSteps bounds a program that is read from a trace.
const maxSteps = 20000

// recorded makes a program from the kernels of a recorded run: one step of training if
// the trace marks steps, otherwise all kernels of its first stream with kernels. A
// trace has durations but no grids: each kernel fills the GPU in waves of 25 µs, and
// its name says whether memory or computation bounds it.
func recorded(w *workload.Workload, name string, d share.Device) (*program, error) {
	from, to := time.Duration(0), w.Span()
	if n := len(w.Steps); n > 0 {
		s := w.Steps[n/2] // the first ones warm up
		from, to = s.Start, s.End()
	}
	p := &program{name: name, memory: 4 << 30}
	stream, last := workload.None, from
	for i := range w.Ops {
		o := &w.Ops[i]
		if !o.Kind.IsKernel() || o.Start < from || o.Start >= to || o.Dur <= 0 || len(p.steps) == maxSteps {
			continue
		}
		if stream == workload.None {
			stream = o.Stream
		}
		if o.Stream != stream {
			continue
		}
		s := recordedStep(w.Names[o.Name], o.Dur, d)
		if gap := o.Start - last; gap > waveTime { // shorter gaps are those of the launches themselves
			s.host = gap
		}
		p.steps, last = append(p.steps, s), o.End()
	}
	if len(p.steps) == 0 {
		return nil, fmt.Errorf("trace %s: it holds no kernels", name)
	}
	return p, nil
}

func recordedStep(name string, length time.Duration, d share.Device) step {
	out := step{bound: share.BoundCompute, update: strings.Contains(name, "multi_tensor") || strings.Contains(name, "Optimizer")}
	memory := share.Percent(30)
	for _, word := range []string{"elementwise", "batch_norm", "bn_", "pool", "reduce", "Copy", "copy", "softmax", "embedding"} {
		if strings.Contains(name, word) {
			out.bound, memory = share.BoundMemory, share.Percent(80)
		}
	}
	length = min(length, maxKernel)
	waves := min(max(int64(length/waveTime), 1), 64)
	out.kernel = plant.Kernel{Name: name, Blocks: waves * int64(d.SMs), Occupancy: 1, BlockTime: max(1, length/time.Duration(waves)), Memory: memory}
	return out
}
