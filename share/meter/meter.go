// Package meter measures the work of the clients of a GPU for an enforcement of package
// share: the readings of sensors that policies want, and predictions of launches.
package meter

import (
	"cmp"
	"slices"
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

// Meter adds up the work of a client, or of a GPU. The zero value is an idle one. Its times are
// not negative and do not go backwards.
type Meter struct {
	busy    time.Duration // time with a launch that runs, until from
	service time.Duration
	from    time.Duration // since when launches run
	running int           // launches that run
	// The work of each ReadPeriod since time zero, the newest one being number last: those of the
	// span, and the one that the span begins in.
	periods [readSpan + 1]work
	last    int64
	said    share.PPM // of the last reading, by Tell and Await
	awaited time.Duration
}

type work struct{ busy, service, told time.Duration }

// period returns the work of the present period.
func (m *Meter) period() *work { return &m.periods[m.last%int64(len(m.periods))] }

// move forgets the periods before the span.
func (m *Meter) move(now time.Duration) {
	n := int64(now / ReadPeriod)
	for m.last = max(m.last, n-int64(len(m.periods))); m.last < n; {
		m.last++
		*m.period() = work{}
	}
}

func (m *Meter) pass(now time.Duration) {
	if m.running > 0 {
		m.busy += now - m.from
		// No reading has work before the span.
		for at := max(m.from, now-(readSpan+1)*ReadPeriod); at < now; {
			end := min((at/ReadPeriod+1)*ReadPeriod, now)
			m.move(at)
			m.period().busy += end - at
			at = end
		}
	}
	m.move(now)
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
	m.period().busy += d
}

// Serve adds time of all multiprocessors.
func (m *Meter) Serve(now, d time.Duration) {
	m.pass(now)
	m.service += d
	m.period().service += d
}

// Tell adds time that a program says its launch, which ends now, ran, without waits for launches
// of others. It counts in the periods in which it was.
func (m *Meter) Tell(now, d time.Duration) {
	m.pass(now)
	oldest := max(m.last-int64(len(m.periods))+1, 0)
	for at := max(now-d, time.Duration(oldest)*ReadPeriod); at < now; {
		n := int64(at / ReadPeriod)
		end := min(time.Duration(n+1)*ReadPeriod, now)
		m.periods[n%int64(len(m.periods))].told += end - at
		at = end
	}
}

// Await says, before a reading, for how long launches have been in flight of which no end was
// told: they may have run for all of that time.
func (m *Meter) Await(d time.Duration) { m.awaited = d }

// Busy returns the time with a launch that ran, until the last call with a time.
func (m *Meter) Busy() time.Duration { return m.busy }

// Service returns the time of Serve.
func (m *Meter) Service() time.Duration { return m.service }

// Sample takes a reading, over the span and the rest of the period that it begins in, whenever
// others were taken. Memory is in bytes.
func (m *Meter) Sample(now time.Duration, memory int64) share.Sample {
	m.pass(now)
	var sum work
	for _, w := range m.periods {
		sum = work{sum.busy + w.busy, sum.service + w.service, sum.told + w.told}
	}
	d := now - time.Duration(m.last-readSpan)*ReadPeriod
	m.said = share.Ratio(sum.told+min(max(m.awaited, 0), d), d)
	return share.Sample{Utilisation: share.Ratio(sum.busy, d), SMActivity: share.Ratio(sum.service, d), Memory: memory, Clock: share.Whole}
}

// Told is Sample for a meter that is told all: the utilisation is the told time alone.
func (m *Meter) Told(now time.Duration, memory int64) share.Sample {
	s := m.Sample(now, memory)
	s.Utilisation = min(s.Utilisation, m.said)
	return s
}

// Divide takes from the last samples of the clients, of which one has a meter at each place, the
// waits for launches of the others: launches in flight wait for each other, and all of them ran
// for no longer than the GPU did. Each client has the time that its program told, and that of launches
// of which it has told no end yet. Where these are more than the time of the GPU, it is divided as the
// hardware does between contexts: equally, and no client gets more than it says. The other time is
// divided by the other time of the samples. So a program that tells less than its launches ran is
// charged for the rest.
func Divide(whole share.PPM, meters []*Meter, samples []share.Sample) {
	var all, more share.PPM
	said := make([]share.PPM, len(meters))
	for i, m := range meters {
		said[i] = min(m.said, samples[i].Utilisation)
		all += samples[i].Utilisation
		more += samples[i].Utilisation - said[i]
	}
	if all <= whole {
		return
	}
	given, left := fair(whole, said)
	for i := range samples {
		rest := samples[i].Utilisation - said[i]
		samples[i].Utilisation = given[i]
		if more > 0 {
			samples[i].Utilisation += min(rest*left/more, rest)
		}
	}
}

// fair divides a whole so that no client gets more than it wants, and all that get less get the
// same. It returns what is left, too.
func fair(whole share.PPM, wants []share.PPM) (given []share.PPM, left share.PPM) {
	given, left = make([]share.PPM, len(wants)), whole
	order := make([]int, len(wants))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(wants[a], wants[b]) })
	for n, i := range order {
		given[i] = min(wants[i], left/share.PPM(len(order)-n))
		left -= given[i]
	}
	return given, left
}

// Profile predicts how long a launch takes from its cost by some model: the two are in
// proportion, and the factor follows the launches.
type Profile struct {
	cost  float64 // of the launches by the model, in nanoseconds; older ones count less
	spent float64 // what they took
}

// Expect predicts the time of a launch with a modelled cost; 0: not known.
func (p *Profile) Expect(cost time.Duration) time.Duration {
	if p.cost <= 0 || cost <= 0 {
		return 0
	}
	return time.Duration(min(float64(cost)*p.spent/p.cost, maxExpect))
}

// maxExpect bounds predictions: a duration can hold it.
const maxExpect = float64(365 * 24 * time.Hour)

// Note takes a launch into account.
func (p *Profile) Note(cost, ran time.Duration) {
	p.cost = p.cost*7/8 + float64(max(cost, 0))
	p.spent = p.spent*7/8 + float64(max(ran, 0))
}
