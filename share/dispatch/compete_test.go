package dispatch_test

import (
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/share"
)

// Slices that want more than their limits have them, whatever the length of their kernels: the
// waits for parts of another one are no use of the GPU.
func TestSharesThatCompete(t *testing.T) {
	for _, c := range []struct {
		name    string
		kernels [2]time.Duration
	}{
		{"equal kernels", [...]time.Duration{7 * time.Millisecond, 7 * time.Millisecond}},
		{"long and short kernels", [...]time.Duration{60 * time.Millisecond, time.Millisecond}},
		{"short kernels", [...]time.Duration{time.Millisecond, 2 * time.Millisecond}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var programs []*program
			for i, kernel := range c.kernels {
				programs = append(programs, &program{id: share.ClientID(i + 1), spec: percent(30), kernel: kernel})
			}
			newWorld(t, "gaiapi", programs...).wantShares(t, 0.03)
		})
	}
}
