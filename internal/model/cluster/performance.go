package cluster

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/perf"
	"github.com/dxpu-project/dxpu/internal/model/perf/paper"
)

// Performance says how much a pool slows jobs: a profile of each kind of job, and the
// round trip of the pool, by the model of package perf.
type Performance struct {
	RTT      string    `yaml:"rtt"`   // of a PCIe memory read in the pool, such as 6.8us
	Costs    string    `yaml:"costs"` // paper (the default) or hardware
	Profiles []Profile `yaml:"profiles"`
	// Mix is used for jobs whose list names no profile: shares by name of profile.
	Mix    []Share `yaml:"mix"`
	Prices Prices  `yaml:"prices"`

	speeds map[string]float64
}

// Share is the share of one profile.
type Share struct {
	Profile string  `yaml:"profile"`
	Weight  float64 `yaml:"weight"`
}

// Profile is what a job does in one step, on one GPU.
type Profile struct {
	Name           string  `yaml:"name"`
	StepMS         float64 `yaml:"step-ms"` // native time
	Kernels        float64 `yaml:"kernels"`
	Memsets        float64 `yaml:"memsets"`
	CopiesToDevice float64 `yaml:"copies-to-device"`
	CopiesToHost   float64 `yaml:"copies-to-host"`
	MBToDevice     float64 `yaml:"mb-to-device"`
}

// Prices are amounts of one currency.
type Prices struct {
	GPUHour    float64 `yaml:"gpu-hour"`    // value of an hour of a GPU at native speed
	ServerHour float64 `yaml:"server-hour"` // what a server, or a host of a pool, costs
	BoxHour    float64 `yaml:"box-hour"`    // what a box with its proxies costs beyond that
	// GPUCostHour is what a GPU costs beside its server or box. Only the experiment size has it.
	GPUCostHour float64 `yaml:"gpu-cost-hour"`
}

// Limits of profiles.
const (
	maxProfiles = 100
	maxCount    = 1e9
)

func (p *Performance) prepare() error {
	rtt, err := perf.ParseRTT(p.RTT)
	if err != nil {
		return fmt.Errorf("performance: rtt: %w", err)
	}
	costs := perf.PaperCosts()
	switch p.Costs {
	case "", "paper":
	case "hardware":
		costs = paper.HardwareCosts()
	default:
		return fmt.Errorf("performance: costs %q: want paper or hardware", p.Costs)
	}
	if len(p.Profiles) == 0 || len(p.Profiles) > maxProfiles || len(p.Mix) > maxProfiles {
		return fmt.Errorf("performance: %d profiles, %d in the mix: want 1 to %d", len(p.Profiles), len(p.Mix), maxProfiles)
	}
	path := perf.Path{Link: perf.Gen3x16, Requester: perf.V100, NativeRTT: min(perf.NativeRTT, rtt), RTT: rtt}
	p.speeds = map[string]float64{}
	for _, one := range p.Profiles {
		if one.Name == "" || p.speeds[one.Name] != 0 {
			return fmt.Errorf("performance: profile %q: want a name of its own", one.Name)
		}
		if p.speeds[one.Name], err = one.speed(path, costs); err != nil {
			return fmt.Errorf("performance: profile %s: %w", one.Name, err)
		}
	}
	for _, m := range p.Mix {
		if p.speeds[m.Profile] == 0 || !(m.Weight > 0 && m.Weight <= maxCount) {
			return fmt.Errorf("performance: mix: profile %q with weight %v: want a profile of the list and a weight above 0", m.Profile, m.Weight)
		}
	}
	err = bounded(maxCount, field{"gpu-hour", p.Prices.GPUHour}, field{"server-hour", p.Prices.ServerHour}, field{"box-hour", p.Prices.BoxHour}, field{"gpu-cost-hour", p.Prices.GPUCostHour})
	if err != nil {
		return fmt.Errorf("performance: prices: %w", err)
	}
	return nil
}

// field is a number of a scenario with its name.
type field struct {
	name  string
	value float64
}

// bounded returns an error for the first field that is not from 0 to most.
func bounded(most float64, fields ...field) error {
	for _, f := range fields {
		if !(f.value >= 0 && f.value <= most) {
			return fmt.Errorf("%s %v: want 0 to %g", f.name, f.value, most)
		}
	}
	return nil
}

// speed returns the speed in the pool, relative to the native one: the step takes longer by
// the cost of each operation, for copies to the device by what they lose in bandwidth if that
// is more.
func (p *Profile) speed(path perf.Path, costs perf.Costs) (float64, error) {
	err := bounded(maxCount, field{"step-ms", p.StepMS}, field{"kernels", p.Kernels}, field{"memsets", p.Memsets},
		field{"copies-to-device", p.CopiesToDevice}, field{"copies-to-host", p.CopiesToHost}, field{"mb-to-device", p.MBToDevice})
	if err != nil {
		return 0, err
	}
	if p.StepMS == 0 {
		return 0, errors.New("step-ms is missing")
	}
	delta := path.Delta()
	added := p.Kernels*costs.Kernel.At(delta).Seconds() + p.Memsets*costs.Memset.At(delta).Seconds() +
		p.CopiesToHost*costs.DtoH.At(delta).Seconds()
	bytes := p.MBToDevice * 1e6
	remote, native := float64(path.Throughput(perf.HtoDByRead)), float64(path.NativeThroughput(perf.HtoDByRead))
	// A copy's first read comes later, or all of them take longer, as in package predict.
	added += max(p.CopiesToDevice*costs.HtoD.At(delta).Seconds(), bytes/remote-bytes/native)
	step := p.StepMS * float64(time.Millisecond) / float64(time.Second)
	return step / (step + added), nil
}

// speed returns the speed of a job in the pool.
func (p *Performance) speed(pod *Pod) float64 {
	if v := p.speeds[pod.Profile]; v > 0 {
		return v
	}
	return 1
}

// assign gives each job with GPUs that names no profile one of the mix, by its weight.
func (p *Performance) assign(pods []Pod) error {
	var sum float64
	for _, m := range p.Mix {
		sum += m.Weight
	}
	rng := rngOf(0, 5)
	for i := range pods {
		pod := &pods[i]
		if pod.Profile != "" && p.speeds[pod.Profile] == 0 {
			return fmt.Errorf("performance: job %q has the profile %q, which the scenario does not describe", pod.Name, pod.Profile)
		}
		if pod.Profile != "" || pod.GPUs == 0 || sum == 0 {
			continue
		}
		at := rng.Float64() * sum
		for _, m := range p.Mix {
			pod.Profile = m.Profile
			if at -= m.Weight; at < 0 {
				break
			}
		}
	}
	return nil
}

// worth returns what each contestant's work is worth.
func (s *timeStudy) worth(at int) Table {
	c := &s.cases[at]
	t := Table{Name: "worth_" + c.key, Title: "GPU hours of work at native speed, an hour, " + c.title, First: "policy", Columns: []Column{
		{"gpu_held", "GPUs held", 1}, {"work", "work done", 1}, {"slowed", "lost to the round trip", 1}, {"gained", "gained over the best servers", 1},
	}}
	prices := s.e.Performance.Prices
	money := prices != Prices{}
	if money {
		t.Columns = append(t.Columns, Column{"worth_year", "worth a year", 0}, Column{"cost_year", "cost a year", 0}, Column{"left_year", "left a year", 0})
	}
	best := math.Inf(-1)
	for who := range s.who {
		var held, work float64
		for _, r := range s.of(at, who) {
			held += r.GPU / r.Hours / Milli / float64(s.e.Seeds)
			work += r.Work / r.Hours / Milli / float64(s.e.Seeds)
		}
		if s.who[who].pool == nil {
			best = max(best, work)
		}
		row := Row{s.who[who].name, []float64{held, work, held - work, work}}
		if money {
			const year = 365 * 24
			worth, cost := year*prices.GPUHour*work, year*s.cost(&s.who[who], prices)
			row.Values = append(row.Values, worth, cost, worth-cost)
		}
		t.Rows = append(t.Rows, row)
	}
	for i := range t.Rows {
		if t.Rows[i].Values[3] -= best; math.IsInf(best, -1) {
			t.Rows[i].Values[3] = none
		}
	}
	return t
}

// cost returns what the cluster costs an hour.
func (s *timeStudy) cost(c *contestant, prices Prices) float64 {
	out := float64(len(s.e.Nodes)) * prices.ServerHour
	if c.pool != nil {
		hosts := keptHosts(s.e.Nodes, c.pool.HostsKept)
		out = float64(len(hosts))*prices.ServerHour + float64(countBoxes(s.e.Nodes, *c.pool))*prices.BoxHour
	}
	return out
}
