//go:build linux

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"

	"go.yaml.in/yaml/v4"

	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/device/opencl"
	"github.com/dxpu-project/dxpu/internal/boxproxy"
	"github.com/dxpu-project/dxpu/share"
	"github.com/dxpu-project/dxpu/share/dispatch"
)

// defaultPolicy of the slices of a GPU gives each its share of the multiprocessors, and
// no more.
const defaultPolicy = "mps"

// slicing is how a slot of a box file divides its GPU.
type slicing struct {
	// Slices is their number, or a list of sliceSpec.
	Slices yaml.Node `yaml:"slices,omitempty"`
	Parts  int       `yaml:"parts,omitempty"`  // most parts that leases may make of the GPU
	Policy string    `yaml:"policy,omitempty"` // of package share
}

// sliceSpec is one slice.
type sliceSpec struct {
	Memory  int64   `yaml:"memory,omitempty"`  // bytes; an equal part of what the others leave
	Compute float64 `yaml:"compute,omitempty"` // percent of the GPU; an equal part of what the others leave
	Limit   float64 `yaml:"limit,omitempty"`   // highest percent; compute
	Class   string  `yaml:"class,omitempty"`   // online or offline; online
}

// list returns the slices, none for a GPU that is not divided.
func (s *slicing) list() ([]sliceSpec, error) {
	if s.Parts < 0 || s.Parts > gpu.MaxSlices || s.Parts > 0 && !s.Slices.IsZero() {
		return nil, fmt.Errorf("parts: want 1 to %d, and no slices", gpu.MaxSlices)
	}
	if s.Slices.IsZero() && s.Parts == 0 {
		if s.Policy != "" {
			return nil, errors.New("policy: the slot has no slices")
		}
		return nil, nil
	}
	if _, err := share.Find(cmp.Or(s.Policy, defaultPolicy)); err != nil {
		return nil, fmt.Errorf("policy: no policy %.60q: \"dxpu share policies\" lists them", s.Policy)
	}
	if s.Parts > 0 {
		return nil, nil
	}
	var n int
	var out []sliceSpec
	if s.Slices.Kind == yaml.ScalarNode {
		if err := s.Slices.Load(&n); err != nil {
			return nil, fmt.Errorf("slices: want a number or a list: %w", yamlError(err))
		}
		out = make([]sliceSpec, min(max(n, 0), gpu.MaxSlices+1))
	} else if err := s.Slices.Load(&out, yaml.WithKnownFields(true)); err != nil {
		return nil, fmt.Errorf("slices: %w", yamlError(err))
	}
	if len(out) < 1 || len(out) > gpu.MaxSlices {
		return nil, fmt.Errorf("slices: want 1 to %d", gpu.MaxSlices)
	}
	for i := range out {
		c := &out[i]
		if c.Memory < 0 || !(c.Compute >= 0 && c.Compute <= 100) || !(c.Limit >= 0 && c.Limit <= 100) || c.Class != "" && c.Class != "online" && c.Class != "offline" {
			return nil, fmt.Errorf("slice %d: want memory in bytes, compute and limit from 0 to 100 percent, class online or offline", i+1)
		}
	}
	return out, nil
}

// memoryStep is the granularity of a software GPU's memory.
const memoryStep = 64 << 10

// divide fills in the memory and the compute that the slices do not name.
func divide(list []sliceSpec, vram int64) error {
	memory, compute := vram, 100.0
	var noMemory, noCompute int
	for _, c := range list {
		memory -= c.Memory
		compute -= c.Compute
		if c.Memory == 0 {
			noMemory++
		}
		if c.Compute == 0 {
			noCompute++
		}
	}
	if memory < 0 {
		return fmt.Errorf("the slices have more memory than the %d bytes of the GPU", vram)
	}
	if compute < -1e-9 || noCompute > 0 && compute <= 0 {
		return errors.New("the slices have more than 100 percent of the GPU")
	}
	for i := range list {
		c := &list[i]
		if c.Memory == 0 {
			c.Memory = memory / int64(noMemory) / memoryStep * memoryStep
		}
		if c.Compute == 0 {
			c.Compute = compute / float64(noCompute)
		}
		c.Limit = max(cmp.Or(c.Limit, c.Compute), c.Compute)
	}
	return nil
}

// client describes the slice to a policy.
func (c *sliceSpec) client() share.ClientSpec {
	percent := func(v float64) share.PPM { return share.PPM(math.Round(v * float64(share.Percent(1)))) }
	out := share.ClientSpec{Request: percent(c.Compute), Limit: percent(c.Limit), Memory: c.Memory}
	if c.Class == "offline" {
		out.Class = share.Offline
	}
	return out
}

// count returns the number of slots, with the slices of list.
func (s *slicing) count(list []sliceSpec) int {
	if s.Parts > 0 {
		return 1 + s.Parts
	}
	return max(len(list), 1)
}

// divide builds the slots of a divided GPU of a model, with the parameters of the model.
func (s *slicing) divide(ctx context.Context, m *device.Model, params func(any) error, at device.Place, list []sliceSpec, log *slog.Logger) ([]boxproxy.Slot, error) {
	var spec gpu.Spec
	switch {
	case m != nil && m.Name == opencl.ModelName:
		return s.opencl(ctx, params, at, list, log)
	case m == nil || m.Name != gpu.Model().Name:
		return nil, errors.New("slices: only a software GPU or an OpenCL device can be divided")
	}
	if err := params(&spec); err != nil {
		return nil, err
	}
	if s.Parts > 0 {
		return s.parts(at, spec)
	}
	return s.slices(at, list, spec)
}

// opencl builds the slots of an OpenCL device that several tenants have together.
func (s *slicing) opencl(ctx context.Context, params func(any) error, at device.Place, list []sliceSpec, log *slog.Logger) ([]boxproxy.Slot, error) {
	var spec opencl.Spec
	if err := params(&spec); err != nil {
		return nil, err
	}
	spec.Serial = cmp.Or(spec.Serial, at.Serial())
	program, err := opencl.FindProgram()
	if err != nil {
		return nil, err
	}
	policy, err := share.Find(cmp.Or(s.Policy, defaultPolicy))
	if err != nil {
		return nil, err
	}
	var clients []share.ClientSpec
	divided, err := opencl.Divide(ctx, program, spec, func(memory uint64) (sizes []uint64, err error) {
		if s.Parts > 0 {
			return append([]uint64{memory}, make([]uint64, s.Parts)...), nil
		}
		if err := divide(list, int64(memory)); err != nil {
			return nil, err
		}
		for i := range list {
			sizes, clients = append(sizes, uint64(list[i].Memory)), append(clients, list[i].client())
		}
		return sizes, nil
	}, log.With("slot", at.Slot))
	if err != nil {
		return nil, err
	}
	d, err := dispatch.UncutByName(divided.Device, policy.Name)
	if err != nil {
		return nil, err
	}
	if s.Parts > 0 {
		return boxproxy.PartSlots(at.Slot, divided.GPUs[0], divided.GPUs[1:], opencl.MemoryStep, d, policy), nil
	}
	return boxproxy.SliceSlots(divided.GPUs, d, clients), nil
}

// parts builds the slots of a software GPU that leases divide.
func (s *slicing) parts(at device.Place, spec gpu.Spec) ([]boxproxy.Slot, error) {
	spec.Serial = cmp.Or(spec.Serial, at.Serial())
	whole, err := gpu.New(spec)
	if err != nil {
		return nil, err
	}
	physical, err := gpu.NewParts(spec, s.Parts)
	if err != nil {
		return nil, err
	}
	policy, err := share.Find(cmp.Or(s.Policy, defaultPolicy))
	if err != nil {
		return nil, err
	}
	d, err := dispatch.ByName(physical.Device(), policy.Name)
	if err != nil {
		return nil, err
	}
	return boxproxy.PartSlots(at.Slot, whole, physical.Slices(), gpu.MemoryStep, d, policy), nil
}

// slices builds the slots of a divided software GPU.
func (s *slicing) slices(at device.Place, list []sliceSpec, spec gpu.Spec) ([]boxproxy.Slot, error) {
	spec.Serial = cmp.Or(spec.Serial, at.Serial())
	whole, err := gpu.New(spec) // for the defaults
	if err != nil {
		return nil, err
	}
	spec = whole.Spec()
	if err := divide(list, spec.VRAM); err != nil {
		return nil, err
	}
	memory, clients := make([]int64, len(list)), make([]share.ClientSpec, len(list))
	for i := range list {
		memory[i], clients[i] = list[i].Memory, list[i].client()
	}
	physical, err := gpu.NewPhysical(spec, memory)
	if err != nil {
		return nil, err
	}
	d, err := dispatch.ByName(physical.Device(), cmp.Or(s.Policy, defaultPolicy))
	if err != nil {
		return nil, err
	}
	return boxproxy.SliceSlots(physical.Slices(), d, clients), nil
}
