// Package mig reads and changes the partitions of an NVIDIA GPU (Multi-Instance GPU): it
// parses what nvidia-smi prints, and plans the steps from the present instances to the
// wanted ones, with the solver of package share. It runs nothing.
//
// The commands and their output are those of NVIDIA's MIG user guide and of
// nvidia-smi mig -h.
package mig

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/dxpu-project/dxpu/share"
)

// Profile is a kind of GPU instance that the GPU offers.
type Profile struct {
	ID     int     `json:"id"`
	Name   string  `json:"name"` // "3g.20gb"
	Most   int     `json:"most"` // instances on an empty GPU
	GiB    float64 `json:"memory_gib"`
	SMs    int     `json:"multiprocessors"`
	Starts []int   `json:"starts,omitempty"` // memory slices where an instance may begin
	Size   int     `json:"size"`             // memory slices
}

// maxCompute bounds the compute slices of a GPU, which has seven.
const maxCompute = 16

// slices is the number of compute slices, which the name begins with; 0 if it does not.
func (p Profile) slices() int {
	digits, _, ok := strings.Cut(p.Name, "g.")
	n, err := strconv.ParseUint(digits, 10, 8)
	if !ok || err != nil || n > maxCompute {
		return 0
	}
	return int(n)
}

// Instance is a GPU instance.
type Instance struct {
	ID      int       `json:"id"`
	Profile string    `json:"profile"`
	Start   int       `json:"start"` // memory slice
	Size    int       `json:"size"`
	Compute []Compute `json:"compute_instances"`
	Busy    []int     `json:"processes,omitempty"` // process IDs
}

// Compute is a compute instance inside of a GPU instance: a device for CUDA.
type Compute struct {
	ID      int    `json:"id"`
	Profile int    `json:"profile_id"`
	Name    string `json:"profile"`        // "3g.20gb", or "1c.3g.20gb" for a part of the instance
	Start   int    `json:"start"`          // compute slice of the instance
	UUID    string `json:"uuid,omitempty"` // MIG-…, for CUDA_VISIBLE_DEVICES
}

// partOf matches the name of a compute instance that has a part of its GPU instance.
var partOf = regexp.MustCompile(`^[0-9]+c\.`)

// Place is the place of a compute instance in its GPU instance.
type Place struct {
	Profile int `json:"profile_id"`
	Start   int `json:"start"` // compute slice of the instance
}

// parts returns the compute instances, in order of their places: nil stands for one that has
// the whole instance.
func (i *Instance) parts() []Place {
	out := make([]Place, 0, len(i.Compute))
	whole := false
	for _, c := range i.Compute {
		out = append(out, Place{c.Profile, c.Start})
		whole = whole || !partOf.MatchString(c.Name)
	}
	if whole {
		return nil
	}
	slices.SortFunc(out, func(a, b Place) int { return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(a.Profile, b.Profile)) })
	return out
}

// GPU is the state of a GPU.
type GPU struct {
	UUID      string     `json:"uuid"`
	Name      string     `json:"name"`
	PCI       string     `json:"pci"`
	Supported bool       `json:"mig_supported"`
	Enabled   bool       `json:"mig_enabled"`
	Pending   bool       `json:"mig_pending"` // the mode after the next reset
	Profiles  []Profile  `json:"profiles,omitempty"`
	Instances []Instance `json:"instances"`
	// Busy are processes that use the GPU, and that nvidia-smi names no instance for.
	Busy []int `json:"processes,omitempty"`
	// Untold: nvidia-smi does not list the processes, so each instance may be in use.
	Untold bool `json:"processes_untold,omitempty"`
}

// layout is the GPU's as the solver takes it.
func (g *GPU) layout() (*share.MIGLayout, error) {
	l := &share.MIGLayout{}
	for _, p := range g.Profiles {
		n := p.slices()
		if n == 0 {
			return nil, fmt.Errorf("profile %.100q (ID %d) of %s: want a name that begins with 1 to %d compute slices, such as 3g.20gb", p.Name, p.ID, g.UUID, maxCompute)
		}
		if p.Size == 0 || len(p.Starts) == 0 {
			return nil, fmt.Errorf("profile %s (ID %d) of %s: nvidia-smi lists no placements for it", p.Name, p.ID, g.UUID)
		}
		l.Compute = max(l.Compute, n)
		for _, s := range p.Starts {
			l.Memory = max(l.Memory, s+p.Size)
		}
		l.Profiles = append(l.Profiles, share.MIGProfile{Name: p.Name, Slices: n, Size: p.Size, SMs: int32(p.SMs), Starts: p.Starts, Most: p.Most})
	}
	if len(l.Profiles) == 0 {
		return nil, fmt.Errorf("nvidia-smi lists no MIG profiles for %s", g.UUID)
	}
	return l, nil
}

// InUse returns an error if a process uses the GPU.
func (g *GPU) InUse() error {
	if busy := g.busy(g.Instances); busy != nil {
		return busy
	}
	if len(g.Busy) > 0 || g.Untold {
		return &BusyError{GPU: g.UUID, Processes: g.Busy, Untold: g.Untold}
	}
	return nil
}

func (g *GPU) profile(name string) int {
	return slices.IndexFunc(g.Profiles, func(p Profile) bool { return p.Name == name })
}

// Verb is a kind of step.
type Verb string

// Kinds of steps.
const (
	EnableMode  Verb = "enable MIG mode"
	DisableMode Verb = "disable MIG mode"
	Destroy     Verb = "destroy"
	Create      Verb = "create"
)

// Step is one change.
type Step struct {
	Verb     Verb   `json:"verb"`
	Profile  string `json:"profile,omitempty"`
	Start    int    `json:"start"` // memory slice
	Instance int    `json:"instance,omitempty"`
	ID       int    `json:"profile_id,omitempty"`
	Compute  []int  `json:"compute_instances,omitempty"`
	// Parts are the compute instances of a new instance. Nil stands for one that has all of it.
	Parts []Place `json:"compute_places,omitempty"`
	Move  bool    `json:"move,omitempty"` // the instance is created again elsewhere
}

// String describes the step.
func (s Step) String() string {
	switch s.Verb {
	case Destroy:
		return fmt.Sprintf("destroy instance %d (%s at slice %d)", s.Instance, s.Profile, s.Start)
	case Create:
		return fmt.Sprintf("create %s at slice %d", s.Profile, s.Start)
	default:
		return string(s.Verb)
	}
}

// Plan is the way to a wanted state.
type Plan struct {
	Steps []Step `json:"steps"`
	// Again: the instances can be planned only after these steps, because a GPU lists its
	// profiles in MIG mode only.
	Again bool `json:"again,omitempty"`
}

// BusyError says that instances are in use.
type BusyError struct {
	GPU       string
	Instances []Instance
	Processes []int // of no known instance
	Untold    bool  // nvidia-smi does not list the processes
}

func (e *BusyError) Error() string {
	var parts []string
	for _, i := range e.Instances {
		parts = append(parts, fmt.Sprintf("instance %d (%s) by processes %s", i.ID, i.Profile, numbers(i.Busy)))
	}
	if len(e.Processes) > 0 {
		parts = append(parts, "processes "+numbers(e.Processes))
	}
	if len(parts) == 0 && e.Untold {
		return fmt.Sprintf("%s may be in use: \"nvidia-smi -q -x\" does not list its processes; run this outside of a container, or with a newer driver", e.GPU)
	}
	return fmt.Sprintf("%s is in use: %s; end them first", e.GPU, strings.Join(parts, ", "))
}

func numbers(list []int) string {
	const most = 8
	var b strings.Builder
	for n, v := range list {
		if n == most {
			fmt.Fprintf(&b, " and %d more", len(list)-most)
			break
		}
		if n > 0 {
			b.WriteString(", ")
		}
		fmt.Fprint(&b, v)
	}
	return b.String()
}
