package gpu

import (
	"cmp"
	"context"
	"fmt"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/pcie"
)

var (
	_ device.Device       = (*GPU)(nil)
	_ device.Describer    = (*GPU)(nil)
	_ device.Checker      = (*GPU)(nil)
	_ device.ErrorCounter = (*GPU)(nil)
	_ device.Scrubber     = (*GPU)(nil)
	_ device.TagCounter   = (*GPU)(nil)
)

// Model makes software GPUs with the parameters of Spec. A GPU without a serial
// number gets that of its place.
func Model() device.Model {
	return device.NewModel("gpu", "software GPU", "", func(_ context.Context, at device.Place, spec Spec) (device.Device, error) {
		spec.Serial = cmp.Or(spec.Serial, at.Serial())
		return New(spec)
	})
}

// Info implements device.Describer.
func (g *GPU) Info() device.Info {
	out := device.Info{
		Model: g.spec.Model, Serial: fmt.Sprintf("%016x", g.spec.Serial), Memory: uint64(g.spec.VRAM),
		Vendor: reg.VendorID, Device: reg.DeviceID,
	}
	for i := range out.BARs {
		b := g.cfg.BAR(i)
		out.BARs[i] = pcie.BAR{Size: b.Size, Wide: b.Kind == cfgspace.Memory64, IO: b.Kind == cfgspace.IO, Prefetchable: b.Prefetchable}
	}
	return out
}

// Check implements device.Checker: a GPU off the bus, or with a memory error
// that was not corrected, does not work.
func (g *GPU) Check() (ok bool, detail string) {
	switch h := g.Health(); {
	case !h.Alive:
		return false, fmt.Sprintf("the GPU has fallen off the bus (XID %d)", h.XID)
	case h.XID == reg.XIDDoubleBit:
		return false, fmt.Sprintf("double-bit memory error (XID %d), %d so far", h.XID, h.ECCUncorrectable)
	}
	return true, ""
}

// TagsInUse implements device.TagCounter for the DMA reads.
func (g *GPU) TagsInUse() (n, limit int) { return g.req.InFlight(), g.req.Tags() }
