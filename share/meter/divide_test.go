package meter

import (
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/share"
)

// Waits for launches of others are taken from the readings. A program that tells too little is charged
// for the time that no other one tells, and one whose launch has not ended has that launch's time.
func TestDivide(t *testing.T) {
	const (
		ms   = time.Millisecond
		span = readSpan * ReadPeriod // 960 ms
	)
	for _, c := range []struct {
		name          string
		told, awaited [2]time.Duration
		first, last   share.PPM
	}{
		{"both tell all", [2]time.Duration{600 * ms, 360 * ms}, [2]time.Duration{}, 625_000, 375_000},
		{"one tells nothing", [2]time.Duration{600 * ms, 0}, [2]time.Duration{}, 727_272, 272_727},
		{"none tells anything", [2]time.Duration{}, [2]time.Duration{}, 500_000, 500_000},
		{"both tell too much", [2]time.Duration{time.Hour, time.Hour}, [2]time.Duration{}, 500_000, 500_000},
		{"one tells too much", [2]time.Duration{288 * ms, time.Hour}, [2]time.Duration{}, 300_000, 700_000},
		{"a launch has not ended", [2]time.Duration{288 * ms, 0}, [2]time.Duration{0, span}, 300_000, 700_000},
		{"a launch has not ended, and slows the others", [2]time.Duration{span, 0}, [2]time.Duration{0, 10 * time.Second}, 500_000, 500_000},
		{"a launch has not ended for half of the time", [2]time.Duration{384 * ms, 0}, [2]time.Duration{0, span / 2}, 454_545, 545_454},
	} {
		var total Meter
		meters := []*Meter{{}, {}}
		var samples []share.Sample
		total.Begin(0)
		for i, m := range meters {
			m.Begin(0)
			m.Tell(span, c.told[i])
			m.Await(c.awaited[i])
			samples = append(samples, m.Sample(span, 0))
		}
		Divide(total.Sample(span, 0).Utilisation, meters, samples)
		if a, b := samples[0].Utilisation, samples[1].Utilisation; a != c.first || b != c.last {
			t.Errorf("%s: %d and %d ppm, want %d and %d", c.name, a, b, c.first, c.last)
		}
	}
}

// The time of a launch counts when it ran, and not when its end was told.
func TestLongLaunchIsTold(t *testing.T) {
	var m Meter
	now := time.Duration(0)
	for range 100 { // half of each second
		m.Begin(now)
		now += 480 * time.Millisecond
		m.Tell(now, 480*time.Millisecond)
		m.End(now)
		now += 480 * time.Millisecond
		m.Sample(now, 0)
		if now > 2*time.Second && m.said != share.Whole/2 {
			t.Fatalf("at %v: %d ppm", now, m.said)
		}
	}
	m = Meter{}
	m.Tell(now, 10*time.Second)
	if m.Sample(now+360*time.Millisecond, 0); m.said != share.Whole*5/8 {
		t.Errorf("%d ppm 360 ms after a launch of 10 s, want five eighths", m.said)
	}
}
