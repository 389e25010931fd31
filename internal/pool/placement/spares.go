package placement

import (
	"fmt"
	"math"
	"time"
)

// SparePolicy computes how many spares a pool needs from the failure rate of its
// GPUs and the time of a repair (paper, section 5.2: "spare GPUs in accordance
// with the equipment failure rate"). The zero value needs none.
//
// GPUs fail independently at a constant rate, so the number in repair has a
// Poisson distribution with mean n × FailureRate × RepairTime, for any distribution
// of repair times (the M/G/∞ queue). The spares suffice while at most as many GPUs
// are in repair.
type SparePolicy struct {
	FailureRate float64       // failures of one GPU in a year of 365 days
	RepairTime  time.Duration // mean time from the failure until the GPU is back in the pool
	Stockout    float64       // allowed share of the time with too few spares: 0 < Stockout < 1
}

const year = 365 * 24 * time.Hour

// Check returns an error that says which field of the policy is invalid.
func (p SparePolicy) Check() error {
	switch {
	case p == SparePolicy{}:
		return nil
	case !(p.FailureRate > 0) || math.IsInf(p.FailureRate, 0):
		return fmt.Errorf("placement: failure rate %v: want failures per GPU and year, above 0", p.FailureRate)
	case p.RepairTime <= 0:
		return fmt.Errorf("placement: repair time %v: want a time above 0", p.RepairTime)
	case !(p.Stockout > 0 && p.Stockout < 1):
		return fmt.Errorf("placement: stockout %v: want a probability between 0 and 1", p.Stockout)
	}
	return nil
}

// mean returns the mean number of n GPUs in repair.
func (p SparePolicy) mean(n int) float64 {
	return float64(n) * p.FailureRate * (float64(p.RepairTime) / float64(year))
}

// Spares returns the smallest number of spares with which a pool of n GPUs runs
// short during at most the share Stockout of the time.
func (p SparePolicy) Spares(n int) int {
	s, _ := p.spares(n)
	return s
}

// spares returns the number of spares and the probability that it is too low.
func (p SparePolicy) spares(n int) (int, float64) {
	mean := p.mean(n)
	if n < 1 || !(mean > 0) || !(p.Stockout > 0) {
		return 0, 0
	}
	// Add up the Poisson probabilities, from 12 standard deviations below the
	// mean: the ones before sum to less than 1e-30.
	k := math.Max(0, math.Floor(mean-12*math.Sqrt(mean)))
	lgamma, _ := math.Lgamma(k + 1)
	term := math.Exp(k*math.Log(mean) - mean - lgamma)
	for within := term; ; within += term {
		if short := 1 - within; short <= p.Stockout || k >= float64(n) {
			return min(n, int(k)), math.Max(0, short)
		}
		k++
		term *= mean / k
	}
}

// Explain returns a sentence on how many spares n GPUs of a model need, and why.
func (p SparePolicy) Explain(model string, n int) string {
	s, short := p.spares(n)
	return fmt.Sprintf("%d usable GPUs of model %s need %d spares: each fails %.3g times a year and takes %s to repair, "+
		"so %.3g of them are in repair on average, and more than %d with a probability of %.2g (at most %.2g is allowed).",
		n, model, s, p.FailureRate, inDays(p.RepairTime), p.mean(n), s, short, p.Stockout)
}

func inDays(d time.Duration) string {
	if d < 48*time.Hour {
		return d.String()
	}
	return fmt.Sprintf("%.3g days", d.Hours()/24)
}

// Reserve sets how many spares are held back of each model: the largest of Count,
// Fraction of the usable GPUs (rounded up), and the number that Policy computes.
type Reserve struct {
	Count    int     // GPUs
	Fraction float64 // of the model's usable GPUs, 0 to 1
	Policy   SparePolicy
}

// Held returns how many of a model's usable GPUs are held back.
func (r Reserve) Held(usable int) int {
	share := int(math.Ceil(r.Fraction * float64(usable)))
	return min(usable, max(r.Count, share, r.Policy.Spares(usable)))
}

// Explain returns a sentence on how many of n usable GPUs of a model are held back,
// and by which rule. It returns "" if there is no rule.
func (r Reserve) Explain(model string, n int) string {
	held := r.Held(n)
	switch {
	case r == Reserve{}:
		return ""
	case r.Policy != SparePolicy{} && r.Policy.Spares(n) >= held:
		return r.Policy.Explain(model, n)
	case held == n:
		return fmt.Sprintf("All %d usable GPUs of model %s: the pool has no more.", n, model)
	case r.Count >= held:
		return fmt.Sprintf("%d of each model, by the manager's settings.", r.Count)
	}
	return fmt.Sprintf("%.3g %% of the %d usable GPUs of model %s, by the manager's settings.", 100*r.Fraction, n, model)
}
