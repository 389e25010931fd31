package cli

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// spareFlags are those that say how many spares a pool holds back: a number, a
// share, or what the rate of failures asks for; the most of them counts.
func spareFlags(f *pflag.FlagSet, r *placement.Reserve) {
	f.IntVar(&r.Count, "spares", 0, "GPUs of each model that are held back to replace broken ones")
	f.Float64Var(&r.Fraction, "spare-fraction", 0, "the same as a fraction of the healthy GPUs, 0 to 1; the larger counts")
	f.Float64Var(&r.Policy.FailureRate, "spare-failure-rate", 0,
		"failures of one GPU in a year, such as 0.09: as many spares are held back as that asks for, if that is more")
	f.DurationVar(&r.Policy.RepairTime, "spare-repair-time", 7*24*time.Hour, "how long a GPU that failed is away, on average")
	f.Float64Var(&r.Policy.Stockout, "spare-stockout", 0.001, "share of the time in which the spares may be too few, above 0 and below 1")
}

// checkSpares checks what the flags say, and leaves a policy that was not asked
// for out.
func checkSpares(r *placement.Reserve) error {
	switch {
	case r.Count < 0:
		return withHint(fmt.Errorf("--spares: %d is negative", r.Count), "0 holds none back")
	case !(r.Fraction >= 0 && r.Fraction <= 1):
		return withHint(fmt.Errorf("--spare-fraction: %g is not 0 to 1", r.Fraction), "0.02 holds back 2 of 100")
	case r.Policy.FailureRate == 0:
		r.Policy = placement.SparePolicy{}
	}
	if err := r.Policy.Check(); err != nil {
		return withHint(fmt.Errorf("--spare-failure-rate, --spare-repair-time, --spare-stockout: %w", err),
			"0.09 failures a year, 168h of repair and a share of 0.001 hold back 5 of 512")
	}
	return nil
}
