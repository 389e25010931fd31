package cli

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// spareFlags adds the flags for the number of spares of a pool: a number, a fraction,
// or a number computed from the failure rate. The largest applies.
func spareFlags(f *pflag.FlagSet, r *placement.Reserve) {
	f.IntVar(&r.Count, "spares", 0, "GPUs of each model held back to replace failed ones")
	f.Float64Var(&r.Fraction, "spare-fraction", 0, "spares as a fraction of the healthy GPUs, 0 to 1; the largest of the three numbers applies")
	f.Float64Var(&r.Policy.FailureRate, "spare-failure-rate", 0,
		"failures of one GPU in a year, such as 0.09, from which the number of spares is computed")
	f.DurationVar(&r.Policy.RepairTime, "spare-repair-time", 7*24*time.Hour, "mean time until a failed GPU is back")
	f.Float64Var(&r.Policy.Stockout, "spare-stockout", 0.001, "accepted fraction of time with too few spares, between 0 and 1")
}

// checkSpares checks the flags, and clears the policy if no failure rate is given.
func checkSpares(r *placement.Reserve) error {
	switch {
	case r.Count < 0:
		return withHint(fmt.Errorf("--spares: %d is negative", r.Count), "0 holds back no spares")
	case !(r.Fraction >= 0 && r.Fraction <= 1):
		return withHint(fmt.Errorf("--spare-fraction: %g is not 0 to 1", r.Fraction), "0.02 holds back 2 of 100")
	case r.Policy.FailureRate == 0:
		r.Policy = placement.SparePolicy{}
	}
	if err := r.Policy.Check(); err != nil {
		return withHint(fmt.Errorf("--spare-failure-rate, --spare-repair-time, --spare-stockout: %w", err),
			"0.09 failures a year, 168h of repair and a fraction of 0.001 hold back 5 of 512")
	}
	return nil
}
