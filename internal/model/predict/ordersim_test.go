package predict

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/perf"
	"github.com/dxpu-project/dxpu/internal/model/perf/paper"
)

// deviations are those of predictions from simulations, in points.
type deviations struct {
	of      []float64
	outside int     // of the range, by more than a point
	better  int     // than over the shorter round trip before
	width   float64 // of all ranges
}

func (d *deviations) add(dev float64) { d.of = append(d.of, math.Abs(dev)) }

func (d *deviations) mean() float64 {
	sum := 0.0
	for _, v := range d.of {
		sum += v
	}
	return sum / float64(max(len(d.of), 1))
}

// over counts the deviations above a number of points.
func (d *deviations) over(points float64) (n int) {
	for _, v := range d.of {
		if v > points {
			n++
		}
	}
	return n
}

// Random programs whose threads share streams, devices, events and the default stream are
// predicted as simulations of them say. The figures are those of docs/model.md.
func TestOrderOfThreads(t *testing.T) { orderOfThreads(t, traits{}, 1, 0.05) }

// Less is known of the same programs if the trace does not tell for what each call waits.
func TestOrderOfThreadsUntold(t *testing.T) { orderOfThreads(t, traits{untold: true}, 2, 0.2) }

// The same programs with CUDA graphs.
func TestOrderOfThreadsGraphs(t *testing.T) { orderOfThreads(t, traits{graphs: true}, 1, 0.05) }

// The order of calls that overlap is not in the trace.
func TestOrderOfThreadsLate(t *testing.T) { orderOfThreads(t, traits{late: true}, 2, 0.2) }

// orderOfThreads fails if predictions deviate by more than mostMean points in the mean, or if
// more than a share of them does by more than 3 points.
func orderOfThreads(t *testing.T, does traits, mostMean, mostOver float64) {
	programs := 1000
	if raceEnabled {
		programs = 100
	}
	added := []time.Duration{3700, 5600, 17800, 48800}
	var byRTT [4]deviations
	var largest, alone deviations // by program
	for n := range programs {
		p := drawProgram(uint64(10_000 + n))
		native := &machine{drawn: p, out: record(t), traits: does}
		recorded := native.run()
		plan := native.out.plan()
		most, before := 0.0, 1.0
		for k, delta := range added {
			dev, outside, g, predicted := p.compare(t, does, plan, recorded, delta)
			most = max(most, math.Abs(dev))
			if len(p.threads) == 1 {
				continue
			}
			byRTT[k].add(dev)
			byRTT[k].width += 100 * (g.High - g.Low)
			if predicted > before {
				byRTT[k].better++
			}
			before = predicted
			if outside > 1 {
				byRTT[k].outside++
			}
		}
		if len(p.threads) == 1 {
			alone.add(most)
		} else {
			largest.add(most)
		}
	}
	for k, d := range byRTT {
		t.Logf("%v: mean %.2f, most %.1f, %d of %d over 3 points, %d more than a point outside of the range, which is %.2f wide, %d better than before",
			perf.NativeRTT+added[k], d.mean(), slices.Max(d.of), d.over(3), len(d.of), d.outside, d.width/float64(len(d.of)), d.better)
	}
	for name, d := range map[string]*deviations{"threads": &largest, "one thread": &alone} {
		t.Logf("%s: mean of the largest %.2f, most %.1f, %d of %d over 3 points", name, d.mean(), slices.Max(d.of), d.over(3), len(d.of))
		if d.mean() > mostMean || float64(d.over(3)) > mostOver*float64(len(d.of)) {
			t.Errorf("%s: predictions deviate too much", name)
		}
	}
}

// compare returns the prediction minus the simulation of a program, and by how much the
// simulation is outside of the range, in points.
func (p *drawn) compare(t *testing.T, does traits, plan *Plan, recorded, delta time.Duration) (dev, outside float64, g Range, predicted float64) {
	longer := &machine{drawn: p, delta: delta, traits: does}
	truth := float64(recorded) / float64(longer.run())
	s := at(perf.NativeRTT + delta)
	s.Costs, s.HostScale = p.costs, 1
	r, st := run(t, plan, s), plan.Stats(0)
	g, err := plan.Range(s, &r, &st)
	if err != nil {
		t.Fatal(err)
	}
	return 100 * (r.Relative - truth), 100 * max(g.Low-truth, truth-g.High), g, r.Relative
}

// drawn is a random program.
type drawn struct {
	threads [][]action
	costs   perf.Costs
	legacy  bool // stream 7 is the default stream, and the others are blocking ones
}

type actionKind int

const (
	computes actionKind = iota
	launches
	copies
	copiesBack
	copiesAndWaits
	recordsEvent
	waitsForEvent // the stream
	syncsStream
	syncsEvent
	syncsDevice
	signals // another thread, which awaits that
	awaits
)

// action is what a thread does next.
type action struct {
	kind          actionKind
	stream, event int
	dur           time.Duration // of computing, or of the operation
	call, lag     time.Duration // of the call, and from its start until the operation's
	effect        float64       // the part of the call after which a launch takes effect, if it does so late
}

// launches reports whether the action launches an operation.
func (a *action) launches() bool { return a.kind >= launches && a.kind <= copiesAndWaits }

// drawer draws a program.
type drawer struct {
	*rand.Rand
	threads, streams                 int
	legacy, shared, device, handover bool
	hostBound                        float64
	events                           int
	thread                           int
	launched                         []int
	body                             []action
}

func drawProgram(seed uint64) *drawn {
	d := &drawer{Rand: rand.New(rand.NewPCG(seed, 99))}
	d.threads, d.legacy, d.streams = 1+d.IntN(3), d.IntN(4) == 0, 1+d.IntN(4)
	d.shared, d.device = d.IntN(2) == 0, d.IntN(2) == 0
	d.handover = d.threads > 1 && d.IntN(5) == 0
	d.hostBound = d.Float64()
	p := &drawn{legacy: d.legacy, costs: paper.HardwareCosts()}
	if seed%2 == 0 {
		p.costs = perf.PaperCosts()
	}
	for d.thread = range d.threads {
		p.threads = append(p.threads, d.drawThread())
	}
	p.dropAwaits()
	effects := rand.New(rand.NewPCG(seed, 100))
	for _, actions := range p.threads {
		for n := range actions {
			actions[n].effect = effects.Float64()
		}
	}
	return p
}

// time draws a time between two numbers of microseconds.
func (d *drawer) time(low, high float64) time.Duration {
	return time.Duration((low + d.Float64()*(high-low)) * 1000)
}

func (d *drawer) stream() int {
	switch n := d.IntN(d.streams); {
	case d.shared:
		return 7 + n
	case d.legacy && n == 0:
		return 7
	default:
		return 7 + 10*(d.thread+1) + n
	}
}

// drawThread draws a loop of a thread.
func (d *drawer) drawThread() (out []action) {
	d.body, d.launched = nil, nil
	for range 3 + d.IntN(12) {
		d.drawAction()
	}
	if len(d.launched) == 0 {
		d.operation(launches, d.stream(), 5, 50)
	}
	last := d.launched[len(d.launched)-1]
	switch d.IntN(4) {
	case 0:
		if d.device {
			d.body = append(d.body, action{kind: syncsDevice})
		}
	case 1, 2:
		d.body = append(d.body, action{kind: syncsStream, stream: last})
	}
	rounds := 8 + d.IntN(40)
	if d.thread > 0 {
		out = append(out, action{kind: computes, dur: d.time(0, 60)})
	}
	for round := range rounds {
		out = d.repeat(out, round)
	}
	if d.IntN(2) == 0 && d.device {
		return append(out, action{kind: syncsDevice, call: d.time(3, 4)})
	}
	return append(out, action{kind: syncsStream, stream: last, call: d.time(3, 4)})
}

// repeat adds a round of the loop, and at some a handover from the first thread.
func (d *drawer) repeat(out []action, round int) []action {
	for _, a := range d.body {
		a.dur = time.Duration(float64(a.dur) * (0.9 + 0.2*d.Float64()))
		a.call, a.lag = d.time(3, 7), d.time(5.5, 6.5)
		a.event += round * eventsOfRound
		out = append(out, a)
	}
	event := handed + round*eventsOfRound
	switch {
	case !d.handover || round%4 != 3:
		return out
	case d.thread == 0:
		return append(out, action{kind: recordsEvent, stream: d.launched[0], event: event, call: d.time(3, 7)}, action{kind: signals, event: event})
	}
	s := d.stream()
	return append(out, action{kind: awaits, event: event}, action{kind: waitsForEvent, stream: s, event: event, call: d.time(3, 7)},
		action{kind: launches, stream: s, dur: d.time(5, 20), call: d.time(3, 7), lag: d.time(5.5, 6.5)})
}

// Numbers of events: those of a round, and the one of it that threads await.
const (
	eventsOfRound = 1000
	handed        = 500
)

func (d *drawer) operation(kind actionKind, stream int, low, high float64) {
	d.body = append(d.body, action{kind: kind, stream: stream, dur: d.time(low, high)})
	d.launched = append(d.launched, stream)
}

func (d *drawer) drawAction() {
	switch x := d.IntN(100); {
	case x < 25:
		d.body = append(d.body, action{kind: computes, dur: d.time(1, 5+60*d.hostBound*d.hostBound)})
	case x < 65:
		s := d.stream()
		d.operation(launches, s, 2, 10+80*d.Float64())
	case x < 72:
		d.operation(copies, d.stream(), 2, 12)
	case x < 77:
		d.operation(copiesBack, d.stream(), 2, 12)
	case x < 79:
		d.operation(copiesAndWaits, d.stream(), 2, 12)
	case x < 96 && len(d.launched) == 0:
	case x < 90:
		d.body = append(d.body, action{kind: recordsEvent, stream: d.launched[d.IntN(len(d.launched))], event: d.events})
		if d.IntN(4) == 0 {
			d.body = append(d.body, action{kind: syncsEvent, event: d.events})
		} else {
			d.body = append(d.body, action{kind: waitsForEvent, stream: d.stream(), event: d.events})
		}
		d.events++
	case x < 96:
		d.body = append(d.body, action{kind: syncsStream, stream: d.launched[d.IntN(len(d.launched))]})
	case d.device:
		d.body = append(d.body, action{kind: syncsDevice})
	}
}

// dropAwaits drops what threads await and the first one never signals.
func (p *drawn) dropAwaits() {
	signalled := map[int]bool{}
	for _, a := range p.threads[0] {
		signalled[a.event] = signalled[a.event] || a.kind == signals
	}
	for n, actions := range p.threads[1:] {
		p.threads[n+1] = slices.DeleteFunc(actions, func(a action) bool {
			return (a.kind == awaits || a.kind == waitsForEvent && a.event%eventsOfRound == handed) && !signalled[a.event]
		})
	}
}
