package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
)

// Failures are the failures of parts and their repair, from rates or from a list.
type Failures struct {
	Faults string `yaml:"faults"` // a list as JSON; its days are replayed
	// Rates are failures a year of one part.
	Rates  Rates  `yaml:"rates"`
	Repair Repair `yaml:"repair"`
	// Years are simulated, from a stationary state on.
	Years float64 `yaml:"years"`
	// Availability are shares of the time, in per cent, for which the spares suffice.
	Availability []float64 `yaml:"availability"`
	Upgrades     []Upgrade `yaml:"upgrades"`

	faults []fault
	nodes  int
	days   float64
}

// Rates are failures a year of one GPU, host, box and proxy. A box has one proxy.
type Rates struct {
	GPU   float64 `yaml:"gpu"`
	Host  float64 `yaml:"host"`
	Box   float64 `yaml:"box"`
	Proxy float64 `yaml:"proxy"`
}

// Repair is a log-normal time, which has few long repairs that make up most of the mean.
type Repair struct {
	MedianDays float64 `yaml:"median-days"`
	MeanDays   float64 `yaml:"mean-days"`
}

// Upgrade is planned work.
type Upgrade struct {
	Name    string  `yaml:"name"`
	Part    string  `yaml:"part"` // host, box or proxy
	PerYear float64 `yaml:"per-year"`
	Hours   float64 `yaml:"hours"`
}

// daysPerYear is the length of a Julian year.
const daysPerYear = 365.25

// Limits of failures.
const (
	maxRate    = 1000
	maxYears   = 10_000
	maxOutages = 5_000_000
)

// upgradeParts are the words of Upgrade.Part.
var upgradeParts = map[string]part{"host": partHost, "box": partBox, "proxy": partProxy}

func (f *Failures) prepare(data fs.FS) error {
	if len(f.Availability) == 0 {
		f.Availability = []float64{99, 99.9, 99.99}
	}
	err := bounded(maxRate, field{"gpu", f.Rates.GPU}, field{"host", f.Rates.Host}, field{"box", f.Rates.Box}, field{"proxy", f.Rates.Proxy})
	if err != nil {
		return fmt.Errorf("failures: rates: %w a year", err)
	}
	if r := f.Repair; !(r.MedianDays > 0 && r.MeanDays >= r.MedianDays && r.MeanDays <= 3650) {
		return fmt.Errorf("failures: repair: median-days %v, mean-days %v: want a median above 0 and a mean from there to 3650", r.MedianDays, r.MeanDays)
	}
	if !(f.Years >= 1 && f.Years <= maxYears) {
		return fmt.Errorf("failures: years %v: want 1 to %d", f.Years, maxYears)
	}
	for _, a := range f.Availability {
		if !(a >= 1 && a < 100) {
			return fmt.Errorf("failures: availability %v: want 1 to less than 100 per cent", a)
		}
	}
	for _, u := range f.Upgrades {
		if _, ok := upgradeParts[u.Part]; !ok || !(u.PerYear >= 0 && u.PerYear <= maxRate && u.Hours >= 0 && u.Hours <= 8760) {
			return fmt.Errorf("failures: upgrade %q: part %q, %v a year, %v hours: want host, box or proxy, 0 to %d a year and 0 to 8760 hours", u.Name, u.Part, u.PerYear, u.Hours, maxRate)
		}
	}
	if len(f.Availability) > maxRuns || len(f.Upgrades) > maxRuns {
		return fmt.Errorf("failures: more than %d upgrades or availabilities", maxRuns)
	}
	if f.Faults == "" && f.Rates == (Rates{}) {
		return errors.New("failures: want faults (a list) or rates")
	}
	if f.Faults == "" {
		return nil
	}
	in, err := openList(data, "failures: faults", f.Faults)
	if err != nil {
		return err
	}
	defer in.Close()
	f.faults, f.nodes, f.days, err = readFaults(in)
	return err
}

// check compares the failures with the cluster.
func (f *Failures) check(nodes []Node) error {
	gpus := nodes[0].GPUs
	for i := range nodes {
		if nodes[i].GPUs != gpus {
			return fmt.Errorf("failures: servers of %d and of %d GPUs: want servers that are equal", gpus, nodes[i].GPUs)
		}
	}
	n := float64(len(nodes))
	yearly := n * (float64(gpus)*f.Rates.GPU + f.Rates.Host + f.Rates.Box + f.Rates.Proxy)
	all := yearly * (f.Years + f.Repair.MeanDays/daysPerYear) // those that are away at the start included
	switch {
	case f.nodes > len(nodes):
		return fmt.Errorf("failures: the list has faults of %d servers, the cluster has %d", f.nodes, len(nodes))
	case all > maxOutages:
		return fmt.Errorf("failures: %.0f failures in %v years: want at most %d: lower years", all, f.Years, maxOutages)
	}
	return nil
}

// failureCase is one row of the table of unavailable GPUs.
type failureCase struct {
	name string
	pool bool
	view view
}

// failureStudy counts the GPUs that are away, for servers and for a pool.
type failureStudy struct {
	e       *Experiment
	f       *Failures
	gpus    int // of a server
	cases   []failureCase
	results []levels // by case, then seed
}

func newFailureStudy(e *Experiment, r *Report) *failureStudy {
	s := &failureStudy{e: e, f: e.Failures, gpus: e.Nodes[0].GPUs, cases: []failureCase{{name: "servers"}, {name: "pool", pool: true}}}
	if s.f.faults != nil {
		s.cases = append(s.cases, failureCase{"pool, all unclear faults hit boxes", true, worst}, failureCase{"pool, all unclear faults hit hosts", true, kindest})
		r.Facts = append(r.Facts, fmt.Sprintf("%d recorded faults on %d servers in %.1f days", len(s.f.faults), s.f.nodes, s.f.days))
	} else {
		r.Facts = append(r.Facts, fmt.Sprintf("%g simulated years; repairs take %g days in the median and %g on average", s.f.Years, s.f.Repair.MedianDays, s.f.Repair.MeanDays))
	}
	s.results = make([]levels, s.runs())
	return s
}

func (s *failureStudy) runs() int { return len(s.cases) * s.e.Seeds }

func (s *failureStudy) run(_ context.Context, i int) {
	c, rng := s.cases[i/s.e.Seeds], rngOf(uint64(i%s.e.Seeds), 6)
	p := newPlant(c.pool, len(s.e.Nodes), s.gpus)
	if s.f.faults != nil {
		s.results[i] = p.run(outagesOf(s.f.faults, c.view, s.gpus, rng), 0, s.f.days)
		return
	}
	s.results[i] = p.run(s.synthetic(rng), 0, s.f.Years*daysPerYear)
}

// rateOf returns the failures of all units of a part in a day.
func (s *failureStudy) rateOf(k part) float64 {
	units := float64(len(s.e.Nodes)) / daysPerYear
	return [parts]float64{s.f.Rates.GPU * units * float64(s.gpus), s.f.Rates.Host * units, s.f.Rates.Box * units, s.f.Rates.Proxy * units}[k]
}

// synthetic draws the outages of all years, and those that are there at their start. The
// start is stationary: of a part that fails with a rate, rate times mean repair are away
// (Poisson). A warm-up would have to be long: a year brings only 94 % of them where
// repairs are log-normal with 0.85 days in the median and 5.5 on average.
func (s *failureStudy) synthetic(rng *rand.Rand) []outage {
	var out []outage
	end := s.f.Years * daysPerYear
	for k := range parts {
		rate := s.rateOf(k)
		if rate == 0 {
			continue
		}
		away := func(start, repair float64) {
			out = append(out, outage{part: k, unit: rng.IntN(len(s.e.Nodes)), gpu: rng.IntN(s.gpus), start: start, end: start + repair})
		}
		for sum := rng.ExpFloat64(); sum < rate*s.f.Repair.MeanDays; sum += rng.ExpFloat64() {
			away(0, s.f.Repair.left(rng))
		}
		for at := rng.ExpFloat64() / rate; at < end; at += rng.ExpFloat64() / rate {
			away(at, s.f.Repair.draw(rng))
		}
	}
	return out
}

// sigma is the standard deviation of the logarithm of the time.
func (r Repair) sigma() float64 { return math.Sqrt(2 * math.Log(r.MeanDays/r.MedianDays)) }

// draw returns the days of a repair.
func (r Repair) draw(rng *rand.Rand) float64 {
	return r.MedianDays * math.Exp(r.sigma()*rng.NormFloat64())
}

// left returns the days that are left of a repair that is under way at a given time. That
// time falls into a repair with a probability in proportion to its length, so the length
// is log-normal with exp(sigma squared) times the median, and anywhere within it.
func (r Repair) left(rng *rand.Rand) float64 {
	return rng.Float64() * math.Exp(r.sigma()*r.sigma()) * r.draw(rng)
}

func (s *failureStudy) report(r *Report) {
	total := float64(totalGPU(s.e.Nodes)) / Milli
	away := Table{Name: "away", Title: "GPUs that are away", First: "", Columns: []Column{
		{"gpus_mean", "mean", 1}, {"percent_mean", "mean, %", 2}, {"gpus_p50", "median", 0}, {"gpus_p99", "99 % of the time at most", 0}, {"gpus_max", "most", 0},
	}}
	spares := Table{Name: "spares", Title: "Spare GPUs that suffice for a share of the time", First: "", Columns: []Column{
		{"gpus_closed_form", "closed form", 0}, {"gpus_simulated", "simulated", 0},
	}}
	if s.f.faults != nil {
		spares.Columns = []Column{{"gpus_recorded", "by the list", 0}}
	} else {
		spares.Note = "Closed form: the number of parts that are away is Poisson with the mean rate times mean repair (M/G/inf), whatever the spread of the repairs. It knows no failures that come together."
	}
	plot := Plot{Title: "GPUs that are away", X: "GPUs", Y: "time with no more away, %", Steps: true}
	for i, c := range s.cases {
		runs := s.results[i*s.e.Seeds : (i+1)*s.e.Seeds]
		all := merge(runs)
		away.Rows = append(away.Rows, Row{c.name, []float64{all.mean(), 100 * all.mean() / total, all.quantile(0.5), all.quantile(0.99), all.quantile(1)}})
		for _, a := range s.f.Availability {
			row := Row{fmt.Sprintf("%s, %g %%", c.name, a), []float64{all.quantile(a / 100)}}
			if s.f.faults == nil {
				row.Values = []float64{min(s.closedForm(c.pool, a/100), total), all.quantile(a / 100)}
			}
			spares.Rows = append(spares.Rows, row)
		}
		plot.Lines = append(plot.Lines, cumulative(c.name, all))
	}
	r.Tables = append(r.Tables, away, spares)
	if t := s.costs(); len(t.Rows) > 0 {
		r.Tables = append(r.Tables, t)
	}
	r.Plots = append(r.Plots, plot)
}

func merge(runs []levels) levels {
	var out levels
	for _, l := range runs {
		for n, d := range l {
			out.add(n, d)
		}
	}
	return out
}

// cumulative draws up to 200 points of a distribution.
func cumulative(name string, l levels) Line {
	out := Line{Name: name}
	var time, seen float64
	for _, d := range l {
		time += d
	}
	step := len(l)/200 + 1
	for n, d := range l {
		if seen += d; n%step == 0 || n == len(l)-1 {
			out.X, out.Y = append(out.X, float64(n)), append(out.Y, 100*seen/time)
		}
	}
	return out
}

// loses returns how many GPUs a failure of a part takes.
func (s *failureStudy) loses(k part, pool bool) float64 {
	switch {
	case pool && k == partHost, !pool && k == partProxy:
		return 0
	case pool && k == partGPU:
		return 1
	}
	return float64(s.gpus)
}

// closedForm returns the spares for a share of the time: a quantile of the sum of Poisson
// numbers of parts, times the GPUs that each takes. It may exceed the GPUs that there are,
// because parts of several kinds may be away at once.
func (s *failureStudy) closedForm(pool bool, share float64) float64 {
	mean := map[float64]float64{} // parts that are away, by GPUs that each takes
	for k := range parts {
		if n := s.loses(k, pool); n > 0 {
			mean[n] += s.rateOf(k) * s.f.Repair.MeanDays
		}
	}
	units := len(s.e.Nodes)
	one := poisson(mean[1], units*s.gpus)
	if s.gpus == 1 || !pool {
		return float64(s.gpus) * quantileOf(poisson(mean[float64(s.gpus)], units), share)
	}
	boxes := poisson(mean[float64(s.gpus)], units)
	sum := make([]float64, len(one)+s.gpus*len(boxes))
	for i, a := range one {
		if a < negligible {
			continue
		}
		for k, b := range boxes {
			if b >= negligible {
				sum[i+k*s.gpus] += a * b
			}
		}
	}
	return quantileOf(sum, share)
}

// negligible is a probability that no quantile of a report shows. Of a wide distribution
// all but a few standard deviations are less.
const negligible = 1e-18

// poisson returns the probabilities of 0, 1, 2 ... up to where they vanish, or up to most.
func poisson(mean float64, most int) []float64 {
	if mean == 0 {
		return []float64{1}
	}
	out := make([]float64, min(int(mean+12*math.Sqrt(mean))+29, most)+1)
	for k := range out {
		g, _ := math.Lgamma(float64(k) + 1)
		out[k] = math.Exp(float64(k)*math.Log(mean) - mean - g)
	}
	return out
}

func quantileOf(probabilities []float64, share float64) float64 {
	var sum float64
	for n, p := range probabilities {
		if sum += p; sum >= share {
			return float64(n)
		}
	}
	return float64(len(probabilities) - 1)
}

// costs tells what one failure or one upgrade takes, and all of a year.
func (s *failureStudy) costs() Table {
	t := Table{Name: "costs", Title: "GPU hours that failures and upgrades take", First: "", Columns: []Column{
		{"events_year", "a year", 1},
		{"hours_each", "hours each", 1},
		{"servers_gpus", "GPUs at once: servers", 0},
		{"pool_gpus", "GPUs at once: pool", 0},
		{"servers_gpu_hours_year", "GPU hours a year: servers", 0},
		{"pool_gpu_hours_year", "GPU hours a year: pool", 0},
	}}
	add := func(name string, k part, events, hours float64) {
		a, b := s.loses(k, false), s.loses(k, true)
		before := events
		if k == partProxy {
			before = 0 // servers have no proxies
		}
		t.Rows = append(t.Rows, Row{name, []float64{events, hours, a, b, before * hours * a, events * hours * b}})
	}
	for k, name := range [parts]string{"GPU fails", "host fails", "box fails", "proxy fails"} {
		if rate := s.rateOf(part(k)); rate > 0 {
			add(name, part(k), rate*daysPerYear, 24*s.f.Repair.MeanDays)
		}
	}
	for _, u := range s.f.Upgrades {
		add(u.Name, upgradeParts[u.Part], u.PerYear*float64(len(s.e.Nodes)), u.Hours)
	}
	return t
}
