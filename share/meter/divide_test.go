package meter

import (
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/share"
)

// Waits for launches of others are taken from the readings, and a program that tells too little is
// charged for the time that no other one tells.
func TestDivide(t *testing.T) {
	for _, c := range []struct {
		name        string
		told        [2]time.Duration
		first, last share.PPM
	}{
		{"both tell all", [2]time.Duration{600 * time.Millisecond, 360 * time.Millisecond}, 625_000, 375_000},
		{"one tells nothing", [2]time.Duration{600 * time.Millisecond, 0}, 727_272, 272_727},
		{"none tells anything", [2]time.Duration{}, 500_000, 500_000},
		{"both tell too much", [2]time.Duration{time.Hour, time.Hour}, share.Whole, share.Whole},
	} {
		const span = readSpan * ReadPeriod // 960 ms
		var total Meter
		meters := []*Meter{{}, {}}
		var samples []share.Sample
		total.Begin(0)
		for i, m := range meters {
			m.Begin(0)
			m.Tell(0, c.told[i])
			samples = append(samples, m.Sample(span, 0))
		}
		Divide(total.Sample(span, 0).Utilisation, meters, samples)
		if a, b := samples[0].Utilisation, samples[1].Utilisation; a != c.first || b != c.last {
			t.Errorf("%s: %d and %d ppm, want %d and %d", c.name, a, b, c.first, c.last)
		}
	}
}
