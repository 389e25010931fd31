package placement

import (
	"fmt"
	"math"
	"time"
)

// SparePolicy works out how many spares a pool needs from how often its GPUs
// fail and how long a broken one is away (paper, section 5.2: "spare GPUs in
// accordance with the equipment failure rate"). The zero value needs none.
//
// GPUs fail independently of each other at a constant rate, so the number that is
// away at a time is distributed as Poisson with the mean n × FailureRate ×
// RepairTime, however the repair times vary around theirs. The spares suffice as
// long as no more are away.
type SparePolicy struct {
	FailureRate float64       // failures of one GPU in a year of 365 days
	RepairTime  time.Duration // from the failure until a GPU is back in the pool, on average
	Stockout    float64       // the share of the time in which the spares may be too few: 0 < Stockout < 1
}

const year = 365 * 24 * time.Hour

// Check says what is wrong with a policy.
func (p SparePolicy) Check() error {
	switch {
	case p == SparePolicy{}:
		return nil
	case !(p.FailureRate > 0) || math.IsInf(p.FailureRate, 0):
		return fmt.Errorf("placement: failure rate %v: want a number of failures per GPU and year above 0", p.FailureRate)
	case p.RepairTime <= 0:
		return fmt.Errorf("placement: repair time %v: want a time above 0", p.RepairTime)
	case !(p.Stockout > 0 && p.Stockout < 1):
		return fmt.Errorf("placement: stockout %v: want a probability between 0 and 1", p.Stockout)
	}
	return nil
}

// mean returns how many of n GPUs are away on average.
func (p SparePolicy) mean(n int) float64 {
	return float64(n) * p.FailureRate * (float64(p.RepairTime) / float64(year))
}

// Spares returns the smallest number of spares for a pool of n GPUs with which
// more are away only during a share of Stockout of the time.
func (p SparePolicy) Spares(n int) int {
	s, _ := p.spares(n)
	return s
}

// spares returns the spares and the probability that they are too few.
func (p SparePolicy) spares(n int) (int, float64) {
	mean := p.mean(n)
	if n < 1 || !(mean > 0) || !(p.Stockout > 0) {
		return 0, 0
	}
	// Poisson probabilities one after the other, from below where they matter:
	// 12 standard deviations under the mean less than 1e-30 is left out.
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

// Explain tells in a sentence how many spares n GPUs of a model need, and why.
func (p SparePolicy) Explain(model string, n int) string {
	s, short := p.spares(n)
	return fmt.Sprintf("%d usable GPUs of model %s need %d spares: each fails %.3g times a year and is away for %s then, "+
		"so %.3g of them are away on average, and more than %d with a probability of %.2g (at most %.2g is allowed).",
		n, model, s, p.FailureRate, inDays(p.RepairTime), p.mean(n), s, short, p.Stockout)
}

func inDays(d time.Duration) string {
	if d < 48*time.Hour {
		return d.String()
	}
	return fmt.Sprintf("%.3g days", d.Hours()/24)
}

// Reserve says how many spares are held back of each model: Count GPUs, Fraction
// of the usable ones (rounded up), or what Policy works out for them, whichever
// is most.
type Reserve struct {
	Count    int
	Fraction float64
	Policy   SparePolicy
}

// Held returns the spares to hold back of a model that has so many usable GPUs.
func (r Reserve) Held(usable int) int {
	share := int(math.Ceil(r.Fraction * float64(usable)))
	return min(usable, max(r.Count, share, r.Policy.Spares(usable)))
}

// Explain tells in a sentence how many spares n usable GPUs of a model need, and
// which of the rules says so; empty without any rule.
func (r Reserve) Explain(model string, n int) string {
	held := r.Held(n)
	switch {
	case r == Reserve{}:
		return ""
	case r.Policy != SparePolicy{} && r.Policy.Spares(n) >= held:
		return r.Policy.Explain(model, n)
	case held == n:
		return fmt.Sprintf("All %d usable GPUs of model %s: there are not more.", n, model)
	case r.Count >= held:
		return fmt.Sprintf("%d of each model, by the manager's settings.", r.Count)
	}
	return fmt.Sprintf("%.3g %% of the %d usable GPUs of model %s, by the manager's settings.", 100*r.Fraction, n, model)
}
