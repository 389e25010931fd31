package share_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/dxpu-project/dxpu/share"
)

// The tuner measures the batch size with the least lower confidence bound of a Gaussian
// process over all readings. The tuner keeps a regression of three coefficients; the
// process here is that of the textbooks, with a matrix of all pairs of readings.
func TestBatchTunerIsAGaussianProcess(t *testing.T) {
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 5))
		batch := 1 + rng.IntN(300)
		tuner := share.NewBatchTuner(batch)
		noise, spread := 10+rng.Float64()*3000, rng.Float64()*0.05
		var batches []int
		var costs []float64
		for b, ok := tuner.Next(); ok; b, ok = tuner.Next() {
			if len(costs) > 0 {
				if bound, least := lowerBounds(batch, batches, costs); bound(b) > least+1e-5 {
					t.Fatalf("seed %d, batch size %d, %d readings: the next is %d with the bound %v, the least is %v", seed, batch, len(costs), b, bound(b), least)
				}
			}
			cost := share.StatisticalCost(20+1.5*float64(b), float64(b), float64(batch), noise) * (1 + spread*rng.NormFloat64())
			tuner.Observe(b, cost)
			if cost > 0 {
				batches, costs = append(batches, b), append(costs, cost)
			}
		}
	}
}

// lowerBounds returns the lower confidence bound of each batch size, and the least of the grid.
func lowerBounds(batch int, batches []int, costs []float64) (bound func(b int) float64, least float64) {
	const noise = 1e-3
	x := func(b int) float64 { return float64(b) / float64(batch) }
	kernel := func(a, b int) float64 { return 1 + x(a)*x(b) + x(a)*x(a)*x(b)*x(b) }
	scale := costs[0]
	for _, c := range costs {
		scale = min(scale, c)
	}
	n := len(costs)
	// solve returns (K + noise)⁻¹ y by elimination with the largest pivots.
	solve := func(y []float64) []float64 {
		m := make([][]float64, n)
		for i := range m {
			for j := range n {
				m[i] = append(m[i], kernel(batches[i], batches[j]))
			}
			m[i][i] += noise
			m[i] = append(m[i], y[i])
		}
		for i := range n {
			p := i
			for k := i + 1; k < n; k++ {
				if math.Abs(m[k][i]) > math.Abs(m[p][i]) {
					p = k
				}
			}
			m[i], m[p] = m[p], m[i]
			for k := range n {
				if k != i {
					f := m[k][i] / m[i][i]
					for j := i; j <= n; j++ {
						m[k][j] -= f * m[i][j]
					}
				}
			}
		}
		out := make([]float64, n)
		for i := range out {
			out[i] = m[i][n] / m[i][i]
		}
		return out
	}
	normal := make([]float64, n)
	for i, c := range costs {
		normal[i] = c / scale
	}
	weights := solve(normal)
	step := max(1, batch/32)
	grid := 0
	for b := max(1, batch*2/3); b <= 2*batch; b += step {
		grid++
	}
	beta := math.Sqrt(2 * math.Log(float64(grid*n*n)))
	bound = func(b int) float64 {
		k := make([]float64, n)
		for i := range k {
			k[i] = kernel(b, batches[i])
		}
		mean, variance := 0.0, kernel(b, b)
		for i, v := range solve(k) {
			mean += k[i] * weights[i]
			variance -= k[i] * v
		}
		return mean - beta*math.Sqrt(max(variance, 0))
	}
	least = math.Inf(1)
	for b := max(1, batch*2/3); b <= 2*batch; b += step {
		least = min(least, bound(b))
	}
	return bound, least
}
