package cli

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

func TestSpareFlags(t *testing.T) {
	tests := []struct {
		name, args string
		held       int // of 512
		wrong      string
	}{
		{"none", "", 0, ""},
		{"number", "--spares 2", 2, ""},
		{"share", "--spares 2 --spare-fraction 0.02", 11, ""},
		{"rate", "--spare-failure-rate 0.09", 5, ""},
		{"rate and all", "--spare-failure-rate 0.09 --spare-repair-time 24h --spare-stockout 0.01", 1, ""},
		{"the largest applies", "--spares 9 --spare-failure-rate 0.09", 9, ""},
		{"negative number", "--spares -1", 0, "--spares"},
		{"negative share", "--spare-fraction -0.1", 0, "--spare-fraction"},
		{"share not a number", "--spare-fraction NaN", 0, "--spare-fraction"},
		{"negative rate", "--spare-failure-rate -1", 0, "failure rate"},
		{"rate not a number", "--spare-failure-rate NaN", 0, "failure rate"},
		{"stockout", "--spare-failure-rate 1 --spare-stockout 2", 0, "stockout"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var r placement.Reserve
			f := pflag.NewFlagSet("test", pflag.ContinueOnError)
			spareFlags(f, &r)
			if err := f.Parse(strings.Fields(tt.args)); err != nil {
				t.Fatal(err)
			}
			err := checkSpares(&r)
			if (err == nil) != (tt.wrong == "") || err != nil && !strings.Contains(err.Error(), tt.wrong) {
				t.Fatalf("%v, want %q", err, tt.wrong)
			}
			if got := r.Held(512); err == nil && got != tt.held {
				t.Errorf("%d held back, want %d", got, tt.held)
			}
		})
	}
}
