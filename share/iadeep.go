package share

import "math"

// IADeep (Geng et al., "Interference-aware Multiplexing for Deep Learning in GPU
// Clusters: A Middleware Approach", SC 2023) places a job where it is predicted to
// interfere least, and tunes the batch size of the newcomer.

// LeastInterference chooses the GPU for a job: an idle one first, else the one with the
// lowest predicted interference, which is (t_shared - t_alone) / t_alone summed over
// the jobs that are there and the newcomer. slowdown(a, b) predicts that of a beside b;
// most bounds the jobs on a GPU.
func LeastInterference(gpus [][]int, job, most int, slowdown func(a, b int) float64) (index int, ok bool) {
	index = -1
	best := math.Inf(1)
	for i, jobs := range gpus {
		if len(jobs) >= most {
			continue
		}
		sum := 0.0
		for _, o := range jobs {
			sum += slowdown(job, o) + slowdown(o, job)
		}
		if len(jobs) == 0 {
			sum = -1 // idle first
		}
		if sum < best {
			index, best = i, sum
		}
	}
	return index, index >= 0
}

// Constants of the tuner, from IADeep's published code.
const (
	tunerRounds   = 50
	tunerPatience = 10
	tunerGain     = 0.01
	tunerGrid     = 32 // steps of a batch size
	tunerNoise    = 1e-3
)

// BatchTuner searches for the batch size with the least cost, by the lower confidence
// bound of a Gaussian process (GP-LCB) with the kernel x·y + 1 + noise, on the grid from
// two thirds of the batch size to twice of it in steps of 1/32. The square of the
// normalised batch size is a second feature, so that the process can have a minimum
// inside; IADeep's kernel is linear. Ours.
type BatchTuner struct {
	grid   []int
	xs     [][3]float64
	ys     []float64
	batch  int
	best   int
	least  float64
	stale  int
	rounds int
}

// NewBatchTuner returns a tuner around a batch size of at least one.
func NewBatchTuner(batch int) *BatchTuner {
	batch = min(max(batch, 1), 1<<20)
	t := &BatchTuner{batch: batch, best: batch, least: math.Inf(1)}
	step := max(1, batch/tunerGrid)
	for b := max(1, batch*2/3); b <= 2*batch; b += step {
		t.grid = append(t.grid, b)
	}
	return t
}

func (t *BatchTuner) features(batch int) [3]float64 {
	x := float64(batch) / float64(t.batch)
	return [3]float64{1, x, x * x}
}

// Observe takes the measured cost of a batch size: the time to a set progress. Costs that
// are not positive and finite are ignored.
func (t *BatchTuner) Observe(batch int, cost float64) {
	if !(cost > 0) || math.IsInf(cost, 1) || t.rounds >= tunerRounds {
		return
	}
	t.rounds++
	t.stale++
	if cost < t.least*(1-tunerGain) {
		t.stale = 0
	}
	if cost < t.least {
		t.least, t.best = cost, batch
	}
	t.xs, t.ys = append(t.xs, t.features(batch)), append(t.ys, cost)
}

// Best returns the best batch size so far.
func (t *BatchTuner) Best() int { return t.best }

// Next returns the batch size to measure next, or false when the search is over.
func (t *BatchTuner) Next() (int, bool) {
	if t.rounds >= tunerRounds || t.stale >= tunerPatience {
		return t.best, false
	}
	if t.rounds == 0 {
		return t.batch, true
	}
	// With a linear kernel the process is a Bayesian regression: its state is a
	// three by three matrix, whatever the number of readings.
	var a [3][3]float64
	var b [3]float64
	for i := range a {
		a[i][i] = tunerNoise
	}
	scale := t.least
	for n, x := range t.xs {
		for i := range x {
			for j := range x {
				a[i][j] += x[i] * x[j]
			}
			b[i] += x[i] * t.ys[n] / scale
		}
	}
	inverse := invert(a)
	beta := math.Sqrt(2 * math.Log(float64(len(t.grid))*float64(t.rounds*t.rounds)))
	pick, low := t.batch, math.Inf(1)
	for _, g := range t.grid {
		x := t.features(g)
		mean, variance := 0.0, 0.0
		for i := range x {
			for j := range x {
				mean += x[i] * inverse[i][j] * b[j]
				variance += tunerNoise * x[i] * inverse[i][j] * x[j]
			}
		}
		if bound := mean - beta*math.Sqrt(math.Max(variance, 0)); bound < low {
			pick, low = g, bound
		}
	}
	return pick, true
}

// invert inverts a symmetric positive definite matrix by Gauss and Jordan.
func invert(a [3][3]float64) (out [3][3]float64) {
	for i := range out {
		out[i][i] = 1
	}
	for i := range a {
		p := a[i][i]
		for j := range a {
			a[i][j] /= p
			out[i][j] /= p
		}
		for k := range a {
			if k == i {
				continue
			}
			f := a[k][i]
			for j := range a {
				a[k][j] -= f * a[i][j]
				out[k][j] -= f * out[i][j]
			}
		}
	}
	return out
}

// StatisticalCost is the time to a set progress of training, relative to the batch size
// base: the time for an iteration, times the iterations, which rise as large batches
// become less efficient. noise is the gradient noise scale.
func StatisticalCost(iteration, batch, base, noise float64) float64 {
	efficiency := (noise + base) / (noise + batch)
	return iteration * base / batch / efficiency
}
