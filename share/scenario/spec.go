// Package scenario runs the policies of package share against the model of a GPU in
// package plant, in virtual time: programs arrive, launch kernels and wait for them.
// A scenario is a YAML text with clients, runs, and figures that stand beside those of
// the policy's paper. The same text gives the same figures.
package scenario

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/dxpu-project/dxpu/internal/model/workload"
	"github.com/dxpu-project/dxpu/internal/yamltext"
	"github.com/dxpu-project/dxpu/share"
)

// Spec is a scenario.
type Spec struct {
	Name       string        `yaml:"name"`
	About      string        `yaml:"about"`
	GPU        string        `yaml:"gpu"`  // a100 or v100; a100 if empty
	Seed       uint64        `yaml:"seed"` // of the arrivals
	Duration   time.Duration `yaml:"duration"`
	Warmup     time.Duration `yaml:"warmup"` // not measured
	Clients    []Client      `yaml:"clients"`
	Runs       []Run         `yaml:"runs"`       // none: a mix for Compare
	Experiment string        `yaml:"experiment"` // a study of more than one GPU, in place of runs
	Figures    []Figure      `yaml:"figures"`
	// Notes say why a policy does not show here what its paper promises, by its name.
	Notes map[string]string `yaml:"notes"`

	device share.Device
	traces map[string]*workload.Workload
}

// Client is a client of the GPU.
type Client struct {
	Name      string        `yaml:"name"`
	Program   string        `yaml:"program"` // a name of Programs, or trace:NAME
	Offline   bool          `yaml:"offline"`
	Request   int           `yaml:"request"`   // percent
	Limit     int           `yaml:"limit"`     // percent; 0: 100
	Rate      float64       `yaml:"rate"`      // jobs per second; 0: the next job follows the last one
	Arrival   string        `yaml:"arrival"`   // poisson (the default), periodic, bursts
	Think     time.Duration `yaml:"think"`     // before the next job, without a rate
	From      time.Duration `yaml:"from"`      // when it joins
	Until     time.Duration `yaml:"until"`     // when it leaves; 0: never
	Memory    int64         `yaml:"memory"`    // MiB in place of the program's
	Terminate time.Duration `yaml:"terminate"` // when it gets a signal to end; 0: never
	Kill      time.Duration `yaml:"kill"`      // when it is killed without notice; 0: never
}

// Run is one simulation.
type Run struct {
	Name    string        `yaml:"name"`
	Policy  string        `yaml:"policy"`
	Clients []string      `yaml:"clients"` // nil: all
	Sample  time.Duration `yaml:"sample"`  // these three as in share.Settings
	Deficit int64         `yaml:"deficit"`
	FIFO    bool          `yaml:"fifo"`
}

// Figure is one line of the scenario's table: Value, divided by Per if there is one.
type Figure struct {
	Name  string `yaml:"name"`
	Value string `yaml:"value"` // RUN.CLIENT.METRIC, or RUN.METRIC
	Per   string `yaml:"per"`
	As    string `yaml:"as"`    // change, percent, ratio, s, ms, us, number
	Paper string `yaml:"paper"` // the paper's figure with its source
	Why   string `yaml:"why"`   // why ours differs
}

// Bounds of a scenario: a scenario of another origin may not take a machine's memory.
const (
	MaxText     = 1 << 20 // bytes
	maxError    = 500     // bytes of the parser's text
	maxDuration = 10 * time.Minute
	maxRuns     = 64
	minRate     = 0.001
	maxRate     = 100_000
)

var nameForm = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,40}$`)

// Parse reads a scenario.
func Parse(text []byte) (*Spec, error) {
	if len(text) > MaxText {
		return nil, fmt.Errorf("scenario of %d bytes: at most %d are read", len(text), MaxText)
	}
	s := &Spec{}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)
	if err := dec.Decode(s); err != nil {
		return nil, fmt.Errorf("scenario: %w", yamltext.Error(err, maxError))
	}
	if err := s.check(); err != nil {
		return nil, fmt.Errorf("scenario %q: %w", s.Name, err)
	}
	return s, nil
}

// AddTrace makes a recorded run available to clients as the program trace:NAME.
func (s *Spec) AddTrace(name string, w *workload.Workload) {
	if s.traces == nil {
		s.traces = map[string]*workload.Workload{}
	}
	s.traces[name] = w
}

func (s *Spec) check() error {
	switch s.GPU {
	case "", "a100":
		s.device = share.A100
	case "v100":
		s.device = share.V100
	default:
		return fmt.Errorf("gpu %q: want a100 or v100", s.GPU)
	}
	if !nameForm.MatchString(s.Name) {
		return errors.New("name: want lower-case letters, digits and hyphens")
	}
	if s.Experiment != "" {
		if experiments[s.Experiment] == nil || len(s.Runs) > 0 {
			return fmt.Errorf("experiment %q: not a known one, or it has runs", s.Experiment)
		}
	} else {
		if s.Duration <= 0 || s.Duration > maxDuration || s.Warmup < 0 || s.Warmup >= s.Duration {
			return fmt.Errorf("duration %v, warmup %v: want a duration up to %v and a shorter warmup", s.Duration, s.Warmup, maxDuration)
		}
		if len(s.Clients) == 0 || len(s.Clients) > share.MaxClients || len(s.Runs) > maxRuns {
			return fmt.Errorf("%d clients, %d runs: want 1 to %d clients and at most %d runs", len(s.Clients), len(s.Runs), share.MaxClients, maxRuns)
		}
	}
	seen := map[string]bool{}
	for i := range s.Clients {
		if err := s.Clients[i].check(); err != nil {
			return fmt.Errorf("client %q: %w", s.Clients[i].Name, err)
		}
		if seen[s.Clients[i].Name] {
			return fmt.Errorf("client %q: there are two of that name", s.Clients[i].Name)
		}
		seen[s.Clients[i].Name] = true
	}
	for i, r := range s.Runs {
		if err := s.checkRun(r); err != nil {
			return fmt.Errorf("run %q: %w", r.Name, err)
		}
		if slices.ContainsFunc(s.Runs[:i], func(o Run) bool { return o.Name == r.Name }) {
			return fmt.Errorf("run %q: there are two of that name", r.Name)
		}
	}
	for policy := range s.Notes {
		if _, err := share.Find(policy); err != nil {
			return fmt.Errorf("notes: %w", err)
		}
	}
	for _, f := range s.Figures {
		if !slices.Contains(forms, f.As) {
			return fmt.Errorf("figure %q: as %q: want one of %v", f.Name, f.As, forms)
		}
	}
	return nil
}

func (s *Spec) checkRun(r Run) error {
	if !nameForm.MatchString(r.Name) {
		return errors.New("name: want lower-case letters, digits and hyphens")
	}
	if _, err := share.Find(r.Policy); err != nil {
		return err
	}
	if r.Sample != 0 && (r.Sample < time.Millisecond || r.Sample > time.Minute) || r.Deficit < 0 {
		return fmt.Errorf("sample %v, deficit %d: want 1 ms to 1 min, and 0 or more", r.Sample, r.Deficit)
	}
	for _, name := range r.Clients {
		if !slices.ContainsFunc(s.Clients, func(c Client) bool { return c.Name == name }) {
			return fmt.Errorf("no client %q", name)
		}
	}
	return nil
}

func (c *Client) check() error {
	if !nameForm.MatchString(c.Name) {
		return errors.New("name: want lower-case letters, digits and hyphens")
	}
	if c.Request < 0 || c.Request > 100 || c.Limit < 0 || c.Limit > 100 {
		return fmt.Errorf("request %d, limit %d: want 0 to 100 percent", c.Request, c.Limit)
	}
	if c.Limit > 0 && c.Limit < c.Request {
		return fmt.Errorf("limit %d is below request %d", c.Limit, c.Request)
	}
	if c.Rate != 0 && !(c.Rate >= minRate && c.Rate <= maxRate) { // false for NaN
		return fmt.Errorf("rate %v: want 0, or %v to %d jobs per second", c.Rate, minRate, maxRate)
	}
	if c.Memory < 0 || c.Memory > 1<<20 || c.From < 0 || c.From > maxDuration || c.Think < 0 || c.Think > maxDuration {
		return fmt.Errorf("memory, from or think is out of range: want up to 1 TiB and up to %v", maxDuration)
	}
	for _, end := range []time.Duration{c.Until, c.Terminate, c.Kill} {
		if end != 0 && (end <= c.From || end > maxDuration) {
			return fmt.Errorf("until, terminate or kill at %v is out of range: want times after the client joins, up to %v", end, maxDuration)
		}
	}
	switch c.Arrival {
	case "", "poisson", "periodic", "bursts":
	default:
		return fmt.Errorf("arrival %q: want poisson, periodic or bursts", c.Arrival)
	}
	return nil
}
