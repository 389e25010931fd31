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
	Deficit int64         // paella: launches after which a type that waits goes first
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
	{"timeslice", "NVIDIA driver", Contexts, "quantum and linger are ours", false, newTimeslice},
	{"streams", "CUDA stream priorities", OneContext, "", false, newStreams},
	{"mps", "NVIDIA MPS", OneContext, "", true, newMPS},
	{"mig", "NVIDIA MIG", Partitions, "a request is rounded to the nearest profile", true, newMIG},
	{"gemini", "Gemini, TCC 2021", Contexts, "limit kept before the launch, not charged afterwards", true, newGemini},
	{"gaia", "GaiaGPU, ISPA 2018", Contexts, "threshold of the elastic mode", true, newGaia},
	{"gaiapi", "this project, beside GaiaGPU", Contexts, "all constants", true, newGaiaPI},
	{"tgs", "TGS, NSDI 2023", Contexts, "reading of each second; only drops count", false, newTGS},
	{"antman", "AntMan, OSDI 2020", Contexts, "controller of the idle slots", false, newAntMan},
	{"reef", "REEF, OSDI 2022", OneContext, "one padding kernel at a time", false, newREEF},
	{"orion", "Orion, EuroSys 2024", OneContext, "slow-down of training; measured alone at the start", false, newOrion},
	{"paella", "Paella, SOSP 2023", OneContext, "threshold of the deficit; a launch counts", false, newPaella},
	{"muxflow", "MuxFlow, arXiv 2303.13803", OneContext, "law of the share, and all thresholds", false, newMuxFlow},
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
