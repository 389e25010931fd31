package boxproxy

import (
	"fmt"
	"maps"
	"slices"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/pcie"
)

// NewGPUSlot makes a slot that holds a software GPU.
func NewGPUSlot(spec gpu.Spec) (Slot, error) {
	g, err := gpu.New(spec)
	if err != nil {
		return Slot{}, fmt.Errorf("boxproxy: %w", err)
	}
	spec = g.Spec()
	return Slot{Device: SoftwareGPU{g}, Info: Info{
		Model: spec.Model, Serial: fmt.Sprintf("%016x", spec.Serial), Memory: uint64(spec.VRAM),
		Vendor: reg.VendorID, Device: reg.DeviceID, BARs: bars(g.Config()),
	}}, nil
}

func bars(cfg *cfgspace.Space) (out [pcie.MaxBARs]pcie.BAR) {
	for i := range out {
		b := cfg.BAR(i)
		out[i] = pcie.BAR{
			Size: b.Size, Wide: b.Kind == cfgspace.Memory64, IO: b.Kind == cfgspace.IO, Prefetchable: b.Prefetchable,
		}
	}
	return out
}

// SoftwareGPU is the model of package gpu as a box slot holds it.
type SoftwareGPU struct{ *gpu.GPU }

var (
	_ Checker      = SoftwareGPU{}
	_ Scrubber     = SoftwareGPU{}
	_ ErrorCounter = SoftwareGPU{}
)

// Errors returns the XIDs that the GPU has had.
func (g SoftwareGPU) Errors() []DeviceErrors {
	var out []DeviceErrors
	xids := g.XIDs()
	for _, code := range slices.Sorted(maps.Keys(xids)) {
		out = append(out, DeviceErrors{Code: code, Count: xids[code]})
	}
	return out
}

// Check tells a GPU that is off the bus, or whose memory has an error that
// was not corrected, from one that can be used.
func (g SoftwareGPU) Check() (ok bool, detail string) {
	switch h := g.Health(); {
	case !h.Alive:
		return false, fmt.Sprintf("the GPU has fallen off the bus (XID %d)", h.XID)
	case h.XID == reg.XIDDoubleBit:
		return false, fmt.Sprintf("double-bit memory error (XID %d), %d so far", h.XID, h.ECCUncorrectable)
	}
	return true, ""
}
