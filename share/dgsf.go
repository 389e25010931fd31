package share

import "time"

// Constants of DGSF (Fingler et al., "DGSF: Disaggregated GPUs for Serverless Functions",
// IPDPS 2022) and of its published code.
const (
	BalancePeriod   = 250 * time.Millisecond // between two readings
	BalanceCooldown = 5 * time.Second        // after a migration
	balanceSamples  = 5                      // of the moving average
)

// Balancer decides when a worker moves to another GPU: when one GPU has more than one
// busy worker while another has none, on the average of five readings, and not within
// five seconds of the last move. A move happens at the boundary of a launch.
type Balancer struct {
	history [balanceSamples][]int
	count   int
	rest    time.Duration // until when no move begins
}

// Observe takes the number of busy workers of each GPU and returns a move, if one is due.
func (b *Balancer) Observe(now time.Duration, busy []int) (from, to int, move bool) {
	b.history[b.count%balanceSamples] = append(b.history[b.count%balanceSamples][:0], busy...)
	b.count++
	if b.count < balanceSamples || now < b.rest {
		return 0, 0, false
	}
	from, to = -1, -1
	most := balanceSamples // more than one on average
	for g := range busy {
		sum := 0
		for _, h := range b.history {
			if g < len(h) {
				sum += max(h[g], 0)
			}
		}
		if sum > most && busy[g] > 1 {
			from, most = g, sum
		}
		if sum == 0 && to < 0 {
			to = g
		}
	}
	if from < 0 || to < 0 {
		return 0, 0, false
	}
	b.rest = now + BalanceCooldown
	return from, to, true
}
