package share

import (
	"fmt"
	"slices"
	"time"
)

// Settings are the constants of the policies that a user may change. Zero means the
// default.
type Settings struct {
	Quantum time.Duration // timeslice: length of a turn
	Linger  time.Duration // timeslice: wait for an idle holder
	Sample  time.Duration // tgs: between two readings of the production rate
	Deficit int64         // paella: launches after which a client that waits goes first
	FIFO    bool          // paella: jobs in the order of their arrival
}

// maxSetting bounds a duration, so that the times that a policy works out do not overflow.
const maxSetting = time.Hour

// minSample is the shortest time between two readings: each one is a wake-up.
const minSample = time.Millisecond

func (s Settings) defaults() Settings {
	set := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
		*d = min(*d, maxSetting)
	}
	set(&s.Quantum, 2*time.Millisecond)
	set(&s.Linger, 50*time.Microsecond)
	set(&s.Sample, time.Second)
	if s.Deficit <= 0 {
		s.Deficit = 2000
	}
	s.Sample = max(s.Sample, minSample)
	s.Deficit = min(s.Deficit, 1<<30)
	return s
}

// Info describes a policy.
type Info struct {
	Name      string
	Source    string    // the system that it comes from
	Execution Execution // that it needs
	Form      string    // constants or laws that are ours because none were published; "" if there are none
	Limits    bool      // the policy, or the hardware below it, keeps limits of compute
	make      func(Device, Settings) Policy
}

var policies = []Info{
	{Name: "timeslice", Source: "NVIDIA driver", Execution: Contexts, Form: "quantum and linger are ours", make: newTimeslice},
	{Name: "streams", Source: "CUDA stream priorities", Execution: OneContext, make: newStreams},
	{Name: "mps", Source: "NVIDIA MPS", Execution: OneContext, Limits: true, make: newMPS},
	{Name: "mig", Source: "NVIDIA MIG", Execution: Partitions, Form: "a request is rounded to the nearest profile", Limits: true, make: newMIG},
	{Name: "gemini", Source: "Gemini, TCC 2021", Execution: Contexts, Form: "limit kept before the launch, not charged afterwards", Limits: true, make: newGemini},
	{Name: "gaia", Source: "GaiaGPU, ISPA 2018", Execution: Contexts, Form: "threshold of the elastic mode", Limits: true, make: newGaia},
	{Name: "gaiapi", Source: "this project, beside GaiaGPU", Execution: Contexts, Form: "all constants", Limits: true, make: newGaiaPI},
	{Name: "tgs", Source: "TGS, NSDI 2023", Execution: Contexts, Form: "reading of each second; only drops count", make: newTGS},
	{Name: "antman", Source: "AntMan, OSDI 2020", Execution: Contexts, Form: "controller of the idle slots", make: newAntMan},
	{Name: "reef", Source: "REEF, OSDI 2022", Execution: OneContext, Form: "one padding kernel at a time", make: newREEF},
	{Name: "orion", Source: "Orion, EuroSys 2024", Execution: OneContext, Form: "slow-down of training; measured alone at the start", make: newOrion},
	{Name: "paella", Source: "Paella, SOSP 2023", Execution: OneContext, Form: "threshold of the deficit; a launch counts", make: newPaella},
	{Name: "muxflow", Source: "MuxFlow, arXiv 2303.13803", Execution: OneContext, Form: "law of the share, and all thresholds", make: newMuxFlow},
}

// Policies returns the policies, baselines first.
func Policies() []Info { return slices.Clone(policies) }

// Find returns the description of a policy.
func Find(name string) (Info, error) {
	for _, p := range policies {
		if p.Name == name {
			return p, nil
		}
	}
	names := make([]string, len(policies))
	for i, p := range policies {
		names[i] = p.Name
	}
	return Info{}, fmt.Errorf("share: no policy %q; the policies are %v", name, names)
}

// New returns a policy for a device.
func (i Info) New(d Device, s Settings) (Policy, error) {
	if err := d.Validate(); err != nil {
		return nil, err
	}
	return i.make(d, s.defaults()), nil
}
