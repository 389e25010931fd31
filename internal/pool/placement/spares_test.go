package placement

import (
	"math"
	"strings"
	"testing"
	"time"

	"gonum.org/v1/gonum/stat/distuv"
	"pgregory.net/rapid"
)

// The expected values are computed by hand from the Poisson distribution with mean m:
// P(X ≤ s) = e^-m (1 + m + m²/2! + … + m^s/s!).
func TestSpares(t *testing.T) {
	tests := []struct {
		name   string
		policy SparePolicy
		gpus   int
		want   int
	}{
		// A mean of 1: P(X≤2) = 2.5 e^-1 = 0.9197, P(X≤3) = 2.6667 e^-1 = 0.9810,
		// P(X≤4) = 2.7083 e^-1 = 0.9963, P(X≤5) = 2.7167 e^-1 = 0.9994.
		{"mean 1, 10 percent", SparePolicy{0.1, year / 10, 0.1}, 100, 2},
		{"mean 1, 5 percent", SparePolicy{0.1, year / 10, 0.05}, 100, 3},
		{"mean 1, 1 percent", SparePolicy{0.1, year / 10, 0.01}, 100, 4},
		{"mean 1, 1 permille", SparePolicy{0.1, year / 10, 0.001}, 100, 5},
		// e^-0.01 = 0.99005, and with 0.01 e^-0.01 it is 0.99995.
		{"mean 0.01: none at 1 percent", SparePolicy{1, year / 100, 0.01}, 1, 0},
		{"mean 0.01: one at 1 permille", SparePolicy{1, year / 100, 0.001}, 1, 1},
		// 512 GPUs × 0.09 a year × 7 days of 365 = 0.8837; e^-0.8837 = 0.41325:
		// P(X≤2) = 0.41325 × 2.2742 = 0.9398, P(X≤3) = 0.41325 × 2.3892 = 0.9873,
		// P(X≤4) = 0.41325 × 2.4146 = 0.99782, P(X≤5) = 0.41325 × 2.4191 = 0.99968.
		{"512 GPUs, a week of repair", SparePolicy{0.09, 7 * 24 * time.Hour, 0.001}, 512, 5},
		{"never more than there are", SparePolicy{1000, year, 0.001}, 8, 8},
		{"no GPUs", SparePolicy{0.1, year, 0.01}, 0, 0},
		{"no policy", SparePolicy{}, 1000, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.policy.Spares(tt.gpus); got != tt.want {
				t.Errorf("%d spares, want %d: %s", got, tt.want, tt.policy.Explain("A", tt.gpus))
			}
		})
	}
}

// TestSparesAreTheQuantile checks pools of 1 to 200,000 GPUs against gonum's Poisson distribution.
func TestSparesAreTheQuantile(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := SparePolicy{
			FailureRate: rapid.Float64Range(0.001, 2).Draw(t, "rate"),
			RepairTime:  time.Duration(rapid.Int64Range(int64(time.Hour), int64(60*24*time.Hour)).Draw(t, "repair")),
			Stockout:    rapid.SampledFrom([]float64{0.1, 0.01, 1e-4, 1e-6}).Draw(t, "stockout"),
		}
		n := rapid.IntRange(1, 200_000).Draw(t, "gpus")
		s := p.Spares(n)
		away := distuv.Poisson{Lambda: p.mean(n)}
		const error = 1e-9
		if s < n && away.Survival(float64(s)) > p.Stockout+error {
			t.Fatalf("%d spares are too few: %v", s, away.Survival(float64(s)))
		}
		if s > 0 && away.Survival(float64(s-1)) < p.Stockout-error {
			t.Fatalf("%d spares are too many: %v with one less", s, away.Survival(float64(s-1)))
		}
	})
}

func TestExplainSpares(t *testing.T) {
	got := SparePolicy{0.09, 7 * 24 * time.Hour, 0.001}.Explain("V100", 512)
	want := "512 usable GPUs of model V100 need 5 spares: each fails 0.09 times a year and takes 7 days to repair, " +
		"so 0.884 of them are in repair on average, and more than 5 with a probability of 0.00031 (at most 0.001 is allowed)."
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestCheckSparePolicy(t *testing.T) {
	good := SparePolicy{0.1, time.Hour, 0.01}
	tests := []struct {
		name   string
		change func(*SparePolicy)
		want   string
	}{
		{"good", func(*SparePolicy) {}, ""},
		{"none", func(p *SparePolicy) { *p = SparePolicy{} }, ""},
		{"no rate", func(p *SparePolicy) { p.FailureRate = 0 }, "failure rate"},
		{"rate not a number", func(p *SparePolicy) { p.FailureRate = math.NaN() }, "failure rate"},
		{"endless rate", func(p *SparePolicy) { p.FailureRate = math.Inf(1) }, "failure rate"},
		{"no repair time", func(p *SparePolicy) { p.RepairTime = 0 }, "repair time"},
		{"certain stockout", func(p *SparePolicy) { p.Stockout = 1 }, "stockout"},
		{"stockout not a number", func(p *SparePolicy) { p.Stockout = math.NaN() }, "stockout"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := good
			tt.change(&p)
			err := p.Check()
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
}

func TestReserveTakesTheMost(t *testing.T) {
	policy := SparePolicy{0.1, year / 10, 0.01} // 4 of 100
	tests := []struct {
		name    string
		reserve Reserve
		usable  int
		want    int
	}{
		{"none", Reserve{}, 100, 0},
		{"count", Reserve{Count: 9, Fraction: 0.05, Policy: policy}, 100, 9},
		{"fraction, rounded up", Reserve{Count: 2, Fraction: 0.051, Policy: policy}, 100, 6},
		{"policy", Reserve{Count: 2, Fraction: 0.02, Policy: policy}, 100, 4},
		{"not more than there are", Reserve{Count: 9}, 5, 5},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.reserve.Held(tt.usable); got != tt.want {
				t.Errorf("%d, want %d", got, tt.want)
			}
		})
	}
}

func BenchmarkSpares(b *testing.B) {
	p := SparePolicy{0.09, 7 * 24 * time.Hour, 0.001}
	for b.Loop() {
		p.Spares(100_000)
	}
}

func TestExplainReserve(t *testing.T) {
	policy := SparePolicy{FailureRate: 0.05, RepairTime: 7 * 24 * time.Hour, Stockout: 0.01}
	for _, tt := range []struct {
		name    string
		reserve Reserve
		n       int
		want    string
	}{
		{"no rule", Reserve{}, 100, ""},
		{"a number", Reserve{Count: 2}, 100, "2 of each model, by the manager's settings."},
		{"more than there are", Reserve{Count: 5}, 3, "All 3 usable GPUs of model M: the pool has no more."},
		{"a share", Reserve{Count: 1, Fraction: 0.05}, 100, "5 % of the 100 usable GPUs of model M, by the manager's settings."},
		{"a policy", Reserve{Policy: policy}, 1000, policy.Explain("M", 1000)},
		{"a number above the policy's", Reserve{Count: 50, Policy: policy}, 1000, "50 of each model, by the manager's settings."},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.reserve.Explain("M", tt.n); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}
