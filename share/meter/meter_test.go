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
			m.Serve(now-1, meter.ReadPeriod/2)
			s := m.Sample(now, 0)
			if s.Utilisation != share.PPM(want)*share.Whole/1000 || s.SMActivity != s.Utilisation/2 {
				t.Errorf("came at %v, reading %d: %d and %d ppm, want %d thousandths and half of it", at, n, s.Utilisation, s.SMActivity, want)
			}
		}
	}
}

// The sensor averages over its span also where readings come late, or pause while nothing runs.
func TestLateReadings(t *testing.T) {
	for _, c := range []struct {
		name     string
		readings []time.Duration // ms; half of each millisecond is busy from "from" on
		from     time.Duration
		want     int // percent, of the last reading
	}{
		{"in the first span", []time.Duration{120, 3120}, 0, 50},
		{"later", []time.Duration{120, 240, 360, 480, 600, 720, 840, 960, 1080, 1200, 4200}, 0, 50},
		{"after a pause", []time.Duration{120, 240, 360, 480, 600, 720, 840, 960, 1080, 1200, 60_000}, 59_520, 25},
		{"the first one after a pause", []time.Duration{60_000}, 59_520, 25},
	} {
		t.Run(c.name, func(t *testing.T) {
			var m meter.Meter
			var last share.Sample
			at := c.from
			for _, reading := range c.readings {
				for ; at < reading; at++ {
					m.Begin(at * time.Millisecond)
					m.End(at*time.Millisecond + time.Millisecond/2)
				}
				last = m.Sample(reading*time.Millisecond, 0)
			}
			if last.Utilisation != share.Percent(c.want) {
				t.Errorf("%d ppm, want %d %%", last.Utilisation, c.want)
			}
		})
	}
}

// A reading in the middle of a period is the average of the span and the rest of that.
func TestReadingsBetweenPeriods(t *testing.T) {
	var m meter.Meter
	m.Begin(0)
	for now := time.Duration(0); now < 10*time.Second; now += 77 * time.Millisecond {
		s := m.Sample(now, 0)
		if want := share.Ratio(min(now, now%meter.ReadPeriod+8*meter.ReadPeriod), now%meter.ReadPeriod+8*meter.ReadPeriod); s.Utilisation != want {
			t.Errorf("at %v: %d ppm, want %d", now, s.Utilisation, want)
		}
	}
}
