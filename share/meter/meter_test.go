package meter_test

import (
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/share"
	"github.com/dxpu-project/dxpu/share/meter"
)

// The sensor averages over its span from the first reading on, whenever a client comes: it
// neither takes a short time for all of the span nor the time before the client for idleness of
// it.
func TestReadingsOfANewClient(t *testing.T) {
	for _, at := range []time.Duration{0, 24 * time.Hour} {
		var m meter.Meter
		now := at
		m.Begin(now)
		for n, want := range []int{125, 250, 375, 500, 625, 750, 875, 1000, 1000, 1000} { // thousandths
			now += meter.ReadPeriod
			m.Serve(meter.ReadPeriod / 2)
			s := m.Sample(now, 0)
			if s.Utilisation != share.PPM(want)*share.Whole/1000 || s.SMActivity != s.Utilisation/2 {
				t.Errorf("came at %v, reading %d: %d and %d ppm, want %d thousandths and half of it", at, n, s.Utilisation, s.SMActivity, want)
			}
		}
	}
}
