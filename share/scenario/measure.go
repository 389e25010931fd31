package scenario

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/dxpu-project/dxpu/internal/quantile"
	"github.com/dxpu-project/dxpu/share"
	"github.com/dxpu-project/dxpu/share/plant"
)

// readings holds the readings of the sensors since the start of a run.
type readings struct {
	base  plant.Usage // of the whole GPU at the end of the warmup
	usage map[share.ClientID][]plant.Usage
}

// sample gives the policy the averages of the last second, of each client and of the GPU.
func (w *world) sample() {
	if w.sensors.usage == nil {
		w.sensors.usage = map[share.ClientID][]plant.Usage{}
	}
	w.gpu.Advance(w.now)
	var memory int64
	for _, c := range w.clients {
		if !c.joined {
			continue
		}
		memory += c.memory
		w.policy.Receive(w.now, share.Event{Kind: share.Sampled, Client: c.id, Sample: w.read(c.id, c.memory)})
	}
	all := w.read(0, memory)
	all.Clock, all.Temperature = share.Whole, 60
	w.policy.Receive(w.now, share.Event{Kind: share.Sampled, Sample: all})
}

// read takes a reading and returns the average over the sensor's span.
func (w *world) read(id share.ClientID, memory int64) share.Sample {
	list := append(w.sensors.usage[id], w.gpu.Usage(id))
	w.sensors.usage[id] = list
	u := over(list, len(list)-1, sensorSpan)
	d := min(w.now, sensorSpan*sensorPeriod)
	return share.Sample{
		Utilisation: share.Ratio(u.Busy, d),
		SMActivity:  share.Ratio(u.SMTime/time.Duration(w.spec.device.SMs), d),
		Memory:      memory,
	}
}

// over returns the usage over the span readings before reading i.
func over(list []plant.Usage, i, span int) plant.Usage {
	u := list[i]
	if i >= span {
		u.Busy -= list[i-span].Busy
		u.SMTime -= list[i-span].SMTime
	}
	return u
}

// limitWindow is the number of readings in the window of ten seconds over which limits
// are judged.
const limitWindow = int(10 * time.Second / sensorPeriod)

// window returns the largest share of the GPU's time that a client had in a window of
// ten seconds.
func (w *world) window(id share.ClientID) (most float64) {
	list := w.sensors.usage[id]
	for i := limitWindow; i < len(list); i++ {
		most = max(most, float64(over(list, i, limitWindow).Busy)/float64(limitWindow*int(sensorPeriod)))
	}
	return most
}

// settled is how near to its limit a client's utilisation has to stay, in its share of
// the GPU's time.
const settled = 0.05

// step returns how a client's utilisation, averaged over a second, follows the step from
// nothing to its limit: how far it exceeds the limit, and from when on it stays near.
func (w *world) step(c *client) (overshoot, settle float64) {
	limit := float64(c.spec.Limit) / 100
	list := w.sensors.usage[c.id]
	for i := sensorSpan; i < len(list); i++ {
		u := float64(over(list, i, sensorSpan).Busy) / float64(sensorSpan*sensorPeriod)
		overshoot = max(overshoot, u-limit)
		if u > limit+settled || u < limit-settled {
			settle = float64(time.Duration(i+1) * sensorPeriod)
		}
	}
	return overshoot, settle
}

// Values are the measured values of a scenario by name: RUN.CLIENT.METRIC and RUN.METRIC.
type Values map[string]float64

// Names returns the names in order.
func (v Values) Names() []string { return slices.Sorted(maps.Keys(v)) }

// usage returns the usage of a client, which may have left.
func (w *world) usage(c *client) plant.Usage {
	if c.joined {
		return w.gpu.Usage(c.id)
	}
	return c.left
}

// collect adds the values of a run that has ended.
func (w *world) collect(v Values) {
	span := w.spec.Duration - w.spec.Warmup
	all := w.gpu.Usage(0)
	set := func(name string, x float64) { v[w.run.Name+"."+name] = x }
	sms := float64(w.spec.device.SMs)
	set("utilisation", float64(all.Busy-w.sensors.base.Busy)/float64(span))
	set("sm-activity", float64(all.SMTime-w.sensors.base.SMTime)/float64(span)/sms)
	set("memory", float64(w.memory<<20)/float64(w.spec.Duration/time.Microsecond)/float64(w.spec.device.Memory))
	set("permits", float64(w.permits)/w.spec.Duration.Seconds())
	set("faults", float64(w.faults))
	set("violations", float64(w.policy.Violations()))
	work := 0.0
	for _, c := range w.clients {
		name := c.spec.Name + "."
		work += float64(c.jobs) * float64(c.program.remaining(0, w.spec.device)) / float64(span)
		u := w.usage(c)
		set(name+"p50", float64(quantile.Of(c.latencies, 0.5)))
		set(name+"p99", float64(quantile.Of(c.latencies, 0.99)))
		set(name+"mean", mean(c.latencies))
		set(name+"jobs", float64(c.jobs)/span.Seconds())
		set(name+"time", float64(u.Busy-c.base.Busy)/float64(span))
		set(name+"sms", float64(u.SMTime-c.base.SMTime)/float64(span)/sms)
		set(name+"waiting", float64(len(c.arrivals)+c.shed))
		set(name+"kills", float64(c.kills))
		set(name+"window", w.window(c.id))
		if c.spec.Limit > 0 {
			overshoot, settle := w.step(c)
			set(name+"overshoot", overshoot)
			set(name+"settle", settle)
		}
	}
	set("work", work) // completed jobs, in the time that their kernels take alone
}

func mean(d []time.Duration) float64 {
	var sum time.Duration
	for _, x := range d {
		sum += x
	}
	return float64(sum) / float64(max(1, len(d)))
}

// Measure runs the scenario and returns its values.
func (s *Spec) Measure(ctx context.Context) (Values, error) {
	if s.Experiment != "" {
		return experiments[s.Experiment](ctx, s)
	}
	return s.simulate(ctx)
}

// simulate carries out the scenario's runs.
func (s *Spec) simulate(ctx context.Context) (Values, error) {
	v := Values{}
	for _, r := range s.Runs {
		w, err := newWorld(s, r)
		if err == nil {
			err = w.simulate(ctx)
		}
		if err != nil {
			return nil, fmt.Errorf("scenario %s, run %s: %w", s.Name, r.Name, err)
		}
		w.collect(v)
	}
	return v, nil
}

// forms are the forms in which a figure is printed.
var forms = []string{"change", "percent", "ratio", "s", "ms", "us", "number"}

// Row is a figure of a scenario beside its paper's.
type Row struct {
	Scenario string  `json:"scenario"`
	Figure   string  `json:"figure"`
	Value    float64 `json:"value"`
	Text     string  `json:"text"`
	Paper    string  `json:"paper"`
	Why      string  `json:"why"`
}

// Table measures the scenario and returns its figures.
func (s *Spec) Table(ctx context.Context) ([]Row, error) {
	v, err := s.Measure(ctx)
	if err != nil {
		return nil, err
	}
	var rows []Row
	for _, f := range s.Figures {
		x, ok := v[f.Value]
		if !ok {
			return nil, fmt.Errorf("scenario %s, figure %q: no value %q; the values are %v", s.Name, f.Name, f.Value, v.Names())
		}
		if f.Per != "" {
			per, ok := v[f.Per]
			if !ok || per == 0 {
				return nil, fmt.Errorf("scenario %s, figure %q: no value %q, or zero", s.Name, f.Name, f.Per)
			}
			x /= per
		}
		rows = append(rows, Row{Scenario: s.Name, Figure: f.Name, Value: x, Text: format(x, f.As), Paper: f.Paper, Why: f.Why})
	}
	return rows, nil
}

func format(x float64, as string) string {
	switch as {
	case "change":
		return fmt.Sprintf("%+.1f %%", 100*(x-1))
	case "percent":
		return fmt.Sprintf("%.1f %%", 100*x)
	case "ratio":
		return fmt.Sprintf("%.2f x", x)
	case "s":
		return fmt.Sprintf("%.2f s", x/1e9)
	case "ms":
		return fmt.Sprintf("%.2f ms", x/1e6)
	case "us":
		return fmt.Sprintf("%.1f µs", x/1e3)
	}
	return fmt.Sprintf("%.4g", x)
}
