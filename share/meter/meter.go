// Package meter measures the work of the clients of a GPU for an enforcement of package
// share: the readings of sensors that policies want, and predictions of launches.
package meter

import (
	"time"

	"github.com/dxpu-project/dxpu/share"
)

// The sensors read every ReadPeriod and average over readSpan periods, like those of
// a GPU's driver.
const (
	ReadPeriod = 120 * time.Millisecond
	readSpan   = 8
)

// CoolTemperature is that of a GPU that is not too warm, in degrees Celsius, for an
// enforcement without a sensor.
const CoolTemperature = 60

// Meter adds up the work of a client, or of a GPU. The zero value is an idle one.
type Meter struct {
	busy    time.Duration // time with a launch that runs, until from
	service time.Duration
	told    time.Duration // that the programs say their launches ran
	from    time.Duration // since when launches run
	running int           // launches that run
	history [readSpan]reading
	n       int       // readings
	said    share.PPM // of the last reading, by Tell
}

type reading struct{ at, busy, service, told time.Duration }

func (m *Meter) pass(now time.Duration) {
	if m.running > 0 {
		m.busy += now - m.from
	}
	m.from = now
}

// Begin counts a launch that begins.
func (m *Meter) Begin(now time.Duration) {
	m.pass(now)
	m.running++
}

// End counts a launch that ended.
func (m *Meter) End(now time.Duration) {
	m.pass(now)
	m.running = max(m.running-1, 0)
}

// Ran adds time with a launch that ran and that no Begin and End saw.
func (m *Meter) Ran(now, d time.Duration) {
	m.pass(now)
	m.busy += d
}

// Serve adds time of all multiprocessors.
func (m *Meter) Serve(d time.Duration) { m.service += d }

// Tell adds time that a program says its launch ran, without waits for launches of others.
func (m *Meter) Tell(d time.Duration) { m.told += d }

// Busy returns the time with a launch that ran, until the last call with a time.
func (m *Meter) Busy() time.Duration { return m.busy }

// Service returns the time of Serve.
func (m *Meter) Service() time.Duration { return m.service }

// Sample takes a reading. Memory is in bytes.
func (m *Meter) Sample(now time.Duration, memory int64) share.Sample {
	m.pass(now)
	old := &m.history[m.n%readSpan]
	was := *old
	*old = reading{now, m.busy, m.service, m.told}
	m.n++
	d := now - was.at
	if m.n <= readSpan { // it did nothing before it was there
		d = readSpan * ReadPeriod
	}
	m.said = share.Ratio(m.told-was.told, d)
	return share.Sample{
		Utilisation: share.Ratio(m.busy-was.busy, d), SMActivity: share.Ratio(m.service-was.service, d), Memory: memory,
		Clock: share.Whole,
	}
}

// Divide takes from the last samples of the clients, of which one has a meter at each place, the
// waits for launches of the others: launches in flight wait for each other, and all of them ran
// for no longer than the GPU did. Each client has the time that its program told. The other time of
// the GPU is divided by the other time of their samples. So a program that tells less than its launches
// ran is charged for the rest.
func Divide(whole share.PPM, meters []*Meter, samples []share.Sample) {
	var more share.PPM
	for i, m := range meters {
		said := min(m.said, samples[i].Utilisation)
		whole -= said
		more += samples[i].Utilisation - said
	}
	whole = max(whole, 0)
	if more <= whole {
		return
	}
	for i, m := range meters {
		said := min(m.said, samples[i].Utilisation)
		samples[i].Utilisation = said + (samples[i].Utilisation-said)*whole/more
	}
}

// Profile predicts how long a launch takes from its cost by some model: the two are in
// proportion, and the factor follows the launches.
type Profile struct {
	cost  time.Duration // of the launches by the model; older ones count less
	spent time.Duration // what they took
}

// Expect predicts the time of a launch with a modelled cost; 0: not known.
func (p *Profile) Expect(cost time.Duration) time.Duration {
	if p.cost <= 0 {
		return 0
	}
	return time.Duration(float64(cost) * float64(p.spent) / float64(p.cost))
}

// Note takes a launch into account.
func (p *Profile) Note(cost, ran time.Duration) {
	p.cost = p.cost*7/8 + cost
	p.spent = p.spent*7/8 + ran
}
